"""What passes between `bench` and a reader's process: the job, what was read so far, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uc_stage.loaders.samples import Kind


@dataclass(frozen=True, slots=True)
class Job:
    """What to read: `files` are the target's, as paths or URLs with their bytes and rows; `seconds` bounds each pass.

    Attributes:
        kind: what the files are, where they are no Parquet and no Arrow: `image`, `audio` or `text`.
        row_bytes: the uncompressed bytes of a row, on average.
        scratch: a folder for what a reader must write, which is removed afterwards.
        mapped: files of the reader's own that it reads in place of the target's.
        rank, world_size: one of so many ranks reads its share, once all of them are in `meeting`.
        step_seconds: a training whose step takes so long is played.
    """

    reader: str
    target: str
    files: tuple[tuple[str, int, int], ...]
    batch_size: int
    workers: int
    seconds: float
    scratch: str = ""
    prefetch: int = 0
    repeats: int = 1
    kind: Kind | None = None
    row_bytes: int = 1
    mapped: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1
    meeting: str = ""
    step_seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Those of all files."""
        return sum(rows for _, _, rows in self.files)


@dataclass(slots=True)
class State:
    """What one pass has read so far.

    Attributes:
        number: of the pass; cold and warm ones take turns.
        first: when the first batch was there.
        ended: whether the reader came to its end.
        read: whether all was read that is to be; `done` whether the pass is over, with what is counted afterwards;
            `final` whether all passes are, and no other state follows.
        warm, cold: as a `Measurement` has them.
        told_apart: the rows among which those that came too often, `surplus`, were looked for.
        expected: the rows of an epoch, where the reader reads less than the target.
    """

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    first: float | None = None
    ended: bool = False
    final: bool = False
    error: str | None = None
    number: int = 0
    read: bool = False
    done: bool = False
    warm: bool = False
    cold: bool | None = None
    notes: tuple[str, ...] = ()
    p50: float | None = None
    p99: float | None = None
    cpu: float | None = None
    surplus: int | None = None
    told_apart: int = 0
    key: str | None = None
    expected: int | None = None
    wait_share: float | None = None


def in_a_line(error: BaseException) -> str:
    """An error in one line, with the last line of a worker's traceback, or its cause, where it brings one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = lines[-1] if lines[0].startswith("Caught ") else f"{type(error).__name__}: {lines[0]}"
    said = said.rstrip(".: ")
    return (f"{said}: {in_a_line(error.__cause__)}" if error.__cause__ else said)[:300]
