"""Whether a dataset is whole: its listing and footers against its record, or against each other where it has none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from uc_stage.errors import StageError
from uc_stage.model import Problem
from uc_stage.parquet import Footer
from uc_stage.publish import is_derived, running, strays
from uc_stage.sources import is_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from uc_stage.manifest import Manifest
    from uc_stage.model import CopyFile, ExportFile, Field
    from uc_stage.storage import Entry
    from uc_stage.targets import Target

_SHOWN = 3

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


def footers(found: Mapping[str, Footer | StageError], manifest: Manifest | None, target: Target) -> list[Problem]:
    """The footers that cannot be read, or that contradict the manifest."""
    told = {file.path: file for file in manifest.files} if manifest else {}
    problems = []
    for path, footer in found.items():
        if isinstance(footer, StageError):
            problems.append(Problem("unreadable", without_path(footer, target.folder.locate(path)), path))
        elif path in told and (footer.rows, len(footer.row_groups)) != (told[path].rows, told[path].row_groups):
            have = f"{footer.rows} rows in {len(footer.row_groups)} row groups"
            problems.append(
                Problem(
                    "rows_differ", f"has {have}, the manifest tells {told[path].rows} in {told[path].row_groups}", path
                )
            )
    return problems


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
