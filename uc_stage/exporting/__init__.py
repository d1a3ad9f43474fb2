"""The export use case: decides what to write with which engine, publishes a generation, and says what was done."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from uc_stage import __version__
from uc_stage.errors import Busy, InvalidRequest, NotFound
from uc_stage.exporting.checking import checked_splits
from uc_stage.exporting.planning import check_flags, plan_export
from uc_stage.manifest import Manifest
from uc_stage.model import ExportPlan, ExportReport
from uc_stage.progress import SILENT
from uc_stage.publish import Publication, now, read_manifest, sweep
from uc_stage.storage import LocalFolder, open_folder, table_around
from uc_stage.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.engines import Engine
    from uc_stage.model import ExportRequest
    from uc_stage.progress import Progress
    from uc_stage.storage import Folder


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan with the engine that resolved it, which is open as long as the `prepare` that gave it."""

    plan: ExportPlan
    engine: Engine
    folder: Folder

    def execute(self, progress: Progress = SILENT) -> ExportReport:
        """Does what the plan says.

        Raises:
            StageError: whatever kept the export from being published whole; the folder is then as it was before.
        """
        began = time.monotonic()
        if self.plan.action == "unchanged":
            return self._leave_it(began)
        return self._write(began, progress)

    def _leave_it(self, began: float) -> ExportReport:
        sweep(self.folder)
        manifest = read_manifest(self.folder)
        if manifest is None:
            raise NotFound(f"the manifest of `{self.folder.url}` is gone", hint="run the export again")
        if manifest.id != self.plan.id:
            raise Busy(f"another export published `{self.folder.url}` meanwhile", hint="run the export again")
        return self._report("unchanged", manifest, 0, began)

    def _write(self, began: float, progress: Progress) -> ExportReport:
        plan = self.plan
        with Publication(self.folder, plan.snapshot.source.version, plan.request.keep) as publication:
            names = self.engine.write(plan, publication, progress)
            tally = Tally(self.folder, min((name for files in names.values() for name in files), default=None))
            splits = checked_splits(plan, self.folder, names, publication.written, tally, progress)
            stored = publication.commit(
                Manifest(
                    id=plan.id,
                    generation=publication.generation,
                    source=plan.snapshot.source,
                    schema=plan.snapshot.schema,
                    splits=splits,
                    layout=plan.layout,
                    engine=self.engine.name,
                    engine_version=self.engine.version,
                    uc_stage_version=__version__,
                    created_at=now(),
                    dropped=plan.dropped,
                    footers=tally.result(),
                )
            )
        return self._report("done", stored, len(publication.retired), began)

    def _report(
        self, status: Literal["done", "unchanged"], manifest: Manifest, retired: int, began: float
    ) -> ExportReport:
        return ExportReport(
            status=status,
            table=self.plan.snapshot.source.table,
            query=self.plan.snapshot.source.query,
            version=manifest.source.version,
            dest=self.folder.url,
            id=manifest.id,
            generation=manifest.generation,
            engine=self.plan.engine,
            engine_reason=self.plan.engine_reason,
            rows=manifest.rows,
            files=len(manifest.files),
            bytes=manifest.size,
            splits={name: sum(file.rows for file in files) for name, files in manifest.splits.items()},
            dropped=manifest.dropped,
            retired=retired,
            seconds=time.monotonic() - began,
        )


def run(request: ExportRequest, progress: Progress = SILENT) -> ExportReport:
    """Exports one version of a table.

    Raises:
        StageError: as `prepare` and `Prepared.execute`.
    """
    with prepare(request, progress) as prepared:
        return prepared.execute(progress)


@contextlib.contextmanager
def prepare(request: ExportRequest, progress: Progress = SILENT) -> Iterator[Prepared]:
    """Resolves the table and decides what is to be done, without writing a byte.

    Raises:
        InvalidRequest: flags that cannot be right, an unknown column, or a folder that is no place for an export.
        NotFound, AccessDenied, Unavailable, Unsupported: as the engine says of the table.
    """
    check_flags(request)
    folder = _destination(request)
    name, reason = choose_engine(request)
    engine = open_engine(name, request.remote)
    try:
        yield Prepared(plan_export(request, engine, reason, folder, progress), engine, folder)
    finally:
        engine.close()


def choose_engine(request: ExportRequest) -> tuple[Literal["local", "spark"], str]:
    """The engine for a request, and why it is that one."""
    if request.engine != "auto":
        return request.engine, "asked for"
    if request.query is not None:
        return "spark", "a query is Spark's to answer"
    if request.as_is:
        return "local", "it copies the table's files"
    if not request.table.is_name or os.path.isdir(request.table.text):
        return "local", "a path or URL is read in this process"
    session = _session(request.remote)
    if session is not None:
        return "spark", f"a name of the catalog, and {session}"
    return "local", "a name of the catalog and no Spark session: its files are read with the catalog's credentials"


def _session(remote: str | None) -> str | None:
    """Which Spark session there is to be had, told without importing pyspark."""
    if remote or os.environ.get("SPARK_REMOTE"):
        return "a Spark Connect server is named"
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return "the Databricks runtime has a Spark session"
    if "pyspark.sql" in sys.modules and sys.modules["pyspark.sql"].SparkSession.getActiveSession() is not None:
        return "this process has a Spark session"
    compute = {"DATABRICKS_CLUSTER_ID", "DATABRICKS_SERVERLESS_COMPUTE_ID"} & os.environ.keys()
    if compute and importlib.util.find_spec("databricks") and importlib.util.find_spec("databricks.connect"):
        return f"Databricks Connect is installed and {min(compute)} names its compute"
    return None


def open_engine(name: Literal["local", "spark"], remote: str | None) -> Engine:
    """The engine of a name, for the server at `remote` or in the environment."""
    if name == "local":
        from uc_stage.engines.local import LocalEngine

        return LocalEngine()
    from uc_stage.engines.spark import SparkEngine

    return SparkEngine(remote or os.environ.get("SPARK_REMOTE") or None)


def _destination(request: ExportRequest) -> Folder:
    """The folder to publish in.

    Raises:
        InvalidRequest: it is a file, or lies in a Delta table's folder.
    """
    if not request.dest.strip():
        raise InvalidRequest("DEST is empty", hint="name a folder or URL to export into")
    folder = open_folder(request.dest)
    place = folder.url
    if isinstance(folder, LocalFolder):
        if os.path.lexists(place) and not os.path.isdir(place):
            raise InvalidRequest(f"DEST `{place}` is not a folder", hint="name a folder, which may not exist yet")
    elif f"{place}/".startswith(request.table.text.rstrip("/") + "/"):
        raise InvalidRequest(f"DEST `{place}` lies in the table itself", hint="choose another folder")
    if (table := table_around(folder)) is not None:
        raise InvalidRequest(f"DEST `{place}` lies in the Delta table `{table}`", hint="choose another folder")
    return folder
