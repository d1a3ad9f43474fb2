"""The copy of many files by many threads, each file checked before it is handed over for its name."""

from __future__ import annotations

from uc_stage.transfer.checking import hash_files, is_parquet
from uc_stage.transfer.moving import DEFAULT_JOBS, Sink, copy_files
from uc_stage.transfer.ranges import RANGE_BYTES, split

__all__ = ["DEFAULT_JOBS", "RANGE_BYTES", "Sink", "copy_files", "hash_files", "is_parquet", "split"]
