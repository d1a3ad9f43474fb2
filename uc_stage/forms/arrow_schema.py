"""The Arrow schema that `datasets` takes as it is, without a copy in memory when it loads a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.errors import Unsupported
from uc_stage.extras import installed

if TYPE_CHECKING:
    import pyarrow as pa


def loadable(schema: pa.Schema, where: str) -> pa.Schema:
    """The schema to write for one of a Parquet file: dictionaries as what they stand for, and all columns nullable.

    `datasets` would cast both in memory at each load. `where` names the file in an error.

    Raises:
        Unsupported: two columns of one name, or a column of a type that `datasets` cannot take.
    """
    import pyarrow as pa

    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise Unsupported(f"`{where}` has two columns `{twice}`", hint="export it with a name for each")
    fields = []
    for field in schema:
        kind = _plain(field.type) or _asked(field.type)
        if kind is None:
            raise Unsupported(
                f"`{where}`: `datasets` takes no column of the type {field.type}, which `{field.name}` has",
                hint=f"export it as text, or without it: --cast {field.name}=json, --exclude-columns {field.name}",
            )
        fields.append(pa.field(field.name, kind, nullable=True, metadata=field.metadata))
    return pa.schema(fields, metadata=schema.metadata)


def is_plain(kind: pa.DataType) -> bool:
    """Whether every release of `datasets` from 3.6 on takes a column of this type."""
    return _plain(kind) is not None


def _plain(kind: pa.DataType) -> Any:
    """The type as every release of `datasets` from 3.6 on takes it; None for one that is not among these."""
    import pyarrow as pa

    t = pa.types
    if t.is_dictionary(kind):
        return _plain(kind.value_type)
    if t.is_struct(kind):
        found = [(field.name, _plain(field.type)) for field in kind]
        return None if any(inner is None for _, inner in found) else pa.struct(found)
    for of_kind, make in (
        (t.is_fixed_size_list, lambda inner: pa.list_(inner, kind.list_size)),
        (t.is_large_list, pa.large_list),
        (t.is_list, pa.list_),
    ):
        if of_kind(kind):
            inner = _plain(kind.value_type)
            return None if inner is None else make(inner)
    flat = (
        t.is_null, t.is_boolean, t.is_integer, t.is_floating, t.is_time, t.is_timestamp, t.is_date, t.is_duration,
        t.is_decimal128, t.is_decimal256, t.is_binary, t.is_large_binary, t.is_string, t.is_large_string,
    )  # fmt: skip
    return kind if any(is_kind(kind) for is_kind in flat) else None


def _asked(kind: pa.DataType) -> Any:
    """The type as the `datasets` that is installed takes it; None where it does not, or is not installed."""
    import pyarrow as pa

    if not installed("datasets"):
        return None
    import datasets

    try:
        features = datasets.Features.from_arrow_schema(pa.schema([("column", kind)]))
        return features.arrow_schema.field(0).type
    except Exception:  # noqa: BLE001 - each release refuses in a way of its own
        return None
