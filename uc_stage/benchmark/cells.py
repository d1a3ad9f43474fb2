"""The grid: the combinations of batch size, workers and prefetch that each reader is measured with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.benchmark.ranks import MOST_RANKS
from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from uc_stage.model import BenchRequest

# Those behind a torch `DataLoader`: the others have neither workers nor prefetch.
LOADED = ("hf", "hf-stream", "torch", "files")
# A process has to start for each cell, and to import what it needs.
_START_SECONDS = 5.0
_MOST_SECONDS = 86_400
_MOST_STEP_MS = 3_600_000
_MINUTE = 60
_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Cell:
    """One reader's settings; 0 for what it has none of."""

    reader: str
    batch_size: int = 0
    workers: int = 0
    prefetch: int = 0


def grid(reader: str, request: BenchRequest) -> list[Cell]:
    """The cells of a reader: it prefetches only where it has workers."""
    if reader == "raw":
        return [Cell(reader)]
    if reader not in LOADED:
        return [Cell(reader, size) for size in request.batch_sizes]
    return [
        Cell(reader, size, workers, prefetch)
        for size in request.batch_sizes
        for workers in request.workers
        for prefetch in (request.prefetch if workers else (0,))
    ]


def check(request: BenchRequest) -> None:
    """Refuses numbers that no reader can be measured with.

    Raises:
        InvalidRequest: one is too small, none is given, or one stands twice.
    """
    given = (
        ("--batch-size", request.batch_sizes, 1),
        ("--workers", request.workers, 0),
        ("--prefetch", request.prefetch, 1),
        ("--repeats", (request.repeats,), 1),
    )
    for flag, values, least in given:
        if not values:
            raise InvalidRequest(f"`{flag}` names no number", hint=f"such as {flag} {least}")
        for value in values:
            if value < least:
                raise InvalidRequest(f"`{flag} {value}` is below {least}", hint=f"give {least} or more")
        if len(set(values)) != len(values):
            raise InvalidRequest(f"`{flag}` names one number twice", hint="name each one once")
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


def announce(cells: int, request: BenchRequest) -> str:
    """Says how long so many cells can take, each cold and warm.

    Raises:
        InvalidRequest: they can take longer than a day.
    """
    longest = cells * (2 * request.repeats * request.seconds + _START_SECONDS)
    words = f"{cells:,} cells, each cold and warm" if cells != 1 else "1 cell, cold and warm"
    if request.repeats > 1:
        words += f", {request.repeats} times"
    if longest > _MOST_SECONDS:
        raise InvalidRequest(
            f"{words}, can take {_span(longest)}", hint="give fewer numbers or targets, or fewer `--seconds`"
        )
    return f"{words}: {_span(longest)} at most"


def _span(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"
