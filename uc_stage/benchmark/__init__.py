"""`bench`: measures how fast datasets are read, reader by reader, each in a process of its own.

A process for each measurement, because each then has the memory, the threads and the environment of a fresh training
job, because `datasets` takes the place of its cache from the environment at import, because a library that aborts
(pyarrow does, on some damaged files) or workers that hang end with that process, and because whatever a library
prints stays in it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.benchmark.paying import break_even
from uc_stage.benchmark.process import measure
from uc_stage.benchmark.ranks import MOST_RANKS, measure_ranks
from uc_stage.benchmark.readers import Job
from uc_stage.benchmark.reports import finish, judge_stall, prepare
from uc_stage.benchmark.stages import probe, with_limits
from uc_stage.errors import InvalidRequest, NotFound, StageError, Unavailable
from uc_stage.extras import installed
from uc_stage.model import BenchReport, MeasuredTarget, Measurement, Requirement
from uc_stage.progress import SILENT
from uc_stage.sizes import parse_rate
from uc_stage.targets import look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import BenchRequest, Ceiling, Stages
    from uc_stage.progress import Progress
    from uc_stage.sizes import Rate

# Each reader, with the package that it needs beyond uc-stage's own and the extra that brings it.
READERS: dict[str, tuple[str, str] | None] = {
    "raw": None,
    "arrow": None,
    "hf": ("datasets", "hf"),
    "torch": ("torch", "torch"),
}


_MOST_SECONDS = 86_400
_MOST_STEP_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One parsed `--require`: `reader` is None where the fastest one counts."""

    text: str
    reader: str | None
    rate: Rate


@dataclass(frozen=True, slots=True)
class _Dataset:
    """One target with its Parquet files, as paths or URLs with their bytes and rows, and the bytes of all."""

    target: str
    files: tuple[tuple[str, int, int], ...]
    bytes: int
    target_kind: str
    generation: str | None

    def facts(self) -> MeasuredTarget:
        rows = sum(rows for _, _, rows in self.files)
        return MeasuredTarget(self.target, self.target_kind, self.generation, len(self.files), rows, self.bytes)


def run(request: BenchRequest, progress: Progress = SILENT) -> BenchReport:
    """Measures each reader over each target, one after the other, from a page cache that is as cold as can be.

    A reader that fails on the data, or hangs, has a measurement with a note, and the others go on. Requirements are
    judged on the last target: one without a reader by the fastest reader but `raw`, which is a ceiling and not what
    training gets; `raw` counts where it is the only one, and where the requirement names it.

    Kept reports are read and checked before anything is measured. Without a target, the last one that `compare` names
    stands in for the measured one.

    Raises:
        InvalidRequest: an unknown reader, a requirement that no reader of the request can answer, a Delta table; a kept
            report that is none, or a baseline of another machine.
        NotFound: nothing there, no Parquet file, no rows. VerificationFailed, Unsupported: a footer that is not whole.
        Unavailable: a reader that was named, here or in a requirement, needs a package that is not installed.
    """
    _check(request)
    given = prepare(request)
    if given.alone is not None:
        return finish(request, given, given.alone)
    wanted = [_parse(text, request.step_ms) for text in request.require]
    readers, skipped = _choose(request, wanted)
    datasets = [_open(target, progress) for target in request.targets]
    measurements = [_measure(reader, dataset, request, progress) for dataset in datasets for reader in readers]
    last = measurements[-len(readers) :]
    probed = [_probe(dataset, request, progress) for dataset in datasets] if _wants_stages(request) else []
    ceilings = tuple(ceiling for _, ceiling in probed if ceiling)
    sizes = {dataset.target: (sum(rows for _, _, rows in dataset.files), dataset.bytes) for dataset in datasets}
    report = BenchReport(
        with_limits(measurements, ceilings),
        skipped,
        tuple(_judge(each, last) for each in wanted),
        stages=tuple(stages for stages, _ in probed),
        ceilings=ceilings,
        break_even=break_even(sizes, measurements, ceilings),
    )
    return finish(request, given, report, [dataset.facts() for dataset in datasets])


def _measure(reader: str, dataset: _Dataset, request: BenchRequest, progress: Progress) -> Measurement:
    job = Job(
        reader,
        dataset.target,
        dataset.files,
        request.batch_size,
        request.workers,
        request.seconds,
        world_size=request.world_size or 1,
        step_seconds=(request.step_ms or 0.0) / 1000,
    )
    if job.world_size > 1:
        return measure_ranks(measure, job, dataset.bytes, progress)
    return measure(job, dataset.bytes, progress)


def _wants_stages(request: BenchRequest) -> bool:
    """Whether a look at the whole was asked for, and not certain readers or a verdict alone."""
    return not (request.readers or request.require) if request.stages is None else request.stages


def _probe(dataset: _Dataset, request: BenchRequest, progress: Progress) -> tuple[Stages, Ceiling | None]:
    return probe(dataset.target, dataset.files, request.batch_size, workers=request.workers > 0, progress=progress)


def _check(request: BenchRequest) -> None:
    if not (request.targets or request.compare):
        raise InvalidRequest("there is no TARGET", hint="name an export, a copy, a folder of Parquet or a file")
    for flag, value, least in (("--batch-size", request.batch_size, 1), ("--workers", request.workers, 0)):
        if value < least:
            raise InvalidRequest(f"`{flag} {value}` is below {least}", hint=f"give {least} or more")
    if not 0 < request.seconds <= _MOST_SECONDS:
        raise InvalidRequest(
            f"`--seconds {request.seconds:g}` is no time to read", hint=f"give more than 0, at most {_MOST_SECONDS}"
        )
    if request.step_ms is not None and not 0 < request.step_ms <= _MOST_STEP_MS:
        raise InvalidRequest(
            f"`--step-ms {request.step_ms:g}` is no step of a training",
            hint=f"give the milliseconds that your step takes on a GPU, more than 0 and at most {_MOST_STEP_MS}",
        )
    if request.world_size is not None and not 1 <= request.world_size <= MOST_RANKS:
        raise InvalidRequest(
            f"`--world-size {request.world_size}` is not from 1 to {MOST_RANKS}",
            hint="give the ranks of this node alone, one for each GPU: those of other nodes do not share its disk",
        )


def _parse(text: str, step_ms: float | None) -> _Wanted:
    reader, colon, rate = text.rpartition(":")
    if colon:
        _known(reader, f"--require {text}")
    parsed = parse_rate(rate, "--require")
    if reader == "raw" and parsed.unit == "rows/s":
        raise InvalidRequest(f"`--require {text}`: the reader `raw` counts no rows", hint="require `raw:500MB/s`")
    if parsed.unit == "share":
        if step_ms is None:
            raise InvalidRequest(
                f"`--require {text}`: without a training step there is nothing that waits",
                hint="add its length in milliseconds: `--step-ms 35`",
            )
        if reader == "raw":
            raise InvalidRequest(
                f"`--require {text}`: the reader `raw` makes no batches", hint="require `torch:stall<5%`"
            )
    return _Wanted(text, reader or None, parsed)


def _known(reader: str, flag: str) -> None:
    if reader not in READERS:
        near = difflib.get_close_matches(reader, READERS, n=1)
        known = ", ".join(f"`{name}`" for name in READERS)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {known}"
        raise InvalidRequest(f"`{flag}` names the unknown reader `{reader}`", hint=hint)


def _choose(request: BenchRequest, wanted: Sequence[_Wanted]) -> tuple[list[str], dict[str, str]]:
    """The readers to measure, and why others are left out."""
    for reader in request.readers or ():
        _known(reader, f"--readers {reader}")
    asked = list(dict.fromkeys(request.readers)) if request.readers else list(READERS)
    named = {*(request.readers or ()), *(each.reader for each in wanted if each.reader)}
    skipped = {}
    for reader in asked:
        package = READERS[reader]
        if package and not installed(package[0]):
            hint = f"pip install 'uc-stage[{package[1]}]'"
            if reader in named:
                raise Unavailable(f"the reader `{reader}` needs `{package[0]}`, which is not installed", hint=hint)
            skipped[reader] = f"`{package[0]}` is not installed: {hint}"
    readers = [reader for reader in asked if reader not in skipped]
    for each in wanted:
        if each.reader and each.reader not in readers:
            raise InvalidRequest(
                f"`--require {each.text}` names a reader that is not measured", hint="add it to `--readers`"
            )
        if each.rate.unit != "bytes/s" and readers == ["raw"]:
            lack = "counts no rows" if each.rate.unit == "rows/s" else "makes no batches"
            raise InvalidRequest(f"`--require {each.text}`: the reader `raw` {lack}", hint="add `arrow` to `--readers`")
    return readers, skipped


def _open(text: str, progress: Progress) -> _Dataset:
    target = look(text)
    files = target.data_files()
    found = []
    for path, footer in target.footers(files, progress).items():
        if isinstance(footer, StageError):
            raise footer
        found.append((target.folder.locate(path), files[path], footer.rows))
    if not any(rows for _, _, rows in found):
        raise NotFound(f"`{text}` holds no rows: there is nothing to measure", hint=f"uc-stage inspect {text}")
    manifest, record = target.manifest, target.record
    generation = manifest.generation if manifest else record.generation if record else None
    return _Dataset(text, tuple(found), sum(files.values()), target.kind, generation)


def _judge(wanted: _Wanted, measured: Sequence[Measurement]) -> Requirement:
    def value(measurement: Measurement) -> float:
        if measurement.failed:
            return 0.0
        if wanted.rate.unit == "bytes/s":
            return measurement.bytes_per_second
        return measurement.rows_per_second or 0.0

    candidates = [each for each in measured if wanted.reader in (None, each.reader)]
    if wanted.reader is None and len(candidates) > 1:
        candidates = [each for each in candidates if each.reader != "raw"]
    if wanted.rate.unit == "share":
        return judge_stall(wanted.text, wanted.rate.value, candidates)
    best = max(candidates, key=value)
    return Requirement(wanted.text, value(best) >= wanted.rate.value, value(best), wanted.rate.unit, best.reader)
