"""Rules about how files and row groups are cut, and about columns that are too large for one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from uc_stage.inspection.facts import Finding
from uc_stage.sizes import format_size
from uc_stage.tally import spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.inspection.facts import Facts

_MIB = 1024**2
# A window of shuffling, or what a worker reads ahead, is whole row groups.
_LARGE_GROUP = 512 * _MIB
_SMALL_GROUP, _MANY_GROUPS, _GROUPS_A_FILE = _MIB, 100, 2
# 32-bit offsets of one Arrow array reach 2 GiB.
_OFFSETS = 2**31
_NEAR = _OFFSETS * 3 // 4
_SMALL_FILE, _MANY_FILES, _MANY_OTHERS = _MIB, 100, 1000
_FILES_A_READER = 4


def large_groups(facts: Facts) -> Iterator[Finding]:
    """Row groups that fill a worker's memory."""
    groups = facts.report.row_group_bytes
    if groups and groups.max > _LARGE_GROUP:
        yield Finding(
            f"a row group has {format_size(groups.max)} before compression: each worker holds one whole or more, and "
            "rows are shuffled among few of them",
            {"largest": groups.max, "median": groups.median, "row_groups": facts.report.row_groups},
            facts.export("--row-group-size", "64MiB"),
        )


def small_groups(facts: Facts) -> Iterator[Finding]:
    """Many tiny row groups in a file."""
    report = facts.report
    groups, count, files = report.row_group_bytes, report.row_groups or 0, report.files or 1
    if groups and count >= max(_MANY_GROUPS, _GROUPS_A_FILE * files + 1) and groups.median < _SMALL_GROUP:
        yield Finding(
            f"{count:,} row groups have {format_size(groups.median)} each in the middle: each is a read, a decode and "
            "an entry in the footer for itself",
            {"row_groups": count, "median": groups.median, "files": files},
            facts.export("--row-group-size", "64MiB"),
        )


def nested_columns(facts: Facts) -> Iterator[Finding]:
    """Nested columns that near what one Arrow array holds."""
    found = {
        column.path: column.largest
        for column in facts.report.columns
        if column.path != column.column and column.largest >= _NEAR
    }
    if found:
        path = max(found, key=lambda one: found[one])
        yield Finding(
            f"`{path}` has {format_size(found[path])} in one row group: at 2 GiB pyarrow ends with "
            "`Nested data conversions not implemented for chunked array outputs`",
            {"columns": found, "limit": _OFFSETS},
            facts.export("--row-group-size", "64MiB"),
        )


def small_files(facts: Facts) -> Iterator[Finding]:
    """Many small files, each of which is a round trip."""
    report = facts.report
    sizes = spread(facts.table.sizes) if facts.table else report.file_bytes
    count = len(facts.table.sizes) if facts.table else report.files or 0
    if sizes is None or sizes.median >= _SMALL_FILE or report.packed is not None:
        return
    tabular = bool(report.schema)
    if count < (_MANY_FILES if tabular else _MANY_OTHERS):
        return
    # So many were asked for, or are needed.
    if tabular and facts.readers is not None and count <= _FILES_A_READER * facts.readers:
        return
    source = shlex.quote(facts.origin or report.target)
    fix = facts.export("--file-size", "512MiB") if tabular else f"uc-stage cache {source} --pack"
    yield Finding(
        f"{count:,} files of {format_size(sizes.median)} each in the middle: to list and open them takes longer than "
        "to read them",
        {"files": count, "median": sizes.median},
        fix,
    )


def no_rows(facts: Facts) -> Iterator[Finding]:
    """Nothing to train on: no rows, or rows of no columns."""
    report = facts.report
    empty = [split for split, rows in facts.rows.items() if not sum(rows)]
    if report.rows == 0 and facts.table:
        empty = [""]
    if empty:
        names = ", ".join(f"`{name}`" for name in empty)
        what = f"the split {names} holds" if len(facts.rows) > 1 else "it holds"
        yield Finding(
            f"{what} no rows: `load_dataset` fails on it",
            {"splits": empty},
            "check the condition or the version that it was written from",
        )
    elif facts.rows and not report.schema:
        yield Finding(
            f"it holds {report.rows:,} rows without a column: `load_dataset` fails on it",
            {"columns": 0, "rows": report.rows},
            "write it again with its columns",
        )
