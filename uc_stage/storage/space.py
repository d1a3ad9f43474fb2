"""What room a local path has, on a disk or in memory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from uc_stage.storage.folder import translated
from uc_stage.storage.limits import memory

_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


@dataclass(frozen=True, slots=True)
class Space:
    """The room on the file system where a path is or will be.

    Attributes:
        free: the bytes that this user may still write; in memory, no more than what is available of that.
        block: the bytes that each file's size is rounded up to.
        device: which file system it is, as `st_dev` tells.
        in_memory: whether files there take memory rather than disk.
    """

    free: int
    block: int
    device: int
    in_memory: bool


def space_at(path: str) -> Space:
    """Asks for the room where `path` is or will be.

    Raises:
        AccessDenied, Unavailable: as the file system says.
    """
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    with translated(path):
        found, device = os.statvfs(path), os.stat(path).st_dev
    free = found.f_bavail * found.f_frsize
    kind = kind_of(device)
    if kind in _MEMORY:
        available = memory().available
        # A ramfs has no limit of its own, and tells of no room at all.
        free = available if kind == "ramfs" else min(free, available)
    return Space(free, found.f_frsize or 1, device, kind in _MEMORY)


def kind_of(device: int) -> str:
    """The type of a mounted file system (proc_pid_mountinfo(5))."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == number:
                return rest.split()[0]
    return ""
