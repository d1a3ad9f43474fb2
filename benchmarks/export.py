"""Export against what one would write by hand: python benchmarks/export.py [ROWS] [ROUNDS].

Ours, polars `scan_delta().sink_parquet()` and DuckDB's `COPY ... TO` (through its delta extension, or over the table's
Parquet files where that cannot be had) take turns in one process; the ratio is of the medians. The others write one
file or a file a thread, without a manifest, a hash or a check.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import duckdb
import polars as pl

from uc_stage import exporting
from uc_stage.model import ExportRequest, TableRef

if TYPE_CHECKING:
    from collections.abc import Callable


def make_table(path: str, rows: int, step: int = 250_000) -> None:
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    rng = np.random.default_rng(1)
    for start in range(0, rows, step):
        ids = np.arange(start, min(start + step, rows))
        table = pa.table(
            {
                "id": ids,
                "label": rng.integers(0, 20, len(ids)).astype("int32"),
                "text": [f"row {i} " + "lorem ipsum dolor sit amet " * (i % 7) for i in ids],
                "vector": pa.FixedSizeListArray.from_arrays(rng.random(len(ids) * 16).astype("float32"), 16).cast(
                    pa.list_(pa.float32())
                ),
                "at": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
            }
        )
        write_deltalake(path, table, mode="append")


def ours(table: str, dest: str) -> None:
    exporting.run(ExportRequest(TableRef.parse(table), dest, files=len(os.sched_getaffinity(0))))


def with_polars(table: str, dest: str) -> None:
    os.mkdir(dest)
    pl.scan_delta(table).sink_parquet(f"{dest}/data.parquet", compression="zstd", compression_level=1)


def with_duckdb(table: str, dest: str) -> None:
    try:
        duckdb.sql("LOAD delta")
        source = f"delta_scan('{table}')"
    except duckdb.Error:
        source = f"read_parquet('{table}/*.parquet')"
    options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, PER_THREAD_OUTPUT true"
    duckdb.sql(f"COPY (SELECT * FROM {source}) TO '{dest}' ({options})")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    ways: dict[str, Callable[[str, str], None]] = {"uc-stage": ours, "polars": with_polars, "duckdb": with_duckdb}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as work:
        table = os.path.join(work, "table")
        make_table(table, rows)
        for index in range(rounds + 1):
            for name, way in ways.items():
                dest = os.path.join(work, name)
                began = time.perf_counter()
                way(table, dest)
                if index:  # the first round loads libraries and fills the page cache
                    seconds[name].append(time.perf_counter() - began)
                sizes[name] = sum(entry.stat().st_size for entry in os.scandir(dest) if entry.is_file())
                shutil.rmtree(dest)
    base = statistics.median(seconds["uc-stage"])
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(
            f"{name:9} {middle:6.2f} s  {rows / middle / 1e6:6.2f} M rows/s  {sizes[name] / 1e6:7.1f} MB"
            f"  {middle / base:5.2f} x"
        )


if __name__ == "__main__":
    main()
