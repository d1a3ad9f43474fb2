"""Kept results beside the one at hand, as a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.cli.text import printable, show_table

if TYPE_CHECKING:
    from rich.table import Table

    from uc_stage.model import BenchReport, ComparedCell, Comparison


def show(report: BenchReport, width: int | None) -> None:
    """Prints a table for each kept result, and what else than the speed differs."""
    for comparison in report.comparisons:
        what = "beside the baseline" if comparison.baseline else "beside"
        when = f", measured {comparison.at}" if comparison.at else ""
        print(printable(f"{what} {comparison.file}{when}"))
        show_table(_table(comparison), width)
        for note in comparison.notes:
            print(printable(f"  {note}"))
        print()


def shortfall(report: BenchReport) -> tuple[str, str, str]:
    """Of a report that fell behind its baseline: the error's code, message and hint."""
    baseline = next(one for one in report.comparisons if one.baseline)
    if not baseline.judged:
        message = f"`--baseline {baseline.file}` holds nothing that was measured now"
        hint = "measure the same targets, readers and settings, or a new baseline with `--save`"
        return "no_baseline", message, hint
    worst = min(baseline.regressions, key=lambda cell: cell.factor or 0.0)
    more = len(baseline.regressions) - 1
    message = (
        f"`{worst.reader}` reads `{worst.target}` {1 - (worst.factor or 0.0):.0%} slower than in `{baseline.file}`"
    )
    if more:
        message += f", and {more:,} more {'is' if more == 1 else 'are'} slower"
    return "regression", message, "see the table above; where the fall is meant, keep this result as the new baseline"


def _table(comparison: Comparison) -> Table:
    from rich.table import Table

    rows = [_row(cell) for cell in comparison.cells]
    # The settings in which the cells differ, then the numbers.
    settings = [
        name for name in ("target", "workers", "batch", "prefetch", "pages") if len({row[name] for row in rows}) > 1
    ]
    columns = ["reader", *settings, "rows/s then", "rows/s now", "MB/s then", "MB/s now", "factor", ""]
    table = Table(box=None, padding=(0, 2))
    for name in columns:
        left = name in ("target", "reader", "pages", "")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "target", overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _row(cell: ComparedCell) -> dict[str, str]:
    def number(value: float | None, form: str, unit: float = 1.0) -> str:
        return "-" if value is None else format(value / unit, form)

    return {
        "target": printable(cell.target),
        "reader": printable(cell.reader),
        "workers": str(cell.workers),
        "batch": f"{cell.batch_size:,}" if cell.batch_size else "-",
        "prefetch": str(cell.prefetch or "-"),
        "pages": "warm" if cell.warm else "cold",
        "rows/s then": number(cell.kept_rows_per_second, ",.0f"),
        "rows/s now": number(cell.rows_per_second, ",.0f"),
        "MB/s then": number(cell.kept_bytes_per_second, ",.1f", 1e6),
        "MB/s now": number(cell.bytes_per_second, ",.1f", 1e6),
        "factor": "-" if cell.factor is None else f"{cell.factor:.2f}x",
        "": cell.verdict,
    }
