"""Columns of vectors, which are encoded without Arrow: what readers read from them, and what the footer tells."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uc_stage.engines.local.assembly import Assembly
from uc_stage.engines.local.encoding import encode
from uc_stage.engines.local.vectors import encode_vectors, is_vectors

if TYPE_CHECKING:
    from pathlib import Path

    from uc_stage.model import Compression


FLOAT = pa.float32()


class Kept(io.BytesIO):
    """A sink whose bytes stay after its end."""

    def close(self) -> None:
        self.kept = self.getvalue()
        super().close()


def file_of(schema: pa.Schema, *groups: pa.Table, compression: Compression = "zstd") -> bytes:
    """A file of these row groups."""
    sink = Kept()
    assembly = Assembly(sink)
    for group in groups:
        assembly.append(encode(group, schema, compression, []))
    assembly.close()
    return sink.kept


def written(schema: pa.Schema, *groups: pa.Table, compression: Compression = "zstd") -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(file_of(schema, *groups, compression=compression)))


def by_arrow(table: pa.Table) -> pq.ParquetFile:
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False, store_schema=False, compression="zstd")
    return pq.ParquetFile(io.BytesIO(sink.getvalue()))


def same(read: pa.Table, table: pa.Table) -> bool:
    """Whether two tables hold the same, a NaN the same as another."""
    return repr(read.to_pylist()) == repr(table.to_pylist())


def vectors(lengths: list[int], kind: pa.DataType = FLOAT, seed: int = 0) -> pa.ListArray:
    values = np.random.default_rng(seed).normal(size=sum(lengths))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values.tolist(), kind))


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf")])


@given(
    rows=st.lists(st.lists(NUMBERS, min_size=4, max_size=40), min_size=2, max_size=60),
    kind=st.sampled_from([pa.float32(), pa.float64()]),
    nullable=st.tuples(st.booleans(), st.booleans()),
    compression=st.sampled_from(["zstd", "snappy", "none"]),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_vectors_are_read_as_they_were_with_the_statistics_that_arrow_gives_them(
    rows: list[list[float]],
    kind: pa.DataType,
    nullable: tuple[bool, bool],
    compression: Compression,
    cuts: list[int],
) -> None:
    field = pa.field("v", pa.list_(pa.field("element", kind, nullable[1])), nullable[0])
    schema = pa.schema([pa.field("id", pa.int64()), field, pa.field("text", pa.string())])
    table = pa.table([range(len(rows)), pa.array(rows, field.type), [str(row[0]) for row in rows]], schema=schema)
    edges = sorted({0, len(rows), *(cut % len(rows) for cut in cuts)})
    chunked = pa.concat_tables(
        [table.slice(begin, end - begin) for begin, end in itertools.pairwise(edges)] + [table.slice(0, 0)]
    )
    assert is_vectors(chunked.column("v"))

    file = written(schema, chunked, compression=compression)

    assert file.schema_arrow.equals(schema)
    assert same(file.read(), table)
    ours, arrows = file.metadata.row_group(0), by_arrow(table).metadata.row_group(0)
    for index in range(3):
        assert ours.column(index).statistics == arrows.column(index).statistics
        assert ours.column(index).num_values == arrows.column(index).num_values
        assert ours.column(index).encodings == arrows.column(index).encodings
        assert ours.column(index).path_in_schema == arrows.column(index).path_in_schema


def test_pages_hold_whole_vectors_and_a_megabyte_or_one_vector() -> None:
    lengths = [300_000, *[768] * 3000, 5, 600_000, *[7] * 10]
    column = pa.chunked_array([vectors(lengths[:1000]), vectors(lengths[1000:], seed=1)])
    field = pa.field("v", column.type)

    chunk = encode_vectors(column, field, "none", None)

    assert chunk.values == sum(lengths)
    bodies = [len(page) for page in chunk.pages[1::2]]
    assert len(bodies) == chunk.count
    assert sum(size > 1.1 * 2**20 for size in bodies) == 2
    assert chunk.compressed == chunk.uncompressed == sum(len(page) for page in chunk.pages)
    assert same(
        written(pa.schema([field]), pa.table([column], schema=pa.schema([field]))).read(), pa.table({"v": column})
    )


def test_row_groups_tell_where_their_columns_are_and_how_large(tmp_path: Path) -> None:
    schema = pa.schema(
        {"a": pa.list_(pa.float32()), "s": pa.struct({"v": pa.list_(pa.float32())}), "b": pa.list_(pa.float64())}
    )
    groups = []
    for seed in range(3):
        inner = pa.array([{"v": [1.0, None]}, None] * 500, schema.field("s").type)
        columns = [vectors([16] * 1000, seed=seed), inner, vectors([5, 6] * 500, pa.float64(), seed)]
        groups.append(pa.table(columns, schema=schema))

    file = written(schema, *groups)

    end = 4
    for index in range(3):
        group = file.metadata.row_group(index)
        chunks = [group.column(column) for column in range(group.num_columns)]
        for chunk in chunks:
            # As one reader of part of a file finds row groups: each column behind the one before.
            assert chunk.data_page_offset == end
            end += chunk.total_compressed_size
        assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in chunks)
        assert same(file.read_row_group(index), groups[index])
    path = tmp_path / "x.parquet"
    path.write_bytes(file_of(schema, *groups))
    sums = duckdb.sql(f"SELECT sum(list_sum(a)), sum(list_sum(b)), sum(list_sum(s.v)) FROM '{path}'")
    assert sums is not None
    (read,) = sums.fetchall()
    for total, name in zip(read, ["a", "b"], strict=False):
        wanted = sum(np.asarray(group.column(name).combine_chunks().flatten()).sum() for group in groups)
        assert total == pytest.approx(float(wanted), rel=1e-5)
    assert read[2] == 1500


@pytest.mark.parametrize(
    "column",
    [
        pa.chunked_array([[[1.0, 2.0, 3.0, 4.0], None]], pa.list_(pa.float32())),
        pa.chunked_array([[[1.0] * 9, []]], pa.list_(pa.float32())),
        pa.chunked_array([[[1.0, None, 3.0, 4.0], [1.0] * 4]], pa.list_(pa.float32())),
        pa.chunked_array([[[1, 2, 3, 4], [1, 2, 3, 4]]], pa.list_(pa.int32())),
        pa.chunked_array([[[1.0, 2.0], [3.0, 4.0]]], pa.list_(pa.float32())),
        pa.chunked_array([[[1.0] * 9]], pa.list_(pa.float32())),
        pa.chunked_array([[1.0, 2.0]]),
        pa.chunked_array([], pa.list_(pa.float32())),
    ],
    ids=["null", "empty", "null inside", "integers", "short", "one row", "flat", "none"],
)
def test_what_is_no_vector_is_left_to_arrow(column: pa.ChunkedArray) -> None:
    assert not is_vectors(column)
    schema = pa.schema([pa.field("v", column.type)])
    table = pa.table([column], schema=schema)
    assert same(written(schema, table).read(), table)


def test_a_null_behind_the_slice_does_not_count() -> None:
    values: list[Any] = [[1.0, 2.0, 3.0, 4.0], [5.0] * 4, None, [None] * 4]
    whole = pa.array([[9.0] * 7, *values], pa.list_(pa.float32()))
    column = pa.chunked_array([whole.slice(1, 2)])
    assert is_vectors(column)
    table = pa.table({"v": column})
    assert same(written(table.schema, table).read(), table)


def test_spark_reads_vectors_as_they_were(spark_session: Any, tmp_path: Path) -> None:
    lengths = [768] * 700 + [5, 6, 7]
    column = vectors(lengths)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", column.type)])
    (tmp_path / "x").mkdir()
    data = file_of(schema, *(pa.table([range(703), column], schema=schema).slice(at, 352) for at in (0, 352)))
    (tmp_path / "x/a.parquet").write_bytes(data)

    rows = spark_session.read.parquet(str(tmp_path / "x")).orderBy("id").collect()

    assert [row["v"] for row in rows] == column.to_pylist()
