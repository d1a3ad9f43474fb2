"""What many footers tell together, added up file by file, so that memory grows with columns and not with files."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uc_stage.errors import StageError
from uc_stage.model import Column, Footers, Spread
from uc_stage.parquet import count_distinct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uc_stage.chunks import Chunk, Leaf
    from uc_stage.parquet import Footer
    from uc_stage.storage import Folder


# A small read each.
_DICTIONARIES = 64


@dataclass(slots=True)
class _Sum:
    """One column so far."""

    leaf: Leaf
    bytes: int = 0
    uncompressed: int = 0
    largest: int = 0
    values: int = 0
    nulls: int | None = 0
    encodings: set[str] = field(default_factory=set)
    codecs: set[str] = field(default_factory=set)
    distinct_min: int | None = None
    distinct_max: int | None = 0

    def add(self, chunk: Chunk, distinct: int | None) -> None:
        self.bytes += chunk.bytes
        self.uncompressed += chunk.uncompressed
        self.largest = max(self.largest, chunk.uncompressed)
        self.values += chunk.values
        self.nulls = None if self.nulls is None or chunk.nulls is None else self.nulls + chunk.nulls
        self.encodings |= chunk.encodings
        self.codecs.add(chunk.codec)
        self.distinct_max = None if self.distinct_max is None or distinct is None else self.distinct_max + distinct
        if distinct is not None:
            self.distinct_min = max(self.distinct_min or 0, distinct)

    def column(self, total: int) -> Column:
        return Column(
            path=self.leaf.path,
            column=self.leaf.column,
            physical=self.leaf.physical,
            logical=self.leaf.logical,
            bytes=self.bytes,
            uncompressed=self.uncompressed,
            share=round(self.bytes / total, 6) if total else 0.0,
            largest=self.largest,
            values=self.values,
            nulls=self.nulls,
            encodings=tuple(sorted(self.encodings)),
            compression=tuple(sorted(self.codecs)),
            distinct_min=self.distinct_min,
            distinct_max=self.distinct_max,
        )


class Tally:
    """The sum of many footers; `add` is safe to call from any thread.

    The dictionaries of one file, `sampled`, tell the least there is of distinct values: those of all would be a read
    for each column of each row group.
    """

    def __init__(self, folder: Folder, sampled: str | None) -> None:
        self._folder, self._sampled = folder, sampled
        self._lock = threading.Lock()
        self._rows, self._bytes = array("q"), array("q")
        self._uncompressed: dict[str, int] = {}
        self._sums: dict[str, _Sum] = {}

    def add(self, footer: Footer, split: str = "") -> Footer:
        """Adds a footer whose columns were told, and gives it without them."""
        distinct: list[list[int | None]] = []
        if footer.path == self._sampled:
            # A file that cannot be read there has its problem told by who reads it.
            with contextlib.suppress(StageError):
                distinct = count_distinct(self._folder, footer, _DICTIONARIES)
        with self._lock:
            self._rows.extend(group.rows for group in footer.row_groups)
            self._bytes.extend(group.bytes for group in footer.row_groups)
            pages = self._uncompressed.get(split, 0)
            for number, group in enumerate(footer.chunks):
                for column, (leaf, chunk) in enumerate(zip(footer.leaves, group, strict=True)):
                    known = distinct[number][column] if distinct else None
                    found = self._sums.get(leaf.path)
                    if found is None:
                        found = self._sums[leaf.path] = _Sum(leaf)
                    found.add(chunk, chunk.distinct if known is None else known)
                    pages += chunk.uncompressed
            self._uncompressed[split] = pages
        return dataclasses.replace(footer, leaves=(), chunks=())

    def result(self) -> Footers:
        """What all of them tell."""
        total = sum(found.bytes for found in self._sums.values())
        return Footers(
            uncompressed=dict(self._uncompressed),
            row_group_rows=spread(self._rows),
            row_group_bytes=spread(self._bytes),
            columns=tuple(found.column(total) for found in self._sums.values()),
        )


def spread(values: Iterable[int]) -> Spread | None:
    """The least, the middle and the greatest value; None for no values."""
    values = list(values)
    return Spread(min(values), int(statistics.median(values)), max(values)) if values else None
