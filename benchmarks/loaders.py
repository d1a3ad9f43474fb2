"""The torch loader against what one would use instead: python benchmarks/loaders.py [ROWS] [ROUNDS].

Ours, the documented recipe (`load_dataset(streaming=True)` in torch's format through a `DataLoader`), the same as a map
with an Arrow copy of its own, a plain loop from Arrow to tensors, and MosaicML Streaming and LitData where they are
installed take turns over the same rows: id, label, 16 floats, a double and a text, in batches of 256. Each run is in a
process of its own, over warm files, and ends with the data or after some seconds. What is timed is the iteration: from
when the loader is there to its last batch, with the start of workers and without imports, footers and the writing of
copies in formats of their own. The ratio is of the medians.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BATCH = 256
MOST_SECONDS = 8.0


def make_data(path: str, rows: int, files: int = 8) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    words = np.array([f"word{index}" for index in range(5000)])
    os.makedirs(os.path.join(path, "parquet"))
    for index, ids in enumerate(np.array_split(np.arange(rows), files)):
        count = len(ids)
        vectors = pa.FixedSizeListArray.from_arrays(rng.random(count * 16).astype("float32"), 16)
        table = pa.table(
            {
                "id": ids,
                "label": rng.integers(0, 20, count).astype("int32"),
                "vector": vectors.cast(pa.list_(pa.float32())),
                "price": rng.standard_normal(count),
                "text": [" ".join(row) for row in words[rng.integers(0, len(words), (count, 5))]],
            }
        )
        name = os.path.join(path, "parquet", f"train-{index:05d}-of-{files:05d}.parquet")
        pq.write_table(table, name, compression="zstd", row_group_size=65_536)


def parquet(path: str) -> list[str]:
    return sorted(glob.glob(os.path.join(path, "parquet", "*.parquet")))


def through_loader(dataset: Any, workers: int, **options: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, num_workers=workers, **options)


def ours(path: str, workers: int, shuffle: bool = False) -> Iterable[Any]:
    from uc_stage.loaders.torch import ParquetBatches, as_is

    data = ParquetBatches(os.path.join(path, "parquet"), BATCH, shuffle=shuffle, rank=0, world_size=1)
    return through_loader(data, workers, batch_size=None, collate_fn=as_is)


def ours_shuffled(path: str, workers: int) -> Iterable[Any]:
    return ours(path, workers, shuffle=True)


def recipe(path: str, workers: int) -> Iterable[Any]:
    import datasets

    data = datasets.load_dataset("parquet", data_files=parquet(path), split="train", streaming=True)
    return through_loader(data.with_format("torch"), workers, batch_size=BATCH)


def recipe_map(path: str, workers: int) -> Iterable[Any]:
    import datasets

    data = datasets.load_dataset("parquet", data_files=parquet(path), split="train", cache_dir=os.path.join(path, "hf"))
    return through_loader(data.with_format("torch"), workers, batch_size=BATCH)


def plain(path: str, workers: int, shuffle: bool = False) -> Iterator[Any]:
    assert not workers
    import numpy as np
    import pyarrow.parquet as pq
    import torch

    def tensor(column: Any) -> torch.Tensor:
        return torch.from_numpy(column.to_numpy())

    rng = np.random.default_rng(0)
    for name in parquet(path):
        file = pq.ParquetFile(name)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            if shuffle:
                table = table.take(rng.permutation(len(table)))
            for batch in table.combine_chunks().to_batches(BATCH):
                vectors = torch.from_numpy(batch["vector"].flatten().to_numpy()).reshape(-1, 16)
                numbers = {column: tensor(batch[column]) for column in ("id", "label", "price")}
                yield {**numbers, "vector": vectors, "text": batch["text"].to_pylist()}


def plain_shuffled(path: str, workers: int) -> Iterator[Any]:
    return plain(path, workers, shuffle=True)


def make_mosaic(path: str) -> None:
    from streaming import MDSWriter

    columns = {"id": "int64", "label": "int32", "vector": "ndarray:float32:16", "price": "float64", "text": "str"}
    with MDSWriter(out=os.path.join(path, "mosaic"), columns=columns) as out:
        for row in rows_of(path):
            out.write(row)


def mosaic(path: str, workers: int) -> Iterable[Any]:
    from streaming import StreamingDataset

    data = StreamingDataset(local=os.path.join(path, "mosaic"), batch_size=BATCH, shuffle=False)
    return through_loader(data, workers, batch_size=BATCH)


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    import numpy as np
    import pyarrow.parquet as pq

    for name in parquet(path):
        for row in pq.read_table(name).to_pylist():
            yield {**row, "vector": np.array(row["vector"], "float32"), "label": np.int32(row["label"])}


def make_litdata(path: str) -> None:
    from litdata.streaming.writer import BinaryWriter

    out = BinaryWriter(os.path.join(path, "litdata"), chunk_bytes="64MB")
    for index, row in enumerate(rows_of(path)):
        out[index] = {**row, "label": int(row["label"])}
    out.done()
    out.merge()


def litdata(path: str, workers: int) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(os.path.join(path, "litdata"), shuffle=False)
    loader: Iterable[Any] = StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)
    return loader


READERS: dict[str, tuple[Callable[[str, int], Iterable[Any]], int]] = {
    "ours": (ours, 0),
    "ours, shuffled": (ours_shuffled, 0),
    "ours, 2 workers": (ours, 2),
    "ours, shuffled, 2 workers": (ours_shuffled, 2),
    "plain loop": (plain, 0),
    "plain loop, shuffled": (plain_shuffled, 0),
    "recipe": (recipe, 0),
    "recipe, 2 workers": (recipe, 2),
    "recipe, map": (recipe_map, 0),
    "recipe, map, 2 workers": (recipe_map, 2),
    "MosaicML Streaming": (mosaic, 0),
    "MosaicML Streaming, 2 workers": (mosaic, 2),
    "LitData": (litdata, 0),
    "LitData, 2 workers": (litdata, 2),
}
MAKERS = {"streaming": ("MosaicML Streaming", make_mosaic), "litdata": ("LitData", make_litdata)}


def run(reader: str, path: str) -> float:
    """Rows a second."""
    importlib.import_module("torch.utils.data")
    function, workers = READERS[reader]
    batches = function(path, workers)
    rows = 0
    began = time.perf_counter()
    for batch in batches:
        rows += len(batch["id"])
        if time.perf_counter() - began > MOST_SECONDS:
            break
    return rows / (time.perf_counter() - began)


def main(rows: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        make_data(path, rows)
        missing = []
        for module, (name, make) in MAKERS.items():
            if importlib.util.find_spec(module) is None:
                missing.append(name)
                continue
            make(path)
        readers = [name for name in READERS if not name.startswith(tuple(missing))] if missing else list(READERS)
        found: dict[str, list[float]] = {name: [] for name in readers}
        environment = {**os.environ, "HF_DATASETS_CACHE": os.path.join(path, "hf"), "HF_HUB_OFFLINE": "1"}
        for _ in range(rounds):
            for name in readers:
                done = subprocess.run(
                    [sys.executable, __file__, "--run", name, path],
                    capture_output=True,
                    text=True,
                    env=environment,
                    check=False,
                )
                if done.returncode:
                    print(f"{name}: {done.stderr.strip().splitlines()[-1:]}")
                    continue
                found[name].append(float(done.stdout.split()[-1]))
    ours_ = statistics.median(found["ours"])
    for name, rates in found.items():
        if rates:
            rate = statistics.median(rates)
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            print(f"{name:30} {rate:12,.0f} rows/s  ({spread})  ours is {ours_ / rate:.2f} x")
    print(f"not installed: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(run(*sys.argv[2:4]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
        parser.add_argument("rounds", nargs="?", type=int, default=3)
        options = parser.parse_args()
        main(options.rows, options.rounds)
