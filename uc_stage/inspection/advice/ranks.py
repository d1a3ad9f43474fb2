"""Rules about how files are shared out over the ranks and workers of a training; silent where none is told of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uc_stage.inspection.facts import Finding, counted
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.inspection.facts import Facts

# What a DataLoader keeps ready of each worker: https://docs.pytorch.org/docs/stable/data.html (`prefetch_factor`)
_PREFETCH = 2
_SHM = "/dev/shm"  # noqa: S108 - where torch's workers put their batches


def few_files(facts: Facts) -> Iterator[Finding]:
    """Fewer files than workers: those without one stand by."""
    readers = facts.readers
    for split, rows in () if facts.is_mapped else facts.rows.items():
        if readers is not None and any(rows) and len(rows) < readers:
            yield Finding(
                f"{_split(facts, split)}{counted(len(rows), 'files')} for {_readers(facts)}: loaders that share out "
                f"files leave {readers - len(rows):,} of {readers:,} without one",
                {"split": split, "files": len(rows), "readers": readers, **_training(facts)},
                _fix(facts, "# or uc_stage.loaders.torch.ParquetBatches"),
            )
            return


def uneven_files(facts: Facts) -> Iterator[Finding]:
    """Files that do not go up into the ranks: `datasets` then lets every rank read all of them."""
    ranks, readers = facts.ranks or 1, facts.readers or 1
    for split, rows in () if facts.is_mapped else facts.rows.items():
        if any(rows) and len(rows) >= readers and len(rows) % ranks:
            yield Finding(
                f"{_split(facts, split)}{counted(len(rows), 'files')} are no multiple of {ranks} ranks: with "
                f"`datasets` every rank reads all of them, and keeps one row in {ranks}",
                {"split": split, "files": len(rows), **_training(facts)},
                _fix(facts),
            )
            return


def unequal_rows(facts: Facts) -> Iterator[Finding]:
    """Ranks that get fewer batches than others, which DDP waits for without an end."""
    ranks = facts.ranks
    if ranks is None or ranks == 1 or facts.is_mapped:
        return
    worst: tuple[int, str, list[int]] = (0, "", [])
    for split, rows in facts.rows.items():
        # As `datasets.distributed.split_dataset_by_node` and others deal them out.
        shares = [sum(rows[rank::ranks]) for rank in range(min(ranks, len(rows)))]
        shares += [0] * (len(rows) < ranks)
        batches = [math.ceil(share / facts.batch_size) for share in shares]
        worst = max(worst, (max(batches) - min(batches), split, shares))
    lack, split, shares = worst
    if lack:
        least, most = min(shares), max(shares)
        short = sum(share < most for share in shares) + ranks - len(shares)
        yield Finding(
            f"{_split(facts, split)}dealt out file by file, rank {shares.index(least)} of {ranks} gets {least:,} rows "
            f"and rank {shares.index(most)} {most:,}: it lacks {counted(lack, 'batches')} of {facts.batch_size:,}, and "
            "DDP hangs",
            {
                "split": split,
                "least_rows": least,
                "most_rows": most,
                "missing_batches": lack,
                "ranks_with_fewer": short,
                **_training(facts),
            },
            _fix(facts, "--drop-remainder", "# or uc_stage.loaders.torch.ParquetBatches"),
        )


def small_shm(facts: Facts) -> Iterator[Finding]:
    """Less shared memory than the batches that the workers of a node keep ready."""
    workers, total = facts.request.workers or 0, sum(sum(rows) for rows in facts.rows.values())
    size = facts.memory_bytes
    free = facts.machine.free(_SHM) if workers and total and size else None
    if free is None:
        return
    batch = math.ceil(size / total * facts.batch_size)
    need = facts.local_ranks * workers * _PREFETCH * batch
    if need > free:
        yield Finding(
            f"{counted(facts.local_ranks, 'ranks')} of {counted(workers, 'workers')} keep {_PREFETCH} "
            f"batches of {format_size(batch)} each in `{_SHM}`: {format_size(need)}, and {format_size(free)} are free; "
            "a worker would die of a bus error",
            {"need": need, "free": free, "batch_bytes": batch, "local_ranks": facts.local_ranks, **_training(facts)},
            "fewer --workers or a smaller --batch-size; or more shared memory: mount -o remount,size=…, "
            "docker run --shm-size=…",
        )


def _training(facts: Facts) -> dict[str, int | None]:
    return {"world_size": facts.ranks, "workers": facts.request.workers, "batch_size": facts.batch_size}


def _flags(facts: Facts) -> list[str]:
    ranks, workers = facts.ranks, facts.request.workers
    given = (("--world-size", ranks), ("--workers", workers))
    return [word for flag, value in given if value for word in (flag, str(value))]


def _readers(facts: Facts) -> str:
    ranks, workers = facts.ranks or 1, facts.request.workers or 0
    told = counted(ranks, "ranks")
    return f"{told} of {counted(workers, 'workers')}" if workers else told


def _fix(facts: Facts, *more: str) -> str:
    """The export for these ranks and workers; where a split has fewer rows than they need files, there is none."""
    least, readers = min(sum(rows) for rows in facts.rows.values() if any(rows)), facts.readers or 1
    if least < readers:
        return f"fewer ranks or workers, or more rows: {counted(least, 'rows')} cannot be cut into {readers:,} files"
    flags = [one for one in more if one.startswith("--")]
    return "  ".join([facts.export(*_flags(facts), *flags), *(one for one in more if one not in flags)])


def _split(facts: Facts, split: str) -> str:
    return f"`{split}`: " if len(facts.rows) > 1 else ""
