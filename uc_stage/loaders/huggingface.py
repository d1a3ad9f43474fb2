"""Parquet files through Hugging Face `datasets`."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def stream(files: Sequence[str]) -> Any:
    """A `datasets.IterableDataset` over exactly these files, which reads them as it goes and writes no Arrow copy."""
    import datasets

    # `datasets` takes names for patterns, and leaves out in silence what a pattern does not match: `part [1].parquet`.
    exact = [glob.escape(file) for file in files]
    return datasets.load_dataset("parquet", data_files=exact, split="train", streaming=True)
