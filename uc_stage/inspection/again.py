"""The command that writes an export again: with what it was asked for, and with what a rule would change."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from uc_stage.model import DEFAULT_COMPRESSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from uc_stage.manifest import Manifest


def command(manifest: Manifest, dest: str, flags: Sequence[str], without: Collection[str]) -> str:
    """The command for the newest version of the table; `flags` count before those of then, `without` are left out.

    The row groups, and copies of the table's own files, are not asked for again.
    """
    source = manifest.source
    what = [source.table] if source.query is None else ["--query", source.query]
    asked = [*flags]
    for flag, *values in _asked(manifest, without):
        if flag not in flags:
            asked += [flag, *values]
    return shlex.join(["uc-stage", "export", *what, dest, *asked])


def _asked(manifest: Manifest, without: Collection[str]) -> Iterator[tuple[str, ...]]:
    source, layout = manifest.source, manifest.layout
    if source.columns is not None:
        yield "--columns", listed(name for name in source.columns if name not in without)
    elif without:
        yield "--exclude-columns", listed(without)
    valued = {
        "--where": source.where,
        "--limit": source.limit,
        "--sample": source.sample,
        "--seed": source.seed or None,
        "--split-by": layout.split_by,
        "--order-by": listed(layout.order_by) or None,
        "--compression": None if layout.compression == DEFAULT_COMPRESSION else layout.compression,
        "--world-size": None if layout.multiple_of == 1 else layout.multiple_of,
    }
    yield from ((flag, str(value)) for flag, value in valued.items() if value is not None)
    for flag, values in (("--cast", source.casts), ("--split", layout.splits)):
        yield from ((flag, value) for value in values)
    if layout.shuffle:
        yield ("--shuffle",)
    if layout.drop_remainder or layout.equal_rows:
        yield ("--drop-remainder" if layout.drop_remainder else "--equal-rows",)


def listed(names: Iterable[str]) -> str:
    """Names as a flag takes several."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)
