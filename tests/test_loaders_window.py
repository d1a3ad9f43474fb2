"""The rolling window: an export in a volume that does not fit the disk, read through a part of it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.readme import readme_code
from tests.fixtures.shell import clean_environment
from uc_stage.errors import InvalidRequest, NoSpace, NotFound, VerificationFailed
from uc_stage.loaders import order
from uc_stage.loaders import torch as loader_module
from uc_stage.loaders.torch import ParquetBatches, as_is
from uc_stage.manifest import CopyRecord
from uc_stage.publish import OwnFolder, lock_path
from uc_stage.publish.windows import sweep
from uc_stage.ranks import ranks_here
from uc_stage.transfer.arriving import ArrivingFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from tests.fixtures.volume import Volume
    from uc_stage.manifest import Manifest

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Newer versions of Python say so of each fork beside Arrow's threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
FILES, ROWS = 12, 4000


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def export(volume: Volume) -> tuple[str, Manifest]:
    """An export in a volume, whose rows are numbered from 1,000,000,000 on."""
    return f"{volume.mount}/x", make_export(f"{volume.backing}/x", files=FILES, rows=ROWS)


@pytest.fixture
def little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets rows of a file or two wait for who takes them, as those of a large export do."""
    monkeypatch.setattr(loader_module, "WINDOW_BYTES", 1)
    monkeypatch.setattr(loader_module, "AHEAD_BYTES", 1)


def lying(root: Path) -> list[int]:
    """The sizes of the files that lie in the windows of a cache folder."""
    sizes = []
    for folder in (root / "partial").glob("window-*/.uc_stage/unnamed"):
        with contextlib.suppress(FileNotFoundError):
            for item in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(item.stat().st_size)
    return sizes


@contextlib.contextmanager
def watching(root: Path) -> Iterator[Callable[[], int]]:
    """The most bytes that ever lay in the windows, looked at all the time."""
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, sum(lying(root)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most
    finally:
        done.set()
        thread.join(10)


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def ids(batches: Any) -> list[int]:
    return [int(value) - 10**9 for batch in batches for value in batch["id"]]


@pytest.mark.parametrize(("context", "workers", "ranks"), [("fork", 2, 2), ("spawn", 1, 1), (None, 0, 2)])
def test_ranks_and_workers_read_each_row_once_and_the_window_is_never_exceeded(
    export: tuple[str, Manifest], tmp_path: Path, context: str | None, workers: int, ranks: int
) -> None:
    path, manifest = export
    largest = max(file.bytes for file in manifest.files)
    size, root = 2 * ranks * max(1, workers) * largest, tmp_path / "cache"
    assert size < manifest.size

    seen: list[int] = []
    with watching(root) as most:
        for rank in range(ranks):
            data = ParquetBatches(
                path, 500, shuffle=True, rank=rank, world_size=ranks, window=size, cache_dir=str(root), buffer=1
            )
            loader: DataLoader[Any] = DataLoader(
                data,
                batch_size=None,
                collate_fn=as_is,
                num_workers=workers,
                timeout=60 if workers else 0,
                multiprocessing_context=multiprocessing.get_context(context) if context else None,
            )
            seen += ids(loader)

    assert sorted(seen) == list(range(FILES * ROWS))
    assert seen != sorted(seen)
    assert largest <= most() <= size // ranks  # one rank reads at a time
    assert not list((root / "partial").iterdir())


@pytest.mark.usefixtures("little_ahead")
def test_files_come_ahead_of_whoever_reads(export: tuple[str, Manifest], tmp_path: Path) -> None:
    path, manifest = export
    largest = max(file.bytes for file in manifest.files)
    batches = iter(ParquetBatches(path, 10, window=4 * largest, cache_dir=str(tmp_path)))

    next(batches)
    until(lambda: len(lying(tmp_path)) >= 3)
    first, rest = next(batches), list(batches)

    assert first["id"].tolist() == list(range(10**9 + 10, 10**9 + 20))
    assert ids(rest) == list(range(20, FILES * ROWS))
    assert not lying(tmp_path)


def test_each_file_is_fetched_once_in_a_shuffled_epoch(
    volume: Volume, export: tuple[str, Manifest], tmp_path: Path
) -> None:
    path, manifest = export
    data = ParquetBatches(
        path, 500, shuffle=True, window=3 * manifest.files[0].bytes, cache_dir=str(tmp_path), buffer=1
    )
    before = {file.path: volume.reads(f"x/{file.path}") for file in manifest.files}

    assert sorted(ids(data)) == list(range(FILES * ROWS))

    reads = {file.path: volume.reads(f"x/{file.path}") - before[file.path] for file in manifest.files}
    assert max(reads.values()) <= 2  # the kernel may ask twice


def test_a_state_goes_on_with_the_rows_that_were_left_on_another_world_size(
    export: tuple[str, Manifest], tmp_path: Path
) -> None:
    path, manifest = export
    asked: dict[str, Any] = {
        "shuffle": True, "seed": 3, "window": 6 * manifest.files[0].bytes, "cache_dir": str(tmp_path), "buffer": 1,
    }  # fmt: skip
    ranks = [ParquetBatches(path, 700, rank=rank, world_size=2, **asked) for rank in (0, 1)]
    begun = [iter(data) for data in ranks]
    seen = [batch for batches in begun for batch in itertools.islice(batches, 20)]
    state = json.loads(json.dumps(ranks[0].state_dict()))
    for batches in begun:
        batches.close()  # type: ignore[attr-defined]  # it is a generator
    for rank in range(3):
        data = ParquetBatches(path, 700, rank=rank, world_size=3, **asked)
        data.load_state_dict(state)
        seen += list(data)

    assert sorted(ids(seen)) == list(range(FILES * ROWS))
    with pytest.raises(InvalidRequest, match="saved with `shuffle=by files, for a window`"):
        ParquetBatches(path, 700, shuffle=True, seed=3, buffer=1).load_state_dict(state)


def test_bytes_that_the_manifest_does_not_tell_are_never_read(
    volume: Volume, export: tuple[str, Manifest], tmp_path: Path
) -> None:
    path, manifest = export
    with open(f"{volume.backing}/x/{manifest.files[5].path}", "r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))
    data = ParquetBatches(path, 500, window="1MB", cache_dir=str(tmp_path))

    with pytest.raises(VerificationFailed, match=f"`{path}/{manifest.files[5].path}` came with other bytes"):
        list(data)
    assert not list((tmp_path / "partial").iterdir())


def test_a_file_that_is_gone_ends_the_epoch_with_its_name(
    volume: Volume, export: tuple[str, Manifest], tmp_path: Path
) -> None:
    path, manifest = export
    data = ParquetBatches(path, 500, window="1MB", cache_dir=str(tmp_path))
    os.unlink(f"{volume.backing}/x/{manifest.files[3].path}")

    with pytest.raises(NotFound, match=manifest.files[3].path) as caught:
        list(data)
    assert "--keep 1" in str(caught.value.hint)
    assert not list((tmp_path / "partial").iterdir())


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_that_cannot_be_decoded_ends_the_epoch_by_the_name_that_it_has_at_home(
    tmp_path: Path, shuffle: bool
) -> None:
    manifest = make_export(str(tmp_path / "x"), files=6, hashes=False)
    path = f"{tmp_path}/x/{manifest.files[2].path}"
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 40)
    data = ParquetBatches(str(tmp_path / "x"), 100, shuffle=shuffle, window="1MB", cache_dir=str(tmp_path / "cache"))

    with pytest.raises(VerificationFailed, match=f"`{path}`"):
        list(data)
    assert not list((tmp_path / "cache" / "partial").iterdir())


def test_a_window_that_is_too_small_names_the_largest_file(export: tuple[str, Manifest], tmp_path: Path) -> None:
    path, manifest = export
    largest = max(manifest.files, key=lambda file: file.bytes)

    with pytest.raises(InvalidRequest, match=f"each of 2 readers here .* the largest file, `{largest.path}`") as caught:
        ParquetBatches(path, 500, rank=0, world_size=2, window=largest.bytes, cache_dir=str(tmp_path))
    assert f"give {4 * largest.bytes} bytes or more" in str(caught.value.hint)
    shuffled = ParquetBatches(path, 500, shuffle=True, window=largest.bytes, cache_dir=str(tmp_path))
    with pytest.raises(InvalidRequest, match="are shuffled together"):
        next(iter(shuffled))
    alone = ParquetBatches(f"{path}/{largest.path}", 500, shuffle=True, window=largest.bytes, cache_dir=str(tmp_path))
    assert len(ids(alone)) == ROWS
    with pytest.raises(InvalidRequest, match="`window 3 files` is not a size"):
        ParquetBatches(path, 500, window="3 files")


def test_a_copy_as_arrow_needs_no_window(tmp_path: Path) -> None:
    make_export(str(tmp_path / "x"), files=1, rows=10)
    copy = uc_stage.cache(str(tmp_path / "x"), str(tmp_path / "copy"), form="arrow")

    with pytest.raises(InvalidRequest, match="is a copy as Arrow"):
        ParquetBatches(copy, 5, window="1MB")


def test_a_disk_without_room_for_it_is_told_before_anything_is_fetched(
    export: tuple[str, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uc_stage.publish import windows
    from uc_stage.storage import Space

    monkeypatch.setattr(windows, "space_at", lambda _: Space(1000, 512, 0, in_memory=False))
    with pytest.raises(NoSpace, match=r"has room for 1\.0 kB"):
        list(ParquetBatches(export[0], 500, window="1MB", cache_dir=str(tmp_path)))
    assert not list((tmp_path / "partial").iterdir())


READER = """
import sys
import uc_stage.loaders.torch
from uc_stage.loaders.torch import ParquetBatches
uc_stage.loaders.torch.WINDOW_BYTES = uc_stage.loaders.torch.AHEAD_BYTES = 1
for batch in ParquetBatches(sys.argv[1], 100, window=int(sys.argv[2]), cache_dir=sys.argv[3]):
    print(flush=True)
    sys.stdin.readline()
"""


def test_a_killed_reader_leaves_what_the_next_one_removes_and_a_live_ones_stays(
    export: tuple[str, Manifest], tmp_path: Path
) -> None:
    path, manifest = export
    size = 3 * manifest.files[0].bytes
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, path, str(size), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline()
        until(lambda: len(lying(tmp_path)) >= 2)

        (copy,) = uc_stage.inspect(cache_dir=str(tmp_path)).copies
        assert (copy.kind, copy.source, copy.variant) == ("partial", path, "window")
        assert [holder.pid for holder in copy.holders] == [reader.pid]
        assert not uc_stage.prune(cache_dir=str(tmp_path)).removed
        assert len(ids(ParquetBatches(path, 500, window=size, cache_dir=str(tmp_path)))) == FILES * ROWS
        assert len(lying(tmp_path)) >= 2
    finally:
        reader.send_signal(signal.SIGKILL)
        reader.communicate(timeout=60)

    assert lying(tmp_path)
    assert len(ids(ParquetBatches(path, 500, window=size, cache_dir=str(tmp_path)))) == FILES * ROWS
    assert not list((tmp_path / "partial").iterdir())


ENDING = """
import sys
from torch.utils.data import DataLoader
import uc_stage.loaders.torch
from uc_stage.loaders.torch import ParquetBatches
uc_stage.loaders.torch.WINDOW_BYTES = uc_stage.loaders.torch.AHEAD_BYTES = 1
data = ParquetBatches(sys.argv[1], 100, window=int(sys.argv[2]), cache_dir=sys.argv[3])
batches = iter(DataLoader(data, batch_size=None, num_workers=1, timeout=60, multiprocessing_context="fork"))
next(batches)
"""


def test_workers_that_a_script_holds_to_its_end_leave_nothing(export: tuple[str, Manifest], tmp_path: Path) -> None:
    path, manifest = export
    asked = [path, str(3 * manifest.files[0].bytes), str(tmp_path)]

    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENDING, *asked], env=clean_environment(), timeout=90, check=True
    )

    assert (tmp_path / "partial").is_dir()
    assert not list((tmp_path / "partial").iterdir())


def test_a_folder_that_was_killed_before_it_was_marked_is_taken_over(
    export: tuple[str, Manifest], tmp_path: Path
) -> None:
    (tmp_path / "partial" / "window-0" / ".uc_stage" / "unnamed").mkdir(parents=True)

    assert len(ids(ParquetBatches(export[0], 500, window="1MB", cache_dir=str(tmp_path)))) == FILES * ROWS
    assert not list((tmp_path / "partial").iterdir())


def own_folder(root: Path) -> OwnFolder:
    """One with a file of 100 bytes in it."""
    own = OwnFolder(str(root), CopyRecord("/src", "", None, "2026-11-30T12:00:00+00:00", (), "window"), 100)
    with open(own.temporary(), "wb") as file:
        file.write(b"x" * 100)
    return own


def test_what_somebody_has_open_of_a_killed_ones_folder_makes_way_all_the_same(tmp_path: Path) -> None:
    killed = own_folder(tmp_path)
    with open(killed.temporary(), "wb") as file:
        killed._lock.close()
        file.write(b"y")
        own = own_folder(tmp_path)
        assert lying(tmp_path) == [100]
        own.close()


def test_a_removal_that_was_killed_is_finished_by_the_next_one(tmp_path: Path) -> None:
    killed = own_folder(tmp_path)
    (tmp_path / "partial" / "window-0").rename(tmp_path / "trash" / "window-0-0a1b2c")
    killed._lock.close()

    own_folder(tmp_path).close()

    assert not list((tmp_path / "trash").iterdir())


def test_a_disk_that_fills_up_meanwhile_is_the_one_that_is_named(
    export: tuple[str, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ArrivingFile, "write", full)

    with pytest.raises(NoSpace, match=f"`{tmp_path}/partial/window-0/.*`: No space left"):
        list(ParquetBatches(export[0], 500, window="1MB", cache_dir=str(tmp_path)))
    assert not list((tmp_path / "partial").iterdir())


def test_a_folder_whose_holder_has_not_said_who_it_is_is_left_to_it(tmp_path: Path) -> None:
    first = own_folder(tmp_path)
    with open(lock_path(str(tmp_path), f"{tmp_path}/copies/window-0"), "wb"):
        second = own_folder(tmp_path)
    names = sorted(os.listdir(tmp_path / "partial"))
    second.close()
    first.close()

    assert names == ["window-0", "window-1"]
    assert not list((tmp_path / "partial").iterdir())


def test_a_forked_child_does_not_end_what_its_parent_has(tmp_path: Path) -> None:
    own = own_folder(tmp_path)
    child = multiprocessing.get_context("fork").Process(target=own.close)
    child.start()
    child.join(30)

    assert child.exitcode == 0
    assert lying(tmp_path) == [100]
    sweep(str(tmp_path))
    assert lying(tmp_path) == [100]
    own.close()
    assert not list((tmp_path / "partial").iterdir())


def test_an_export_without_hashes_and_one_behind_a_url_are_read_through_it(bucket: Bucket, tmp_path: Path) -> None:
    make_export(str(tmp_path / "x"), files=3, rows=100, hashes=False)
    for file in (tmp_path / "x").rglob("*"):
        if file.is_file():
            bucket.put(f"x/{file.relative_to(tmp_path / 'x')}", file.read_bytes())
    here, there = (
        ParquetBatches(source, 50, window="1MB", cache_dir=str(tmp_path / "cache"))
        for source in (str(tmp_path / "x"), f"{bucket.url}/x")
    )
    fork = multiprocessing.get_context("fork")
    loader: DataLoader[Any] = DataLoader(there, None, num_workers=1, timeout=60, multiprocessing_context=fork)

    assert ids(here) == list(range(300))
    assert ids(loader) == list(range(300))


def test_the_readmes_window_reads_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UC_STAGE_CACHE_DIR", str(tmp_path / "cache"))
    make_export(str(tmp_path / "x"), files=2, rows=100)

    left: dict[str, Any] = {"export": str(tmp_path / "x")}
    exec(readme_code("window"), left)

    assert sorted(ids(left["data"])) == list(range(200))
    assert (tmp_path / "cache" / "partial").is_dir()


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), min_size=1, max_size=4), min_size=1, max_size=8
    ),
    st.integers(1, 120),
    st.integers(0, 3),
)
def test_whole_files_are_shuffled_in_blocks_that_hold_each_row_once(
    files: list[list[tuple[int, int]]], size: int, epoch: int
) -> None:
    groups = []
    for number, file in enumerate(files):
        start = 0
        for rows, held in file:
            groups.append(order.Group(str(number), start, rows, held))
            start += rows

    found = order.windows(groups, size, (7, epoch), whole_files=True)

    held_rows = sorted(
        (part.path, row) for window in found for part in window.parts for row in range(part.start, part.stop)
    )
    assert held_rows == sorted((group.path, group.start + row) for group in groups for row in range(group.rows))
    assert [window.first for window in found] == list(itertools.accumulate((w.rows for w in found), initial=0))[:-1]
    assert [window.block for window in found] == sorted(window.block for window in found)
    blocks = [{part.path for window in found if window.block == block for part in window.parts} for block in
              range(found[-1].block + 1)]  # fmt: skip
    assert sum(map(len, blocks)) == len(files)
    weight = {str(number): sum(held for _, held in file) for number, file in enumerate(files)}
    assert all(len(paths) == 1 or sum(weight[path] for path in paths) <= size for paths in blocks)


@pytest.mark.parametrize(("told", "here"), [("", 8), ("4", 4), ("99", 8), ("0", 1), ("x", 8)])
def test_a_launcher_tells_how_many_ranks_are_on_a_node(told: str, here: int) -> None:
    assert ranks_here(8, {"LOCAL_WORLD_SIZE": told}) == here
