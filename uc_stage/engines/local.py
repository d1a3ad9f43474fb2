"""The local engine: reads Delta tables in this process, through deltalake's SQL, and streams them into Parquet.

`QueryBuilder` is the one way to read in deltalake that honours deletion vectors, column mapping, partition values and
type widening; its data set and pandas interfaces give wrong rows in silence for some of them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from uc_stage.crew import each
from uc_stage.engines.datafusion import to_datafusion
from uc_stage.engines.delta_log import DeltaLog
from uc_stage.engines.deltalake_errors import no_table, translated
from uc_stage.engines.predicate import checked, chosen
from uc_stage.engines.schema import fields, normalised
from uc_stage.engines.writing import write_files
from uc_stage.errors import NotFound, Unsupported, from_os_error
from uc_stage.model import Snapshot, Source
from uc_stage.parquet import FOOTER_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from deltalake import DeltaTable

    from uc_stage.model import ExportPlan, ExportRequest
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication

# A batch is decoded whole: this bounds one of wide rows, such as images, at about the same bytes as one of numbers.
_BATCH_BYTES = 16 * 1024**2
_MOST_BATCH_ROWS = 8192
# Parquet's compression of what is not compressed already, roughly.
_EXPANSION = 4


@dataclass(frozen=True, slots=True)
class _Opened:
    """One version of a table, open for reading. `rows` are the version's, where its log tells them exactly."""

    table: DeltaTable
    log: DeltaLog
    rows: int | None
    bytes: int
    files: int


class LocalEngine:
    """Reads a path, a URL of an object store, or a name through Unity Catalog's own credentials."""

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self._opened: dict[Source, _Opened] = {}

    @property
    def version(self) -> str:
        """The library that reads, with its version."""
        return f"deltalake {version_of('deltalake')}"

    def resolve(self, request: ExportRequest) -> Snapshot:
        """Pins the table to one version and checks the columns and the predicate against its schema."""
        table = request.table
        location, options = _located(table.text, is_name=table.is_name)
        opened = _open(location, options, table.text, table.version, table.timestamp)
        with translated(table.text):
            metadata, pinned = opened.table.metadata(), opened.table.version()
            committed = opened.log.committed_at(pinned, metadata.configuration)
            schema = json.loads(opened.table.schema().to_json())
        names = [field["name"] for field in schema["fields"]]
        where = None if request.where is None else checked(request.where, names)
        source = Source(
            table=location if os.path.isabs(location) else table.text,
            table_id=str(metadata.id),
            version=pinned,
            timestamp=None if committed is None else committed.isoformat(timespec="milliseconds"),
            columns=None if request.columns is None else chosen(request.columns, names),
            where=where,
            limit=request.limit,
        )
        self._opened[source] = opened
        rows = opened.rows if where is None else None
        return Snapshot(
            source=source,
            schema=fields(self._read(source, empty=True).schema),
            rows=rows if rows is None or source.limit is None else min(rows, source.limit),
            bytes=opened.bytes,
            table_rows=opened.rows,
            files=opened.files,
        )

    def count(self, snapshot: Snapshot) -> int:
        """The rows that the request holds, counted by reading where the log alone does not tell."""
        if snapshot.rows is not None:
            return snapshot.rows
        source = snapshot.source
        with translated(source.table):
            total = self._query(source, "count(*)", _condition(self._reopened(source), source)).read_all()
            rows: int = total.column(0)[0].as_py()
        return rows if source.limit is None else min(rows, source.limit)

    def write(self, plan: ExportPlan, publication: Publication, progress: Progress) -> tuple[str, ...]:
        """Streams the snapshot into the plan's files and gives their names."""
        source = plan.snapshot.source
        reader = self._read(source)
        schema = normalised(reader.schema)
        return write_files(_batches(reader, schema, source.table), schema, plan, publication, progress)

    def close(self) -> None:
        """Lets go of the tables."""
        self._opened.clear()

    def _reopened(self, source: Source) -> _Opened:
        """The table that `resolve` opened for a source; after a `close`, the same version again."""
        if source not in self._opened:
            location, options = _located(source.table, is_name=not os.path.isabs(source.table))
            self._opened[source] = _open(location, options, source.table, source.version, None)
        return self._opened[source]

    def _read(self, source: Source, *, empty: bool = False) -> pa.RecordBatchReader:
        opened = self._reopened(source)
        with translated(source.table):
            names = source.columns or [field.name for field in opened.table.schema().fields]
            limit = 0 if empty else source.limit
            tail = _condition(opened, source) + ("" if limit is None else f" LIMIT {limit}")
            return self._query(source, ", ".join(_quoted(name) for name in names), tail)

    def _query(self, source: Source, selection: str, tail: str) -> pa.RecordBatchReader:
        import pyarrow as pa
        from deltalake import QueryBuilder

        opened = self._reopened(source)
        row_bytes = _EXPANSION * opened.bytes // max(1, opened.rows or opened.bytes)
        batch_rows = min(_MOST_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, row_bytes)))
        builder = QueryBuilder({"datafusion.execution.batch_size": str(batch_rows)}).register("t", opened.table)
        sql = f"SELECT {selection} FROM t{tail}"  # noqa: S608 - names are quoted and the predicate is translated
        return pa.RecordBatchReader.from_stream(builder.execute(sql))


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema, table: str) -> Iterator[pa.RecordBatch]:
    while True:
        with translated(table):
            batch = next(reader, None)
            if batch is None:
                return
            batch = batch.cast(schema)
        yield batch


def _condition(opened: _Opened, source: Source) -> str:
    if source.where is None:
        return ""
    return f" WHERE {to_datafusion(source.where, json.loads(opened.table.schema().to_json()))}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _located(text: str, *, is_name: bool) -> tuple[str, dict[str, str]]:
    """Where a table's files are: an absolute path or a URL, with the options that its storage needs."""
    if text.startswith("dbfs:/Volumes/"):
        text = text.removeprefix("dbfs:")
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    path = os.path.abspath(os.path.expanduser(text))
    if is_name and not os.path.isdir(path):
        from uc_stage.engines.unity import locate

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
    """Opens one version of a table and refuses those that deltalake would read wrongly.

    Raises:
        NotFound: no such table or version. Unsupported: a feature that is not read rightly.
    """
    from deltalake import DeltaTable

    if os.path.isabs(location):
        _require_log(location, text)
    with translated(text):
        log = DeltaLog(location, options)
        if version is not None:
            log.require(version, text)
        table = DeltaTable(location, version=version, storage_options=options)
        if timestamp is not None:
            pinned = log.version_at(timestamp, table.metadata().configuration, text)
            table = DeltaTable(location, version=pinned, storage_options=options)
        if version is not None and table.version() != version:
            raise NotFound(f"`{text}` has no version {version}", hint=f"the newest is {table.version()}")
        added = _added_files(table)
        _refuse_mapping_by_id(table, log, added["path"].to_pylist(), text)
        counts = added["num_records"].to_pylist() if "num_records" in added.column_names else [None] * added.num_rows
        # The log's counts are those of the files; how many rows a deletion vector hides is not to be had from here.
        hidden = "deletionVectors" in (table.protocol().reader_features or ())
        rows = None if hidden or None in counts else sum(counts)
        return _Opened(table, log, rows, sum(added["size_bytes"].to_pylist()), added.num_rows)


def _require_log(path: str, text: str) -> None:
    try:
        with os.scandir(path) as found:
            is_table = any(item.name == "_delta_log" for item in found)
        if is_table:
            os.scandir(os.path.join(path, "_delta_log")).close()
    except NotADirectoryError:
        raise no_table(text) from None
    except OSError as error:
        raise from_os_error(error, path) from error
    if not is_table:
        raise no_table(text)


def _added_files(table: DeltaTable) -> pa.Table:
    import pyarrow as pa

    return pa.table(table.get_add_actions(flatten=False))


def _refuse_mapping_by_id(table: DeltaTable, log: DeltaLog, paths: list[str], text: str) -> None:
    """Refuses files whose columns are to be found by field id alone: deltalake goes by name and reads NULL there.

    A table that was converted from Iceberg has such files. Where names and ids agree, as Delta's own writers have it,
    going by name is right.
    """
    if table.metadata().configuration.get("delta.columnMapping.mode") != "id":
        return
    mapped = _mapped(json.loads(table.schema().to_json()))
    for path, found in zip(paths, each(lambda path: _field_ids(log, path), paths, FOOTER_JOBS), strict=True):
        for name, number in found:
            if number in mapped and mapped[number] != name:
                raise Unsupported(
                    f"`{text}` maps columns by id, and `{path}` has another name, `{name}`, for one of them",
                    hint="run it where a Spark session reads the table: `--engine spark`",
                )


def _mapped(kind: Any) -> dict[int, str]:
    """The physical name of each field id of a Delta type, at every depth."""
    if not isinstance(kind, dict):
        return {}
    found: dict[int, str] = {}
    for field in kind.get("fields", ()):
        metadata = field["metadata"]
        if "delta.columnMapping.id" in metadata:
            name = metadata.get("delta.columnMapping.physicalName", field["name"])
            found[int(metadata["delta.columnMapping.id"])] = name
        found |= _mapped(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        found |= _mapped(kind.get(part))
    return found


def _field_ids(log: DeltaLog, path: str) -> list[tuple[str, int]]:
    """The names and field ids that a data file's footer gives its columns, at every depth; `path` is as in the log."""
    import pyarrow.parquet as pq

    def walk(field: pa.Field) -> Iterator[tuple[str, int]]:
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            yield field.name, int(number)
        for index in range(field.type.num_fields):
            yield from walk(field.type.field(index))

    schema = pq.read_schema(log.open(unquote(path)))
    return [pair for field in schema for pair in walk(field)]
