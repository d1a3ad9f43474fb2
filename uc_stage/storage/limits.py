"""How much of the machine's processors and memory this process may use.

In a container, its control group says less than the machine has (cgroups(7)): of version 1
(https://docs.kernel.org/admin-guide/cgroup-v1/memory.html) and 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC, _GROUPS = "/proc", "/sys/fs/cgroup"
# What version 1 tells where there is no limit, and more.
_NO_LIMIT = 1 << 60


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
    """Bytes: of the machine, the limit of this process's control group, and what is available below both.

    `sys.maxsize` is available where nothing tells.
    """

    machine: int
    limit: int | None
    available: int

    @property
    def total(self) -> int:
        """What there is for this process and the others of its group."""
        return self.machine if self.limit is None else min(self.machine, self.limit)


def cpus() -> Cpus:
    """The processors of this machine, as far as they are this process's."""
    limits = []
    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = _read(f"{folder}/cpu.max").split()
            limits.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota_us, period_us = (int(_read(f"{folder}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
            if quota_us > 0:
                limits.append(quota_us / period_us)
    return Cpus(os.cpu_count() or 1, len(os.sched_getaffinity(0)), min(limits, default=None))


def memory() -> Memory:
    """The memory of this machine (proc_meminfo(5)), as far as it is this process's."""
    told = {}
    with contextlib.suppress(OSError), open(f"{_PROC}/meminfo", encoding="ascii") as lines:
        told = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    machine, available, lowest = told.get("MemTotal", 0), told.get("MemAvailable", sys.maxsize), None
    for folder in _folders("memory"):
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


def _folders(controller: str) -> Iterator[str]:
    """The folders of this process's control group and those above it, which limit it too, with a controller's files."""
    lines = []
    with contextlib.suppress(OSError):
        lines = _read(f"{_PROC}/self/cgroup").splitlines()
    for line in lines:
        number, names, path = line.split(":", 2)
        if number != "0" and controller not in names.split(","):
            continue
        base = _GROUPS if number == "0" else f"{_GROUPS}/{names}"
        base = base if os.path.isdir(base) else f"{_GROUPS}/{controller}"
        # A container may see its group as the root, under the path that the machine knows it by.
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield "/".join([base, *parts[:count]])


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
