"""Whether a reader gave rows more often than the data holds them, told by the values of one column.

During the measurement the values are only kept, which costs next to nothing; they are counted afterwards. No column
need hold each value once: a value counts as given too often where it came more often than it stands in the files.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from uc_stage.loaders.arrow import batches, share

if TYPE_CHECKING:
    from collections.abc import Sequence

# The rows of which the values are kept, at most: those of a training that reads for long would not fit.
MOST_ROWS = 4_000_000
MOST_BYTES = 128 * 1024**2
# So many rows of the first file decide on the column.
_SAMPLE_ROWS = 8192
_COUNTED_ROWS = 1_000_000


def column_for(files: Sequence[tuple[str, int, int]]) -> str | None:
    """The column of whole numbers, text or floats with the most distinct values and no NULL; None without one."""
    import pyarrow.compute as pc

    sample = next(batches(share([(path, rows) for path, _, rows in files], 0, 1), _SAMPLE_ROWS), None)
    best: tuple[int, int] = (0, 0)
    found = None
    if sample is None:
        return None
    for name, column in zip(sample.schema.names, sample.columns, strict=True):
        kind = _type_of(column.type)
        if kind is None or column.null_count or sample.schema.names.count(name) > 1:
            continue
        # Where they tell the rows apart as well, numbers cost less than text, and floats are rounded.
        rank = (len(pc.unique(column.cast(kind[1]))), -kind[0])
        if rank > best:
            best, found = rank, name
    return found


class Keys:
    """The values of one column that a pass gave; `files` hold the data, none where these are the numbers of samples.

    `column` None keeps none.
    """

    def __init__(self, column: str | None, files: Sequence[tuple[str, int, int]]) -> None:
        self.column = column
        self._files = files
        self._kept: list[Any] = []
        self.rows = self._bytes = 0

    def add(self, batch: Any, rows: int) -> None:
        """Keeps the values of a batch: a dict of tensors or lists, or a `pyarrow.RecordBatch`."""
        if self.column is None or self.rows + rows > MOST_ROWS or self._bytes > MOST_BYTES:
            return
        values = batch[self.column]
        # A tensor may be a view of the whole batch, in memory that workers share with few open files.
        self._kept.append(values.clone() if hasattr(values, "clone") else values)
        self.rows += rows
        # Of a list, the first text stands for all: to ask each one would cost a part of what is measured.
        self._bytes += getattr(values, "nbytes", 0) or sys.getsizeof(values[0]) * rows

    def surplus(self, seconds: float) -> int | None:
        """The rows, of those kept, that came more often than the files hold their values.

        None where that cannot be told: no column, or the files could not be read for it in that time.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.column is None or not self._kept:
            return None
        try:
            kept = [_array(values) for values in self._kept]
            kind = _type_of(kept[0].type)
            if kind is None:
                return None
            seen = pa.chunked_array([values.cast(kind[1]) for values in kept])
            if pc.count_distinct(seen, mode="all").as_py() == len(seen):
                return 0
            counts = seen.value_counts()
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            held = self._held(twice.field("values"), kind[1], time.monotonic() + seconds)
        except pa.ArrowException:
            return None  # NULLs behind the sample make other types of a column
        if held is None:
            return None
        above = twice.field("counts").to_numpy(zero_copy_only=False) - held
        return int(above[above > 0].sum())

    def _held(self, values: Any, kind: Any, deadline: float) -> Any:
        """How often the files hold each value; without files it is a sample's number, which is there once."""
        import numpy as np
        import pyarrow.compute as pc

        if not self._files:
            return np.ones(len(values), np.int64)
        held = np.zeros(len(values), np.int64)
        parts = share([(path, rows) for path, _, rows in self._files], 0, 1)
        for batch in batches(parts, _COUNTED_ROWS, [self.column] if self.column else None):
            if time.monotonic() > deadline:
                return None
            places = pc.drop_null(pc.index_in(batch.column(0).cast(kind), value_set=values))
            held += np.bincount(places.to_numpy(zero_copy_only=False), minlength=len(values))
        return held


def _array(values: Any) -> Any:
    """A batch's values, of whatever a reader makes of them, as Arrow."""
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return values
    return pa.array(values.numpy() if hasattr(values, "numpy") else values)


def _type_of(kind: Any) -> tuple[int, Any] | None:
    """What values are compared as, and how late that is chosen; None for what the readers do not agree on."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return 0, pa.int64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return 1, pa.large_string()
    # torch's format makes these of doubles.
    return (2, pa.float32()) if pa.types.is_float32(kind) or pa.types.is_float64(kind) else None
