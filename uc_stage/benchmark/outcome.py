"""What the passes of a cell amount to: a measurement of the cold ones, and one of the warm ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.benchmark.jobs import State
from uc_stage.model import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from uc_stage.benchmark.jobs import Job

_HOW = {
    "hf-stream": 'load_dataset(streaming=True).with_format("torch") in a DataLoader',
    "hf": 'with_format("torch") in a DataLoader',
}


def measurements(
    job: Job, size: int, states: Mapping[int, State], memory: Mapping[int, int], note: str
) -> Iterator[Measurement]:
    """The cold and the warm one, of what the passes told; `note` says how the process ended, where it did not well.

    `size` is that of the target's files, `memory` the most that a worker had in each pass.
    """
    if not states:
        yield _measurement(job, size, [State()], memory, [note])
        return
    broken = max(states) if note else None
    for warm in (False, True):
        passes = [state for number, state in sorted(states.items()) if state.warm is warm]
        if passes:
            yield _measurement(job, size, passes, memory, [note if state.number == broken else "" for state in passes])


def passed(state: State, job: Job, size: int) -> int:
    """The bytes on disk that were passed over: those of all files by the share of the rows that were read."""
    return state.bytes or size * min(state.rows, job.rows) // job.rows


def _measurement(
    job: Job, size: int, passes: Sequence[State], memory: Mapping[int, int], notes: Sequence[str]
) -> Measurement:
    """That of the median pass, or of one that failed."""
    wrong = [_wrong(job, size, state, note) for state, note in zip(passes, notes, strict=True)]
    by_rate = sorted(
        (index for index in range(len(passes)) if not wrong[index]), key=lambda index: _rate(job, passes[index])
    )
    chosen = next((index for index in range(len(passes)) if wrong[index]), None)
    if chosen is None:
        chosen = by_rate[(len(by_rate) - 1) // 2]
    state = passes[chosen]
    rows = None if job.reader == "raw" else state.rows
    over = passed(state, job, size)
    said = [*wrong[chosen], *state.notes, *([_HOW[job.reader]] if job.reader in _HOW else [])]
    return Measurement(
        target=job.target,
        reader=job.reader,
        rows=rows,
        bytes=over,
        seconds=state.seconds,
        first_batch_seconds=state.first,
        rows_per_second=rows / state.seconds if rows and state.seconds else None,
        bytes_per_second=over / state.seconds if state.seconds else 0.0,
        complete=state.ended and not wrong[chosen] and state.expected is None,
        failed=bool(wrong[chosen]),
        note="; ".join(said) or None,
        batch_size=job.batch_size,
        workers=job.workers,
        prefetch=job.prefetch,
        warm=state.warm,
        cold=state.cold,
        rates=tuple(_rate(job, passes[index]) for index in range(len(passes)) if not wrong[index]),
        batch_p50_seconds=state.p50,
        batch_p99_seconds=state.p99,
        cpu_seconds=state.cpu,
        worker_bytes=memory.get(state.number),
        distinct_rows=_distinct(rows, state),
        wait_share=state.wait_share,
    )


def _distinct(rows: int | None, state: State) -> int | None:
    if rows is None or state.surplus is None or state.told_apart < rows:
        return None
    return rows - state.surplus


def _rate(job: Job, state: State) -> float:
    amount = state.bytes if job.reader == "raw" else state.rows
    return amount / state.seconds if state.seconds else 0.0


def _wrong(job: Job, size: int, state: State, note: str) -> list[str]:
    """What went wrong in a pass."""
    found = [text for text in (note, state.error) if text]
    # What one rank of several is to read is told by all of them together.
    if state.ended and not state.error and job.world_size == 1:
        if job.reader == "raw" and state.bytes != size:
            found.append(f"{state.bytes} bytes of {size}")
        expected = state.expected or job.rows
        if job.reader != "raw" and state.rows != expected:
            found.append(f"an epoch gave {state.rows} rows of {expected}")
    if state.surplus:
        found.append(f"{state.surplus:,} rows came more often than the data holds them, told apart by `{state.key}`")
    return found
