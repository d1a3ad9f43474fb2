"""uc-stage: a Delta table to Parquet in a volume, to a verified local copy, to a measured throughput.

The four steps as functions, for a training script or a function that a launcher ships to each rank:

    path = uc_stage.cache("/Volumes/main/sales/train/orders")   # one copy a node, however many ranks ask
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from uc_stage import errors

__version__ = "0.1.0"
__all__ = ["bench", "cache", "errors", "export", "inspect", "load", "prune"]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from uc_stage.exporting.loading import Loaded
    from uc_stage.model import (
        BenchReport,
        Compression,
        CopiesReport,
        CopyForm,
        DiffReport,
        EngineName,
        ExportReport,
        Framework,
        InspectReport,
        Loader,
        PruneReport,
        Snippet,
    )
    from uc_stage.progress import Progress


def export(
    table: str | None,
    dest: str,
    *,
    query: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    engine: EngineName = "auto",
    remote: str | None = None,
    columns: Sequence[str] | None = None,
    exclude_columns: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    sample: float | None = None,
    seed: int = 0,
    cast: Mapping[str, str] | None = None,
    loader: Loader = "any",
    split: Mapping[str, float] | None = None,
    split_by: str | None = None,
    shuffle: bool = False,
    order_by: Sequence[str] = (),
    world_size: int | None = None,
    workers: int | None = None,
    files_per_worker: int | None = None,
    equal_rows: bool = False,
    drop_remainder: bool = False,
    as_is: bool = False,
    memory: int = 512 * 1024**2,
    files: int | None = None,
    file_bytes: int | None = None,
    row_group_bytes: int = 64 * 1024**2,
    compression: Compression = "zstd",
    keep: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Writes one version of a Delta table as Parquet files with a manifest, as `uc-stage export` does.

    Args:
        table: a path or URL of a Delta table, or `catalog.schema.table`; `@vN` pins a version. None with `query`.
        dest: the folder of the export: a volume, a path or a URL.
        query: a SELECT in place of the table; Spark alone.
        version: the version; the newest one where neither this nor `timestamp` is given.
        timestamp: ISO 8601; the newest version at that time.
        engine: `local`, `spark`, or `auto` to let the table and the session decide.
        remote: a Spark Connect server; without it, `SPARK_REMOTE` in the environment.
        columns: these columns only, in this order.
        exclude_columns: all columns but these.
        where: a Spark SQL condition.
        limit: at most this many rows.
        sample: the fraction of the rows that is drawn.
        seed: of all that is drawn.
        cast: by column, or by type, the type that is written.
        loader: refuse columns that this loader does not take.
        split: the fraction of the rows for each of `train`, `validation` and `test`.
        split_by: the column whose equal values stay in one split.
        shuffle: write the rows in a random order.
        order_by: the columns that decide the order, each perhaps with ` DESC`.
        world_size: ranks that will read it; the number of files is a multiple of ranks times workers.
        workers: of each rank's loader.
        files_per_worker: so many files for each worker.
        equal_rows: the same number of rows in every file, give or take one.
        drop_remainder: exactly the same number; the last few rows are left out.
        as_is: copy the table's files byte for byte.
        memory: bytes that a sort gets along with.
        files: the files of each split; excludes `file_bytes`, the size of one in bytes.
        file_bytes: see `files`.
        row_group_bytes: the uncompressed size of a row group, in bytes.
        compression: of the pages.
        keep: how many earlier generations keep their files.
        force: write again what is there already.
        progress: who is told of progress; nobody by default.

    Raises:
        StageError: of `uc_stage.errors`, with the exit code that the command would have.
    """
    from uc_stage import exporting
    from uc_stage.errors import InvalidRequest
    from uc_stage.model import ExportRequest, TableRef
    from uc_stage.progress import SILENT

    if query is not None and table is not None:
        raise InvalidRequest("`query` stands in place of the table", hint=f"give None for `{table}`")
    request = ExportRequest(
        table=TableRef.parse("query" if query is not None else table or "", version, timestamp),
        dest=dest,
        query=query,
        engine=engine,
        remote=remote,
        columns=None if columns is None else tuple(columns),
        exclude=None if exclude_columns is None else tuple(exclude_columns),
        where=where,
        limit=limit,
        sample=sample,
        seed=seed,
        casts=tuple((cast or {}).items()),
        loader=loader,
        splits=tuple((split or {}).items()),
        split_by=split_by,
        shuffle=shuffle,
        order_by=tuple(order_by),
        world_size=world_size,
        workers=workers,
        files_per_worker=files_per_worker,
        equal_rows=equal_rows,
        drop_remainder=drop_remainder,
        memory=memory,
        as_is=as_is,
        files=files,
        file_bytes=file_bytes,
        row_group_bytes=row_group_bytes,
        compression=compression,
        keep=keep,
        force=force,
    )
    return exporting.run(request, progress or SILENT)


def load(
    table: str | None,
    *,
    query: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    engine: EngineName = "auto",
    remote: str | None = None,
    columns: Sequence[str] | None = None,
    exclude_columns: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    sample: float | None = None,
    seed: int = 0,
    cast: Mapping[str, str] | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Reads a small table, or a few rows of a large one, into memory, in an export's types.

    Its `table` is a `pyarrow.Table`; `to_pandas()` and `to_numpy()` give it as a frame and as arrays. Rows come in
    their natural order, the same on every engine; those of a query in the order that it asks for.

    Args:
        table: a path or URL of a Delta table, or `catalog.schema.table`; `@vN` pins a version. None with `query`.
        query: a SELECT in place of the table; Spark alone.
        version: the version; the newest one where neither this nor `timestamp` is given.
        timestamp: ISO 8601; the newest version at that time.
        engine: `local`, `spark`, or `auto` to let the table and the session decide.
        remote: a Spark Connect server; without it, `SPARK_REMOTE` in the environment.
        columns: these columns only, in this order.
        exclude_columns: all columns but these.
        where: a Spark SQL condition.
        limit: at most this many rows.
        sample: the fraction of the rows that is drawn.
        seed: of the draw.
        cast: by column, or by type, the type that it gets.
        memory: bytes that the rows may take; without it, half of what can be had, within the limits of a container.
        progress: who is told of progress; nobody by default.

    Raises:
        NoSpace: the rows would take more: `export` them.
        StageError: of `uc_stage.errors`, as of an export.
    """
    from uc_stage.errors import InvalidRequest
    from uc_stage.exporting import loading
    from uc_stage.model import ExportRequest, TableRef
    from uc_stage.progress import SILENT

    if query is not None and table is not None:
        raise InvalidRequest("`query` stands in place of the table", hint=f"give None for `{table}`")
    request = ExportRequest(
        table=TableRef.parse("query" if query is not None else table or "", version, timestamp),
        dest="",
        query=query,
        engine=engine,
        remote=remote,
        columns=None if columns is None else tuple(columns),
        exclude=None if exclude_columns is None else tuple(exclude_columns),
        where=where,
        limit=limit,
        sample=sample,
        seed=seed,
        casts=tuple((cast or {}).items()),
    )
    return loading.load(request, memory, progress or SILENT)


def cache(
    source: str,
    dest: str | None = None,
    *,
    cache_dir: str | None = None,
    jobs: int | None = None,
    reserve: int = 0,
    headroom: int | str = 0,
    max_size: int | None = None,
    timeout: float | None = None,
    retries: int = 4,
    read_timeout: float = 60.0,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    shard: str | tuple[int, int] | None = None,
    verify: bool = False,
    force: bool = False,
    form: CopyForm = "files",
    pack: bool = False,
    pack_size: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Copies an export or a folder to this node's disk, verified, and gives the path, as `uc-stage cache` does.

    Call it on every rank: one process of the node copies, the others wait for it and get the same path. Until this
    process ends, no other copy that needs room, and no `prune`, removes the one that it got.

    Args:
        source: an export or any folder: a volume, a path or a URL.
        dest: the path of the copy; without it, one below the cache folder.
        cache_dir: the cache folder; without it, `UC_STAGE_CACHE_DIR` in the environment, else `/tmp/uc-stage`.
        jobs: reads at once.
        reserve: bytes to leave free on the disk.
        headroom: bytes that a loader will write beside the copy, or a multiple of its size such as `1.8x`.
        max_size: the most bytes that all copies in the cache folder may have.
        timeout: the longest wait for another process's copy, in seconds.
        retries: how often a read that fails or hangs is tried again.
        read_timeout: the seconds after which a read hangs.
        include: copy the files alone whose relative path matches one of these patterns, `*` over folders too.
        exclude: leave out those that match one of these.
        shard: copy this node's share alone: its rank and the number of nodes, `0/4` or `(0, 4)`, or `auto`.
        verify: hash a copy that is there already again, and make it anew where it has other bytes.
        force: copy again what is there already.
        form: `arrow` writes Parquet as Arrow IPC, which `datasets.load_from_disk` memory-maps at once.
        pack: pack the small files of a folder into tar shards that WebDataset reads.
        pack_size: about how many bytes a shard has; without it, as many shards as most trainings can share evenly.
        progress: who is told of progress; nobody by default.

    Raises:
        StageError: of `uc_stage.errors`, with the exit code that the command would have.
    """
    from uc_stage import caching
    from uc_stage.model import CacheRequest
    from uc_stage.progress import SILENT
    from uc_stage.ranks import parse_shard
    from uc_stage.sizes import parse_headroom

    headroom_bytes, headroom_factor = parse_headroom(str(headroom), "headroom")
    request = CacheRequest(
        source=source,
        dest=dest,
        cache_dir=_cache_dir(cache_dir),
        jobs=jobs,
        reserve=reserve,
        timeout=timeout,
        retries=retries,
        read_timeout=read_timeout,
        verify=verify,
        force=force,
        headroom=headroom_bytes,
        headroom_factor=headroom_factor,
        max_size=max_size,
        include=_patterns(include),
        exclude=_patterns(exclude),
        shard=parse_shard(shard, "shard"),
        form=form,
        pack=pack,
        pack_size=pack_size,
    )
    return caching.run(request, progress or SILENT).path


@overload
def inspect(
    target: str,
    *,
    diff: str,
    snippet: None = None,
    verify: bool = False,
    cache_dir: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    remote: str | None = None,
    progress: Progress | None = None,
) -> DiffReport: ...
@overload
def inspect(
    target: str,
    *,
    diff: None = None,
    snippet: Framework,
    verify: bool = False,
    cache_dir: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    remote: str | None = None,
    world_size: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Snippet: ...
@overload
def inspect(
    target: str,
    *,
    diff: None = None,
    snippet: None = None,
    verify: bool = False,
    cache_dir: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    remote: str | None = None,
    world_size: int | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    fail_on: Literal["wrong", "warn"] | None = None,
    ignore: Sequence[str] = (),
    progress: Progress | None = None,
) -> InspectReport: ...
@overload
def inspect(target: None = None, *, cache_dir: str | None = None, remote: str | None = None) -> CopiesReport: ...
def inspect(
    target: str | None = None,
    *,
    diff: str | None = None,
    snippet: Framework | None = None,
    verify: bool = False,
    cache_dir: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    remote: str | None = None,
    world_size: int | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    fail_on: Literal["wrong", "warn"] | None = None,
    ignore: Sequence[str] = (),
    progress: Progress | None = None,
) -> InspectReport | DiffReport | Snippet | CopiesReport:
    """Tells what a table, an export, a copy, a folder or a file is and holds, as `uc-stage inspect` does.

    Args:
        target: what to look at; without it, the copies of this node are listed, and what the machine can do.
        diff: what to compare it with: how that differs from the target is told then.
        snippet: `torch`, `hf` or `lightning`: Python that reads the target is given then.
        verify: read every file and compare it with its recorded hash; the outcome is `report.verified`.
        cache_dir: whose copies; without it, `UC_STAGE_CACHE_DIR` in the environment, else `/tmp/uc-stage`.
        version: of a table.
        timestamp: ISO 8601; of a table, the newest version at that time.
        remote: a Spark Connect server for a table that has a catalog's name; without it, `SPARK_REMOTE` in the
            environment.
        world_size: ranks that will read it; without it, what the launcher tells in `WORLD_SIZE`.
        workers: of each rank's loader.
        batch_size: rows of a batch; without it 256.
        fail_on: what is as severe, or more, is in `report.failing`.
        ignore: the ids of rules to leave out.
        progress: who is told of progress; nobody by default.

    Raises:
        StageError: of `uc_stage.errors`, with the exit code that the command would have.
    """
    import os

    from uc_stage import inspection
    from uc_stage.errors import InvalidRequest
    from uc_stage.model import InspectRequest
    from uc_stage.progress import SILENT

    if target is None:
        return inspection.look_at_node(_cache_dir(cache_dir), remote or os.environ.get("SPARK_REMOTE"), os.environ)
    request = InspectRequest(
        target=target,
        verify=verify,
        version=version,
        timestamp=timestamp,
        remote=remote or os.environ.get("SPARK_REMOTE"),
        world_size=world_size,
        workers=workers,
        batch_size=batch_size,
        fail_on=fail_on,
        ignore=_patterns(ignore),
    )
    if diff is not None and snippet is not None:
        raise InvalidRequest("`diff` and `snippet` are two answers", hint="ask for one of them")
    if diff is not None:
        return inspection.diff(request, diff, progress or SILENT)
    if snippet is not None:
        return inspection.write_snippet(request, snippet, progress or SILENT)
    return inspection.run(request, progress or SILENT)


def prune(
    *copies: str,
    older_than: float | None = None,
    max_size: int | None = None,
    source: str | None = None,
    cache_dir: str | None = None,
    progress: Progress | None = None,
) -> PruneReport:
    """Removes copies that no live process uses, as `uc-stage prune` does.

    Args:
        copies: their paths; what this process and those it descends from hold of them, they give up.
        older_than: remove copies that nobody used for so many seconds.
        max_size: remove the least recently used ones until the rest has at most so many bytes.
        source: look at the copies of this one only.
        cache_dir: the cache folder; without it, `UC_STAGE_CACHE_DIR` in the environment, else `/tmp/uc-stage`.
        progress: who is told of progress; nobody by default.

    Raises:
        StageError: of `uc_stage.errors`, with the exit code that the command would have.
    """
    from uc_stage import pruning
    from uc_stage.model import PruneRequest
    from uc_stage.progress import SILENT

    request = PruneRequest(copies, _cache_dir(cache_dir), older_than, max_size, source)
    return pruning.run(request, progress or SILENT)


def _patterns(given: Sequence[str]) -> tuple[str, ...]:
    # A string is a sequence of strings too, and one pattern is meant.
    return (given,) if isinstance(given, str) else tuple(given)


def _numbers(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def _cache_dir(given: str | None) -> str:
    import os

    from uc_stage.model import DEFAULT_CACHE_DIR

    return given or os.environ.get("UC_STAGE_CACHE_DIR") or DEFAULT_CACHE_DIR


def bench(
    *targets: str,
    readers: Sequence[str] | None = None,
    batch_size: int | Sequence[int] = 256,
    workers: int | Sequence[int] = 0,
    prefetch: int | Sequence[int] = 2,
    seconds: float = 5.0,
    repeats: int = 1,
    require: Sequence[str] = (),
    step_ms: float | None = None,
    world_size: int | None = None,
    stages: bool | None = None,
    save: str | None = None,
    compare: Sequence[str] = (),
    baseline: str | None = None,
    html: str | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Measures how fast datasets can be read, as `uc-stage bench` does.

    Args:
        targets: exports, copies, folders or files; several are compared.
        readers: of `raw`, `arrow`, `hf`, `hf-stream`, `torch` and `files`; without it, those that are installed
            and read what is there.
        batch_size: rows of a batch; of several numbers here and below, each combination is measured.
        workers: of the torch `DataLoader`.
        prefetch: batches that each of its workers makes ahead.
        seconds: the longest time of one pass: each combination is read cold, and then warm.
        repeats: how often each combination is measured.
        require: throughputs that the last target must reach, such as `500MB/s`; the outcome is `report.met`.
        step_ms: plays a training whose step takes so long against each reader that gives batches: its `wait_share`.
        world_size: so many ranks of this node read at once; the slowest one counts.
        stages: measure where the time goes, and the limits; by default where neither `readers` nor `require` are given.
        save: the file that keeps the report.
        compare: files of kept reports to show beside it; without targets, beside the last of them.
        baseline: the file of a kept report that this one must not fall behind; that is in `report.met` too.
        html: the file of a page that is drawn of it.
        progress: who is told of progress; nobody by default.

    Raises:
        StageError: of `uc_stage.errors`, with the exit code that the command would have.
    """
    from uc_stage import benchmark
    from uc_stage.model import BenchRequest
    from uc_stage.progress import SILENT

    request = BenchRequest(
        targets=targets,
        readers=None if readers is None else tuple(readers),
        batch_sizes=_numbers(batch_size),
        workers=_numbers(workers),
        prefetch=_numbers(prefetch),
        seconds=seconds,
        repeats=repeats,
        require=tuple(require),
        step_ms=step_ms,
        world_size=world_size,
        stages=stages,
        save=save,
        compare=_patterns(compare),
        baseline=baseline,
        html=html,
    )
    return benchmark.run(request, progress or SILENT)
