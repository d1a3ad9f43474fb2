"""Parquet files, and those of a copy as Arrow, as Arrow record batches, whole or shared out over workers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.ipc import is_stream_name, opened
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """The rows `start` to `stop` (not included) of one file, counted from its first row; a path or a URL."""

    path: str
    start: int
    stop: int


def share(rows: Sequence[tuple[str, int]], index: int, count: int) -> list[Part]:
    """The share of one of `count` workers in files of so many rows: together, the shares hold each row once.

    Shares are runs of the whole, in order, that differ by one row at most, whatever the files and row groups: no
    worker is without work while there are rows for it, at the price that two workers may decode one row group.
    """
    total = sum(count_ for _, count_ in rows)
    first, last = total * index // count, total * (index + 1) // count
    parts = []
    before = 0
    for path, held in rows:
        start, stop = max(first - before, 0), min(last - before, held)
        if start < stop:
            parts.append(Part(path, start, stop))
        before += held
    return parts


def batches(parts: Iterable[Part], batch_size: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Decodes parts in order and yields `pyarrow.RecordBatch`es of at most `batch_size` rows, shorter where one ends.

    Raises what pyarrow raises on a file that is not whole.
    """
    for part in parts:
        if is_stream_name(part.path):
            yield from _mapped(part, batch_size, columns)
            continue
        with _opened(part.path) as file:
            groups, skip = _groups(file.metadata, part)
            left = part.stop - part.start
            for batch in file.iter_batches(batch_size, row_groups=groups, columns=columns):
                wanted = batch.slice(skip, left)
                skip = max(0, skip - batch.num_rows)
                left -= wanted.num_rows
                if wanted.num_rows:
                    yield wanted


def _mapped(part: Part, batch_size: int, columns: Sequence[str] | None) -> Iterator[Any]:
    first = 0
    with opened(part.path) as reader:
        for batch in reader:
            start, stop = max(part.start - first, 0), min(part.stop - first, batch.num_rows)
            first += batch.num_rows
            for at in range(start, stop, batch_size):
                rows = batch.slice(at, min(batch_size, stop - at))
                yield rows if columns is None else rows.select(list(columns))


def _groups(metadata: Any, part: Part) -> tuple[list[int], int]:
    """The row groups that hold a part, and the rows to skip in the first of them."""
    groups: list[int] = []
    skip = before = 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if before < part.stop and before + rows > part.start:
            if not groups:
                skip = part.start - before
            groups.append(number)
        before += rows
    return groups, skip


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    if "://" not in path:
        with pq.ParquetFile(path) as file:
            yield file
        return
    above, _, name = path.rpartition("/")
    with open_folder(above).open(name) as stream, pq.ParquetFile(stream) as file:
        yield file
