"""Buffers for writes past the page cache: they begin with a page, and are used again."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What is no longer than this is read into a buffer of the thread's own: it touches no page of a large one.
SMALL_BYTES = 256 * 1024


class Buffers:
    """At most `limit` buffers of `size` bytes each, which `make` makes. Not locked: its user is.

    The one that came back last is given first: memory that was touched already costs no page fault.
    """

    def __init__(self, size: int, limit: int, make: Callable[[int], memoryview]) -> None:
        self._size, self._left, self._make = size, limit, make
        self._idle: list[memoryview] = []

    def take(self) -> memoryview | None:
        """A buffer, or None where all are in use."""
        if self._idle:
            return self._idle.pop()
        if self._left == 0:
            return None
        self._left -= 1
        return self._make(self._size)

    def give(self, buffer: memoryview) -> None:
        """Takes a buffer back."""
        self._idle.append(buffer)

    def replace(self) -> None:
        """Allows one more, in place of one that may come back late or never."""
        self._left += 1


def pages(size: int) -> memoryview:
    """Memory from the start of a page on. Huge pages would save faults, and stall where memory is in pieces."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A child that is forked while a write past the page cache is under way would take the page with it.
    memory.madvise(mmap.MADV_DONTFORK)
    return memoryview(memory)
