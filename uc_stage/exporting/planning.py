"""Decides what an export will write: checks the flags, lays out the files of each split, sees what is done already."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from uc_stage.errors import InvalidRequest, VerificationFailed
from uc_stage.manifest import FOLDER, content_id
from uc_stage.model import (
    DEFAULT_COMPRESSION,
    DEFAULT_FILE_BYTES,
    DEFAULT_ROW_GROUP_BYTES,
    Compression,
    EngineName,
    ExportPlan,
    Layout,
    Loader,
    PlannedSplit,
    TableRef,
)
from uc_stage.publish import read_manifest
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from uc_stage.engines import Engine
    from uc_stage.manifest import Manifest
    from uc_stage.model import ExportRequest, Snapshot
    from uc_stage.progress import Progress
    from uc_stage.storage import Folder

# Far below the 2 GiB that 32-bit offsets of one Arrow column reach, whatever the encoding saves.
_MOST_ROW_GROUP_BYTES = 1024**3
_LEAST_MEMORY = 16 * 1024**2
# The splits that Hugging Face finds by a file's name.
SPLITS = ("train", "validation", "test")


def check_flags(request: ExportRequest) -> None:
    """Refuses flags that cannot be right whatever the table is.

    Raises:
        InvalidRequest: naming the flag.
    """
    _check_choices(request)
    _check_numbers(request)
    _check_splits(request)
    exclusive = (
        ("--files", request.files is not None, "--file-size", request.file_bytes is not None),
        ("--files", request.files is not None, "--world-size", request.world_size is not None),
        ("--files", request.files is not None, "--files-per-worker", request.files_per_worker is not None),
        ("--shuffle", request.shuffle, "--order-by", bool(request.order_by)),
        ("--query", request.query is not None, "--engine local", request.engine == "local"),
        ("--query", request.query is not None, "--version or --timestamp", _is_pinned(request)),
    )
    for one, has_one, other, has_other in exclusive:
        if has_one and has_other:
            raise InvalidRequest(f"`{one}` and `{other}` exclude each other", hint="give one of the two")
    if request.files_per_worker is not None and request.world_size is None and request.workers is None:
        raise InvalidRequest(
            "`--files-per-worker` needs `--world-size` or `--workers`", hint="say how many will read the export"
        )
    if request.as_is and (asked := _against_as_is(request)):
        raise InvalidRequest(
            f"`--as-is` copies the table's files, and `{asked[0]}` needs them written anew", hint="give one of the two"
        )


def _check_choices(request: ExportRequest) -> None:
    """The command line knows these words by itself; a caller in Python may write any."""
    choices = {
        "--engine": (request.engine, get_args(EngineName)),
        "--compression": (request.compression, get_args(Compression)),
        "--for": (request.loader, get_args(Loader)),
    }
    for flag, (value, known) in choices.items():
        if value not in known:
            raise InvalidRequest(f"`{flag}` is `{value}`", hint=f"it is one of {', '.join(known)}")


def _is_pinned(request: ExportRequest) -> bool:
    return request.table.version is not None or request.table.timestamp is not None


def _check_numbers(request: ExportRequest) -> None:
    least = {
        "--files": (1, request.files),
        "--limit": (0, request.limit),
        "--keep": (0, request.keep),
        "--world-size": (1, request.world_size),
        "--workers": (0, request.workers),
        "--files-per-worker": (1, request.files_per_worker),
    }
    sizes = {
        "--file-size": (1, request.file_bytes),
        "--row-group-size": (1, request.row_group_bytes),
        "--memory": (_LEAST_MEMORY, request.memory),
    }
    for flag, (low, value) in {**least, **sizes}.items():
        if value is not None and value < low:
            words = format_size(low) if flag in sizes else low
            raise InvalidRequest(f"`{flag} {value}` is too small", hint=f"give {words} or more")
    if request.row_group_bytes > _MOST_ROW_GROUP_BYTES:
        raise InvalidRequest(
            f"`--row-group-size` of {format_size(request.row_group_bytes)} is too large: "
            "a nested column of it would near 2 GiB, which readers refuse",
            hint="give 1GiB or less; loaders shuffle and read ahead by row groups, and 64MiB serves them well",
        )
    if not 0 <= request.seed < 2**63:
        raise InvalidRequest(f"`--seed {request.seed}` is not a number from 0 to 2**63 - 1", hint="such as --seed 42")
    if request.sample is not None and not 0 < request.sample <= 1:
        raise InvalidRequest(f"`--sample {request.sample:g}` is not a fraction", hint="such as --sample 0.01")


def _check_splits(request: ExportRequest) -> None:
    names = [name for name, _ in request.splits]
    for name, fraction in request.splits:
        if name not in SPLITS:
            raise InvalidRequest(
                f"`--split {name}={fraction:g}`: loaders find the splits {', '.join(SPLITS)} by their names alone",
                hint="name it as one of those",
            )
        if not 0 < fraction <= 1:
            raise InvalidRequest(f"`--split {name}={fraction:g}` is not a fraction", hint="such as --split train=0.9")
    if len(set(names)) < len(names):
        raise InvalidRequest("`--split` names a split twice", hint="give each split one fraction")
    if names and not math.isclose(sum(fraction for _, fraction in request.splits), 1, abs_tol=1e-9):
        total = sum(fraction for _, fraction in request.splits)
        raise InvalidRequest(
            f"the fractions of `--split` add up to {total:g}",
            hint="let them add up to 1: --split train=0.9 --split validation=0.1; --sample takes a part of the rows",
        )
    if request.split_by is not None and not names:
        raise InvalidRequest("`--split-by` needs `--split`", hint="add --split train=0.9 --split validation=0.1")


def _against_as_is(request: ExportRequest) -> list[str]:
    """The flags that keep files from going over as they are."""
    given = {
        "--query": request.query, "--columns": request.columns, "--exclude-columns": request.exclude,
        "--where": request.where, "--limit": request.limit, "--cast": request.casts, "--sample": request.sample,
        "--shuffle": request.shuffle, "--order-by": request.order_by, "--split": request.splits,
        "--files": request.files, "--file-size": request.file_bytes, "--world-size": request.world_size,
        "--workers": request.workers, "--files-per-worker": request.files_per_worker,
        "--equal-rows": request.equal_rows, "--drop-remainder": request.drop_remainder,
        "--engine spark": request.engine == "spark",
        "--compression": request.compression != DEFAULT_COMPRESSION,
        "--row-group-size": request.row_group_bytes != DEFAULT_ROW_GROUP_BYTES,
    }  # fmt: skip
    return [flag for flag, value in given.items() if value not in (None, False, (), [])]


def layout_of(request: ExportRequest, snapshot: Snapshot) -> Layout:
    """How the export is asked to be cut, as the manifest records it."""
    files = request.files
    multiple = 1 if files is not None else (request.world_size or 1) * max(1, request.workers or 1)
    if request.files_per_worker is not None:
        files = multiple * request.files_per_worker
    return Layout(
        files=files,
        file_bytes=None if files is not None else request.file_bytes or DEFAULT_FILE_BYTES,
        row_group_bytes=request.row_group_bytes,
        compression=request.compression,
        multiple_of=multiple,
        equal_rows=request.equal_rows or request.drop_remainder,
        drop_remainder=request.drop_remainder,
        shuffle=request.shuffle,
        order_by=snapshot.order_by,
        splits=tuple(f"{name}={fraction!r}" for name, fraction in request.splits),
        split_by=snapshot.split_by,
        as_is=request.as_is,
    )


def plan_export(request: ExportRequest, engine: Engine, reason: str, folder: Folder, progress: Progress) -> ExportPlan:
    """Resolves the table and lays the export out, unless it is there already, whole.

    Raises:
        InvalidRequest: rows too few for the files that are asked for.
        VerificationFailed: the folder's manifest is damaged.
        StageError: as the engine says of the table.
    """
    manifest = _previous(folder)
    progress.phase("resolve")
    snapshot = engine.resolve(request)
    layout = layout_of(request, snapshot)
    identity = content_id(snapshot.source, snapshot.schema, layout)
    unchanged = (
        manifest is not None
        and manifest.id == identity
        and not request.force
        and all(TableRef.parse(table).version is not None for table in snapshot.source.tables)
        and _is_whole(folder, manifest)
    )
    if manifest is not None and unchanged:
        splits = tuple(
            PlannedSplit(name, sum(file.rows for file in files), len(files)) for name, files in manifest.splits.items()
        )
        dropped = manifest.dropped
    else:
        splits = _planned_splits(snapshot, layout, engine, progress)
        dropped = sum(split.dropped for split in splits)
    return ExportPlan(
        request=request,
        snapshot=snapshot,
        action="unchanged" if unchanged else "write",
        engine=engine.name,
        engine_reason=reason,
        id=identity,
        rows=sum(split.rows for split in splits),
        files=sum(split.files for split in splits),
        dropped=dropped,
        splits=splits,
        layout=layout,
    )


def _planned_splits(snapshot: Snapshot, layout: Layout, engine: Engine, progress: Progress) -> tuple[PlannedSplit, ...]:
    if snapshot.rows is not None and not layout.splits:
        counts = {"train": snapshot.rows}
    else:
        progress.phase("count")
        counts = engine.count(snapshot, layout)
    total = sum(counts.values())
    files = (snapshot.files or 1) if layout.as_is else layout.files or _files_of(layout, total, snapshot, engine)
    splits = []
    for name, rows in counts.items():
        if total and not rows:
            raise InvalidRequest(
                f"the split `{name}` would have no rows of {total}, and `load_dataset` fails on such a one",
                hint="give it a larger fraction, another `--seed`, or a `--split-by` of more values",
            )
        # By its share of the rows, where the files of all splits together are planned by their bytes.
        own = files if layout.files is not None else -(-files * rows // max(1, total))
        own = -(-max(1, own) // layout.multiple_of) * layout.multiple_of
        if own > rows > 0 and (layout.multiple_of > 1 or layout.equal_rows):
            raise InvalidRequest(
                f"the split `{name}` has {rows} rows, too few for {own} files",
                hint="lower `--world-size`, `--workers` or `--files`, or take more rows",
            )
        own = max(1, min(own, rows))
        dropped = rows % own if layout.drop_remainder else 0
        splits.append(PlannedSplit(name, rows - dropped, own, dropped))
    return tuple(splits)


def _files_of(layout: Layout, rows: int, snapshot: Snapshot, engine: Engine) -> int:
    """How many files hold the rows at about `file_bytes` of the table's own bytes each."""
    file_bytes = layout.file_bytes or DEFAULT_FILE_BYTES
    size, source = snapshot.bytes, snapshot.source
    # The rows of a query may be more than those that the size is of.
    estimated = source.query is not None and snapshot.table_rows is not None
    if size is None or (size <= file_bytes and not estimated):
        return 1
    if estimated or source.where is not None or source.limit is not None or source.sample is not None:
        table_rows = snapshot.table_rows
        if table_rows is None:
            whole = replace(source, where=None, limit=None, sample=None)
            plain = replace(layout, splits=(), split_by=None)
            table_rows = sum(engine.count(replace(snapshot, source=whole, rows=None), plain).values())
        size = size * rows // max(1, table_rows)
    return -(-size // file_bytes)


def _previous(folder: Folder) -> Manifest | None:
    """The manifest of the export that is there.

    Raises:
        VerificationFailed: it is damaged, so that nobody knows which files are the export's.
    """
    if not folder.exists():
        return None
    try:
        return read_manifest(folder)
    except VerificationFailed as error:
        raise VerificationFailed(
            error.message,
            hint=f"nobody can tell which files there belong to the export: remove `{folder.url}` and export again",
        ) from error


def _is_whole(folder: Folder, manifest: Manifest) -> bool:
    """Whether all files of an export are there in their sizes."""
    there = {entry.path: entry.bytes for entry in folder.entries() if not entry.path.startswith(f"{FOLDER}/")}
    return all(there.get(file.path) == file.bytes for file in manifest.files)
