"""The command that writes an export again: with what it was asked for, and with what a rule would change."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from uc_stage.model import DEFAULT_COMPRESSION, DEFAULT_FILE_BYTES, DEFAULT_ROW_GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from uc_stage.manifest import Manifest

# What a flag decides anew.
_EXCLUDED = {
    "--world-size": ("--files",),
    "--workers": ("--files", "--world-size"),
    "--file-size": ("--files", "--world-size"),
    "--drop-remainder": ("--equal-rows",),
}


def command(manifest: Manifest, dest: str, flags: Sequence[str], without: Collection[str]) -> str:
    """The command for the newest version of the table, without some columns; `flags` count before those of then."""
    source = manifest.source
    what = [source.table] if source.query is None else ["--query", source.query]
    excluded = {one for flag in flags for one in (flag, *_EXCLUDED.get(flag, ()))}
    asked = [*flags]
    for flag, *values in _asked(manifest, without):
        # The table's own files go over as they are, or are written anew.
        if flag not in excluded and (flag != "--as-is" or not (flags or without)):
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
        "--files": layout.files,
        "--file-size": _unless(layout.file_bytes, DEFAULT_FILE_BYTES),
        "--row-group-size": _unless(layout.row_group_bytes, DEFAULT_ROW_GROUP_BYTES),
        "--compression": _unless(layout.compression, DEFAULT_COMPRESSION),
        "--world-size": None if layout.files is not None else _unless(layout.multiple_of, 1),
    }
    yield from ((flag, str(value)) for flag, value in valued.items() if value is not None)
    for flag, values in (("--cast", source.casts), ("--split", layout.splits)):
        yield from ((flag, value) for value in values)
    if layout.shuffle:
        yield ("--shuffle",)
    if layout.drop_remainder or layout.equal_rows:
        yield ("--drop-remainder" if layout.drop_remainder else "--equal-rows",)
    if layout.as_is:
        yield ("--as-is",)


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def listed(names: Iterable[str]) -> str:
    """Names as a flag takes several."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)
