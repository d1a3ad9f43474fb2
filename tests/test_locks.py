from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from uc_stage import locks
from uc_stage.errors import AccessDenied, Busy, StageError
from uc_stage.locks import Lock, alive, has_ended, identity, mark, process_name, read_holder, runs

if TYPE_CHECKING:
    from pathlib import Path

HOLD = (
    "import sys, time; from uc_stage.locks import Lock\n"
    "lock = Lock(sys.argv[1]); assert lock.try_acquire(); lock._told = 0.0; lock.tell(done=1, total=2)\n"
    "print('held', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.lock")


def hold(path: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_of_two_has_the_lock_even_in_one_process(path: str) -> None:
    with Lock(path) as first, Lock(path) as second:
        assert first.try_acquire()
        assert not second.try_acquire()
    with Lock(path) as third:
        assert third.try_acquire()


def test_a_holder_is_known_and_its_death_frees_the_lock(path: str) -> None:
    with hold(path) as process, Lock(path) as lock:
        told: list[dict[str, Any]] = []
        with pytest.raises(Busy, match=f"process {process.pid} on"):
            lock.acquire(0.2, told.append)
        assert [(record["pid"], record["done"], record["total"]) for record in told] == [(process.pid, 1, 2)]
        assert alive(told[0]) is True

        process.send_signal(signal.SIGKILL)
        process.wait()
        lock.acquire(30, told.append)

        assert alive(told[0]) is False
        assert lock.holder()["pid"] == os.getpid()


def test_a_child_that_inherits_the_lock_does_not_keep_it(path: str) -> None:
    lock = Lock(path)
    assert lock.try_acquire()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        lock.close()
        with Lock(path) as other:
            assert other.try_acquire()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_record_that_cannot_be_read_names_nobody(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
    with Lock(path) as lock:
        assert lock.holder() == {}


def test_a_link_in_place_of_the_lock_is_refused(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "theirs", path)

    with pytest.raises(Exception, match=r"x\.lock"):
        Lock(path)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open any file")
def test_a_lock_that_may_not_be_opened_is_an_error(path: str) -> None:
    os.close(os.open(path, os.O_CREAT, 0o000))

    with pytest.raises(AccessDenied):
        Lock(path)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_where_there_are_no_locks_everybody_gets_one(path: str, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with Lock(path) as lock:
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert lock.try_acquire()


def test_an_identity_is_that_of_a_live_process_alone() -> None:
    mine = identity()

    assert alive(mine) is True
    assert alive({**mine, "started": "1"}) is False
    assert alive({**mine, "pid": 2**22 + 1}) is False
    assert alive({**mine, "machine": "another"}) is None
    assert alive({}) is None


def test_a_mark_in_a_name_tells_of_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "from uc_stage.locks import mark; print(mark(), flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = f"manifest.json.{process.stdout.readline().strip()}-0123456789ab.tmp"
        assert not has_ended(name)
        process.kill()
        process.wait()
    assert has_ended(name)
    assert not has_ended(mark())
    assert not has_ended("manifest.json.0123456789ab.tmp")
    machine, _, rest = mark().partition("-")
    assert not has_ended(f"{machine[::-1]}-{rest}0")

    monkeypatch.setattr(locks, "_machine", lambda: None)
    assert mark() == ""
    assert not has_ended(name)


@pytest.mark.parametrize("harm", ["hard link", "owner", "link"])
def test_a_lock_that_somebody_else_may_have_prepared_is_refused(path: str, tmp_path: Path, harm: str) -> None:
    (tmp_path / "theirs").write_bytes(b"precious")
    if harm == "hard link":
        os.link(tmp_path / "theirs", path)
    elif harm == "link":
        os.symlink(tmp_path / "theirs", path)
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    else:
        os.rename(tmp_path / "theirs", path)
        os.chown(path, 12345, 12345)

    with pytest.raises(StageError, match=r"x\.lock`"):
        Lock(path)
    with open(path, "rb") as file:
        assert file.read() == b"precious"


def test_a_free_lock_names_no_holder_any_more(path: str) -> None:
    with Lock(path) as lock:
        assert lock.try_acquire()
        assert read_holder(path)["pid"] == os.getpid()
    with Lock(path) as lock:
        assert lock.holder() == {}
    assert read_holder(path) == {}


def test_the_record_of_an_earlier_boot_counts_while_somebody_holds_its_lock(path: str) -> None:
    record = json.dumps({**identity(), "machine": "another boot", "pid": 1})
    with Lock(path) as lock:
        assert lock.try_acquire()
        with open(path, "w", encoding="utf-8") as file:
            file.write(record)
        assert read_holder(path)["pid"] == 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(record)
    assert read_holder(path) == {}


def test_a_process_is_known_by_its_name_within_this_boot_and_container(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = process_name(process.pid)
        assert runs(name) is True
        process.kill()
        process.wait()
    assert runs(name) is False
    assert process_name(process.pid) == ""
    assert runs("else") is False
    name, machine = process_name(os.getpid()), str(locks._machine())
    boot, _, space = machine.partition(":")
    monkeypatch.setattr(locks, "_machine", lambda: f"{boot}:another container")
    assert runs(name) is None
    monkeypatch.setattr(locks, "_machine", lambda: f"another boot:{space}")
    assert runs(name) is False
