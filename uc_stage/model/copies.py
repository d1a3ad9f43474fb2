"""What `cache` and `prune` are asked for, what copies there are, and what was done with them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from uc_stage.model.node import NodeFact

# Local NVMe on the platform; `caching` refuses the folder where somebody else prepared it.
DEFAULT_CACHE_DIR = "/tmp/uc-stage"  # noqa: S108 - see above


CopyForm = Literal["files", "arrow"]


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """What `cache` is asked for. `timeout` bounds the wait for another process's copy, in seconds.

    Attributes:
        reserve: bytes to leave free on the disk.
        verify: hash a copy that is there already again, and make it anew where it has other bytes.
        headroom: bytes that a loader will write beside the copy.
        headroom_factor: the same as a multiple of the copy's bytes; both count.
        max_size: the most bytes that all copies in the cache folder may have.
        retries: how often a read that fails or hangs is tried again.
        read_timeout: the seconds after which a read hangs.
        holder: which process holds the copy until it ends: this one, or the one that started this command line.
        include, exclude: patterns over the files' relative paths; all files where none is given.
        shard: the rank of the node and the number of nodes that the files are shared out over.
        form: what the copy consists of: the source's files, or Arrow IPC made from Parquet.
        pack: whether it consists of tar shards that the source's small files are packed into.
        pack_size: about how many bytes a shard has; None for what suits most trainings.
    """

    source: str
    dest: str | None = None
    cache_dir: str = DEFAULT_CACHE_DIR
    jobs: int | None = None
    reserve: int = 0
    timeout: float | None = None
    check: bool = False
    verify: bool = False
    force: bool = False
    headroom: int = 0
    headroom_factor: float = 0.0
    max_size: int | None = None
    retries: int = 4
    read_timeout: float = 60.0
    holder: Literal["process", "caller"] = "process"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None
    form: CopyForm = "files"
    pack: bool = False
    pack_size: int | None = None


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
        variant: which part of the source it holds, and in which form; empty for all of it, file by file.
        freshness: `stale` where the source has another generation now, `unknown` where it did not tell in time; None
            where it was not asked.
        freshness_detail: what it has now, or why that is unknown.
        rows: of the copy of an export, as its manifest tells.
        versions_behind, rows_behind: how many versions of the table, and rows, the source has more now; None where
            nothing tells.
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
    variant: str = ""
    freshness: Literal["fresh", "stale", "unknown"] | None = None
    freshness_detail: str | None = None
    rows: int | None = None
    versions_behind: int | None = None
    rows_behind: int | None = None


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What `cache` will do, and why.

    Attributes:
        files: those of the source.
        bytes: of the copy; about, for one in another form than the source's, and those of the source with `check`.
        bytes_to_copy: those of the source's files that the path and a partial copy do not hold yet.
        bytes_needed: the room that this takes, in whole blocks, with the headroom.
        bytes_free: the room there is; less what must stay free, and what others are about to write, is what counts.
        bytes_lacking: the room that cannot be made; then nothing is evicted.
        evictions: the copies that have to go, the least recently used first.
        in_memory: whether the copy takes memory rather than disk.
        variant: the part of the source that it is of, as the copy's record has it; empty for all of it.
        file_count: the files of the copy.
        outputs: the files that are to be made from the source's, with about the bytes of each.
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
    variant: str = ""
    file_count: int = 0
    outputs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What `cache` did, or with `check` what it found: `path` is where a training script reads, `reason` why so.

    `bytes_copied` are those of the source; the others are the copy's.
    """

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
    variant: str = ""
    verified: bool | None = None


@dataclass(frozen=True, slots=True)
class CopiesReport:
    """The copies of this node, the least recently used first, and the room that they leave.

    `node` tells of the machine, where it was asked what that can do.
    """

    cache_dir: str
    copies: tuple[CachedCopy, ...]
    bytes: int
    bytes_free: int
    in_memory: bool
    node: tuple[NodeFact, ...] = ()


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


def variant_flags(variant: str) -> str:
    """The flags that ask for the part and the form of a variant, each after a blank."""
    # The number of the layout is not asked for.
    words = [(name, "" if name == "pack" else value) for name, value in variant_words(variant)]
    return "".join(f" --{name}" + (f" {shlex.quote(value)}" if value else "") for name, value in words)


def variant_words(variant: str) -> list[tuple[str, str]]:
    """The names and values that a variant is made of."""
    try:
        words = shlex.split(variant)
    except ValueError:  # somebody changed the record
        words = [variant]
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]
