"""The recipes of Hugging Face's documentation: `load_dataset` in torch's format through a `DataLoader`.

https://huggingface.co/docs/datasets/use_with_pytorch
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uc_stage.ipc import is_stream_name, opened
from uc_stage.loaders import huggingface
from uc_stage.loaders.arrow import batches, share
from uc_stage.sizes import format_size
from uc_stage.storage import folder_of, space_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from uc_stage.benchmark.jobs import Job

# What is built first, to know how long the rest takes.
_PROBE_BYTES = 8 * 1024**2
# Of the room that there is, the Arrow copy takes no more.
_ROOM_SHARE = 0.5
_PLAN = "built.json"


def quieten() -> None:
    """Keeps `datasets` from drawing bars and warning."""
    import datasets

    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()


def stream(job: Job) -> Iterator[Any]:
    """The batches of `load_dataset(streaming=True)`."""
    return _through_loader(huggingface.stream([path for path, _, _ in job.files]), job)


def build(job: Job) -> tuple[Job, str]:
    """Lets `datasets` write its Arrow copy of as many rows as it can in the time, and says what it did.

    The job that is given back has the files that were built, and what is mapped of them. Another cell that comes with
    the same scratch folder finds the copy there.
    """
    if is_stream_name(job.files[0][0]):
        return replace(job, mapped=tuple(path for path, _, _ in job.files)), "Dataset.from_file(FILE) maps the copy"
    plan = os.path.join(job.scratch, _PLAN)
    # Of several ranks, one builds it, and the others wait.
    with open(f"{plan}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError), open(plan, encoding="utf-8") as file:
            kept = json.load(file)
            files = tuple((path, size, rows) for path, size, rows in kept["files"])
            return replace(job, files=files, mapped=tuple(kept["mapped"])), kept["note"]
        return _build(job, plan)


def _build(job: Job, plan: str) -> tuple[Job, str]:
    files = _fitting(job)
    began = time.perf_counter()
    data = _load([path for path, _, _ in files], job)
    seconds = time.perf_counter() - began
    arrow = [entry["filename"] for entry in data.cache_files]
    rows, total = (sum(count for _, _, count in each) for each in (files, job.files))
    what = "" if rows == total else f" of the first {rows:,} of {total:,} rows, which fit the time and the room,"
    size = format_size(sum(map(os.path.getsize, arrow)))
    note = f"load_dataset wrote {size} of Arrow{what} before, in {seconds:.2f} s"
    with open(plan, "w", encoding="utf-8") as file:
        json.dump({"files": files, "mapped": arrow, "note": note}, file)
    return replace(job, files=files, mapped=tuple(arrow)), note


def map_style(job: Job) -> Iterator[Any]:
    """The batches of a `Dataset` that `build` has built, or that a copy as Arrow is."""
    files = [path for path, _, _ in job.files]
    return _through_loader(huggingface.mapped(files) if is_stream_name(files[0]) else _load(files, job), job)


def untaken(job: Job) -> list[str]:
    """The columns that torch's format, or `default_collate`, raises on for every row: they are left out."""
    import pyarrow as pa

    return [
        field.name
        for field in _schema(job.files[0][0])
        if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type) or pa.types.is_null(field.type)
    ]


def _schema(path: str) -> Any:
    import pyarrow.parquet as pq

    if is_stream_name(path):
        with opened(path) as reader:
            return reader.schema
    folder, name = folder_of(path)
    with folder.open(name) as file:
        return pq.read_schema(file)


def _load(files: Sequence[str], job: Job) -> Any:
    import datasets

    cache = os.path.join(job.scratch, "datasets")
    exact = [glob.escape(file) for file in files]  # names are taken for patterns
    return datasets.load_dataset("parquet", data_files=exact, split="train", cache_dir=cache)


def _fitting(job: Job) -> tuple[tuple[str, int, int], ...]:
    """The leading files, or the leading rows of the first one, that are built in the time and the room there is."""
    total = sum(rows for _, _, rows in job.files)
    sample = max(1, min(total, _PROBE_BYTES // job.row_bytes))
    if sample == total:
        return job.files
    fixed, _ = _probe(job, 1)
    taken, size = _probe(job, sample)
    by_time = max(0.0, job.seconds - fixed) * sample / max(taken - fixed, 1e-6)
    by_room = _ROOM_SHARE * space_at(job.scratch).free * sample / max(size, 1)
    most = max(sample, int(min(by_time, by_room, total)))
    files: list[tuple[str, int, int]] = []
    left = most
    for file in job.files:
        if file[2] > left:
            break
        files.append(file)
        left -= file[2]
    return tuple(files) or (_first_rows(job, most),)


def _probe(job: Job, rows: int) -> tuple[float, int]:
    """The seconds and the bytes that building so many rows takes."""
    path, _, _ = _first_rows(job, rows)
    began = time.perf_counter()
    data = _load([path], job)
    taken = time.perf_counter() - began
    size = sum(os.path.getsize(entry["filename"]) for entry in data.cache_files)
    return taken, size


def _first_rows(job: Job, rows: int) -> tuple[str, int, int]:
    """Writes the first rows as a Parquet file of their own."""
    import pyarrow.parquet as pq

    path = os.path.join(job.scratch, f"first-{rows}.parquet")
    with pq.ParquetWriter(path, _schema(job.files[0][0])) as out:
        left = rows
        for batch in batches(share([(file, count) for file, _, count in job.files], 0, 1), 64 * 1024):
            out.write_batch(batch.slice(0, left))
            left -= min(left, batch.num_rows)
            if not left:
                break
    return path, os.path.getsize(path), rows


def _through_loader(data: Any, job: Job) -> Iterator[Any]:
    import datasets.distributed
    import torch.utils.data

    if job.world_size > 1:
        data = datasets.distributed.split_dataset_by_node(data, job.rank, job.world_size)
    if left_out := untaken(job):
        data = data.remove_columns(left_out)
    loader: Iterable[Any] = torch.utils.data.DataLoader(
        data.with_format("torch"),
        job.batch_size,
        num_workers=job.workers,
        prefetch_factor=job.prefetch or None,
        collate_fn=_collated,
    )
    return iter(loader)


def _collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As `default_collate`, but values that it cannot put together, as lists of other lengths, stay a list."""
    from torch.utils.data import default_collate

    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            batch[name] = default_collate(values)
        except (TypeError, RuntimeError):
            batch[name] = values
    return batch
