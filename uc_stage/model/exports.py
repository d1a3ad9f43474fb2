"""What `export` is asked for, plans, and records in a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from uc_stage.model.tables import Field, TableRef

DEFAULT_FILE_BYTES = 512 * 1024**2
DEFAULT_ROW_GROUP_BYTES = 64 * 1024**2
DEFAULT_COMPRESSION: Literal["zstd"] = "zstd"
DEFAULT_MEMORY = 512 * 1024**2
EngineName = Literal["auto", "local", "spark"]
Compression = Literal["zstd", "snappy", "none"]
Loader = Literal["any", "hf", "torch"]


@dataclass(frozen=True, slots=True)
class Source:
    """Which rows an export holds: of a table, resolved to one version, or of a query.

    Attributes:
        table: as the engine names it; `query` for the rows of a query.
        table_id: of the table; empty for a query.
        version: of the table; 0 for a query.
        timestamp: the version's commit time, ISO 8601.
        casts: the columns that change their type, each `COLUMN=TYPE`.
        sample: the fraction of the rows that is drawn.
        seed: of the sample, the splits and the shuffle; None where nothing is drawn.
        tables: the tables that a query reads, each `NAME@vN`, or `NAME` alone where its version is not told.
    """

    table: str
    table_id: str
    version: int
    timestamp: str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    limit: int | None = None
    casts: tuple[str, ...] = ()
    sample: float | None = None
    seed: int | None = None
    query: str | None = None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """How an export's rows are ordered, split and cut into files, as it was asked for.

    Attributes:
        files: of each split, where a number was asked for.
        file_bytes: the target of a file's bytes, where none was.
        row_group_bytes: the target of a row group's uncompressed bytes.
        compression: of the pages; with `as_is` those of the table's files may differ.
        multiple_of: each split has a multiple of so many files: ranks times workers.
        equal_rows: all files of a split hold the same number of rows, give or take one.
        drop_remainder: and exactly the same, since the last few rows are left out.
        shuffle: the order is a random one, drawn by the source's seed.
        order_by: the columns that decide the order, each `NAME ASC` or `NAME DESC`; NULL comes first in both.
        splits: the splits that rows are drawn into, each `NAME=FRACTION`; the one split `train` where empty.
        split_by: the column whose equal values stay in one split.
        as_is: the table's own files were copied, byte for byte.
    """

    files: int | None
    file_bytes: int | None
    row_group_bytes: int
    compression: Compression
    multiple_of: int = 1
    equal_rows: bool = False
    drop_remainder: bool = False
    shuffle: bool = False
    order_by: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    split_by: str | None = None
    as_is: bool = False


@dataclass(frozen=True, slots=True)
class ExportFile:
    """One Parquet file of an export; `path` is relative to the export, with `/`; `xxh3_128` is 32 hex digits."""

    path: str
    bytes: int
    rows: int
    row_groups: int
    xxh3_128: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table, as an engine resolved it for one request.

    Attributes:
        source: the pinned version with what is asked of it.
        schema: the columns that will be written, in order; all of them nullable, whatever the table says.
        rows: the rows that the request holds, where the log alone tells it exactly.
        bytes: the size of the version's data files, for planning; None where unknown.
        table_rows: the rows that `bytes` is the size of, all of them, for planning; None where unknown.
        files: the number of the version's data files; None where unknown.
        null_counts: the NULLs of each column that the log tells of, where all rows are asked for.
        order_by: what the request orders by, in the table's own case.
        split_by: the column that it splits by, in the table's own case.
    """

    source: Source
    schema: tuple[Field, ...]
    rows: int | None
    bytes: int | None
    table_rows: int | None = None
    files: int | None = None
    null_counts: dict[str, int] | None = None
    order_by: tuple[str, ...] = ()
    split_by: str | None = None


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What `export` is asked for; sizes are bytes, `sample` and the numbers of `splits` are fractions of the rows.

    `query` stands in place of a table, whose text is then `query`; `dest` is empty where rows are loaded, not written.
    """

    table: TableRef
    dest: str
    engine: EngineName = "auto"
    remote: str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    limit: int | None = None
    files: int | None = None
    file_bytes: int | None = None
    row_group_bytes: int = DEFAULT_ROW_GROUP_BYTES
    compression: Compression = DEFAULT_COMPRESSION
    keep: int = 0
    force: bool = False
    query: str | None = None
    exclude: tuple[str, ...] | None = None
    casts: tuple[tuple[str, str], ...] = ()
    loader: Loader = "any"
    sample: float | None = None
    seed: int = 0
    shuffle: bool = False
    order_by: tuple[str, ...] = ()
    splits: tuple[tuple[str, float], ...] = ()
    split_by: str | None = None
    world_size: int | None = None
    workers: int | None = None
    files_per_worker: int | None = None
    equal_rows: bool = False
    drop_remainder: bool = False
    memory: int = DEFAULT_MEMORY
    as_is: bool = False


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split as it will be written: `rows` in `files` files, and `dropped` rows left out to make those equal."""

    name: str
    rows: int
    files: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What `export` will do: `action` is `unchanged` where the export at `dest` already holds it, whole.

    `rows`, `files` and `dropped` are those of all splits.
    """

    request: ExportRequest
    snapshot: Snapshot
    action: Literal["write", "unchanged"]
    engine: str
    engine_reason: str
    id: str
    rows: int
    files: int
    dropped: int
    splits: tuple[PlannedSplit, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What `export` did."""

    status: Literal["done", "unchanged"]
    table: str
    query: str | None
    version: int
    dest: str
    id: str
    generation: str
    engine: str
    engine_reason: str
    rows: int
    files: int
    bytes: int
    splits: dict[str, int]
    dropped: int
    retired: int
    seconds: float
