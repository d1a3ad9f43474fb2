"""What `inspect` is asked for and finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from uc_stage.model.loading import LoaderSettings
    from uc_stage.model.tables import Field


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """What `inspect` is asked for.

    Attributes:
        world_size, workers, batch_size: of the training that is to read it; without a world size, the launcher's.
        fail_on: the least severity that makes the command fail.
        ignore: the ids of rules that say nothing.
    """

    target: str
    verify: bool = False
    version: int | None = None
    timestamp: str | None = None
    remote: str | None = None
    world_size: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    fail_on: Literal["wrong", "warn"] | None = None
    ignore: tuple[str, ...] = ()


Severity = Literal["wrong", "warn", "info"]
TargetKind = Literal["table", "export", "copy", "folder", "file"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The least, the middle and the greatest of some sizes or counts."""

    min: int
    median: int
    max: int


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf of the Parquet schema, over all row groups of all files.

    Attributes:
        path: the leaf's path in the Parquet schema: `pair.list.element`.
        column: the column that it belongs to.
        physical, logical: the types of the Parquet format; a leaf may have no logical one.
        bytes, uncompressed: of its pages, on disk and before compression.
        share: of the bytes of all columns, from 0 to 1.
        largest: the most uncompressed bytes that it has in one row group.
        values: with NULLs; a list has one for each element.
        nulls: None where a row group does not tell.
        encodings, compression: of the data pages, in all files.
        distinct_min: the most distinct values that one row group tells of; None where none tells.
        distinct_max: the sum over all row groups; None where one does not tell. With one row group both are exact.
    """

    path: str
    column: str
    physical: str
    logical: str | None
    bytes: int
    uncompressed: int
    share: float
    largest: int
    values: int
    nulls: int | None
    encodings: tuple[str, ...]
    compression: tuple[str, ...]
    distinct_min: int | None = None
    distinct_max: int | None = None


@dataclass(frozen=True, slots=True)
class Footers:
    """What the footers of some files tell, all together.

    Attributes:
        uncompressed: the bytes of all pages before compression, by split.
        row_group_rows, row_group_bytes: over all row groups; bytes are uncompressed; None where there is none.
        columns: in the order of the first file; each path once.
    """

    uncompressed: dict[str, int]
    row_group_rows: Spread | None
    row_group_bytes: Spread | None
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class SplitShare:
    """What a split of an export holds; `uncompressed` is None where the footers were not kept."""

    rows: int
    files: int
    bytes: int
    uncompressed: int | None


@dataclass(frozen=True, slots=True)
class Bin:
    """The files of at least `least` and less than `below` bytes."""

    least: int
    below: int
    files: int


@dataclass(frozen=True, slots=True)
class Pile:
    """Some files of a folder that have something in common."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be: a stable `code`, the words, and the file where there is one.

    `rule`, `severity` and `fix` are those of the rule that the code belongs to.
    """

    code: str
    message: str
    path: str | None = None
    rule: str = ""
    severity: Severity = "wrong"
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What a rule says of a target and a training: `evidence` in numbers and names, and the `fix` that mends it.

    `wrong`: rows are wrong or missing in silence, or cannot be read; `warn`: a job may die, hang or wait; `info`: it is
    as well to know.
    """

    rule: str
    severity: Severity
    message: str
    evidence: dict[str, Any]
    fix: str


@dataclass(frozen=True, slots=True)
class Packed:
    """What the tar shards of a packed copy hold: so many files of the source, in so many of WebDataset's samples."""

    shards: int
    samples: int
    files: int


@dataclass(frozen=True, slots=True)
class Freshness:
    """How something compares with its origin as that is now.

    Attributes:
        detail: what it was compared with, or why the state is unknown.
        versions_behind: how many versions of the table the origin is ahead; negative where it is behind.
        rows_behind: how many more rows the origin has now; negative for fewer. None, as that of the versions, where
            neither the log nor a manifest tells.
    """

    state: Literal["fresh", "stale", "unknown"]
    detail: str
    versions_behind: int | None = None
    rows_behind: int | None = None


@dataclass(frozen=True, slots=True)
class InspectReport:
    """What a target is and holds. What a kind of target has no word for is None.

    Attributes:
        source: the table of an export, the source of a copy.
        version_at, version_age: when the table's version was committed, and the seconds since.
        created_at: when the table's version was committed, the export published, or the copy made.
        options: what an export was asked for beyond its table, by the manifest's names: `where`, `files` and so on.
        files, bytes: those on disk now that belong to the target; a table's are None where the log does not tell.
        uncompressed: the bytes of all Parquet pages before compression.
        splits: the rows of each split.
        split_shares: what else each split holds.
        row_group_rows, row_group_bytes: over all row groups of the Parquet files; bytes are uncompressed.
        columns: the leaves of the Parquet schema, as the footers tell them; empty where none was read or kept.
        footers_read: how many footers this look had to read; those of an export are kept in its manifest.
        file_sizes: the files by their bytes, each bin up to twice as large as the one before; empty for no files.
        extensions: the files by what their names end with, in lower case, `.jpg`; the most bytes first.
        folders: those that are no Parquet by the folder they lie in: the classes of images or of audio.
        freshness: `fresh` or `stale` against the table (an export) or the source (a copy); `unknown` where that
            cannot be reached from here; None for what has no origin.
        versions_behind, rows_behind: as `Freshness` has them, of the same comparison.
        source_freshness: of a copy's export against its table.
        loader: how to read it here, by `torch` for uc-stage's own loader and `hf`; empty for what has no Parquet or
            Arrow rows.
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
    version_at: str | None = None
    version_age: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    uncompressed: int | None = None
    split_shares: dict[str, SplitShare] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    footers_read: int = 0
    file_sizes: tuple[Bin, ...] = ()
    extensions: dict[str, Pile] = field(default_factory=dict)
    folders: dict[str, Pile] = field(default_factory=dict)
    versions_behind: int | None = None
    rows_behind: int | None = None
    source_freshness: Freshness | None = None
    loader: dict[str, LoaderSettings] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    fail_on: Literal["wrong", "warn"] | None = None

    @property
    def failing(self) -> tuple[Problem | Advice, ...]:
        """The problems and the advice that are as severe as `fail_on` asks, or more; none where it asks nothing."""
        severe = {"wrong": ("wrong",), "warn": ("wrong", "warn"), None: ()}[self.fail_on]
        found: tuple[Problem | Advice, ...] = (*self.problems, *self.advice)
        return tuple(one for one in found if one.severity in severe)
