"""`inspect`: tells what a target is, what it holds, and whether it is whole and fresh. Reads only."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, NotFound
from uc_stage.forms.pack import look_into
from uc_stage.forms.shards import is_packed
from uc_stage.inspection import contents, freshness, rules, wholeness
from uc_stage.inspection.copies import is_cache
from uc_stage.inspection.copies import run as list_copies
from uc_stage.inspection.diff import Held, Side, compare
from uc_stage.inspection.facts import Facts, Machine, of_files, of_table
from uc_stage.inspection.node import run as look_at_node
from uc_stage.inspection.settings import Here, settings
from uc_stage.inspection.snippets import snippet
from uc_stage.inspection.survey import Survey
from uc_stage.inspection.verify import Check, verify
from uc_stage.ipc import is_stream_name
from uc_stage.model import ExportRequest, InspectReport, InspectRequest, Layout, TableRef, read_timestamp
from uc_stage.parquet import Footer, has_magic, is_parquet_name, read_footer, read_footers
from uc_stage.progress import SILENT
from uc_stage.sources import is_marker
from uc_stage.storage import open_folder
from uc_stage.tally import spread
from uc_stage.targets import Target, look

if TYPE_CHECKING:
    from uc_stage.engines import Engine
    from uc_stage.errors import StageError
    from uc_stage.manifest import Manifest
    from uc_stage.model import DiffReport, Framework, Freshness, Problem, Snapshot, Snippet
    from uc_stage.progress import Progress

__all__ = ["diff", "is_cache", "list_copies", "look_at_node", "run", "write_snippet"]

# `catalog.schema.table`
_NAME_DOTS = 2
# A table as it is, in no order and no splits.
_WHOLE = Layout(files=1, file_bytes=None, row_group_bytes=0, compression="none")


def run(request: InspectRequest, progress: Progress = SILENT) -> InspectReport:
    """Looks at a target; with `verify`, reads every byte of it too.

    What is wrong with a dataset is in `report.problems`; what keeps it from being looked at is raised.

    Raises:
        NotFound: nothing there, or no such version. AccessDenied, Unavailable: as the storage or the engine says.
        InvalidRequest: a cache folder; a version or a timestamp for what is no table; `verify` for a table; an
            unknown rule in `ignore`, a world size of none.
        VerificationFailed, Unsupported: one file that is not whole Parquet, a damaged manifest, or a table that
        cannot be read rightly.
    """
    found = _locate(request)
    if isinstance(found, TableRef):
        return _table(found, request, progress)
    return _files(found, request, progress, alone=True)


def diff(request: InspectRequest, other: str, progress: Progress = SILENT) -> DiffReport:
    """Tells how `other` differs from a target; a version or a timestamp in the request is the target's.

    Raises:
        InvalidRequest: `verify`. Those of `run`, for either.
    """
    if request.verify:
        raise InvalidRequest(
            "`--diff` compares what is recorded and listed, and verifies nothing",
            hint=f"uc-stage inspect {request.target} --verify",
        )
    sides = [_side(asked, progress) for asked in (request, InspectRequest(other, remote=request.remote))]
    return compare(*sides)


def write_snippet(request: InspectRequest, framework: Framework, progress: Progress = SILENT) -> Snippet:
    """Gives the code that reads a target by a framework, as it stands.

    Raises:
        InvalidRequest: a table, or nothing to read by rows. Unsupported: a column that `datasets` refuses.
        Those of `run`.
    """
    if request.verify:
        raise InvalidRequest("`--snippet` verifies nothing", hint=f"uc-stage inspect {request.target} --verify")
    side = _side(request, progress)
    return snippet(side.report, framework, side.files)


def _side(request: InspectRequest, progress: Progress) -> Side:
    """What a target is and holds, without a question to its origin, which may be far."""
    found = _locate(request)
    if isinstance(found, TableRef):
        held: dict[str, Held] = {}
        return Side.of_table(_table(found, request, progress, held), held)
    return Side.of_files(_files(found, request, progress, alone=False), found)


def _locate(request: InspectRequest) -> TableRef | Target:
    """What a target is: a table at a version, or what its listing and records tell."""
    _check(request)
    if is_cache(request.target):
        raise InvalidRequest(
            f"`{request.target}` is a cache folder, which holds copies",
            hint=f"uc-stage inspect --cache-dir {request.target}",
        )
    table = TableRef.parse(request.target, request.version, request.timestamp)
    if table.text != request.target and open_folder(request.target).exists():
        table = TableRef(request.target, request.version, request.timestamp)
    try:
        found = look(table.text)
    except NotFound:
        # With fewer than three parts it is likelier a path that does not exist: `data.parquet` has a name's form.
        if table.is_name and (request.remote or table.text.count(".") == _NAME_DOTS):
            return table
        raise
    if found.kind == "table":
        return table
    if table.version is not None or table.timestamp is not None:
        raise InvalidRequest(
            f"`{table.text}` is no table but {_a(found.kind)}, which has one version alone",
            hint="leave out `@vN`, `--version` and `--timestamp`",
        )
    return found


def _check(request: InspectRequest) -> None:
    rules.known(request.ignore)
    least = (("--world-size", request.world_size, 1), ("--workers", request.workers, 0))
    for flag, value, low in (*least, ("--batch-size", request.batch_size, 1)):
        if value is not None and value < low:
            raise InvalidRequest(f"`{flag} {value}` is too small", hint=f"give {low} or more")
    if request.fail_on not in (None, "wrong", "warn"):
        raise InvalidRequest(f"`--fail-on` is `{request.fail_on}`", hint="it is `wrong` or `warn`")


def _advised(facts: Facts) -> InspectReport:
    """The report with the rules' part in it."""
    request, report = facts.request, facts.report
    ignored = rules.known(request.ignore)
    advice = rules.advise(facts, ignored)
    problems = rules.judged(report.problems, ignored)
    return dataclasses.replace(report, problems=problems, advice=advice, fail_on=request.fail_on)


def _table(
    table: TableRef, request: InspectRequest, progress: Progress, held: dict[str, Held] | None = None
) -> InspectReport:
    """Looks at a table; `held` is given its data files, where the engine lists them."""
    if request.verify:
        raise InvalidRequest(
            f"`{table}` is a Delta table, which records no hashes to verify",
            hint=f"verify an export of it: uc-stage export {table} DEST, then uc-stage inspect DEST --verify",
        )
    from uc_stage.engines.local import LocalEngine

    engine = _engine(request.remote if table.is_name else None)
    try:
        snapshot = engine.resolve(ExportRequest(table, dest=""))
        version = engine.version
        told = of_table(engine, snapshot) if isinstance(engine, LocalEngine) else None
        schema = engine.opened(snapshot).schema if isinstance(engine, LocalEngine) else None
        rows = snapshot.rows
        if rows is None:
            progress.phase("count", unit="rows")
            rows = sum(engine.count(snapshot, _WHOLE).values())
        if held is not None and isinstance(engine, LocalEngine):
            held.update({path: Held(*each) for path, each in engine.data_files(snapshot.source).items()})
    finally:
        engine.close()
    source = snapshot.source
    report = InspectReport(
        target=request.target,
        kind="table",
        source=source.table,
        table_id=source.table_id,
        version=source.version,
        version_at=source.timestamp,
        version_age=_age(source.timestamp),
        created_at=source.timestamp,
        engine=f"{engine.name} ({version})",
        rows=rows,
        files=snapshot.files,
        bytes=snapshot.bytes,
        schema=snapshot.schema,
    )
    return (
        _advised(Facts(request, report, Machine.here(), schema=lambda: schema, table=told)) if held is None else report
    )


def _engine(remote: str | None) -> Engine:
    if remote:
        from uc_stage.engines.spark import SparkEngine

        return SparkEngine(remote)
    from uc_stage.engines.local import LocalEngine

    return LocalEngine()


def _files(found: Target, request: InspectRequest, progress: Progress, *, alone: bool) -> InspectReport:
    """Looks at files; `alone`, for their own sake: then their origin and the rules are asked, too."""
    manifest, record = found.manifest, found.record
    recorded = record.files if record else manifest.files if manifest else None
    known = [file.path for file in recorded] if recorded is not None else list(found.entries)
    problems: list[Problem] = []
    if recorded is not None:
        problems += wholeness.sizes(recorded, found.entries)
    elif found.kind == "folder":
        problems += wholeness.loose(found.entries)
        problems += wholeness.tables(found.tables)
    if found.kind != "file":
        problems += wholeness.unrecorded(found)
    spoilt = {problem.path for problem in problems}
    below_tables = tuple(f"{path}/" for path in found.tables)
    data = [path for path in known if not is_marker(path) and not path.startswith(below_tables)]
    whole = [path for path in data if path not in spoilt]
    survey = Survey(found, whole if found.kind == "file" else filter(is_parquet_name, whole))
    footers = _footers(found, _unkept(found, whole, verify=request.verify), survey, progress)
    good = [footer for footer in footers.values() if isinstance(footer, Footer)]
    problems += wholeness.unreadable(footers, found)
    problems += survey.problems
    problems += wholeness.against_schema(good, manifest.schema) if manifest else wholeness.schemas(good)

    verified, detail = None, None
    if request.verify:
        unreadable = {path for path, footer in footers.items() if not isinstance(footer, Footer)}
        hashes = {file.path: file.xxh3_128 for file in recorded or ()}
        sizes = {file.path: file.bytes for file in recorded or found.entries.values()}
        checks = [
            Check(path, sizes[path], hashes.get(path), parquet=path in footers)
            for path in whole
            if path not in unreadable or hashes.get(path)
        ]
        changed, detail = verify(found.folder, checks, progress)
        problems += changed
        verified = not any(problem.code in wholeness.BROKEN for problem in problems)

    told = survey.footers if footers or manifest is None or manifest.footers is None else manifest.footers
    groups = sum(len(footer.row_groups) for footer in good)
    if manifest and not footers:
        groups = sum(file.row_groups for file in manifest.files)
    codecs = {codec for column in told.columns for codec in column.compression}
    codecs |= {codec for footer in good for codec in footer.compression if is_stream_name(footer.path)}
    rows = manifest.rows if manifest else sum(footer.rows for footer in good) if good else None
    age, above = _freshness(found, rows, request) if alone else (None, None)
    listed = [found.entries[path] for path in data if path in found.entries]
    lengths = [entry.bytes for entry in listed]
    report = InspectReport(
        target=request.target,
        kind=found.kind,
        source=record.source if record else manifest.source.table if manifest else None,
        table_id=manifest.source.table_id if manifest else None,
        version=manifest.source.version if manifest else None,
        version_at=manifest.source.timestamp if manifest else None,
        version_age=_age(manifest.source.timestamp) if manifest else None,
        created_at=record.created_at if record else manifest.created_at if manifest else None,
        id=manifest.id if manifest else record.manifest_id if record else None,
        generation=record.generation if record else manifest.generation if manifest else None,
        engine=f"{manifest.engine} ({manifest.engine_version})" if manifest else None,
        options=contents.options(manifest) if manifest else {},
        rows=rows,
        files=len(lengths),
        bytes=sum(lengths),
        uncompressed=sum(told.uncompressed.values()) if told.columns else None,
        splits=_splits(manifest, footers),
        split_shares=contents.split_shares(manifest, told) if manifest else {},
        schema=manifest.schema if manifest else wholeness.main_schema(good),
        row_groups=groups if footers or manifest else None,
        row_group_rows=told.row_group_rows,
        row_group_bytes=told.row_group_bytes,
        file_bytes=spread(lengths),
        compression=", ".join(sorted(codecs)) or None,
        freshness=age.state if age else None,
        freshness_detail=age.detail if age else None,
        versions_behind=age.versions_behind if age else None,
        rows_behind=age.rows_behind if age else None,
        source_freshness=above,
        verified=verified,
        verified_detail=detail,
        problems=tuple(problems),
        variant=record.variant if record else "",
        packed=look_into(found.folder.url) if record and is_packed(record.variant) else None,
        columns=told.columns,
        footers_read=len(footers),
        file_sizes=contents.histogram(lengths),
        extensions=contents.extensions(listed),
        folders=contents.folders(listed),
    )
    here = Here.found(os.environ, request.world_size)
    report = dataclasses.replace(report, loader=settings(report, here, request.batch_size))
    return _advised(of_files(found, request, report, footers)) if alone else report


def _unkept(found: Target, whole: list[str], *, verify: bool) -> list[str]:
    """The files whose footers have to be read: none of an export's that has them in its manifest.

    What its files hold is then told by the sizes alone, and with `verify` by their hashes: where one has none, its
    footer is looked at too.
    """
    manifest = found.manifest
    if manifest is None or manifest.footers is None:
        return whole
    unhashed = {file.path for file in manifest.files if file.xxh3_128 is None} if verify else set()
    return whole if unhashed else []


def _footers(found: Target, paths: list[str], survey: Survey, progress: Progress) -> dict[str, Footer | StageError]:
    if found.kind == "file":
        (path,) = found.entries
        # The one file that was asked for is the answer: an error about it is no remark.
        parquet = is_parquet_name(path) or has_magic(found.folder, path)
        return {path: survey.take(read_footer(found.folder, path, columns=True))} if parquet else {}
    named = [path for path in paths if is_parquet_name(path)]
    footers = read_footers(found.folder, named, progress, take=survey.take) if named else {}
    streams = [path for path in paths if found.record and is_stream_name(path)]
    for path, footer in found.footers(streams).items() if streams else ():
        footers[path] = survey.take(footer) if isinstance(footer, Footer) else footer
    return footers


def _splits(manifest: Manifest | None, footers: dict[str, Footer | StageError]) -> dict[str, int]:
    """The rows of each split, where a manifest tells of them, or the folders of a copy as Arrow do."""
    if manifest:
        return {name: sum(file.rows for file in files) for name, files in manifest.splits.items()}
    rows: dict[str, int] = {}
    for path, footer in footers.items():
        if is_stream_name(path) and isinstance(footer, Footer):
            name = path.partition("/")[0]
            rows[name] = rows.get(name, 0) + footer.rows
    return rows


def _freshness(found: Target, rows: int | None, request: InspectRequest) -> tuple[Freshness | None, Freshness | None]:
    """How a target compares with its origin, and how a copy's export compares with its table."""

    def resolve(text: str) -> Snapshot:
        table = TableRef(text)
        engine = _engine(request.remote if table.is_name else None)
        try:
            return engine.resolve(ExportRequest(table, dest=""))
        finally:
            engine.close()

    if found.record:
        fresh, manifest = freshness.of_copy(found.record, found.manifest, rows)
        return fresh, freshness.of_source(manifest, resolve) if manifest else None
    return (freshness.of_export(found.manifest, resolve) if found.manifest else None), None


def _age(timestamp: str | None) -> float | None:
    """The seconds since a time in ISO 8601."""
    if timestamp is None:
        return None
    return max(0.0, (dt.datetime.now(dt.timezone.utc) - read_timestamp(timestamp)).total_seconds())


def _a(kind: str) -> str:
    return f"{'an' if kind == 'export' else 'a'} {kind}"
