from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.errors import AccessDenied, NotFound, Unavailable, VerificationFailed
from uc_stage.model import CopyFile
from uc_stage.progress import SILENT
from uc_stage.storage import LocalFolder, open_folder
from uc_stage.transfer import copy_files, hash_files, is_parquet, ranges, reading, split

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from tests.fixtures.volume import Volume
    from uc_stage.storage import Entry


@dataclass
class Shelf:
    """A sink of two folders: what has no name yet, and what has."""

    root: str
    named: list[CopyFile] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        os.makedirs(f"{self.root}/unnamed")
        os.makedirs(f"{self.root}/named")

    def temporary(self) -> str:
        with self.lock:
            self.count = getattr(self, "count", 0) + 1
            return f"{self.root}/unnamed/{self.count}"

    def accept(self, temporary: str, file: CopyFile) -> None:
        os.makedirs(os.path.dirname(self.path(file)), exist_ok=True)
        os.rename(temporary, self.path(file))
        self.named.append(file)

    def path(self, file: CopyFile) -> str:
        return f"{self.root}/named/{file.path}"

    def read(self, file: CopyFile) -> bytes:
        with open(self.path(file), "rb") as stream:
            return stream.read()


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(str(tmp_path / "shelf"))


@pytest.fixture(autouse=True)
def _small_ranges_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 64 * 1024)
    monkeypatch.setattr(reading, "_RETRY_SECONDS", (0.01, 0.01))


def digest(data: bytes) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def write(folder: str, path: str, data: bytes) -> CopyFile:
    whole = os.path.join(folder, path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with open(whole, "wb") as file:
        file.write(data)
    os.utime(whole, ns=(0, 1_700_000_000_000_000_000))
    return CopyFile(path, len(data), 1_700_000_000_000_000_000)


def hashed(file: CopyFile, data: bytes) -> CopyFile:
    return CopyFile(file.path, file.bytes, file.mtime_ns, digest(data))


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_the_ranges_of_a_file_are_its_bytes_each_once_and_in_order(size: int, step: int) -> None:
    parts = list(split(size, max(step, size // 1000 + 1)))

    assert parts[0][0] == 0
    assert all(offset + length == after for (offset, length), (after, _) in pairwise(parts))
    assert sum(parts[-1]) == size
    assert all(length > 0 for _, length in parts) or size == 0


@pytest.mark.parametrize("jobs", [1, 7])
def test_files_of_any_size_come_whole_with_their_hash_and_time(tmp_path: Path, shelf: Shelf, jobs: int) -> None:
    source = str(tmp_path / "source")
    sizes = {"empty": 0, "small": 17, "sub/exact": 2 * 64 * 1024, "sub/deep/long": 20 * 64 * 1024 + 5}
    content = {path: os.urandom(size) for path, size in sizes.items()}
    files = [write(source, path, data) for path, data in content.items()]

    copied = copy_files(open_folder(source), files, shelf, jobs, SILENT)

    assert {file.path: shelf.read(file) for file in copied} == content
    assert {file.path: file.xxh3_128 for file in copied} == {path: digest(data) for path, data in content.items()}
    assert {os.stat(shelf.path(file)).st_mtime_ns for file in copied} == {1_700_000_000_000_000_000}
    assert os.listdir(f"{shelf.root}/unnamed") == []


def test_no_files_are_no_work(tmp_path: Path, shelf: Shelf) -> None:
    assert copy_files(open_folder(str(tmp_path)), [], shelf, 4, SILENT) == []
    assert hash_files(str(tmp_path), [], 4, SILENT) == []


def test_an_object_store_gives_the_same_bytes(bucket: Bucket, shelf: Shelf) -> None:
    content = {"a/long": os.urandom(300_000), "a/empty": b"", "b c/ü.bin": b"12"}
    for path, data in content.items():
        bucket.put(f"data/{path}", data)
    folder = open_folder(f"{bucket.url}/data")
    files = [CopyFile(entry.path, entry.bytes, entry.mtime_ns) for entry in folder.entries()]

    copied = copy_files(folder, files, shelf, 8, SILENT)

    assert {file.path: shelf.read(file) for file in copied} == content
    assert {file.path: file.mtime_ns for file in copied} == {file.path: file.mtime_ns for file in files}


def test_an_object_that_was_replaced_since_it_was_listed_is_named(bucket: Bucket, shelf: Shelf) -> None:
    bucket.put("data/x", b"1234")
    folder = open_folder(f"{bucket.url}/data")
    (entry,) = folder.entries()
    assert entry.mtime_ns is not None
    listed = CopyFile("x", 4, entry.mtime_ns - 10**9)

    with pytest.raises(VerificationFailed, match=r"data/x` was written again while it was read"):
        copy_files(folder, [listed], shelf, 2, SILENT)
    assert shelf.named == []


def test_an_object_that_is_gone_is_named(bucket: Bucket, shelf: Shelf) -> None:
    with pytest.raises(NotFound, match="data/gone"):
        copy_files(open_folder(f"{bucket.url}/data"), [CopyFile("gone", 4, 1)], shelf, 2, SILENT)


def test_a_byte_that_flips_once_on_the_way_is_fetched_again(volume: Volume, shelf: Shelf) -> None:
    data = os.urandom(400_000)
    file = hashed(write(volume.backing, "x.bin", data), data)
    volume.fault("x.bin", flip=300_000, times=5)
    notes: list[str] = []

    class Watcher:
        def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None: ...

        def advance(self, amount: int) -> None: ...

        def note(self, message: str) -> None:
            notes.append(message)

    (copied,) = copy_files(open_folder(volume.mount), [file], shelf, 1, Watcher())

    assert shelf.read(copied) == data
    assert len(notes) == 1
    assert "x.bin` came with other bytes than the manifest's hash tells" in notes[0]


def test_a_byte_that_flips_always_is_no_copy(volume: Volume, shelf: Shelf) -> None:
    data = os.urandom(400_000)
    file = hashed(write(volume.backing, "x.bin", data), data)
    volume.fault("x.bin", flip=300_000)

    with pytest.raises(VerificationFailed, match=r"x\.bin` came with other bytes .* also when fetched again"):
        copy_files(open_folder(volume.mount), [file], shelf, 4, SILENT)
    assert shelf.named == []
    assert os.listdir(f"{shelf.root}/unnamed") == []


def test_a_parquet_file_without_its_end_is_no_copy_though_nobody_told_its_hash(tmp_path: Path, shelf: Shelf) -> None:
    file = write(str(tmp_path / "source"), "cut.parquet", b"PAR1" + os.urandom(1000))

    with pytest.raises(VerificationFailed, match=r"cut\.parquet` came as no whole Parquet file"):
        copy_files(open_folder(str(tmp_path / "source")), [file], shelf, 4, SILENT)
    assert shelf.named == []


def test_a_read_that_fails_for_a_moment_is_tried_again(volume: Volume, shelf: Shelf) -> None:
    data = os.urandom(200_000)
    file = write(volume.backing, "x.bin", data)
    volume.fault("x.bin", error=errno.EIO, times=3)

    (copied,) = copy_files(open_folder(volume.mount), [file], shelf, 2, SILENT)

    assert shelf.read(copied) == data


def test_a_read_that_always_fails_ends_as_unavailable(volume: Volume, shelf: Shelf) -> None:
    file = write(volume.backing, "x.bin", os.urandom(200_000))
    volume.fault("x.bin", error=errno.EIO)

    with pytest.raises(Unavailable, match=r"x\.bin`: Input/output error"):
        copy_files(open_folder(volume.mount), [file], shelf, 2, SILENT)
    assert volume.reads("x.bin") > 4
    assert os.listdir(f"{shelf.root}/unnamed") == []


def test_a_read_that_fails_is_tried_again_as_often_as_asked(volume: Volume, shelf: Shelf) -> None:
    file = write(volume.backing, "x.bin", b"1")
    volume.fault("x.bin", error=errno.EIO, times=3)
    folder = open_folder(volume.mount)

    with pytest.raises(Unavailable, match=r"x\.bin`: Input/output error"):
        copy_files(folder, [file], shelf, 2, SILENT, retries=0)
    assert len(copy_files(folder, [file], shelf, 2, SILENT, retries=5)) == 1


def test_a_read_that_hangs_is_done_by_another_thread(volume: Volume, shelf: Shelf) -> None:
    content = {"x.bin": os.urandom(700_000), "y.bin": os.urandom(10)}
    files = [write(volume.backing, path, data) for path, data in content.items()]
    volume.fault("x.bin", run="sleep 8", times=1)
    began = time.monotonic()

    copied = copy_files(open_folder(volume.mount), files, shelf, 3, SILENT, timeout=0.5)

    assert time.monotonic() - began < 8
    assert {file.path: shelf.read(file) for file in copied} == content
    assert os.listdir(f"{shelf.root}/unnamed") == []


def test_a_source_that_always_hangs_ends_as_unavailable(volume: Volume, shelf: Shelf) -> None:
    file = write(volume.backing, "x.bin", b"1")
    volume.fault("x.bin", run="sleep 8")

    with pytest.raises(Unavailable, match=r"x\.bin` did not answer within 0\.3 s, 2 times"):
        copy_files(open_folder(volume.mount), [file], shelf, 2, SILENT, retries=1, timeout=0.3)
    assert shelf.named == []


def test_a_read_that_is_refused_is_not_tried_again(volume: Volume, shelf: Shelf) -> None:
    file = write(volume.backing, "x.bin", b"1")
    volume.fault("x.bin", error=errno.EACCES)

    with pytest.raises(AccessDenied, match=r"x\.bin"):
        copy_files(open_folder(volume.mount), [file], shelf, 2, SILENT)
    # The kernel itself asks a second time.
    assert volume.reads("x.bin") <= 2


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        ("truncate -s 1000 {}", VerificationFailed, "shorter|has 1000 bytes"),
        ("truncate -s +1 {}", VerificationFailed, "has 200001 bytes and not 200000: it changed while it was read"),
        ("touch -d 2001-01-01 {}", VerificationFailed, "was written again while it was read"),
        ("rm {}", NotFound, "went away while it was read|No such file"),
    ],
    ids=["shrinks", "grows", "is written", "vanishes"],
)
def test_a_source_that_changes_while_it_is_read_is_named(
    volume: Volume, shelf: Shelf, command: str, error: type[Exception], words: str
) -> None:
    file = write(volume.backing, "x.bin", os.urandom(200_000))
    volume.fault("x.bin", run=command.format(f"{volume.backing}/x.bin"), times=1)

    with pytest.raises(error, match=f"x.bin`.*({words})"):
        copy_files(open_folder(volume.mount), [file], shelf, 1, SILENT)
    assert shelf.named == []


@pytest.mark.parametrize("change", [b"longer than it was", b"12"])
def test_a_source_that_changed_since_it_was_listed_is_named(tmp_path: Path, shelf: Shelf, change: bytes) -> None:
    file = write(str(tmp_path / "source"), "x", b"1234")
    (tmp_path / "source/x").write_bytes(change)

    with pytest.raises(VerificationFailed, match=r"x` has \d+ bytes and not 4: it changed since it was listed"):
        copy_files(open_folder(str(tmp_path / "source")), [file], shelf, 1, SILENT)


def test_the_first_error_stops_all_threads_and_leaves_nothing_unnamed(tmp_path: Path, shelf: Shelf) -> None:
    source = str(tmp_path / "source")
    files = [write(source, f"{index}", os.urandom(100_000)) for index in range(50)]
    os.unlink(f"{source}/25")

    with pytest.raises(NotFound, match="/25`"):
        copy_files(open_folder(source), files, shelf, 4, SILENT)
    assert os.listdir(f"{shelf.root}/unnamed") == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("uc-stage-")]


def test_an_interrupt_of_the_main_thread_ends_a_copy_that_hangs(volume: Volume, tmp_path: Path) -> None:
    write(volume.backing, "x.bin", os.urandom(200_000))
    volume.fault("x.bin", run="sleep 60", times=1)
    program = (
        "import sys\n"
        "from uc_stage import crew; crew._JOIN_SECONDS = 0.5\n"
        "from tests.test_transfer import *\n"
        "folder = open_folder(sys.argv[1])\n"
        "files = [CopyFile(e.path, e.bytes, e.mtime_ns) for e in folder.entries()]\n"
        "print('begun', flush=True)\n"
        "copy_files(folder, files, Shelf(sys.argv[2]), 4, SILENT)\n"
    )
    command = [sys.executable, "-c", program, volume.mount, str(tmp_path / "there")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        while not (os.path.exists(f"{volume.control}.reads") and volume.reads("x.bin")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)

    assert "KeyboardInterrupt" in errors
    assert os.listdir(tmp_path / "there/unnamed") == []


def test_hashing_again_keeps_what_is_as_it_was(tmp_path: Path) -> None:
    folder = str(tmp_path)
    good = hashed(write(folder, "sub/good", b"1" * 200_000), b"1" * 200_000)
    bad = hashed(write(folder, "bad", b"2" * 200_000), b"2" * 200_001)

    gone = hashed(CopyFile("gone", 0), b"")

    assert hash_files(folder, [good, bad, gone], 4, SILENT) == [good]


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"PAR1" + b"x" * 20 + (20).to_bytes(4, "little") + b"PAR1", True),
        (b"PARE" + b"x" * 20 + (20).to_bytes(4, "little") + b"PARE", True),
        (b"PAR1" + b"x" * 20 + (21).to_bytes(4, "little") + b"PAR1", False),
        (b"PAR1" + b"x" * 20 + (0).to_bytes(4, "little") + b"PAR1", False),
        (b"PAR1" + b"x" * 20 + (20).to_bytes(4, "little") + b"PARE", False),
        (b"PAR1PAR1", False),
        (b"", False),
    ],
)
def test_a_parquet_file_is_told_by_both_its_ends(tmp_path: Path, data: bytes, whole: bool) -> None:
    write(str(tmp_path), "x", data)
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        assert is_parquet(descriptor, len(data)) is whole
    finally:
        os.close(descriptor)


def test_a_file_whose_last_look_hangs_is_copied_all_the_same(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    for index in range(5):
        (tmp_path / f"source/f{index}").write_bytes(os.urandom(1000 + index))
    real, hung = LocalFolder.stat, threading.Event()

    def stat(folder: LocalFolder, path: str) -> Entry | None:
        if path == "f2" and not hung.is_set():
            hung.set()
            time.sleep(1.5)
        return real(folder, path)

    monkeypatch.setattr(LocalFolder, "stat", stat)
    folder = LocalFolder(str(tmp_path / "source"))
    files = [CopyFile(entry.path, entry.bytes, entry.mtime_ns) for entry in folder.entries()]

    copied = copy_files(folder, files, shelf, 4, SILENT, timeout=0.3)

    assert hung.is_set()
    assert sorted(file.path for file in copied) == [f"f{index}" for index in range(5)]
