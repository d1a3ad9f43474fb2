"""`cache` against `shutil.copytree`, `cp -r` and bare threads, in turn in one run over the same source.

    python benchmarks/cache.py SOURCE [--work DIR] [--rounds N] [--jobs N] [--without copytree,cp]

SOURCE is a folder: on a volume, on any other mount, or on a local disk. Everything that is written goes below `--work`.
`bare` is the ceiling: as many threads read the same ranges and throw them away. Each line is a contestant's best round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from uc_stage import caching
from uc_stage.model import CacheRequest
from uc_stage.storage import open_folder
from uc_stage.transfer import DEFAULT_JOBS, RANGE_BYTES, split

if TYPE_CHECKING:
    from collections.abc import Callable


def ours(source: str, dest: str, jobs: int) -> None:
    report = caching.run(CacheRequest(source, cache_dir=dest, jobs=jobs))
    assert report.bytes_copied == report.bytes


def copytree(source: str, dest: str) -> None:
    shutil.copytree(source, dest, copy_function=shutil.copyfile)


def cp(source: str, dest: str) -> None:
    subprocess.run(["cp", "-r", source, dest], check=True)


def cp_sync(source: str, dest: str) -> None:
    cp(source, dest)
    subprocess.run(["sync", "-f", dest], check=True)


def bare(source: str, dest: str, jobs: int) -> None:  # noqa: ARG001 - it writes nothing
    """Lists as we do, then reads the same ranges in as many threads."""
    folder = open_folder(source)
    tasks = deque(
        (entry.path, *part) for entry in folder.entries(hidden=False) for part in split(entry.bytes, RANGE_BYTES)
    )

    def work() -> None:
        buffer = memoryview(bytearray(RANGE_BYTES))
        opened, ranges = "", None
        while True:
            try:
                path, offset, length = tasks.popleft()
            except IndexError:
                return
            if path != opened:
                if ranges is not None:
                    ranges.close()
                opened, ranges = path, folder.ranges(path)
            assert ranges is not None
            ranges.read_into(buffer[:length], offset)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--work", default=None)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=DEFAULT_JOBS)
    parser.add_argument("--without", default="")
    options = parser.parse_args()
    contestants: dict[str, Callable[[str, str], None]] = {
        "bare": partial(bare, jobs=options.jobs),
        "ours": partial(ours, jobs=options.jobs),
        "copytree": copytree,
        "cp": cp,
        "cp+sync": cp_sync,
    }
    for name in filter(None, options.without.split(",")):
        del contestants[name]
    entries = list(open_folder(options.source).entries(hidden=False))
    size = sum(entry.bytes for entry in entries)
    print(f"{options.source}: {len(entries)} files, {size / 1e6:.0f} MB, {options.jobs} threads")
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for _ in range(options.rounds):
            for name, run in contestants.items():
                dest = os.path.join(work, "dest")
                began = time.perf_counter()
                run(options.source, dest)
                seconds = time.perf_counter() - began
                shutil.rmtree(dest, ignore_errors=True)
                best[name] = min(seconds, best.get(name, seconds))
    for name, seconds in best.items():
        ratio = seconds / best["ours"]
        print(f"{name:10} {seconds:8.2f} s {size / 1e6 / seconds:9.1f} MB/s   ours is {ratio:6.2f} x")


if __name__ == "__main__":
    main()
