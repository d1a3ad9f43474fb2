"""Renders a report: the answer on stdout, words about it on stderr, or one JSON object; and picks the exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import json as jsonlib
import os
import signal
import sys
from typing import Any

import typer

from uc_stage import __version__
from uc_stage.cli import comparing, copies, inspecting, measuring, node
from uc_stage.cli.text import amount, duration, pairs, printable, say
from uc_stage.errors import StageError, VerificationFailed
from uc_stage.model import (
    BenchReport,
    CachePlan,
    CacheReport,
    CopiesReport,
    DiffReport,
    ExportPlan,
    ExportReport,
    InspectReport,
    PlannedSplit,
    PrunePlan,
    PruneReport,
    Snippet,
    variant_flags,
)
from uc_stage.sizes import format_size

SCHEMA_VERSION = 1
Report = (
    ExportPlan
    | ExportReport
    | CachePlan
    | CacheReport
    | InspectReport
    | CopiesReport
    | DiffReport
    | Snippet
    | PrunePlan
    | PruneReport
    | BenchReport
)

NOT_FRESH = 17
BELOW_REQUIREMENT = 20


def version(value: bool) -> None:
    """Prints the version and ends, for the eager option `--version`."""
    if value:
        print(f"uc-stage {__version__}")
        raise typer.Exit


def show(command: str, report: Report, *, json: bool, quiet: bool = False) -> int:
    """Renders a report and gives the exit code that it means."""
    status, problem = _verdict(report)
    try:
        if json:
            _print_json(command, status, _data(report), [] if problem is None else [problem])
        else:
            _render(report, quiet=quiet)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read stdout has gone, as `head` does; what is left in the buffer must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if problem is not None and not (json or isinstance(report, CacheReport)):
        _print_error(str(problem["message"]), problem["hint"])
    return 0 if problem is None else int(problem["exit_code"])


def _data(report: Report) -> dict[str, Any]:
    data = dataclasses.asdict(report)
    if isinstance(report, ExportPlan):
        # The URL of a Spark Connect server can hold a token.
        data["request"]["remote"] = report.request.remote and report.request.remote.partition(";")[0]
    return data


def fail(command: str | None, error: StageError, *, json: bool) -> int:
    """Says what went wrong, as JSON too where that was asked, and gives the exit code."""
    if json:
        _print_json(command, "error", None, [describe(error)])
    _print_error(error.message, error.hint)
    return error.exit_code


def stopped(command: str | None, number: int, *, json: bool) -> int:
    """Says that a signal ended the run, after its clean-up, and gives the exit code."""
    name = signal.Signals(number).name
    code = 128 + number
    if json:
        problem = {"code": "signal", "message": f"ended by {name}", "hint": None, "exit_code": code}
        _print_json(command, "error", None, [problem])
    print(f"error: ended by {name}", file=sys.stderr)
    return code


def bug(command: str | None, error: Exception, *, json: bool) -> int:
    """Says that uc-stage met an error that it does not know, and gives the exit code 1."""
    unknown = StageError(
        f"uc-stage failed on an error of its own: {type(error).__name__}: {error}",
        hint="run it again with `--debug` and report what it shows",
    )
    return fail(command, unknown, json=json)


def describe(error: StageError) -> dict[str, Any]:
    """An error as the JSON's `errors` hold it."""
    return {"code": error.code, "message": error.message, "hint": error.hint, "exit_code": error.exit_code}


def _print_error(message: str, hint: str | None) -> None:
    # A stderr that takes no more, as a full disk, must not change what the exit code says.
    with contextlib.suppress(OSError):
        print(f"error: {printable(message)}", file=sys.stderr)
        if hint:
            print(f"hint: {printable(hint)}", file=sys.stderr)


def _print_json(command: str | None, status: str, data: Any, errors: list[dict[str, Any]]) -> None:
    envelope = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "status": status,
        "data": data,
        "errors": errors,
    }
    # ASCII escapes keep a path that is not UTF-8 (a lone surrogate) valid JSON.
    print(jsonlib.dumps(envelope, sort_keys=True, indent=2))


def _verdict(report: Report) -> tuple[str, dict[str, Any] | None]:
    """The status of a report, and the error that it amounts to although the command itself went well."""
    match report:
        case ExportPlan() | CachePlan() | PrunePlan():
            return "planned", None
        case CacheReport(status="checked", state=state) if state != "fresh":
            # Without it, a copy whose sizes and times are right counts as whole.
            again = " --verify" if report.verified is False else ""
            return "failed", {
                "code": state,
                "message": f"the copy of `{report.source}` is {state}",
                "hint": f"uc-stage cache {report.source}{variant_flags(report.variant)}{again}",
                "exit_code": NOT_FRESH,
            }
        case InspectReport(verified=False):
            broken = [problem for problem in report.problems if problem.path]
            message = f"`{report.target}` does not hold what was recorded" + (
                f": {broken[0].path}: {broken[0].message}" if broken else ""
            )
            return "failed", describe(VerificationFailed(message, hint="export or cache it again"))
        case InspectReport() if report.failing:
            return "failed", inspecting.failure(report)
        case BenchReport() if not report.met:
            code, message, hint = measuring.shortfall(report)
            return "failed", {"code": code, "message": message, "hint": hint, "exit_code": BELOW_REQUIREMENT}
        case BenchReport() if (failure := measuring.unread(report)) is not None:
            return "failed", describe(failure)
        case ExportReport(status=status) | CacheReport(status=status) | PruneReport(status=status):
            return status, None
    return "done", None


def _render(report: Report, *, quiet: bool) -> None:
    match report:
        case ExportPlan():
            pairs(_export_plan(report))
        case CachePlan():
            pairs(copies.cache_plan(report))
        case ExportReport():
            print(report.dest)
            say(_export_words(report), quiet=quiet)
        case CacheReport(status="checked"):
            print(report.state)
            say(f"{report.path}: {report.reason}" if report.reason else report.path, quiet=quiet)
        case CacheReport():
            print(report.path)
            say(copies.cache_words(report), quiet=quiet)
        case InspectReport():
            inspecting.render(report)
        case CopiesReport():
            _copies(report)
        case DiffReport():
            comparing.render(report)
        case Snippet():
            print(report.code, end="")
        case PrunePlan():
            for line in copies.prune_plan(report):
                print(printable(line))
        case PruneReport():
            _prune(report, quiet=quiet)
        case BenchReport():
            measuring.show(report, quiet=quiet)


def _export_words(report: ExportReport) -> str:
    what = f"{amount(report.rows, 'rows')} in {amount(report.files, 'files')} ({format_size(report.bytes)})"
    if len(report.splits) > 1:
        what += ": " + ", ".join(f"{name} {rows:,}" for name, rows in report.splits.items())
    if report.dropped:
        what += f", {amount(report.dropped, 'rows')} left out to make the files equal"
    origin = "the query" if report.query is not None else f"{report.table} version {report.version}"
    if report.status == "unchanged":
        return f"unchanged: {report.dest} holds {origin}: {what}"
    engine = f"{report.engine} engine ({report.engine_reason})"
    return f"exported {origin}: {what} in {duration(report.seconds)} by the {engine}"


def _export_plan(plan: ExportPlan) -> list[tuple[str, str]]:
    source, layout = plan.snapshot.source, plan.layout
    rows = [
        ("action", plan.action),
        ("table", f"{source.table} version {source.version}"),
        ("query", source.query),
        ("tables", ", ".join(source.tables)),
        ("dest", plan.request.dest),
        ("engine", f"{plan.engine} ({plan.engine_reason})"),
        ("columns", ", ".join(field.name for field in plan.snapshot.schema)),
        ("casts", ", ".join(source.casts)),
        ("where", source.where),
        ("limit", None if source.limit is None else f"{source.limit:,}"),
        ("sample", None if source.sample is None else f"{source.sample:g}"),
        ("order", "shuffled" if layout.shuffle else ", ".join(layout.order_by)),
        ("splits", ", ".join(layout.splits)),
        ("split by", layout.split_by),
        ("seed", None if source.seed is None else str(source.seed)),
        *((split.name, _planned_split(split, plan)) for split in plan.splits),
        ("row group", "as it is" if layout.as_is else format_size(layout.row_group_bytes)),
        ("compression", "as it is" if layout.as_is else layout.compression),
        ("keep", str(plan.request.keep) if plan.request.keep else None),
    ]
    if source.query is not None:
        del rows[1]
    return [(name, value) for name, value in rows if value]


def _planned_split(split: PlannedSplit, plan: ExportPlan) -> str:
    layout = plan.layout
    words = f"{amount(split.rows, 'rows')} in {amount(split.files, 'files')}"
    least, more = divmod(split.rows, split.files)
    if layout.as_is:
        words += " as they are"
    elif plan.engine == "spark" and not (layout.equal_rows or layout.shuffle or layout.order_by):
        words += f" of about {least:,}"
    else:
        words += f" of {least:,}" if not more else f" of {least:,} or {least + 1:,}"
    if (readers := layout.multiple_of) > 1:
        words += f", {split.files // readers} for each of {readers} readers"
    return words + (f"; {amount(split.dropped, 'rows')} left out" if split.dropped else "")


def _copies(report: CopiesReport) -> None:
    for copy in report.copies:
        pairs(copies.listed(copy))
        print()
    print(printable(copies.room(report)))
    if report.node:
        node.render(report.node)


def _prune(report: PruneReport, *, quiet: bool) -> None:
    for path in report.removed:
        print(path)
    for kept in report.kept:
        say(f"kept {kept.path}: {kept.reason}", quiet=quiet)
    say(f"removed {copies.together(len(report.removed), report.bytes)}", quiet=quiet)
