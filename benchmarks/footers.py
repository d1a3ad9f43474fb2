"""`inspect` of a folder of Parquet files against a loop that reads one footer after the other.

    python benchmarks/footers.py FOLDER [--loop N]
    python benchmarks/footers.py --simulator volumesim.c [--files N] [--folders N] [--latency MS] [--work DIR]

FOLDER holds Parquet files: on a volume, on any other mount, or on a local disk. With `--simulator`, a FUSE file system
in C that behaves like a volume is built and mounted, and files of ten columns and two row groups are made in it. The
loop reads `--loop` footers, evenly spaced, each for the first time, and its time for all of them is told from that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

import uc_stage

if TYPE_CHECKING:
    from collections.abc import Iterator


def make(folder: str, files: int, folders: int) -> None:
    """Many names of one content: what is in the pages does not matter here."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = pa.array(range(2000))
    words = pa.array([f"word {number % 50}" for number in range(2000)])
    table = pa.table({f"column {number}": words if number % 2 else numbers for number in range(10)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1000)
    content = sink.getvalue().to_pybytes()
    for number in range(files):
        above = os.path.join(folder, f"part={number % folders}") if folders > 1 else folder
        os.makedirs(above, exist_ok=True)
        with open(os.path.join(above, f"{number:06d}.parquet"), "wb") as file:
            file.write(content)


@contextlib.contextmanager
def simulated(source: str, latency: int, work: str) -> Iterator[tuple[str, str]]:
    """Mounts a simulator that is built from `source`, and gives the mount and the folder behind it."""
    binary, backing, mount = (os.path.join(work, name) for name in ("volumesim", "backing", "mount"))
    flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "fuse3"], text=True).split()
    subprocess.run(["gcc", "-O2", "-o", binary, source, *flags, "-lpthread"], check=True)
    os.mkdir(backing)
    os.mkdir(mount)
    subprocess.run([binary, backing, mount, "-o", f"lat_ms={latency}"], check=True)
    try:
        yield mount, backing
    finally:
        subprocess.run(["fusermount3", "-u", "-z", mount], check=True)


def compare(folder: str, loop: int) -> None:
    import pyarrow.parquet as pq

    began = time.perf_counter()
    report = uc_stage.inspect(folder)
    ours = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"inspect  {report.files:,} files, {report.rows:,} rows, {ours:.2f} s, {memory} MiB at most")
    paths = sorted(
        os.path.join(above, name) for above, _, names in os.walk(folder) for name in names if name.endswith(".parquet")
    )
    some = paths[:: max(1, len(paths) // loop)][:loop]
    time.sleep(2)  # what the kernel remembers of a name on a mount
    began = time.perf_counter()
    for path in some:
        pq.read_metadata(path)
    theirs = (time.perf_counter() - began) / len(some) * len(paths)
    print(f"loop     {theirs:.2f} s for {len(paths):,}, by {len(some):,} of them")
    print(f"ratio    {theirs / ours:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--simulator")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--folders", type=int, default=1)
    parser.add_argument("--latency", type=int, default=20)
    parser.add_argument("--loop", type=int, default=100)
    parser.add_argument("--work")
    given = parser.parse_args()
    if not given.simulator:
        if not given.folder:
            parser.error("name a folder, or a simulator")
        compare(given.folder, given.loop)
        return
    with (
        tempfile.TemporaryDirectory(dir=given.work, ignore_cleanup_errors=True) as work,
        simulated(given.simulator, given.latency, work) as (mount, backing),
    ):
        make(backing, given.files, given.folders)
        compare(mount, given.loop)


if __name__ == "__main__":
    main()
