"""Export against what one would write by hand: python benchmarks/export.py [ROWS] [ROUNDS].

Ours, polars `scan_delta().sink_parquet()` and DuckDB's `COPY ... TO` (through its delta extension, or over the table's
Parquet files where that cannot be had) take turns, each run in a process of its own, with one compression and about one
row-group size; the time is that of the export alone, the memory the peak of the process. The ratio is of the medians.
The others write no manifest, no hash and no check. Ours runs over a table of four times the rows as well.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# So many rows of this table are about 64 MiB in memory.
_ROW_GROUP_ROWS = 500_000


def make_table(path: str, rows: int, step: int = 250_000) -> None:
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    rng = np.random.default_rng(1)
    words = np.array([f"word{index}" for index in range(5000)])
    for start in range(0, rows, step):
        ids = np.arange(start, min(start + step, rows))
        count = len(ids)
        table = pa.table(
            {
                "id": ids,
                "label": rng.integers(0, 20, count).astype("int32"),
                "vector": pa.FixedSizeListArray.from_arrays(rng.random(count * 16).astype("float32"), 16).cast(
                    pa.list_(pa.float32())
                ),
                "price": rng.standard_normal(count),
                "text": [" ".join(row) for row in words[rng.integers(0, len(words), (count, 5))]],
                "at": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
            }
        )
        write_deltalake(path, table, mode="append")


def ours(table: str, dest: str) -> float:
    # Loaded before the clock starts, as the others' libraries are.
    for name in ("deltalake", "pyarrow.compute", "pyarrow.parquet", "xxhash", "uc_stage.engines.local"):
        importlib.import_module(name)
    from uc_stage import exporting
    from uc_stage.model import ExportRequest, TableRef

    began = time.perf_counter()
    exporting.run(ExportRequest(TableRef.parse(table), dest))
    return time.perf_counter() - began


def with_polars(table: str, dest: str) -> float:
    import polars as pl

    os.mkdir(dest)
    began = time.perf_counter()
    pl.scan_delta(table).sink_parquet(
        f"{dest}/data.parquet", compression="zstd", compression_level=1, row_group_size=_ROW_GROUP_ROWS
    )
    return time.perf_counter() - began


def with_duckdb(table: str, dest: str) -> float:
    import duckdb

    os.mkdir(dest)
    try:
        duckdb.sql("LOAD delta")
        source = f"delta_scan('{table}')"
    except duckdb.Error:
        source = f"read_parquet('{table}/*.parquet')"
    options = f"FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {_ROW_GROUP_ROWS}"
    began = time.perf_counter()
    duckdb.sql(f"COPY (SELECT * FROM {source}) TO '{dest}/data.parquet' ({options})")
    return time.perf_counter() - began


WAYS = {"uc-stage": ours, "polars": with_polars, "duckdb": with_duckdb}


def measured(way: str, table: str, dest: str) -> tuple[float, int, int]:
    """The seconds, the peak of memory and the bytes written of one run."""
    done = subprocess.run(
        [sys.executable, __file__, "run", way, table, dest], capture_output=True, text=True, check=True
    )
    seconds, peak = json.loads(done.stdout)
    size = sum(entry.stat().st_size for entry in os.scandir(dest) if entry.is_file())
    shutil.rmtree(dest)
    return seconds, peak, size


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    found: dict[str, list[tuple[float, int, int]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as work:
        table = os.path.join(work, "table")
        make_table(table, rows)
        for way in WAYS:  # fills the page cache
            measured(way, table, os.path.join(work, "dest"))
        for _ in range(rounds):
            for way, runs in found.items():
                runs.append(measured(way, table, os.path.join(work, "dest")))
        middle = {way: statistics.median(run[0] for run in runs) for way, runs in found.items()}
        fastest = min(seconds for way, seconds in middle.items() if way != "uc-stage")
        for way, runs in found.items():
            print(
                f"{way:9} {middle[way]:6.2f} s  {rows / middle[way] / 1e6:6.2f} M rows/s  {runs[0][2] / 1e6:7.1f} MB"
                f"  peak {max(run[1] for run in runs) / 1e6:6.0f} MB  {middle[way] / fastest:5.2f} x"
            )
        make_table(table, 3 * rows)
        _, peak, _ = measured("uc-stage", table, os.path.join(work, "dest"))
        base = max(run[1] for run in found["uc-stage"])
        print(f"uc-stage, {4 * rows:,} rows: peak {peak / 1e6:.0f} MB, {peak / base:.2f} x of that for {rows:,}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        spent = WAYS[sys.argv[2]](*sys.argv[3:5])
        with open("/proc/self/status", encoding="ascii") as status:
            # The peak that getrusage tells goes back to before the exec.
            peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
        print(json.dumps([spent, peak]))
    else:
        main()
