"""Brings the rows that Spark sends as Arrow into the plain types that every engine gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def conformed(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as batches of `schema`: at least one, of no rows where there are none.

    Spark says of some columns that they hold no NULL, names the zone of the session, and may give strings of 64-bit
    offsets.
    """
    import pyarrow as pa

    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    found = pa.Table.from_arrays(columns, schema=schema)
    yield from found.to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)]
