"""The Spark engine and the bare `spark.read…write.parquet`, in turn, on one server: benchmarks/spark.py REMOTE.

The server must have Delta, and see the temporary folder of this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from typing import Any

from uc_stage import exporting
from uc_stage.model import ExportRequest, TableRef

COLUMNS = [
    "id",
    "CAST(id % 10 AS INT) AS label",
    "transform(sequence(1, 16), i -> CAST(hash(id, i) / 2147483648.0D AS FLOAT)) AS vector",
    "rand(7) AS score",
    "concat('row ', id, ' ', uuid()) AS text",
    "timestamp_micros(id * 1000000) AS at",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("remote", help="sc://host:port")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession(asked.remote)
    work = tempfile.mkdtemp(prefix="uc-stage-bench-")
    try:
        os.chmod(work, 0o777)  # the server may be another user's
        compare(session, asked.remote, work, asked.rows, asked.rounds)
    finally:
        session.stop()
        shutil.rmtree(work, ignore_errors=True)


def compare(session: Any, remote: str, work: str, rows: int, rounds: int) -> None:
    table = f"{work}/table"
    session.range(0, rows, 1, 4).selectExpr(*COLUMNS).write.format("delta").save(table)
    bare, ours = [], []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        frame = session.read.format("delta").load(table)
        frame.write.option("compression", "zstd").option("parquet.block.size", 64 * 1024**2).parquet(f"{work}/bare")
        middle = time.perf_counter()
        # As many files, written by as many tasks.
        files = sum(name.endswith(".parquet") for name in os.listdir(f"{work}/bare"))
        report = exporting.run(ExportRequest(TableRef.parse(table), f"{work}/ours", "spark", remote, files=files))
        ended = time.perf_counter()
        for name in ("bare", "ours"):
            shutil.rmtree(f"{work}/{name}")
        if turn:  # the first warms the server up
            bare.append(middle - began)
            ours.append(ended - middle)
            print(f"{report.files} files, {report.bytes / 1e6:.0f} MB: bare {bare[-1]:.2f} s, ours {ours[-1]:.2f} s")
    one, two = statistics.median(bare), statistics.median(ours)
    print(f"median: bare {one:.2f} s, ours {two:.2f} s: {two / one:.2f} times")


if __name__ == "__main__":
    main()
