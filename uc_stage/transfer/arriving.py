"""A file on its way: the ranges yet to come, and the local file that takes them."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from uc_stage.storage import go_direct
from uc_stage.transfer import ranges

if TYPE_CHECKING:
    from uc_stage.model import CopyFile

# Smaller files are written through the page cache, as they come: the rest has costs of its own for each.
_DIRECT_BYTES = 1024**2
# Writes past the page cache are of whole blocks; no disk has larger ones.
_BLOCK_BYTES = 4096


class ArrivingFile:
    """One file on its way. The lock guards what follows it."""

    def __init__(self, asked: CopyFile, whole: str) -> None:
        self.asked, self.whole = asked, whole
        self.parts: deque[tuple[int, int]] = deque()
        self.hangs = 0
        self.lock = threading.Lock()
        self.temporary: str | None = None
        self.descriptor = -1
        self.direct = -1
        self.mtime_ns = asked.mtime_ns
        self.seen = self.again = False
        self.restart()

    def restart(self) -> None:
        """Asks for all of it, and forgets what came."""
        import xxhash

        self.parts.extend(ranges.split(self.asked.bytes, ranges.RANGE_BYTES))
        self.hasher: Any = xxhash.xxh3_128()
        self.hashed = 0
        self.hashing = False
        # By offset, the length of a range that came, and the buffer that holds it.
        self.arrived: dict[int, tuple[int, memoryview]] = {}

    def create(self, temporary: str) -> None:
        """Makes the local file, a large one with room for all of it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(temporary, flags, 0o644)
        self.temporary = temporary
        if self.asked.bytes >= _DIRECT_BYTES:
            if os.major(os.fstat(self.descriptor).st_dev):
                # Not in memory: it would be cleared, and then written.
                os.posix_fallocate(self.descriptor, 0, self.asked.bytes)
            direct = os.open(temporary, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if go_direct(direct, on=True):
                self.direct = direct
            else:
                os.close(direct)

    def write(self, view: memoryview, offset: int) -> None:
        """Writes a range: whole blocks past the page cache, and what is left, or refused so, through it."""
        done = 0
        if self.direct >= 0:
            whole = len(view) // _BLOCK_BYTES * _BLOCK_BYTES
            try:
                while done < whole:
                    done += os.pwrite(self.direct, view[done:whole], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        while done < len(view):
            done += os.pwrite(self.descriptor, view[done:], offset + done)

    def close(self) -> None:
        """Closes the local file."""
        for descriptor in (self.descriptor, self.direct):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self.direct = -1
