"""Parquet files, and those of a copy as Arrow, through Hugging Face `datasets`."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

from uc_stage.errors import InvalidRequest
from uc_stage.ipc import is_stream_name
from uc_stage.loaders.files import files_of
from uc_stage.storage import LocalFolder
from uc_stage.targets import look

if TYPE_CHECKING:
    from collections.abc import Sequence


def huggingface(source: str, split: str | None = None) -> Any:
    """A `datasets.Dataset` over an export, a copy, a folder of Parquet or a file: of exactly the files that it names.

    A copy that `cache --as arrow` made is mapped into memory at once. Of Parquet, `datasets` writes the rows again as
    Arrow below `HF_DATASETS_CACHE`, about 1.8 times the bytes, and maps that: leave room with `cache --headroom 1.8x`.

    Args:
        source: a local path.
        split: of an export with several splits, the one to read; `all` for all.

    Raises:
        StageError: nothing there, nothing Parquet there, an unknown split, or a URL.
    """
    import datasets

    target = look(source)
    if not isinstance(target.folder, LocalFolder):
        raise InvalidRequest(f"`{source}` is no local path", hint=f"copy it first: uc-stage cache {source}")
    files = [target.folder.locate(path) for path in files_of(target, split)]
    if is_stream_name(files[0]):
        return mapped(files)
    exact = [glob.escape(file) for file in files]
    return datasets.load_dataset("parquet", data_files=exact, split="train")


def mapped(files: Sequence[str]) -> Any:
    """A `datasets.Dataset` over exactly these Arrow files, which it maps into memory, as `load_from_disk` does."""
    import datasets

    return datasets.concatenate_datasets([datasets.Dataset.from_file(file) for file in files])


def stream(files: Sequence[str]) -> Any:
    """A `datasets.IterableDataset` over exactly these files, which reads them as it goes and writes no Arrow copy."""
    import datasets

    kind = "arrow" if is_stream_name(files[0]) else "parquet"
    # `datasets` takes names for patterns, and leaves out in silence what a pattern does not match: `part [1].parquet`.
    exact = [glob.escape(file) for file in files]
    return datasets.load_dataset(kind, data_files=exact, split="train", streaming=True)
