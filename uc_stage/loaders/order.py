"""The order of an epoch's rows, and how ranks and their workers share it out: arithmetic alone, no file is read.

An epoch's order depends on the files, the seed and the epoch, and on nothing else: ranks and workers take runs of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from uc_stage.errors import InvalidRequest
from uc_stage.loaders.arrow import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# Runs of positions in an epoch's order: `start` and `stop` (not included), without overlap.
Spans = list[tuple[int, int]]

_WORD_BITS = 32
_FIRST_BLOCK = 2**31


@dataclass(frozen=True, slots=True)
class Group:
    """One row group: its file, its first row there, its rows, and its bytes before compression."""

    path: str
    start: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """What is read at once: the positions from `first` on; `number` seeds their order, None leaves it as it is.

    Windows of one `block` follow one another, and no other block's are of its files, where files are taken whole.
    """

    first: int
    rows: int
    parts: tuple[Part, ...]
    number: int | None = None
    block: int = 0


def windows(
    groups: Iterable[Group], size: int, shuffled: tuple[int, int] | None = None, *, whole_files: bool = False
) -> list[Window]:
    """The windows of an epoch: whole row groups, as many as `size` bytes hold and at least one.

    Args:
        groups: in the order of the files.
        size: uncompressed bytes of a window.
        shuffled: a seed and an epoch, which give the row groups a random order; each window is then shuffled as well,
            by `permutation`. Without it, a window holds rows of one file alone.
        whole_files: take the files in a random order, and the row groups of as many of them as `size` holds, or of
            one, so that no file is needed again once the next are.
    """
    groups = [group for group in groups if group.rows]
    found: list[Window] = []
    held: list[Group] = []
    first = held_bytes = 0

    def close(block: int) -> None:
        nonlocal first, held_bytes
        if held:
            # Where the order within is random anyway, one file after the other opens each once.
            parts = _runs(sorted(held, key=lambda group: (group.path, group.start)) if shuffled else held)
            rows = sum(group.rows for group in held)
            found.append(Window(first, rows, parts, len(found) if shuffled else None, block))
            first, held_bytes = first + rows, 0
            held.clear()

    if shuffled is None:
        blocks = [list(of) for _, of in groupby(groups, lambda group: group.path)]
    elif whole_files:
        blocks = _blocks(groups, size, *shuffled)
    else:
        blocks = [[groups[index] for index in permutation(len(groups), *shuffled)]]
    for block, taken in enumerate(blocks):
        for group in taken:
            if held_bytes + group.bytes > size:
                close(block)
            held.append(group)
            held_bytes += group.bytes
        close(block)
    return found


def _blocks(groups: Sequence[Group], size: int, seed: int, epoch: int) -> list[list[Group]]:
    """The files in a random order, in blocks of as many as `size` holds, with the row groups of each block shuffled."""
    files = [list(of) for _, of in groupby(groups, lambda group: group.path)]
    blocks: list[list[Group]] = []
    held = 0
    for index in permutation(len(files), seed, epoch):
        own = sum(group.bytes for group in files[index])
        if not blocks or held + own > size:
            blocks.append([])
            held = 0
        blocks[-1] += files[index]
        held += own
    # The numbers of windows begin at 0, and there are fewer.
    return [
        [block[index] for index in permutation(len(block), seed, epoch, _FIRST_BLOCK + number)]
        for number, block in enumerate(blocks)
    ]


def permutation(count: int, seed: int, epoch: int, window: int | None = None) -> Any:
    """A random order of `count` things as a NumPy array, the same with any version of NumPy (its NEP 19)."""
    import numpy as np

    words = []
    while seed:
        words.append(seed % 2**_WORD_BITS)
        seed >>= _WORD_BITS
    return np.random.RandomState([*words, epoch, 0 if window is None else window + 1]).permutation(count)


def _runs(groups: Iterable[Group]) -> tuple[Part, ...]:
    """Row groups as parts of files, those that follow one another as one."""
    parts: list[Part] = []
    for group in groups:
        if parts and (parts[-1].path, parts[-1].stop) == (group.path, group.start):
            parts[-1] = Part(group.path, parts[-1].start, group.start + group.rows)
        else:
            parts.append(Part(group.path, group.start, group.start + group.rows))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank takes: `rows` in so many `batches`, full ones first; the rest is spread evenly over the others.

    Batch `i` of a rank is made by worker `i % workers`, which is the order in which a `DataLoader` asks its workers;
    a worker's batches are one run of the rank's rows, after those of the workers before it.
    """

    start: int
    rows: int
    batches: int
    batch_size: int

    def size(self, batch: int) -> int:
        """The rows of a batch."""
        full, rest, over = self._tail()
        return self.batch_size if batch < full else rest + (batch < full + over)

    def taken(self, worker: int, workers: int, batches: int | None = None) -> int:
        """The rows in the first batches of a worker: in those among the first `batches` of the rank, or in all."""
        full, rest, over = self._tail()
        until = self.batches if batches is None else min(batches, self.batches)
        whole, longer = (count(min(until, end), worker, workers) for end in (full, full + over))
        return self.batch_size * whole + (longer - whole) + rest * (count(until, worker, workers) - whole)

    def run(self, worker: int, workers: int) -> tuple[int, int]:
        """The rows of a worker, counted from the first of all ranks."""
        start = self.start + sum(self.taken(before, workers) for before in range(worker))
        return start, start + self.taken(worker, workers)

    def _tail(self) -> tuple[int, int, int]:
        """How many batches are full, the rows of each other one, and how many of those have a row more."""
        if not self.batches:
            return 0, 0, 0
        # One row is left for each batch that is not full.
        full = self.batches - 1
        if self.batch_size > 1:
            full = min(full, (self.rows - self.batches) // (self.batch_size - 1))
        rest, over = divmod(self.rows - full * self.batch_size, self.batches - full)
        return full, rest, over


def count(batches: int, worker: int, workers: int) -> int:
    """How many of a rank's first batches are a worker's."""
    return max(0, (batches - worker + workers - 1) // workers)


def deal(rows: int, rank: int, world_size: int, batch_size: int, *, drop_last: bool) -> Share:
    """The share of one rank; all ranks have the same number of batches.

    With `drop_last` they are full, and fewer than `world_size * batch_size` rows at the end are left out. Without it
    each row is in one share, shares differ by a row at most, and so a rank may have one batch that is shorter by a row.

    Raises:
        InvalidRequest: there are too few rows for every rank to have as many batches as the others.
    """
    if drop_last:
        batches = rows // (world_size * batch_size)
        return Share(rank * batches * batch_size, batches * batch_size, batches, batch_size)
    least, most = rows // world_size, -(-rows // world_size)
    batches = -(-most // batch_size)
    if least < batches:
        held = f"{rows} {'row' if rows == 1 else 'rows'}"
        raise InvalidRequest(
            f"{held} in batches of {batch_size} give {world_size} ranks unequal numbers of batches, and one would wait",
            hint="take fewer ranks, or `drop_last=True`; in the middle of an epoch, go on to the next: `set_epoch`",
        )
    start, stop = rows * rank // world_size, rows * (rank + 1) // world_size
    return Share(start, stop - start, batches, batch_size)


def cut(spans: Spans, start: int, stop: int) -> Spans:
    """The part of spans from their `start`-th position to their `stop`-th (not included), counted over all of them."""
    found: Spans = []
    before = 0
    for first, last in spans:
        low, high = max(start - before, 0), min(stop - before, last - first)
        if low < high:
            found.append((first + low, first + high))
        before += last - first
    return found


def length(spans: Spans) -> int:
    """How many positions spans hold."""
    return sum(stop - start for start, stop in spans)


def remaining(
    spans: Spans, world_size: int, batch_size: int, workers: int, taken: Mapping[int, int], *, drop_last: bool
) -> Spans:
    """What is left of spans once these workers of every rank have made so many batches each.

    What `drop_last` left out is left as well, to the first worker.
    """
    found: Spans = []
    end = 0
    for rank in range(world_size):
        share = deal(length(spans), rank, world_size, batch_size, drop_last=drop_last)
        end = share.start + share.rows
        for worker, batches in taken.items():
            start, stop = share.run(worker, workers)
            # The worker's first batches are those among the rank's before the next one of its own.
            gone = share.taken(worker, workers, batches * workers + worker)
            found += cut(spans, start + gone, stop)
    return _joined([*found, *(cut(spans, end, length(spans)) if 0 in taken else [])])


def _joined(spans: Spans) -> Spans:
    found: Spans = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def overlaps(found: Sequence[Window], spans: Spans) -> Iterator[tuple[Window, int, int]]:
    """The windows that spans touch, in the spans' order, each with the part of it: counted from its own first row."""
    import bisect

    starts = [window.first for window in found]
    for start, stop in spans:
        position = start
        index = bisect.bisect_right(starts, start) - 1
        while position < stop:
            window = found[index]
            end = min(stop, window.first + window.rows)
            yield window, position - window.first, end - window.first
            position, index = end, index + 1
