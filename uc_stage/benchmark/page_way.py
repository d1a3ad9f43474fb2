"""The part of a page that tells where the time goes, what limits it, and when a copy pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.benchmark.bars import Bar, Part, chart, legend, short, short_names, text
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from uc_stage.model import BenchReport, Ceiling, Stages


def way(report: BenchReport) -> list[tuple[str, str]]:
    """Sections with their titles; those without content are empty."""
    return [
        ("Where the time goes", _stages(report.stages)),
        ("Limits", "".join(map(_ceiling, report.ceilings))),
        ("When the copy has paid for itself", "".join(_break_even(report))),
    ]


def _stages(found: tuple[Stages, ...]) -> str:
    if not found:
        return ""
    bars, lines = [], []
    called = short_names([one.target for one in found])
    kinds: dict[str, str] = {}
    for one in found:
        parts = []
        for stage in one.stages:
            said = f"{stage.name} {stage.seconds_per_million_rows:,.2f} s"
            if stage.share is None:
                lines.append(f"{called[one.target]}: a worker would add {said}")
                continue
            kinds.setdefault(stage.name, stage.name)
            parts.append(Part(stage.seconds_per_million_rows, stage.name, f"{said} ({stage.share:.0%})"))
        total = sum(part.value for part in parts)
        bars.append(Bar(called[one.target], parts, f"{total:,.2f} s"))
        if one.bottleneck:
            lines.append(f"{called[one.target]}: the longest is {one.bottleneck}")
        lines += [
            f"{called[one.target]}: {change.what}: {short(change.before)} rows/s becomes {short(change.after)} rows/s"
            for change in one.changes
        ]
        lines += [f"{called[one.target]}: {one.note}"] if one.note else []
    longest = max((sum(part.value for part in bar.parts) for bar in bars), default=0.0)
    drawn = chart([("", bars)], longest) + legend(kinds.items())
    said = "".join(f"<p>{text(line)}</p>" for line in lines)
    note = "Seconds that one processor takes for a million rows, each step measured alone."
    return (
        f'<figure class="card" id="stages"><h3>A million rows</h3>{drawn}{said}<figcaption>{note}</figcaption></figure>'
    )


def _ceiling(one: Ceiling) -> str:
    limits = [
        f"the storage gives {format_size(one.storage_bytes_per_second)}/s, {short(one.storage_rows_per_second)} rows/s"
    ]
    if one.decode_rows_per_second is not None:
        limits.append(f"one processor of {one.processors:,} decodes {short(one.decode_rows_per_second)} rows/s")
    limits.append(
        f"so no reader passes {short(one.rows_per_second)} rows/s but from memory: the {one.limit} is the limit"
    )
    return f'<div class="card"><h3>{text(one.target)}</h3>{"".join(f"<p>{text(line)}</p>" for line in limits)}</div>'


def _break_even(report: BenchReport) -> list[str]:
    lines = []
    for one in report.break_even:
        epochs = (
            "never: it is not faster"
            if one.epochs is None
            else f"after {one.epochs:,.1f} epoch{'' if one.epochs == 1 else 's'}"
        )
        how = (
            f"by {one.reader}: making it takes {one.making_seconds:,.1f} s ({one.making_by}), an epoch "
            f"{one.source_epoch_seconds:,.1f} s from the source and {one.copy_epoch_seconds:,.1f} s from the copy"
        )
        lines.append(
            f'<div class="card"><h3>{text(one.copy)}</h3><p>{text(epochs)}</p><p class="soft">{text(how)}</p></div>'
        )
    return lines
