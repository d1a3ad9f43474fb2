"""How fast a target's storage can be read at all: ranges of its files, side by side, from a cold page cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from uc_stage.benchmark.sampling import opened
from uc_stage.crew import each

if TYPE_CHECKING:
    from collections.abc import Sequence

# A disk that is near may be fastest with few, a volume or an object store with many.
STREAMS = (1, 4, 16)
_RANGE_BYTES = 4 * 1024**2
_MOST_BYTES = 512 * 1024**2
_MOST_FILES = 64
_SECONDS = 1.0


def storage_limit(files: Sequence[tuple[str, int, int]]) -> tuple[float, int]:
    """The most bytes a second that so many streams got, and how many those were; see `read_at_once`."""
    return max((read_at_once(files, streams), streams) for streams in STREAMS)


def read_at_once(
    files: Sequence[tuple[str, int, int]], streams: int, seconds: float = _SECONDS, most: int = _MOST_BYTES
) -> float:
    """Bytes a second of threads that each read a run of all ranges, bounded in time and in bytes.

    Args:
        files: paths or URLs with their bytes and rows.
        streams: how many threads.
        seconds: none begins with another range after it.
        most: bytes of all ranges.

    Raises:
        StageError: as the storage says.
    """
    ranges: list[tuple[str, int, int]] = []
    for path, size, _ in files[:_MOST_FILES]:
        for at in range(0, size, _RANGE_BYTES):
            if most > 0:
                ranges.append((path, at, min(_RANGE_BYTES, size - at, most)))
                most -= ranges[-1][2]
    for path in dict.fromkeys(path for path, _, _ in ranges):
        file = opened(path)
        try:
            file.forget()
        finally:
            file.close()
    runs = [ranges[len(ranges) * at // streams : len(ranges) * (at + 1) // streams] for at in range(streams)]
    buffers = [memoryview(bytearray(_RANGE_BYTES)) for _ in runs]
    began = time.perf_counter()

    def read(stream: int) -> int:
        done, held, file = 0, "", None
        try:
            for path, at, size in runs[stream]:
                if time.perf_counter() - began >= seconds:
                    break
                if file is None or path != held:
                    if file is not None:
                        file.close()
                    held, file = path, opened(path)
                done += file.read_into(buffers[stream][:size], at)
        finally:
            if file is not None:
                file.close()
        return done

    return sum(each(read, range(streams), streams)) / (time.perf_counter() - began)
