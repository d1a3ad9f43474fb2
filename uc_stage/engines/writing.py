"""Writes a stream of Arrow batches as the Parquet files of a generation, several at a time, in bounded memory."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from uc_stage.engines.schema import dictionary_columns
from uc_stage.errors import StageError, VerificationFailed, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    import pyarrow as pa

    from uc_stage.model import ExportPlan
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication

# Each writer holds one row group and encodes another; more of them cost memory, and one reader feeds them all.
_MOST_WRITERS = 8
# Level 1 is the fastest by far at sizes within a few percent of level 3's.
_ZSTD_LEVEL = 1


def write_files(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    plan: ExportPlan,
    publication: Publication,
    progress: Progress,
) -> tuple[str, ...]:
    """Spreads the batches over `plan.files` files of equal rows, give or take one, and gives the files' names.

    All batches are of `schema`. Memory is bounded by two row groups a writer and one more. An error in any writer, or
    an interrupt, ends all.

    Raises:
        VerificationFailed: the stream has more or fewer rows than `plan.rows`.
        StageError: as the storage says.
    """
    names = [publication.name("train", index, plan.files) for index in range(plan.files)]
    rows, more = divmod(plan.rows, plan.files)
    files = [
        _File(publication, name, rows + (index < more), schema, plan.layout.compression)
        for index, name in enumerate(names)
    ]
    progress.phase("write", total=plan.rows, unit="rows")
    waiting = iter(files)
    writers = min(len(files), len(os.sched_getaffinity(0)), _MOST_WRITERS)
    with ThreadPoolExecutor(writers, thread_name_prefix="uc-stage-write") as pool:
        slots = [_Slot(file, pool, progress) for _, file in zip(range(writers), waiting, strict=False)]
        try:
            _spread(_Chunks(batches, plan.layout.row_group_bytes), slots, waiting, plan)
            for slot in slots:
                slot.wait()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for file in files:
                file.abandon()
            raise
    return tuple(names)


def _spread(chunks: _Chunks, slots: list[_Slot], waiting: Iterable[_File], plan: ExportPlan) -> None:
    """Deals row groups out to the slots in turn; a slot whose file is full goes on with the next one."""
    waiting, turn, written = iter(waiting), 0, 0
    while slots:
        slot = slots[turn % len(slots)]
        chunk = chunks.take(slot.file.left)
        if chunk.num_rows == 0 and slot.file.left:
            raise _other_rows(plan, f"only {written}")
        written += chunk.num_rows
        slot.write(chunk)
        if slot.file.left == 0:
            following = next(waiting, None)
            if following is None:
                slot.wait()
                slots.remove(slot)
                continue
            slot.follow(following)
        turn += 1
    if chunks.take(1).num_rows:
        raise _other_rows(plan, "more")


def _other_rows(plan: ExportPlan, found: str) -> VerificationFailed:
    source = plan.snapshot.source
    return VerificationFailed(
        f"`{source.table}` version {source.version} should hold {plan.rows} rows of this export, and {found} came",
        hint="the log's statistics or a data file is wrong: check the table with another reader",
    )


class _Chunks:
    """Cuts a stream of batches into tables of about a row group's bytes."""

    def __init__(self, batches: Iterable[pa.RecordBatch], target_bytes: int) -> None:
        self._batches = iter(batches)
        self._target_bytes = target_bytes
        self._held: list[Any] = []
        self._held_rows = self._seen_rows = self._seen_bytes = 0

    def take(self, most: int) -> pa.Table:
        """The next rows: as many as make a row group, at most `most`; none where the stream has ended.

        What is left of a file is shared out evenly, so that its last row group is not a small rest.
        """
        import pyarrow as pa

        self._hold(1)
        rows = most
        if self._seen_rows:
            target = max(1, self._target_bytes * self._seen_rows // max(1, self._seen_bytes))
            rows = -(-most // -(-most // target)) if most else 0
        self._hold(rows)
        taken, wanted = [], min(rows, self._held_rows)
        while wanted:
            batch = self._held.pop(0)
            if batch.num_rows > wanted:
                self._held.insert(0, batch.slice(wanted))
                batch = batch.slice(0, wanted)
            taken.append(batch)
            wanted -= batch.num_rows
            self._held_rows -= batch.num_rows
        return pa.Table.from_batches(taken) if taken else pa.table({})

    def _hold(self, rows: int) -> None:
        while self._held_rows < rows and (batch := next(self._batches, None)) is not None:
            if batch.num_rows:
                self._held.append(batch)
                self._held_rows += batch.num_rows
                self._seen_rows += batch.num_rows
                self._seen_bytes += batch.nbytes


class _Slot:
    """One place among the files that are open at a time: at most one chunk is on its way to it."""

    def __init__(self, file: _File, pool: ThreadPoolExecutor, progress: Progress) -> None:
        self.file, self._pool, self._progress = file, pool, progress
        self._running: Future[None] | None = None

    def write(self, chunk: pa.Table) -> None:
        self.wait()
        file = self.file
        file.left -= chunk.num_rows
        self._running = self._pool.submit(self._encode, file, chunk, last=file.left == 0)

    def _encode(self, file: _File, chunk: pa.Table, *, last: bool) -> None:
        file.write(chunk)
        self._progress.advance(chunk.num_rows)
        if last:
            file.close()

    def follow(self, file: _File) -> None:
        self.file = file

    def wait(self) -> None:
        """Waits for the chunk on its way, and raises what went wrong with it."""
        if self._running is not None:
            self._running.result()


class _File:
    """One Parquet file, opened when its first rows come; `left` are the rows that it still gets."""

    def __init__(self, publication: Publication, name: str, rows: int, schema: pa.Schema, compression: str) -> None:
        self.name, self.left = name, rows
        self._publication, self._schema, self._compression = publication, schema, compression
        self._sink: BinaryIO | None = None
        self._writer: Any = None

    def write(self, chunk: pa.Table) -> None:
        """Writes the rows as one row group; none at all, as a file without row groups."""
        with self._named():
            if self._writer is None:
                self._open()
            if chunk.num_rows:
                self._writer.write_table(chunk, row_group_size=chunk.num_rows)

    def close(self) -> None:
        with self._named():
            self._writer.close()
            assert self._sink is not None
            self._sink.close()

    def abandon(self) -> None:
        """Lets go of the file after a failure, whatever state it is in; the publication removes it."""
        if self._writer is not None:
            self._writer.is_open = False  # or its finaliser writes a footer into a closed file, and complains
        if self._sink is not None:
            with contextlib.suppress(Exception):  # what went wrong first is what the user hears
                self._sink.close()

    def _open(self) -> None:
        import pyarrow.parquet as pq

        self._sink = self._publication.create(self.name)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=self._compression,
            compression_level=_ZSTD_LEVEL if self._compression == "zstd" else None,
            use_dictionary=dictionary_columns(self._schema),
            # Readers then see Parquet's own types, which every engine writes alike.
            store_schema=False,
        )

    @contextlib.contextmanager
    def _named(self) -> Any:
        try:
            yield
        except StageError:
            raise
        except OSError as error:
            raise from_os_error(error, self._publication.folder.locate(self.name)) from error
