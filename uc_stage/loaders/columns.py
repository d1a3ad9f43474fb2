"""Arrow columns as PyTorch tensors, without a copy where the memory is laid out alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

# Nothing imports this module but `uc_stage.loaders.torch`, which needs torch for its own class.
import torch  # noqa: TID253 - see above
import torch.utils.dlpack  # noqa: TID253 - see above

from uc_stage.loaders.arrays import Column, plain

Batch = dict[str, Any]
Nulls = Literal["nan", "error", "list"] | Mapping[str, Any]


def tensors(batch: Any, nulls: Nulls = "nan") -> Batch:
    """A record batch as a dict: a tensor where one holds every value of the column, else a list.

    Numbers and booleans are tensors of their type; timestamps, dates, times and durations are integers in the
    column's unit (timestamps int64). Lists of numbers are one tensor of (rows, length) where all have one length in
    this batch, else a list of tensors. Strings, binary, decimals, structs and maps are lists of Python values, with
    None for NULL. Tensors share the batch's memory where they can: do not write to them.

    Args:
        batch: a `pyarrow.RecordBatch`.
        nulls: what NULL among numbers is. `nan`: NaN among floats, an error elsewhere; `error`: an error; a mapping
            from columns to values: that value, and as `nan` in other columns; `list`: NaN among floats, and any other
            column that has one is a list with None, in the batches where it has one.

    Raises:
        Unsupported: a NULL that is not allowed for. InvalidRequest: a value that the column's type does not hold.
    """
    return next(split(batch, [batch.num_rows], nulls))


def split(batch: Any, sizes: Sequence[int], nulls: Nulls = "nan") -> Iterator[Batch]:
    """A record batch as dicts of so many rows each, as `tensors` gives them; converted once where that is the same."""
    columns = [
        (name, _Column(name, nulls).split(column, sizes))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for _ in sizes:
        yield {name: next(values) for name, values in columns}


class _Column(Column):
    holder = "a tensor"
    as_objects = "list"
    where = "export the other rows: --where '{name} IS NOT NULL'"

    def split(self, column: Any, sizes: Sequence[int]) -> Iterator[Any]:
        column = plain(column)
        whole = self._whole(column)
        if whole is not None:
            yield from torch.split(whole, list(sizes))
            return
        start = 0
        for size in sizes:
            yield self._value(column.slice(start, size))
            start += size

    def _value(self, column: Any) -> Any:
        whole = self._whole(column)
        return whole if whole is not None else self._ragged(column)

    def _dense(self, column: Any) -> torch.Tensor:
        import pyarrow as pa

        if column.null_count or pa.types.is_boolean(column.type):
            # NaN takes the place of what is still NULL; a boolean has a bit in Arrow and a byte in torch.
            return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
        return torch.utils.dlpack.from_dlpack(column)

    def _cut(self, values: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        return list(torch.split(values, list(lengths)))
