"""Why `bench` measured what it did, as a person reads it: stages, limits, waits, and when a copy pays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uc_stage.cli.text import amount, duration
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from uc_stage.model import BenchReport, BreakEven, Ceiling, Measurement, Stages

_WAIT, _LIMIT = "GPU wait", "of limit"
_BAR = 20


def columns(report: BenchReport) -> list[str]:
    """The columns of the table that this report has beyond those of each."""
    asked = ((_WAIT, "wait_share"), (_LIMIT, "limit_share"))
    return [name for name, field in asked if any(getattr(one, field) is not None for one in report.measurements)]


def cells(measurement: Measurement, names: Sequence[str]) -> list[str]:
    """What stands in these columns."""
    values = {_WAIT: measurement.wait_share, _LIMIT: measurement.limit_share}
    return [_percent(values[name]) for name in names]


def of_target(report: BenchReport, target: str) -> Iterator[str]:
    """The limits of a target, and where its time goes."""
    for ceiling in report.ceilings:
        if ceiling.target == target:
            yield f"  {_ceiling(ceiling)}"
    for stages in report.stages:
        if stages.target == target:
            yield from _stages(stages)


def of_all(report: BenchReport) -> Iterator[str]:
    """What all targets together tell."""
    if any(one.wait_share is not None for one in report.measurements):
        yield "GPU wait: time waiting for batches / (that + time in steps), after the first (Mohan et al., PVLDB 2021)"
    for one in report.break_even:
        yield _break_even(one)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share * 100:.1f}%" if share < 0.1 else f"{share * 100:,.0f}%"  # noqa: PLR2004 - tenths matter below


def _ceiling(ceiling: Ceiling) -> str:
    text = (
        f"limits: storage {format_size(ceiling.storage_bytes_per_second)}/s in {amount(ceiling.streams, 'streams')}"
        f" = {ceiling.storage_rows_per_second:,.0f} rows/s"
    )
    if ceiling.decode_rows_per_second is not None:
        text += (
            f"; decode {ceiling.decode_rows_per_second:,.0f} rows/s a processor"
            f" = {ceiling.decode_rows_per_second * ceiling.processors:,.0f} with {ceiling.processors}"
        )
    return f"{text}; the {ceiling.limit} is the smaller one"


def _stages(stages: Stages) -> Iterator[str]:
    if stages.stages:
        yield f"  where the time goes, one processor, {stages.rows:,} rows ({format_size(stages.bytes)}):"
    width = max((len(stage.name) for stage in stages.stages), default=0)
    for stage in stages.stages:
        share = "   -" if stage.share is None else f"{stage.share * 100:3.0f}%"
        bar = "#" * round((stage.share or 0.0) * _BAR)
        what = "  (what a worker would add)" if stage.share is None else ""
        line = f"    {stage.name:<{width}}  {stage.seconds_per_million_rows:9.3f} s/Mrow  {share}  {bar}{what}"
        yield line.rstrip()
    if stages.bottleneck:
        yield f"  bottleneck: {stages.bottleneck}"
    for change in stages.changes:
        yield (
            f"    {change.what}: {change.before:,.0f} -> {change.after:,.0f} rows/s"
            f" ({change.after / change.before:.2f}x)"
        )
    if stages.note:
        yield f"  stages: {stages.note}"


def _break_even(one: BreakEven) -> str:
    epoch = (
        f"an epoch takes {_span(one.copy_epoch_seconds)} instead of {_span(one.source_epoch_seconds)} ({one.reader})"
    )
    if one.epochs is None:
        return f"`{one.copy}` does not pay: {epoch}"
    whole = max(1, math.ceil(one.epochs))
    epochs = "1 epoch" if whole == 1 else f"{whole:,} epochs"
    return (
        f"`{one.copy}` has paid for itself after {epochs}: it takes at least {_span(one.making_seconds)} to make"
        f" ({one.making_by}), and {epoch}"
    )


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)
