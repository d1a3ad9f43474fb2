"""The Spark engine: Spark reads a table and writes the Parquet files; no row passes through this process.

It keeps to what Spark Connect, Databricks Connect and classic Spark have in common: DataFrames and SQL statements.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar

from uc_stage.engines.predicate import checked, chosen
from uc_stage.engines.schema import fields
from uc_stage.engines.spark_session import TIMESTAMP_TYPE, Connection
from uc_stage.errors import InvalidRequest, NotFound, StageError, Unsupported
from uc_stage.model import Snapshot, Source, TableRef, read_timestamp
from uc_stage.parquet import read_footers
from uc_stage.storage import LocalFolder, open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from uc_stage.model import ExportPlan, ExportRequest
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication
    from uc_stage.storage import Folder

_PART = re.compile(r"`([^`]+)`|([^`.]+)")
_ABORT_SECONDS = 10.0
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_SHARED_HINT = "choose a DEST that this machine and the Spark server both have, such as /Volumes/CATALOG/SCHEMA/VOLUME"


class SparkEngine:
    """Exports through a Spark session: a server of Spark Connect, Databricks Connect, or the session that is there."""

    name: ClassVar[str] = "spark"

    def __init__(self, remote: str | None = None) -> None:
        self._remote = remote
        self._opened: Connection | None = None

    @property
    def version(self) -> str:
        """The version of the Spark that reads: `Spark 4.1.4`. Opens the session."""
        return f"Spark {self._connection.version}"

    def resolve(self, request: ExportRequest) -> Snapshot:
        """Pins the table to one version and checks the columns and the predicate against its schema.

        Raises:
            NotFound: no such table or version. Unsupported: a view, or what this Delta or Parquet does not hold.
            InvalidRequest: an unknown column, a predicate that is not one, or a URL as DEST.
            Unavailable: no session, or one that ended.
        """
        import pyarrow as pa

        if not isinstance(open_folder(request.dest), LocalFolder):
            raise InvalidRequest(
                f"the Spark engine cannot write to the URL `{request.dest}`", hint=f"{_SHARED_HINT}, or a mount"
            )
        table = _whole(request.table.text)
        with self._translated(table):
            detail = self._detail(table)
            newest = self._history(table, 1)[0]
            version, committed = self._pin(request.table, table, newest)
            schema = self._read(table, version).schema
        names = schema.names
        columns = None if request.columns is None else chosen(request.columns, names)
        where = None if request.where is None else checked(request.where, names)
        at = None if committed is None else committed.isoformat(timespec="milliseconds")
        source = Source(table, detail["id"], version, at, columns, where, request.limit)
        with self._translated(table if where is None else "`--where`"):
            # Spark analyses the predicate here, before anything is written.
            written = self._frame(source).schema
        arrow = pa.schema([(field.name, _arrow_type(field.dataType, field.name)) for field in written.fields])
        return Snapshot(
            source=source,
            schema=fields(arrow),
            rows=None,
            bytes=detail["sizeInBytes"] if version == newest[0] else None,
            files=detail["numFiles"] if version == newest[0] else None,
        )

    def count(self, snapshot: Snapshot) -> int:
        """The rows that the request holds; Delta answers from its log where it can."""
        with self._translated(snapshot.source.table):
            return int(self._frame(snapshot.source).count())

    def write(self, plan: ExportPlan, publication: Publication, progress: Progress) -> tuple[str, ...]:
        """Lets Spark write into the publication's scratch folder, then gives each file its final name.

        Raises:
            InvalidRequest: the Spark server does not see DEST.
            Unsupported: the session would write timestamps as INT96.
            NotFound, VerificationFailed: a data file of the table is gone or damaged.
        """
        source, folder = plan.snapshot.source, publication.folder
        self._refuse_unmet_settings(plan.snapshot)
        progress.phase("write", total=plan.rows, unit="rows")
        target = f"{publication.scratch}/parts"
        with self._translated(source.table), self._reporting(progress, plan.rows):
            self._refuse_unseen(publication)
            frame = _nullable(self._connection.session, self._frame(source)).repartition(plan.files)
            options = {
                "compression": plan.layout.compression,
                "maxRecordsPerFile": 0,
                "parquet.block.size": plan.layout.row_group_bytes,
            }
            try:
                frame.write.mode("error").options(**options).parquet(_for_server(folder.locate(target)))
            except BaseException:
                # pyspark tells the server to end, and does not wait for it.
                _wait_for_abort(folder.locate(target))
                raise
        parts = self._parts(folder, target)
        final = [publication.name("train", index, len(parts)) for index in range(len(parts))]
        for part, name in zip(parts, final, strict=True):
            publication.adopt(part, name)
        return tuple(final)

    def close(self) -> None:
        """Ends the session that was opened here; a user's own goes on, with its own settings."""
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

    def _read(self, table: str, version: int) -> Any:
        return self._connection.session.read.option("versionAsOf", version).table(_quoted(table))

    def _detail(self, table: str) -> dict[str, Any]:
        """The row of DESCRIBE DETAIL of a table that is there and is a Delta table."""
        session = self._connection.session
        # Reading names what is wrong with a table that is none better than DESCRIBE does.
        session.read.table(_quoted(table)).schema  # noqa: B018 - the property asks the server
        details = session.sql(f"DESCRIBE DETAIL {_quoted(table)}")
        detail = details.select("format", "id", "sizeInBytes", "numFiles").collect()[0]
        if detail["format"] != "delta":
            raise Unsupported(
                f"`{table}` is a table of format `{detail['format']}`", hint="export reads Delta tables alone"
            )
        return dict(detail.asDict())

    def _history(self, table: str, limit: int | None) -> list[tuple[int, dt.datetime]]:
        """The newest commits that the log still holds, newest first: version and time."""
        statement = f"DESCRIBE HISTORY {_quoted(table)}" + (f" LIMIT {limit}" if limit else "")
        commits = self._connection.session.sql(statement).selectExpr("version", "unix_micros(timestamp) AS micros")
        return [(int(row["version"]), _EPOCH + dt.timedelta(microseconds=row["micros"])) for row in commits.collect()]

    def _pin(self, asked: TableRef, table: str, newest: tuple[int, dt.datetime]) -> tuple[int, dt.datetime | None]:
        """The one version that is meant, with the time of its commit where the log still holds that."""
        if asked.timestamp is not None:
            return self._at(asked.timestamp, table)
        if asked.version is None or asked.version == newest[0]:
            return newest
        if asked.version > newest[0]:
            raise NotFound(
                f"`{table}` has no version {asked.version}", hint=f"its newest is {newest[0]}: `{table}@v{newest[0]}`"
            )
        commits = dict(self._history(table, newest[0] - asked.version + 1))
        return asked.version, commits.get(asked.version)

    def _at(self, timestamp: str, table: str) -> tuple[int, dt.datetime]:
        """The newest version at a time."""
        moment = read_timestamp(timestamp)
        commits = self._history(table, None)
        newest, oldest = commits[0], commits[-1]
        # As in Spark itself, a time after the last commit is refused: the next commit could still change the answer.
        if not oldest[1] <= moment <= newest[1]:
            raise NotFound(
                f"`{table}` has no version of {timestamp}",
                hint=f"its commits go from version {oldest[0]} at {oldest[1].isoformat()} "
                f"to version {newest[0]} at {newest[1].isoformat()}",
            )
        return next(commit for commit in commits if commit[1] <= moment)

    def _frame(self, source: Source) -> Any:
        """The rows and columns that are asked for."""
        frame = self._read(source.table, source.version)
        if source.where is not None:
            frame = frame.where(source.where)
        if source.columns is not None:
            frame = frame.select(*(_tick(name) for name in source.columns))
        if source.limit is not None:
            frame = frame.limit(source.limit)
        return frame

    def _refuse_unmet_settings(self, snapshot: Snapshot) -> None:
        timestamps = any("timestamp[us, tz=UTC]" in field.type for field in snapshot.schema)
        for key, value in self._connection.unmet.items():
            if key != TIMESTAMP_TYPE or timestamps:
                raise Unsupported(
                    f"{self._connection.where} has `{key}` = `{value}` and refuses another value",
                    hint=f"set `{key}` on the server or cluster, or use `--engine local`",
                )

    def _refuse_unseen(self, publication: Publication) -> None:
        """Asks the server for the file that this run just wrote: it would fill a folder of its own otherwise."""
        claim = publication.folder.locate(publication.claim)
        try:
            with self._translated(claim):
                self._connection.session.read.text(_globless(_for_server(claim))).schema  # noqa: B018 - asks the server
        except NotFound:
            raise InvalidRequest(
                f"{self._connection.where} does not see the folder `{publication.folder.url}`", hint=_SHARED_HINT
            ) from None

    @contextlib.contextmanager
    def _reporting(self, progress: Progress, rows: int) -> Iterator[None]:
        """Tells the part of Spark's tasks that is done as that part of the rows; only Spark Connect tells it."""
        from pyspark.errors import PySparkException

        session, told = self._connection.session, 0

        def report(stages: Any, **_: Any) -> None:
            nonlocal told
            tasks = sum(stage.num_tasks for stage in stages or ())
            share = sum(stage.num_completed_tasks for stage in stages or ()) / tasks if tasks else 0
            done = min(rows, int(rows * share))
            progress.advance(max(0, done - told))
            told = max(told, done)

        try:
            session.registerProgressHandler(report)
        except (AttributeError, PySparkException):  # classic Spark has it to refuse it, and older ones do not have it
            yield
        else:
            try:
                yield
            finally:
                session.removeProgressHandler(report)
        progress.advance(rows - told)

    def _parts(self, folder: Folder, target: str) -> list[str]:
        """The files with rows that Spark wrote, or one without where there are no rows at all."""
        below = open_folder(folder.locate(target))
        names = sorted(
            entry.path
            for entry in (below.entries() if below.exists() else ())
            if re.fullmatch(r"part-[^/]+\.parquet", entry.path)
        )
        if not names:
            raise InvalidRequest(f"Spark wrote to `{below.url}`, and no file is there for us", hint=_SHARED_HINT)
        footers = read_footers(below, names)
        rows = {}
        for name, footer in footers.items():
            if isinstance(footer, StageError):
                raise footer
            if any("INT96" in field.type for field in footer.schema):
                raise Unsupported(
                    f"{self._connection.where} wrote timestamps as INT96, which wrap around in silence beyond 2262",
                    hint=f"set `{TIMESTAMP_TYPE}` to `TIMESTAMP_MICROS` on the server, or use `--engine local`",
                )
            rows[name] = footer.rows
        filled = [name for name in names if rows[name]] or names[:1]
        return [f"{target}/{name}" for name in filled]


def _wait_for_abort(target: str) -> None:
    """Waits until Spark removed its temporary folder, the last that it does: what it does later nobody would sweep."""
    deadline = time.monotonic() + _ABORT_SECONDS
    while os.path.exists(os.path.join(target, "_temporary")) and time.monotonic() < deadline:
        time.sleep(0.1)


def _nullable(session: Any, frame: Any) -> Any:
    """The frame with all its columns and nested fields nullable: Spark writes a file's schema as the plan has it.

    A union is nullable where one of its sides is. The other side is empty, which the optimiser must not find out,
    since it would drop it: so it is a filter over a range, which no rule of Spark 4.1 folds.
    """
    empty = session.range(1).where("id < 0").drop("id")
    # A column that is missing comes out of `to` as NULL.
    return frame.union(empty.to(frame.schema.toNullable()))


def _arrow_type(kind: Any, column: str) -> pa.DataType:
    """The Arrow type of a type of Spark."""
    import pyarrow as pa

    name = kind.typeName()
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if name == "array":
        return pa.list_(_arrow_type(kind.elementType, column))
    if name == "map":
        return pa.map_(_arrow_type(kind.keyType, column), _arrow_type(kind.valueType, column))
    if name == "struct":
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType, column)) for field in kind.fields])
    plain = {
        "string": pa.string(), "char": pa.string(), "varchar": pa.string(), "binary": pa.binary(),
        "boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }  # fmt: skip
    if name not in plain:
        raise Unsupported(
            f"column `{column}` is of type `{kind.simpleString()}`, which Parquet readers do not share",
            hint="leave it out with `--columns`",
        )
    return plain[name]


def _whole(text: str) -> str:
    """A name as it is, and a path of this machine made absolute, since the server has a folder of its own."""
    if TableRef(text).is_name or re.match(r"[a-z0-9]+:/", text):
        return text
    return os.path.abspath(os.path.expanduser(text))


def _quoted(table: str) -> str:
    """A table's name or path as one safe identifier of Spark's SQL."""
    if not TableRef(table).is_name:
        return f"delta.{_tick(table)}"
    return ".".join(_tick(quoted or bare) for quoted, bare in _PART.findall(table))


def _tick(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _for_server(path: str) -> str:
    """A folder of this machine for the server: a volume has one name everywhere, other paths could mean HDFS there."""
    return path if path.startswith("/Volumes/") else f"file:{path}"


def _globless(path: str) -> str:
    """A path for Spark's readers of files, which take some characters for patterns."""
    return re.sub(r"([\\*?\[\]{},^])", r"\\\1", path)
