"""The values that pass between the layers: requests, plans and reports. Standard library only.

Sizes are bytes, times are seconds, row counts are rows; nothing here is formatted for a reader.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import Literal

from uc_stage.errors import InvalidRequest

# Local NVMe on the platform; `caching` refuses the folder where somebody else prepared it.
DEFAULT_CACHE_DIR = "/tmp/uc-stage"  # noqa: S108

DEFAULT_ROW_GROUP_BYTES = 64 * 1024**2
DEFAULT_COMPRESSION: Literal["zstd"] = "zstd"
DEFAULT_MEMORY = 512 * 1024**2

EngineName = Literal["auto", "local", "spark"]
Compression = Literal["zstd", "snappy", "none"]
Loader = Literal["any", "hf", "torch"]

_PINNED = re.compile(r"(?P<text>.+)@v(?P<version>\d+)", re.DOTALL)
_NAME = re.compile(r"(?:`[^`]+`|[^\s`./\\:~]+)(?:\.(?:`[^`]+`|[^\s`./\\:~]+)){0,2}")


def read_timestamp(text: str) -> dt.datetime:
    """Reads an ISO 8601 time; one without a zone is UTC.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        moment = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise InvalidRequest(
            f"`--timestamp {text}` is not a time", hint="write it as `2026-01-31` or `2026-01-31T12:00:00Z`"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


@dataclass(frozen=True, slots=True)
class TableRef:
    """A Delta table as a user names it: a path, a URL or `catalog.schema.table`, perhaps pinned.

    At most one of `version` and `timestamp` (ISO 8601) is set; with neither, the table's newest version is meant.
    """

    text: str
    version: int | None = None
    timestamp: str | None = None

    @classmethod
    def parse(cls, text: str, version: int | None = None, timestamp: str | None = None) -> TableRef:
        """Reads `text`, taking a trailing `@v12` as the version.

        Raises:
            InvalidRequest: the text is empty, `timestamp` is none, or more than one of `@vN`, `version` and
                `timestamp` is given.
        """
        if pinned := _PINNED.fullmatch(text):
            if version is not None:
                raise InvalidRequest(f"`{text}` and `--version {version}` both pin it", hint="give one of the two")
            text, version = pinned["text"], int(pinned["version"])
        if version is not None and timestamp is not None:
            raise InvalidRequest("a version and `--timestamp` both pin the table", hint="give one of the two")
        if version is not None and version < 0:
            raise InvalidRequest(f"`--version {version}` is negative", hint="versions of a Delta table count from 0")
        if timestamp is not None:
            read_timestamp(timestamp)
        if not text.strip():
            raise InvalidRequest("TABLE is empty", hint="name a table as `catalog.schema.table`, a path or a URL")
        return cls(text, version, timestamp)

    @property
    def is_name(self) -> bool:
        """Whether the text has the form of a catalog's name, of one to three parts, rather than of a path or URL."""
        return _NAME.fullmatch(self.text) is not None

    def __str__(self) -> str:
        """The text, with `@vN` where a version is pinned."""
        return self.text if self.version is None else f"{self.text}@v{self.version}"


@dataclass(frozen=True, slots=True)
class Field:
    """One column of an Arrow schema: its name, its type as Arrow prints it (`timestamp[us, tz=UTC]`), nullability."""

    name: str
    type: str
    nullable: bool = True


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

    `query` stands in place of a table, whose text is then `query`.
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


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """What `cache` is asked for. `timeout` bounds the wait for another process's copy, in seconds.

    Attributes:
        reserve: bytes to leave free on the disk.
        headroom: bytes that a loader will write beside the copy.
        headroom_factor: the same as a multiple of the copy's bytes; both count.
        max_size: the most bytes that all copies in the cache folder may have.
        retries: how often a read that fails or hangs is tried again.
        read_timeout: the seconds after which a read hangs.
        holder: which process holds the copy until it ends: this one, or the one that started this command line.
    """

    source: str
    dest: str | None = None
    cache_dir: str = DEFAULT_CACHE_DIR
    jobs: int | None = None
    reserve: int = 0
    timeout: float | None = None
    check: bool = False
    force: bool = False
    headroom: int = 0
    headroom_factor: float = 0.0
    max_size: int | None = None
    retries: int = 4
    read_timeout: float = 60.0
    holder: Literal["process", "caller"] = "process"


CopyState = Literal["fresh", "stale", "partial", "absent"]


@dataclass(frozen=True, slots=True)
class CopyFile:
    """One file of a copy; `path` is relative, with `/`; `mtime_ns` is the source's, kept on the copy."""

    path: str
    bytes: int
    mtime_ns: int | None = None
    xxh3_128: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses a copy: `pid` is None where only its lock tells of it, `command` where nobody may ask."""

    pid: int | None
    command: str | None


@dataclass(frozen=True, slots=True)
class CachedCopy:
    """A copy in a cache folder, or what a run that did not end left of one.

    Attributes:
        source, generation, created_at: as recorded; None where the record is damaged.
        version: the table's, for the copy of an export.
        used_at, idle_seconds: when `cache` last gave it to somebody, and how long ago that is.
        holders: the live processes that make it, hold it or have files of it open.
    """

    path: str
    kind: Literal["copy", "partial"]
    source: str | None
    generation: str | None
    version: int | None
    files: int
    bytes: int
    created_at: str | None
    used_at: str
    idle_seconds: float
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What `cache` will do, and why.

    Attributes:
        bytes_to_copy: what the path and a partial copy do not hold yet.
        bytes_needed: the room that this takes, in whole blocks, with the headroom.
        bytes_free: the room there is; less what must stay free, and what others are about to write, is what counts.
        bytes_lacking: the room that cannot be made; then nothing is evicted.
        evictions: the copies that have to go, the least recently used first.
        in_memory: whether the copy takes memory rather than disk.
    """

    request: CacheRequest
    source: str
    generation: str
    manifest_id: str | None
    path: str
    state: CopyState
    files: tuple[CopyFile, ...]
    bytes: int
    bytes_to_copy: int
    bytes_free: int
    reason: str | None = None
    bytes_needed: int = 0
    bytes_lacking: int = 0
    evictions: tuple[CachedCopy, ...] = ()
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What `cache` did, or with `check` what it found: `path` is where a training script reads, `reason` why so."""

    status: Literal["done", "unchanged", "checked"]
    state: CopyState
    source: str
    path: str
    generation: str
    manifest_id: str | None
    files: int
    bytes: int
    bytes_copied: int
    bytes_reused: int
    seconds: float
    reason: str | None = None
    evicted: tuple[str, ...] = ()
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class CopiesReport:
    """The copies of this node, the least recently used first, and the room that they leave."""

    cache_dir: str
    copies: tuple[CachedCopy, ...]
    bytes: int
    bytes_free: int
    in_memory: bool


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """What `prune` is asked for: the copies at `paths`, or those of the cache folder that a condition meets.

    Attributes:
        older_than: removes copies that nobody used for so many seconds.
        max_size: removes the least recently used ones until all have at most so many bytes.
        source: looks at the copies of one source alone.

    Without a path and without a condition, what is left of runs that have ended is removed, and no copy.
    """

    paths: tuple[str, ...] = ()
    cache_dir: str = DEFAULT_CACHE_DIR
    older_than: float | None = None
    max_size: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy that would go, and why it stays."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What `prune` will remove, in order, and what it would but for those who use it."""

    request: PruneRequest
    cache_dir: str
    copies: tuple[CachedCopy, ...]
    bytes: int
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What `prune` removed."""

    status: Literal["done", "unchanged"]
    cache_dir: str
    removed: tuple[str, ...]
    bytes: int
    kept: tuple[Kept, ...]
    seconds: float


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


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What `bench` is asked for. `readers` None means every reader that is installed; `seconds` bounds each one."""

    targets: tuple[str, ...]
    readers: tuple[str, ...] | None = None
    batch_size: int = 256
    workers: int = 0
    seconds: float = 5.0
    require: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reader over one target. `bytes` are those on disk that were passed over; `complete` is a whole epoch.

    One that `failed` died, hung, met data that it cannot read, or gave other rows than there are; `note` says which.
    """

    target: str
    reader: str
    rows: int | None
    bytes: int
    seconds: float
    first_batch_seconds: float | None
    rows_per_second: float | None
    bytes_per_second: float
    complete: bool
    failed: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One `--require` and how it came out: `reader` is the one that came nearest, on the last target."""

    text: str
    met: bool
    measured: float
    unit: Literal["bytes/s", "rows/s"]
    reader: str


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What `bench` measured, target by target in the order given."""

    measurements: tuple[Measurement, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()

    @property
    def met(self) -> bool:
        """Whether every requirement held."""
        return all(requirement.met for requirement in self.requirements)
