"""Buffers that many threads share: few, page-aligned for reads and writes past the page cache, and used again."""

from __future__ import annotations

import mmap

# A small file needs no more, and touches no page of a large buffer, whose pages are huge.
SMALL_BYTES = 256 * 1024


class Buffers:
    """At most `limit` large buffers of `size` bytes each, and any number of small ones. Not locked: its user is.

    The one that came back last is given first: memory that was touched already costs no page fault.
    """

    def __init__(self, size: int, limit: int) -> None:
        self._sizes = min(size, SMALL_BYTES), size
        self._left = limit
        self._idle: tuple[list[memoryview], list[memoryview]] = [], []

    def take(self, length: int) -> memoryview | None:
        """A buffer of at least so many bytes, or None where all are in use."""
        large = length > self._sizes[0]
        if self._idle[large]:
            return self._idle[large].pop()
        if large:
            if self._left == 0:
                return None
            self._left -= 1
        return _pages(self._sizes[large], huge=large)

    def give(self, buffer: memoryview) -> None:
        """Takes a buffer back."""
        self._idle[len(buffer) > self._sizes[0]].append(buffer)

    def replace(self, buffer: memoryview) -> None:
        """Allows one more in place of a buffer that may come back late, or never."""
        if len(buffer) > self._sizes[0]:
            self._left += 1


def _pages(size: int, *, huge: bool) -> memoryview:
    """Memory from the start of a page on; where it is `huge`, one page fault brings 2 MiB."""
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A child that is forked while a read past the page cache is under way would take the page with it.
    pages.madvise(mmap.MADV_DONTFORK)
    if huge:
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
