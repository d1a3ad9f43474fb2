"""What a process and those that it started take, as /proc tells (proc(5))."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Fields of /proc/PID/stat behind the name, which is in brackets: time in user and kernel mode, then of waited-for ones.
_TIMES = slice(11, 15)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that these did."""
    found: list[int] = []
    with suppress(OSError):  # it ends meanwhile, or the system has no /proc
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                children = [int(child) for child in file.read().split()]
            found += children
            for child in children:
                found += descendants(child)
    return found


def cpu_seconds() -> float:
    """The processor time of this process and of those that it started, which live or were waited for."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(map(_cpu, descendants(os.getpid())))


def _cpu(pid: int) -> float:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[_TIMES])) * _TICK_SECONDS
    return 0.0


def largest(pid: int) -> int | None:
    """The bytes of memory that the largest process has which `pid` started, or that itself where there is none."""
    sizes = [size for size in map(_memory, descendants(pid) or [pid]) if size is not None]
    return max(sizes, default=None)


def _memory(pid: int) -> int | None:
    """What is a process's own, and its share of what is shared, without files' pages: the kernel can take those."""
    fields = {}
    with suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                fields[name] = int(value.split()[0]) * _KIB
    return sum(fields.values()) if fields else None
