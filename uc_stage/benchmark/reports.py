"""What becomes of a report: compared with kept ones, judged, kept and drawn."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

from uc_stage import __version__
from uc_stage.benchmark import beside, keeping
from uc_stage.benchmark.page import draw, is_page
from uc_stage.errors import InvalidRequest
from uc_stage.model import Machine, Requirement
from uc_stage.publish import now
from uc_stage.storage import cpus, memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import BenchReport, BenchRequest, MeasuredTarget, Measurement

_PACKAGES = ("pyarrow", "torch", "datasets")


@dataclass(frozen=True, slots=True)
class Given:
    """What was read before anything is measured: `alone` is the report that stands in for a measured one."""

    machine: Machine
    kept: tuple[tuple[str, BenchReport], ...]
    baseline: tuple[str, BenchReport] | None
    alone: BenchReport | None


def prepare(request: BenchRequest) -> Given:
    """Reads and checks every file that the request names.

    Raises:
        InvalidRequest: one that is not of bench, a combination that cannot be right, a baseline of another machine.
        NotFound, Unsupported, AccessDenied, Unavailable: as `keeping.read` says.
    """
    if not request.targets:
        for flag, given in (("--save", request.save), ("--require", request.require)):
            if given:
                raise InvalidRequest(f"`{flag}` is for what is measured", hint="name a TARGET to measure")
    places = [(flag, file) for flag, file in (("--save", request.save), ("--html", request.html)) if file is not None]
    _check_apart([*places, *([("--baseline", request.baseline)] if request.baseline is not None else [])])
    kept = [(file, keeping.read(file, "--compare")) for file in request.compare]
    baseline = request.baseline
    judge = None if baseline is None else (baseline, keeping.read(baseline, "--baseline"))
    alone, here = None, machine()
    if not request.targets:
        file, report = kept.pop()
        alone = replace(report, requirements=(), named=(), comparisons=(), kept_in=file)
    if judge is not None and alone is not None:
        beside.check_baseline(*judge, alone.machine, alone.step_ms, alone.world_size)
    elif judge is not None:
        beside.check_baseline(*judge, here, request.step_ms, request.world_size or 1)
    for flag, file in places:
        if flag == "--save":
            keeping.check_place(file, flag, keeping.is_kept, "kept result of bench")
        else:
            keeping.check_place(file, flag, is_page, "page of bench")
    return Given(here, tuple(kept), judge, alone)


def finish(
    request: BenchRequest, given: Given, report: BenchReport, targets: Sequence[MeasuredTarget] = ()
) -> BenchReport:
    """Adds when and where it was measured, and the comparisons; writes what is asked for."""
    if given.alone is None:
        report = replace(
            report,
            at=now(),
            machine=given.machine,
            targets=tuple(targets),
            step_ms=request.step_ms,
            world_size=request.world_size or 1,
        )
    comparisons = [beside.compare(file, kept, report, baseline=False) for file, kept in given.kept]
    if given.baseline:
        comparisons.append(beside.compare(*given.baseline, report, baseline=True))
    report = replace(report, comparisons=tuple(comparisons))
    if request.save is not None:
        keeping.write(request.save, "--save", keeping.record(report))
    if request.html is not None:
        keeping.write(request.html, "--html", draw(report))
    return report


def judge_stall(text: str, limit: float, candidates: Sequence[Measurement]) -> Requirement:
    """Judges the share of its time that a training waits, by the reader that it waits for least.

    Of a reader that failed, or that no training was played against, a training waits for ever.
    """

    def waits(one: Measurement) -> float:
        return 1.0 if one.failed or one.wait_share is None else one.wait_share

    best = min(candidates, key=waits)
    return Requirement(text, waits(best) < limit, waits(best), "share", best.reader)


def machine() -> Machine:
    """This machine, as far as it decides how fast it reads."""
    versions = {"uc-stage": __version__}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return Machine(_processor(), cpus().usable, memory().total, platform.python_version(), versions)


def _processor() -> str:
    """Its name as the kernel tells it; some tell none, and then the architecture."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _check_apart(files: Sequence[tuple[str, str]]) -> None:
    """Refuses one file for two purposes: a report that is saved over its own baseline hides how far it fell."""
    taken: dict[str, str] = {}
    for flag, file in files:
        other = taken.setdefault(keeping.where(file, flag), flag)
        if other != flag:
            raise InvalidRequest(f"`{flag}` and `{other}` name the same file", hint="name another file for one of them")
