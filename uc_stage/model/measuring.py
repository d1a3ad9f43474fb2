"""What `bench` is asked for and measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What `bench` is asked for.

    Attributes:
        readers: None for every one that is installed and reads what is there.
        batch_sizes, workers, prefetch: the grid, of which each reader is measured over what it has.
        seconds: the longest time of one pass of one cell.
        repeats: how often each cell is measured, cold and warm.
    """

    targets: tuple[str, ...]
    readers: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] = (256,)
    workers: tuple[int, ...] = (0,)
    prefetch: tuple[int, ...] = (2,)
    seconds: float = 5.0
    repeats: int = 1
    require: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One cell over one target, cold or warm. `bytes` are those on disk that were passed over; `complete` is an epoch.

    One that `failed` died, hung, met data that it cannot read, or gave other rows than there are; `note` says which.

    Attributes:
        batch_size, workers, prefetch: the cell; 0 for what the reader has none of.
        cold: whether no page of the files was in memory when it began; False where those were that it read. None where
            that could not be told, or pages could not be dropped.
        rates: of each repeat, in rows a second, or bytes where rows are not counted. All else is of the median one.
        batch_p50_seconds, batch_p99_seconds: between one batch and the next, without the first one.
        cpu_seconds: of the reader and its workers.
        worker_bytes: the most memory that a worker had, or the reader where it has none, as sampled: what is its own
            and its share of what is shared (PSS), without the pages of files that it maps.
        distinct_rows: the rows, without those that came more often than the data holds them.
    """

    target: str
    reader: str
    rows: int | None
    bytes: int
    seconds: float
    first_batch_seconds: float | None
    rows_per_second: float | None
    bytes_per_second: float
    complete: bool
    failed: bool = False
    note: str | None = None
    batch_size: int = 0
    workers: int = 0
    prefetch: int = 0
    cold: bool | None = None
    rates: tuple[float, ...] = ()
    batch_p50_seconds: float | None = None
    batch_p99_seconds: float | None = None
    cpu_seconds: float | None = None
    worker_bytes: int | None = None
    distinct_rows: int | None = None

    def differs_from(self, other: Measurement) -> bool | None:
        """Whether the ranges of two measurements' rates lie apart; None where one of them has no range."""
        if min(len(self.rates), len(other.rates)) < 2:  # noqa: PLR2004 - one repeat has no range
            return None
        return max(self.rates) < min(other.rates) or max(other.rates) < min(self.rates)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One `--require` and how it came out: `reader` is the one that came nearest, on the last target."""

    text: str
    met: bool
    measured: float
    unit: Literal["bytes/s", "rows/s"]
    reader: str


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What `bench` measured, target by target in the order given; `named` are the readers that the request named."""

    measurements: tuple[Measurement, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether every requirement held."""
        return all(requirement.met for requirement in self.requirements)
