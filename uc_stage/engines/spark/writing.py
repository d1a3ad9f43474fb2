"""Lets Spark write the rows of each split as Parquet files into a publication's scratch folder."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.engines.spark.session import TIMESTAMP_TYPE
from uc_stage.engines.spark.shaping import SPLIT, holds_variant, is_exact, tick, with_plain_variants
from uc_stage.errors import InvalidRequest, NotFound, StageError, Unsupported, VerificationFailed
from uc_stage.parquet import read_footers
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.engines.spark.session import Connection
    from uc_stage.model import ExportPlan, PlannedSplit
    from uc_stage.parquet import Footer
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication

SHARED_HINT = "choose a DEST that this machine and the Spark server both have, such as /Volumes/CATALOG/SCHEMA/VOLUME"
_PART = re.compile(r"(?:.+/)?part-(\d+)-[^/]+\.parquet")
_NUMBER, _FILE = "uc_stage_number", "uc_stage_file"
_ABORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SparkWriter:
    """One run's writes: what the plan says, through a connection, below a publication's scratch folder."""

    connection: Connection
    plan: ExportPlan
    publication: Publication
    progress: Progress

    def refuse_unseen(self) -> None:
        """Asks the server for the file that this run just wrote: it would fill a folder of its own otherwise.

        Raises:
            InvalidRequest: the server does not see it.
        """
        folder, session = self.publication.folder, self.connection.session
        claim = folder.locate(self.publication.claim)
        try:
            with self.connection.translated(f"`{claim}`"):
                session.read.text(_globless(_for_server(claim))).schema  # noqa: B018 - the property asks the server
        except NotFound:
            raise InvalidRequest(
                f"{self.connection.where} does not see the folder `{folder.url}`", hint=SHARED_HINT
            ) from None

    def write(self, frame: Any, split: PlannedSplit, *, as_read: bool = False) -> list[str]:
        """Writes a split's rows, in no order, and gives the files: as many as planned, of at least a row each.

        Args:
            frame: the rows.
            split: what is planned of it.
            as_read: whether they are a table's as it is, and Spark probably reads them in at least as many partitions
                as there are files to be: without a shuffle, that takes half the time.
        """
        session, kind = self.connection.session, frame.schema
        if not split.rows:
            frame = session.createDataFrame([], with_plain_variants(kind))
        elif not as_read or kind != kind.toNullable():
            frame = _nullable(session, frame)
        self._save((frame.coalesce if as_read else frame.repartition)(split.files).write, split.name, split.rows)
        footers = self._footers(split.name)
        filled = {path: footer for path, footer in footers.items() if footer.rows}
        # Spark deals rows out by chance, few rows may leave some files without any, and it may read fewer partitions.
        if split.rows and (len(filled) < min(split.files, split.rows) or holds_variant(kind)):
            return self._cut(split, split.name, filled, kind)
        return [f"{self.publication.scratch}/{split.name}/{path}" for path in filled or list(footers)[:1]]

    def write_exactly(self, frame: Any) -> dict[str, list[str]]:
        """Writes the splits of the rows in their order, each file with exactly its share of them, and gives the files.

        The rows are written twice: only once they lie there sorted do the files' footers tell each row's number.

        Args:
            frame: the rows sorted by the column `SPLIT`, and within it as the plan asks.
        """
        splits, kind = self.plan.splits, frame.drop(SPLIT).schema
        half = sum(split.rows // 2 for split in splits)
        footers: dict[str, Footer] = {}
        # Without any row no partition would be written, and no file.
        if any(split.rows + split.dropped for split in splits):
            self._save(frame.write.partitionBy(SPLIT), "sorted", half)
            footers = self._footers("sorted")
        files = {}
        for index, split in enumerate(splits):
            below = f"{SPLIT}={index}/"
            found = {path: footer for path, footer in footers.items() if path.startswith(below)}
            if split.rows:
                files[split.name] = self._cut(split, "sorted", found, kind)
            else:
                _refuse_other_rows(split, found)
                files[split.name] = self.write(frame.drop(SPLIT), split)
        return files

    def _cut(self, split: PlannedSplit, folder: str, footers: dict[str, Footer], kind: Any) -> list[str]:
        """Writes files anew as the files of a split, in their order.

        Args:
            split: what is planned of it.
            folder: below the scratch folder.
            footers: of the files in that.
            kind: the type of the rows.
        """
        _refuse_other_rows(split, footers)
        _refuse_shredded(kind, footers)
        place = self.publication.folder.locate(f"{self.publication.scratch}/{folder}")
        paths = [_globless(_for_server(os.path.join(place, path))) for path in footers]
        frame = self.connection.session.read.schema(with_plain_variants(kind)).parquet(*paths)
        names = kind.names
        before, offsets = 0, [0] * (1 + max(_part(path) for path in footers))
        for path, footer in footers.items():
            offsets[_part(path)] = before
            before += footer.rows
        metadata = frame.metadataColumn("_metadata")
        frame = frame.withColumns({_FILE: metadata.getField("file_name"), _NUMBER: metadata.getField("row_index")})
        part = f"CAST(substring_index(substring({_FILE}, 6), '-', 1) AS INT)"
        listed = ", ".join(f"CAST({offset} AS BIGINT)" for offset in offsets)
        number = f"element_at(array({listed}), {part} + 1) + {_NUMBER}"
        kept = [tick(name) for name in names]
        frame = frame.selectExpr(*kept, f"{number} AS {_NUMBER}").where(f"{_NUMBER} < {split.rows}")
        least, more = divmod(split.rows, split.files)
        wide = more * (least + 1)
        file = (
            f"CASE WHEN {_NUMBER} < {wide} THEN {_NUMBER} div {least + 1} "
            f"ELSE ({_NUMBER} - {wide}) div {least} + {more} END"
        )
        frame = frame.selectExpr("*", f"CAST({file} AS INT) AS {_FILE}").repartition(split.files, _FILE)
        frame = frame.sortWithinPartitions(_FILE, _NUMBER).selectExpr(*kept, _FILE)
        cut = f"{split.name}-cut"
        # The rows of an order are half done once they are sorted, all others are done already.
        self._save(
            frame.write.partitionBy(_FILE), cut, split.rows - split.rows // 2 if is_exact(self.plan.layout) else 0
        )
        paths = sorted(self._footers(cut), key=lambda path: int(path.partition("/")[0].rpartition("=")[2]))
        return [f"{self.publication.scratch}/{cut}/{path}" for path in paths]

    def _save(self, writer: Any, name: str, rows: int) -> None:
        """Runs one write into a folder below the scratch folder; `rows` is its part of the progress."""
        layout = self.plan.layout
        target = self.publication.folder.locate(f"{self.publication.scratch}/{name}")
        options = {
            "compression": layout.compression,
            "maxRecordsPerFile": 0,
            "parquet.block.size": layout.row_group_bytes,
        }
        try:
            with self._reporting(rows):
                writer.mode("error").options(**options).parquet(_for_server(target))
        except BaseException:
            # pyspark tells the server to end, and does not wait for it.
            _wait_for_abort(target)
            raise

    def _footers(self, name: str) -> dict[str, Footer]:
        """The files that Spark wrote to a folder below the scratch folder, in the order of its parts.

        Raises:
            InvalidRequest: it wrote them elsewhere.
            Unsupported: with timestamps as INT96.
        """
        folder = self.publication.folder
        below = open_folder(folder.locate(f"{self.publication.scratch}/{name}"))
        paths = [entry.path for entry in (below.entries() if below.exists() else ()) if _PART.fullmatch(entry.path)]
        paths.sort(key=lambda path: (_part(path), path))
        if not paths:
            raise InvalidRequest(f"Spark wrote to `{below.url}`, and no file is there for us", hint=SHARED_HINT)
        found = {}
        for path, footer in read_footers(below, paths).items():
            if isinstance(footer, StageError):
                raise footer
            if any("INT96" in field.type for field in footer.schema):
                raise Unsupported(
                    f"{self.connection.where} wrote timestamps as INT96, which wrap around in silence beyond 2262",
                    hint=f"set `{TIMESTAMP_TYPE}` to `TIMESTAMP_MICROS` on the server, or use `--engine local`",
                )
            found[path] = footer
        return found

    @contextlib.contextmanager
    def _reporting(self, rows: int) -> Iterator[None]:
        """Tells the part of Spark's tasks that is done as that part of the rows; only Spark Connect tells it."""
        from pyspark.errors import PySparkException

        session, told = self.connection.session, 0

        def report(stages: Any, **_: Any) -> None:
            nonlocal told
            tasks = sum(stage.num_tasks for stage in stages or ())
            share = sum(stage.num_completed_tasks for stage in stages or ()) / tasks if tasks else 0
            done = min(rows, int(rows * share))
            self.progress.advance(max(0, done - told))
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
        self.progress.advance(rows - told)


def _refuse_other_rows(split: PlannedSplit, footers: dict[str, Footer]) -> None:
    """Refuses files that do not hold as many rows as were counted."""
    planned, found = split.rows + split.dropped, sum(footer.rows for footer in footers.values())
    if found != planned:
        raise VerificationFailed(
            f"Spark counted {planned} rows of the split `{split.name}` and then wrote {found}",
            hint="run the export again; if it stays, check what of it changes from run to run",
        )


def _refuse_shredded(kind: Any, footers: dict[str, Footer]) -> None:
    """Refuses files whose variants are not whole: what is shredded would be lost to who reads two binaries."""
    variants = {field.name for field in kind.fields if holds_variant(field.dataType)}
    for footer in footers.values():
        for field in footer.schema:
            if field.name in variants and "typed_value" in field.type:
                raise Unsupported(
                    f"Spark shredded the variants of column `{field.name}`, which Parquet readers do not share",
                    hint=f"leave it out with `--exclude-columns {field.name}`, or use `--engine local`",
                )


def _part(path: str) -> int:
    """The number of the partition that a file of Spark's was written from."""
    match = _PART.fullmatch(path)
    assert match is not None
    return int(match[1])


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
    empty = session.range(0, 1, 1, 1).where("id < 0").drop("id")
    # A column that is missing comes out of `to` as NULL.
    return frame.union(empty.to(frame.schema.toNullable()))


def _for_server(path: str) -> str:
    """A folder of this machine for the server: a volume has one name everywhere, other paths could mean HDFS there."""
    return path if path.startswith("/Volumes/") else f"file:{path}"


def _globless(path: str) -> str:
    """A path for Spark's readers of files, which take some characters for patterns."""
    return re.sub(r"([\\*?\[\]{},^])", r"\\\1", path)
