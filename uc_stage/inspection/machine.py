"""What this process may use of the machine beside processors and memory: file systems, open files, and mounts."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from dataclasses import dataclass

from uc_stage.storage import kind_of

# Kinds of file systems that another machine, or a process, answers for; `fuse.` begins others.
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "afs", "fuse"}
# What containers lay their own files out with.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.lxcfs"}
# A disk with fewer bytes free takes no dataset.
LEAST_FREE = 10**9


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
