"""What is told of files without opening one: their sizes, kinds and folders, and what a manifest says of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from uc_stage.model import Bin, Footers, Pile, SplitShare
from uc_stage.parquet import is_parquet_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from uc_stage.manifest import Manifest
    from uc_stage.storage import Entry

# Of the source, those are told by themselves.
_IDENTITY = {"table", "table_id", "version", "timestamp"}


def options(manifest: Manifest) -> dict[str, Any]:
    """What an export was asked for beyond its table and version, without what was left as it is."""
    source, layout = dataclasses.asdict(manifest.source), dataclasses.asdict(manifest.layout)
    every = {**{name: value for name, value in source.items() if name not in _IDENTITY}, **layout}
    if manifest.layout.multiple_of == 1:
        del every["multiple_of"]
    if manifest.dropped:
        every["dropped"] = manifest.dropped
    return {name: value for name, value in every.items() if value not in (None, False, (), [])}


def split_shares(manifest: Manifest, told: Footers) -> dict[str, SplitShare]:
    """What each split holds, as recorded."""
    return {
        name: SplitShare(
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.bytes for file in files),
            uncompressed=told.uncompressed.get(name),
        )
        for name, files in manifest.splits.items()
    }


def histogram(sizes: Sequence[int]) -> tuple[Bin, ...]:
    """The files by their sizes, in powers of two, without gaps between the smallest and the largest."""
    counts = Counter(size.bit_length() for size in sizes)
    if not counts:
        return ()
    bits = range(min(counts), max(counts) + 1)
    return tuple(Bin(1 << bit - 1 if bit else 0, 1 << bit, counts[bit]) for bit in bits)


def extensions(entries: Iterable[Entry]) -> dict[str, Pile]:
    """The files by the ends of their names; `` for names without one."""
    return _piles(entries, lambda path: _extension(path.rpartition("/")[2]))


def folders(entries: Iterable[Entry]) -> dict[str, Pile]:
    """The files that are no Parquet by the folder they lie in; none where all lie in the root."""
    piles = _piles(
        (entry for entry in entries if not is_parquet_name(entry.path)), lambda path: path.rpartition("/")[0]
    )
    return piles if piles.keys() - {""} else {}


def _extension(name: str) -> str:
    stem, dot, end = name.rpartition(".")
    return f".{end.lower()}" if dot and stem else ""


def _piles(entries: Iterable[Entry], key: Callable[[str], str]) -> dict[str, Pile]:
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for entry in entries:
        name = key(entry.path)
        files[name] += 1
        sizes[name] += entry.bytes
    return {name: Pile(files[name], size) for name, size in sizes.most_common()}
