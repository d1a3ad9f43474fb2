"""How fast a target's storage can be read at all: ranges of its files, side by side, from a cold page cache."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from uc_stage.benchmark.sampling import opened
from uc_stage.crew import each

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMS = 16
_RANGE_BYTES = 4 * 1024**2
_MOST_BYTES = 512 * 1024**2
_SECONDS = 2.0
# All of them are open at once.
_MOST_FILES = 256


def read_at_once(files: Sequence[tuple[str, int, int]], seconds: float = _SECONDS, most: int = _MOST_BYTES) -> float:
    """Bytes a second of `STREAMS` threads that each read one range after the other, bounded in time and in bytes.

    Raises:
        StageError: as the storage says.
    """
    wanted: deque[tuple[int, int, int]] = deque()
    for number, (_, size, _) in enumerate(files[:_MOST_FILES]):
        for at in range(0, size, _RANGE_BYTES):
            if most > 0:
                wanted.append((number, at, min(_RANGE_BYTES, size - at, most)))
                most -= wanted[-1][2]
    with ExitStack() as stack:
        held = []
        for path, _, _ in files[: wanted[-1][0] + 1]:
            held.append(opened(path))
            stack.callback(held[-1].close)
            held[-1].forget()
        done = 0
        lock = threading.Lock()
        began = time.perf_counter()

        def read(_: int) -> None:
            nonlocal done
            buffer = memoryview(bytearray(_RANGE_BYTES))
            while time.perf_counter() - began < seconds:
                try:
                    number, at, size = wanted.popleft()
                except IndexError:
                    return
                got = held[number].read_into(buffer[:size], at)
                with lock:
                    done += got

        each(read, range(STREAMS), STREAMS)
        return done / (time.perf_counter() - began)
