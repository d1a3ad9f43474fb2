"""Shows how one target differs from another: a table of the facts, then the columns and files that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.cli.text import amount, printable
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import DiffReport, DiffSide, FilesDiff, RowsDiff

_FILES = 5


def render(report: DiffReport) -> None:
    """Prints a diff; `--json` has the names of all files."""
    _table(_facts(report))
    for line in (*_schema(report), *_files(report.files)):
        print(printable(line))
    print(f"\n{'the same' if report.same else 'not the same'}")


def _facts(report: DiffReport) -> list[tuple[str, str, str, str]]:
    one, other = report.target, report.other
    rows = [("", one.target, other.target, ""), ("kind", one.kind, other.kind, "")]
    told = {difference.name: difference for difference in report.origin}
    rows += [
        (name, str(shared), str(shared), "")
        for name in ("version", "generation")
        if name not in told and (shared := getattr(one, name)) is not None and shared == getattr(other, name)
    ]
    rows += [(name, _value(one.value), _value(one.other), "differs") for name, one in told.items()]
    rows.append(("rows", *_counts(report.rows)))
    if len(report.splits) > 1 or report.splits.keys() - {"train"}:
        rows += [(f"  {name}", *_counts(split)) for name, split in report.splits.items()]
    rows.append(("files", _held(one), _held(other), ""))
    return rows


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _counts(rows: RowsDiff) -> tuple[str, str, str]:
    mine, theirs = ("-" if count is None else f"{count:,}" for count in (rows.rows, rows.other))
    return mine, theirs, f"{rows.difference:+,}" if rows.difference else ""


def _held(side: DiffSide) -> str:
    if side.files is None:
        return "-"
    return f"{side.files:,}" if side.bytes is None else f"{side.files:,}, {format_size(side.bytes)}"


def _table(rows: Sequence[tuple[str, str, str, str]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for name, mine, theirs, difference in rows:
        line = f"{name:<{widths[0]}}  {mine:<{widths[1]}}  {theirs:<{widths[2]}}  {difference}"
        print(printable(line.rstrip()))


def _schema(report: DiffReport) -> list[str]:
    schema = report.schema
    lines = [f"  + {field.name}: {field.type}" for field in schema.added]
    lines += [f"  - {field.name}: {field.type}" for field in schema.removed]
    lines += [f"  ~ {column.name}: {column.type} -> {column.other}" for column in schema.retyped]
    if schema.reordered:
        lines.append("  the columns are in another order")
    return ["", "schema", *lines] if lines else []


def _files(files: FilesDiff) -> list[str]:
    if files.reason is not None:
        return ["", f"files were not compared: {files.reason}"]
    if not (files.added or files.removed or files.changed):
        return ["", f"files: {amount(files.same, 'files')} the same by {files.by}"] if files.same else []
    lines = ["", f"files, by {files.by}: {files.same:,} the same"]
    for mark, word, paths in (
        ("+", "added", files.added),
        ("-", "removed", files.removed),
        ("~", "changed", files.changed),
    ):
        lines += [f"  {mark} {path}" for path in paths[:_FILES]]
        if len(paths) > _FILES:
            lines.append(f"  {mark} and {len(paths) - _FILES:,} more {word}: --json has them")
    return lines
