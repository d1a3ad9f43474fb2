"""What this process may use of the machine: processors, memory, shared memory, open files, and what is mounted.

In a container, its control group says less than the machine has: of version 1
(https://docs.kernel.org/admin-guide/cgroup-v1/memory.html) and 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.storage import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# What version 1 tells where there is no limit, and more.
_NO_LIMIT = 1 << 60
# Kinds of file systems that another machine, or a process, answers for; `fuse.` begins others.
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "afs", "fuse"}
# What containers lay their own files out with.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.lxcfs"}


@dataclass(frozen=True, slots=True)
class Cpus:
    """The processors of the machine, and how many of them this process may use; `limit` is its control group's."""

    machine: int
    allowed: int
    limit: float | None

    @property
    def usable(self) -> int:
        """The whole processors that it can keep busy, 1 at least."""
        return max(1, self.allowed if self.limit is None else min(self.allowed, int(self.limit)))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: of the machine, the limit of this process's control group, and what is available below both."""

    machine: int
    limit: int | None
    available: int

    @property
    def total(self) -> int:
        """What there is for this process and the others of its group."""
        return self.machine if self.limit is None else min(self.machine, self.limit)


@dataclass(frozen=True, slots=True)
class Room:
    """A file system's size and free bytes, and the kind that it is of."""

    size: int
    free: int
    kind: str
    files_left: int | None


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted that is not of this machine."""

    path: str
    kind: str


def cpus(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> Cpus:
    """The processors."""
    limits = []
    for folder in _folders("cpu", proc, groups):
        with contextlib.suppress(OSError, ValueError):
            quota, period = _read(f"{folder}/cpu.max").split()
            limits.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota_us, period_us = (int(_read(f"{folder}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
            if quota_us > 0:
                limits.append(quota_us / period_us)
    return Cpus(os.cpu_count() or 1, len(os.sched_getaffinity(0)), min(limits, default=None))


def memory(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> Memory:
    """The memory."""
    told = {}
    with contextlib.suppress(OSError), open(f"{proc}/meminfo", encoding="ascii") as lines:
        told = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    machine, available, lowest = told.get("MemTotal", 0), told.get("MemAvailable", 0), None
    for folder in _folders("memory", proc, groups):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):
                limit = int(_read(f"{folder}/{limit_name}"))
                if limit >= _NO_LIMIT:
                    continue
                lowest = limit if lowest is None else min(lowest, limit)
                stats = dict(line.split() for line in _read(f"{folder}/memory.stat").splitlines())
                # Page cache counts against the limit, and gives way.
                cache = int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))
                available = min(available, max(0, limit - int(_read(f"{folder}/{used_name}")) + cache))
    return Memory(machine, lowest, available)


def open_files() -> tuple[int, int]:
    """How many files this process may have open, and how far it may raise that itself; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def room(path: str) -> Room:
    """The file system of a path.

    Raises:
        OSError: it is not there, or does not answer rightly.
    """
    found = os.statvfs(path)
    left = found.f_favail if found.f_files else None
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, kind_of(os.stat(path).st_dev), left)


def is_remote(kind: str) -> bool:
    """Whether a kind of file system is a mount of another machine's, or of an object store."""
    return kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def mounts(proc: str = "/proc") -> list[Mount]:
    """The mounts that are not of this machine (proc_pid_mountinfo(5)), in the order of their paths."""
    found = {}
    with (
        contextlib.suppress(OSError),
        open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines,
    ):
        for line in lines:
            fields, _, rest = line.partition(" - ")
            # Blanks and the like are octal there.
            path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
            found[path] = rest.split()[0]
    return [Mount(path, kind) for path, kind in sorted(found.items()) if is_remote(kind)]


def _folders(controller: str, proc: str, groups: str) -> Iterator[str]:
    """The folders of this process's control group and those above it, which limit it too, with a controller's files."""
    lines = []
    with contextlib.suppress(OSError):
        lines = _read(f"{proc}/self/cgroup").splitlines()
    for line in lines:
        number, names, path = line.split(":", 2)
        if number != "0" and controller not in names.split(","):
            continue
        base = groups if number == "0" else f"{groups}/{names}"
        base = base if os.path.isdir(base) else f"{groups}/{controller}"
        # A container may see its group as the root, under the path that the machine knows it by.
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield "/".join([base, *parts[:count]])


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
