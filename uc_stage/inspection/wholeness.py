"""Whether a dataset is whole: its listing and footers against its record, or against each other where it has none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from uc_stage.errors import StageError
from uc_stage.model import Problem
from uc_stage.parquet import ENCRYPTED_MAGIC, MAGIC, Footer
from uc_stage.publish import is_derived, running, strays
from uc_stage.sources import is_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from uc_stage.model import CopyFile, ExportFile, Field
    from uc_stage.storage import Entry
    from uc_stage.targets import Target

_SHOWN = 3

_HEAD_BYTES = 32
# How files begin that are saved under another name by mistake, in lower case.
_KINDS = (
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<?xml", "XML"),
    (b"version https://git-lfs", "a pointer of Git LFS"),
    (b"{", "JSON"),
    (b"[", "JSON"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"pk\x03\x04", "a ZIP archive"),
    (b"arrow1", "an Arrow file"),
    (b"fea1", "an Arrow file (Feather)"),
    (b"orc", "ORC"),
    (b"obj\x01", "Avro"),
)

# The problems that mean that bytes which should be there are not, or are others.
BROKEN = frozenset({"missing", "truncated", "size_differs", "rows_differ", "unreadable", "changed", "zero_byte"})


def sizes(recorded: Iterable[ExportFile | CopyFile], entries: Mapping[str, Entry]) -> list[Problem]:
    """The recorded files that are missing or of another size."""
    problems = []
    for file in recorded:
        entry = entries.get(file.path)
        if entry is None:
            problems.append(Problem("missing", "is recorded and not there", file.path))
        elif entry.bytes != file.bytes:
            code = "truncated" if entry.bytes < file.bytes else "size_differs"
            problems.append(Problem(code, f"has {entry.bytes} bytes where {file.bytes} are recorded", file.path))
    return problems


def unrecorded(target: Target) -> list[Problem]:
    """The files that the copy's record or the manifest does not name: an export's, running or killed, and others."""
    known = set(_recorded(target))
    ours = set() if target.record else set(strays(list(target.entries), target.manifest))
    now = running(target.folder) if ours else set()
    problems = []
    for path in sorted(set(target.entries) - known):
        if target.record and is_derived(path, known):
            continue
        if path not in ours:
            # Without a record there is nothing to be outside of.
            if target.kind != "folder":
                problems.append(Problem("extra", "is no part of it, and who reads the folder reads it too", path))
        elif any(f"-{generation}." in path for generation in now):
            problems.append(Problem("in_progress", "belongs to an export that is running", path))
        else:
            problems.append(Problem("stray", "was left by an export that did not end; the next one sweeps it", path))
    return problems


def unreadable(found: Mapping[str, Footer | StageError], target: Target) -> list[Problem]:
    """The footers that cannot be read, with what is there instead where it can be told."""
    return [
        Problem("unreadable", _instead(target, path) or without_path(footer, target.folder.locate(path)), path)
        for path, footer in found.items()
        if isinstance(footer, StageError)
    ]


def against_record(footer: Footer, recorded: ExportFile) -> Problem | None:
    """Whether a footer contradicts what the manifest tells of its file."""
    if (footer.rows, len(footer.row_groups)) == (recorded.rows, recorded.row_groups):
        return None
    have = f"{footer.rows} rows in {len(footer.row_groups)} row groups"
    told = f"the manifest tells {recorded.rows} in {recorded.row_groups}"
    return Problem("rows_differ", f"has {have}, {told}", footer.path)


def empty_groups(footer: Footer) -> Problem | None:
    """Whether a file has row groups of no rows."""
    count = sum(not group.rows for group in footer.row_groups)
    if not count:
        return None
    which = "a row group" if count == 1 else f"{count} row groups"
    return Problem("empty_row_group", f"has {which} of no rows: `load_dataset` fails on it", footer.path)


def schemas(found: Iterable[Footer]) -> list[Problem]:
    """The files whose schema is not that of most files, one problem a schema; nullability does not count."""
    groups: dict[tuple[tuple[str, str], ...], list[Footer]] = {}
    for footer in found:
        groups.setdefault(tuple((field.name, field.type) for field in footer.schema), []).append(footer)
    # Of two schemas that are as common, the one of the first file counts.
    ranked = sorted(groups.values(), key=len, reverse=True)
    return [
        Problem(
            "schema_differs",
            f"{_with(odd[1:])}has another schema than most files: {_difference(odd[0], ranked[0][0])}",
            odd[0].path,
        )
        for odd in ranked[1:]
    ]


def against_schema(found: Iterable[Footer], schema: tuple[Field, ...]) -> list[Problem]:
    """The files whose schema is not the manifest's."""
    wanted = Footer("", 0, (), schema, frozenset())
    return [
        Problem("schema_differs", f"has another schema than the manifest: {difference}", footer.path)
        for footer in found
        if (difference := _difference(footer, wanted))
    ]


def loose(entries: Mapping[str, Entry]) -> list[Problem]:
    """What is odd in a folder without a record: marker files, and files of no bytes."""
    problems = []
    for path, entry in entries.items():
        if is_marker(path):
            problems.append(
                Problem("marker", "is a marker file of Spark, not data: loaders that list folders fail on it", path)
            )
        elif entry.bytes == 0:
            problems.append(Problem("zero_byte", "is empty", path))
    return problems


def _instead(target: Target, path: str) -> str | None:
    """What a file with a Parquet name is by its first bytes, where these are not Parquet's."""
    try:
        with target.folder.open(path) as file:
            head = file.read(_HEAD_BYTES)
    except (StageError, OSError):  # the footer's error tells more
        return None
    if not head or head[:4] in (MAGIC, ENCRYPTED_MAGIC):
        return None
    kind = next((kind for begin, kind in _KINDS if head.lstrip()[: len(begin)].lower() == begin), None)
    return f"is no Parquet, though it is named so: {f'it begins as {kind}' if kind else 'it begins with other bytes'}"


def without_path(error: StageError, whole: str) -> str:
    """An error's message without the path that it begins with."""
    return error.message.removeprefix(f"`{whole}`").lstrip(": ")


def tables(paths: Iterable[str]) -> list[Problem]:
    """The Delta tables that lie in a folder, whose files hold deleted rows too and are left out of its counts."""
    return [
        Problem("table", "is a Delta table: inspect it by itself, and export it to read it", path) for path in paths
    ]


def main_schema(found: list[Footer]) -> tuple[Field, ...]:
    """The schema of most files, or of the first where two are as common; empty without files."""
    counts = Counter(footer.schema for footer in found)
    return counts.most_common(1)[0][0] if counts else ()


def _recorded(target: Target) -> tuple[str, ...]:
    if target.record:
        return tuple(file.path for file in target.record.files)
    if target.manifest is None:
        return ()
    retained = (path for paths in target.manifest.retained.values() for path in paths)
    return (*(file.path for file in target.manifest.files), *retained)


def _with(others: list[Footer]) -> str:
    if not others:
        return ""
    more = len(others) - _SHOWN
    names = ", ".join(f"`{footer.path}`" for footer in others[:_SHOWN])
    return f"like {names}{f' and {more} more' if more > 0 else ''}, "


def _difference(one: Footer, other: Footer) -> str:
    """How one schema differs from the other, by its first few columns; empty where it does not."""
    has, wants = ({field.name: field.type for field in footer.schema} for footer in (one, other))
    said = [f"lacks `{name}`" for name in wants if name not in has]
    said += [f"has `{name}` too" for name in has if name not in wants]
    said += [
        f"`{name}` is {has[name]}, not {wants[name]}" for name in wants if name in has and has[name] != wants[name]
    ]
    if not said and [field.name for field in one.schema] != [field.name for field in other.schema]:
        said = ["the columns are in another order"]
    return ", ".join(said[:_SHOWN]) + (f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else "")
