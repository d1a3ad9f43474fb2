"""What `bench` is asked for and measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from uc_stage.model.stages import BreakEven, Ceiling, Stages


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What `bench` is asked for. `readers` None means every reader that is installed; `seconds` bounds each one.

    Attributes:
        step_ms: plays a training whose step takes so long against the readers that give batches.
        world_size: so many ranks of this node read at once, each its share.
        stages: measure where the time goes, and the limits; None for where neither readers nor rates were asked for.
    """

    targets: tuple[str, ...]
    readers: tuple[str, ...] | None = None
    batch_size: int = 256
    workers: int = 0
    seconds: float = 5.0
    require: tuple[str, ...] = ()
    step_ms: float | None = None
    world_size: int | None = None
    stages: bool | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reader over one target. `bytes` are those on disk that were passed over; `complete` is a whole epoch.

    One that `failed` died, hung, met data that it cannot read, or gave other rows than there are; `note` says which.

    Attributes:
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
    wait_share: float | None = None
    limit_share: float | None = None


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
    """What `bench` measured, target by target in the order given."""

    measurements: tuple[Measurement, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    stages: tuple[Stages, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    break_even: tuple[BreakEven, ...] = ()

    @property
    def met(self) -> bool:
        """Whether every requirement held."""
        return all(requirement.met for requirement in self.requirements)
