"""What `bench` measured, as a person reads it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from uc_stage.cli import kept, whys
from uc_stage.cli.text import duration, printable, say
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from uc_stage.model import BenchReport, Measurement, Requirement


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


def show(report: BenchReport, *, quiet: bool) -> None:
    """Prints a table for each target, with factors against the first one, and how requirements came out."""
    from rich.console import Console
    from rich.table import Table

    # Rich would fold the table to 80 columns where it cannot ask a terminal for its width.
    if report.kept_in is not None:
        print(printable(f"kept in {report.kept_in}, measured {report.at}"))
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    base: dict[str, Measurement] = {}
    for target in dict.fromkeys(measurement.target for measurement in report.measurements):
        print(printable(target))
        table = Table(box=None, padding=(0, 2))
        extra = whys.columns(report)
        for column in ("reader", "rows/s", "MB/s", "first batch", *extra, "read"):
            table.add_column(column, justify="left" if column == "reader" else "right", no_wrap=True)
        of_it = [measurement for measurement in report.measurements if measurement.target == target]
        for measurement in of_it:
            *row, read = _row(measurement, base.setdefault(measurement.reader, measurement))
            table.add_row(*row, *whys.cells(measurement, extra), read)
        console.print(table)
        for measurement in of_it:
            if measurement.note:
                print(printable(f"  {measurement.reader}: {measurement.note}"))
        for line in whys.of_target(report, target):
            print(printable(line))
        print()
    for line in whys.of_all(report):
        print(printable(line))
    for reader, reason in report.skipped.items():
        say(f"skipped {reader}: {reason}", quiet=quiet)
    kept.show(report, console)
    for requirement in report.requirements:
        verdict = "met" if requirement.met else "not met"
        print(f"require {requirement.text}: {verdict}, {measured(requirement)}")


def _row(measurement: Measurement, base: Measurement) -> list[str]:
    rows = "-" if not measurement.rows_per_second else f"{measurement.rows_per_second:,.0f}"
    speed = f"{measurement.bytes_per_second / 1e6:,.1f}"
    if measurement is not base and base.bytes_per_second:
        speed += f" ({measurement.bytes_per_second / base.bytes_per_second:.1f}x)"
    first = "-" if measurement.first_batch_seconds is None else duration(measurement.first_batch_seconds)
    read = "whole" if measurement.complete else f"{duration(measurement.seconds)} of it"
    return [measurement.reader, rows, speed, first, read]
