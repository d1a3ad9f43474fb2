"""Where the time of one target goes, and its limits: starts the process that measures, and tells what it found."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING

from uc_stage.benchmark.probing import Found, Probe
from uc_stage.benchmark.process import ending, running
from uc_stage.benchmark.shares import bottleneck, rate, smaller, stages
from uc_stage.model import Ceiling, Change, Stages
from uc_stage.storage import cpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import Measurement
    from uc_stage.progress import Progress

# To load torch, and for all stages of a sample that a slow mount gives.
PROBE_SECONDS = 300.0
_PROBER = "uc_stage.benchmark.probing"


def probe(
    target: str,
    source: str,
    files: tuple[tuple[str, int, int], ...],
    batch_size: int,
    *,
    workers: bool,
    progress: Progress,
) -> tuple[Stages, Ceiling | None]:
    """Measures the stages and the limits of one target; what goes wrong is a note, and costs what is not known then.

    Args:
        target: as it was named.
        source: what another copy of it would be made of.
        files: its files, as paths or URLs with their bytes and rows.
        batch_size: of the batches that are cut and passed on.
        workers: whether batches come from workers, so that their transfer is on the way.
        progress: told of the phase.
    """
    progress.phase(f"stages {target}")
    with tempfile.TemporaryDirectory(prefix="uc-stage-bench-", ignore_cleanup_errors=True) as scratch:
        found, note = _ask(Probe(source, files, batch_size, workers, scratch))
    total_bytes, total_rows = sum(size for _, size, _ in files), sum(rows for _, _, rows in files)
    before = rate(found.seconds, workers=workers)
    changes = [Change(what, before, rate(after, workers=workers)) for what, after in found.changes]
    told = Stages(
        target,
        found.rows,
        found.bytes,
        stages(found.seconds, workers=workers),
        bottleneck(found.seconds, workers=workers),
        tuple(sorted(changes, key=lambda change: -change.after)),
        note,
    )
    if not found.storage_bytes_per_second:
        return told, None
    decoding = found.seconds.get("decompression", 0.0) + found.seconds.get("decode", 0.0)
    decode = 1 / decoding if decoding and not found.mapped else None
    storage = found.storage_bytes_per_second * total_rows / total_bytes
    processors = cpus().usable
    rows, limit = smaller(storage, decode, processors)
    ceiling = Ceiling(
        target,
        found.storage_bytes_per_second,
        storage,
        found.streams,
        decode,
        decode * found.bytes / found.rows if decode else None,
        processors,
        rows,
        limit,
    )
    return told, ceiling


def with_limits(measurements: Sequence[Measurement], ceilings: Sequence[Ceiling]) -> tuple[Measurement, ...]:
    """Measurements with their rate as a part of the limit; a played training goes at its own pace, and has none.

    Nor has `hf`, which reads an Arrow copy that it built.
    """
    of = {ceiling.target: ceiling for ceiling in ceilings}

    def judged(one: Measurement) -> Measurement:
        ceiling = of.get(one.target)
        if ceiling is None or one.wait_share is not None or one.reader == "hf":
            return one
        if one.rows_per_second is None:
            return replace(one, limit_share=one.bytes_per_second / ceiling.storage_bytes_per_second)
        return replace(one, limit_share=one.rows_per_second / ceiling.rows_per_second)

    return tuple(judged(one) for one in measurements)


def _ask(wanted: Probe) -> tuple[Found, str | None]:
    """Runs the process and gives the last that it told, with what went wrong."""
    with (
        open(os.path.join(wanted.scratch, "stdout"), "w+b") as stdout,
        open(os.path.join(wanted.scratch, "stderr"), "w+b") as stderr,
    ):
        note = None
        with running(_PROBER, stdout, stderr) as process:
            try:
                process.communicate(json.dumps(asdict(wanted)).encode(), timeout=PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                note = f"the measurement of the stages went on for {PROBE_SECONDS:g} s, and was stopped"
        found = _last(stdout)
        if note is None and process.returncode:
            note = f"the process that measures the stages died ({ending(process.returncode)})"
        return found, found.error or note


def _last(stdout: IO[bytes]) -> Found:
    stdout.seek(0)
    # One that was killed may have begun a line.
    lines = [line for line in stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return Found(**json.loads(lines[-1])) if lines else Found()
