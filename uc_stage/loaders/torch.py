"""Parquet files as PyTorch tensors, batch by batch, straight from Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# A dataset must be a class of a module, so that a worker which is spawned can unpickle it.
import torch.utils.data  # noqa: TID253 - nothing imports this module but who wants torch
import torch.utils.dlpack  # noqa: TID253 - as above

from uc_stage.errors import StageError
from uc_stage.loaders.arrow import batches, share
from uc_stage.targets import look

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Batch = dict[str, Any]


class ParquetBatches(torch.utils.data.IterableDataset[Batch]):
    """The rows of an export, a copy, a folder or a file in batches, each row once an epoch for any number of workers.

    Give it to a `DataLoader` with `batch_size=None, collate_fn=as_is`. It holds paths and row counts, no data and no
    open file, so it can be pickled, and is safe in workers that are forked or spawned.

    Args:
        source: an export, a copy, a folder of Parquet or a file: a path or URL.
        batch_size: rows of a batch; where a file or a worker's share ends, a batch is shorter.
        columns: these columns only.

    Raises:
        StageError: nothing there, nothing Parquet there, or a footer that cannot be read.
    """

    def __init__(self, source: str, batch_size: int, columns: Sequence[str] | None = None) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.columns = None if columns is None else list(columns)
        target = look(source)
        self._rows: list[tuple[str, int]] = []
        for path, footer in target.footers(target.data_files()).items():
            if isinstance(footer, StageError):
                raise footer
            self._rows.append((target.folder.locate(path), footer.rows))

    @property
    def rows(self) -> int:
        """The rows of an epoch."""
        return sum(rows for _, rows in self._rows)

    def __iter__(self) -> Iterator[Batch]:
        """Yields this worker's batches: a dict of columns, as `tensors` gives them."""
        worker = torch.utils.data.get_worker_info()
        index, count = (worker.id, worker.num_workers) if worker else (0, 1)
        for batch in batches(share(self._rows, index, count), self.batch_size, self.columns):
            yield tensors(batch)


def as_is(batch: Any) -> Any:
    """The `collate_fn` for `ParquetBatches`: without one, a `DataLoader` walks through every value of every list."""
    return batch


def tensors(batch: Any) -> Batch:
    """A record batch as a dict: a tensor where one holds every value of the column, else a list of Python values.

    Numbers and booleans are tensors of their type; timestamps, dates, times and durations are integers in the
    column's unit. Strings, decimals and nested columns are lists, and so is a column with nulls, except that floats
    have NaN for null. Tensors share the batch's memory where they can: do not write to them.
    """
    return {name: _column(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _column(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())  # noqa: PLR2004 - bits
    kind = column.type
    if pa.types.is_floating(kind) and column.null_count:
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
    if column.null_count:
        return column.to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return torch.utils.dlpack.from_dlpack(column)
    if pa.types.is_boolean(kind):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False))
    return column.to_pylist()
