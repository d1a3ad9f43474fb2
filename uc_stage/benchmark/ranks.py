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

    from uc_stage.benchmark.jobs import Job
    from uc_stage.model import Measurement
    from uc_stage.progress import Progress

    # Runs one job over so many bytes; the last one is told the process's id.
    Measure = Callable[[Job, int, Progress, Callable[[int], None]], list[Measurement]]

# More GPUs than a node has; each rank is a process with its libraries in memory.
MOST_RANKS = 64
_LOOK_SECONDS = 0.005
_MOST_NOTED = 3


def meet(folder: str, rank: int, world_size: int, timeout: float, place: str = "") -> None:
    """Waits until every rank has come to one of several places, or for so many seconds: one that hangs never comes.

    A rank that came to the folder itself is waited for nowhere.
    """
    here = os.path.join(folder, place)
    os.makedirs(here, exist_ok=True)
    come(here, rank)
    deadline = time.monotonic() + timeout
    while len(_came(here) | _came(folder)) < world_size and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _came(folder: str) -> set[str]:
    return {name for name in os.listdir(folder) if name.isdigit()}


def come(folder: str, rank: int) -> None:
    """Marks a rank as one that is ready, or that nobody is to wait for."""
    with open(os.path.join(folder, str(rank)), "wb"):
        pass


def measure_ranks(measure: Measure, job: Job, size: int, progress: Progress) -> list[Measurement]:
    """Runs a job's ranks at once, each on its share, and tells of them as of one reader, cold and warm; see `together`.

    Where a rank has no warm measurement, since the cold one failed, there is none.
    """
    progress.phase(f"{job.reader} {job.target}")
    running = _Running()
    with (
        tempfile.TemporaryDirectory(prefix="uc-stage-ranks-") as folder,
        ThreadPoolExecutor(job.world_size, "uc-stage-rank") as pool,
    ):

        def run(rank: int) -> list[Measurement]:
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
    return [together(each, job.rows, size) for each in zip(*found, strict=False)]


def together(ranks: Sequence[Measurement], total_rows: int, total_bytes: int) -> Measurement:
    """The measurements of all ranks as one: rows and bytes are those of all, times are those of the slowest rank.

    So are its other figures: a training waits for its slowest rank at each step. The time of the processors is that of
    all, and the memory that of the largest worker. That no row came in two ranks nobody can tell: there are no distinct
    rows.
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
    rate = (passed if rows is None else rows) / seconds if seconds else 0.0
    own = slowest.bytes_per_second if rows is None else slowest.rows_per_second
    cpu = [rank.cpu_seconds for rank in ranks if rank.cpu_seconds is not None]
    memory = [rank.worker_bytes for rank in ranks if rank.worker_bytes is not None]
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
        cold=slowest.cold if len({rank.cold for rank in ranks}) == 1 else None,
        # Its repeats differ as those of all do.
        rates=tuple(each * rate / own for each in slowest.rates) if own else slowest.rates,
        cpu_seconds=sum(cpu) if cpu else None,
        worker_bytes=max(memory, default=None),
        distinct_rows=None,
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
