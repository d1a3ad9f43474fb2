"""The arithmetic of stages and ceilings: shares, the bottleneck, rates, and which limit is the smaller one."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, cast, get_args

from uc_stage.model import Stage, StageName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uc_stage.model import LimitName

_MILLION = 1_000_000
# On the way of each row, in this order; the last one where workers read.
NAMES = cast("tuple[StageName, ...]", get_args(StageName))
_TRANSFER: StageName = "transfer"


def on_the_way(seconds: Mapping[str, float], *, workers: bool) -> dict[StageName, float]:
    """The stages that a row passes through, each with its seconds per row."""
    return {name: seconds[name] for name in NAMES if name in seconds and (workers or name != _TRANSFER)}


def bottleneck(seconds: Mapping[str, float], *, workers: bool) -> StageName | None:
    """The stage that takes the most; the first one of equals."""
    passed = on_the_way(seconds, workers=workers)
    if not any(passed.values()):
        return None
    longest: StageName = max(passed.items(), key=itemgetter(1))[0]
    return longest


def stages(seconds: Mapping[str, float], *, workers: bool) -> tuple[Stage, ...]:
    """All stages that were measured, by their seconds per row; the shares of those on the way add up to 1."""
    passed = on_the_way(seconds, workers=workers)
    whole = sum(passed.values())
    return tuple(
        Stage(name, took * _MILLION, passed[name] / whole if name in passed and whole else None)
        for name, took in on_the_way(seconds, workers=True).items()
    )


def rate(seconds: Mapping[str, float], *, workers: bool) -> float:
    """Rows a second through all stages, one after the other; 0 where they took no time that could be told."""
    whole = sum(on_the_way(seconds, workers=workers).values())
    return 1 / whole if whole else 0.0


def smaller(storage: float, decode: float | None, processors: int) -> tuple[float, LimitName]:
    """The limit in rows a second: of the storage, or of so many processors that decode."""
    if decode is not None and decode * processors < storage:
        return decode * processors, "processor"
    return storage, "storage"
