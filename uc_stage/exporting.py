"""The export use case: decides what to write with which engine, publishes a generation, and says what was done."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from uc_stage import __version__
from uc_stage.errors import InvalidRequest, NotFound, StageError, VerificationFailed
from uc_stage.manifest import FOLDER, Manifest, content_id
from uc_stage.model import ExportFile, ExportPlan, ExportReport, Layout
from uc_stage.parquet import Footer, read_footers
from uc_stage.progress import SILENT
from uc_stage.publish import Publication, now, read_manifest, sweep
from uc_stage.storage import LocalFolder, open_folder, table_around

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.engines import Engine
    from uc_stage.model import ExportRequest, Snapshot
    from uc_stage.progress import Progress
    from uc_stage.publish import Written
    from uc_stage.storage import Folder

_FILE_BYTES = 512 * 1024**2


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
        return self._report("unchanged", manifest, 0, began)

    def _write(self, began: float, progress: Progress) -> ExportReport:
        plan = self.plan
        with Publication(self.folder, plan.snapshot.source.version, plan.request.keep) as publication:
            names = self.engine.write(plan, publication, progress)
            files = _checked_files(plan, self.folder, names, publication.written, progress)
            stored = publication.commit(
                Manifest(
                    id=plan.id,
                    generation=publication.generation,
                    source=plan.snapshot.source,
                    schema=plan.snapshot.schema,
                    splits={"train": files},
                    layout=plan.layout,
                    engine=self.engine.name,
                    engine_version=self.engine.version,
                    uc_stage_version=__version__,
                    created_at=now(),
                )
            )
        return self._report("done", stored, len(publication.retired), began)

    def _report(
        self, status: Literal["done", "unchanged"], manifest: Manifest, retired: int, began: float
    ) -> ExportReport:
        return ExportReport(
            status=status,
            table=self.plan.snapshot.source.table,
            version=manifest.source.version,
            dest=self.folder.url,
            id=manifest.id,
            generation=manifest.generation,
            engine=self.plan.engine,
            engine_reason=self.plan.engine_reason,
            rows=manifest.rows,
            files=len(manifest.files),
            bytes=manifest.size,
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
    _check_numbers(request)
    folder = _destination(request)
    name, reason = choose_engine(request)
    engine = _open_engine(name, request.remote)
    try:
        yield Prepared(_plan(request, engine, reason, folder, progress), engine, folder)
    finally:
        engine.close()


def choose_engine(request: ExportRequest) -> tuple[Literal["local", "spark"], str]:
    """The engine for a request, and why it is that one."""
    if request.engine != "auto":
        return request.engine, "asked for"
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


def _open_engine(name: Literal["local", "spark"], remote: str | None) -> Engine:
    if name == "local":
        from uc_stage.engines.local import LocalEngine

        return LocalEngine()
    from uc_stage.engines.spark import SparkEngine

    return SparkEngine(remote or os.environ.get("SPARK_REMOTE") or None)


def _check_numbers(request: ExportRequest) -> None:
    if request.files is not None and request.file_bytes is not None:
        raise InvalidRequest("`--files` and `--file-size` exclude each other", hint="give one of the two")
    least = {"--files": 1, "--file-size": 1, "--row-group-size": 1, "--limit": 0, "--keep": 0}
    given = (request.files, request.file_bytes, request.row_group_bytes, request.limit, request.keep)
    for (flag, low), value in zip(least.items(), given, strict=True):
        if value is not None and value < low:
            raise InvalidRequest(f"`{flag} {value}` is too small", hint=f"give {low} or more")


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


def _plan(request: ExportRequest, engine: Engine, reason: str, folder: Folder, progress: Progress) -> ExportPlan:
    manifest = _previous(folder)
    progress.phase("resolve")
    snapshot = engine.resolve(request)
    layout = Layout(
        files=request.files,
        file_bytes=None if request.files is not None else request.file_bytes or _FILE_BYTES,
        row_group_bytes=request.row_group_bytes,
        compression=request.compression,
    )
    identity = content_id(snapshot.source, snapshot.schema, layout)
    unchanged = manifest is not None and manifest.id == identity and not request.force and _is_whole(folder, manifest)
    if manifest is not None and unchanged:
        rows, files = manifest.rows, len(manifest.files)
    else:
        if snapshot.rows is None:
            progress.phase("count")
        rows = engine.count(snapshot) if snapshot.rows is None else snapshot.rows
        files = max(1, min(layout.files or _files_of(layout.file_bytes or _FILE_BYTES, rows, snapshot, engine), rows))
    return ExportPlan(
        request=request,
        snapshot=snapshot,
        action="unchanged" if unchanged else "write",
        engine=engine.name,
        engine_reason=reason,
        id=identity,
        rows=rows,
        files=files,
        layout=layout,
    )


def _files_of(file_bytes: int, rows: int, snapshot: Snapshot, engine: Engine) -> int:
    """How many files hold the rows at about `file_bytes` of the table's own bytes each."""
    size, source = snapshot.bytes, snapshot.source
    if size is None or size <= file_bytes:
        return 1
    if source.where is not None or source.limit is not None:
        table_rows = snapshot.table_rows
        if table_rows is None:
            whole = replace(source, where=None, limit=None)
            table_rows = engine.count(replace(snapshot, source=whole, rows=None))
        size = size * rows // max(1, table_rows)
    return -(-size // file_bytes)


def _previous(folder: Folder) -> Manifest | None:
    """The manifest of the export that is there.

    Raises:
        VerificationFailed: it is damaged, so that nobody knows which files are the export's.
    """
    if not folder.exists():
        return None
    try:
        return read_manifest(folder)
    except VerificationFailed as error:
        raise VerificationFailed(
            error.message,
            hint=f"nobody can tell which files there belong to the export: remove `{folder.url}` and export again",
        ) from error


def _is_whole(folder: Folder, manifest: Manifest) -> bool:
    """Whether all files of an export are there in their sizes."""
    there = {entry.path: entry.bytes for entry in folder.entries() if not entry.path.startswith(f"{FOLDER}/")}
    return all(there.get(file.path) == file.bytes for file in manifest.files)


def _checked_files(
    plan: ExportPlan, folder: Folder, names: tuple[str, ...], written: dict[str, Written], progress: Progress
) -> tuple[ExportFile, ...]:
    """Reads the footers of what was written and gives the manifest's entries.

    Raises:
        VerificationFailed: a file that is not whole, of another schema or with an empty row group, or rows that do
            not add up to what the table's version holds.
    """
    footers = read_footers(folder, names, progress)
    files = []
    for name, footer in footers.items():
        if isinstance(footer, StageError):
            raise footer
        _check_footer(plan, folder, footer)
        entry = folder.stat(name)
        ours = written.get(name)
        if entry is None:
            raise _damaged(folder, name, "is gone")
        if ours is not None and ours.bytes != entry.bytes:
            raise _damaged(folder, name, f"has {entry.bytes} bytes, and {ours.bytes} were written")
        digest = ours.xxh3_128 if ours else None
        files.append(ExportFile(name, entry.bytes, footer.rows, len(footer.row_groups), digest))
    rows = sum(file.rows for file in files)
    if rows != plan.rows:
        source = plan.snapshot.source
        raise VerificationFailed(
            f"`{source.table}` version {source.version} holds {plan.rows} rows of this export, and {rows} were written",
            hint="run the export again; if it stays, check the table with another reader",
        )
    return tuple(files)


def _check_footer(plan: ExportPlan, folder: Folder, footer: Footer) -> None:
    if footer.schema != plan.snapshot.schema:
        differ = [f"`{was.name}: {was.type}`" for was in footer.schema if was not in plan.snapshot.schema]
        raise _damaged(folder, footer.path, f"has another schema than was planned: {', '.join(differ) or 'its order'}")
    if any(group.rows == 0 for group in footer.row_groups):
        raise _damaged(folder, footer.path, "has a row group of no rows")


def _damaged(folder: Folder, name: str, why: str) -> VerificationFailed:
    return VerificationFailed(f"`{folder.locate(name)}`, just written, {why}", hint="run the export again")
