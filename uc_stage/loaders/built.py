"""What `datasets` has built before of the files at a path, and will give again without a look at them."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# `datasets` looks at each file to make the key.
_MOST_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Built:
    """One build: its folder, how it would be asked for, the rows in it, and the bytes of the files it was made of."""

    path: str
    call: str
    rows: int
    bytes: int | None


def built(folder: str, files: Sequence[str], cache: str) -> list[Built]:
    """The builds that `load_dataset` would give for a folder or its Parquet files, as the library itself finds them.

    Its key is made of paths and times of modification: content that changed under both gives the rows of before. The
    library is imported only where `cache` has a folder that it could be in.

    Args:
        folder: an absolute path.
        files: absolute paths below it.
        cache: where `datasets` keeps its builds.
    """
    if not files or len(files) > _MOST_FILES or not any(os.path.isdir(path) for path in _places(folder, cache)):
        return []
    return list(_found(folder, files, cache))


def _places(folder: str, cache: str) -> Iterator[str]:
    yield os.path.join(cache, "parquet")
    yield os.path.join(cache, os.path.basename(folder))


def _found(folder: str, files: Sequence[str], cache: str) -> Iterator[Built]:
    import datasets

    exact = [glob.escape(path) for path in files]
    calls = (
        (f'load_dataset("{folder}")', {"path": folder}),
        (f'load_dataset("parquet", data_files="{folder}/…")', {"path": "parquet", "data_files": exact}),
        (f'load_dataset("parquet", data_dir="{folder}")', {"path": "parquet", "data_dir": folder}),
    )
    for call, words in calls:
        try:
            builder = datasets.load_dataset_builder(cache_dir=cache, **words)
        except Exception:  # noqa: BLE001, S112 - what the library cannot ask for so has no build
            continue
        splits = builder.info.splits
        if splits and os.path.isdir(builder.cache_dir):
            rows = sum(split.num_examples for split in splits.values())
            yield Built(str(builder.cache_dir), call, rows, builder.info.download_size)
