"""`--verify`: reads every byte of every file, many files at once, and compares it with what was recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from uc_stage.crew import each
from uc_stage.errors import StageError
from uc_stage.inspection.wholeness import without_path
from uc_stage.model import Problem
from uc_stage.parquet import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.progress import Progress
    from uc_stage.storage import Folder

# Hashing needs a core a file; a volume needs several reads in flight.
_JOBS = 16
_CHUNK_BYTES = 4 * 1024**2

_Way = Literal["hash", "decode", "read"]
_WORDS: dict[_Way, str] = {
    "hash": "by their xxh3_128",
    "decode": "by decoding every page, since no hash is recorded",
    "read": "by reading them alone, since no hash is recorded",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One file to verify: `xxh3_128` is the recorded hash, 32 hex digits, where there is one."""

    path: str
    bytes: int
    xxh3_128: str | None
    parquet: bool


def verify(folder: Folder, checks: Sequence[Check], progress: Progress) -> tuple[list[Problem], str]:
    """Reads the files and gives those that are not as recorded, and in words how many were checked in which way."""
    progress.phase("verify", total=sum(check.bytes for check in checks))

    def one(check: Check) -> Problem | None:
        try:
            return _verify(folder, check, progress)
        except StageError as error:
            return Problem("unreadable", without_path(error, folder.locate(check.path)), check.path)

    problems = [problem for problem in each(one, checks, _JOBS) if problem]
    ways = Counter(_way(check) for check in checks)
    said = [f"{ways[way]} {'file' if ways[way] == 1 else 'files'} {_WORDS[way]}" for way in _WORDS if ways[way]]
    return problems, "; ".join(said) or "there are no files"


def _way(check: Check) -> _Way:
    if check.xxh3_128 is not None:
        return "hash"
    return "decode" if check.parquet else "read"


def _verify(folder: Folder, check: Check, progress: Progress) -> Problem | None:
    way = _way(check)
    if way == "decode":
        file = folder.ranges(check.path)
        file.forget()
        file.close()
        decode(folder, check.path)
        progress.advance(check.bytes)
        return None
    size, digest = _hash(folder, check.path, check.bytes, progress)
    if way == "hash" and digest != check.xxh3_128:
        return Problem("changed", f"its bytes changed: xxh3_128 {digest}, recorded {check.xxh3_128}", check.path)
    if size != check.bytes:
        return Problem("size_differs", f"has {size} bytes where {check.bytes} are recorded", check.path)
    return None


def _hash(folder: Folder, path: str, size: int, progress: Progress) -> tuple[int, str]:
    import xxhash

    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    offset = 0
    file = folder.ranges(path)
    try:
        file.forget()  # what is stored counts, not what the page cache remembers of it
        while offset < size and (count := file.read_into(buffer, offset)):
            hasher.update(buffer[:count])
            progress.advance(count)
            offset += count
    finally:
        file.close()
    return offset, str(hasher.hexdigest())
