"""Drives one Spark engine as `exporting` does, which would open one of its own for each export."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from uc_stage import exporting
from uc_stage.exporting.planning import plan_export
from uc_stage.model import ExportRequest, Snapshot, TableRef
from uc_stage.parquet import read_footer
from uc_stage.progress import SILENT
from uc_stage.publish import read_manifest
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from uc_stage.engines.spark import SparkEngine
    from uc_stage.parquet import Footer
    from uc_stage.progress import Progress


@dataclass(frozen=True)
class Exported:
    """What one drive left in `dest`."""

    dest: str
    snapshot: Snapshot
    rows: int
    names: tuple[str, ...]
    footers: tuple[Footer, ...]


def export(
    engine: SparkEngine,
    table: str,
    dest: object,
    *,
    version: int | None = None,
    progress: Progress = SILENT,
    **request: Any,
) -> Exported:
    """Exports a table into two files, where nothing else is asked."""
    asked = ExportRequest(TableRef.parse(table, version), str(dest), "spark", **{"files": 2, **request})
    folder = open_folder(asked.dest)
    plan = plan_export(asked, engine, "asked for", folder, SILENT)
    report = exporting.Prepared(plan, engine, folder).execute(progress)
    manifest = read_manifest(folder)
    assert manifest is not None
    names = tuple(file.path for file in manifest.files)
    footers = tuple(read_footer(folder, name) for name in names)
    return Exported(asked.dest, plan.snapshot, report.rows, names, footers)


def rows_of(done: Exported) -> dict[str, list[Any]]:
    """All rows, column by column, in the order of the rows as text."""
    table = pq.ParquetDataset([os.path.join(done.dest, name) for name in done.names]).read()
    rows = sorted(table.to_pylist(), key=repr)
    return {name: [row[name] for row in rows] for name in table.column_names}


def leftovers(dest: object) -> list[str]:
    """Every file and folder below a folder that should not be there."""
    return [os.path.join(root, name) for root, folders, names in os.walk(str(dest)) for name in [*folders, *names]]
