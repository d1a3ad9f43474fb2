"""Plays a training against a reader: a pause between two batches, as long as a step takes the GPU.

The *data stall time* of Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", PVLDB 14(5), 2021,
https://doi.org/10.14778/3446095.3446100: the time that a training spends waiting for data to be fetched and
pre-processed. Here `wait_share` is it as a part of the whole:

    wait_share = waited / (waited + trained)

`waited` is the sum of the waits for all batches but the first, whose wait is paid once in an epoch and told as the time
to the first batch; `trained` is that of the pauses between them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Batch = TypeVar("_Batch")


@dataclass(slots=True)
class Waits:
    """Seconds of a played training: those waited for batches, and of these for the latest; those trained on them."""

    waited: float = 0.0
    trained: float = 0.0
    latest: float = 0.0

    @property
    def share(self) -> float | None:
        """The part of the time that is waited; None before the second batch."""
        total = self.waited + self.trained
        return self.waited / total if total else None


def played(batches: Iterator[_Batch], step_seconds: float, waits: Waits) -> Iterator[_Batch]:
    """Passes batches on, pauses for a step after each, and adds up the waits; a wait for no further batch is none."""
    found = next(batches, None)
    while found is not None:
        yield found
        began = time.perf_counter()
        # A GPU leaves the processors to whoever reads ahead, and so does a sleep.
        time.sleep(step_seconds)
        stepped = time.perf_counter()
        found = next(batches, None)
        if found is not None:
            waits.trained += stepped - began
            waits.latest = time.perf_counter() - stepped
            waits.waited += waits.latest
