"""`cache` against `shutil.copytree`, `cp -r`, `rclone` and bare threads, in turn in one run over the same source.

    python benchmarks/cache.py SOURCE [--work DIR] [--rounds N] [--jobs N] [--without copytree,cp]
    python benchmarks/cache.py --simulator volumesim.c [--work DIR] …

SOURCE is a folder: on a volume, on any other mount, or on a local disk. Everything that is written goes below `--work`.
With `--simulator`, a FUSE file system in C that behaves like a volume is built and mounted, and two sources are made in
it: 8 files of 64 MB, and 500 of 20 to 200 KB. `bare` is the ceiling: as many threads read the same ranges and throw
them away. `rclone` takes part where it is installed. Each line is a contestant's best round; `hashing` is what xxh3-128
alone takes for the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
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
    from collections.abc import Callable, Iterator


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


def rclone(source: str, dest: str) -> None:
    command = ["rclone", "copy", "--config", "", "--transfers", "32", source, dest]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


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


def hash_seconds(sizes: list[int]) -> float:
    """The processor's time for the hashes that a copy takes as bytes pass: of whole ranges, file by file."""
    import xxhash

    data = memoryview(os.urandom(RANGE_BYTES))
    began = time.thread_time()
    for size in sizes:
        hasher = xxhash.xxh3_128()
        for _, length in split(size, RANGE_BYTES):
            hasher.update(data[:length])
        hasher.hexdigest()
    return time.thread_time() - began


def compare(source: str, contestants: dict[str, Callable[[str, str], None]], work: str, rounds: int) -> None:
    entries = list(open_folder(source).entries(hidden=False))
    size = sum(entry.bytes for entry in entries)
    print(f"{source}: {len(entries)} files, {size / 1e6:.0f} MB", flush=True)
    best: dict[str, float] = {}
    for number in range(rounds):
        # What is removed between two contestants would cost the second one: ext4 avoids inodes that were just freed.
        with tempfile.TemporaryDirectory(dir=work) as place:
            for name, run in contestants.items():
                began = time.perf_counter()
                run(source, os.path.join(place, name))
                seconds = time.perf_counter() - began
                best[name] = min(seconds, best.get(name, seconds))
        if number + 1 < rounds:
            time.sleep(6)
    for name, seconds in best.items():
        ratio = seconds / best["ours"]
        print(f"{name:10} {seconds:8.2f} s {size / 1e6 / seconds:9.1f} MB/s   ours is {ratio:6.2f} x", flush=True)
    hashing = min(hash_seconds([entry.bytes for entry in entries]) for _ in range(3))
    print(f"hashing    {hashing:8.3f} s of one processor, {hashing / best['ours']:.1%} of ours", flush=True)


@contextlib.contextmanager
def simulated(code: str, work: str) -> Iterator[list[str]]:
    """Two sources on a mount that the simulator serves, and the same two on the disk; none where it is not built."""
    lacking = [name for name in ("cc", "pkg-config", "fusermount3") if shutil.which(name) is None]
    flags = (
        ""
        if lacking
        else subprocess.run(
            ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False
        ).stdout
    )
    if not flags:
        print(f"no simulator: {', '.join(lacking) or 'libfuse3-dev'} is missing")
        yield []
        return
    with tempfile.TemporaryDirectory(dir=work) as place:
        binary, behind, mount = (os.path.join(place, name) for name in ("volumesim", "behind", "mount"))
        subprocess.run(["cc", "-O2", "-o", binary, code, *flags.split(), "-lpthread"], check=True)
        os.makedirs(mount)
        generator = random.Random(1)
        for kind, sizes in (
            ("large", [64 * 1024**2] * 8),
            ("small", [generator.randint(20_000, 200_000) for _ in range(500)]),
        ):
            os.makedirs(f"{behind}/{kind}")
            for number, size in enumerate(sizes):
                with open(f"{behind}/{kind}/{number:04}.bin", "wb") as file:
                    file.write(os.urandom(size))
        subprocess.run([binary, behind, mount, "-o", "lat_ms=20,stream_mbps=120,total_mbps=1000"], check=True)
        try:
            yield [f"{above}/{kind}" for above in (mount, behind) for kind in ("large", "small")]
        finally:
            subprocess.run(["fusermount3", "-u", "-z", mount], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?")
    parser.add_argument("--simulator", metavar="volumesim.c")
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
        "rclone": rclone,
    }
    without = set(filter(None, options.without.split(",")))
    if shutil.which("rclone") is None:
        print("rclone is not installed: it takes no part")
        without.add("rclone")
    contestants = {name: run for name, run in contestants.items() if name not in without}
    with contextlib.ExitStack() as stack:
        sources = [options.source] if options.source else []
        if options.simulator:
            sources += stack.enter_context(simulated(options.simulator, options.work))
        for source in sources:
            compare(source, contestants, options.work, options.rounds)


if __name__ == "__main__":
    main()
