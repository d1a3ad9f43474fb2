"""Checks what an engine wrote, by the footers, before the manifest names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.errors import StageError, VerificationFailed
from uc_stage.model import ExportFile
from uc_stage.parquet import read_footers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import ExportPlan
    from uc_stage.parquet import Footer
    from uc_stage.progress import Progress
    from uc_stage.publish import Written
    from uc_stage.storage import Folder
    from uc_stage.tally import Tally

_AGAIN = "run the export again; if it stays, check the table with another reader"


def checked_splits(
    plan: ExportPlan,
    folder: Folder,
    names: dict[str, tuple[str, ...]],
    written: dict[str, Written],
    tally: Tally,
    progress: Progress,
) -> dict[str, tuple[ExportFile, ...]]:
    """Reads the footers of what was written, adds them up, and gives the manifest's entries of each split.

    Raises:
        VerificationFailed: a file that is not whole, of another schema or with an empty row group, or rows or NULLs
            that do not add up to what the table's version holds.
    """
    expected = None if plan.dropped else plan.snapshot.null_counts
    split_of = {name: split for split, files in names.items() for name in files}
    footers = read_footers(
        folder,
        split_of,
        progress,
        nulls=expected is not None,
        take=lambda footer: tally.add(footer, split_of[footer.path]),
    )
    splits = {}
    for split in plan.splits:
        if len(names[split.name]) != split.files:
            raise VerificationFailed(
                f"the split `{split.name}` should have {split.files} files, and {len(names[split.name])} were written",
                hint="run the export again",
            )
        splits[split.name] = tuple(
            _checked_file(plan, folder, name, footers[name], written.get(name)) for name in names[split.name]
        )
        rows = sum(file.rows for file in splits[split.name])
        if rows != split.rows:
            source = plan.snapshot.source
            raise VerificationFailed(
                f"`{source.table}` version {source.version} holds {split.rows} rows of the split `{split.name}` of "
                f"this export, and {rows} were written",
                hint=_AGAIN,
            )
    if expected is not None:
        _check_nulls(plan, expected, [footer for footer in footers.values() if not isinstance(footer, StageError)])
    return splits


def _checked_file(
    plan: ExportPlan, folder: Folder, name: str, footer: Footer | StageError, ours: Written | None
) -> ExportFile:
    if isinstance(footer, StageError):
        raise footer
    _check_footer(plan, folder, footer)
    entry = folder.stat(name)
    if entry is None:
        raise _damaged(folder, name, "is gone")
    if ours is not None and ours.bytes != entry.bytes:
        raise _damaged(folder, name, f"has {entry.bytes} bytes, and {ours.bytes} were written")
    return ExportFile(name, entry.bytes, footer.rows, len(footer.row_groups), ours.xxh3_128 if ours else None)


def _check_footer(plan: ExportPlan, folder: Folder, footer: Footer) -> None:
    # Files that went over as they are may say that a column has no NULL.
    told = [(field.name, field.type, field.nullable or plan.layout.as_is) for field in footer.schema]
    planned = [(field.name, field.type, field.nullable) for field in plan.snapshot.schema]
    if told != planned:
        differ = [f"`{name}: {kind}`" for name, kind, nullable in told if (name, kind, nullable) not in planned]
        raise _damaged(folder, footer.path, f"has another schema than was planned: {', '.join(differ) or 'its order'}")
    if any(group.rows == 0 for group in footer.row_groups):
        raise _damaged(folder, footer.path, "has a row group of no rows")


def _check_nulls(plan: ExportPlan, expected: dict[str, int], footers: Sequence[Footer]) -> None:
    """Compares the NULLs of each flat column with those that the table's log tells of."""
    source = plan.snapshot.source
    for name, count in expected.items():
        found = [footer.nulls[name] for footer in footers if footer.nulls is not None and name in footer.nulls]
        if len(found) == len(footers) and sum(found) != count:
            raise VerificationFailed(
                f"the log of `{source.table}` version {source.version} tells of {count} NULLs in `{name}`, "
                f"and {sum(found)} were written",
                hint=_AGAIN,
            )


def _damaged(folder: Folder, name: str, why: str) -> VerificationFailed:
    return VerificationFailed(f"`{folder.locate(name)}`, just written, {why}", hint="run the export again")
