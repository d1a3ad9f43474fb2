"""What room a local path has, on a disk or in memory."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass

from uc_stage.storage.folder import translated

_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_CGROUP = "/sys/fs/cgroup"
_MEMINFO = "/proc/meminfo"


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
        available = available_memory()
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


def available_memory() -> int:
    """The bytes that can be had without swapping, also below the limits of this process's control groups.

    `sys.maxsize` where nothing tells: proc_meminfo(5), cgroups(7).
    """
    available = sys.maxsize
    with contextlib.suppress(OSError), open(_MEMINFO, encoding="ascii") as lines:
        available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), available)
    return min([available, *(room for group in _groups() if (room := _room_in(group)) is not None)])


def _groups() -> list[str]:
    """The control group of this process and those around it, by cgroups(7); in a container the root is its own."""
    below = ""
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="replace") as lines:
        below = next((line.rstrip("\n")[3:] for line in lines if line.startswith("0::")), "")
    parts = [part for part in below.split("/") if part not in ("", "..")]
    return [os.path.join(_CGROUP, *parts[:depth]) for depth in range(len(parts) + 1)]


def _room_in(group: str) -> int | None:
    """The bytes that a control group leaves; None where it has no limit."""
    with contextlib.suppress(OSError, ValueError):
        # Page cache counts against a group's limit, and gives way: https://docs.kernel.org/admin-guide/cgroup-v2.html
        limit, used = (int(_read(group, name)) for name in ("memory.max", "memory.current"))
        stats = dict(line.split() for line in _read(group, "memory.stat").splitlines())
        return max(0, limit - used + int(stats.get("inactive_file", 0)))
    with contextlib.suppress(OSError, ValueError):
        # Version 1: https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
        limit, used = (int(_read(group, f"memory/memory.{name}_in_bytes")) for name in ("limit", "usage"))
        stats = dict(line.split() for line in _read(group, "memory/memory.stat").splitlines())
        return max(0, limit - used + int(stats.get("total_inactive_file", 0)))
    return None


def _read(group: str, name: str) -> str:
    with open(os.path.join(group, name), encoding="ascii") as file:
        return file.read().strip()
