"""Brings what a data file holds to the table's columns: found by id or name, and converted where their types differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.engines.local.variants import unshredded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from uc_stage.engines.delta.schema import Column

    Convert = Callable[[pa.Array], pa.Array]


class Misfit(ValueError):
    """A data file that holds another type than the table's column can have; the text says which."""


def field_id(field: pa.Field) -> int | None:
    """The number that a Parquet file gives to a column; None where it gives none."""
    number = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if number is None else int(number)


def found(column: Column, fields: Sequence[pa.Field]) -> int | None:
    """The index of the file's field that holds a column; None where it has none, and all rows are NULL.

    Raises:
        Misfit: two of them may.
    """
    if column.id is not None:
        matches = [i for i, field in enumerate(fields) if field_id(field) == column.id]
    else:
        matches = [i for i, field in enumerate(fields) if field.name == column.physical]
        if not matches:
            folded = column.physical.lower()
            matches = [i for i, field in enumerate(fields) if field.name.lower() == folded]
    if len(matches) > 1:
        raise Misfit(f"has {len(matches)} columns that may be it")
    return matches[0] if matches else None


def conversion(column: Column, kind: pa.DataType) -> Convert | None:
    """What turns an array of a file into one of the column's type; None where it is that already.

    Raises:
        Misfit: values of the file's type are none of the column's.
    """
    import pyarrow as pa
    import pyarrow.types as is_a

    if kind == column.type and not _renamed(column):
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return _after(lambda array: array.storage, conversion(column, kind.storage_type))
    if is_a.is_dictionary(kind):
        return _after(lambda array: array.cast(kind.value_type), conversion(column, kind.value_type))
    if is_a.is_null(kind) or is_a.is_null(column.type):
        return lambda array: pa.nulls(len(array), column.type)
    if column.variant:
        return _variant(column, kind)
    if is_a.is_struct(column.type):
        return _struct(column, kind)
    if is_a.is_map(column.type):
        return _map(column, kind)
    if is_a.is_list(column.type):
        return _list(column, kind)
    return _primitive(column.type, kind)


def _after(first: Convert, second: Convert | None) -> Convert:
    return first if second is None else lambda array: second(first(array))


def _renamed(column: Column) -> bool:
    """Whether a struct below goes by other names or by ids in files, so that equal types may still be two things."""
    return any(part.id is not None or part.physical != part.name or _renamed(part) for part in column.parts)


def _variant(column: Column, kind: pa.DataType) -> Convert:
    import pyarrow.types as is_a

    names = {kind.field(i).name for i in range(kind.num_fields)} if is_a.is_struct(kind) else set()
    if "metadata" not in names or not names & {"value", "typed_value"} or names - {"metadata", "value", "typed_value"}:
        raise Misfit(f"has {kind}")
    if "typed_value" in names:
        return unshredded
    if kind == column.type:
        return lambda array: array
    fields = list(column.type)

    def plain(array: pa.StructArray) -> pa.Array:
        parts = [array.field(field.name).cast(field.type) for field in fields]
        return _structured(array, parts, fields)

    return plain


def _struct(column: Column, kind: pa.DataType) -> Convert:
    import pyarrow as pa
    import pyarrow.types as is_a

    if not is_a.is_struct(kind):
        raise Misfit(f"has {kind}")
    held = [kind.field(i) for i in range(kind.num_fields)]
    fields = list(column.type)
    plan = []
    for part in column.parts:
        index = found(part, held)
        plan.append((index, None if index is None else conversion(part, held[index].type)))

    def converted(array: pa.StructArray) -> pa.Array:
        parts = []
        for field, (index, convert) in zip(fields, plan, strict=True):
            if index is None:
                parts.append(pa.nulls(len(array), field.type))
            else:
                part = array.field(index)
                parts.append(part if convert is None else convert(part))
        return _structured(array, parts, fields)

    return converted


def _structured(array: pa.Array, parts: list[pa.Array], fields: list[pa.Field]) -> pa.Array:
    import pyarrow as pa

    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)


def _list(column: Column, kind: pa.DataType) -> Convert:
    import pyarrow as pa
    import pyarrow.types as is_a

    if is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind) or is_a.is_list_view(kind):
        small = pa.list_(kind.value_field)
        return _after(lambda array: array.cast(small), conversion(column, small))
    if not is_a.is_list(kind):
        raise Misfit(f"has {kind}")
    convert = conversion(column.parts[0], kind.value_type)

    def converted(array: pa.ListArray) -> pa.Array:
        values = array.values if convert is None else convert(array.values)
        return _relisted(array, column.type, values)

    return converted


def _map(column: Column, kind: pa.DataType) -> Convert:
    import pyarrow as pa
    import pyarrow.types as is_a

    if not is_a.is_map(kind):
        raise Misfit(f"has {kind}")
    key, value = (conversion(part, of) for part, of in zip(column.parts, (kind.key_type, kind.item_type), strict=True))
    entries = [column.type.key_field, column.type.item_field]

    def converted(array: pa.MapArray) -> pa.Array:
        keys = array.keys if key is None else key(array.keys)
        values = array.items if value is None else value(array.items)
        return _relisted(array, column.type, pa.StructArray.from_arrays([keys, values], fields=entries))

    return converted


def _relisted(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """The lists of an array over other values, which stand at the same places: nothing is copied."""
    import pyarrow as pa

    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), [validity, offsets], offset=array.offset, children=[values])


def _primitive(kind: pa.DataType, held: pa.DataType) -> Convert:
    import pyarrow as pa
    import pyarrow.types as is_a

    if _may_become(kind, held):
        if is_a.is_decimal(kind) and is_a.is_integer(held):
            # Arrow wants room for every value of the integer's type before it looks at those that are there.
            wide = pa.decimal128(38, kind.scale)
            return lambda array: array.cast(wide).cast(kind)
        # What of a nanosecond is no microsecond goes; all else must come over whole.
        exact = not (is_a.is_timestamp(held) and held.unit == "ns")
        return lambda array: array.cast(kind, safe=exact)
    raise Misfit(f"has {held}")


def _may_become(kind: pa.DataType, held: pa.DataType) -> bool:
    """Whether values of a file's type may stand for a column's: by widening, or in another form of the same."""
    import pyarrow.types as is_a

    if is_a.is_integer(kind):
        return bool(is_a.is_integer(held))
    if is_a.is_floating(kind):
        if is_a.is_floating(held):
            return bool(held.bit_width <= kind.bit_width)
        return bool(is_a.is_integer(held) and kind.bit_width == 64 and held.bit_width <= 32)  # noqa: PLR2004 - double
    if is_a.is_decimal(kind):
        return bool(is_a.is_decimal(held) or is_a.is_integer(held))
    if is_a.is_timestamp(kind):
        return bool(is_a.is_timestamp(held) or (is_a.is_date(held) and kind.tz is None))
    if is_a.is_date(kind):
        return bool(is_a.is_date(held))
    if is_a.is_string(kind) or is_a.is_binary(kind):
        texts: tuple[Any, ...] = (
            is_a.is_string, is_a.is_large_string, is_a.is_string_view, is_a.is_binary, is_a.is_large_binary,
            is_a.is_binary_view, is_a.is_fixed_size_binary,
        )  # fmt: skip
        return any(test(held) for test in texts)
    return bool(kind == held)
