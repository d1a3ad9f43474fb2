"""Files put together from row groups encoded apart: what every reader reads from them, and footers byte for byte."""

from __future__ import annotations

import datetime as dt
import io
import os
import tempfile
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.delta import make_numbers, parquet_files, request
from uc_stage import exporting, thrift
from uc_stage.engines.local import writing
from uc_stage.engines.local.assembly import Assembly
from uc_stage.engines.local.encoding import encode
from uc_stage.engines.local.writing import encoders
from uc_stage.progress import Silent

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


def row_groups(table: str, dest: Path, size: int, **asked: Any) -> list[list[pa.Table]]:
    """The row groups of each file of an export."""
    exporting.run(request(table, dest, row_group_bytes=size, **asked))
    opened = [pq.ParquetFile(path) for path in parquet_files(dest)]
    return [[file.read_row_group(index) for index in range(file.num_row_groups)] for file in opened]


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize(
    "widths",
    [
        [10] * 20_000 + [20_000] * 300,
        [20_000] * 300 + [10] * 20_000,
        [10, 10, 3000] * 3000,
        [0] * 5000 + [300_000] + [0] * 5000,
    ],
)
def test_no_row_group_is_much_larger_than_its_target_however_the_sizes_of_rows_change(
    widths: list[int], files: int, tmp_path: Path
) -> None:
    rows = pa.table({"id": range(len(widths)), "list": [[{"x": b"x" * width}] for width in widths]})
    write_deltalake(str(tmp_path / "t"), rows)

    found = row_groups(str(tmp_path / "t"), tmp_path / "x", 100_000, files=files)

    assert len(found) == files
    for group in (group for file in found for group in file):
        assert group.nbytes < 200_000 or group.num_rows == 1
    assert (
        pa.concat_tables(group for file in found for group in file)
        .combine_chunks()
        .equals(rows.cast(found[0][0].schema))
    )


@given(hundreds=st.integers(1, 40), files=st.integers(1, 3), size=st.integers(20_000, 400_000))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_one_size_make_row_groups_of_one_size(hundreds: int, files: int, size: int, tmp_path: Path) -> None:
    place = tempfile.mkdtemp(dir=tmp_path)
    rows = 100 * hundreds
    write_deltalake(f"{place}/t", pa.table({"id": range(rows), "blob": [b"x" * 500] * rows}))

    for file in row_groups(f"{place}/t", Path(place) / "x", size, files=files):
        counts = [group.num_rows for group in file]
        assert max(counts) - min(counts) <= len(counts)
        assert max(group.nbytes for group in file) < size + 600


@pytest.mark.parametrize(
    ("cores", "size", "jobs"), [(64, 64 * 2**20, 4), (2, 64 * 2**20, 2), (64, 2**30, 1), (64, 2**20, 8), (1, 2**20, 1)]
)
def test_as_many_row_groups_are_encoded_at_a_time_as_there_are_cores_and_fit_in_memory(
    cores: int, size: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert encoders(size) == jobs


def test_no_more_encoders_run_than_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(Silent):
        def advance(self, amount: int) -> None:
            super().advance(amount)
            running.append(sum(thread.name.startswith("uc-stage-write") for thread in threading.enumerate()))

    running: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(writing, "_BUDGET_BYTES", 6 * 20_000)
    exporting.run(request(make_numbers(tmp_path / "t", 50_000), tmp_path / "x", row_group_bytes=20_000), Watched())
    assert max(running) == 3
