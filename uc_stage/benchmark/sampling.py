"""A bounded sample of a target's row groups: read from the storage into memory, where the other stages work on it.

What is read lies in anonymous memory as large as its file, at its own offset, of which only the sample's pages exist:
pyarrow reads it as the file that it is a part of.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.chunks import CODECS, read_pages
from uc_stage.ipc import is_stream_name
from uc_stage.parquet import read_footer, read_metadata
from uc_stage.storage import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from uc_stage.storage import Ranges

SAMPLE_BYTES = 64 * 1024**2
SAMPLE_UNCOMPRESSED = 256 * 1024**2
SAMPLE_SECONDS = 4.0
# From as many files, evenly spread over all.
_FILES = 4
_CHUNK_BYTES = 8 * 1024**2
# Linux's on most processors; Python has the name from 3.13 on. Memory is not set aside for what is never touched.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


@dataclass(frozen=True, slots=True)
class Group:
    """A row group or a record batch: its rows, where it lies, and its bytes before compression.

    Attributes:
        columns: of each leaf its column, codec, first byte, and bytes before and after compression; none for Arrow.
    """

    rows: int
    start: int
    stop: int
    uncompressed: int
    columns: tuple[tuple[str, str, int, int, int], ...] = ()


@dataclass(slots=True)
class Piece:
    """The first row groups of one file, in memory."""

    path: str
    memory: mmap.mmap
    metadata: Any
    groups: list[Group]

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Decodes the groups on one processor, as record batches of so many rows at most."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.metadata is None:
            with pa.ipc.open_stream(pa.py_buffer(self.memory)) as reader:
                for _ in self.groups:
                    batch = reader.read_next_batch()
                    batch = batch if columns is None else batch.select(list(columns))
                    yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))
            return
        with pq.ParquetFile(pa.BufferReader(pa.py_buffer(self.memory)), metadata=self.metadata) as file:
            numbers = list(range(len(self.groups)))
            yield from file.iter_batches(rows, row_groups=numbers, columns=columns, use_threads=False)

    def pages(self, without: str | None = None) -> Iterator[tuple[str, Any, int]]:
        """Each compressed page, but of one column: its codec, its bytes, and how many they are before compression."""
        view = memoryview(self.memory)
        for group in self.groups:
            for column, codec, start, _, size in group.columns:
                if codec != CODECS[0] and column != without:
                    for data, uncompressed in read_pages(view[start : start + size]):
                        if len(data) < uncompressed:
                            yield codec, data, uncompressed


@dataclass(frozen=True, slots=True)
class Sample:
    """Pieces of a target's files, and the seconds that it took to read them, one range after the other."""

    pieces: list[Piece]
    seconds: float

    @property
    def rows(self) -> int:
        """The rows of all pieces."""
        return sum(group.rows for piece in self.pieces for group in piece.groups)

    @property
    def bytes(self) -> int:
        """What they take on the storage."""
        return sum(group.stop - group.start for piece in self.pieces for group in piece.groups)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        import pyarrow as pa

        piece = self.pieces[0]
        if piece.metadata is not None:
            return list(piece.metadata.schema.to_arrow_schema().names)
        with pa.ipc.open_stream(pa.py_buffer(piece.memory)) as reader:
            return list(reader.schema.names)

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The batches of all pieces."""
        for piece in self.pieces:
            yield from piece.batches(rows, columns)

    def decoded(self, rows: int, columns: Sequence[str] | None = None) -> list[Any]:
        """As many of these batches as are held in memory at once: a row group may be larger than that."""
        found, left = [], SAMPLE_UNCOMPRESSED
        for batch in self.batches(rows, columns):
            found.append(batch)
            left -= batch.nbytes
            if left < 0:
                break
        return found

    def read_again(self, ranges: Callable[[str], Ranges]) -> float:
        """Reads the same ranges once more, and tells the seconds."""
        return sum(_read(ranges(piece.path), piece.memory, piece.groups) for piece in self.pieces)


def take_sample(files: Sequence[tuple[str, int, int]]) -> Sample:
    """Reads the first row groups of some files, from a cold page cache where that can be.

    Args:
        files: paths or URLs with their bytes and rows.

    Raises:
        StageError: as the storage, or the footers, say.
    """
    held = [file for file in files if file[2]]
    spread = [held[at * len(held) // min(_FILES, len(held))] for at in range(min(_FILES, len(held)))]
    pieces: list[Piece] = []
    seconds, left, left_uncompressed = 0.0, SAMPLE_BYTES, SAMPLE_UNCOMPRESSED
    for number, (path, size, _) in enumerate(spread):
        share = len(spread) - number
        metadata, groups = _groups(path, left // share, left_uncompressed // share)
        if pieces and (not groups or groups[0].stop - groups[0].start > left):
            break
        piece = Piece(path, _memory(size), metadata, groups)
        cold = opened(path)
        cold.forget()
        seconds += _read(cold, piece.memory, groups)
        pieces.append(piece)
        left -= sum(group.stop - group.start for group in groups)
        left_uncompressed -= sum(group.uncompressed for group in groups)
        if seconds > SAMPLE_SECONDS or left <= 0 or left_uncompressed <= 0:
            break
    return Sample(pieces, seconds)


def opened(path: str) -> Ranges:
    """A file, open for ranges of it."""
    folder, name = folder_of(path)
    return folder.ranges(name)


def _memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)


def _groups(path: str, most: int, most_uncompressed: int) -> tuple[Any, list[Group]]:
    """The first row groups within these bytes, one at least, and the file's metadata; None for an Arrow file."""
    if is_stream_name(path):
        return None, _taken(_record_batches(path), most, most_uncompressed)
    folder, name = folder_of(path)
    footer = read_footer(folder, name, columns=True)
    groups = (
        Group(
            group.rows,
            min((chunk.start for chunk in chunks), default=0),
            max((chunk.start + chunk.bytes for chunk in chunks), default=0),
            sum(chunk.uncompressed for chunk in chunks),
            tuple(
                (leaf.column, chunk.codec, chunk.start, chunk.uncompressed, chunk.bytes)
                for leaf, chunk in zip(footer.leaves, chunks, strict=True)
            ),
        )
        for group, chunks in zip(footer.row_groups, footer.chunks, strict=True)
    )
    return read_metadata(folder, name), _taken(groups, most, most_uncompressed)


def _record_batches(path: str) -> Iterator[Group]:
    import pyarrow as pa

    with pa.memory_map(path) as mapped, pa.ipc.open_stream(mapped) as reader:
        start = 0
        while True:
            try:
                rows = reader.read_next_batch().num_rows
            except StopIteration:
                return
            yield Group(rows, start, mapped.tell(), mapped.tell() - start)
            start = mapped.tell()


def _taken(groups: Iterator[Group], most: int, most_uncompressed: int) -> list[Group]:
    found: list[Group] = []
    for group in groups:
        most -= group.stop - group.start
        most_uncompressed -= group.uncompressed
        if any(one.rows for one in found) and (most < 0 or most_uncompressed < 0):
            break
        found.append(group)
    return found


def _read(file: Ranges, memory: mmap.mmap, groups: Sequence[Group]) -> float:
    """Reads the groups into their places, and tells the seconds that the storage took."""
    view = memoryview(memory)
    seconds = 0.0
    try:
        for group in groups:
            # The kernel clears memory at the first touch, which is no work of the storage.
            view[group.start : group.stop] = bytes(group.stop - group.start)
            began = time.perf_counter()
            for at in range(group.start, group.stop, _CHUNK_BYTES):
                file.read_into(view[at : min(at + _CHUNK_BYTES, group.stop)], at)
            seconds += time.perf_counter() - began
    finally:
        file.close()
        view.release()
    return seconds
