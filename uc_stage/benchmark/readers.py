"""One reader over one target, in a process of its own: `main` takes a job from stdin.

It prints a line of JSON when its libraries are loaded, then what it has read so far a few times a second, then how it
ended. Nothing that a library prints reaches that stream.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TextIO

from uc_stage.benchmark.playing import Waits, played
from uc_stage.benchmark.ranks import meet
from uc_stage.errors import StageError
from uc_stage.ipc import is_stream_name
from uc_stage.loaders.arrow import share
from uc_stage.storage import open_folder

# What a reader yields after each step: the rows and the bytes of it.
Steps = Iterator[tuple[int, int]]

_CHUNK_BYTES = 8 * 1024**2
_TELL_SECONDS = 0.2
# As long as a process may take to start: one rank that died is not waited for longer.
_MEET_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Job:
    """What to read: `files` are the target's, as paths or URLs with their bytes and rows; `seconds` bounds the reading.

    `scratch` is a folder for what a reader must write, which is removed afterwards. One of `world_size` ranks reads its
    share once all of them are in `meeting`; a training whose step takes `step_seconds` is played.
    """

    reader: str
    target: str
    files: tuple[tuple[str, int, int], ...]
    batch_size: int
    workers: int
    seconds: float
    scratch: str = ""
    rank: int = 0
    world_size: int = 1
    meeting: str = ""
    step_seconds: float = 0.0


@dataclass(slots=True)
class State:
    """What was read so far: `first` is when the first batch was there, `ended` whether the reader came to its end."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    first: float | None = None
    ended: bool = False
    final: bool = False
    error: str | None = None
    wait_share: float | None = None


def main() -> None:
    """Runs the job on stdin."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    record = json.load(sys.stdin)
    job = Job(**{**record, "files": tuple(tuple(file) for file in record["files"])})
    state = State()
    try:
        _warm_up(job)
        for path, _, _ in job.files:
            _drop_pages(path)
        if job.meeting:
            meet(job.meeting, job.rank, job.world_size, _MEET_SECONDS)
        _tell(out, state)
        _measure(_READERS[job.reader](job), job, state, out)
    except Exception as error:  # noqa: BLE001 - each library has errors of its own for data that it cannot read
        state.error = _line(error)
    state.final = True
    _tell(out, state)


def _measure(steps: Steps, job: Job, state: State, out: TextIO) -> None:
    waits = Waits()
    if job.step_seconds and job.reader != "raw":
        steps = played(steps, job.step_seconds, waits)
    started = told = time.perf_counter()
    state.ended = True
    for rows, size in steps:
        now = time.perf_counter()
        state.wait_share = waits.share
        state.seconds = now - started
        state.first = state.seconds if state.first is None else state.first
        state.rows += rows
        state.bytes += size
        if state.seconds >= job.seconds:
            state.ended = False
            return
        if now - told >= _TELL_SECONDS:
            told = now
            _tell(out, state)
    state.seconds = time.perf_counter() - started


def _warm_up(job: Job) -> None:
    """Reads a file of a few rows first: the libraries import much of themselves when the first batch is made.

    `datasets` imports torch then, which takes longer than most measurements.
    """
    if job.reader == "raw":
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(job.scratch, "warm.parquet")
    times = pa.array([0, None], pa.timestamp("us"))
    pq.write_table(pa.table({"number": [1, 2], "flag": [True, False], "text": ["a", None], "time": times}), path)
    warm = replace(job, target=path, files=((path, 0, 2),), workers=0, rank=0, world_size=1)
    for _ in _READERS[job.reader](warm):
        pass


def _raw(job: Job) -> Steps:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    for part in share([(path, size) for path, size, _ in job.files], job.rank, job.world_size):
        above, _, name = part.path.rpartition("/")
        file = open_folder(above or "/").ranges(name)
        try:
            offset = part.start
            while offset < part.stop and (count := file.read_into(buffer[: part.stop - offset], offset)):
                offset += count
                yield 0, count
        finally:
            file.close()


def _arrow(job: Job) -> Steps:
    from uc_stage.loaders.arrow import batches

    parts = share([(path, rows) for path, _, rows in job.files], job.rank, job.world_size)
    for batch in batches(parts, job.batch_size):
        yield batch.num_rows, 0


def _hf(job: Job) -> Steps:
    import datasets
    import datasets.distributed

    from uc_stage.loaders.huggingface import mapped, stream

    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    files = [path for path, _, _ in job.files]
    whole = (mapped if is_stream_name(files[0]) else stream)(files)
    if job.world_size > 1:
        whole = datasets.distributed.split_dataset_by_node(whole, job.rank, job.world_size)
    for batch in whole.iter(job.batch_size):
        yield _length(batch), 0


def _torch(job: Job) -> Steps:
    import torch.utils.data

    from uc_stage.loaders.torch import ParquetBatches, as_is

    dataset = ParquetBatches(
        job.target, job.batch_size, rank=job.rank, world_size=job.world_size, nulls="list", split="all"
    )
    for batch in torch.utils.data.DataLoader(dataset, None, num_workers=job.workers, collate_fn=as_is):
        yield _length(batch), 0


_READERS: dict[str, Callable[[Job], Steps]] = {"raw": _raw, "arrow": _arrow, "hf": _hf, "torch": _torch}


def _length(batch: dict[str, list[object]]) -> int:
    return len(next(iter(batch.values()), ()))


def _drop_pages(path: str) -> None:
    """Asks the kernel to forget a file's pages, so that they are read from the disk or the mount again."""
    above, _, name = path.rpartition("/")
    with suppress(StageError):  # a mount may not know how; the measurement is then a warm one
        file = open_folder(above or "/").ranges(name)
        try:
            file.forget()
        finally:
            file.close()


def _tell(out: TextIO, state: State) -> None:
    print(json.dumps(asdict(state)), file=out, flush=True)


def _line(error: BaseException) -> str:
    """An error in one line, with the last line of a worker's traceback where it brings one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = lines[-1] if lines[0].startswith("Caught ") else f"{type(error).__name__}: {lines[0]}"
    return said.rstrip(".: ")[:300]
