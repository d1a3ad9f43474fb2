"""What a Delta log's folder tells: which versions there are, and when each was committed."""

from __future__ import annotations

import bisect
import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any

from uc_stage.errors import NotFound, VerificationFailed
from uc_stage.model import read_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet|(\d{20})\.checkpoint\..*json")
_ENABLED = "delta.enableInCommitTimestamps"
_ENABLED_AT = "delta.inCommitTimestampEnablementVersion"


class DeltaLog:
    """The listing of `_delta_log`, read once, through the storage that deltalake reads the table with."""

    def __init__(self, table_uri: str, storage_options: dict[str, str]) -> None:
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        self._fs = pyarrow.fs.PyFileSystem(DeltaStorageHandler(table_uri, storage_options))
        self.modified: dict[int, dt.datetime] = {}
        self.checkpoints: set[int] = set()
        for info in self._fs.get_file_info(pyarrow.fs.FileSelector("_delta_log", allow_not_found=True)):
            name = info.path.rpartition("/")[2]
            if commit := _COMMIT.fullmatch(name):
                # Delta counts in milliseconds: a time that was told must find its version again.
                self.modified[int(commit[1])] = info.mtime.replace(microsecond=info.mtime.microsecond // 1000 * 1000)
            elif checkpoint := _CHECKPOINT.fullmatch(name):
                self.checkpoints.add(int(checkpoint[1] or checkpoint[2]))

    def open(self, path: str) -> Any:
        """Opens a file of the table, by its path below it, for reading at any offset."""
        return self._fs.open_input_file(path)

    def versions(self) -> tuple[int, int] | None:
        """The first and the last version that can be read; None for a log without any."""
        known = {*self.modified, *self.checkpoints}
        if not known:
            return None
        first = 0 if 0 in self.modified else min(self.checkpoints, default=min(known))
        return first, max(known)

    def require(self, version: int, table: str) -> None:
        """Refuses a version that the log does not hold.

        Raises:
            NotFound: it says which there are.
        """
        span = self.versions()
        if span is not None and not span[0] <= version <= span[1]:
            raise NotFound(f"`{table}` has no version {version}", hint=f"it has the versions {span[0]} to {span[1]}")

    def committed_at(self, version: int, configuration: Mapping[str, str | None]) -> dt.datetime | None:
        """When a version was committed: its in-commit timestamp where the table has those, else its file's time.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#in-commit-timestamps
        """
        if version not in self.modified:
            return None
        if configuration.get(_ENABLED) == "true" and version >= int(configuration.get(_ENABLED_AT) or 0):
            first = self.open(f"_delta_log/{version:020}.json").read().partition(b"\n")[0]
            millis = json.loads(first).get("commitInfo", {}).get("inCommitTimestamp")
            if type(millis) is not int:
                raise VerificationFailed(
                    f"version {version} has no in-commit timestamp, which the table's properties promise",
                    hint="name the version itself with `--version`",
                )
            return dt.datetime.fromtimestamp(millis / 1000, dt.timezone.utc)
        return self.modified[version].astimezone(dt.timezone.utc)

    def version_at(self, timestamp: str, configuration: Mapping[str, str | None], table: str) -> int:
        """The newest version that was there at an ISO 8601 time; one without a zone is UTC.

        As in Spark, a time before the first commit or after the last one is refused.

        Raises:
            InvalidRequest: not a time. NotFound: it says when the first and the last commit were.
        """
        moment = read_timestamp(timestamp)
        span = self.versions()
        versions = sorted(version for version in self.modified if span is not None and version >= span[0])
        times = self._times(versions, configuration)
        if not versions:
            raise NotFound(f"`{table}` has no commits to find a time among", hint="name a version with `--version`")
        if not times(versions[0]) <= moment <= times(versions[-1]):
            raise NotFound(
                f"`{table}` has no version of {timestamp}",
                hint=f"its commits go from version {versions[0]} at {times(versions[0]).isoformat()} "
                f"to version {versions[-1]} at {times(versions[-1]).isoformat()}",
            )
        return versions[bisect.bisect_right(versions, moment, key=times) - 1]

    def _times(self, versions: list[int], configuration: Mapping[str, str | None]) -> Callable[[int], dt.datetime]:
        """Commit times that rise with the versions: writers' clocks differ, and copied files may all have one time."""
        rising: dict[int, dt.datetime] = {}
        since = int(configuration.get(_ENABLED_AT) or 0) if configuration.get(_ENABLED) == "true" else None
        last: dt.datetime | None = None
        for version in versions:
            if since is None or version < since:
                at = self.modified[version].astimezone(dt.timezone.utc)
                rising[version] = last = at if last is None else max(at, last + dt.timedelta(milliseconds=1))

        def committed(version: int) -> dt.datetime:
            at = rising.get(version) or self.committed_at(version, configuration)
            assert at is not None
            return at

        return committed
