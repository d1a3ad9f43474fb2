"""How what was written is made to outlast a loss of power."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from uc_stage.crew import each
from uc_stage.storage.space import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# File systems that write down all of theirs on one call, and tell of what they could not.
_SYNCED_AS_A_WHOLE = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"}
# Before, that call told of no bytes that could not be written (syncfs(2)).
_TELLS_SINCE = (5, 8)
_SYNCERS = 32


def sync(descriptor: int) -> None:
    """Syncs a descriptor; a mount that has no fsync (a volume may not) makes bytes durable when they are closed."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    _sync_at(path, os.O_DIRECTORY)


def sync_all(root: str, files: Sequence[str]) -> None:
    """Makes files below a folder durable, and the names that lead to them: by one call where that can be relied on.

    One call writes what others have not written yet, too. Still it is far quicker: a disk has to be flushed for each
    file that is synced by itself.
    """
    if not _sync_whole(root):
        each(lambda path: _sync_at(os.path.join(root, path)), files, _SYNCERS)
        each(lambda path: sync_folder(os.path.join(root, path)), sorted(_folders(files)), _SYNCERS)


def _sync_whole(root: str) -> bool:
    """Syncs the file system of a folder as a whole; says False where that is not enough."""
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release < _TELLS_SINCE or kind_of(os.stat(root).st_dev) not in _SYNCED_AS_A_WHOLE:
        return False
    import ctypes

    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), root)
    except AttributeError:
        # This C library has no such function.
        return False
    finally:
        os.close(descriptor)
    return True


def _sync_at(path: str, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _folders(paths: Iterable[str]) -> set[str]:
    """All folders above some relative paths, the root `""` among them."""
    found = {""}
    for path in paths:
        while (path := path.rpartition("/")[0]) not in found:
            found.add(path)
    return found
