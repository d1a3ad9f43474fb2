"""Reads by processes of their own, which a mount that hangs cannot take this one with."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from uc_stage.errors import NotFound, Unavailable, Unsupported, VerificationFailed
from uc_stage.model import CopyFile
from uc_stage.progress import SILENT
from uc_stage.storage import Apart, LocalFolder, open_folder, reading_apart
from uc_stage.transfer import copy_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.volume import Volume

SIZE = 1024 * 1024


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    (tmp_path / "source").mkdir()
    with closing(Apart(LocalFolder(str(tmp_path / "source")))) as apart:
        yield apart


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, SIZE])
def test_any_part_of_a_file_of_any_length_comes_as_it_is(apart: Apart, tmp_path: Path, length: int) -> None:
    data = os.urandom(length)
    (tmp_path / "source/x.bin").write_bytes(data)
    buffer = apart.pages(SIZE)
    connection = apart.connect()
    file = connection.ranges("x.bin", look=True)

    assert file.read_into(buffer, 0) == length
    assert buffer[:length] == data
    assert file.told == file.after == open_folder(str(tmp_path / "source")).stat("x.bin")
    if length > 4096:
        assert file.read_into(buffer[: length - 4096], 4096) == length - 4096
        assert buffer[: length - 4096] == data[4096:]
    connection.close()


def test_a_file_that_is_asked_for_anew_is_the_one_that_is_there_now(apart: Apart, tmp_path: Path) -> None:
    place = tmp_path / "source/x.bin"
    place.write_bytes(b"old")
    buffer, connection = apart.pages(4096), apart.connect()
    file = connection.ranges("x.bin", look=False)
    file.read_into(buffer[:3], 0)
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", place)

    assert file.read_into(buffer[:3], 0) == 3
    assert bytes(buffer[:3]) == b"old"
    file.forget()
    file.read_into(buffer[:3], 0)
    assert bytes(buffer[:3]) == b"new"
    connection.close()


def _link_out(place: Path) -> None:
    (place.parent.parent / "secret").write_bytes(b"secret")
    place.symlink_to("../secret")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda _: None, NotFound, "x.bin"),
        (_link_out, VerificationFailed, "is a link out of the folder"),
        (os.mkfifo, Unsupported, "is not a file"),
        (lambda place: place.mkdir(), Unsupported, "is not a file"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_and_the_next_one_read(
    apart: Apart, tmp_path: Path, make: Callable[[Path], None], error: type[Exception], words: str
) -> None:
    make(tmp_path / "source/x.bin")
    (tmp_path / "source/y.bin").write_bytes(b"y")
    buffer, connection = apart.pages(4096), apart.connect()

    with pytest.raises(error, match=words):
        connection.ranges("x.bin", look=True).read_into(buffer[:1], 0)
    assert connection.ranges("y.bin", look=True).read_into(buffer[:1], 0) == 1
    connection.close()


def test_a_file_system_that_knows_no_direct_reads_is_read_through_the_page_cache() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        os.open("/proc/self/status", os.O_RDONLY | os.O_DIRECT)
    with closing(Apart(LocalFolder("/proc/1"))) as proc:
        connection, buffer = proc.connect(), proc.pages(4096)
        assert connection.ranges("status", look=False).read_into(buffer[:5], 0) == 5
        assert bytes(buffer[:5]) == b"Name:"
        connection.close()


def test_a_mount_that_refuses_direct_reads_is_read_through_the_page_cache(volume: Volume) -> None:
    data = os.urandom(300_000)
    with open(f"{volume.backing}/x.bin", "wb") as file:
        file.write(data)
    volume.refuse_direct()
    with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
        os.open(f"{volume.mount}/x.bin", os.O_RDONLY | os.O_DIRECT)
    with closing(Apart(LocalFolder(volume.mount))) as apart:
        connection, buffer = apart.connect(), apart.pages(SIZE)
        assert connection.ranges("x.bin", look=True).read_into(buffer[: len(data)], 0) == len(data)
        assert bytes(buffer[: len(data)]) == data
        connection.close()


def _readers(parent: int) -> list[int]:
    """The processes that read for a process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as words, open(f"/proc/{name}/status") as status:
            if b"/aside.py" in words.read() and f"PPid:\t{parent}\n" in status.read():
                found.append(int(name))
    return found


def test_a_copy_goes_on_when_the_processes_that_read_are_killed(volume: Volume, tmp_path: Path) -> None:
    os.makedirs(f"{volume.backing}/data")
    for number in range(4):
        with open(f"{volume.backing}/data/{number}.bin", "wb") as file:
            file.write(os.urandom(300_000))
    mine = f"grep -qa /aside.py $each/cmdline && grep -q '^PPid:.{os.getpid()}$' $each/status"
    kill = f"for each in /proc/[0-9]*; do {mine} && kill -9 ${{each#/proc/}}; done; touch {tmp_path}/killed"
    volume.fault("data/2.bin", run=kill, times=1)
    folder = open_folder(f"{volume.mount}/data")

    class Shelf:
        def __init__(self) -> None:
            self.named: dict[str, bytes] = {}

        def temporary(self) -> str:
            return str(tmp_path / str(time.monotonic_ns()))

        def accept(self, temporary: str, file: CopyFile) -> None:
            with open(temporary, "rb") as stream:
                self.named[file.path] = stream.read()

    shelf = Shelf()
    files = [CopyFile(entry.path, entry.bytes, entry.mtime_ns, None) for entry in folder.entries()]
    copy_files(folder, files, shelf, 1, SILENT)

    assert (tmp_path / "killed").exists()
    assert sorted(shelf.named) == [f"{number}.bin" for number in range(4)]
    for name, data in shelf.named.items():
        with open(f"{volume.backing}/data/{name}", "rb") as read:
            assert data == read.read()
    assert _readers(os.getpid()) == []


def test_a_folder_on_a_disk_is_read_by_this_process(tmp_path: Path) -> None:
    assert reading_apart(open_folder(str(tmp_path))) is None


def test_a_connection_to_nobody_says_so(tmp_path: Path) -> None:
    with closing(Apart(LocalFolder(str(tmp_path)))) as apart:
        connection = apart.connect()
        for process in _readers(os.getpid()):
            os.kill(process, signal.SIGKILL)
        with pytest.raises(Unavailable):
            connection.ranges("x.bin", look=False).read_into(apart.pages(4096), 0)
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_copy_ends_at_once_while_the_mount_hangs_and_another_one_may_begin(
    volume: Volume, tmp_path: Path, number: signal.Signals
) -> None:
    os.makedirs(f"{volume.backing}/data")
    with open(f"{volume.backing}/data/x.bin", "wb") as file:
        file.write(os.urandom(300_000))
    volume.fault("data/x.bin", run=f"touch {tmp_path}/hangs; sleep 20", times=1)
    command = [sys.executable, "-m", "uc_stage", "cache", f"{volume.mount}/data", "--cache-dir", f"{tmp_path}/cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as copying:
        deadline = time.monotonic() + 60
        while not (tmp_path / "hangs").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        readers = _readers(copying.pid)
        began = time.monotonic()
        copying.send_signal(number)
        # Its pipes are closed as well: nobody whom it left behind holds them.
        copying.communicate(timeout=15)
        assert time.monotonic() - began < 15
    assert readers
    again = subprocess.run([*command, "--read-timeout", "40"], capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, "waiting" in again.stderr) == (0, False)
    # Those that were left behind end once the mount answers.
    deadline = time.monotonic() + 60
    while any(_goes_on(reader) for reader in readers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _goes_on(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
