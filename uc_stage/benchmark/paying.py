"""After how many epochs a copy has paid for the time that it took to make it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.model import BreakEven
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from uc_stage.model import Ceiling, Measurement


def epochs_until(making: float, source_epoch: float, copy_epoch: float) -> float | None:
    """`making / (source_epoch - copy_epoch)`, all in seconds; None where the copy is not faster."""
    return making / (source_epoch - copy_epoch) if copy_epoch < source_epoch else None


def break_even(
    sizes: Mapping[str, tuple[int, int]], measurements: Sequence[Measurement], ceilings: Sequence[Ceiling]
) -> tuple[BreakEven, ...]:
    """What each later target with as many rows as the first one is worth, as a copy of it.

    Args:
        sizes: rows and bytes of the source, and then of its copies.
        measurements: of all of them; those that are warm do not count.
        ceilings: of those where they were measured.
    """
    # What was read from memory tells nothing of where it lies, and `hf` reads an Arrow copy of its own of either.
    measurements = [one for one in measurements if not one.warm and one.reader != "hf"]
    (source, (rows, size)), *others = sizes.items()
    found = []
    for copy, (held, _) in others:
        rates = _rates(source, copy, measurements) if held == rows else {}
        if not rates:
            continue
        reader = max(rates, key=lambda name: max(rates[name]))
        source_epoch, copy_epoch = (rows / rate for rate in rates[reader])
        rate, by = _source_rate(source, reader, measurements, ceilings)
        making = size / rate
        found.append(
            BreakEven(
                source,
                copy,
                reader,
                making,
                f"{format_size(size)} at {by}, {format_size(rate)}/s",
                source_epoch,
                copy_epoch,
                epochs_until(making, source_epoch, copy_epoch),
            )
        )
    return tuple(found)


def _rates(source: str, copy: str, measurements: Sequence[Measurement]) -> dict[str, tuple[float, float]]:
    """Rows a second of each reader that read both, at its best over each."""
    best: dict[str, dict[str, float]] = {source: {}, copy: {}}
    for one in measurements:
        if one.target in best and one.rows_per_second and not one.failed:
            held = best[one.target]
            held[one.reader] = max(held.get(one.reader, 0.0), one.rows_per_second)
    return {reader: (rate, best[copy][reader]) for reader, rate in best[source].items() if reader in best[copy]}


def _source_rate(
    source: str, reader: str, measurements: Sequence[Measurement], ceilings: Sequence[Ceiling]
) -> tuple[float, str]:
    """How fast the source can be copied: by many streams at once, as `cache` does, else by the fastest reader."""
    for ceiling in ceilings:
        if ceiling.target == source and ceiling.storage_bytes_per_second:
            return ceiling.storage_bytes_per_second, "the limit of the source's storage"
    raw = [one for one in measurements if one.target == source and one.reader == "raw" and one.bytes_per_second]
    read = raw or [one for one in measurements if one.target == source and one.reader == reader]
    best = max(read, key=lambda one: one.bytes_per_second)
    return best.bytes_per_second, f"the rate of the reader `{best.reader}` over the source"
