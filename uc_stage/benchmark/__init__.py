"""`bench`: measures how fast datasets are read, reader by reader, each in a process of its own.

A process for each measurement, because each then has the memory, the threads and the environment of a fresh training
job, because `datasets` takes the place of its cache from the environment at import, because a library that aborts
(pyarrow does, on some damaged files) or workers that hang end with that process, and because whatever a library
prints stays in it.
"""

from __future__ import annotations

import difflib
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.benchmark import cells
from uc_stage.benchmark.jobs import Job
from uc_stage.benchmark.opening import open_dataset
from uc_stage.benchmark.paying import break_even
from uc_stage.benchmark.process import measure
from uc_stage.benchmark.ranks import measure_ranks
from uc_stage.benchmark.reports import finish, judge_stall, prepare
from uc_stage.benchmark.stages import probe, with_limits
from uc_stage.errors import InvalidRequest, NoSpace, Unavailable
from uc_stage.extras import installed
from uc_stage.ipc import is_stream_name
from uc_stage.loaders.samples import DECODERS
from uc_stage.model import BenchReport, Measurement, Requirement
from uc_stage.progress import SILENT
from uc_stage.sizes import format_size, parse_rate
from uc_stage.storage import space_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.benchmark.opening import Dataset
    from uc_stage.model import BenchRequest, Ceiling, Stages
    from uc_stage.progress import Progress
    from uc_stage.sizes import Rate

# Each reader, with the packages that it needs beyond uc-stage's own and the extras that bring them.
READERS: dict[str, tuple[tuple[str, ...], str] | None] = {
    "raw": None,
    "arrow": None,
    "hf": (("datasets", "torch"), "hf,torch"),
    "hf-stream": (("datasets", "torch"), "hf,torch"),
    "torch": (("torch",), "torch"),
    "files": (("torch",), "torch"),
}
# Those that read images, audio and text, and those that read Parquet and Arrow.
_OF_MEDIA = ("raw", "files")
_OF_ROWS = ("raw", "arrow", "hf", "hf-stream", "torch")

# Less room than that for the Arrow copy of `datasets`, or twice the rows as they are in memory, is not worth it.
_LEAST_ROOM = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One parsed `--require`: `reader` is None where the fastest one counts."""

    text: str
    reader: str | None
    rate: Rate


def run(request: BenchRequest, progress: Progress = SILENT) -> BenchReport:
    """Measures each cell of each reader over each target, one after the other: cold, and then warm.

    A reader that fails on the data, or hangs, has a measurement with a note, and the others go on. Requirements are
    judged on the last target, by the passes that were to be cold: one without a reader by the fastest cell of any
    reader but `raw`, which is a ceiling and not what training gets, and `hf`, which reads an Arrow copy of its own;
    these count where there is no other one, and where the requirement names them.

    Kept reports are read and checked before anything is measured. Without a target, the last one that `compare` names
    stands in for the measured one.

    Raises:
        InvalidRequest: an unknown reader, or one that reads no target; a requirement that no reader of the request can
            answer; a grid that takes longer than a day; a Delta table; a kept report that is none, or a baseline of
            another machine.
        NotFound: nothing there, nothing to measure. VerificationFailed, Unsupported: a footer that is not whole.
        Unavailable: a reader that was named, here or in a requirement, needs a package that is not installed.
        NoSpace: `hf` was named, and there is no room for its Arrow copy.
    """
    if not (request.targets or request.compare):
        raise InvalidRequest("there is no TARGET", hint="name an export, a copy, a folder or a file")
    cells.check(request)
    given = prepare(request)
    if given.alone is not None:
        return finish(request, given, given.alone)
    wanted = [_parse(text, request.step_ms) for text in request.require]
    readers, skipped = _choose(request, wanted)
    named = _named(request, wanted)
    datasets = [open_dataset(target, progress) for target in request.targets]
    plan = [(dataset, _reading(dataset, readers, named, skipped)) for dataset in datasets]
    _require_use(plan, request, wanted)
    count = sum(len(cells.grid(reader, request)) for _, chosen in plan for reader in chosen)
    progress.note(cells.announce(count, request))
    measurements: list[Measurement] = []
    last: list[Measurement] = []
    for dataset, chosen in plan:
        last = [one for reader in chosen for one in _measured(dataset, reader, request, progress)]
        measurements += last
    # Images, audio and text have no row groups to take a sample of.
    sampled = [dataset for dataset in datasets if not dataset.kind] if _wants_stages(request) else []
    probed = [_probe(dataset, request, progress) for dataset in sampled]
    ceilings = tuple(ceiling for _, ceiling in probed if ceiling)
    report = BenchReport(
        with_limits(measurements, ceilings),
        skipped,
        tuple(_judge(each, last) for each in wanted),
        tuple(sorted(named)),
        stages=tuple(stages for stages, _ in probed),
        ceilings=ceilings,
        break_even=break_even(
            {dataset.target: (dataset.rows, dataset.bytes) for dataset in datasets if dataset.is_copy_of(datasets[0])},
            measurements,
            ceilings,
        ),
    )
    return finish(request, given, report, [dataset.facts() for dataset in datasets])


def _measured(dataset: Dataset, reader: str, request: BenchRequest, progress: Progress) -> list[Measurement]:
    """All cells of a reader, which share what it builds."""
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="uc-stage-bench-", ignore_cleanup_errors=True) as scratch:
        for cell in cells.grid(reader, request):
            job = Job(
                reader,
                dataset.target,
                dataset.files,
                cell.batch_size,
                cell.workers,
                request.seconds,
                scratch,
                prefetch=cell.prefetch,
                repeats=request.repeats,
                kind=dataset.kind,
                row_bytes=dataset.row_bytes,
                world_size=request.world_size or 1,
                step_seconds=(request.step_ms or 0.0) / 1000,
            )
            if job.world_size > 1:
                found += measure_ranks(measure, job, dataset.bytes, progress)
            else:
                found += measure(job, dataset.bytes, progress)
    return found


def _wants_stages(request: BenchRequest) -> bool:
    """Whether a look at the whole was asked for, and not certain readers or a verdict alone."""
    return not (request.readers or request.require) if request.stages is None else request.stages


def _probe(dataset: Dataset, request: BenchRequest, progress: Progress) -> tuple[Stages, Ceiling | None]:
    workers = any(request.workers)
    return probe(
        dataset.target, dataset.source, dataset.files, request.batch_sizes[0], workers=workers, progress=progress
    )


def _named(request: BenchRequest, wanted: Sequence[_Wanted]) -> set[str]:
    return {*(request.readers or ()), *(each.reader for each in wanted if each.reader)}


def _reading(dataset: Dataset, readers: Sequence[str], named: set[str], skipped: dict[str, str]) -> list[str]:
    """The readers of one target; why others are left out is added to `skipped`."""
    able = [reader for reader in readers if reader in (_OF_MEDIA if dataset.kind else _OF_ROWS)]
    if dataset.kind and "files" in able and (decoder := DECODERS.get(dataset.kind)) and not installed(decoder[0]):
        if "files" in named:
            raise Unavailable(
                f"the reader `files` needs `{decoder[1]}`, which is not installed", hint=f"pip install {decoder[1]}"
            )
        skipped["files"] = f"`{decoder[1]}` is not installed: pip install {decoder[1]}"
        able.remove("files")
    if "hf" in able and not is_stream_name(dataset.files[0][0]):
        needed = min(_LEAST_ROOM, 2 * dataset.row_bytes * dataset.rows)
        scratch = tempfile.gettempdir()
        if (free := space_at(scratch).free) < needed:
            words = f"writes an Arrow copy, for which `{scratch}` has no room: {format_size(free)} are free"
            if "hf" in named:
                raise NoSpace(f"the reader `hf` {words}", hint="name a larger disk in `TMPDIR`")
            skipped["hf"] = f"it {words}; name a larger disk in `TMPDIR`"
            able.remove("hf")
    return able


def _require_use(plan: Sequence[tuple[Dataset, list[str]]], request: BenchRequest, wanted: Sequence[_Wanted]) -> None:
    """Refuses a reader that was named and reads no target, and a requirement that the last target cannot answer."""
    measured = {reader for _, readers in plan for reader in readers}
    for reader in request.readers or ():
        if reader not in measured:
            held = "rows, and no images, audio or text" if reader == "files" else "files, and no rows"
            raise InvalidRequest(
                f"the reader `{reader}` reads no `{plan[-1][0].target}`: it holds {held}", hint="name another reader"
            )
    dataset, readers = plan[-1]
    if not readers:
        raise InvalidRequest(f"no reader reads `{dataset.target}`", hint="add `raw` to `--readers`")
    for each in wanted:
        if each.reader and each.reader not in readers:
            raise InvalidRequest(
                f"`--require {each.text}` names a reader that does not read `{dataset.target}`",
                hint=f"name one of {', '.join(f'`{reader}`' for reader in readers)}",
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
    named = _named(request, wanted)
    skipped = {}
    for reader in asked:
        packages, extras = READERS[reader] or ((), "")
        missing = next((package for package in packages if not installed(package)), None)
        if missing:
            hint = f"pip install 'uc-stage[{extras}]'"
            if reader in named:
                raise Unavailable(f"the reader `{reader}` needs `{missing}`, which is not installed", hint=hint)
            skipped[reader] = f"`{missing}` is not installed: {hint}"
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


def _judge(wanted: _Wanted, measured: Sequence[Measurement]) -> Requirement:
    def value(measurement: Measurement) -> float:
        if measurement.failed:
            return 0.0
        if wanted.rate.unit == "bytes/s":
            return measurement.bytes_per_second
        return measurement.rows_per_second or 0.0

    candidates = [each for each in measured if wanted.reader in (None, each.reader)]
    if wanted.reader is None:
        # `raw` makes no batches, and `hf` reads the Arrow copy that it built.
        candidates = [each for each in candidates if each.reader not in ("raw", "hf")] or candidates
    # The first epoch is a cold one.
    candidates = [each for each in candidates if not each.warm]
    if wanted.rate.unit == "share":
        return judge_stall(wanted.text, wanted.rate.value, candidates)
    best = max(candidates, key=value)
    return Requirement(wanted.text, value(best) >= wanted.rate.value, value(best), wanted.rate.unit, best.reader)
