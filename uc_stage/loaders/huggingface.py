"""Parquet files, and those of a copy as Arrow, through Hugging Face `datasets`."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def mapped(files: Sequence[str]) -> Any:
    """A `datasets.Dataset` over exactly these Arrow files, which it maps into memory, as `load_from_disk` does."""
    import datasets

    return datasets.concatenate_datasets([datasets.Dataset.from_file(file) for file in files])


def stream(files: Sequence[str]) -> Any:
    """A `datasets.IterableDataset` over exactly these files, which reads them as it goes and writes no Arrow copy."""
    import datasets

    # `datasets` takes names for patterns, and leaves out in silence what a pattern does not match: `part [1].parquet`.
    exact = [glob.escape(file) for file in files]
    return datasets.load_dataset("parquet", data_files=exact, split="train", streaming=True)
