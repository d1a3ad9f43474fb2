"""Who works on what on this machine, and kernel locks that die with their holder."""

from __future__ import annotations

import os
import socket
from typing import Any


def identity() -> dict[str, Any]:
    """Who this process is, in terms that another one can check with `alive`."""
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}


def alive(record: dict[str, Any]) -> bool | None:
    """Whether the process that `identity` described still runs; None where this machine cannot tell."""
    if record.get("machine") is None or record.get("machine") != _machine():
        return None
    return record.get("started") is not None and _started(int(record["pid"])) == record["started"]


def _machine() -> str | None:
    """This boot of this machine and its process namespace: where both agree, a process id means the same process."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot (field 22 of proc(5)'s stat); None where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
