"""How a report compares with a kept one, cell by cell: whether a difference is more than noise, and a regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from uc_stage.errors import InvalidRequest
from uc_stage.model import ComparedCell, Comparison

if TYPE_CHECKING:
    from uc_stage.model import BenchReport, Machine, MeasuredTarget, Measurement

# A fall below the baseline by less is no regression, even where no repeat reaches it: what else runs on a machine, and
# where its pages lie, moves a throughput by a few percent from one hour to the next.
TOLERANCE = 0.10

# Below it a container's memory differs from one run to the next.
_MEMORY = 0.10


class _Cell(NamedTuple):
    target: str
    reader: str
    batch_size: int
    workers: int
    prefetch: int
    warm: bool


def compare(file: str, kept: BenchReport, report: BenchReport, *, baseline: bool) -> Comparison:
    """Lays a kept report beside another one: in its order, then what it alone has.

    Rates that another training set the pace of, or that another number of ranks reached together, are laid nowhere.
    """
    names = _names(kept, report)
    before, now = _cells(kept, names), _cells(report, {})
    if different := _settings(kept, report.step_ms, report.world_size):
        before = {}
    both = dict.fromkeys([*now, *before])
    cells = [_compared(cell, before.get(cell), now.get(cell), baseline=baseline) for cell in both]
    notes = (*different, *_machines(kept.machine, report.machine), *_targets(kept, report, names))
    return Comparison(file, kept.at, baseline, notes, tuple(cells))


def check_baseline(
    file: str, kept: BenchReport, machine: Machine | None, step_ms: float | None, world_size: int
) -> None:
    """Refuses a baseline of a machine that reads at another speed by its number of processors, or of another training.

    What else differs is told with the comparison, and judged all the same: a fleet of CI has processors of several
    kinds, and a library's new version is what a baseline is there to judge.

    Raises:
        InvalidRequest: it has another number of processors, length of a step, or number of ranks.
    """
    if different := _settings(kept, step_ms, world_size):
        raise InvalidRequest(
            f"`--baseline {file}` was measured with another training: {', '.join(different)}",
            hint="measure with the same `--step-ms` and `--world-size`, or a new baseline with `--save`",
        )
    if machine is not None and kept.machine is not None and kept.machine.cpus != machine.cpus:
        raise InvalidRequest(
            f"`--baseline {file}` was measured with {_count(kept.machine.cpus)}, and here are {machine.cpus:,}",
            hint=f"measure a baseline here with `--save FILE`; `--compare {file}` shows this one all the same",
        )


def _settings(kept: BenchReport, step_ms: float | None, world_size: int) -> list[str]:
    """How a kept report's training differs from another one."""
    pairs = (("--step-ms", kept.step_ms, step_ms), ("--world-size", kept.world_size, world_size))
    return [
        f"`{flag}` {'none' if then is None else f'{then:g}'} then, {'none' if here is None else f'{here:g}'} now"
        for flag, then, here in pairs
        if then != here
    ]


def _names(kept: BenchReport, report: BenchReport) -> dict[str, str]:
    """What a kept report's targets are called in the other: the only one of each is the same, wherever it lies."""
    theirs = list(dict.fromkeys(one.target for one in kept.measurements))
    ours = list(dict.fromkeys(one.target for one in report.measurements))
    return {theirs[0]: ours[0]} if len(theirs) == len(ours) == 1 else {}


def _cells(report: BenchReport, names: dict[str, str]) -> dict[_Cell, Measurement]:
    return {_cell(one, names): one for one in report.measurements}


def _cell(one: Measurement, names: dict[str, str]) -> _Cell:
    target = names.get(one.target, one.target)
    return _Cell(target, one.reader, one.batch_size, one.workers, one.prefetch, one.warm)


def _compared(cell: _Cell, kept: Measurement | None, now: Measurement | None, *, baseline: bool) -> ComparedCell:
    factor = within = None
    regressed = False
    if kept and now and not kept.failed:
        by_rows = kept.rows_per_second is not None and (now.rows_per_second is not None or now.failed)
        before, after = _speed(kept, by_rows=by_rows), 0.0 if now.failed else _speed(now, by_rows=by_rows)
        factor = after / before if before else None
        apart = None if now.failed else now.differs_from(kept)
        within = None if apart is None else not apart
        slower = factor is not None and factor < 1 - TOLERANCE
        regressed = baseline and slower and within is not True
    return ComparedCell(
        *cell,
        kept_rows_per_second=kept.rows_per_second if kept else None,
        rows_per_second=now.rows_per_second if now else None,
        kept_bytes_per_second=kept.bytes_per_second if kept else None,
        bytes_per_second=now.bytes_per_second if now else None,
        factor=factor,
        within_noise=within,
        regressed=regressed,
    )


def _speed(one: Measurement, *, by_rows: bool) -> float:
    return (one.rows_per_second or 0.0) if by_rows else one.bytes_per_second


def _machines(kept: Machine | None, now: Machine | None) -> list[str]:
    if kept is None or now is None:
        return ["nothing tells which machine it was measured on"]
    notes: list[str] = []
    if kept.processor != now.processor:
        notes.append(f"another processor: {kept.processor} then, {now.processor} now")
    if kept.cpus != now.cpus:
        notes.append(f"{_count(kept.cpus)} then, {now.cpus:,} now")
    if abs(kept.memory - now.memory) > _MEMORY * max(kept.memory, now.memory):
        notes.append(f"{kept.memory / 1e9:,.1f} GB of memory then, {now.memory / 1e9:,.1f} GB now")
    versions = [{"python": one.python, **one.packages} for one in (kept, now)]
    pairs = {name: [found.get(name, "none") for found in versions] for name in {**versions[0], **versions[1]}}
    return [*notes, *(f"{name} {then} then, {here} now" for name, (then, here) in pairs.items() if then != here)]


def _targets(kept: BenchReport, report: BenchReport, names: dict[str, str]) -> list[str]:
    before = {names.get(one.target, one.target): one for one in kept.targets}
    notes = [f"`{old}` then, `{new}` now" for old, new in names.items() if old != new]
    both = [(before[one.target], one) for one in report.targets if one.target in before]
    return [*notes, *(f"`{now.target}`: {words}" for then, now in both if (words := _changed(then, now)))]


def _changed(then: MeasuredTarget, now: MeasuredTarget) -> str:
    if then.generation != now.generation:
        return f"generation {then.generation or 'none'} then, {now.generation or 'none'} now"
    if then.rows != now.rows:
        return f"{then.rows:,} rows then, {now.rows:,} now"
    return f"{then.bytes:,} bytes then, {now.bytes:,} now" if then.bytes != now.bytes else ""


def _count(cpus: int) -> str:
    return f"{cpus:,} processor{'' if cpus == 1 else 's'}"
