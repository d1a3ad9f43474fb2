"""Tries what moves a bottleneck, on the sample that it was found on: seconds per row of each stage after the change."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from uc_stage.benchmark.sampling import opened
from uc_stage.storage import space_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from uc_stage.benchmark.probing import Ladder, Probe
    from uc_stage.model import Compression

# What is changed, and the stages after it.
Tried = tuple[str, dict[str, float]]

_LARGER = 4
# The quickest to decompress that `export` writes.
_QUICK_CODEC: Compression = "snappy"


def try_changes(probe: Probe, ladder: Ladder, seconds: Mapping[str, float], worst: str) -> Iterator[Tried]:
    """Each change that can be tried against one stage being the longest."""
    if worst == "storage":
        yield from _storage(probe, ladder, seconds)
    elif worst in ("decompression", "decode"):
        yield from _decoding(probe, ladder, seconds)
    elif worst == "tensors":
        yield from _tensors(ladder, seconds)
    else:
        larger = type(ladder)(ladder.sample, ladder.batch_size * _LARGER)
        yield f"`--batch-size {larger.batch_size}`", {**seconds, **larger.converting()}


def _storage(probe: Probe, ladder: Ladder, seconds: Mapping[str, float]) -> Iterator[Tried]:
    sample = ladder.sample
    data = [piece.memory[group.start : group.stop] for piece in sample.pieces for group in piece.groups]
    if _is_elsewhere(sample.pieces[0].path, probe.scratch) and not space_at(probe.scratch).in_memory:
        local = _read_from_disk(data, probe.scratch) / sample.rows
        yield f"`uc-stage cache {probe.source}`: this node's disk", {**seconds, "storage": local}
    if "://" not in sample.pieces[0].path:
        warm = sample.read_again(opened) / sample.rows
        yield "in memory: a later epoch that fits it, or `cache --cache-dir /dev/shm`", {**seconds, "storage": warm}


def _decoding(probe: Probe, ladder: Ladder, seconds: Mapping[str, float]) -> Iterator[Tried]:
    yield from _as_arrow(probe, ladder, seconds)
    sample = ladder.sample
    pages = [page for piece in sample.pieces for page in piece.pages()]
    if not pages:
        return
    before, plain = sum(len(data) for _, data, _ in pages), sum(size for _, _, size in pages)
    grown = 1 + (plain - before) / sample.bytes
    yield (
        "`export --compression none`",
        {**seconds, "storage": seconds["storage"] * grown, "decompression": 0.0},
    )
    if {codec for codec, _, _ in pages} == {_QUICK_CODEC}:
        return
    packed, unpacking = _recompressed(pages)
    grown = 1 + (packed - before) / sample.bytes
    after = {"storage": seconds["storage"] * grown, "decompression": unpacking / sample.rows}
    yield f"`export --compression {_QUICK_CODEC}`", {**seconds, **after}


def _as_arrow(probe: Probe, ladder: Ladder, seconds: Mapping[str, float]) -> Iterator[Tried]:
    import pyarrow as pa

    from uc_stage.benchmark.probing import best

    # Without a disk to read it from, nothing is told of one.
    if ladder.sample.pieces[0].metadata is None or space_at(probe.scratch).in_memory:
        return
    batches = ladder.sample.decoded(ladder.chunk_rows)
    rows = sum(batch.num_rows for batch in batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = sink.getvalue()
    took = _read_from_disk([data], probe.scratch) / rows

    def decode() -> None:
        with pa.ipc.open_stream(data) as reader:
            for _ in reader:
                pass

    after = {"storage": took, "decompression": 0.0, "decode": best(decode) / rows}
    yield f"`uc-stage cache {probe.source} --as arrow`", {**seconds, **after}


def _tensors(ladder: Ladder, seconds: Mapping[str, float]) -> Iterator[Tried]:
    """Without the column whose conversion takes longest."""
    columns = ladder.sample.columns
    if len(columns) < 2:  # noqa: PLR2004 - one must be left
        return
    took = {column: ladder.converting([column])["tensors"] for column in columns}
    slowest = max(took, key=lambda column: took[column])
    left = [column for column in columns if column != slowest]
    of_it = sum(
        size
        for piece in ladder.sample.pieces
        for group in piece.groups
        for column, _, _, _, size in group.columns
        if column == slowest
    )
    after = {
        "storage": seconds["storage"] * (1 - of_it / ladder.sample.bytes),
        **ladder.decoding(left, without=slowest),
        **ladder.converting(left),
    }
    yield f"without the column `{slowest}`, whose conversion takes longest", {**seconds, **after}


def _recompressed(pages: list[tuple[str, Any, int]]) -> tuple[int, float]:
    """The bytes of all pages by a quick codec, and the seconds to decompress them."""
    import pyarrow as pa

    from uc_stage.benchmark.probing import best

    quick = pa.Codec(_QUICK_CODEC)
    made = [(quick.compress(pa.Codec(name).decompress(data, size), asbytes=True), size) for name, data, size in pages]

    def run() -> None:
        for data, size in made:
            quick.decompress(data, size)

    return sum(len(data) for data, _ in made), best(run)


def _read_from_disk(data: list[Any], scratch: str) -> float:
    """Writes bytes to this node's disk, and tells how long it takes to read them cold."""
    path = os.path.join(scratch, "tried")
    with open(path, "wb") as file:
        file.writelines(data)
        file.flush()
        # What is not on the disk yet cannot be forgotten.
        os.fsync(file.fileno())
        size = file.tell()
    found = opened(path)
    try:
        found.forget()
        buffer = memoryview(bytearray(8 * 1024**2))
        began = time.perf_counter()
        for at in range(0, size, len(buffer)):
            found.read_into(buffer, at)
        return time.perf_counter() - began
    finally:
        found.close()
        os.unlink(path)


def _is_elsewhere(path: str, scratch: str) -> bool:
    """Whether a file lies on another device than the scratch folder: behind a URL, or on a mount."""
    return "://" in path or os.stat(path).st_dev != os.stat(scratch).st_dev
