"""The Spark engine: Spark reads a table and writes the Parquet files; no row passes through this process.

It keeps to what Spark Connect, Databricks Connect and classic Spark have in common: DataFrames and SQL statements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from uc_stage.engines.schema import fields
from uc_stage.engines.selection import NATURAL, Selection, splits
from uc_stage.engines.spark.query import Query, refuse_equal_names, refuse_unfit_flags
from uc_stage.engines.spark.reading import conformed
from uc_stage.engines.spark.session import TIMESTAMP_TYPE, Connection
from uc_stage.engines.spark.shaping import (
    SPLIT,
    arrow_schema,
    drawn,
    holds_variant,
    is_exact,
    limited,
    needs_identity,
    ordered,
    with_identity_of_values,
    with_split,
    written,
)
from uc_stage.engines.spark.table import SparkTable, estimated_bytes, whole
from uc_stage.engines.spark.writing import SHARED_HINT, SparkWriter
from uc_stage.errors import InvalidRequest, Unsupported
from uc_stage.model import Snapshot, TableRef
from uc_stage.storage import LocalFolder, open_folder

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Generator

    import pyarrow as pa

    from uc_stage.model import ExportPlan, ExportRequest, Layout, Source
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication

# Of a row, where nothing better is known.
_COLUMN_BYTES = 16
# So much Spark reads in a partition, and counts for each file that it opens, if nobody told it otherwise:
# https://spark.apache.org/docs/latest/sql-performance-tuning.html
_PARTITION_BYTES, _OPENING_BYTES = 128 * 1024**2, 4 * 1024**2


class SparkEngine:
    """Exports through a Spark session: a server of Spark Connect, Databricks Connect, or the session that is there."""

    name: ClassVar[str] = "spark"

    def __init__(self, remote: str | None = None) -> None:
        self._remote = remote
        self._opened: Connection | None = None
        self._tables: dict[str, SparkTable] = {}

    @property
    def version(self) -> str:
        """The version of the Spark that reads: `Spark 4.1.4`. Opens the session."""
        return f"Spark {self._connection.version}"

    def resolve(self, request: ExportRequest) -> Snapshot:
        """Pins the table, or those that a query reads, and checks what is asked of the columns.

        Raises:
            NotFound: no such table or version. Unsupported: a view, or what this Delta or Parquet does not hold.
            InvalidRequest: an unknown column, a predicate or query that is none, or a URL as DEST.
            Unavailable: no session, or one that ended.
        """
        if request.dest and not isinstance(open_folder(request.dest), LocalFolder):
            raise InvalidRequest(
                f"the Spark engine cannot write to the URL `{request.dest}`", hint=f"{SHARED_HINT}, or a mount"
            )
        snapshot = self._resolve_table(request) if request.query is None else self._resolve_query(request)
        source = snapshot.source
        with self._translated(source.table if request.where is None else "`--where`"):
            # Spark analyses the predicate and the casts here, before anything is written.
            frame = self._rows(source, identified=False)
            frame = frame if source.where is None else frame.where(source.where)
            written(frame, source, frame.columns).schema  # noqa: B018 - the property asks the server
        return snapshot

    def count(self, snapshot: Snapshot, layout: Layout) -> dict[str, int]:
        """The rows of each split; Delta answers from its log where it can."""
        source, names = snapshot.source, [name for name, _ in splits(layout)]
        if not layout.splits or source.limit is None:
            # Which rows a split gets hangs on their order only where a limit cuts that.
            layout = replace(layout, shuffle=False, order_by=(), equal_rows=False)
        cut = source if layout.splits else replace(source, limit=None)
        with self._translated(source.table):
            frame = drawn(self._rows(source, identified=needs_identity(cut, layout)), source)
            if not layout.splits:
                rows = int(frame.count())
                return {names[0]: rows if source.limit is None else min(rows, source.limit)}
            counted = with_split(limited(frame, source, layout), source, layout).groupBy(SPLIT).count().collect()
        rows_of = {row[SPLIT]: int(row["count"]) for row in counted}
        return {name: rows_of.get(index, 0) for index, name in enumerate(names)}

    def write(self, plan: ExportPlan, publication: Publication, progress: Progress) -> dict[str, tuple[str, ...]]:
        """Lets Spark write into the publication's scratch folder, then gives each file its final name.

        Raises:
            InvalidRequest: the Spark server does not see DEST, or a value that a cast's type does not hold.
            Unsupported: the session would write timestamps as INT96.
            NotFound, VerificationFailed: a data file of the table is gone or damaged.
        """
        source, layout = plan.snapshot.source, plan.layout
        self._refuse_unmet_settings(plan.snapshot)
        progress.phase("write", total=plan.rows, unit="rows")
        names = [field.name for field in plan.snapshot.schema]
        with self._translated(source.table):
            writer = SparkWriter(self._connection, plan, publication, progress)
            writer.refuse_unseen()
            frame = drawn(self._rows(source, identified=needs_identity(source, layout)), source)
            frame = with_split(limited(frame, source, layout), source, layout)
            if is_exact(layout):
                parts = writer.write_exactly(written(ordered(frame, source, layout, SPLIT), source, names, SPLIT))
            else:
                as_read = not layout.splits and self._is_read_in(plan.files, plan.snapshot)
                parts = {
                    split.name: writer.write(
                        written(frame.where(f"{SPLIT} = {index}"), source, names), split, as_read=as_read
                    )
                    for index, split in enumerate(plan.splits)
                }
        final = {}
        for name, paths in parts.items():
            final[name] = tuple(publication.name(name, index, len(paths)) for index in range(len(paths)))
            for path, to in zip(paths, final[name], strict=True):
                publication.adopt(path, to)
        return final

    def read(self, request: ExportRequest, snapshot: Snapshot, *, few: int | None = None) -> Generator[pa.RecordBatch]:
        """Gives the snapshot's rows as Spark sends them, a few MB a message; those of a query in its own order."""
        source, names = snapshot.source, [field.name for field in snapshot.schema]
        self._refuse_unmet_settings(snapshot, but="spark.sql.parquet.")
        with self._translated(source.table):
            if few is None:
                frame = self._natural(source)
            else:
                frame = drawn(self._rows(source, identified=source.sample is not None), source)
                frame = frame.limit(few if source.limit is None else min(few, source.limit))
            frame = written(frame, source, names)
            for field in frame.schema.fields:
                if holds_variant(field.dataType):
                    # `toArrow` of Spark 4.1 fails on a NULL among variants.
                    raise Unsupported(
                        f"column `{field.name}` holds variants, which Spark's client does not give as Arrow",
                        hint="leave it out with `--exclude-columns`, or use `--engine local`",
                    )
            table = frame.toArrow()
            plain = arrow_schema(self._rows(source, identified=False).schema)[0]
        yield from conformed(table, Selection.of(request, plain).schema)

    def close(self) -> None:
        """Ends the session that was opened here; a user's own goes on, with its own settings."""
        self._tables.clear()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _connection(self) -> Connection:
        if self._opened is None:
            self._opened = Connection(self._remote)
        return self._opened

    def _translated(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self._connection.translated(what if what.startswith("`") else f"`{what}`")

    def _table(self, name: str) -> SparkTable:
        if name not in self._tables:
            self._tables[name] = SparkTable(self._connection, name)
        return self._tables[name]

    def _resolve_table(self, request: ExportRequest) -> Snapshot:
        name = whole(request.table.text)
        with self._translated(name):
            table = self._table(name)
            detail = table.detail()
            newest = table.newest()
            version, committed = table.pin(request.table, newest)
            schema = table.read(version).schema
            size = detail["sizeInBytes"] if version == newest[0] else table.size(version)
        at = None if committed is None else committed.isoformat(timespec="milliseconds")
        selection = self._selection(request, schema)
        return Snapshot(
            source=selection.source(request, name, detail["id"], version, at),
            schema=fields(selection.schema),
            rows=None,
            bytes=size,
            files=detail["numFiles"] if version == newest[0] else None,
            order_by=selection.order_by,
            split_by=selection.split_by,
        )

    def _resolve_query(self, request: ExportRequest) -> Snapshot:
        assert request.query is not None
        refuse_unfit_flags(request)
        query = Query.parse(request.query)
        found: dict[str, int | None] = {}

        def newest(name: str) -> int | None:
            if name not in found:
                with self._translated(name):
                    found[name] = self._newest(name)
            return found[name]

        sql, tables = query.pinned(newest)
        with self._translated("`--query`"):
            frame = self._connection.session.sql(sql)
            refuse_equal_names(frame.columns)
            schema = frame.schema
            size, rows = self._size_of(query, newest, len(schema))
        selection = self._selection(request, schema)
        source = selection.source(request, "query", "", 0)
        return Snapshot(
            source=replace(source, query=query.sql, tables=tables),
            schema=fields(selection.schema),
            rows=None,
            bytes=size,
            table_rows=rows,
            order_by=selection.order_by,
            split_by=selection.split_by,
        )

    def _size_of(self, query: Query, version: Callable[[str], int | None], columns: int) -> tuple[int, int | None]:
        """What a query's rows may take: so many bytes for so many rows; None for as many as there are.

        A rough estimate: the bytes of all tables that it reads, for the rows of the largest of them; and some bytes
        for each column of a row where no size is known.
        """
        session, fixed = self._connection.session, query.relations(version)
        told = {relation: estimated_bytes(session, relation) for relation in fixed}
        sizes = {relation: size for relation, size in told.items() if size is not None}
        if not sizes:
            return _COLUMN_BYTES * columns, 1
        largest = max(sizes, key=lambda relation: sizes[relation])
        # The log answers for a version; to count other rows could take as long as the query itself.
        rows = session.sql(f"SELECT count(*) FROM {largest}").collect()[0][0] if fixed[largest] else None  # noqa: S608
        return sum(sizes.values()), rows

    def _selection(self, request: ExportRequest, schema: Any) -> Selection:
        """What the request asks of a frame's columns, none of which may be of a type that Parquet's readers lack."""
        plain, foreign = arrow_schema(schema)
        selection = Selection.of(request, plain)
        for name in selection.schema.names:
            kind = schema[name].dataType
            if name in foreign or (holds_variant(kind) and self._connection.refuses_plain_variants()):
                raise Unsupported(
                    f"column `{name}` is of type `{kind.simpleString()}`, which Parquet readers do not share",
                    hint=f"leave it out with `--exclude-columns {name}`",
                )
        return selection

    def _newest(self, name: str) -> int | None:
        """The newest version of a table that a query names, as SQL does; None for what has no versions."""
        session = self._connection.session
        session.table(name).schema  # noqa: B018 - the property asks the server whether it is there
        try:
            with self._translated(name):
                row = session.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").collect()[0]
        except (Unsupported, InvalidRequest):
            return None
        return int(row["version"])

    def _rows(self, source: Source, *, identified: bool) -> Any:
        """All rows that the source is about, with what tells them apart where that is asked."""
        if source.query is None:
            table = self._table(source.table)
            return table.identified(source.version) if identified else table.read(source.version)
        versions = {table.text: table.version for table in map(TableRef.parse, source.tables)}
        sql, _ = Query.parse(source.query).pinned(versions.get)
        frame = self._connection.session.sql(sql)
        return with_identity_of_values(frame) if identified else frame

    def _natural(self, source: Source) -> Any:
        """The rows of the source in their natural order."""
        needed = needs_identity(source, NATURAL)
        if source.query is not None and not needed:
            return drawn(self._rows(source, identified=False), source)
        try:
            frame = drawn(self._rows(source, identified=True), source)
        except Unsupported:
            if needed:
                raise
            # A server that does not tell rows apart: they are the right ones all the same.
            return drawn(self._rows(source, identified=False), source)
        return ordered(limited(frame, source, NATURAL), source, NATURAL)

    def _is_read_in(self, files: int, snapshot: Snapshot) -> bool:
        """Whether Spark reads all rows of a table, and probably in at least so many partitions.

        The table's size tells, as far as its files are alike. Spark is asked where that is not known, since the answer
        takes a look at each footer.
        """
        source = snapshot.source
        if source.query is not None or source.where or source.sample is not None or source.limit is not None:
            return False
        if snapshot.files and snapshot.bytes is not None:
            return _likely_partitions(snapshot.bytes, snapshot.files) >= files
        read = self._rows(source, identified=False).selectExpr("spark_partition_id() AS partition")
        return bool(read.distinct().count() >= files)

    def _refuse_unmet_settings(self, snapshot: Snapshot, but: str | None = None) -> None:
        """Refuses a session that would give other values; the settings whose names begin with `but` do not matter."""
        timestamps = any("timestamp[us, tz=UTC]" in field.type for field in snapshot.schema)
        for key, value in self._connection.unmet.items():
            if but is not None and key.startswith(but):
                continue
            if key != TIMESTAMP_TYPE or timestamps:
                raise Unsupported(
                    f"{self._connection.where} has `{key}` = `{value}` and refuses another value",
                    hint=f"set `{key}` on the server or cluster, or use `--engine local`",
                )


def _likely_partitions(size: int, files: int) -> int:
    """How many partitions Spark reads as many files of one size in: it cuts large ones and puts small ones together."""
    whole, rest = divmod(size // files, _PARTITION_BYTES)
    together = (_PARTITION_BYTES + _OPENING_BYTES) // (rest + _OPENING_BYTES)
    return files * whole + (-(-files // together) if rest else 0)
