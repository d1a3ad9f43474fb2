"""Who uses a copy: processes that hold it until they end, and those that have a file of it open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from uc_stage.locks import NO_LOCKS, process_name, runs
from uc_stage.manifest import COPY_PATH, FOLDER
from uc_stage.model import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Its time is the copy's last use, which a mount without access times keeps too; its kernel lock is shared by the users.
USED_PATH = f"{FOLDER}/used"
_HOLDERS = f"{FOLDER}/holders"

# A process in another container cannot be asked after: so long it counts as one that lives.
_UNSEEN_SECONDS = 24 * 3600

# To look at a lock takes a moment, and so does the rename of an eviction.
_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.01

# By path, the descriptor whose lock this process, and those it forks, hold to their end.
_held: dict[str, int] = {}


def caller() -> int | None:
    """The process that a command line was started for, and which will use the path that it prints.

    None where job control gave the command a process group of its own: a person typed it. A shell forks itself for
    `$(…)`: then the shell that wrote it is meant, not its short-lived child.
    """
    if os.getpgrp() == os.getpid():
        return None
    pid = os.getppid()
    with contextlib.suppress(OSError):
        if os.getsid(pid) != os.getsid(0):
            return None
        while (above := _parent(pid)) > 0 and _program(above) == _program(pid):
            pid = above
        return pid
    return None


def ancestors() -> frozenset[int]:
    """This process and all that it descends from."""
    found = {pid := os.getpid()}
    with contextlib.suppress(OSError):
        while (pid := _parent(pid)) > 0:
            found.add(pid)
    return frozenset(found)


def hold(path: str, pid: int | None, *, lasting: bool) -> bool:
    """Notes a use of a copy, in the name of a process that holds it until that ends; False where the copy went away.

    With `lasting`, this process also shares the copy's kernel lock to its end, and so do those that it forks.
    """
    used = os.path.join(path, USED_PATH)
    try:
        descriptor = os.open(used, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # A full disk, or one that takes no writes, evicts nothing: that must not keep anybody from the copy.
        return True
    try:
        if not _shared(descriptor, used):
            return False
        with contextlib.suppress(OSError):
            os.utime(descriptor)
            _mark(path, pid)
        # Where locks lie, the mark stands against an eviction at the same moment: that looks for it after its rename.
        if not _is_at(descriptor, used):
            return False
        if lasting:
            kept, descriptor = descriptor, _held.get(path, -1)
            _held[path] = kept
        return True
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def let_go(path: str) -> None:
    """Ends what `hold` holds in this process."""
    if (descriptor := _held.pop(path, -1)) >= 0:
        os.close(descriptor)


@contextlib.contextmanager
def alone(path: str) -> Iterator[bool]:
    """Whether nobody shares the kernel lock of a copy; then nobody can begin to, inside."""
    try:
        descriptor = os.open(os.path.join(path, USED_PATH), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # Nobody has used it yet.
        yield True
        return
    try:
        yield _locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def last_use(path: str) -> float:
    """When a copy was used last, in seconds since the epoch: by `cache`, or when it was made, or given up."""
    with contextlib.suppress(OSError):
        return os.stat(os.path.join(path, USED_PATH)).st_mtime
    found = []
    for each in (COPY_PATH, f"{FOLDER}/journal.jsonl"):
        with contextlib.suppress(OSError):
            found.append(os.stat(os.path.join(path, each)).st_mtime)
    return max(found, default=time.time())


def users(path: str, opened: Mapping[int, set[str]]) -> set[int]:
    """The processes that hold a copy, or have one of its files open, as `opened_below` tells."""
    below = os.path.join(os.path.realpath(path), "")
    return _marked(path) | {pid for pid, files in opened.items() if any(file.startswith(below) for file in files)}


def holders(path: str, opened: Mapping[int, set[str]]) -> tuple[Holder, ...]:
    """As `users`, with their names; one without a process id is known by its lock alone."""
    if found := users(path, opened):
        return tuple(Holder(pid, _command(pid)) for pid in sorted(found))
    with alone(path) as free:
        # A child, say, that outlives the process which it inherited the lock from.
        return () if free else (Holder(None, None),)


def named(pid: int | None) -> str:
    """A process, for a message: its number, and the program where that can be seen."""
    command = _command(pid) if pid else None
    return f"process {pid or '?'}" + (f" (`{command}`)" if command else "")


def opened_below(folder: str) -> dict[int, set[str]]:
    """The files below a folder that each process has open or mapped, as far as this user may see; uc-stage's own not.

    From proc_pid_fd(5) and proc_pid_maps(5).
    """
    below, own = os.path.join(os.path.realpath(folder), ""), f"/{FOLDER}/"
    found: dict[int, set[str]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            files = {path for path in _open(name) if path.startswith(below) and own not in path}
            if files:
                found[int(name)] = files
    return found


def _open(pid: str) -> Iterator[str]:
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            _, slash, path = line.rstrip("\n").partition("/")
            if slash:
                yield f"/{path}"


def _mark(path: str, pid: int | None) -> None:
    folder = os.path.join(path, _HOLDERS)
    # Not the folders above it: where the copy went away meanwhile, nothing may stand in its place.
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, mode=0o700)
    # Each use removes what earlier ones left, so that it cannot pile up.
    for name in os.listdir(folder):
        if not _lives(folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    if pid is not None and (name := process_name(pid)):
        mark = os.path.join(folder, name)
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.utime(mark)


def _marked(path: str) -> set[int]:
    folder = os.path.join(path, _HOLDERS)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return {int(name.split("-")[2]) for name in os.listdir(folder) if _lives(folder, name)}
    return set()


def _lives(folder: str, name: str) -> bool:
    known = runs(name)
    if known is not None:
        return known
    with contextlib.suppress(FileNotFoundError):
        return time.time() - os.stat(os.path.join(folder, name)).st_mtime < _UNSEEN_SECONDS
    return False


def _shared(descriptor: int, path: str) -> bool:
    """Shares a lock, past whoever only looks at who holds it; False where the file loses its path meanwhile."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _locked(descriptor, fcntl.LOCK_SH):
        if time.monotonic() >= deadline or not _is_at(descriptor, path):
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _is_at(descriptor: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def _parent(pid: int) -> int:
    """The process id of a process's parent, 0 for one that has none to be seen."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _program(pid: int) -> tuple[str, bytes]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return os.readlink(f"/proc/{pid}/exe"), file.read()


def _command(pid: int) -> str | None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return None
