"""What this machine is to a training: the cache folder and its disk, memory, mounts, and what the platform offers.

Each question is asked in a thread of its own for a bounded time, since any path may lie on a mount that hangs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from functools import partial
from typing import TYPE_CHECKING

from uc_stage import storage
from uc_stage.errors import StageError
from uc_stage.inspection import copies, machine, platform
from uc_stage.inspection.patience import Asked
from uc_stage.model import CopiesReport, NodeFact
from uc_stage.publish import locks_folder, refuse_unsafe_root
from uc_stage.ranks import ranks_here, read_world_size
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What is asked of this machine alone, and of a server; the sources of copies take up to three seconds.
_SECONDS = 1.5
_SERVER_SECONDS = 12.0
_COPIES_SECONDS = 5.0
# So long a mount may take to list its top: less than the line that tells of it.
_MOUNT_SECONDS = 1.0
# torch passes each batch through here: 64 MB, a container's default, is what its workers die on.
_LEAST_SHARED = 512 * 1000**2
_LEAST_MEMORY = 1000**3
_LEAST_FILES = 1024
# What containers and desktops mount for themselves.
_OTHERS = ("/proc/", "/sys/", "/run/", "/var/lib/", "/dev/")


def run(
    cache_dir: str,
    remote: str | None,
    environment: Mapping[str, str],
    *,
    seconds: float = _SECONDS,
    volumes: str = "/Volumes",
    shared: str = "/dev/shm",  # noqa: S108 - the kernel's name for it, of which nothing is opened
) -> CopiesReport:
    """Lists the copies of this machine and tells what it can do, in a second or two, and a few more with a server."""
    root = os.path.abspath(os.path.expanduser(cache_dir))
    questions: dict[str, Callable[[], NodeFact]] = {
        "cache_folder": partial(cache_folder, root),
        "disk": partial(disk, root),
        "locks": partial(locks, root),
        "shared_memory": partial(shared_memory, shared),
        "memory": memory,
        "cpus": partial(cpus, environment),
        "open_files": open_files,
        "volumes": partial(volume, volumes, environment),
        "mounts": partial(mounts, volumes),
        "engine_local": platform.local_engine,
        "runtime": partial(platform.runtime, environment),
        "packages": platform.packages,
        "credentials": partial(platform.credentials, environment),
        "huggingface": partial(platform.huggingface, environment),
    }
    listing = Asked({"": partial(_listed, root)})
    server = Asked({"engine_spark": partial(platform.spark_engine, remote)})
    asked = Asked({name: partial(_told, name, ask) for name, ask in questions.items()})
    found = asked.answers(seconds) | server.answers(_SERVER_SECONDS if remote else seconds)
    listed = listing.answers(_COPIES_SECONDS).get("") or CopiesReport(root, (), 0, 0, in_memory=False)
    names = list(questions)
    names.insert(names.index("runtime"), "engine_spark")
    told = tuple(found.get(name) or _silent(name) for name in names)
    return CopiesReport(root, listed.copies, listed.bytes, listed.bytes_free, listed.in_memory, told)


def _listed(root: str) -> CopiesReport | None:
    try:
        return copies.run(root)
    except StageError:  # the line about the cache folder says why
        return None


def _told(name: str, ask: Callable[[], NodeFact]) -> NodeFact:
    try:
        return ask()
    except StageError as error:
        return NodeFact(name, "unknown", f"cannot be told: {error.message}")
    except OSError as error:
        return NodeFact(name, "unknown", f"cannot be told: {error.strerror or error}")


def _silent(name: str) -> NodeFact:
    hint = "look at what is mounted there (`mount`), and mount it again"
    if name == "engine_spark":
        hint = "check that the server is not overloaded, and try again"
    return NodeFact(name, "bad", "did not answer in time", hint)


def cache_folder(root: str) -> NodeFact:
    """Whether copies can be made there, by this user alone."""
    facts = {"path": root, "exists": os.path.lexists(root)}
    own = "choose a folder of your own with `--cache-dir`"
    try:
        refuse_unsafe_root(root)
    except StageError as error:
        return NodeFact("cache_folder", "bad", error.message, error.hint or own, facts)
    above = _existing(root)
    writable = os.access(above, os.W_OK | os.X_OK)
    if not facts["exists"]:
        facts["writable"] = writable
        if writable:
            return NodeFact("cache_folder", "ok", f"{root}: not there yet, the first copy makes it", facts=facts)
        return NodeFact("cache_folder", "bad", f"{root}: cannot be made below `{above}`", own, facts)
    found = os.stat(root)
    facts |= {"owner": found.st_uid, "mode": f"{found.st_mode & 0o7777:04o}", "writable": writable}
    text = f"{root}: of user {found.st_uid}, mode {facts['mode']}"
    if not writable:
        return NodeFact("cache_folder", "bad", f"{text}, and cannot be written", f"chmod u+rwx {root}, or {own}", facts)
    return NodeFact("cache_folder", "ok", text, facts=facts)


def disk(root: str) -> NodeFact:
    """The room and the kind of the cache folder's disk."""
    found = machine.room(_existing(root))
    facts = {"kind": found.kind, "size": found.size, "free": found.free, "files_left": found.files_left}
    text = f"{format_size(found.free)} free of {format_size(found.size)}, {found.kind or 'unknown kind'}"
    if machine.is_remote(found.kind):
        hint = "choose a folder on a local disk with `--cache-dir`, such as /tmp/uc-stage or /local_disk0/uc-stage"
        return NodeFact("disk", "bad", f"{text}: no disk of this machine", hint, facts)
    if found.free < machine.LEAST_FREE or found.files_left == 0:
        why = "nearly full" if found.files_left else "no inode is left"
        hint = "uc-stage prune --older-than 1d, or another disk with `--cache-dir`"
        return NodeFact("disk", "bad", f"{text}: {why}", hint, facts)
    return NodeFact("disk", "ok", text, facts=facts)


def locks(root: str) -> NodeFact:
    """Whether a kernel lock on that disk keeps others out: tried with a file, which is removed at once."""
    # Nothing is written into what another user may have prepared.
    refuse_unsafe_root(root)
    above = _existing(locks_folder(root))
    if not os.access(above, os.W_OK | os.X_OK):
        hint = "choose a folder of your own with `--cache-dir`"
        return NodeFact("locks", "unknown", f"`{above}` cannot be written, so none was tried", hint)
    path = os.path.join(above, f".uc-stage-lock-{secrets.token_hex(6)}")
    text = "two at once got the same lock"
    try:
        with _opened(path, os.O_CREAT | os.O_EXCL) as mine:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # As another process would: a lock belongs to an open file.
            with _opened(path) as other:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return NodeFact("locks", "ok", "a lock held here keeps others out", facts={"work": True})
    except OSError as error:
        text = f"no lock can be taken there: {error.strerror}"
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    hint = "choose a folder on a local disk with `--cache-dir`: without locks, each process of the node copies"
    return NodeFact("locks", "bad", text, hint, {"work": False})


@contextlib.contextmanager
def _opened(path: str, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def shared_memory(path: str) -> NodeFact:
    """The room through which a DataLoader's workers pass their batches."""
    try:
        found = machine.room(path)
    except FileNotFoundError:
        hint = "mount a tmpfs there, or read with `num_workers=0`"
        return NodeFact("shared_memory", "bad", f"`{path}` is not there", hint, {"path": path})
    facts = {"path": path, "size": found.size, "free": found.free}
    text = f"{path}: {format_size(found.free)} free of {format_size(found.size)}"
    if min(found.size, found.free) < _LEAST_SHARED:
        hint = "start the container with `--shm-size=8g`, or read with `num_workers=0`"
        return NodeFact("shared_memory", "bad", f"{text}: workers of a DataLoader die without it", hint, facts)
    return NodeFact("shared_memory", "ok", text, facts=facts)


def memory() -> NodeFact:
    """The memory that this process may use."""
    found = storage.memory()
    facts = {"machine": found.machine, "limit": found.limit, "available": found.available}
    whose = "" if found.limit is None or found.limit > found.machine else " that its control group allows"
    text = f"{format_size(found.available)} available of {format_size(found.total)}{whose}"
    if found.available < _LEAST_MEMORY:
        hint = "end what else runs here, or give the container more memory"
        return NodeFact("memory", "bad", text, hint, facts)
    return NodeFact("memory", "ok", text, facts=facts)


def cpus(environment: Mapping[str, str]) -> NodeFact:
    """The processors that this process may use, also against the ranks of this node."""
    found = storage.cpus()
    facts = {"machine": found.machine, "allowed": found.allowed, "limit": found.limit, "usable": found.usable}
    text = f"{found.usable:,} to use"
    if found.usable < found.machine:
        text += f" of {found.machine:,}" + (f", control group's limit {found.limit:g}" if found.limit else "")
    ranks = ranks_here(read_world_size(environment) or 1, environment)
    if ranks > found.usable:
        hint = "give the container more processors, or start fewer ranks"
        return NodeFact("cpus", "bad", f"{text}, for {ranks:,} ranks", hint, facts | {"ranks": ranks})
    return NodeFact("cpus", "ok", text, facts=facts)


def open_files() -> NodeFact:
    """How many files a process may have open."""
    soft, hard = machine.open_files()
    words = ["no limit" if limit < 0 else f"{limit:,}" for limit in (soft, hard)]
    text, facts = f"{words[0]}, which may be raised to {words[1]}", {"soft": soft, "hard": hard}
    if 0 <= soft < _LEAST_FILES:
        most = 65_536 if hard < 0 else min(hard, 65_536)
        return NodeFact("open_files", "bad", text, f"ulimit -n {most}", facts)
    return NodeFact("open_files", "ok", text if soft != hard else words[0], facts=facts)


def volume(path: str, environment: Mapping[str, str]) -> NodeFact:
    """Whether Unity Catalog's volumes are mounted, and can be listed."""
    facts = {"path": path, "there": os.path.isdir(path)}
    if not facts["there"]:
        text = f"`{path}` is not there"
        if environment.get(platform.RUNTIME):
            hint = "use compute with access to Unity Catalog; in an init script, try again until it is mounted"
            return NodeFact("volumes", "bad", text, hint, facts)
        return NodeFact("volumes", "absent", text, facts=facts)
    try:
        with os.scandir(path) as listed:
            names = sum(1 for _ in listed)
    except OSError as error:
        hint = "check the grants (READ VOLUME, USE CATALOG), and that the mount's process still runs"
        return NodeFact("volumes", "bad", f"`{path}` cannot be listed: {error.strerror}", hint, facts)
    kind = machine.room(path).kind
    facts |= {"kind": kind, "entries": names}
    held = f"{names:,} {'entry' if names == 1 else 'entries'}"
    return NodeFact("volumes", "ok", f"{path}: {kind or 'unknown kind'}, {held}", facts=facts)


def mounts(but: str) -> NodeFact:
    """The other mounts that are not of this machine, each asked whether it answers."""
    found = [mount for mount in machine.mounts() if mount.path != but and not mount.path.startswith(_OTHERS)]
    facts = {"mounts": [{"path": mount.path, "kind": mount.kind} for mount in found]}
    if not found:
        return NodeFact("mounts", "absent", "no mount of another machine or of an object store", facts=facts)
    answers = Asked({mount.path: partial(_lists, mount.path) for mount in found}).answers(_MOUNT_SECONDS)
    wrong = {mount.path: answers.get(mount.path, "it hangs") for mount in found if answers.get(mount.path, "-")}
    text = ", ".join(f"{mount.path} ({mount.kind})" for mount in found)
    if wrong:
        path, why = next(iter(wrong.items()))
        more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        hint = f"mount it again: umount -l {path}, and as it was mounted"
        return NodeFact("mounts", "bad", f"`{path}` does not answer ({why}){more}; {text}", hint, facts)
    return NodeFact("mounts", "ok", text, facts=facts)


def _lists(path: str) -> str:
    """Why the top of a mount cannot be listed; empty where it can."""
    try:
        with os.scandir(path) as listed:
            next(listed, None)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
