"""Files put together from row groups encoded apart: what every reader reads from them, and footers byte for byte."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from uc_stage import thrift
from uc_stage.engines.local.assembly import Assembly, encode

if TYPE_CHECKING:
    from pathlib import Path

MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
TABLE = pa.table(
    {
        "id": pa.array(range(1000)),
        "text": pa.array([None if index % 9 == 0 else f"t{index % 13}" for index in range(1000)]),
        "list": pa.array([[index, None] if index % 5 else None for index in range(1000)], pa.list_(pa.int32())),
        "struct": pa.array([{"x": index / 3, "y": index % 2 == 0} for index in range(1000)]),
        "at": pa.array([MOMENT + dt.timedelta(seconds=s) for s in range(1000)], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal(index).scaleb(-2) for index in range(1000)], pa.decimal128(20, 2)),
    }
)


def assembled(path: Path, *pieces: pa.Table) -> Path:
    with path.open("wb") as sink:
        assembly = Assembly(sink)
        for piece in pieces:
            assembly.append(encode(piece, TABLE.schema, "zstd", ["text", "id"]))
        assembly.close()
    return path


def test_every_reader_reads_what_was_put_together(tmp_path: Path) -> None:
    path = assembled(tmp_path / "a.parquet", *(TABLE.slice(start, 250) for start in range(0, 1000, 250)))
    assert pq.read_table(path).to_pylist() == TABLE.to_pylist()
    totals = duckdb.sql(f"SELECT count(*), sum(id), count(text), sum(list[1]) FROM '{path}'")
    assert totals is not None
    assert totals.fetchall() == [(1000, sum(range(1000)), 888, sum(index for index in range(1000) if index % 5))]


def test_each_row_group_keeps_its_statistics_and_tells_where_its_pages_are(tmp_path: Path) -> None:
    path = assembled(tmp_path / "a.parquet", TABLE.slice(0, 300), TABLE.slice(300, 700))
    metadata = pq.read_metadata(path)
    assert (metadata.num_rows, metadata.num_row_groups) == (1000, 2)
    second = metadata.row_group(1)
    assert (second.column(0).statistics.min, second.column(0).statistics.max) == (300, 999)
    whole = pq.ParquetFile(path)
    assert whole.read_row_group(1).to_pylist() == TABLE.slice(300).to_pylist()
    assert second.column(1).dictionary_page_offset > metadata.row_group(0).column(5).data_page_offset


def test_a_file_of_one_row_group_is_what_pyarrow_writes(tmp_path: Path) -> None:
    path = assembled(tmp_path / "a.parquet", TABLE)
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, TABLE.schema, compression="zstd", compression_level=1, use_dictionary=["text", "id"], store_schema=False
    ) as writer:
        writer.write_table(TABLE)
    assert path.read_bytes() == sink.getvalue()


def test_a_file_of_no_rows_has_the_schema_and_no_row_group(tmp_path: Path) -> None:
    metadata = pq.read_metadata(assembled(tmp_path / "a.parquet", TABLE.slice(0, 0)))
    assert (metadata.num_rows, metadata.num_row_groups) == (0, 0)
    assert metadata.schema.to_arrow_schema().names == TABLE.schema.names


def test_a_footer_comes_out_of_the_tree_as_it_went_in(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=7, write_page_index=True)
    data = (tmp_path / "a.parquet").read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    assert thrift.render(thrift.parse(footer)) == footer


@pytest.mark.parametrize("cut", [1, 10, 100, -1])
def test_a_footer_that_is_cut_off_is_none(tmp_path: Path, cut: int) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    with pytest.raises(ValueError, match="ends too early"):
        thrift.parse(footer[:cut])
