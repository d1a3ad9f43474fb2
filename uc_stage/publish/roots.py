"""The cache folder of a node: that it is this user's alone, the copies in it, and how one leaves it."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import os
import secrets
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import AccessDenied, NotFound, StageError
from uc_stage.holders import alone, holders, last_use, named, opened_below, users
from uc_stage.locks import Lock, describe, read_holder
from uc_stage.manifest import COPY_PATH
from uc_stage.model import CachedCopy, Holder
from uc_stage.publish.copies import (
    finish_removal,
    foreign_file,
    is_marked,
    read_copy,
    refuse_unmarked,
    tag_cache,
)
from uc_stage.publish.exports import read_manifest
from uc_stage.storage import LocalFolder, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COPIES, PARTIAL, _LOCKS, _TRASH = "copies", "partial", "locks", "trash"
# What a run renames that it is about to replace, or that it drops, has this in its name.
_OLD = ".old-"


@dataclass(frozen=True, slots=True)
class Stays:
    """Why a copy is not removed: the `reason`, and whether a live process is it, whose end would mend that."""

    reason: str
    busy: bool = True


def lock_path(root: str, path: str) -> str:
    """The file whose lock keeps apart the processes that make, or remove, the copy at `path`."""
    return f"{root}/{_LOCKS}/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.lock"


def space_lock_path(root: str) -> str:
    """The file whose lock keeps apart the processes that count the room there is, and take some."""
    return f"{root}/{_LOCKS}/space.lock"


def locks_folder(root: str) -> str:
    """The folder of all locks of a cache folder."""
    return f"{root}/{_LOCKS}"


def refuse_unsafe_root(root: str) -> None:
    """Refuses a cache folder that somebody else prepared: under `/tmp` anybody could plant files that look cached.

    Raises:
        AccessDenied: it, or a folder of uc-stage's in it, is a link, another user's, or one that others may write to.
    """
    for path in (root, *(f"{root}/{name}" for name in (_COPIES, PARTIAL, _LOCKS, _TRASH))):
        with translated(path):
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
        if stat.S_ISLNK(found.st_mode):
            why = "is a link"
        elif not stat.S_ISDIR(found.st_mode):
            why = "is not a folder"
        elif found.st_uid != os.geteuid():
            why = f"belongs to user {found.st_uid}, and this process runs as {os.geteuid()}"
        elif found.st_mode & 0o022:
            why = "can be written by other users"
        else:
            continue
        raise AccessDenied(f"the cache folder `{path}` {why}", hint="choose a folder of your own with `--cache-dir`")


def is_root(path: str) -> bool:
    """Whether a local folder is a cache folder, told by the folders that `prepare_root` makes in one."""
    return all(os.path.isdir(f"{path}/{name}") for name in (_COPIES, PARTIAL, _LOCKS, _TRASH))


def prepare_root(root: str) -> None:
    """Makes the cache folder and the folders in it.

    Raises:
        AccessDenied: as `refuse_unsafe_root`.
    """
    with translated(root):
        os.makedirs(root, mode=0o700, exist_ok=True)
        refuse_unsafe_root(root)
        if not os.listdir(root):
            # A folder that was there before can hold what somebody wants in a backup.
            tag_cache(root)
        for name in (_COPIES, PARTIAL, _LOCKS, _TRASH):
            os.makedirs(f"{root}/{name}", mode=0o700, exist_ok=True)


def list_copies(root: str) -> list[CachedCopy]:
    """The copies in a cache folder and what unfinished runs left of some, the least recently used first."""
    opened = opened_below(root)
    found = []
    for folder in (_COPIES, PARTIAL):
        for path in _marked_in(f"{root}/{folder}"):
            with contextlib.suppress(NotFound, FileNotFoundError, NotADirectoryError):
                found.append(look_at_copy(root, path, opened))
    return sorted(found, key=lambda copy: -copy.idle_seconds)


def look_at_copy(root: str, path: str, opened: Mapping[int, set[str]] | None = None) -> CachedCopy:
    """What one marked folder is and holds, and who uses it; `root` has its lock.

    Raises:
        NotFound: it went away.
    """
    opened = opened_below(path) if opened is None else opened
    partial = os.path.dirname(path) == f"{root}/{PARTIAL}"
    using = holders(path, opened)
    if (record := read_holder(lock_path(root, _final(root, path)))) and record.get("pid") not in {h.pid for h in using}:
        using = (Holder(record.get("pid"), "uc-stage"), *using)
    used = last_use(path)
    known = manifest = None
    # A damaged record tells nothing, and the folder takes its room all the same.
    with contextlib.suppress(StageError):
        known = read_copy(path)
        manifest = read_manifest(LocalFolder(path))
    whole = known is not None and not partial
    sizes = [file.bytes for file in known.files] if known and whole else list(_sizes(path))
    return CachedCopy(
        path=path,
        kind="partial" if partial else "copy",
        source=known.source if known else None,
        generation=known.generation or None if known else None,
        version=manifest.source.version if manifest else None,
        files=len(sizes),
        bytes=sum(sizes),
        created_at=known.created_at if known else None,
        used_at=dt.datetime.fromtimestamp(used, dt.timezone.utc).isoformat(timespec="seconds"),
        idle_seconds=max(0.0, time.time() - used),
        holders=using,
        variant=known.variant if known else "",
        rows=manifest.rows if manifest else None,
    )


def evict(root: str, path: str, *, forgiven: frozenset[int] = frozenset()) -> Stays | None:
    """Removes a copy, or what an unfinished run left of one, or says why it stays.

    It stays where a process makes or uses it, or where a user put a file of theirs in it; what processes in `forgiven`
    hold does not count, but the files that they have open do. Whatever ends this, the copy's path is absent or whole:
    it loses its name first, by one rename, and what a killed run leaves then `empty_trash` removes.

    Raises:
        InvalidRequest: it carries no marker of uc-stage.
    """
    with Lock(lock_path(root, _final(root, path))) as lock:
        if not lock.try_acquire():
            return Stays(f"{describe(lock.holder())} works on it")
        if not os.path.lexists(path):
            return None
        refuse_unmarked(path)
        if os.path.dirname(path) != f"{root}/{PARTIAL}" and (why := _foreign(path)):
            return why
        with alone(path) as free:
            if why := _used(path, forgiven):
                return why
            if not free:
                return Stays("a process holds it")
            aside = f"{_trash_of(root, path)}-{secrets.token_hex(3)}"
            with translated(path):
                try:
                    os.rename(path, aside)
                except FileNotFoundError:
                    return None
            if (why := _used(aside, forgiven)) and _renamed_back(aside, path):
                # Where locks lie, somebody can begin between the look and the rename.
                return why
    finish_removal(aside)
    return None


def empty_trash(root: str, *, beside: str | None = None) -> None:
    """Finishes what a killed run began to remove: in the cache folder, and `beside` a copy at a path of its own."""
    try:
        doomed = [f"{root}/{_TRASH}/{name}" for name in os.listdir(f"{root}/{_TRASH}")]
    except FileNotFoundError:
        doomed = []
    with contextlib.suppress(FileNotFoundError):
        asides = [f"{root}/{PARTIAL}/{name}" for name in os.listdir(f"{root}/{PARTIAL}") if _OLD in name]
        # Those that still have their marker are listed, and evicted.
        doomed += [path for path in asides if not is_marked(path)]
    doomed += trash(root, beside) if beside is not None else []
    for path in doomed:
        finish_removal(path)


def trash(root: str, path: str) -> list[str]:
    """What killed runs left that had begun to remove the copy at a path."""
    folder, prefix = os.path.split(_trash_of(root, path))
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(f"{prefix}-")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def settled(root: str, path: str) -> str:
    """A path as uc-stage spells it, where it lies in the cache folder by whatever way; else an absolute one."""
    above, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    for folder in (f"{root}/{_COPIES}", f"{root}/{PARTIAL}"):
        if os.path.realpath(above) == os.path.realpath(folder):
            return f"{folder}/{name}"
    return os.path.join(above, name)


def _renamed_back(aside: str, path: str) -> bool:
    """Gives a copy its name again, unless another process has made it anew meanwhile."""
    with translated(path):
        try:
            os.rename(aside, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    return True


def _used(path: str, forgiven: frozenset[int]) -> Stays | None:
    opened = opened_below(path)
    using = set(opened) | (users(path, {}) - forgiven)
    return Stays(f"{named(min(using))} {'reads' if min(using) in opened else 'holds'} it") if using else None


def _foreign(path: str) -> Stays | None:
    try:
        record = read_copy(path)
    except StageError as error:
        return Stays(f"its record is damaged: {error.message}", busy=False)
    found = foreign_file(path, {file.path for file in record.files} if record else ())
    return Stays(f"it holds `{found}`, which uc-stage did not write", busy=False) if found else None


def _trash_of(root: str, path: str) -> str:
    above, name = os.path.split(path)
    if above in (f"{root}/{_COPIES}", f"{root}/{PARTIAL}"):
        return f"{root}/{_TRASH}/{name}"
    return os.path.join(above, f".{name}.uc-stage-pruned")


def _final(root: str, path: str) -> str:
    """The path whose lock stands for a folder: a copy's own, or that which a partial one will have."""
    above, name = os.path.split(path)
    return f"{root}/{_COPIES}/{name.partition(_OLD)[0]}" if above == f"{root}/{PARTIAL}" else path


def _marked_in(folder: str) -> list[str]:
    with translated(folder):
        try:
            paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        except FileNotFoundError:
            return []
    return [path for path in paths if not os.path.islink(path) and os.path.lexists(os.path.join(path, COPY_PATH))]


def _sizes(path: str) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name)).st_size
