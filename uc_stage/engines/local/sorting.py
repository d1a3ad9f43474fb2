"""Sorts a stream of batches within a budget of memory: sorted runs go to a temporary file and come back merged."""

from __future__ import annotations

import errno
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal

from uc_stage.engines.local.arrays import int64_array
from uc_stage.errors import NoSpace, StageError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

Direction = Literal["ascending", "descending"]

# What is held, what it is gathered into, and what the rest of the run needs come to about the budget together.
_RUN_SHARE = 3
_MOST_RUN_BYTES = 2**30
# Small, so that the first rows of many runs fit in memory side by side; and so many in a run that its order shows.
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES, _BLOCKS = 64 * 1024, 2**20, 2048
_OUT_BYTES = 8 * 1024**2
_SEQUENCE = "__sequence"


def sorted_batches(
    batches: Iterable[pa.RecordBatch], keys: Sequence[tuple[str, Direction]], memory: int
) -> Iterator[pa.RecordBatch]:
    """Gives the rows of all batches in the order of their keys; equal ones stay in the order in which they came.

    NULL and NaN come last, in both directions; give another key before theirs to have it otherwise.

    Args:
        batches: all of one schema.
        keys: columns of the batches, the first one decides first.
        memory: bytes to get along with, roughly. Beyond it the rows go to a file in `tempfile.gettempdir()`.

    Raises:
        NoSpace: the temporary folder is full.
    """
    run_bytes = min(max(1, memory // _RUN_SHARE), _MOST_RUN_BYTES)
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    spill: _Spill | None = None
    try:
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes > run_bytes:
                spill = spill or _Spill(keys, memory, held[0].schema)
                spill.add(held)
                held, held_bytes = [], 0
        if spill is None:
            if held:
                yield from _sorted(held, keys, _OUT_BYTES)
            return
        if held:
            spill.add(held)
            held = []
        yield from spill.merged(run_bytes)
    finally:
        if spill is not None:
            spill.close()


def _sorted(
    batches: list[pa.RecordBatch], keys: Sequence[tuple[str, Direction]], out_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of some batches in order, gathered piece by piece."""
    import pyarrow as pa

    # `take` puts the chunks of a table together at each call.
    table = pa.Table.from_batches(batches).combine_chunks()
    order = _order(table, keys)
    step = _rows_of(table, out_bytes)
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


def _rows_of(table: pa.Table, size: int) -> int:
    return int(max(1, size * table.num_rows // max(1, table.nbytes)))


def _unwritten(error: OSError) -> StageError:
    place = tempfile.gettempdir()
    if error.errno == errno.ENOSPC:
        return NoSpace(
            f"the temporary folder `{place}` is full of rows to be sorted",
            hint="name a larger one in TMPDIR, or give more `--memory`",
        )
    return from_os_error(error, place)


@dataclass(frozen=True, slots=True)
class _Block:
    """Some sorted rows, and where they stand in the file."""

    offset: int
    length: int


class _Spill:
    """Sorted runs in one temporary file without a name, which is gone with the process, however that ends."""

    def __init__(self, keys: Sequence[tuple[str, Direction]], memory: int, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._keys = keys
        self._block_bytes = min(max(_LEAST_BLOCK_BYTES, memory // _BLOCKS), _MOST_BLOCK_BYTES)
        self._schema = schema.append(pa.field(_SEQUENCE, pa.int64()))
        self._blocks: list[_Block] = []
        self._firsts: list[pa.RecordBatch] = []
        self._rows = self._end = 0
        self._file: BinaryIO = tempfile.TemporaryFile(prefix="uc-stage-")  # noqa: SIM115 - closed by `close`

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Writes the rows as one more run."""
        import numpy as np
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        sequence = int64_array(np.arange(self._rows, self._rows + rows))
        table = pa.Table.from_batches(batches).append_column(_SEQUENCE, sequence).combine_chunks()
        self._rows += rows
        order, first = _order(table, self._keys), int64_array(np.zeros(1, np.int64))
        step = _rows_of(table, self._block_bytes)
        for start in range(0, rows, step):
            block = _gathered(table, order.slice(start, step))
            data = block.serialize()
            try:
                self._file.write(data)
            except OSError as error:
                raise _unwritten(error) from error
            self._blocks.append(_Block(self._end, data.size))
            # Gathered, or the row would keep its whole block in memory.
            self._firsts.append(_gathered(pa.Table.from_batches([block.slice(0, 1)]), first))
            self._end += data.size

    def merged(self, step_bytes: int) -> Iterator[pa.RecordBatch]:
        """Gives all rows in order, about `step_bytes` at a time.

        The first rows of all blocks, sorted, cut the whole order into steps of so many bytes: a step's rows are in the
        blocks that begin before its end, each of which is read once.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        # A step mixes what is left of some runs with more of others, so that a stable sort would not keep equal rows.
        keys: list[tuple[str, Direction]] = [*self._keys, (_SEQUENCE, "ascending")]
        firsts = pa.Table.from_batches(self._firsts)
        sequence = firsts.column(_SEQUENCE).to_pylist()
        loaded: list[pa.RecordBatch] = []
        waiting = 0
        for index in [*_order(firsts, keys).to_pylist(), None]:
            if index is not None:
                loaded.append(self._read(self._blocks[index]))
                waiting += self._blocks[index].length
                if waiting < step_bytes:
                    continue
            table = pa.Table.from_batches(loaded, self._schema).combine_chunks()
            order = _order(table, keys)
            end = table.num_rows
            if index is not None:
                # Nothing before the first row of the newest block is still in the file; after it, something may be.
                end = pc.index(order, pc.index(table.column(_SEQUENCE), sequence[index])).as_py()
            step = _rows_of(table, _OUT_BYTES)
            for start in range(0, end, step):
                yield _gathered(table, order.slice(start, min(step, end - start))).drop_columns([_SEQUENCE])
            loaded = [_gathered(table, order.slice(end))] if end < table.num_rows else []
            waiting = 0

    def close(self) -> None:
        """Gives the file's space back."""
        self._file.close()

    def _read(self, block: _Block) -> pa.RecordBatch:
        import pyarrow as pa

        self._file.seek(block.offset)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(block.length)), self._schema)
