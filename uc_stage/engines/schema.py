"""What an export's columns are recorded as, and which of them are written with a dictionary.

Engines give schemas of *plain* types: strings, binaries and lists of 32-bit offsets, elements called `element`,
timestamps in microseconds, in UTC or without a zone; all nullable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.model import Field

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_SAMPLE_ROWS = 8192


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
    pq.ParquetWriter(sink, schema, store_schema=False).close()
    return pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
