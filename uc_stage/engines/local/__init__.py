"""The local engine: reads Delta tables in this process, by the log's own rules, and streams them into Parquet."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, ClassVar

from uc_stage import __version__
from uc_stage.engines.casting import cast_batch
from uc_stage.engines.conditions import condition
from uc_stage.engines.delta.log import FOLDER, DeltaLog
from uc_stage.engines.delta.replay import replay
from uc_stage.engines.delta.table_files import OTHER_ENGINE, TableFiles, no_table
from uc_stage.engines.local.arrays import reusing_memory
from uc_stage.engines.local.as_is import copy_files, copyable
from uc_stage.engines.local.scan import Table
from uc_stage.engines.local.shaping import count_rows, shaped_rows
from uc_stage.engines.local.writing import write_splits
from uc_stage.engines.schema import fields
from uc_stage.engines.selection import NATURAL, Selection, ordering
from uc_stage.errors import NotFound, Unsupported, from_os_error
from uc_stage.model import DEFAULT_MEMORY, Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import pyarrow as pa

    from uc_stage.engines.conditions import Condition
    from uc_stage.engines.delta.replay import DataFile
    from uc_stage.model import ExportPlan, ExportRequest, Layout
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication


@dataclass(frozen=True, slots=True)
class _Opened:
    """One version of a table, open for reading."""

    table: Table
    timestamp: str | None


class LocalEngine:
    """Reads a path, a URL of an object store, or a name through Unity Catalog's own credentials."""

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self._opened: dict[tuple[str, int], Table] = {}
        # What takes long to find out, and is asked for again: by the table's schema, and by its footers.
        self._conditions: dict[tuple[str, int, str], Condition] = {}
        self._copied: dict[tuple[str, int], list[DataFile]] = {}
        self._memory = DEFAULT_MEMORY

    @property
    def version(self) -> str:
        """This package, which reads the log, and the library that reads Parquet, with their versions."""
        return f"uc-stage {__version__}, pyarrow {version_of('pyarrow')}"

    def resolve(self, request: ExportRequest) -> Snapshot:
        """Pins the table to one version and checks the columns and the predicate against its schema."""
        asked = request.table
        self._memory = request.memory
        location, options = _located(asked.text, is_name=asked.is_name)
        opened = _open(location, options, asked.text, asked.version, asked.timestamp)
        table, state = opened.table, opened.table.state
        selection = Selection.of(request, table.schema)
        name = location if os.path.isabs(location) else asked.text
        source = selection.source(request, name, state.table_id, state.version, opened.timestamp)
        self._opened[name, state.version] = table
        _refuse_own_order(table, selection, self._condition(source))
        files = len(self._copyable(source)) if request.as_is else len(table.files)
        is_whole = source.where is None and source.sample is None
        rows = table.rows if is_whole else None
        null_counts = None
        if is_whole and source.limit is None:
            null_counts = {
                column: nulls for column, nulls in table.null_counts.items() if column in selection.schema.names
            }
        return Snapshot(
            source=source,
            schema=fields(selection.schema),
            rows=rows if rows is None or source.limit is None else min(rows, source.limit),
            bytes=_size(table, selection.columns),
            table_rows=table.rows,
            files=files,
            null_counts=null_counts or None,
            order_by=selection.order_by,
            split_by=selection.split_by,
        )

    def count(self, snapshot: Snapshot, layout: Layout) -> dict[str, int]:
        """The rows of each split, counted by reading where the log alone does not tell."""
        table = self._table(snapshot.source)
        return count_rows(table, snapshot.source, layout, self._condition(snapshot.source), self._memory)

    def write(self, plan: ExportPlan, publication: Publication, progress: Progress) -> dict[str, tuple[str, ...]]:
        """Streams the snapshot into the plan's files and gives their names."""
        source = plan.snapshot.source
        table = self._table(source)
        if plan.layout.as_is and (files := self._copyable(source)):
            names = tuple(publication.name("train", index, len(files)) for index in range(len(files)))
            copy_files(table, files, names, publication, progress)
            return {"train": names}
        schema = Selection.of(plan.request, table.schema).schema
        # Whoever holds the exception of a write that failed would hold the threads that read, too.
        with reusing_memory(), closing(self._rows(plan.request, source, plan.layout)) as rows:
            return write_splits(rows, schema, plan, publication, progress)

    def read(self, request: ExportRequest, snapshot: Snapshot, *, few: int | None = None) -> Generator[pa.RecordBatch]:
        """Streams the snapshot's rows, casts done, by their files' paths and their positions there."""
        import pyarrow as pa

        source = snapshot.source
        schema = Selection.of(request, self._table(source).schema).schema
        left, came = few, False
        with closing(self._rows(request, source, NATURAL)) as rows:
            for _, batch in rows:
                came = True
                yield batch.slice(0, left) if left is not None else batch
                left = None if left is None else max(0, left - batch.num_rows)
                if left == 0:
                    return
        if not came:
            yield pa.RecordBatch.from_pylist([], schema=schema)

    def opened(self, snapshot: Snapshot) -> Table:
        """The table of a snapshot as its log tells it: how its data files name the columns, which rows are deleted."""
        return self._table(snapshot.source)

    def data_files(self, source: Source) -> dict[str, tuple[int, str]]:
        """The data files of a version by their paths: the bytes of each, and what tells its deleted rows."""
        found = self._table(source).state.files
        return {file.path: (file.size, file.deletion_vector.id if file.deletion_vector else "") for file in found}

    def close(self) -> None:
        """Lets go of the tables."""
        self._opened.clear()
        self._conditions.clear()
        self._copied.clear()

    def _table(self, source: Source) -> Table:
        """The table that `resolve` opened for a source; after a `close`, the same version again."""
        key = source.table, source.version
        if key not in self._opened:
            location, options = _located(source.table, is_name=not os.path.isabs(source.table))
            self._opened[key] = _open(location, options, source.table, source.version, None).table
        return self._opened[key]

    def _rows(self, request: ExportRequest, source: Source, layout: Layout) -> Generator[tuple[int, pa.RecordBatch]]:
        """The rows of each split, shaped and cast, with the index of the split."""
        table = self._table(source)
        selection = Selection.of(request, table.schema)
        columns = source.columns or tuple(table.schema.names)
        with closing(shaped_rows(table, source, layout, columns, self._condition(source), request.memory)) as rows:
            for split, batch in rows:
                yield split, cast_batch(batch, selection.schema, selection.casts)

    def _condition(self, source: Source) -> Condition | None:
        if source.where is None:
            return None
        key = source.table, source.version, source.where
        if key not in self._conditions:
            self._conditions[key] = condition(source.where, self._table(source).schema)
        return self._conditions[key]

    def _copyable(self, source: Source) -> list[DataFile]:
        key = source.table, source.version
        if key not in self._copied:
            self._copied[key] = copyable(self._table(source))
        return self._copied[key]


def _size(table: Table, columns: Sequence[str] | None) -> int:
    """The bytes of the table's files; of some columns, their share in the first file."""
    size = sum(file.size for file in table.files)
    if columns is None or not table.files:
        return size
    try:
        whole, chosen = table.column_bytes(table.files[0], columns)
    except NotFound:
        # An export that is there already does not need the file; another one says so when it reads it.
        return size
    return size * chosen // whole if whole else size


def _refuse_own_order(table: Table, selection: Selection, where: Condition | None) -> None:
    """Refuses to compare text that Spark compares by a collation, or by the rules of CHAR."""
    compared = {*(where.columns if where else ()), *(ordering(term)[0] for term in selection.order_by)}
    compared |= {selection.split_by} if selection.split_by else set()
    for column in table.columns:
        if column.own_order and column.name in compared:
            raise Unsupported(
                f"`{column.name}` is compared by a collation, or as CHAR, which the local engine does not do",
                hint=OTHER_ENGINE,
            )


def _located(text: str, *, is_name: bool) -> tuple[str, dict[str, str]]:
    """Where a table's files are: an absolute path or a URL, with the options that its storage needs."""
    if text.startswith("dbfs:/Volumes/"):
        text = text.removeprefix("dbfs:")
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    path = os.path.abspath(os.path.expanduser(text))
    if is_name and not os.path.isdir(path):
        from uc_stage.engines.delta.unity import locate

        return locate(text, os.environ)
    if "://" in text:
        return text, _from_environment(text)
    return path, {}


def _from_environment(url: str) -> dict[str, str]:
    """What the object store does not take from the environment by itself: leave to speak plain HTTP to an endpoint."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if url.startswith(("s3://", "s3a://")) and endpoint.startswith("http://"):
        return {"aws_endpoint": endpoint, "aws_allow_http": "true"}
    return {}


def _open(location: str, options: dict[str, str], text: str, version: int | None, timestamp: str | None) -> _Opened:
    """Opens one version of a table.

    Raises:
        NotFound: no such table or version. Unsupported: a feature that is not read rightly.
        VerificationFailed: the log is damaged.
    """
    if os.path.isabs(location):
        _require_log(location, text)
    log = DeltaLog(TableFiles(location, options, text))
    span = log.versions()
    if span is None:
        raise no_table(text)
    if version is not None:
        log.require(version)
    state = replay(log, span[1] if version is None else version)
    if timestamp is not None:
        pinned = log.version_at(timestamp, state.configuration)
        state = state if pinned == state.version else replay(log, pinned)
    table = Table(log.files, state)
    if not table.columns:
        raise Unsupported(f"`{text}` has no columns", hint="export a version that has some")
    committed = log.committed_at(state.version, state.configuration)
    return _Opened(table, None if committed is None else committed.isoformat(timespec="milliseconds"))


def _require_log(path: str, text: str) -> None:
    try:
        with os.scandir(path) as found:
            is_table = any(item.name == FOLDER for item in found)
        if is_table:
            os.scandir(os.path.join(path, FOLDER)).close()
    except NotADirectoryError:
        raise no_table(text) from None
    except OSError as error:
        raise from_os_error(error, path) from error
    if not is_table:
        raise no_table(text)
