"""Brings the rows that a scan of a table gives into the order and the splits that are asked for, in bounded memory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from uc_stage.engines.drawing import row_hashes, shares, value_hashes
from uc_stage.engines.local.arrays import boolean_array, int64_array
from uc_stage.engines.local.sorting import sorted_batches
from uc_stage.engines.selection import ordering, splits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from uc_stage.engines.conditions import Condition
    from uc_stage.engines.local.data_files import Rows
    from uc_stage.engines.local.sorting import Direction
    from uc_stage.model import Layout, Source

_SPLIT = "split"
_POSITIONS = 2**20


class Scannable(Protocol):
    """One version of a table, whose rows come in natural order: by their file's path, then by their position there."""

    def scan(self, columns: Sequence[str] | None, condition: Condition | None = None) -> Iterator[Rows]:
        """The rows for which the condition holds."""

    def positions(self) -> Iterator[tuple[str, int, NDArray[np.int64] | None]]:
        """Of each data file its path, its number of rows, and the sorted positions of those that are deleted."""


def shaped_rows(
    table: Scannable,
    source: Source,
    layout: Layout,
    columns: Sequence[str],
    condition: Condition | None,
    memory: int,
) -> Generator[tuple[int, pa.RecordBatch]]:
    """Gives the rows of each split in the order asked, with the index of the split; closing it ends all that reads.

    Args:
        table: what is read.
        source: the sample, the limit and the seed.
        layout: the order and the splits.
        columns: those that the batches hold, in order.
        condition: the rows that are kept.
        memory: bytes that a sort gets along with.
    """
    import pyarrow.compute as pc

    names = list(columns)
    with closing(_ordered(table, source, layout, names, condition, memory)) as batches:
        for batch in batches:
            rows = batch.select(range(len(names))).rename_columns(names)
            if not layout.splits:
                yield 0, rows
                continue
            split = batch.column(batch.schema.names.index(_SPLIT))
            for index in sorted(pc.unique(split).to_pylist()):
                yield index, rows.filter(pc.equal(split, index))


def count_rows(
    table: Scannable, source: Source, layout: Layout, condition: Condition | None, memory: int
) -> dict[str, int]:
    """The rows of each split; read from the files only as far as they decide it."""
    import numpy as np

    names = [name for name, _ in splits(layout)]
    if condition is None and not layout.splits and source.sample is None:
        total = sum(rows - (0 if deleted is None else len(deleted)) for _, rows, deleted in table.positions())
        return {names[0]: total if source.limit is None else min(total, source.limit)}
    if source.limit is None or not layout.splits:
        # Which rows a split gets hangs on their order only where a limit cuts that.
        layout = replace(layout, shuffle=False, order_by=())
    counts = np.zeros(len(names), dtype=np.int64)
    with closing(_ordered(table, source, layout, [], condition, memory)) as batches:
        for batch in batches:
            split = batch.column(batch.schema.names.index(_SPLIT)).to_numpy()
            counts += np.bincount(split, minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def _ordered(
    table: Scannable, source: Source, layout: Layout, names: list[str], condition: Condition | None, memory: int
) -> Generator[pa.RecordBatch]:
    """The rows in their order, cut at the limit: the columns `names` first, then helpers of names of their own."""
    left, keys = source.limit, _keys(layout)
    with (
        closing(_keyed(table, source, layout, names, condition)) as keyed,
        closing(sorted_batches(keyed, keys, memory) if keys else keyed) as batches,
    ):
        for batch in batches:
            if left is None:
                yield batch
                continue
            if left:
                yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


def _keyed(
    table: Scannable, source: Source, layout: Layout, names: list[str], condition: Condition | None
) -> Generator[pa.RecordBatch]:
    """The sampled rows with the columns that `_keys` names and the index of their split."""
    import pyarrow as pa

    seed = source.seed or 0
    orders = [ordering(term) for term in layout.order_by]
    needed = list(
        dict.fromkeys([*names, *(name for name, _ in orders), *([layout.split_by] if layout.split_by else [])])
    )
    with closing(_scanned(table, needed, condition)) as scanned:
        for rows in scanned:
            path, positions, read = rows.path, rows.positions, rows.batch
            if source.sample is not None:
                drawn = shares(row_hashes("sample", seed, path, positions), [source.sample]) == 0
                # Without columns there is nothing to filter but the positions.
                positions, read = positions[drawn], read.filter(boolean_array(drawn)) if needed else read
            if not len(positions):
                continue
            arrays = dict(zip(needed, read.columns, strict=True))
            found = {f"column {index}": arrays[name] for index, name in enumerate(names)}
            if layout.shuffle:
                found["key 0"] = int64_array(row_hashes("shuffle", seed, path, positions))
            for index, (name, descending) in enumerate(orders):
                found[f"rank {index}"] = _rank(arrays[name], descending=descending)
                found[f"key {index}"] = arrays[name]
            found[_SPLIT] = int64_array(_splits(layout, seed, path, positions, arrays))
            yield pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def _scanned(table: Scannable, columns: list[str], condition: Condition | None) -> Generator[Rows]:
    """The rows of a scan; without columns and condition, what their positions alone tell."""
    import numpy as np
    import pyarrow as pa

    from uc_stage.engines.local.data_files import Rows

    if columns or condition is not None:
        yield from table.scan(columns, condition)
        return
    for path, rows, deleted in table.positions():
        left = np.arange(rows) if deleted is None else np.setdiff1d(np.arange(rows), deleted, assume_unique=True)
        for start in range(0, len(left), _POSITIONS):
            positions = left[start : start + _POSITIONS]
            yield Rows(pa.RecordBatch.from_arrays([], names=[]), path, positions)


def _splits(
    layout: Layout, seed: int, path: str, positions: NDArray[np.int64], arrays: dict[str, pa.Array]
) -> NDArray[np.int64]:
    import numpy as np

    if not layout.splits:
        return np.zeros(len(positions), dtype=np.int64)
    if layout.split_by is None:
        hashes = row_hashes("split", seed, path, positions)
    else:
        hashes = value_hashes("split", seed, arrays[layout.split_by])
    return shares(hashes, [fraction for _, fraction in splits(layout)])


def _keys(layout: Layout) -> list[tuple[str, Direction]]:
    if layout.shuffle:
        return [("key 0", "ascending")]
    keys: list[tuple[str, Direction]] = []
    for index, term in enumerate(layout.order_by):
        keys += [(f"rank {index}", "ascending"), (f"key {index}", "descending" if ordering(term)[1] else "ascending")]
    return keys


def _rank(values: pa.Array, *, descending: bool) -> pa.Array:
    """NULL before all else, and NaN as the greatest number, which is Spark's order and not Arrow's."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_a

    if is_a.is_floating(values.type):
        odd = pc.is_nan(values)
        ranks = pc.if_else(odd, 1, 2) if descending else pc.if_else(odd, 2, 1)
    else:
        ranks = pc.if_else(pc.is_valid(values), 1, 0)
    return ranks.fill_null(0).cast(pa.int8())
