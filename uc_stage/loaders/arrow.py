"""Parquet files, and those of a copy as Arrow, as Arrow record batches, whole or shared out over workers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uc_stage.ipc import is_stream_name, opened
from uc_stage.parquet import understood
from uc_stage.storage import folder_of, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """The rows `start` to `stop` (not included) of one file, counted from its first row; a path or a URL.

    Attributes:
        source: what errors name, where `path` is that of a copy which comes and goes.
    """

    path: str
    start: int
    stop: int
    source: str | None = None


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


def batches(
    parts: Iterable[Part], batch_size: int, columns: Sequence[str] | None = None, *, threads: bool = True
) -> Iterator[Any]:
    """Decodes parts in order and yields `pyarrow.RecordBatch`es of at most `batch_size` rows, shorter where one ends.

    `threads`: decode columns side by side. Raises what pyarrow raises on a file that is not whole.
    """
    for part in parts:
        if is_stream_name(part.path):
            yield from _mapped(part, batch_size, columns)
            continue
        with _opened(part.path) as file:
            groups, skip = _groups(file.metadata, part)
            left = part.stop - part.start
            for batch in file.iter_batches(batch_size, row_groups=groups, columns=columns, use_threads=threads):
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


def read_window(
    parts: Sequence[Part],
    start: int,
    stop: int,
    mixed: Callable[[], Any] | None,
    rows: int,
    columns: Sequence[str] | None = None,
    *,
    threads: bool = True,
) -> Iterator[Any]:
    """The rows `start` to `stop` (not included) of parts that are read at once, as `pyarrow.RecordBatch`es.

    Args:
        parts: files and rows of them.
        start: counted over all parts, in the order that `mixed` gives.
        stop: see `start`.
        mixed: makes the order of all rows of the parts, as an array of indices; None for the order that they have.
        rows: of a record batch, at most, where nothing is mixed.
        columns: these columns only.
        threads: decode columns side by side.

    Raises:
        StageError: a file is gone, or not whole.
    """
    import pyarrow as pa

    if mixed is None:
        yield from _checked(_clipped(parts, start, stop), rows, columns, threads)
        return
    table = pa.Table.from_batches(_checked(parts, max(part.stop - part.start for part in parts), columns, threads))
    yield from table.combine_chunks().take(pa.array(mixed()[start:stop])).combine_chunks().to_batches()


def in_batches(chunks: Iterable[Any], sizes: Iterable[int]) -> Iterator[tuple[Any, list[int]]]:
    """Cuts record batches, so that each holds whole batches of these sizes, which it tells.

    Rows are copied only where a batch lies across a border of two.
    """
    import pyarrow as pa

    wanted = iter(sizes)
    size = next(wanted, None)
    begun: list[Any] = []
    for chunk in chunks:
        held = sum(piece.num_rows for piece in begun)
        if begun and size is not None:
            begun.append(chunk.slice(0, size - held))
            if held + begun[-1].num_rows < size:
                continue
            yield pa.Table.from_batches(begun).combine_chunks().to_batches()[0], [size]
            chunk, size, begun = chunk.slice(size - held), next(wanted, None), []  # noqa: PLW2901 - what is left of it
        fitting: list[int] = []
        end = 0
        while size is not None and end + size <= chunk.num_rows:
            fitting.append(size)
            end, size = end + size, next(wanted, None)
        if fitting:
            yield chunk.slice(0, end), fitting
        if end < chunk.num_rows:
            begun = [chunk.slice(end)]


def _clipped(parts: Iterable[Part], start: int, stop: int) -> Iterator[Part]:
    before = 0
    for part in parts:
        low, high = max(start - before, 0), min(stop - before, part.stop - part.start)
        if low < high:
            yield replace(part, start=part.start + low, stop=part.start + high)
        before += part.stop - part.start


def _checked(parts: Iterable[Part], rows: int, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
    """As `batches`, with `StageError`s that name the file."""
    for part in parts:
        where = part.source or part.path
        with translated(where), understood(where):
            yield from batches([part], rows, columns, threads=threads)


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
    folder, name = folder_of(path)
    with folder.open(name) as stream, pq.ParquetFile(stream) as file:
        yield file
