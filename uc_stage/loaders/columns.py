"""Arrow columns as PyTorch tensors, without a copy where the memory is laid out alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

# Nothing imports this module but `uc_stage.loaders.torch`, which needs torch for its own class.
import torch  # noqa: TID253 - see above
import torch.utils.dlpack  # noqa: TID253 - see above

from uc_stage.errors import InvalidRequest, Unsupported

Batch = dict[str, Any]
Nulls = Literal["nan", "error", "list"] | Mapping[str, Any]

_HALF_WORD_BITS = 32


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


class _Column:
    def __init__(self, name: str, nulls: Nulls) -> None:
        self._name = name
        self._nulls = nulls if isinstance(nulls, str) else "nan"
        self._fill = None if isinstance(nulls, str) else nulls.get(name)

    def split(self, column: Any, sizes: Sequence[int]) -> Iterator[Any]:
        column = _plain(column)
        whole = self._tensor(column)
        if whole is not None:
            yield from torch.split(whole, list(sizes))
            return
        start = 0
        for size in sizes:
            yield self._value(column.slice(start, size))
            start += size

    def _value(self, column: Any) -> Any:
        whole = self._tensor(column)
        return whole if whole is not None else self._ragged(column)

    def _tensor(self, column: Any) -> torch.Tensor | None:
        """The column as one tensor; None where there is none that holds it."""
        import pyarrow as pa

        column = _plain(column)
        kind = column.type
        if _is_list(kind):
            return self._matrix(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            return None
        if column.null_count:
            column = self._filled(column)
            if column is None:
                return None
        if column.null_count or pa.types.is_boolean(kind):
            # NaN takes the place of what is still NULL; a boolean has a bit in Arrow and a byte in torch.
            return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
        return torch.utils.dlpack.from_dlpack(column)

    def _filled(self, column: Any) -> Any:
        import pyarrow as pa

        if self._fill is not None:
            try:
                return column.fill_null(pa.scalar(self._fill, column.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(
                    f"`{self._fill!r}` in `nulls` is no value of `{self._name}`, which holds {column.type}",
                    hint="give one that its type holds; times are integers",
                ) from error
        if pa.types.is_floating(column.type) and self._nulls != "error":
            return column
        if self._nulls == "list":
            return None
        raise self._refused(f"{column.type}")

    def _matrix(self, column: Any) -> torch.Tensor | None:
        if column.null_count:
            return None
        lengths, values = _flat(column)
        length = int(lengths[0]) if len(lengths) else 0
        if (lengths != length).any():
            return None
        inner = self._tensor(values)
        return None if inner is None else inner.reshape(len(column), length, *inner.shape[1:])

    def _ragged(self, column: Any) -> list[Any]:
        if _is_list(column.type) and not (column.null_count and self._nulls == "list"):
            lengths, values = _flat(column)
            inner = self._tensor(values)
            if inner is not None:
                if column.null_count:
                    raise self._refused("a list")
                return list(torch.split(inner, lengths.tolist()))
        found: list[Any] = column.to_pylist()
        return found

    def _refused(self, what: str) -> Unsupported:
        return Unsupported(
            f"`{self._name}` holds NULL, and a tensor has no place for it: {what}",
            hint=f"give `nulls={{'{self._name}': 0}}` or another value, `nulls='list'`, or export the other rows: "
            f"--where '{self._name} IS NOT NULL'",
        )


def _plain(column: Any) -> Any:
    """A column without what only wraps its values: a dictionary, an extension type, a unit of time."""
    import pyarrow as pa

    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.view(pa.int32() if kind.bit_width == _HALF_WORD_BITS else pa.int64())
    return column


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _flat(column: Any) -> tuple[Any, Any]:
    """The lengths of a column's lists as a NumPy array, and all their values in a row."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size), column.flatten()
    offsets = column.offsets.to_numpy()
    return np.diff(offsets), column.values.slice(offsets[0], offsets[-1] - offsets[0])
