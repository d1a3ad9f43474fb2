"""What `bench` is asked for and measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What `bench` is asked for. `readers` None means every reader that is installed; `seconds` bounds each one."""

    targets: tuple[str, ...]
    readers: tuple[str, ...] | None = None
    batch_size: int = 256
    workers: int = 0
    seconds: float = 5.0
    require: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reader over one target. `bytes` are those on disk that were passed over; `complete` is a whole epoch.

    One that `failed` died, hung, met data that it cannot read, or gave other rows than there are; `note` says which.
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

    @property
    def met(self) -> bool:
        """Whether every requirement held."""
        return all(requirement.met for requirement in self.requirements)
