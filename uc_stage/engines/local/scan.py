"""Reads one version of a Delta table: its data files' rows as batches of the table's own schema, in natural order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from uc_stage.engines.delta.deletion_vectors import deleted_rows
from uc_stage.engines.delta.partition_values import scalar_of
from uc_stage.engines.delta.schema import columns_of, mapping_mode
from uc_stage.engines.delta.table_files import damaged
from uc_stage.engines.local.ahead import ahead
from uc_stage.engines.local.data_files import Reader, Rows, is_below, open_parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.parquet as pq

    from uc_stage.engines.conditions import Condition
    from uc_stage.engines.delta.replay import DataFile, State
    from uc_stage.engines.delta.schema import Column
    from uc_stage.engines.delta.table_files import TableFiles

__all__ = ["Rows", "Table"]

# So much of decoded rows waits for whoever consumes them, whatever the size of a row group.
_BUDGET_BYTES = 32 * 1024**2
_LEAST_JOBS = 2
_MOST_JOBS = 8


class Table:
    """One version of a table, as its log tells it.

    Attributes:
        state: what the log says; its files are sorted by path.
        columns: all columns, with their names in data files.
        schema: the same as Arrow's schema, in plain types; every column and part of one is nullable.
        mapping_mode: `none`, `name` or `id`.
    """

    def __init__(self, files: TableFiles, state: State) -> None:
        import pyarrow as pa

        self._files, self.state = files, state
        self.mapping_mode = mapping_mode(state.configuration, state.features, files.table)
        self.columns = columns_of(state.schema, self.mapping_mode, files.table)
        self.schema = pa.schema([(column.name, column.type) for column in self.columns])
        self._by_name = {column.name: column for column in self.columns}
        known = {name.lower(): name for name in self._by_name}
        if unknown := [name for name in state.partition_columns if name.lower() not in known]:
            raise damaged(files.table, f"it is partitioned by `{unknown[0]}`, which is none of its columns")
        self.partition_columns = tuple(known[name.lower()] for name in state.partition_columns)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The data files, sorted by path."""
        return self.state.files

    def open(self, path: str) -> Any:
        """Opens a data file, by its path in `files`, for reading at any offset."""
        return self._files.open(path)

    def parquet(self, file: DataFile) -> pq.ParquetFile:
        """Opens a data file as Parquet, its rows compared with the log's."""
        return open_parquet(self._files, file)

    def column_bytes(self, file: DataFile, columns: Sequence[str]) -> tuple[int, int]:
        """The bytes of all columns of a data file, and of some of them; a partition column takes none."""
        physical = {self._by_name[name].physical for name in columns}
        with self.parquet(file) as opened:
            groups = [opened.metadata.row_group(index) for index in range(opened.metadata.num_row_groups)]
        chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
        chosen = [chunk for chunk in chunks if is_below(chunk.path_in_schema, physical)]
        whole, part = (sum(chunk.total_compressed_size for chunk in some) for some in (chunks, chosen))
        return whole, part

    def blocks(self, file: DataFile, size: int) -> Iterator[bytes]:
        """The bytes of a data file, so many at a time."""
        with self.open(file.path) as source:
            while True:
                with self._files.named(file.path):
                    block = source.read(size)
                if not block:
                    return
                yield block

    @property
    def rows(self) -> int | None:
        """The rows of the version, where the log tells of every file's."""
        total = 0
        for file in self.files:
            if file.num_records is None:
                return None
            total += file.num_records - (file.deletion_vector.cardinality if file.deletion_vector else 0)
        return total

    @property
    def null_counts(self) -> dict[str, int]:
        """The NULLs of each column that the log tells of for every file; none where a file has deleted rows."""
        if any(file.deletion_vector for file in self.files):
            return {}
        counts: dict[str, int] = {}
        for column in self.columns:
            told = [self._nulls(column, file) for file in self.files]
            if not column.parts and None not in told:
                counts[column.name] = sum(nulls for nulls in told if nulls is not None)
        return counts

    def _nulls(self, column: Column, file: DataFile) -> int | None:
        if column.name in self.partition_columns:
            return 0 if self._partition_value(column, file).is_valid else file.num_records
        told = (file.null_counts or {}).get(column.physical)
        return told if type(told) is int else None

    def positions(self) -> Iterator[tuple[str, int, npt.NDArray[np.int64] | None]]:
        """Of each file, its path, how many rows it holds, and the sorted positions of the deleted ones, if any."""
        for file in self.files:
            rows = file.num_records
            if rows is None:
                rows = open_parquet(self._files, file).metadata.num_rows
            yield file.path, rows, deleted_rows(self._files, file)

    def scan(self, columns: Sequence[str] | None = None, condition: Condition | None = None) -> Generator[Rows]:
        """Reads rows, file by file in the order of `files`, and in each in the order of their positions.

        Files are read ahead in threads, in bounded memory; closing the iterator ends those.

        Args:
            columns: names as in `schema`, in the order in which they are wanted; None for all.
            condition: which rows; None for all.

        Raises:
            NotFound: a file is gone. VerificationFailed: one is damaged, or holds something else than the log says.
        """
        wanted = self.schema.names if columns is None else list(columns)
        asked = list(dict.fromkeys([*wanted, *(condition.columns if condition else ())]))
        reader = Reader(self._files, [self._by_name[name] for name in asked], wanted, condition)
        jobs = min(_MOST_JOBS, max(_LEAST_JOBS, len(os.sched_getaffinity(0))))
        openers = (self._opener(reader, file) for file in self.files)
        return ahead(openers, lambda rows: int(rows.batch.nbytes) + rows.positions.nbytes, jobs, _BUDGET_BYTES)

    def _opener(self, reader: Reader, file: DataFile) -> Callable[[], list[Callable[[], Iterator[Rows]]]]:
        def opened() -> list[Callable[[], Iterator[Rows]]]:
            values = {
                column.name: self._partition_value(column, file)
                for column in reader.columns
                if column.name in self.partition_columns
            }
            return reader.parts(file, values)

        return opened

    def _partition_value(self, column: Column, file: DataFile) -> pa.Scalar:
        values = file.partition_values
        if column.physical not in values:
            raise damaged(self._files.table, f"its log has no value of `{column.name}` for `{file.path}`")
        text = values[column.physical]
        try:
            return scalar_of(text, column.type)
        except (ValueError, TypeError) as error:
            raise damaged(
                self._files.table,
                f"its log has `{text}` for `{column.name}` of `{file.path}`, which is no {column.type}",
            ) from error
