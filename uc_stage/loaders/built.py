"""What `datasets` built earlier of the files at a path, and will give again without a look at their bytes."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# `datasets` asks each file for its time, three times over.
_MOST_FILES = 2_000
_INFO = "dataset_info.json"


@dataclass(frozen=True, slots=True)
class Built:
    """One build: its folder, the call that gives it, its rows, the bytes of the files it was made of, its columns."""

    path: str
    call: str
    rows: int
    bytes: int | None
    columns: frozenset[str]


def outdated(folder: str, files: Mapping[str, int], rows: int, columns: Collection[str], cache: str) -> list[Built]:
    """The builds that `load_dataset` would give for a folder of Parquet, and that are of other files than are there.

    Its key is made of paths and times of modification: content that changed under both gives the rows of before. The
    library itself is asked for its keys, which takes a second, and only where some build could be meant.

    Args:
        folder: an absolute path.
        files: the bytes of each file, by its absolute path.
        rows: those of all files.
        columns: their names.
        cache: where `datasets` keeps its builds.
    """
    size = sum(files.values())

    def is_other(build: Built) -> bool:
        return build.rows != rows or build.bytes not in (None, size)

    names = {"parquet", os.path.basename(folder)}
    paths = (path for name in names for path in glob.iglob(f"{glob.escape(os.path.join(cache, name))}/*/*/*/{_INFO}"))
    seen = (_told(os.path.dirname(path), "") for path in paths)
    if not 0 < len(files) <= _MOST_FILES or not any(
        build is not None and is_other(build) and not build.columns.isdisjoint(columns) for build in seen
    ):
        return []
    return [build for build in _asked(folder, list(files), cache) if is_other(build)]


def _asked(folder: str, files: Sequence[str], cache: str) -> Iterator[Built]:
    try:
        import datasets
    except Exception:  # noqa: BLE001 - what a broken installation raises depends on what is broken
        return

    exact = [glob.escape(path) for path in files]
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        (f'load_dataset("{folder}")', {"path": folder}),
        (f'load_dataset("parquet", data_files="{folder}/…")', {"path": "parquet", "data_files": exact}),
        (f'load_dataset("parquet", data_dir="{folder}")', {"path": "parquet", "data_dir": folder}),
    )
    # A builder makes folders and locks where it is told that its cache is: the real one is only read.
    with tempfile.TemporaryDirectory(prefix="uc-stage-built-") as scratch:
        for call, words in calls:
            try:
                builder = datasets.load_dataset_builder(cache_dir=scratch, **words)
            except Exception:  # noqa: BLE001, S112 - what the library cannot ask for so has no build
                continue
            build = _told(os.path.join(cache, os.path.relpath(builder.cache_dir, scratch)), call)
            if build is not None:
                yield build


def _told(path: str, call: str) -> Built | None:
    """A build as the library writes it down; None where there is none."""
    try:
        with open(os.path.join(path, _INFO), encoding="utf-8") as file:
            info = json.load(file)
        rows = sum(int(split["num_examples"]) for split in info["splits"].values())
        columns = frozenset(info["features"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    size = info.get("download_size")
    return Built(path, call, rows, size if isinstance(size, int) else None, columns)
