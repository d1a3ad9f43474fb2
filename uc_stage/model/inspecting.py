"""What `inspect` is asked for and finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from uc_stage.model.tables import Field


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """What `inspect` is asked for."""

    target: str
    verify: bool = False
    version: int | None = None
    timestamp: str | None = None
    remote: str | None = None


TargetKind = Literal["table", "export", "copy", "folder", "file"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The least, the middle and the greatest of some sizes or counts."""

    min: int
    median: int
    max: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be: a stable `code`, the words, and the file where there is one."""

    code: str
    message: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """What the tar shards of a packed copy hold: so many files of the source, in so many of WebDataset's samples."""

    shards: int
    samples: int
    files: int


@dataclass(frozen=True, slots=True)
class InspectReport:
    """What a target is and holds. What a kind of target has no word for is None.

    Attributes:
        source: the table of an export, the source of a copy.
        created_at: when the table's version was committed, the export published, or the copy made.
        files, bytes: those on disk now that belong to the target; a table's are None where the log does not tell.
        splits: the rows of each split.
        row_group_rows, row_group_bytes: over all row groups of the Parquet files; bytes are uncompressed.
        freshness: `fresh` or `stale` against the table (an export) or the source (a copy); `unknown` where that
            cannot be reached from here; None for what has no origin.
        verified: whether every file's bytes match what was recorded; None unless `verify` was asked.
        verified_detail: how many files were checked in which way.
        variant: the part of its source that a copy holds, as its record tells; empty for all of it.
        packed: what a copy's tar shards hold; None for a copy of another form, or with a broken index.
    """

    target: str
    kind: TargetKind
    source: str | None = None
    table_id: str | None = None
    version: int | None = None
    created_at: str | None = None
    id: str | None = None
    generation: str | None = None
    engine: str | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    splits: dict[str, int] = field(default_factory=dict)
    schema: tuple[Field, ...] = ()
    row_groups: int | None = None
    row_group_rows: Spread | None = None
    row_group_bytes: Spread | None = None
    file_bytes: Spread | None = None
    compression: str | None = None
    freshness: Literal["fresh", "stale", "unknown"] | None = None
    freshness_detail: str | None = None
    verified: bool | None = None
    verified_detail: str | None = None
    problems: tuple[Problem, ...] = ()
    variant: str = ""
    packed: Packed | None = None
