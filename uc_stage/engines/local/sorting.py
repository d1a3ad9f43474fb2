"""Sorts a stream of batches within a budget of memory: sorted runs go to temporary files and come back merged."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from typing import TYPE_CHECKING, BinaryIO, Literal

from uc_stage.engines.local.arrays import int64_array
from uc_stage.errors import NoSpace, StageError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

Direction = Literal["ascending", "descending"]

# What is held, what it is gathered into, and what the rest of the run needs come to about the budget together.
_RUN_SHARE = 3
_MOST_RUN_BYTES = 2**30
# Small, so that the first rows of many runs fit in memory side by side; and so many in a run that its order shows.
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES, _BLOCKS = 64 * 1024, 2**20, 2048
# A merge holds up to a block of each of its runs beside what it reads; with that, a column stays below 2 GiB.
_LEFT_SHARE = 2
_MOST_LEFT_BYTES = 2**29
_OUT_BYTES = 8 * 1024**2
_SEQUENCE = "__sequence"


def sorted_batches(
    batches: Iterable[pa.RecordBatch], keys: Sequence[tuple[str, Direction]], memory: int
) -> Generator[pa.RecordBatch]:
    """Gives the rows of all batches in the order of their keys; equal ones stay in the order in which they came.

    NULL and NaN come last, in both directions; give another key before theirs to have it otherwise.

    Args:
        batches: all of one schema.
        keys: columns of the batches, the first one decides first.
        memory: bytes to get along with, roughly: a merge takes up to three times as many, and the keys of one row of
            each block. Beyond it the rows go to files in `tempfile.gettempdir()`, of twice their bytes at most.

    Raises:
        NoSpace: the temporary folder is full. NotFound, AccessDenied, Unavailable: it cannot be used.
    """
    run_bytes = min(max(1, memory // _RUN_SHARE), _MOST_RUN_BYTES)
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    with contextlib.ExitStack() as stack:
        spill: _Spill | None = None
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes > run_bytes:
                spill = spill or stack.enter_context(contextlib.closing(_Spill(keys, memory, run_bytes)))
                spill.add(held)
                held, held_bytes = [], 0
                spill.settle()
        if spill is None:
            if held:
                yield from _sorted(held, keys)
            return
        if held:
            spill.add(held)
            held = []
        yield from spill.merged()


def _sorted(batches: list[pa.RecordBatch], keys: Sequence[tuple[str, Direction]]) -> Iterator[pa.RecordBatch]:
    """The rows of some batches in order, gathered piece by piece."""
    import pyarrow as pa

    # `take` puts the chunks of a table together at each call.
    table = pa.Table.from_batches(batches).combine_chunks()
    order = _order(table, keys)
    step = _rows_of(table, _OUT_BYTES)
    for start in range(0, table.num_rows, step):
        yield _gathered(table, order.slice(start, step))


def _order(table: pa.Table, keys: Sequence[tuple[str, Direction]]) -> pa.Array:
    import pyarrow.compute as pc

    # It is a stable sort.
    return pc.sort_indices(table, sort_keys=list(keys))


def _gathered(table: pa.Table, indices: pa.Array) -> pa.RecordBatch:
    import pyarrow as pa

    taken = table.take(indices).combine_chunks()
    return pa.RecordBatch.from_arrays(
        [column.chunk(0) for column in taken.columns],
        schema=table.schema,
    )


def _rows_of(rows: pa.Table | pa.RecordBatch, size: int) -> int:
    return int(max(1, size * rows.num_rows // max(1, rows.nbytes)))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Makes of an operating system's refusal an error that names the temporary folder."""
    try:
        yield
    except OSError as error:
        raise _unusable(error) from error


def _asked() -> str | None:
    """The folder that TMPDIR names: `tempfile` goes elsewhere without a word where that cannot be used."""
    return os.environ.get("TMPDIR") or None


def _unusable(error: OSError) -> StageError:
    place = _asked() or tempfile.gettempdir()
    known = from_os_error(error, place)
    if isinstance(known, NoSpace):
        return NoSpace(
            f"the temporary folder `{place}` is full of rows to be sorted",
            hint="name a larger one in TMPDIR, or give more `--memory`",
        )
    return type(known)(f"the rows to be sorted cannot go to {known.message}", hint="name another folder in TMPDIR")


class _Spill:
    """Sorted runs on disk, in levels: when a level has as many as one merge may hold, they become one of the next."""

    def __init__(self, keys: Sequence[tuple[str, Direction]], memory: int, run_bytes: int) -> None:
        self._keys = keys
        self._run_bytes = run_bytes
        self._block_bytes = min(max(_LEAST_BLOCK_BYTES, memory // _BLOCKS), _MOST_BLOCK_BYTES)
        self._most_runs = max(2, min(memory // _LEFT_SHARE, _MOST_LEFT_BYTES) // self._block_bytes)
        self._levels: list[_Runs] = []
        self._rows = 0

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Writes the rows as one more run."""
        import numpy as np

        numbered = []
        for batch in batches:
            sequence = int64_array(np.arange(self._rows, self._rows + batch.num_rows))
            numbered.append(batch.append_column(_SEQUENCE, sequence))
            self._rows += batch.num_rows
        self._level(0).add(_sorted(numbered, self._keys))

    def settle(self) -> None:
        """Merges the runs of each level that has too many for one merge to hold."""
        for depth in itertools.count():
            if depth == len(self._levels) or self._levels[depth].count < self._most_runs:
                return
            self._raise_up(depth)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Gives all rows in order."""
        for depth in range(len(self._levels) - 1):
            if self._levels[depth].count:
                self._raise_up(depth)
        for batch in self._levels[-1].merged(self._run_bytes):
            yield batch.drop_columns([_SEQUENCE])

    def close(self) -> None:
        """Gives the files' space back."""
        for level in self._levels:
            level.close()

    def _level(self, depth: int) -> _Runs:
        if depth == len(self._levels):
            self._levels.append(_Runs(self._keys, self._block_bytes))
        return self._levels[depth]

    def _raise_up(self, depth: int) -> None:
        """Makes one run of the next level of all runs of this one."""
        runs = self._levels[depth]
        self._level(depth + 1).add(runs.merged(self._run_bytes))
        runs.close()
        self._levels[depth] = _Runs(self._keys, self._block_bytes)


class _Runs:
    """Sorted runs in one temporary file without a name, which is gone with the process, however that ends."""

    def __init__(self, keys: Sequence[tuple[str, Direction]], block_bytes: int) -> None:
        self.count = 0
        # A merge mixes what is left of some runs with more of others, so that a stable sort would not keep equal rows.
        self._keys: list[tuple[str, Direction]] = [*keys, (_SEQUENCE, "ascending")]
        self._block_bytes = block_bytes
        self._schema: pa.Schema | None = None
        # Where each block begins in the file; the last one is the file's end.
        self._offsets = [0]
        # The keys of the first row of each block, in as many batches as came.
        self._firsts: list[pa.RecordBatch] = []
        with _translated():
            self._file: BinaryIO = tempfile.TemporaryFile(prefix="uc-stage-", dir=_asked())  # noqa: SIM115 - closed by `close`

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Writes batches, which are sorted, as one more run."""
        import numpy as np

        self.count += 1
        for batch in batches:
            self._schema = batch.schema
            step = _rows_of(batch, self._block_bytes)
            for start in range(0, batch.num_rows, step):
                data = batch.slice(start, step).serialize()
                with _translated():
                    self._file.write(data)
                self._offsets.append(self._offsets[-1] + data.size)
            # Gathered, or a row would keep its whole block in memory.
            keys = batch.select([name for name, _ in self._keys])
            self._firsts.append(keys.take(int64_array(np.arange(0, batch.num_rows, step))))

    def merged(self, step_bytes: int) -> Iterator[pa.RecordBatch]:
        """Gives the rows of all runs in order.

        The first rows of all blocks, sorted, cut the whole order into steps of about `step_bytes`: a step's rows are in
        the blocks that begin before its end, each of which is read once. What is left of them, a block of each run at
        most, is sorted again with the next step.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        firsts = pa.Table.from_batches(self._firsts)
        sequence = firsts.column(_SEQUENCE).to_numpy()
        loaded: list[pa.RecordBatch] = []
        waiting = 0
        for index in [*_order(firsts, self._keys).to_pylist(), None]:
            if index is not None:
                loaded.append(self._read(index))
                waiting += self._offsets[index + 1] - self._offsets[index]
                if waiting < step_bytes:
                    continue
            table = pa.Table.from_batches(loaded).combine_chunks()
            loaded.clear()
            order = _order(table, self._keys)
            end = table.num_rows
            if index is not None:
                # Nothing before the first row of the newest block is still in the file; after it, something may be.
                end = pc.index(order, pc.index(table.column(_SEQUENCE), int(sequence[index]))).as_py()
            step = _rows_of(table, _OUT_BYTES)
            for start in range(0, end, step):
                yield _gathered(table, order.slice(start, min(step, end - start)))
            loaded += [_gathered(table, order.slice(end))] if end < table.num_rows else []
            waiting = 0
            # Or it would be there while the next step's is made.
            del table, order

    def close(self) -> None:
        """Gives the file's space back."""
        # What was not written yet may fail to be, and nobody needs it any more.
        with contextlib.suppress(OSError):
            self._file.close()

    def _read(self, index: int) -> pa.RecordBatch:
        import pyarrow as pa

        start, end = self._offsets[index : index + 2]
        with _translated():
            self._file.seek(start)
            data = self._file.read(end - start)
        return pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
