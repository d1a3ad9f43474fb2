"""The one form in which an export's columns are written and recorded, whatever engine read them.

The local engine brings what it read to `normalised`, writes files of that schema, and records `fields` of it; the Spark
engine records those of the Arrow types that Spark's own are written as.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.model import Field

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_SAMPLE_ROWS = 8192


def normalised(schema: pa.Schema) -> pa.Schema:
    """A schema with plain types: strings, binaries and lists of 32-bit offsets, timestamps in microseconds.

    Views, large types and dictionaries become what they hold; every column, field, element and value is nullable.
    """
    import pyarrow as pa

    return pa.schema([pa.field(field.name, plain(field.type)) for field in schema])


def plain(kind: pa.DataType) -> pa.DataType:
    """The plain form of one type, at every depth."""
    import pyarrow as pa
    import pyarrow.types as is_a

    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if is_a.is_dictionary(kind):
        return plain(kind.value_type)
    if is_a.is_string_view(kind) or is_a.is_large_string(kind):
        return pa.string()
    if is_a.is_binary_view(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind):
        return pa.binary()
    if is_a.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if is_a.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if is_a.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind) or is_a.is_list_view(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    return kind


def fields(schema: pa.Schema) -> tuple[Field, ...]:
    """The columns as pyarrow prints them when it reads a file of this schema back."""
    read = _parquet(schema).to_arrow_schema()
    return tuple(Field(field.name, str(field.type), nullable=True) for field in read)


def dictionary_columns(schema: pa.Schema, rows: pa.Table) -> list[str]:
    """The paths of the Parquet columns that a dictionary may make smaller, as the first of the rows tell.

    Floating-point numbers hardly ever repeat: trying takes half of a writer's time, and the pages come out larger. A
    flat column of other values is tried where at most half of them differ, and what is nested always.
    """
    import pyarrow.compute as pc
    import pyarrow.types as is_a

    parquet = _parquet(schema)
    leaves = [parquet.column(index) for index in range(len(parquet))]
    sample = rows.slice(0, _SAMPLE_ROWS)
    unique = {
        field.name
        for field in schema
        if not is_a.is_nested(field.type)
        and not is_a.is_null(field.type)
        and 2 * pc.count_distinct(sample.column(field.name)).as_py() > sample.num_rows
    }
    return [leaf.path for leaf in leaves if leaf.physical_type not in {"FLOAT", "DOUBLE"} and leaf.path not in unique]


def _parquet(schema: pa.Schema) -> pq.ParquetSchema:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, normalised(schema), store_schema=False).close()
    return pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
