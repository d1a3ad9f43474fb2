"""The loader's settings for a dataset, from its row groups, its bytes, and the processors and ranks of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage import storage
from uc_stage.inspection import machine
from uc_stage.inspection.patience import Asked
from uc_stage.inspection.platform import datasets_cache
from uc_stage.loaders.sizes import AHEAD_BYTES, THREADS, mixed_bytes
from uc_stage.model import LoaderSettings
from uc_stage.ranks import ranks_here, read_world_size
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uc_stage.model import InspectReport

_BATCH_ROWS = 256
_BATCH_BYTES = 32 * 1024**2
# Values of so many bytes that are no text are pictures or sound: to decode one takes longer than to pass it on.
_PAYLOAD_BYTES = 4096
_MOST_WORKERS = 8
_PREFETCH = 2
# Memory of a process of its own, beside the data: measured with torch 2.15 and pyarrow 26, and with datasets 5.2.
_TORCH_BYTES = 300 * 1000**2
_DATASETS_BYTES = 350 * 1000**2
# What a window takes while it is decoded and mixed: as decoded, as one piece, and in its new order.
_COPIES = 3
# `datasets` writes Parquet again as Arrow, of about so many times its bytes.
_ARROW_FACTOR = 1.8
_ASK_SECONDS = 1.0
# Where no launcher tells: no node has more GPUs that anybody rents.
MOST_LOCAL_RANKS = 8


@dataclass(frozen=True, slots=True)
class Here:
    """What of this machine and job the settings depend on.

    Attributes:
        cpus: that this process may use, of all ranks of the node.
        world_size, local_ranks: as a launcher tells; 1 where there is none.
        arrow_room: the free bytes where `datasets` writes its Arrow copies; None where nothing tells.
    """

    cpus: int
    world_size: int = 1
    local_ranks: int = 1
    arrow_room: int | None = None

    @classmethod
    def found(cls, environment: Mapping[str, str], world_size: int | None = None) -> Here:
        """What the machine and the environment tell; `world_size` goes before what a launcher does."""
        room = Asked({"": lambda: _room(datasets_cache(environment)[0])}).answers(_ASK_SECONDS)
        ranks = world_size or read_world_size(environment) or 1
        local = ranks_here(ranks, environment, MOST_LOCAL_RANKS)
        return cls(storage.cpus().usable, ranks, local, room.get(""))


def settings(report: InspectReport, here: Here, batch_size: int | None = None) -> dict[str, LoaderSettings]:
    """The settings of `torch`, uc-stage's own loader, and of `hf`; none for what has no rows to read.

    `batch_size` is that which was asked for.
    """
    if not report.rows or report.row_group_bytes is None or report.packed is not None:
        return {}
    total = report.uncompressed or sum(pile.bytes for name, pile in report.extensions.items() if name == ".arrow")
    facts = _Facts(report, here, max(1, total // report.rows), total, batch_size)
    return {"torch": _torch(facts), "hf": _hf(facts)}


@dataclass(frozen=True, slots=True)
class _Facts:
    report: InspectReport
    here: Here
    row_bytes: int
    total: int
    batch_size: int | None

    def batch(self) -> tuple[int, str]:
        if self.batch_size is not None:
            return self.batch_size, f"as asked: {format_size(self.batch_size * self.row_bytes)}"
        # With several splits, training reads that one.
        rows = self.report.splits.get("train") or self.report.rows or 1
        share = max(1, rows // self.here.world_size)
        most = max(1, _BATCH_BYTES // self.row_bytes)
        size = min(_BATCH_ROWS, 1 << min(share, most).bit_length() - 1)
        held = f"{format_size(size * self.row_bytes)} of rows of {format_size(self.row_bytes)}"
        if size == _BATCH_ROWS:
            return size, f"{held}; take what the model needs, the loader does not mind"
        if most < share:
            return size, f"{held}, since rows are long"
        ranks = f" of {self.here.world_size:,} ranks" if self.here.world_size > 1 else ""
        return (
            size,
            f"{held}: there are {share:,} rows for each{ranks}" if ranks else f"{held}: there are {share:,} rows",
        )

    def payload(self) -> str | None:
        """The column of pictures or the like, which a transform decodes."""
        for leaf in self.report.columns:
            plain = leaf.physical == "BYTE_ARRAY" and not (leaf.logical or "").lower().startswith(("string", "utf8"))
            if plain and leaf.values and leaf.uncompressed // leaf.values >= _PAYLOAD_BYTES:
                return leaf.column
        return None

    def workers(self, slower: str) -> tuple[int, int | None, dict[str, str]]:
        """The workers and what each prefetches, with the reasons; `slower` says what workers cost for plain rows."""
        per_rank = max(1, self.here.cpus // self.here.local_ranks)
        ranks = f" for each of {self.here.local_ranks:,} ranks" if self.here.local_ranks > 1 else ""
        if (column := self.payload()) is None or per_rank == 1:
            why = f"rows are cheap to decode: {slower}"
            if column is not None:
                why = f"one processor{ranks} leaves none for workers, though `{column}` has to be decoded"
            return 0, None, {"num_workers": why, "prefetch_factor": "without workers, torch takes none"}
        count = min(_MOST_WORKERS, per_rank - 1)
        return (
            count,
            _PREFETCH,
            {
                "num_workers": f"`{column}` has to be decoded by a transform: {per_rank:,} processors{ranks}, less one",
                "prefetch_factor": "torch's own: more holds more batches, and a worker makes no more of them",
            },
        )


def _torch(facts: _Facts) -> LoaderSettings:
    report, threads = facts.report, THREADS
    batch, why = facts.batch()
    slower = "with 2 workers, 0.4 of the rows a second that none gives (20 numbers and a text, batches of 256)"
    workers, prefetch, reasons = facts.workers(slower)
    assert report.row_group_bytes is not None
    assert report.rows is not None
    mixed = mixed_bytes(facts.total)
    read = min(max(mixed, report.row_group_bytes.max), facts.total)
    rows = min(report.rows, max(1, read // facts.row_bytes))
    if workers:
        threads = 1
    waits = batch * facts.row_bytes * (prefetch or 0)
    held = min(facts.total, max(AHEAD_BYTES, read)) + _COPIES * threads * read + waits
    what = "one row group, the least there is" if read > mixed else "row groups that are mixed in a shuffle"
    return LoaderSettings(
        loader="ParquetBatches",
        num_workers=workers,
        prefetch_factor=prefetch,
        batch_size=batch,
        read_rows=rows,
        read_bytes=read,
        worker_bytes=_TORCH_BYTES + held,
        reasons={
            **reasons,
            "batch_size": why,
            "read_bytes": f"{what}; the largest has {format_size(report.row_group_bytes.max)}",
            "worker_bytes": f"about 300 MB of libraries, {threads} being decoded, and what waits"
            + _together(facts, _TORCH_BYTES + held, workers),
        },
    )


def _hf(facts: _Facts) -> LoaderSettings:
    report, here = facts.report, facts.here
    batch, why = facts.batch()
    slower = "as a map, with 2 workers 0.7 of the rows a second that none gives (20 numbers and a text)"
    workers, prefetch, reasons = facts.workers(slower)
    read_rows, read_bytes = batch, batch * facts.row_bytes
    needed = int((report.bytes or 0) * _ARROW_FACTOR)
    if "as=arrow" in report.variant:
        loader, what = "load_from_disk", "a batch: Arrow files are mapped, and pages come as they are touched"
    elif "://" in report.target or (here.arrow_room is not None and needed > here.arrow_room):
        loader = "load_dataset, streaming"
        where = "a URL" if "://" in report.target else f"no room for an Arrow copy of about {format_size(needed)}"
        assert report.row_group_rows is not None
        assert report.row_group_bytes is not None
        read_rows, read_bytes = report.row_group_rows.max, report.row_group_bytes.max
        what = f"a row group, since it streams: {where}"
    else:
        loader, what = "load_dataset", f"a batch of its own Arrow copy, of about {format_size(needed)}, which is mapped"
    held = _DATASETS_BYTES + read_bytes * _COPIES + batch * facts.row_bytes * (prefetch or 0)
    return LoaderSettings(
        loader=loader,
        num_workers=workers,
        prefetch_factor=prefetch,
        batch_size=batch,
        read_rows=read_rows,
        read_bytes=read_bytes,
        worker_bytes=held,
        reasons={
            **reasons,
            "batch_size": why,
            "read_bytes": what,
            "worker_bytes": "about 350 MB of libraries, and what is read at once; mapped pages give way"
            + _together(facts, held, workers),
        },
    )


def _together(facts: _Facts, size: int, workers: int) -> str:
    count = facts.here.local_ranks * max(1, workers)
    return f"; {format_size(size * count)} for {count:,} processes here" if count > 1 else ""


def _room(path: str) -> int | None:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        return machine.room(path).free
    except OSError:
        return None
