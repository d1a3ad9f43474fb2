"""The stages of one target, measured in a process of its own: `main` takes what to measure from stdin.

It prints a line of JSON after each stage with all that is known so far, so that a stage which kills the process, as
shared memory that is full does, costs that stage alone. The way is that of DS-Analyzer (Mohan et al., PVLDB 14(5),
2021): each stage is measured by itself, on data that the stage before it has left in memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from uc_stage.benchmark.ceilings import storage_limit
from uc_stage.benchmark.changes import try_changes
from uc_stage.benchmark.jobs import in_a_line
from uc_stage.benchmark.sampling import take_sample
from uc_stage.benchmark.shares import bottleneck
from uc_stage.extras import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from uc_stage.benchmark.sampling import Sample

_CHUNK_ROWS, _CHUNK_BYTES = 64 * 1024, 4 * 1024**2
# A run is done again while that costs no more; the fastest one counts.
_AGAIN_SECONDS = 0.5
_TRANSFER_SECONDS = 2.0
_LEAST_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Probe:
    """What to measure: `files` are paths or URLs with their bytes and rows; `scratch` is a folder for what is tried.

    `source` is what another copy would be made of.
    """

    source: str
    files: tuple[tuple[str, int, int], ...]
    batch_size: int
    workers: bool
    scratch: str


@dataclass(slots=True)
class Found:
    """What is known so far: `seconds` are per row of each stage; `changes` are texts with what those are after them."""

    rows: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    storage_bytes_per_second: float = 0.0
    streams: int = 0
    mapped: bool = False
    changes: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    error: str | None = None


def main() -> None:
    """Measures what stdin asks for."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    record = json.load(sys.stdin)
    probe = Probe(**{**record, "files": tuple(tuple(file) for file in record["files"])})
    found = Found()
    try:
        for _ in _steps(probe, found):
            print(json.dumps(asdict(found)), file=out, flush=True)
    except Exception as error:  # noqa: BLE001 - each library has errors of its own for data that it cannot read
        found.error = in_a_line(error)
    print(json.dumps(asdict(found)), file=out, flush=True)


def _steps(probe: Probe, found: Found) -> Iterator[None]:
    found.storage_bytes_per_second, found.streams = storage_limit(probe.files)
    yield
    sample = take_sample(probe.files)
    found.rows, found.bytes = sample.rows, sample.bytes
    found.mapped = sample.pieces[0].metadata is None
    found.seconds["storage"] = sample.seconds / sample.rows
    yield
    ladder = Ladder(sample, probe.batch_size)
    found.seconds.update(ladder.decoding())
    yield
    if installed("torch"):
        found.seconds.update(ladder.converting())
        yield
    worst = bottleneck(found.seconds, workers=False)
    if worst:
        found.changes = list(try_changes(probe, ladder, found.seconds, worst))
        yield
    if installed("torch"):
        found.seconds["transfer"] = ladder.transfer()
        if probe.workers and bottleneck(found.seconds, workers=True) == "transfer":
            larger = Ladder(sample, probe.batch_size * 4).transfer()
            found.changes = [
                ("no worker: `--workers 0`", {**found.seconds, "transfer": 0.0}),
                (f"`--batch-size {probe.batch_size * 4}`", {**found.seconds, "transfer": larger}),
            ]
        yield


class Ladder:
    """The stages over one sample, each in seconds per row; those before it have left their work in memory."""

    def __init__(self, sample: Sample, batch_size: int) -> None:
        self.sample, self.batch_size = sample, batch_size
        uncompressed = sum(group.uncompressed for piece in sample.pieces for group in piece.groups)
        # As `ParquetBatches` has it.
        self.chunk_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * sample.rows // max(1, uncompressed)))

    def decoding(self, columns: Sequence[str] | None = None, without: str | None = None) -> dict[str, float]:
        """Decompression and decoding: the pages are decompressed alone, and the rest of reading them is decoding."""
        whole = best(lambda: _all(self.sample.batches(self.chunk_rows, columns))) / self.sample.rows
        if self.sample.pieces[0].metadata is None:
            return {"decode": whole}
        decompression = min(whole, best(lambda: self.decompress(without)) / self.sample.rows)
        return {"decompression": decompression, "decode": whole - decompression}

    def decompress(self, without: str | None = None) -> None:
        """Decompresses every page, into memory of its own."""
        import pyarrow as pa

        codecs: dict[str, Any] = {}
        for piece in self.sample.pieces:
            for name, data, size in piece.pages(without):
                codec = codecs.get(name) or codecs.setdefault(name, pa.Codec(name))
                codec.decompress(data, size)

    def converting(self, columns: Sequence[str] | None = None) -> dict[str, float]:
        """Tensors of whole chunks, and what it adds to cut batches out of them, by the code of `ParquetBatches`."""
        from uc_stage.loaders.columns import tensors

        chunks = self.sample.decoded(self.chunk_rows, columns)
        rows = sum(chunk.num_rows for chunk in chunks)
        whole = best(lambda: _all(tensors(chunk, "list") for chunk in chunks)) / rows
        cut = best(lambda: _all(self.made(chunks))) / rows
        return {"tensors": min(whole, cut), "collation": max(0.0, cut - whole)}

    def made(self, chunks: Sequence[Any]) -> Iterator[Any]:
        """The batches of tensors."""
        from uc_stage.loaders.arrow import in_batches
        from uc_stage.loaders.columns import split

        full, rest = divmod(sum(chunk.num_rows for chunk in chunks), self.batch_size)
        for chunk, sizes in in_batches(iter(chunks), [*[self.batch_size] * full, *[rest] * bool(rest)]):
            yield from split(chunk, sizes, "list")

    def transfer(self) -> float:
        """What it takes to get batches that a worker has already to this process, once it runs."""
        import torch.utils.data

        from uc_stage.loaders.passing import as_is

        batches = list(self.made(self.sample.decoded(self.chunk_rows)))
        rounds = -(-_LEAST_BATCHES // len(batches))
        made: Any = _Made(batches, rounds)
        loader = torch.utils.data.DataLoader(
            made,
            batch_size=None,
            num_workers=1,
            collate_fn=as_is,
        )
        received = iter(loader)
        next(received)
        rows, began = 0, time.perf_counter()
        for batch in received:
            rows += len(next(iter(batch.values())))
            if time.perf_counter() - began > _TRANSFER_SECONDS:
                break
        return (time.perf_counter() - began) / rows


class _Made:
    """Batches, some rounds of them; a tensor that went through shared memory once is there already the next time."""

    def __init__(self, batches: Sequence[dict[str, Any]], rounds: int) -> None:
        self._batches, self._rounds = batches, rounds

    def __len__(self) -> int:
        return len(self._batches) * self._rounds

    def __getitem__(self, index: int) -> dict[str, Any]:
        turn, at = divmod(index, len(self._batches))
        batch = self._batches[at]
        return batch if not turn else {name: _fresh(value) for name, value in batch.items()}


def _fresh(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def best(run: Callable[[], None]) -> float:
    """The seconds of the fastest of some runs."""
    spent, fastest = 0.0, float("inf")
    while spent < _AGAIN_SECONDS:
        began = time.perf_counter()
        run()
        took = time.perf_counter() - began
        # One that takes no time at all must end, too.
        spent += max(took, _AGAIN_SECONDS / 5)
        fastest = min(fastest, took)
    return fastest


def _all(values: Iterator[Any]) -> None:
    for _ in values:
        pass
