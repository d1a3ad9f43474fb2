"""What types a loader takes, and the casts that bring a column to one: decided here alike for every engine.

`--cast COLUMN=TYPE` names a type as Arrow does (`float64`, `int32`, `string`), or `entries` for a map as a list of
key-value structs. Only casts that every engine does alike are offered; integers are checked for overflow, and what
goes to a floating-point number is rounded to the nearest.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from uc_stage.engines.predicate import match, near
from uc_stage.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from uc_stage.model import Loader

_INTEGERS = ("int8", "int16", "int32", "int64")
_FLOATS = ("float32", "float64")
# What each family of types can be cast to; `int64` of a time is its microseconds since 1970.
_TARGETS = {
    "boolean": _INTEGERS,
    "integer": (*_INTEGERS, *_FLOATS, "string"),
    "float": _FLOATS,
    "decimal": _FLOATS,
    "timestamp": ("int64",),
    "date": ("int32",),
    "map": ("entries",),
}
# The first that mends a type for a loader that does not take it.
_MENDS = {"decimal": "float64", "timestamp": "int64", "date": "int32", "map": "entries"}


def family(kind: pa.DataType) -> str:
    """The family of a plain type: `integer`, `decimal`, `map` …; the type's own name where there is no such."""
    import pyarrow as pa
    import pyarrow.types as is_a

    # How a variant is written: Parquet readers that do not know of it see its two binaries.
    if kind == pa.struct([("metadata", pa.binary()), ("value", pa.binary())]):
        return "variant"

    families = {
        "boolean": is_a.is_boolean, "integer": is_a.is_integer, "float": is_a.is_floating, "decimal": is_a.is_decimal,
        "timestamp": is_a.is_timestamp, "date": is_a.is_date, "map": is_a.is_map, "string": is_a.is_string,
        "binary": is_a.is_binary, "list": is_a.is_list, "struct": is_a.is_struct, "void": is_a.is_null,
    }  # fmt: skip
    return next((name for name, fits in families.items() if fits(kind)), str(kind))


def planned_casts(schema: pa.Schema, asked: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The target type of each column that changes, in the schema's order; `asked` names columns or families.

    A column's own name goes before a family's. One that has the type already is left alone.

    Raises:
        InvalidRequest: a name that is neither, one asked twice, or a cast that is not offered.
    """
    by_column: dict[str, str] = {}
    by_family: dict[str, str] = {}
    for name, target in asked:
        column = match(name, schema.names)
        if column is None and name not in _TARGETS:
            raise InvalidRequest(
                f"`--cast {name}={target}` names `{name}`, which is no column that is written",
                hint=near(name, [*schema.names, *_TARGETS]),
            )
        chosen = by_family if column is None else by_column
        key = column or name
        if key in chosen:
            raise InvalidRequest(f"`--cast` names `{name}` twice", hint="give one type for it")
        chosen[key] = target
    casts = {}
    for field in schema:
        kind = family(field.type)
        wanted = by_column.get(field.name, by_family.get(kind))
        if wanted is None:
            continue
        if wanted not in _TARGETS.get(kind, ()):
            offered = ", ".join(f"`{target}`" for target in _TARGETS.get(kind, ())) or "nothing else"
            raise InvalidRequest(
                f"`--cast {field.name}={wanted}`: a column of type `{field.type}` is not cast to that",
                hint=f"it can be cast to {offered}",
            )
        if arrow_type(wanted, field.type) != field.type:
            casts[field.name] = wanted
    return casts


def cast_schema(schema: pa.Schema, casts: dict[str, str]) -> pa.Schema:
    """The schema after the casts."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(field.name, arrow_type(casts[field.name], field.type) if field.name in casts else field.type)
            for field in schema
        ]
    )


def arrow_type(target: str, kind: pa.DataType) -> pa.DataType:
    """The Arrow type that a cast's target means for a column of type `kind`."""
    import pyarrow as pa

    if target == "entries":
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return pa.list_(pa.field("element", entry))
    return pa.type_for_alias(target)


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema, casts: dict[str, str]) -> pa.RecordBatch:
    """The batch with its columns cast; `schema` is that of `cast_schema`.

    Raises:
        InvalidRequest: a value that the target type does not hold.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not casts:
        return batch
    arrays = []
    for field, array in zip(schema, batch.columns, strict=True):
        if field.name not in casts:
            arrays.append(array)
            continue
        try:
            arrays.append(
                pc.cast(_exact(array, field.type), options=pc.CastOptions(field.type, allow_float_truncate=True))
            )
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                f"`--cast {field.name}={casts[field.name]}`: {str(error).splitlines()[0]}",
                hint="cast it to a wider type",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def refuse_unfit(schema: pa.Schema, loader: Loader) -> None:
    """Refuses the columns that a loader does not take, each with the cast that mends it.

    Raises:
        Unsupported: naming all of them.
    """
    unfit = {field.name: why for field in schema if (why := why_unfit(field.type, loader))}
    if not unfit:
        return
    columns = ", ".join(f"`{name}` ({schema.field(name).type}: {why})" for name, why in unfit.items())
    casts, excluded = mends(schema, unfit, loader)
    hints = [f"--cast {shlex.quote(cast)}" for cast in casts]
    if excluded:
        names = ",".join(f'"{name}"' if "," in name else name for name in excluded)
        hints.append(f"--exclude-columns {shlex.quote(names)}")
    raise Unsupported(f"`--for {loader}` does not take {columns}", hint=f"add {' '.join(hints)}")


def mends(schema: pa.Schema, unfit: Iterable[str], loader: Loader) -> tuple[list[str], list[str]]:
    """The casts, `COLUMN=TYPE`, that bring columns to types which the loader takes, and the columns that have none."""
    casts, excluded = [], []
    for name in unfit:
        kind = schema.field(name).type
        mend = _MENDS.get(family(kind))
        if mend is not None and why_unfit(arrow_type(mend, kind), loader) is None:
            casts.append(f"{name}={mend}")
        else:
            excluded.append(name)
    return casts, excluded


def why_unfit(kind: pa.DataType, loader: Loader) -> str | None:
    """Why a loader does not take a type, at any depth; None where it does."""
    import pyarrow.types as is_a

    reasons = {
        "hf": {"map": "`datasets` has no feature for it", "variant": "it would come as two binaries"},
        "torch": {
            "map": "no tensor holds it",
            "decimal": "torch has no such dtype",
            "timestamp": "torch has no such dtype",
            "date": "torch has no such dtype",
            "void": "it holds nothing",
            "variant": "no tensor holds it",
        },
    }
    if loader == "any":
        return None
    if why := reasons[loader].get(family(kind)):
        return why
    if is_a.is_list(kind):
        return why_unfit(kind.value_type, loader)
    if is_a.is_struct(kind):
        return next((why for field in kind if (why := why_unfit(field.type, loader))), None)
    return None


def _exact(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals on their way to a floating-point number as text, which alone is rounded to the nearest as in Spark."""
    import pyarrow as pa
    import pyarrow.types as is_a

    return array.cast(pa.string()) if is_a.is_decimal(array.type) and is_a.is_floating(target) else array
