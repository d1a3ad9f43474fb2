"""The ranges that a file is read in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RANGE_BYTES = 4 * 1024**2


def split(size: int, step: int) -> Iterator[tuple[int, int]]:
    """The ranges (offset, length) of a file, in order, of `step` bytes each but the last; an empty file has one."""
    yield 0, min(size, step)
    for offset in range(step, size, step):
        yield offset, min(step, size - offset)
