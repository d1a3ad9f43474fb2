"""How two targets differ: their columns, rows and files, and the origin that their records tell of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.forms.pack import members
from uc_stage.forms.shards import is_packed
from uc_stage.inspection import contents
from uc_stage.ipc import is_stream_name
from uc_stage.model import Differing, DiffReport, DiffSide, FilesDiff, Retyped, RowsDiff, SchemaDiff
from uc_stage.sources import is_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from uc_stage.manifest import Manifest
    from uc_stage.model import Field, InspectReport
    from uc_stage.targets import Target

# A file's name holds the generation that wrote it: `train-00000-of-00004-v42-1f3a9c.parquet`.
_GENERATION = re.compile(r"-v\d+-[0-9a-f]{6}(?=\.parquet$)")
# These two are told, and are no difference of what is held.
_NAMES = frozenset({"table", "generation"})

_Form = Literal["files", "arrow", "packed", "table"]


@dataclass(frozen=True, slots=True)
class Held:
    """One file: its bytes, and what tells its content, where that is recorded: a hash, or a table's deleted rows."""

    bytes: int
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what was found of it, its files by their paths, and its record."""

    report: InspectReport
    form: _Form
    files: dict[str, Held]
    manifest: Manifest | None = None
    manifest_id: str | None = None
    folder: str | None = None

    @classmethod
    def of_table(cls, report: InspectReport, files: Mapping[str, Held] | None) -> Side:
        """A table; `files` is None where its engine does not list them."""
        return cls(report, "table", dict(files or {}))

    @classmethod
    def of_files(cls, report: InspectReport, found: Target) -> Side:
        """An export, a copy, a folder or a file: the files that it has now and that belong to it."""
        record, manifest = found.record, found.manifest
        recorded = record.files if record else manifest.files if manifest else None
        held = {path: Held(entry.bytes) for path, entry in found.entries.items() if not is_marker(path)}
        if recorded is not None:
            # A file of another size is another one than the hash was taken of.
            held = {
                file.path: Held(held[file.path].bytes, file.xxh3_128 if held[file.path].bytes == file.bytes else None)
                for file in recorded
                if file.path in held
            }
        form: _Form = "files"
        if record and is_packed(record.variant):
            form = "packed"
        elif record and any(is_stream_name(path) for path in held):
            form = "arrow"
        return cls(report, form, held, manifest, report.id, found.folder.url)

    def opened(self) -> dict[str, Held] | None:
        """The files that a packed copy was made from; None where its index is gone."""
        assert self.folder is not None
        sizes = members(self.folder)
        return None if sizes is None else {path: Held(size) for path, size in sizes.items()}


def compare(one: Side, other: Side) -> DiffReport:
    """Tells how `other` differs from `one`."""
    schema = _schema(one.report.schema, other.report.schema)
    rows, splits = _rows(one.report, other.report)
    files, origin = _files(one, other), _origin(one, other)
    counted = [difference for difference in origin if difference.name not in _NAMES]
    return DiffReport(
        target=_side(one.report),
        other=_side(other.report),
        same=not (
            counted
            or schema != SchemaDiff()
            or any(one.difference for one in (rows, *splits.values()))
            or files.added
            or files.removed
            or files.changed
        ),
        schema=schema,
        rows=rows,
        files=files,
        splits=splits,
        origin=origin,
    )


def _side(report: InspectReport) -> DiffSide:
    return DiffSide(
        report.target, report.kind, report.version, report.generation, report.rows, report.files, report.bytes
    )


def _schema(one: Iterable[Field], other: Iterable[Field]) -> SchemaDiff:
    mine, theirs = {field.name: field for field in one}, {field.name: field for field in other}
    common = [name for name in mine if name in theirs]
    return SchemaDiff(
        added=tuple(field for name, field in theirs.items() if name not in mine),
        removed=tuple(field for name, field in mine.items() if name not in theirs),
        retyped=tuple(
            Retyped(name, mine[name].type, theirs[name].type) for name in common if mine[name].type != theirs[name].type
        ),
        reordered=common != [name for name in theirs if name in mine],
    )


def _rows(one: InspectReport, other: InspectReport) -> tuple[RowsDiff, dict[str, RowsDiff]]:
    splits = {}
    if one.splits and other.splits:
        for name in {**one.splits, **other.splits}:
            # A split that is not there has no rows.
            mine, theirs = one.splits.get(name, 0), other.splits.get(name, 0)
            splits[name] = RowsDiff(mine, theirs, theirs - mine)
    known = one.rows is not None and other.rows is not None
    difference = other.rows - one.rows if known else None  # type: ignore[operator]  # known tells that both are
    return RowsDiff(one.rows, other.rows, difference), splits


def _files(one: Side, other: Side) -> FilesDiff:
    mine: dict[str, Held] | None = one.files
    theirs: dict[str, Held] | None = other.files
    if {one.form, other.form} == {"files", "packed"}:
        mine, theirs = (side.opened() if side.form == "packed" else side.files for side in (one, other))
    elif one.form != other.form:
        return FilesDiff(reason=_apart(one, other))
    if mine is None or theirs is None:
        return FilesDiff(reason="the index of the packed copy is gone or broken, which tells what its shards hold")
    if one.form == "table" and not (mine and theirs) and (one.report.files or other.report.files):
        return FilesDiff(reason="the engine does not list a table's files")
    if one.report.generation != other.report.generation:
        mine, theirs = _without_generation(mine), _without_generation(theirs)
    common = [path for path in mine if path in theirs]
    changed = [path for path in common if _differ(mine[path], theirs[path])]
    hashed = sum(None not in (mine[path].mark, theirs[path].mark) for path in common)
    by = "size" if not hashed else "hash" if hashed == len(common) else "hash and size"
    return FilesDiff(
        added=tuple(sorted(path for path in theirs if path not in mine)),
        removed=tuple(sorted(path for path in mine if path not in theirs)),
        changed=tuple(sorted(changed)),
        same=len(common) - len(changed),
        by="name" if one.form == "table" else by,
    )


def _apart(one: Side, other: Side) -> str:
    words = {"table": "a table has files of its own", "arrow": "a copy as Arrow has files of its own"}
    return next(
        (words[form] for form in ("table", "arrow") if form in (one.form, other.form)),
        "the two are of different forms",
    )


def _without_generation(files: Mapping[str, Held]) -> dict[str, Held]:
    return {_GENERATION.sub("", path): held for path, held in files.items()}


def _differ(one: Held, other: Held) -> bool:
    if one.bytes != other.bytes:
        return True
    return one.mark is not None and other.mark is not None and one.mark != other.mark


def _origin(one: Side, other: Side) -> tuple[Differing, ...]:
    mine, theirs = _told(one), _told(other)
    if mine is None or theirs is None:
        return ()
    if one.manifest and other.manifest:
        # It follows from the others.
        names = [name for name in dict.fromkeys([*mine, *theirs]) if name != "id"]
    else:
        names = [name for name in mine if name in theirs]
    return tuple(
        Differing(name, mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)
    )


def _told(side: Side) -> dict[str, Any] | None:
    """What a table or a record tells of the origin; None for what has none."""
    report, manifest = side.report, side.manifest
    if side.form == "table":
        return {"table": report.source, "table_id": report.table_id, "version": report.version}
    if manifest is None:
        # A copy as Arrow has no manifest, and tells of which one it was made.
        return {"generation": report.generation, "id": side.manifest_id} if side.manifest_id else None
    source, options = manifest.source, contents.options(manifest)
    return {
        "table": source.table,
        "table_id": source.table_id,
        "version": source.version,
        "generation": manifest.generation,
        "id": manifest.id,
        **{f"options.{name}": value for name, value in options.items()},
    }
