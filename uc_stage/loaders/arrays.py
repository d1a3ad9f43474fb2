"""Arrow columns as dense arrays, alike for NumPy and for torch: what becomes an array, and what NULL is in it."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from uc_stage.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HALF_WORD_BITS = 32


class Column(abc.ABC):
    """How the values of one column become one array where one holds them all.

    A subclass says what an array is: `_dense` and `_cut`.

    Attributes:
        holder: what messages call it.
        as_objects: the policy by which a column with NULL is no array but a list of Python values.
        where: how the other rows are had.
    """

    holder: ClassVar[str]
    as_objects: ClassVar[str]
    where: ClassVar[str]

    def __init__(self, name: str, nulls: str | Mapping[str, Any]) -> None:
        self._name = name
        self._nulls = nulls if isinstance(nulls, str) else "nan"
        self._fill = None if isinstance(nulls, str) else nulls.get(name)

    @abc.abstractmethod
    def _dense(self, column: Any) -> Any:
        """Numbers or booleans as an array; NaN takes the place of a NULL that is left among floats."""

    @abc.abstractmethod
    def _cut(self, values: Any, lengths: Sequence[int]) -> list[Any]:
        """An array as arrays of these lengths."""

    def _whole(self, column: Any) -> Any:
        """The column as one array; None where there is none that holds it."""
        import pyarrow as pa

        column = plain(column)
        kind = column.type
        if _is_list(kind):
            return self._matrix(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            return None
        if column.null_count:
            column = self._filled(column)
            if column is None:
                return None
        return self._dense(column)

    def _filled(self, column: Any) -> Any:
        import pyarrow as pa

        if self._fill is not None:
            try:
                fill = pa.scalar(self._fill, column.type)
                if pa.types.is_integer(column.type) and fill.as_py() != self._fill:
                    raise ValueError(f"it would be {fill}")  # noqa: TRY301 - Arrow cuts fractions off in silence
                return column.fill_null(fill)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(
                    f"`{self._fill!r}` in `nulls` is no value of `{self._name}`, which holds {column.type}",
                    hint="give one that its type holds; times are integers",
                ) from error
        if pa.types.is_floating(column.type) and self._nulls != "error":
            return column
        if self._nulls == self.as_objects:
            return None
        raise self._refused(f"{column.type}")

    def _matrix(self, column: Any) -> Any:
        if column.null_count:
            return None
        lengths, values = _flat(column)
        length = int(lengths[0]) if len(lengths) else 0
        if (lengths != length).any():
            return None
        inner = self._whole(values)
        return None if inner is None else inner.reshape(len(column), length, *inner.shape[1:])

    def _ragged(self, column: Any) -> list[Any]:
        """The values of a column that no array holds: arrays of its lists, or Python values."""
        if _is_list(column.type) and not (column.null_count and self._nulls == self.as_objects):
            lengths, values = _flat(column)
            inner = self._whole(values)
            if inner is not None:
                if column.null_count:
                    raise self._refused("a list", fills=False)
                return self._cut(inner, lengths.tolist())
        found: list[Any]
        try:
            found = _with_integers(column).to_pylist()
        except (ValueError, OverflowError) as error:
            raise no_value(self._name, error) from error
        return found

    def _refused(self, what: str, *, fills: bool = True) -> Unsupported:
        value = f"`nulls={{'{self._name}': 0}}` or another value, " if fills else ""
        return Unsupported(
            f"`{self._name}` holds NULL, and {self.holder} has no place for it: {what}",
            hint=f"give {value}`nulls='{self.as_objects}'`, or " + self.where.format(name=self._name),
        )


class _Array(Column):
    holder = "an array"
    as_objects = "object"
    where = "load the other rows: where='{name} IS NOT NULL'"

    def array(self, column: Any) -> Any:
        """A chunked column as one array."""
        import numpy as np
        import pyarrow as pa

        if not _is_list(column.type) and (pa.types.is_nested(column.type) or not pa.types.is_primitive(column.type)):
            # Piece by piece: 2 GB of text are more than one Arrow array of 32-bit offsets holds.
            pieces = [self._objects(plain(chunk)) for chunk in column.chunks]
            return np.concatenate(pieces) if pieces else np.empty(0, dtype=object)
        column = plain(_combined(column))
        whole = self._whole(column)
        return self._objects(column) if whole is None else whole

    def _objects(self, column: Any) -> Any:
        import numpy as np

        values = self._ragged(column)
        found = np.empty(len(values), dtype=object)
        for index, value in enumerate(values):
            found[index] = value
        return found

    def _dense(self, column: Any) -> Any:
        return column.to_numpy(zero_copy_only=False)

    def _cut(self, values: Any, lengths: Sequence[int]) -> list[Any]:
        import numpy as np

        return np.split(values, np.cumsum(lengths)[:-1]) if lengths else []


def arrays(table: Any, nulls: str | Mapping[str, Any] = "nan") -> dict[str, Any]:
    """A table's columns as NumPy arrays by name, each with a row's value, or values, at its first axis.

    Numbers and booleans have their type; timestamps, dates, times and durations are integers in the column's unit
    (timestamps int64 microseconds since 1970, dates int32 days). Lists of numbers are one array of (rows, length)
    where all have one length, else an object array of arrays. Strings, binary, decimals, structs and maps are object
    arrays of Python values, with None for NULL. Arrays may share the table's memory, and are read-only then.

    Args:
        table: a `pyarrow.Table`.
        nulls: what NULL among numbers is. `nan`: NaN among floats, an error elsewhere; `error`: an error; a mapping
            from columns to values: that value, and as `nan` in other columns; `object`: NaN among floats, and any
            other column that has one is an object array with None.

    Raises:
        Unsupported: a NULL that is not allowed for. InvalidRequest: a value that the column's type does not hold.
    """
    if isinstance(nulls, str) and nulls not in ("nan", "error", "object"):
        raise InvalidRequest(
            f"`nulls={nulls!r}` is no way with NULL", hint="give `nan`, `error`, `object` or a mapping of fill values"
        )
    unknown = [] if isinstance(nulls, str) else [name for name in nulls if name not in table.schema.names]
    if unknown:
        raise InvalidRequest(
            f"`nulls` names `{unknown[0]}`, which is no column that was loaded",
            hint=f"there are {', '.join(f'`{name}`' for name in table.schema.names)}",
        )
    return {
        name: _Array(name, nulls).array(column) for name, column in zip(table.schema.names, table.columns, strict=True)
    }


def no_value(name: str, error: Exception) -> Unsupported:
    """What is raised of a column with a value that Python has none for, such as a date beyond the year 9999."""
    return Unsupported(
        f"`{name}` holds a value that Python has none for: {error}", hint="leave that column or those rows out"
    )


def plain(column: Any) -> Any:
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


def _with_integers(column: Any) -> Any:
    """A list column with integers in the place of times, as `plain` has them; another as it is."""
    kind = _integers(column.type) if _is_list(column.type) else column.type
    return column if kind == column.type else column.cast(kind)


def _integers(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_integers(kind.value_type), kind.list_size)
    if _is_list(kind):
        return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(_integers(kind.value_type))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int32() if kind.bit_width == _HALF_WORD_BITS else pa.int64()
    return kind


def _combined(column: Any) -> Any:
    """A chunked column as one array, lists of more values than 32-bit offsets reach too."""
    import pyarrow as pa

    try:
        return column.combine_chunks()
    except pa.ArrowInvalid:
        return column.cast(pa.large_list(column.type.value_field)).combine_chunks()


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
