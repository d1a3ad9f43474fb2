"""What `bench` is asked for and measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from uc_stage.model.stages import BreakEven, Ceiling, Stages


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What `bench` is asked for.

    Attributes:
        readers: None for every one that is installed and reads what is there.
        batch_sizes, workers, prefetch: the grid, of which each reader is measured over what it has.
        seconds: the longest time of one pass of one cell.
        repeats: how often each cell is measured, cold and warm.
        step_ms: plays a training whose step takes so many milliseconds against the readers that give batches.
        world_size: so many ranks of this node read at once, each its share.
        stages: measure where the time goes, and the limits; None for where neither readers nor rates were asked for.
        save: where the report is kept.
        baseline: a kept report that this one must not fall behind.
        compare: kept reports that are shown beside this one; without targets, the last of them stands in for it.
        html: where the report is drawn as a page.
    """

    targets: tuple[str, ...]
    readers: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] = (256,)
    workers: tuple[int, ...] = (0,)
    prefetch: tuple[int, ...] = (2,)
    seconds: float = 5.0
    repeats: int = 1
    require: tuple[str, ...] = ()
    step_ms: float | None = None
    world_size: int | None = None
    stages: bool | None = None
    save: str | None = None
    baseline: str | None = None
    compare: tuple[str, ...] = ()
    html: str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One cell over one target, cold or warm. `bytes` are those on disk that were passed over; `complete` is an epoch.

    One that `failed` died, hung, met data that it cannot read, or gave other rows than there are; `note` says which.

    Attributes:
        batch_size, workers, prefetch: the cell; 0 for what the reader has none of.
        warm: whether it is of the passes that read once more what the cold ones before them have read.
        cold: whether no page of the files was in memory when it began; False where those were that it read. None where
            that could not be told, or pages could not be dropped.
        rates: of each repeat, in rows a second, or bytes where rows are not counted. All else is of the median one.
        batch_p50_seconds, batch_p99_seconds: between one batch and the next, without the first one, and without the
            step of a played training.
        cpu_seconds: of the reader and its workers.
        worker_bytes: the most memory that a worker had, or the reader where it has none, as sampled: what is its own
            and its share of what is shared (PSS), without the pages of files that it maps.
        distinct_rows: the rows, without those that came more often than the data holds them; None where not every row
            could be told apart, or several ranks read.
        wait_share: the part of a played training in which it waits for batches, 0 to 1; None where none was played.
        limit_share: the rate, as a part of what the storage and the processors can do at most; above 1 from memory.
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
    warm: bool = False
    cold: bool | None = None
    rates: tuple[float, ...] = ()
    batch_p50_seconds: float | None = None
    batch_p99_seconds: float | None = None
    cpu_seconds: float | None = None
    worker_bytes: int | None = None
    distinct_rows: int | None = None
    wait_share: float | None = None
    limit_share: float | None = None

    def differs_from(self, other: Measurement) -> bool | None:
        """Whether the ranges of two measurements' rates lie apart; None where one of them has no range."""
        if not (self.rates[1:] and other.rates[1:]):
            return None
        return max(self.rates) < min(other.rates) or max(other.rates) < min(self.rates)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One `--require` and how it came out: `reader` is the one that came nearest, on the last target.

    `measured` is a second's bytes or rows, or the share of the time that a training waits.
    """

    text: str
    met: bool
    measured: float
    unit: Literal["bytes/s", "rows/s", "share"]
    reader: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What of a machine decides how fast it reads; it is not named.

    Attributes:
        cpus: the whole processors that the process may keep busy.
        memory: bytes that it may use.
        packages: the versions of the libraries that read, where they are installed.
    """

    processor: str
    cpus: int
    memory: int
    python: str
    packages: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """A target as it was when it was measured; `generation` is an export's, or of the one that a copy holds."""

    target: str
    kind: str
    generation: str | None
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """The same target, reader and settings in a kept report and in this one.

    Attributes:
        kept_rows_per_second, kept_bytes_per_second: None, as of this report, where it was not measured there.
        factor: how many times as fast it is in this report as in the kept one.
        within_noise: whether the ranges of the repeats overlap; None where one of the two has a single repeat.
        regressed: slower than in the baseline, beyond noise and tolerance.
    """

    target: str
    reader: str
    batch_size: int
    workers: int
    prefetch: int
    warm: bool
    kept_rows_per_second: float | None
    rows_per_second: float | None
    kept_bytes_per_second: float | None
    bytes_per_second: float | None
    factor: float | None
    within_noise: bool | None
    regressed: bool = False

    @property
    def verdict(self) -> str:
        """How it came out, in a word or two."""
        if self.factor is None:
            if self.bytes_per_second is None:
                return "only then"
            return "only now" if self.kept_bytes_per_second is None else "failed then"
        if self.regressed or self.within_noise:
            return "regression" if self.regressed else "within noise"
        word = "faster" if self.factor > 1 else "slower" if self.factor < 1 else "the same"
        return word if self.within_noise is False else f"{word}, noise unknown"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A kept report beside this one; `notes` say what else than the speed differs between the two."""

    file: str
    at: str
    baseline: bool
    notes: tuple[str, ...]
    cells: tuple[ComparedCell, ...]

    @property
    def judged(self) -> bool:
        """Whether it has anything of what this report has."""
        return any(cell.factor is not None for cell in self.cells)

    @property
    def regressions(self) -> tuple[ComparedCell, ...]:
        """The cells that fell behind it, where it is the baseline."""
        return tuple(cell for cell in self.cells if cell.regressed)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What `bench` measured, target by target in the order given.

    Attributes:
        named: the readers that the request named.
        at: ISO 8601, when the measurements were over.
        targets: as they were then.
        step_ms, world_size: as they were asked for.
        kept_in: the file that this report was read from, where nothing was measured.
    """

    measurements: tuple[Measurement, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    named: tuple[str, ...] = ()
    stages: tuple[Stages, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    at: str = ""
    machine: Machine | None = None
    targets: tuple[MeasuredTarget, ...] = ()
    step_ms: float | None = None
    world_size: int = 1
    comparisons: tuple[Comparison, ...] = ()
    kept_in: str | None = None

    @property
    def met(self) -> bool:
        """Whether every requirement held, and nothing fell behind the baseline, which has something to judge by."""
        behind = (one.regressions or not one.judged for one in self.comparisons if one.baseline)
        return all(requirement.met for requirement in self.requirements) and not any(behind)
