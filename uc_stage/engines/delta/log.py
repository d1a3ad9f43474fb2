"""What a Delta log's folder tells: which versions there are, what they are read from, and when each was committed."""

from __future__ import annotations

import bisect
import datetime as dt
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uc_stage.engines.delta.table_files import damaged
from uc_stage.errors import NotFound, VerificationFailed
from uc_stage.model import read_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from uc_stage.engines.delta.table_files import TableFiles

FOLDER = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.parquet|parquet|[^.]+\.(?:parquet|json))")
_ENABLED = "delta.enableInCommitTimestamps"
_ENABLED_AT = "delta.inCommitTimestampEnablementVersion"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files that hold the state of one version together, by their paths below the table."""

    version: int
    paths: tuple[str, ...]


@dataclass(slots=True)
class _Parts:
    """The parts of a multi-part checkpoint that are there."""

    total: int
    names: dict[int, str] = field(default_factory=dict)


class DeltaLog:
    """The listing of `_delta_log`, read once. `_last_checkpoint` is not looked at: the listing tells more, and right.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries
    """

    def __init__(self, files: TableFiles) -> None:
        self.files = files
        self.modified: dict[int, dt.datetime] = {}
        self._compacted: dict[int, list[int]] = {}
        self._checkpoints: list[Checkpoint] = []
        parts: dict[tuple[int, int], _Parts] = {}
        for info in sorted(files.list(FOLDER), key=lambda info: str(info.path)):
            name = info.path.rpartition("/")[2]
            if commit := _COMMIT.fullmatch(name):
                # Delta counts in milliseconds: a time that was told must find its version again.
                self.modified[int(commit[1])] = info.mtime.replace(microsecond=info.mtime.microsecond // 1000 * 1000)
            elif compacted := _COMPACTED.fullmatch(name):
                self._compacted.setdefault(int(compacted[1]), []).append(int(compacted[2]))
            elif not (checkpoint := _CHECKPOINT.fullmatch(name)):
                continue
            elif checkpoint[2]:
                key = int(checkpoint[1]), int(checkpoint[3])
                parts.setdefault(key, _Parts(key[1])).names[int(checkpoint[2])] = f"{FOLDER}/{name}"
            else:
                self._checkpoints.append(Checkpoint(int(checkpoint[1]), (f"{FOLDER}/{name}",)))
        for (version, total), found in parts.items():
            if sorted(found.names) == list(range(1, total + 1)):
                paths = tuple(path for _, path in sorted(found.names.items()))
                self._checkpoints.append(Checkpoint(version, paths))

    def checkpoints(self, version: int) -> list[Checkpoint]:
        """The whole checkpoints of a version and of earlier ones, the newest first."""
        found = [checkpoint for checkpoint in self._checkpoints if checkpoint.version <= version]
        return sorted(found, key=lambda checkpoint: checkpoint.version, reverse=True)

    def commits(self, first: int, last: int) -> list[str]:
        """The paths of the files that hold the commits from `first` to `last`, in order.

        A compacted file stands in for commits that were cleaned away.

        Raises:
            VerificationFailed: a commit is in none of them.
        """
        paths, version = [], first
        while version <= last:
            if version in self.modified:
                paths.append(f"{FOLDER}/{version:020}.json")
                version += 1
                continue
            until = max((end for end in self._compacted.get(version, ()) if end <= last), default=None)
            if until is None:
                raise damaged(self.files.table, f"its log has no commit {version}, which version {last} is built on")
            paths.append(f"{FOLDER}/{version:020}.{until:020}.compacted.json")
            version = until + 1
        return paths

    def versions(self) -> tuple[int, int] | None:
        """The first and the last version that can be read; None for a log without any."""
        whole = {checkpoint.version for checkpoint in self._checkpoints}
        known = {*self.modified, *whole, *(end for ends in self._compacted.values() for end in ends)}
        if not known:
            return None
        first = 0 if 0 in self.modified else min(whole or known)
        return first, max(known)

    def require(self, version: int) -> None:
        """Refuses a version that the log does not hold.

        Raises:
            NotFound: it says which there are.
        """
        span = self.versions()
        if span is not None and not span[0] <= version <= span[1]:
            raise NotFound(
                f"`{self.files.table}` has no version {version}", hint=f"it has the versions {span[0]} to {span[1]}"
            )

    def committed_at(self, version: int, configuration: Mapping[str, str | None]) -> dt.datetime | None:
        """When a version was committed: its in-commit timestamp where the table has those, else its file's time.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#in-commit-timestamps
        """
        if version not in self.modified:
            return None
        if configuration.get(_ENABLED) == "true" and version >= int(configuration.get(_ENABLED_AT) or 0):
            millis = _in_commit_millis(self.files.read(f"{FOLDER}/{version:020}.json"))
            if millis is None:
                raise VerificationFailed(
                    f"version {version} of `{self.files.table}` lacks the in-commit timestamp that it promises",
                    hint="name the version itself with `--version`",
                )
            return dt.datetime.fromtimestamp(millis / 1000, dt.timezone.utc)
        return self.modified[version].astimezone(dt.timezone.utc)

    def version_at(self, timestamp: str, configuration: Mapping[str, str | None]) -> int:
        """The newest version that was there at an ISO 8601 time; one without a zone is UTC.

        As in Spark, a time before the first commit or after the last one is refused.

        Raises:
            InvalidRequest: not a time. NotFound: it says when the first and the last commit were.
        """
        moment, table = read_timestamp(timestamp), self.files.table
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


def _in_commit_millis(commit: bytes) -> int | None:
    """The in-commit timestamp, which stands in a commit's first action."""
    try:
        action, _ = json.JSONDecoder().raw_decode(commit.decode().lstrip())
        millis = action["commitInfo"]["inCommitTimestamp"]
    except (ValueError, TypeError, KeyError):
        return None
    return millis if type(millis) is int else None
