"""Where an iteration over batches is, and how it goes on with the same ranks and workers or with others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.errors import InvalidRequest
from uc_stage.loaders import order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uc_stage.loaders.order import Share, Spans

FORMAT = "uc-stage-batches/1"
_SAVE_AGAIN = "load what `state_dict` gave"


@dataclass(frozen=True, slots=True)
class Position:
    """So many batches of an epoch were made by each rank, all of which are at the same one.

    Attributes:
        spans: the part of the epoch that was shared out; None for all of it.
        workers: of each rank; 1 without any.
        worker: whose batches `taken` counts; None for all of the rank's.
        shift: a `DataLoader` asks worker 0 first; this lets it ask for the batch that is next.
        alone: `spans` is that worker's alone, to be shared out over ranks and not over workers.
    """

    epoch: int
    spans: Spans | None
    world_size: int
    batch_size: int
    drop_last: bool
    workers: int = 1
    worker: int | None = None
    taken: int = 0
    shift: int = 0
    alone: bool = False

    @property
    def lane(self) -> tuple[int, int]:
        """Which of how many workers shares the spans out."""
        return (0, 1) if self.alone else (((self.worker or 0) + self.shift) % self.workers, self.workers)

    def whole(self, rows: int) -> Spans:
        """The spans, where the epoch has so many rows."""
        return [(0, rows)] if self.spans is None else self.spans

    def share(self, rows: int, rank: int) -> Share:
        """What one rank has of the spans."""
        held = order.length(self.whole(rows))
        return order.deal(held, rank, self.world_size, self.batch_size, drop_last=self.drop_last)

    def go_on(self, fresh: Position, rows: int) -> Position:
        """The position of one who reads on from here: `fresh` has its world size, workers and number among them.

        Raises:
            InvalidRequest: this is one worker's position, and the reader is another one.
        """
        if self.worker is not None and (self.worker, self.workers) != (fresh.worker, fresh.workers):
            raise InvalidRequest(
                f"the state is that of worker {self.worker} of {self.workers}",
                hint=f"load the state of StatefulDataLoader into one with `num_workers={self.workers}`",
            )
        same = ("world_size", "batch_size", "drop_last", "workers")
        if all(getattr(self, name) == getattr(fresh, name) for name in same):
            if self.worker is not None or fresh.worker is None:
                return self
            shifted = dataclasses.replace(self, worker=fresh.worker, shift=self.taken % self.workers)
            return dataclasses.replace(shifted, taken=order.count(self.taken, *shifted.lane))
        lane, lanes = self.lane
        taken_by = {lane: self.taken}
        if self.worker is None:
            taken_by = {worker: order.count(self.taken, worker, lanes) for worker in range(lanes)}
        left = order.remaining(
            self.whole(rows), self.world_size, self.batch_size, lanes, taken_by, drop_last=self.drop_last
        )
        return dataclasses.replace(fresh, spans=left, alone=self.worker is not None)

    def to_dict(self) -> dict[str, Any]:
        """The position in values that JSON has."""
        spans = None if self.spans is None else [list(span) for span in self.spans]
        return {**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}, "spans": spans}


def read_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Position:
    """The position in a state, which must be of the same order of the same rows.

    Raises:
        InvalidRequest: it is of other data, another seed or another order, or no state.
    """
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise InvalidRequest("the state is none of `ParquetBatches`", hint=_SAVE_AGAIN)
    for name, value in identity.items():
        if state.get(name) != value:
            if name == "data":
                raise InvalidRequest("the state is of other files", hint="read the export that it was saved with")
            raise InvalidRequest(
                f"the state was saved with `{name}={state.get(name)}`, and this has `{name}={value}`",
                hint="give what it was saved with: another one is another order of the rows",
            )
    try:
        known = {field.name: state[field.name] for field in dataclasses.fields(Position)}
        spans = None if known["spans"] is None else [(int(start), int(stop)) for start, stop in known["spans"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the state lacks something or holds a wrong value ({error})", hint=_SAVE_AGAIN) from None
    return Position(**{**known, "spans": spans})
