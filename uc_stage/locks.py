"""Who works on what on this machine, and kernel locks that die with their holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from uc_stage.errors import AccessDenied, Busy
from uc_stage.storage import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_POLL_SECONDS = 0.1
_SAY_SECONDS = 5.0
_TELL_SECONDS = 0.1
# So long a record is replaced by one write, and a reader never sees the end of a longer one before it.
_RECORD_BYTES = 1024
# What a file system says that has no locks.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_MARK = re.compile(r"([0-9a-f]{12})-(\d+)-(\d+)")
_NAME = re.compile(r"([0-9a-f]{12})-([0-9a-f]{12})-(\d+)-(\d+)")


def identity() -> dict[str, Any]:
    """Who this process is, in terms that another one can check with `alive`."""
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}


def alive(record: dict[str, Any]) -> bool | None:
    """Whether the process that `identity` described still runs; None where this machine cannot tell."""
    if record.get("machine") is None or record.get("machine") != _machine():
        return None
    return record.get("started") is not None and _started(int(record["pid"])) == record["started"]


def mark() -> str:
    """Who this process is, as a part of a file's name; empty where nothing could be told from that later."""
    machine, started = _machine(), _started(os.getpid())
    return f"{_digest(machine)}-{os.getpid()}-{started}" if machine and started else ""


def has_ended(text: str) -> bool:
    """Whether a name holds the `mark` of a process that has ended, as far as this machine can tell."""
    found, machine = _MARK.search(text), _machine()
    if not found or not machine or found[1] != _digest(machine):
        return False
    return _started(int(found[2])) != found[3]


def process_name(pid: int) -> str:
    """A process as a file's name, for `runs`; empty where nothing could be told from that later."""
    machine, started = _machine(), _started(pid)
    if not machine or not started:
        return ""
    boot, _, space = machine.partition(":")
    return f"{_digest(boot)}-{_digest(space)}-{pid}-{started}"


def runs(name: str) -> bool | None:
    """Whether the process that `process_name` named still runs; None for one of another container of this machine."""
    found, machine = _NAME.fullmatch(name), _machine()
    if not found or not machine:
        return False
    boot, _, space = machine.partition(":")
    if found[1] != _digest(boot):
        return False
    return _started(int(found[3])) == found[4] if found[2] == _digest(space) else None


def _digest(machine: str) -> str:
    return hashlib.sha256(machine.encode()).hexdigest()[:12]


def _machine() -> str | None:
    """This boot of this machine and its process namespace: where both agree, a process id means the same process."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot (field 22 of proc(5)'s stat); None where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Lock:
    """An exclusive kernel lock on a file of a local disk: it dies with its holder, whatever kills that.

    The file's content says who holds it and how far the work is; the file itself stays. On a file system that has no
    locks, everybody gets it: what it guards has to be right without it, and may only be done twice.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._mine, self._told = False, 0.0
        self._state: dict[str, Any] = {}
        with translated(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
            found = os.fstat(self._descriptor)
        if found.st_nlink > 1 or found.st_uid != os.geteuid():
            # What a holder writes of itself would go into a file that lies elsewhere, or is another user's.
            os.close(self._descriptor)
            why = "has another name elsewhere" if found.st_nlink > 1 else f"belongs to user {found.st_uid}"
            raise AccessDenied(f"the lock `{path}` {why}", hint="choose a folder of your own with `--cache-dir`")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def try_acquire(self) -> bool:
        """Takes the lock where nobody has it, and says whether it did."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        self._mine, self._told, self._state = True, 0.0, identity()
        self.tell(at_once=True)
        return True

    def acquire(self, timeout: float | None, waiting: Callable[[dict[str, Any]], None]) -> None:
        """Waits for the lock; `waiting` is given the holder's record at once and then every few seconds.

        Raises:
            Busy: the lock was not free within `timeout` seconds.
        """
        began = time.monotonic()
        said = began - _SAY_SECONDS
        while not self.try_acquire():
            now = time.monotonic()
            if timeout is not None and now - began >= timeout:
                raise Busy(
                    f"{describe(self.holder())} still works on it after {timeout:g} s",
                    hint="wait longer with `--timeout`, or look at what that process does",
                )
            # One that has just got it may not have written yet who it is.
            if now - said >= _SAY_SECONDS and ((holder := self.holder()) or now - began >= _SAY_SECONDS / 5):
                said = now
                waiting(holder)
            time.sleep(_POLL_SECONDS)

    def holder(self) -> dict[str, Any]:
        """What the holder wrote of itself: `identity`, and what it told; empty where nobody holds it."""
        return _read(self._descriptor)

    def tell(self, *, at_once: bool = False, **state: Any) -> None:
        """Lets others know how far the holder is, beside what it told before; cheap to over-call, unless `at_once`."""
        self._state.update(state)
        now = time.monotonic()
        if now - self._told < _TELL_SECONDS and not at_once:
            return
        self._told = now
        # A full disk must not end the work for the sake of a message.
        with contextlib.suppress(OSError):
            record = json.dumps(self._state).encode()
            os.pwrite(self._descriptor, record.ljust(_RECORD_BYTES), 0)

    def reserve(self, size: int, device: int, done: int = 0) -> None:
        """Lets others know at once that the holder will write `size` bytes on a device beside those that are `done`."""
        self.tell(at_once=True, reserved=size + done, device=device, done=done)

    def close(self) -> None:
        """Lets go of the lock, also where a child process inherited the descriptor."""
        with contextlib.suppress(OSError):
            if self._mine:
                os.ftruncate(self._descriptor, 0)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def reserved(folder: str, device: int, but: str | None = None) -> int:
    """The bytes that the holders of the locks in a folder, but one, have yet to write on a device."""
    total = 0
    try:
        with os.scandir(folder) as found:
            paths = [item.path for item in found if item.path != but]
    except FileNotFoundError:
        return 0
    for path in paths:
        record = read_holder(path)
        size, done = record.get("reserved"), record.get("done")
        if isinstance(size, int) and isinstance(done, int) and record.get("device") == device:
            total += max(0, size - done)
    return total


def read_holder(path: str) -> dict[str, Any]:
    """What the holder of a lock wrote of itself, where it lives as far as this machine can tell; empty for nobody."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return {}
    try:
        record = _read(descriptor)
        known = alive(record) if record else False
        if known is None:
            # Of another container, or of an earlier boot: then the lock itself tells.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                known = False
        return {} if known is False else record
    finally:
        os.close(descriptor)


def describe(record: dict[str, Any]) -> str:
    """The holder of a lock, for a message."""
    rank = f" (rank {record['rank']})" if isinstance(record.get("rank"), int) else ""
    return f"process {record.get('pid', '?')}{rank} on `{record.get('host', '?')}`"


def _read(descriptor: int) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(os.pread(descriptor, _RECORD_BYTES, 0))
        if isinstance(record, dict):
            return record
    return {}
