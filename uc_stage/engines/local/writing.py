"""Writes streams of Arrow batches as the Parquet files of a generation, on every core, in bounded memory.

A split's rows fill its files one after the other, in the order in which they come. Row groups are encoded side by side
and put together in their order, so that one file keeps every core at work and a volume sees one sequential write.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_right
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from uc_stage.crew import join
from uc_stage.engines.local.assembly import Assembly
from uc_stage.engines.local.encoding import encode
from uc_stage.engines.schema import dictionary_columns
from uc_stage.errors import StageError, VerificationFailed, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from typing_extensions import Self

    from uc_stage.engines.local.encoding import Encoded
    from uc_stage.model import ExportPlan, PlannedSplit
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication

_MOST_ENCODERS = 8
# Of all row groups that are being encoded, each of which is there twice: as it came and as it is encoded. Four of the
# default size fit.
_BUDGET_BYTES = 512 * 1024**2
# So many times its target may a row group of rows of uneven sizes be; a single row may be larger.
_MOST_TARGETS = 1.5
# A wait for an encoder looks this often for the failure of another.
_LOOK_SECONDS = 0.2


def write_splits(
    rows: Iterable[tuple[int, pa.RecordBatch]],
    schema: pa.Schema,
    plan: ExportPlan,
    publication: Publication,
    progress: Progress,
) -> dict[str, tuple[str, ...]]:
    """Writes the batches that come for each split into its files of equal rows, give or take one; gives their names.

    Args:
        rows: batches of `schema`, each with the index of its split in the plan; a split's last `dropped` rows are left
            out.
        schema: of all files.
        plan: how many rows and files each split has.
        publication: where the files go.
        progress: hears of the rows that are written.

    Raises:
        VerificationFailed: a split has more or fewer rows than were planned.
        StageError: as the storage says.
    """
    progress.phase("write", total=plan.rows, unit="rows")
    with _Encoders(publication, schema, plan, progress) as encoders:
        splits = [_Split(planned, encoders) for planned in plan.splits]
        for index, batch in rows:
            splits[index].add(batch)
        for split in splits:
            split.end()
    return {split.name: split.files for split in splits}


class _Split:
    """One split: cuts what comes into row groups of about equal bytes, and those into files of equal rows."""

    def __init__(self, planned: PlannedSplit, encoders: _Encoders) -> None:
        self.name = planned.name
        self._planned, self._encoders = planned, encoders
        self._quotas = _quotas(planned.rows, planned.files)
        self.files = tuple(
            encoders.publication.name(planned.name, index, planned.files) for index in range(planned.files)
        )
        self._waiting = iter(zip(self.files, self._quotas, strict=True))
        self._target = encoders.row_group_bytes
        self._held: deque[pa.RecordBatch] = deque()
        self._held_rows = self._held_bytes = self._seen = self._came = 0
        self._next_file()

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows; those that the plan leaves out at the end are let go."""
        room = self._planned.rows - self._seen
        self._came += batch.num_rows
        if self._came > self._planned.rows + self._planned.dropped:
            raise self._other_rows("more")
        batch = batch.slice(0, room)
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._seen += batch.num_rows
        self._held_bytes += batch.nbytes
        while self._held_rows and (self._held_bytes >= self._target or self._held_rows >= self._left):
            self._write(self._cut())

    def end(self) -> None:
        """Checks that all rows came, and writes a file of no rows where there are none."""
        if self._came != self._planned.rows + self._planned.dropped:
            raise self._other_rows(f"only {self._came}")
        if not self._planned.rows:
            self._write([])

    def _cut(self) -> list[pa.RecordBatch]:
        """Takes the next row group from what is held: a row group's bytes, or all that is left of the file.

        What is left of the file is shared out evenly, so that its last row group is not a small rest where rows are
        about as large as those that are held.
        """
        most = max(1, self._target * self._held_rows // max(1, self._held_bytes))
        wanted = -(-self._left // -(-self._left // most))
        room = _MOST_TARGETS * self._target
        taken: list[pa.RecordBatch] = []
        while wanted:
            batch = self._held.popleft()
            rows = min(batch.num_rows, wanted)
            if batch.slice(0, rows).nbytes > room:
                rows = max(_rows_within(batch, room), 0 if taken else 1)
                wanted = rows
            if rows < batch.num_rows:
                self._held.appendleft(batch.slice(rows))
                batch = batch.slice(0, rows)
            if rows:
                taken.append(batch)
            wanted -= rows
            room -= batch.nbytes
        self._held_rows -= sum(batch.num_rows for batch in taken)
        self._held_bytes = sum(batch.nbytes for batch in self._held)
        return taken

    def _write(self, taken: list[pa.RecordBatch]) -> None:
        import pyarrow as pa

        rows = pa.Table.from_batches(taken, self._encoders.schema)
        self._left -= rows.num_rows
        self._encoders.submit(self._file, rows, last=not self._left)
        if not self._left:
            self._next_file()

    def _next_file(self) -> None:
        following = next(self._waiting, None)
        if following is not None:
            name, self._left = following
            self._file = self._encoders.file(name)

    def _other_rows(self, found: str) -> VerificationFailed:
        source = self._encoders.plan.snapshot.source
        planned = self._planned.rows + self._planned.dropped
        return VerificationFailed(
            f"`{source.table}` version {source.version} should hold {planned} rows of this export, and {found} came",
            hint="the log's statistics or a data file is wrong: check the table with another reader",
        )


def encoders(row_group_bytes: int) -> int:
    """How many row groups of a size are encoded at a time: one on each core, as far as they fit in memory."""
    fitting = max(1, _BUDGET_BYTES // (2 * row_group_bytes))
    return min(len(os.sched_getaffinity(0)), _MOST_ENCODERS, fitting)


def _rows_within(batch: pa.RecordBatch, size: float) -> int:
    """How many of the first rows take at most `size` bytes."""
    return bisect_right(range(batch.num_rows + 1), size, key=lambda rows: batch.slice(0, rows).nbytes) - 1


def _quotas(rows: int, files: int) -> list[int]:
    each, more = divmod(rows, files)
    return [each + (index < more) for index in range(files)]


class _Encoders:
    """Threads that encode row groups; leaving waits for all of them, or stops them after a failure.

    What they leave unfinished then is the publication's to close and remove.
    """

    def __init__(self, publication: Publication, schema: pa.Schema, plan: ExportPlan, progress: Progress) -> None:
        self.publication, self.schema, self.plan = publication, schema, plan
        self.row_group_bytes = plan.layout.row_group_bytes
        self._progress = progress
        self._dictionaries: list[str] | None = None
        self._jobs = encoders(self.row_group_bytes)
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[tuple[_File, int, pa.Table] | None] = SimpleQueue()
        # No more than are encoded: the next one is gathered meanwhile, and memory that is new to a process is slow.
        self._room = threading.Semaphore(self._jobs)
        self._stopped = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._stopped = True
            self._end_threads()
            join(self._threads)

    def file(self, name: str) -> _File:
        """A file that row groups are submitted for; it is created when its first comes."""
        return _File(self.publication, name)

    def submit(self, file: _File, rows: pa.Table, *, last: bool) -> None:
        """Has a row group encoded and appended to its file, once there is room for it."""
        while not self._room.acquire(timeout=_LOOK_SECONDS):
            self._refuse_failed()
        self._refuse_failed()
        if self._dictionaries is None:
            self._dictionaries = dictionary_columns(self.schema, rows)
        self._queue.put((file, file.place(last=last), rows))
        if len(self._threads) < self._jobs:
            # A daemon, since one that is stuck on a mount must not keep the process from ending.
            thread = threading.Thread(target=self._work, name=f"uc-stage-write-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _finish(self) -> None:
        """Waits for all that was submitted, or for the first failure, which is raised."""
        self._end_threads()
        for thread in self._threads:
            while thread.is_alive() and self._failure is None:
                thread.join(_LOOK_SECONDS)
        self._refuse_failed()

    def _end_threads(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            while not self._stopped and (item := self._queue.get()) is not None:
                file, place, rows = item
                encoded = encode(rows, self.schema, self.plan.layout.compression, self._dictionaries or ())
                # Nobody else holds the rows: their memory is the next row group's.
                del item, rows
                for appended in file.put(place, encoded):
                    self._progress.advance(appended)
                    self._room.release()
                    if self._stopped:
                        return
                del encoded
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._failure = self._failure or error
            self._stopped = True


class _File:
    """One file: takes encoded row groups in any order and appends them in theirs."""

    def __init__(self, publication: Publication, name: str) -> None:
        self._publication, self._name = publication, name
        self._places = self._next = 0
        self._last: int | None = None
        self._ready: dict[int, Encoded] = {}
        self._lock = threading.Lock()
        self._appending = False
        self._assembly: Assembly | None = None

    def place(self, *, last: bool) -> int:
        """The place of the next row group to come."""
        place = self._places
        self._places += 1
        if last:
            self._last = place
        return place

    def put(self, place: int, encoded: Encoded) -> Iterator[int]:
        """Keeps a row group until its turn; appends those whose turn it is, and gives the rows of each.

        One thread appends at a time: another leaves its own to that one.
        """
        with self._lock:
            self._ready[place] = encoded
        while (following := self._take()) is not None:
            with self._named():
                if self._assembly is None:
                    self._assembly = Assembly(self._publication.create(self._name))
                self._assembly.append(following)
                if self._next == self._last:
                    self._assembly.close()
            with self._lock:
                self._next += 1
                self._appending = False
            yield following.rows

    def _take(self) -> Encoded | None:
        with self._lock:
            if self._appending or self._next not in self._ready:
                return None
            self._appending = True
            return self._ready.pop(self._next)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except StageError:
            raise
        except OSError as error:
            raise from_os_error(error, self._publication.folder.locate(self._name)) from error
