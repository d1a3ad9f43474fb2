"""Rules about rows that are wrong or missing in silence."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from uc_stage.inspection.facts import Finding, counted
from uc_stage.inspection.wholeness import BROKEN
from uc_stage.loaders.built import outdated
from uc_stage.parquet import is_parquet_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from uc_stage.inspection.facts import Facts

# As Hive writes a partition's folder: https://cwiki.apache.org/confluence/display/Hive/DynamicPartitions
_PARTITION = re.compile(r"([^=/]+)=[^/]*")
_SHOWN = 3
_SHARED = ("/Volumes", "/dbfs")


def deleted_rows(facts: Facts) -> Iterator[Finding]:
    """Rows that the log of a table says are gone, and that its files still hold."""
    table = facts.table
    if table is None or not (table.deleted or table.others):
        return
    said = []
    if table.deleted:
        said.append(f"{counted(table.deleted, 'rows')} that deletion vectors hide")
    if table.others:
        said.append(f"the rows of {counted(table.others, 'Parquet files')} beside version {facts.report.version}")
    yield Finding(
        f"who reads the folder as Parquet gets {' and '.join(said)} as well",
        {
            "deleted_rows": table.deleted,
            "files_with_deletion_vectors": table.vectors,
            "files_of_other_versions": table.others,
        },
        facts.export(),
    )


def renamed_columns(facts: Facts) -> Iterator[Finding]:
    """Columns that the files of a table hold under other names."""
    renamed = facts.table.renamed if facts.table else {}
    if renamed:
        shown = [f"`{name}` is `{physical}`" for name, physical in list(renamed.items())[:_SHOWN]]
        yield Finding(
            f"in the files {', '.join(shown)}{_more(renamed)}: readers that go by name give NULL or those names",
            {"renamed": dict(renamed)},
            facts.export(),
        )


def partition_columns(facts: Facts) -> Iterator[Finding]:
    """Columns whose values are in the names of folders alone."""
    if facts.table is not None:
        names = list(facts.table.partitions)
    elif facts.manifest is not None:
        return  # an export has them as columns
    else:
        known = {field.name for field in facts.report.schema}
        folders = (path.rpartition("/")[0] for path in facts.entries if is_parquet_name(path))
        found = (_PARTITION.fullmatch(part) for folder in dict.fromkeys(folders) for part in folder.split("/"))
        names = [name for name in dict.fromkeys(match[1] for match in found if match) if name not in known]
    if names:
        columns = ", ".join(f"`{name}`" for name in names[:_SHOWN]) + _more(names)
        fix = facts.export()
        if facts.table is None:
            fix += f"  # or read it with pyarrow: dataset({facts.report.target!r}, partitioning='hive')"
        yield Finding(
            f"the values of {columns} are in the names of folders alone: `load_dataset` drops them, as does a glob",
            {"columns": names},
            fix,
        )


def underscored(facts: Facts) -> Iterator[Finding]:
    """Parquet files that some readers pass over, because of an underscore."""
    if facts.report.kind not in ("folder", "copy") or facts.manifest is not None:
        return
    hidden = [
        path
        for path in facts.entries
        if is_parquet_name(path)
        and "_delta_log" not in path.split("/")
        and any(part.startswith("_") and "=" not in part for part in path.split("/"))
    ]
    if hidden:
        shown = ", ".join(f"`{path}`" for path in hidden[:_SHOWN]) + _more(hidden)
        yield Finding(
            f"Spark and pyarrow pass over {shown}, for the underscore, and `load_dataset` reads them",
            {"files": len(hidden), "first": hidden[0]},
            "rename them, or move them out of the folder",
        )


def old_builds(facts: Facts) -> Iterator[Finding]:
    """Builds of `datasets` that hold other rows than the files now."""
    machine, report = facts.machine, facts.report
    cache, _ = machine.datasets_cache
    rows = sum(sum(counts) for counts in facts.rows.values())
    if not rows or "://" in facts.url or cache.startswith(_SHARED) or not machine.installed("datasets"):
        return
    if report.kind == "file" or any(problem.code in BROKEN for problem in report.problems):
        return
    paths = sorted(path for path in facts.entries if is_parquet_name(path))
    if len(paths) != sum(map(len, facts.rows.values())):
        return  # a build of the folder has the files of others, too
    sizes = {f"{facts.url}/{path}": facts.entries[path].bytes for path in paths}
    old = outdated(facts.url, sizes, rows, {field.name for field in report.schema}, cache)
    if old:
        also = f" (and {len(old) - 1} more)" if len(old) > 1 else ""
        yield Finding(
            f"`{old[0].call}`{also} gives the {old[0].rows:,} rows of an older build, not the {rows:,} that are here: "
            "the files have the paths and times of then, and other bytes",
            {"builds": [one.path for one in old], "build_rows": old[0].rows, "rows": rows},
            f"{shlex.join(['rm', '-r', *(one.path for one in old)])}  # or load_dataset(…, "
            'download_mode="force_redownload")',
        )


def old_copy(facts: Facts) -> Iterator[Finding]:
    """A copy of a generation that its source no longer has."""
    if facts.report.kind == "copy" and facts.report.freshness == "stale" and facts.origin is not None:
        yield Finding(
            f"training would read an older generation: {facts.report.freshness_detail}",
            {"generation": facts.report.generation},
            facts.cache(),
        )


def old_export(facts: Facts) -> Iterator[Finding]:
    """An export of a version that is not its table's newest."""
    if facts.report.kind == "export" and facts.report.freshness == "stale":
        yield Finding(
            f"the table has gone on: {facts.report.freshness_detail}",
            {"version": facts.report.version},
            facts.export(),
        )


def kept_generations(facts: Facts) -> Iterator[Finding]:
    """Files of earlier generations beside those of an export."""
    kept = sum(map(len, facts.manifest.retained.values())) if facts.manifest else 0
    if kept:
        yield Finding(
            f"beside it is what earlier generations left, {counted(kept, 'files')}, which `load_dataset` of the folder "
            "reads too",
            {"files": kept},
            f"uc-stage cache {shlex.quote(facts.report.target)}  # copies this generation alone; or export it "
            "without --keep",
        )


def int96(facts: Facts) -> Iterator[Finding]:
    """Timestamps in the old form that readers take for nanoseconds."""
    found = [column.path for column in facts.report.columns if column.physical == "INT96"]
    if found:
        yield Finding(
            f"readers take INT96 for nanoseconds: times of {_named(found)} before 1678 or after 2262 wrap in silence",
            {"columns": found},
            f"{facts.export()}  # or in Spark spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS",
        )


def nanoseconds(facts: Facts) -> Iterator[Finding]:
    """Timestamps in nanoseconds, which hold the years 1678 to 2262 alone."""
    found = [column.path for column in facts.report.columns if (column.logical or "").startswith("timestamp(ns")]
    if found:
        yield Finding(
            f"the nanoseconds of {_named(found)} hold no time before 1678 or after 2262, and Spark reads none",
            {"columns": found},
            "write microseconds: pyarrow.parquet.write_table(…, coerce_timestamps='us')",
        )


def _named(paths: list[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths[:_SHOWN]) + _more(paths)


def _more(names: Iterable[str]) -> str:
    more = len(list(names)) - _SHOWN
    return f" and {more:,} more" if more > 0 else ""
