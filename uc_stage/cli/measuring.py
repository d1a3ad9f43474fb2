"""What `bench` measured, as a person reads it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from uc_stage.cli import kept, whys
from uc_stage.cli.text import duration, printable, say, show_table
from uc_stage.errors import VerificationFailed
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from uc_stage.model import BenchReport, Measurement, Requirement

# Where no terminal tells its width.
_WIDTH = 200
_CACHE = {True: "cold", False: "warm", None: "-"}
_LEFT = ("reader", "cache")


def measured(requirement: Requirement) -> str:
    """The rate that a requirement was judged by, and whose it is."""
    value = requirement.measured
    rate = f"{format_size(value)}/s" if requirement.unit == "bytes/s" else f"{value:,.0f} rows/s"
    if requirement.unit == "share":
        rate = f"{value:.1%} of the time"
    return f"{rate} by {requirement.reader}"


def shortfall(report: BenchReport) -> tuple[str, str, str]:
    """Of a report that is not met: the error's code, message and hint."""
    missed = next((requirement for requirement in report.requirements if not requirement.met), None)
    if missed is None:
        return kept.shortfall(report)
    message = f"`--require {missed.text}` is not met: {measured(missed)}"
    hint = "cache the dataset on local disk, or see which reader is the limit in the table above"
    return "below_requirement", message, hint


def unread(report: BenchReport) -> VerificationFailed | None:
    """What no reader could read, or one that was named could not; None where all is well."""
    failed = [one for one in report.measurements if one.failed]
    if failed and len(failed) == len(report.measurements):
        one, message = failed[-1], f"no reader could read `{failed[-1].target}`"
    elif named := [one for one in failed if one.reader in report.named]:
        one, message = named[0], f"the reader `{named[0].reader}` failed on `{named[0].target}`"
    else:
        return None
    return VerificationFailed(
        f"{message}: {one.note}", hint=f"see whether the data is whole: uc-stage inspect {one.target} --verify"
    )


def show(report: BenchReport, *, quiet: bool) -> None:
    """Prints a table for each target, with factors against the first one, and how requirements came out."""
    if report.kept_in is not None:
        print(printable(f"kept in {report.kept_in}, measured {report.at}"))
    width = None if sys.stdout.isatty() else _WIDTH
    base: dict[object, Measurement] = {}
    extra = whys.columns(report)
    columns = _columns(report.measurements, extra)
    for target in dict.fromkeys(measurement.target for measurement in report.measurements):
        print(printable(target))
        of_it = [measurement for measurement in report.measurements if measurement.target == target]
        show_table(_table(of_it, columns, extra, base), width)
        for line in _notes(of_it, columns):
            print(printable(line))
        if (best := _fastest(of_it, columns)) is not None:
            print(printable(best))
        for line in whys.of_target(report, target):
            print(printable(line))
        print()
    for line in whys.of_all(report):
        print(printable(line))
    for reader, reason in report.skipped.items():
        say(f"skipped {reader}: {reason}", quiet=quiet)
    kept.show(report, width)
    for requirement in report.requirements:
        verdict = "met" if requirement.met else "not met"
        print(f"require {requirement.text}: {verdict}, {measured(requirement)}")


def _columns(measurements: Sequence[Measurement], extra: Sequence[str]) -> list[str]:
    """Those that tell cells apart are shown where there are several of them."""
    grid = {
        "batch": {one.batch_size for one in measurements if one.batch_size},
        "workers": {one.workers for one in measurements if one.prefetch or one.reader not in ("raw", "arrow")},
        "prefetch": {one.prefetch for one in measurements if one.prefetch},
    }
    varying = [name for name, values in grid.items() if len(values) > 1]
    spread = ["spread"] if any(len(one.rates) > 1 for one in measurements) else []
    counts = ("rows/s", *spread, "MB/s", "first batch", "p50/p99 ms", "CPUs", "memory", *extra, "read")
    return ["reader", *varying, "cache", *counts]


def _table(
    of_it: Sequence[Measurement], columns: Sequence[str], extra: Sequence[str], base: dict[object, Measurement]
) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    shown: object = None
    for one in of_it:
        cell = (one.reader, one.batch_size, one.workers, one.prefetch)
        first = base.setdefault((*cell, one.warm), one)
        values = {**_row(one, first), **dict(zip(extra, whys.cells(one, extra), strict=True))}
        # A cell's two rows, cold and warm, are read as one.
        table.add_row(*("" if cell == shown and column in _CELL else values[column] for column in columns))
        shown = cell
    return table


_CELL = ("reader", "batch", "workers", "prefetch")


def _row(one: Measurement, base: Measurement) -> dict[str, str]:
    speed = f"{one.bytes_per_second / 1e6:,.1f}"
    if one is not base and base.bytes_per_second:
        noise = ", within noise" if one.differs_from(base) is False else ""
        speed += f" ({one.bytes_per_second / base.bytes_per_second:.1f}x{noise})"
    gaps = (one.batch_p50_seconds, one.batch_p99_seconds)
    return {
        "reader": one.reader,
        "batch": f"{one.batch_size:,}" if one.batch_size else "-",
        "workers": "-" if one.reader in ("raw", "arrow") else str(one.workers),
        "prefetch": str(one.prefetch or "-"),
        "cache": _CACHE[one.cold],
        "rows/s": f"{one.rows_per_second:,.0f}" if one.rows_per_second else "-",
        "spread": _spread(one),
        "MB/s": speed,
        "first batch": "-" if one.first_batch_seconds is None else duration(one.first_batch_seconds),
        "p50/p99 ms": "-" if None in gaps else "/".join(f"{1e3 * gap:.3g}" for gap in gaps if gap is not None),
        "CPUs": f"{one.cpu_seconds / one.seconds:.1f}" if one.cpu_seconds is not None and one.seconds else "-",
        "memory": "-" if one.worker_bytes is None else format_size(one.worker_bytes),
        "read": "whole" if one.complete else f"{duration(one.seconds)} of it",
    }


def _spread(one: Measurement) -> str:
    """How far the fastest and the slowest repeat lie from the median."""
    if not one.rates[1:]:
        return "-"
    middle = sorted(one.rates)[(len(one.rates) - 1) // 2]
    if not middle:
        return "-"
    return f"{min(one.rates) / middle - 1:+.0%} {max(one.rates) / middle - 1:+.0%}"


def _notes(of_it: Sequence[Measurement], columns: Sequence[str]) -> list[str]:
    """What is to be said of each cell; once for all those of a reader where it is the same."""
    lines = []
    for reader, note in dict.fromkeys((one.reader, one.note) for one in of_it if one.note):
        cells = list(dict.fromkeys(_setting(one, columns) for one in of_it if one.reader == reader))
        alike = list(dict.fromkeys(_setting(one, columns) for one in of_it if (one.reader, one.note) == (reader, note)))
        lines += [f"  {reader}{setting}: {note}" for setting in ([""] if alike == cells else alike)]
    return lines


def _setting(one: Measurement, columns: Sequence[str]) -> str:
    """The cell that a note is of, as far as the table tells cells apart."""
    values = {"batch": one.batch_size or None, "workers": one.workers, "prefetch": one.prefetch or None}
    if one.reader in ("raw", "arrow"):
        values["workers"] = None
    told = [f"{name} {values[name]:,}" for name in _CELL[1:] if name in columns and values[name] is not None]
    return f", {', '.join(told)}" if told else ""


def _fastest(of_it: Sequence[Measurement], columns: Sequence[str]) -> str | None:
    """The fastest cell, and those that noise does not tell from it; None where each reader has one cell."""
    if not {"batch", "workers", "prefetch"} & set(columns):
        return None
    judged = [one for one in of_it if one.rows_per_second and not one.failed]
    judged = [one for one in judged if not one.warm] or judged
    if not judged:
        return None
    best = max(judged, key=lambda one: one.rows_per_second or 0.0)
    alike = [one for one in judged if one is not best and one.differs_from(best) is False]
    words = f"fastest {_CACHE[best.cold]}: " if best.cold is not None else "fastest: "
    words += f"{best.reader}{_setting(best, columns)}"
    if alike:
        words += "; within noise of it: " + "; ".join(f"{one.reader}{_setting(one, columns)}" for one in alike)
    return words
