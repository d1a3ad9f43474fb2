"""What `bench` tells of where the time goes, of the limits of the machine, and of when a copy pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StageName = Literal["storage", "decompression", "decode", "tensors", "collation", "transfer"]
LimitName = Literal["storage", "processor"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step from the storage to the training loop, measured alone, on one processor.

    Attributes:
        seconds_per_million_rows: what it takes by itself.
        share: of all that are on the way, 0 to 1; None for the transfer where no worker reads.
    """

    name: StageName
    seconds_per_million_rows: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was tried on the same rows: rows a second through all stages, one after the other."""

    what: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the time goes between the storage of one target and a training loop.

    Attributes:
        rows, bytes: of the sample, and what it takes on the storage.
        stages: those that could be measured, in the order of the way.
        bottleneck: the longest one; None where none was measured.
        changes: what moves the bottleneck, the most effective one first.
        note: what went wrong.
    """

    target: str
    rows: int
    bytes: int
    stages: tuple[Stage, ...] = ()
    bottleneck: StageName | None = None
    changes: tuple[Change, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limits that no reader of one target passes on this machine, but from memory.

    Attributes:
        storage_bytes_per_second: of so many `streams` that read the files side by side.
        storage_rows_per_second: the same in rows of this target.
        decode_rows_per_second: of one processor that decompresses and decodes; None where nothing is to be decoded.
        decode_bytes_per_second: the same in bytes as they are on the storage.
        processors: how many this process may use.
        rows_per_second: the smaller limit of the storage and of all processors.
        limit: which one that is.
    """

    target: str
    storage_bytes_per_second: float
    storage_rows_per_second: float
    streams: int
    decode_rows_per_second: float | None
    decode_bytes_per_second: float | None
    processors: int
    rows_per_second: float
    limit: LimitName


@dataclass(frozen=True, slots=True)
class BreakEven:
    """After how many epochs a copy has paid for itself.

    Attributes:
        source, copy: the first target and a later one with as many rows.
        reader: the fastest one over both; the epochs are its.
        making_seconds: what making the copy takes at least: to read the source once.
        making_by: what tells that.
        epochs: `making_seconds / (source_epoch_seconds - copy_epoch_seconds)`; None where the copy is not faster.
    """

    source: str
    copy: str
    reader: str
    making_seconds: float
    making_by: str
    source_epoch_seconds: float
    copy_epoch_seconds: float
    epochs: float | None
