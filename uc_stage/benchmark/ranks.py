"""Several ranks of one node that read at once: a process for each, which begin together."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from uc_stage.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from uc_stage.benchmark.readers import Job
    from uc_stage.model import Measurement
    from uc_stage.progress import Progress

    # Runs one job over so many bytes; the last one is told the process's id.
    Measure = Callable[[Job, int, Progress, Callable[[int], None]], Measurement]

# More GPUs than a node has; each rank is a process with its libraries in memory.
MOST_RANKS = 64
_LOOK_SECONDS = 0.005
_MOST_NOTED = 3


def meet(folder: str, rank: int, world_size: int, timeout: float) -> None:
    """Waits until every rank has come, or for so many seconds: one that died never comes."""
    come(folder, rank)
    deadline = time.monotonic() + timeout
    while len(os.listdir(folder)) < world_size and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def come(folder: str, rank: int) -> None:
    """Marks a rank as one that is ready, or that nobody is to wait for."""
    with open(os.path.join(folder, str(rank)), "wb"):
        pass


def measure_ranks(measure: Measure, job: Job, size: int, progress: Progress) -> Measurement:
    """Runs a job's ranks at once, each on its share, and tells of them as of one reader; see `together`."""
    progress.phase(f"{job.reader} {job.target}", total=size)
    running = _Running()
    with (
        tempfile.TemporaryDirectory(prefix="uc-stage-ranks-") as folder,
        ThreadPoolExecutor(job.world_size, "uc-stage-rank") as pool,
    ):

        def run(rank: int) -> Measurement:
            begun: list[int] = []
            try:
                own = replace(job, rank=rank, meeting=folder)
                return measure(own, size, _Shares(progress, running.lock), partial(running.add, begun))
            finally:
                running.remove(begun)
                come(folder, rank)

        try:
            found = list(pool.map(run, range(job.world_size)))
        except BaseException:
            # The pool waits for its threads, and those for their processes.
            running.end()
            raise
    return together(found, sum(rows for _, _, rows in job.files), size)


def together(ranks: Sequence[Measurement], total_rows: int, total_bytes: int) -> Measurement:
    """The measurements of all ranks as one: rows and bytes are those of all, times are those of the slowest rank.

    So are its other figures: a training waits for its slowest rank at each step.
    """
    slowest = max(ranks, key=lambda rank: (rank.failed, rank.wait_share or 0.0, rank.seconds))
    seconds = max(rank.seconds for rank in ranks)
    rows = None if slowest.rows is None else sum(rank.rows or 0 for rank in ranks)
    passed = sum(rank.bytes for rank in ranks)
    complete = all(rank.complete for rank in ranks)
    failed = [index for index, rank in enumerate(ranks) if rank.failed]
    notes = [f"rank {index}: {ranks[index].note}" for index in failed[:_MOST_NOTED]]
    if complete and (passed != total_bytes if rows is None else rows != total_rows):
        complete, failed = False, list(range(len(ranks)))
        gave = f"{passed} bytes of {total_bytes}" if rows is None else f"{rows} rows of {total_rows}"
        notes.append(f"an epoch of all ranks gave {gave}")
    if not notes and slowest.note:
        notes = [slowest.note]
    firsts = [rank.first_batch_seconds for rank in ranks if rank.first_batch_seconds is not None]
    return replace(
        slowest,
        rows=rows,
        bytes=passed,
        seconds=seconds,
        first_batch_seconds=max(firsts, default=None),
        rows_per_second=rows / seconds if rows and seconds else None,
        bytes_per_second=passed / seconds if seconds else 0.0,
        complete=complete,
        failed=bool(failed),
        note="; ".join(notes) or None,
    )


class _Running:
    """The ids of the processes that read for the ranks, to end them all at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ids: set[int] = set()
        self._ended = False

    def add(self, begun: list[int], number: int) -> None:
        with self.lock:
            begun.append(number)
            self._ids.add(number)
        if self._ended:
            self.end()

    def remove(self, begun: list[int]) -> None:
        with self.lock:
            self._ids.difference_update(begun)

    def end(self) -> None:
        with self.lock:
            self._ended = True
            for number in self._ids:
                with suppress(ProcessLookupError):
                    os.killpg(number, signal.SIGKILL)


class _Shares:
    """The progress of one rank: what it reads is part of the whole."""

    def __init__(self, whole: Progress, lock: threading.Lock) -> None:
        self._whole, self._lock = whole, lock

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        SILENT.phase(name, total=total, unit=unit)

    def advance(self, amount: int) -> None:
        with self._lock:
            self._whole.advance(amount)

    def note(self, message: str) -> None:
        self._whole.note(message)
