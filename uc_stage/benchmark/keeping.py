"""Kept reports: one JSON file each, as `--json` prints it, without a status; and what may be replaced by one."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
import types
import typing
from typing import TYPE_CHECKING, Any, Literal

from uc_stage import model
from uc_stage.errors import AccessDenied, InvalidRequest, Unsupported
from uc_stage.model import BenchReport
from uc_stage.storage import LocalFolder, folder_of, open_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from uc_stage.storage import Folder

# That of the object which `--json` prints, which is read as well.
SCHEMA_VERSION = 1

# A report of a thousand measurements has less than a hundredth of it.
_MOST_BYTES = 64 * 1024**2


def record(report: BenchReport) -> bytes:
    """A report as it is kept; ASCII, since a path may be no UTF-8 (a lone surrogate)."""
    kept = {"schema_version": SCHEMA_VERSION, "command": "bench", "data": dataclasses.asdict(report)}
    return json.dumps(kept, sort_keys=True, indent=2).encode() + b"\n"


def read(file: str, flag: str) -> BenchReport:
    """Reads a kept report, or what `--json` printed.

    Raises:
        InvalidRequest: another file, or a damaged one. Unsupported: one of another format.
        NotFound: it is not there. AccessDenied, Unavailable: as the storage says.
    """
    folder, name = _place(file, flag)
    raw = _parsed(_small(folder, name))
    if raw is None:
        raise InvalidRequest(
            f"`{flag} {file}` is no kept result of bench", hint="name a file that `uc-stage bench --save FILE` wrote"
        )
    if raw["schema_version"] != SCHEMA_VERSION:
        raise Unsupported(
            f"`{flag} {file}` has the format {raw['schema_version']}; this version reads {SCHEMA_VERSION}",
            hint="measure it again with `--save`, or use the uc-stage that wrote it",
        )
    try:
        report: BenchReport = _value(BenchReport, raw.get("data"))
        if not report.measurements:
            raise ValueError("it holds no measurement")  # noqa: TRY301 - one message for all that is wrong
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidRequest(
            f"`{flag} {file}` is damaged: {error}", hint="measure it again: uc-stage bench TARGET --save FILE"
        ) from None
    return report


def is_kept(data: bytes) -> bool:
    """Whether a file's bytes are a kept report of any format."""
    return _parsed(data) is not None


def check_place(file: str, flag: str, is_ours: Callable[[bytes], bool], what: str) -> None:
    """Refuses a place that cannot be written, or holds what `is_ours` does not know; an empty file holds nothing.

    Raises:
        InvalidRequest: another file is there, or what is no file.
        AccessDenied, Unavailable, Unsupported: as the storage says.
    """
    folder, name = _place(file, flag)
    found = folder.stat(name)
    if found is not None and found.bytes and not is_ours(_small(folder, name) or b""):
        raise InvalidRequest(f"`{flag} {file}` is there, and is no {what}", hint="move it away, or name another file")
    if isinstance(folder, LocalFolder):
        above = folder.url
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise InvalidRequest(f"`{flag} {file}`: `{above}` is no folder", hint="name another file")
        try:
            # What a folder's bits allow, a file system may still refuse.
            tempfile.TemporaryFile(dir=above).close()
        except OSError as error:
            raise AccessDenied(
                f"`{flag} {file}`: nothing can be written in `{above}`: {error.strerror}", hint="name another folder"
            ) from None


def write(file: str, flag: str, data: bytes) -> None:
    """Puts a file in place, whole or not at all."""
    folder, name = _place(file, flag)
    folder.put(name, data)


def where(file: str, flag: str) -> str:
    """The place of a file, to tell whether two are one."""
    folder, name = _place(file, flag)
    return folder.locate(name)


def _place(file: str, flag: str) -> tuple[Folder, str]:
    if not file.strip():
        raise InvalidRequest(f"`{flag}` is empty", hint="name a file")
    at = open_folder(file)
    if isinstance(at, LocalFolder) and os.path.exists(at.url) and not os.path.isfile(at.url):
        # A device or a pipe has no size, and must not be replaced by a file.
        raise InvalidRequest(f"`{flag} {file}` is no file", hint="name a file")
    # Where the user names a link, what it links to is meant, wherever that is.
    return folder_of(os.path.realpath(at.url) if isinstance(at, LocalFolder) else at.url)


def _small(folder: Folder, name: str) -> bytes | None:
    """A file's bytes, unless they are far more than any file of ours has."""
    found = folder.stat(name)
    return None if found and found.bytes > _MOST_BYTES else folder.read(name)


def _parsed(data: bytes | None) -> dict[str, Any] | None:
    try:
        raw = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    ours = isinstance(raw, dict) and raw.get("command") == "bench" and type(raw.get("schema_version")) is int
    return raw if ours else None


def _value(hint: Any, value: Any) -> Any:
    """Gives a value from JSON the type of a field; keys that a record does not know are of a later uc-stage.

    Raises:
        TypeError, ValueError, OverflowError: it is of another type.
    """
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        fields = typing.get_type_hints(hint, localns=vars(model))
        return typing.cast("Any", hint)(
            **{key: _value(fields[key], one) for key, one in value.items() if key in fields}
        )
    if origin is tuple and isinstance(value, list):
        return tuple(_value(kinds[0], one) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: _value(kinds[1], one) for key, one in value.items()}
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(next(kind for kind in kinds if kind is not type(None)), value)
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint is not float and (value in kinds if origin is Literal else type(value) is hint):
        return value
    message = f"{str(value)[:40]!r} is of another kind than expected"
    raise TypeError(message)
