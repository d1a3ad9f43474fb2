"""One reader over one target, in a process of its own: `main` takes a job from stdin.

It prints a line of JSON when its libraries are loaded, then what a pass has read so far a few times a second, then how
it ended. Nothing that a library prints reaches that stream.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import time
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, TextIO

from uc_stage.benchmark import pages, recipes, usage
from uc_stage.benchmark.cells import LOADED
from uc_stage.benchmark.jobs import Job, State, in_a_line
from uc_stage.benchmark.keys import Keys, column_for
from uc_stage.benchmark.playing import Waits, played
from uc_stage.benchmark.ranks import meet
from uc_stage.benchmark.sampling import opened
from uc_stage.ipc import is_stream_name
from uc_stage.loaders.arrow import share

# What a reader yields after each step: the rows and the bytes of it, and what holds the rows, where there are any.
Steps = Generator[tuple[int, int, Any], None, None]
Tell = Callable[[State], None]

_CHUNK_BYTES = 8 * 1024**2
_TELL_SECONDS = 0.2
# As long as a process may take to start: one rank that hangs is not waited for longer.
_MEET_SECONDS = 150.0
# A page or two of each file may have come back by the time one looks.
_STILL_COLD = 0.02
# Of the pages that the pass before read, at least so many are there for this one to count as warm.
_STILL_WARM = 0.5


def main() -> None:
    """Runs the job on stdin."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    record = json.load(sys.stdin)
    files = tuple(tuple(file) for file in record["files"])
    run(Job(**{**record, "files": files, "mapped": tuple(record["mapped"])}), lambda state: _tell(out, state))


def run(job: Job, tell: Tell) -> None:
    """Reads the target cold and warm, as often as the job says; what a library raises ends it and is told."""
    state = State()
    try:
        _warm_up(job)
        whole = job.rows
        notes: tuple[str, ...] = ()
        if job.reader == "hf":
            job, note = recipes.build(job)
            notes = (note,)
        column = _column(job)
        local = all(pages.is_local(path) for path, _, _ in job.files)
        for repeat in range(job.repeats):
            limit = None
            for warm in (False, True) if local else (False,):
                number = repeat * 2 + warm
                state = State(number=number, warm=warm, notes=notes, key=column)
                state.expected = job.rows if job.rows != whole else None
                # No rank reads while another one drops pages or looks at them.
                _meet(job, f"{number}-over", number)
                _see_pages(job, state, limit)
                _meet(job, f"{number}-seen", number)
                tell(state)
                _measure(job, state, limit, tell)
                # The next pass reads what this one has read: further pages are not there.
                limit = None if state.ended else (state.rows, state.bytes)
                state.done = True
                tell(state)
    except Exception as error:  # noqa: BLE001 - each library has errors of its own for data that it cannot read
        state.error = in_a_line(error)
    state.done = state.final = True
    tell(state)


def _meet(job: Job, place: str, number: int) -> None:
    """Waits for the other ranks, where there are any: after a first pass, for as long as theirs may take."""
    if job.meeting:
        meet(job.meeting, job.rank, job.world_size, _MEET_SECONDS + (2 * job.seconds if number else 0.0), place)


def _see_pages(job: Job, state: State, limit: tuple[int, int] | None) -> None:
    """Drops what is in memory before a cold pass, and tells whether it is as the pass wants it."""
    paths = job.mapped or [path for path, _, _ in job.files]
    if not state.warm:
        pages.drop(paths)
    there = pages.share_present(paths)
    if there is None:
        if all(map(pages.is_local, paths)):
            state.notes += ("the kernel does not say which pages are in memory",) if not state.warm else ()
        return
    if not state.warm:
        state.cold = True if there <= _STILL_COLD else None
        if state.cold is None:
            state.notes += (f"not cold: {there:.0%} of the pages could not be dropped",)
        return
    read = 1.0 if limit is None else limit[0] / max(1, job.rows) or limit[1] / max(1, _size(job))
    # The other ranks read as much.
    read = min(1.0, read * job.world_size)
    state.cold = False if there >= _STILL_WARM * read else None
    if state.cold is None:
        state.notes += (f"not warm: {there:.0%} of the pages stayed in memory",)


def _measure(job: Job, state: State, limit: tuple[int, int] | None, tell: Tell) -> None:
    gaps = array("d")
    keys = Keys(state.key, () if job.kind else job.files)
    reading = _READERS[job.reader](job)
    waits = Waits()
    plays = job.step_seconds > 0 and job.reader != "raw"
    steps = played(reading, job.step_seconds, waits) if plays else reading
    used = usage.cpu_seconds()
    with closing(reading):
        started = told = last = time.perf_counter()
        for rows, size, batch in steps:
            now = time.perf_counter()
            state.wait_share = waits.share
            state.seconds = now - started
            state.rows += rows
            state.bytes += size
            keys.add(batch, rows)
            if state.first is None:
                state.first, told = state.seconds, now
                tell(state)
            else:
                gaps.append(waits.latest if plays else now - last)
            if state.seconds >= job.seconds or (limit and state.rows >= limit[0] and state.bytes >= limit[1]):
                break
            if now - told >= _TELL_SECONDS:
                told = now
                tell(state)
            last = time.perf_counter()
        else:
            state.ended = True
            state.seconds = time.perf_counter() - started
        # Before its workers end: that of those which nobody waits for is told by none who lives.
        state.cpu = usage.cpu_seconds() - used
    if job.reader != "raw" and gaps:
        state.p50, state.p99 = _percentiles(gaps)
    state.read = True
    tell(state)
    state.surplus = keys.surplus(job.seconds)
    state.told_apart = keys.rows
    if state.surplus is None:
        state.key = None
    del steps, reading, keys
    # A file that is mapped still cannot be dropped from memory.
    gc.collect()


def _percentiles(gaps: array[float]) -> tuple[float, float]:
    import numpy as np

    low, high = np.percentile(np.frombuffer(gaps), (50, 99))
    return float(low), float(high)


def _column(job: Job) -> str | None:
    if job.reader == "raw":
        return None
    if job.kind:
        return _NUMBER
    column = column_for(job.files)
    return None if column is None or (job.reader in ("hf", "hf-stream") and column in recipes.untaken(job)) else column


def _size(job: Job) -> int:
    return sum(size for _, size, _ in job.files)


def _warm_up(job: Job) -> None:
    """Reads a file of a few rows first: the libraries import much of themselves when the first batch is made.

    `datasets` imports torch then, which takes longer than most measurements.
    """
    if job.reader in ("hf", "hf-stream"):
        recipes.quieten()
    if job.reader == "raw":
        # What a URL needs is imported as its first file is opened.
        opened(job.files[0][0]).close()
        return
    if job.kind:
        next(_files(replace(job, batch_size=1, workers=0, prefetch=0, rank=0, world_size=1)))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(job.scratch, f"warm-{job.rank}.parquet")
    times = pa.array([0, None], pa.timestamp("us"))
    pq.write_table(pa.table({"number": [1, 2], "flag": [True, False], "text": ["a", None], "time": times}), path)
    warm = replace(job, target=path, files=((path, 0, 2),), workers=0, prefetch=0, rank=0, world_size=1)
    for _ in _READERS[job.reader](warm):
        pass


def _raw(job: Job) -> Steps:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    for part in share([(path, size) for path, size, _ in job.files], job.rank, job.world_size):
        file = opened(part.path)
        try:
            offset = part.start
            while offset < part.stop and (count := file.read_into(buffer[: part.stop - offset], offset)):
                offset += count
                yield 0, count, None
        finally:
            file.close()


def _arrow(job: Job) -> Steps:
    from uc_stage.loaders.arrow import batches

    parts = share([(path, rows) for path, _, rows in job.files], job.rank, job.world_size)
    mapped = is_stream_name(job.files[0][0])
    held: list[Any] = []
    for batch in batches(parts, job.batch_size):
        if mapped:
            held = _touch(batch, held)
        yield batch.num_rows, 0, batch


def _touch(batch: Any, held: list[Any]) -> list[Any]:
    """Reads what a batch maps, unless it is a further part of what is held: a mapped file is read where it is touched.

    Gives what is to be held: as long as it is, no other batch can lie where it does.
    """
    import numpy as np

    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    if [buffer.address for buffer in buffers] != [buffer.address for buffer in held]:
        for buffer in buffers:
            np.frombuffer(buffer, np.uint8)[:: mmap.PAGESIZE].max()
    return buffers


def _hf(job: Job) -> Steps:
    for batch in recipes.map_style(job):
        yield _length(batch), 0, batch


def _hf_stream(job: Job) -> Steps:
    for batch in recipes.stream(job):
        yield _length(batch), 0, batch


def _torch(job: Job) -> Steps:
    from uc_stage.loaders.torch import ParquetBatches, as_is

    dataset = ParquetBatches(
        job.target, job.batch_size, rank=job.rank, world_size=job.world_size, nulls="list", split="all"
    )
    for batch in _loader(dataset, job, None, as_is):
        yield _length(batch), 0, batch


def _files(job: Job) -> Steps:
    from uc_stage.loaders.media import files

    # What each file is decoded to is made an array in the worker, as a transform does.
    dataset = files(job.target, job.kind, transform=_array, labels=False)
    for batch in _loader(_Numbered(dataset, job.rank, job.world_size), job, job.batch_size, _together):
        yield len(batch[_NUMBER]), 0, batch


def _loader(dataset: Any, job: Job, batch_size: int | None, collate: Callable[[Any], Any]) -> Iterator[Any]:
    import torch.utils.data

    loader = torch.utils.data.DataLoader(
        dataset, batch_size, num_workers=job.workers, prefetch_factor=job.prefetch or None, collate_fn=collate
    )
    return iter(loader)


_READERS: dict[str, Callable[[Job], Steps]] = {
    "raw": _raw,
    "arrow": _arrow,
    "hf": _hf,
    "hf-stream": _hf_stream,
    "torch": _torch,
    "files": _files,
}
assert set(LOADED) <= set(_READERS)

_NUMBER = "number"


class _Numbered:
    """A rank's share of a map-style dataset, whose samples come with their numbers, so that each can be told apart."""

    def __init__(self, data: Any, rank: int, world_size: int) -> None:
        self._data = data
        self._numbers = range(rank, len(data), world_size)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return self._numbers[index], self._data[self._numbers[index]]


def _array(sample: Any) -> Any:
    """An image's pixels as an array of (height, width, 3); audio and text as they are."""
    import numpy as np

    return np.asarray(sample) if hasattr(sample, "convert") else sample


def _together(samples: list[tuple[int, Any]]) -> dict[str, Any]:
    """Samples of one shape as one tensor, others as a list: a tensor each would take an open file each."""
    import numpy as np
    import torch

    numbers, values = [number for number, _ in samples], [value for _, value in samples]
    if isinstance(values[0], np.ndarray) and len({value.shape for value in values}) == 1:
        return {_NUMBER: numbers, "samples": torch.from_numpy(np.stack(values))}
    return {_NUMBER: numbers, "samples": [_untensored(value) for value in values]}


def _untensored(value: Any) -> Any:
    return (value[0].numpy(), value[1]) if isinstance(value, tuple) else value


def _length(batch: dict[str, list[object]]) -> int:
    return len(next(iter(batch.values()), ()))


def _tell(out: TextIO, state: State) -> None:
    print(json.dumps(asdict(state)), file=out, flush=True)
