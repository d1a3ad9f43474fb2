"""One Delta table as Spark knows it: its name, its versions, and which row of which data file each row is."""

from __future__ import annotations

import datetime as dt
import os
import re
from typing import TYPE_CHECKING, Any

from uc_stage.engines.spark.shaping import PATH, POSITION, text, tick
from uc_stage.errors import NotFound, Unsupported
from uc_stage.model import TableRef, read_timestamp

if TYPE_CHECKING:
    from uc_stage.engines.spark.session import Connection

_PART = re.compile(r"`([^`]+)`|([^`.]+)")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
# Above any data file's size, and far below what would overflow when Spark adds up the files' costs.
_WHOLE_FILE = str(2**40)
_UNSPLIT = {"spark.sql.files.maxPartitionBytes": _WHOLE_FILE, "spark.sql.files.openCostInBytes": _WHOLE_FILE}
# `monotonically_increasing_id` counts the rows of a partition in its lower bits.
_ROWS_OF_PARTITION = 2**33 - 1
_FILE, _URL = "uc_stage_file", "uc_stage_url"
# A plan's first estimate, of all that it gives: https://spark.apache.org/docs/latest/sql-ref-syntax-qry-explain.html
_ESTIMATE = re.compile(r"sizeInBytes=(?:(\d+(?:\.\d+)?) ([KMGTP]i)?B)?")


class SparkTable:
    """A table or path that a Spark session reads."""

    def __init__(self, connection: Connection, name: str) -> None:
        """Takes a name of the catalog, a URL, or an absolute path."""
        self.name = name
        self._connection = connection
        self._session = connection.session
        self._counted: set[int] = set()

    def read(self, version: int) -> Any:
        """The rows of a version."""
        return self._session.read.option("versionAsOf", version).table(quoted(self.name))

    def detail(self) -> dict[str, Any]:
        """The row of DESCRIBE DETAIL, of a table that is there.

        Raises:
            NotFound: no such table. Unsupported: it is a view, or a table of another format.
        """
        # Reading names what is wrong with a table that is none better than DESCRIBE does.
        self._session.read.table(quoted(self.name)).schema  # noqa: B018 - the property asks the server
        details = self._session.sql(f"DESCRIBE DETAIL {quoted(self.name)}")
        detail = details.select("format", "id", "sizeInBytes", "numFiles", "location").collect()[0]
        if detail["format"] != "delta":
            raise Unsupported(
                f"`{self.name}` is a table of format `{detail['format']}`", hint="export reads Delta tables alone"
            )
        return dict(detail.asDict())

    def size(self, version: int) -> int | None:
        """About the bytes of the version's data files, as `estimated_bytes` gives them."""
        return estimated_bytes(self._session, f"{quoted(self.name)} VERSION AS OF {version}")

    def newest(self) -> tuple[int, dt.datetime]:
        """The newest version with the time of its commit."""
        return self._history(1)[0]

    def pin(self, asked: TableRef, newest: tuple[int, dt.datetime]) -> tuple[int, dt.datetime | None]:
        """The one version that is meant, with the time of its commit where the log still holds that.

        Raises:
            NotFound: there is no such version.
        """
        if asked.timestamp is not None:
            return self._at(asked.timestamp)
        if asked.version is None or asked.version == newest[0]:
            return newest
        if asked.version > newest[0]:
            raise NotFound(
                f"`{self.name}` has no version {asked.version}",
                hint=f"its newest is {newest[0]}: `{self.name}@v{newest[0]}`",
            )
        commits = dict(self._history(newest[0] - asked.version + 1))
        return asked.version, commits.get(asked.version)

    def identified(self, version: int) -> Any:
        """The rows with the columns `PATH` and `POSITION`: the data file as the log names it, and the place in that.

        The path is decoded and below the table's location, or a whole URL for a file elsewhere.

        Raises:
            Unsupported: the server does not tell, and does not read each file in one piece.
        """
        frame = self._placed(version)
        decoded = f"IF(contains({_FILE}, '%'), url_decode(replace({_FILE}, '+', '%2B')), {_FILE})"
        frame = frame.selectExpr("*", f"replace({decoded}, 'file:///', 'file:/') AS {_URL}")
        location = self.detail()["location"].rstrip("/")
        below = text(re.sub("^file:/+", "file:/", location) + "/")
        relative = f"IF(startswith({_URL}, {below}), substring({_URL}, length({below}) + 1), {_URL})"
        return frame.selectExpr("*", f"{relative} AS {PATH}").drop(_FILE, _URL)

    def _placed(self, version: int) -> Any:
        """The rows with the URL of their data file as `_FILE`, and `POSITION`."""
        frame = self.read(version)
        metadata = frame.metadataColumn("_metadata")
        if self._tells_positions(frame, metadata):
            return frame.withColumns({_FILE: metadata.getField("file_path"), POSITION: metadata.getField("row_index")})
        # Delta tells the position only where a table may have deletion vectors. Elsewhere the rows of a file are
        # counted as they come, which no filter gets below of.
        refused = self._connection.set(_UNSPLIT)
        frame = frame.withColumns({_FILE: metadata.getField("file_path")})
        frame = frame.selectExpr("*", f"monotonically_increasing_id() & {_ROWS_OF_PARTITION} AS {POSITION}")
        if version not in self._counted:
            if refused or not self._is_counted(frame):
                raise Unsupported(
                    f"the rows of `{self.name}` cannot be told apart through {self._connection.where}, as `--sample`, "
                    "`--split`, `--shuffle`, `--order-by`, `--equal-rows` and `--limit` need it",
                    hint=f"let the server take {' and '.join(f'`{key}`' for key in _UNSPLIT)}, or use `--engine local`",
                )
            self._counted.add(version)
        return frame

    def _tells_positions(self, frame: Any, metadata: Any) -> bool:
        from pyspark.errors import AnalysisException

        try:
            frame.select(metadata.getField("row_index")).schema  # noqa: B018 - the property asks the server
        except AnalysisException as error:
            if not str(error.getCondition()).startswith("FIELD_NOT_FOUND"):
                raise
            return False
        return True

    def _is_counted(self, frame: Any) -> bool:
        """Whether the positions of each file go from 0 to its rows; only the files' footers are read for it."""
        ends = frame.selectExpr(_FILE, f"{POSITION} AS first", f"{POSITION} AS last").groupBy(_FILE)
        found = ends.agg({"first": "min", "last": "max", "*": "count"}).toDF(_FILE, "first", "last", "rows")
        return bool(found.where("first <> 0 OR last <> rows - 1").isEmpty())

    def _history(self, limit: int | None) -> list[tuple[int, dt.datetime]]:
        """The newest commits that the log still holds, newest first: version and time."""
        statement = f"DESCRIBE HISTORY {quoted(self.name)}" + (f" LIMIT {limit}" if limit else "")
        commits = self._session.sql(statement).selectExpr("version", "unix_micros(timestamp) AS micros")
        return [(int(row["version"]), _EPOCH + dt.timedelta(microseconds=row["micros"])) for row in commits.collect()]

    def _at(self, timestamp: str) -> tuple[int, dt.datetime]:
        """The newest version at a time."""
        moment = read_timestamp(timestamp)
        commits = self._history(None)
        newest, oldest = commits[0], commits[-1]
        # As in Spark itself, a time after the last commit is refused: the next commit could still change the answer.
        if not oldest[1] <= moment <= newest[1]:
            raise NotFound(
                f"`{self.name}` has no version of {timestamp}",
                hint=f"its commits go from version {oldest[0]} at {oldest[1].isoformat()} "
                f"to version {newest[0]} at {newest[1].isoformat()}",
            )
        return next(commit for commit in commits if commit[1] <= moment)


def estimated_bytes(session: Any, relation: str) -> int | None:
    """About the bytes of what a FROM clause names, as the optimiser tells them: of Delta, those of its data files.

    None where it does not know, for which it tells of exbibytes and more.
    """
    plan = session.sql(f"EXPLAIN COST SELECT * FROM {relation}").collect()[0][0]  # noqa: S608 - names in backticks
    found = _ESTIMATE.search(plan)
    if found is None or found[1] is None:
        return None
    return int(float(found[1]) * 1024 ** (" KMGTP".index((found[2] or " ")[0])))


def whole(name: str) -> str:
    """A name as it is, and a path of this machine made absolute, since the server has a folder of its own."""
    if TableRef(name).is_name or re.match(r"[a-z0-9]+:/", name):
        return name
    return os.path.abspath(os.path.expanduser(name))


def quoted(name: str) -> str:
    """A table's name or path as one safe identifier of Spark's SQL."""
    if not TableRef(name).is_name:
        return f"delta.{tick(name)}"
    return ".".join(tick(in_ticks or bare) for in_ticks, bare in _PART.findall(name))
