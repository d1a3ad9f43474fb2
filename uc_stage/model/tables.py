"""A Delta table as a user names it, and its columns."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from uc_stage.errors import InvalidRequest

_PINNED = re.compile(r"(?P<text>.+)@v(?P<version>\d+)", re.DOTALL)
_NAME = re.compile(r"(?:`[^`]+`|[^\s`./\\:~]+)(?:\.(?:`[^`]+`|[^\s`./\\:~]+)){0,2}")


def read_timestamp(text: str) -> dt.datetime:
    """Reads an ISO 8601 time; one without a zone is UTC.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        moment = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise InvalidRequest(
            f"`--timestamp {text}` is not a time", hint="write it as `2026-01-31` or `2026-01-31T12:00:00Z`"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


@dataclass(frozen=True, slots=True)
class TableRef:
    """A Delta table as a user names it: a path, a URL or `catalog.schema.table`, perhaps pinned.

    At most one of `version` and `timestamp` (ISO 8601) is set; with neither, the table's newest version is meant.
    """

    text: str
    version: int | None = None
    timestamp: str | None = None

    @classmethod
    def parse(cls, text: str, version: int | None = None, timestamp: str | None = None) -> TableRef:
        """Reads `text`, taking a trailing `@v12` as the version.

        Raises:
            InvalidRequest: the text is empty, `timestamp` is none, or more than one of `@vN`, `version` and
                `timestamp` is given.
        """
        if pinned := _PINNED.fullmatch(text):
            if version is not None:
                raise InvalidRequest(f"`{text}` and `--version {version}` both pin it", hint="give one of the two")
            text, version = pinned["text"], int(pinned["version"])
        if version is not None and timestamp is not None:
            raise InvalidRequest("a version and `--timestamp` both pin the table", hint="give one of the two")
        if version is not None and version < 0:
            raise InvalidRequest(f"`--version {version}` is negative", hint="versions of a Delta table count from 0")
        if timestamp is not None:
            read_timestamp(timestamp)
        if not text.strip():
            raise InvalidRequest("TABLE is empty", hint="name a table as `catalog.schema.table`, a path or a URL")
        return cls(text, version, timestamp)

    @property
    def is_name(self) -> bool:
        """Whether the text has the form of a catalog's name, of one to three parts, rather than of a path or URL."""
        return _NAME.fullmatch(self.text) is not None

    def __str__(self) -> str:
        """The text, with `@vN` where a version is pinned."""
        return self.text if self.version is None else f"{self.text}@v{self.version}"


@dataclass(frozen=True, slots=True)
class Field:
    """One column of an Arrow schema: its name, its type as Arrow prints it (`timestamp[us, tz=UTC]`), nullability."""

    name: str
    type: str
    nullable: bool = True
