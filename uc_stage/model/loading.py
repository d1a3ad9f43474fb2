"""How a training should read a dataset: the settings that `inspect` recommends, and the code that uses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Framework = Literal["torch", "hf", "lightning"]


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """The settings of one loader for one target, on this machine.

    Attributes:
        loader: what reads: `ParquetBatches`, `load_dataset`, its streaming form, or `load_from_disk`.
        num_workers, prefetch_factor: of torch's `DataLoader`, which takes no `prefetch_factor` without workers.
        batch_size: rows of a batch, where a training has no reason for another number.
        read_rows, read_bytes: what is read and decoded at once; bytes are uncompressed.
        worker_bytes: about the memory of a worker, or without workers of what reads in each rank.
        reasons: why each of them, by its name.
    """

    loader: str
    num_workers: int
    prefetch_factor: int | None
    batch_size: int
    read_rows: int
    read_bytes: int
    worker_bytes: int
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snippet:
    """Python that reads a target by one framework, as it stands."""

    target: str
    framework: Framework
    code: str
    loader: LoaderSettings
