"""Decodes the data files of a Delta table into batches of the table's own columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.engines.delta.deletion_vectors import deleted_rows
from uc_stage.engines.delta.table_files import OTHER_ENGINE, damaged
from uc_stage.engines.local.arrays import boolean_array
from uc_stage.engines.local.calendars import has_times, is_ambiguous, is_marked
from uc_stage.engines.local.physical import Misfit, conversion, field_id, found
from uc_stage.errors import Unsupported, VerificationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.parquet as pq

    from uc_stage.engines.conditions import Condition
    from uc_stage.engines.delta.replay import DataFile
    from uc_stage.engines.delta.schema import Column
    from uc_stage.engines.delta.table_files import TableFiles
    from uc_stage.engines.local.physical import Convert

_BATCH_BYTES = 8 * 1024**2
_MOST_BATCH_ROWS = 65536
_PROBE_ROWS = 1024
# A row group of more decoded bytes than this is decoded column by column in parallel: few of them are ahead at a time.
_HUGE_GROUP_BYTES = 128 * 1024**2
# Column chunks are read through a buffer, or a wide row group would be in memory twice.
_BUFFER_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one data file, in the file's order.

    Attributes:
        batch: of the scan's schema.
        path: the data file's, decoded, below the table or an absolute URL.
        positions: where each row stands in the data file, from 0; int64.
    """

    batch: pa.RecordBatch
    path: str
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a column of one data file comes from: the top-level column `name` there, or a value for all rows.

    `is_old` says that it holds times, and that they may be those of another calendar.
    """

    column: Column
    name: str | None
    convert: Convert | None = None
    is_old: bool = False
    value: pa.Scalar | None = None


def open_parquet(files: TableFiles, file: DataFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Opens a data file and compares its rows with the log's.

    Raises:
        VerificationFailed: they differ, or it is no Parquet file. NotFound, AccessDenied, Unavailable.
    """
    import pyarrow.parquet as pq

    with files.named(file.path):
        opened = pq.ParquetFile(
            files.open(file.path),
            metadata=metadata,
            # An object store answers slowly, and a column chunk in one piece is one request.
            pre_buffer=not files.local,
            buffer_size=_BUFFER_BYTES if files.local else 0,
            coerce_int96_timestamp_unit="us",
        )
    rows = opened.metadata.num_rows
    if file.num_records is not None and rows != file.num_records:
        raise VerificationFailed(
            f"`{file.path}` of `{files.table}` should hold {file.num_records} rows, and holds {rows}",
            hint="the log's statistics or the data file is wrong: check the table with another reader",
        )
    return opened


class Reader:
    """Reads some columns of a table's data files, and of those the rows that a condition lets through."""

    def __init__(
        self, files: TableFiles, columns: Sequence[Column], wanted: Sequence[str], condition: Condition | None
    ) -> None:
        """Prepares for many files.

        Args:
            files: of the table.
            columns: what is wanted, and what the condition looks at.
            wanted: the names of the columns that are given.
            condition: which rows are given; None for all.
        """
        import pyarrow as pa

        self.columns = columns
        self._files, self._condition, self._wanted = files, condition, list(wanted)
        self._schema = pa.schema([(column.name, column.type) for column in columns])
        self._row_bytes = 0.0

    def parts(self, file: DataFile, values: Mapping[str, pa.Scalar]) -> list[Callable[[], Iterator[Rows]]]:
        """Opens a data file and gives what reads its row groups, in order.

        Args:
            file: as the log has it.
            values: of the partition columns, which are not looked for in the file.

        Raises:
            VerificationFailed: it is damaged, or holds something else than the log says.
        """
        opened = open_parquet(self._files, file)
        metadata = opened.metadata
        held = opened.schema_arrow
        if any(column.id is not None for column in self.columns) and all(field_id(field) is None for field in held):
            raise damaged(self._files.table, f"it maps columns by id, and `{file.path}` has no ids")
        sources = [self._source(column, held, values, file) for column in self.columns]
        deleted = deleted_rows(self._files, file)
        if deleted is not None and len(deleted) and deleted[-1] >= metadata.num_rows:
            raise damaged(self._files.table, f"row {deleted[-1]} of `{file.path}` is deleted, and it has fewer")
        parts: list[Callable[[], Iterator[Rows]]] = []
        start = 0
        for index in range(metadata.num_row_groups):
            parts.append(_Group(self, file, metadata, index, start, sources, deleted).rows)
            start += metadata.row_group(index).num_rows
        return parts

    def _source(self, column: Column, held: pa.Schema, values: Mapping[str, pa.Scalar], file: DataFile) -> _Source:
        import pyarrow as pa

        if column.name in values:
            return _Source(column, None, value=values[column.name])
        try:
            index = found(column, list(held))
            if index is None:
                return _Source(column, None, value=pa.scalar(None, column.type))
            is_old = is_marked(held.metadata) and has_times(column.type)
            return _Source(column, held.field(index).name, conversion(column, held.field(index).type), is_old)
        except Misfit as misfit:
            raise self._misfit(column, file, str(misfit)) from misfit

    def _misfit(self, column: Column, file: DataFile, why: str) -> VerificationFailed:
        return damaged(
            self._files.table, f"`{file.path}` {why} where the table's column `{column.name}` is {column.type}"
        )

    def _batch_rows(self, opened: pq.ParquetFile, index: int, names: list[str]) -> tuple[int, bool]:
        """How many rows to decode at a time, and whether a row group is so large that its columns go in parallel."""
        group = opened.metadata.row_group(index)
        leaves = (group.column(leaf) for leaf in range(group.num_columns))
        tops = set(names)
        encoded = sum(leaf.total_uncompressed_size for leaf in leaves if is_below(leaf.path_in_schema, tops))
        encoded_row = max(1.0, encoded / max(1, group.num_rows))
        if self._files.local and not self._row_bytes:
            # Of values in dictionaries, the footer does not tell how large they are once they are decoded.
            few = max(1, min(_PROBE_ROWS, int(_BATCH_BYTES / encoded_row)))
            for sample in opened.iter_batches(few, row_groups=[index], columns=names, use_threads=False):
                self._learn(sample)
                break
        row_bytes = max(self._row_bytes, encoded_row)
        size = min(_MOST_BATCH_ROWS, max(1, int(_BATCH_BYTES / row_bytes)))
        return size, row_bytes * group.num_rows > _HUGE_GROUP_BYTES

    def _learn(self, decoded: pa.RecordBatch) -> None:
        self._row_bytes = max(self._row_bytes, decoded.nbytes / max(1, decoded.num_rows))

    def _rows(self, decoded: pa.RecordBatch | None, count: int, start: int, group: _Group) -> Rows | None:
        """What of some decoded rows is wanted; None where that is none of them.

        Args:
            decoded: the file's columns; None where none is needed.
            count: the number of rows.
            start: the position of the first one.
            group: where they come from.
        """
        import numpy as np
        import pyarrow as pa

        arrays = [self._array(source, decoded, count, group.file) for source in group.sources]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema) if arrays else _no_columns(count)
        positions = np.arange(start, start + count, dtype=np.int64)
        deleted = group.deleted
        if deleted is not None:
            here = deleted[np.searchsorted(deleted, start) : np.searchsorted(deleted, start + count)]
            if len(here):
                kept = np.ones(count, dtype=bool)
                kept[here - start] = False
                batch, positions = batch.filter(boolean_array(kept)), positions[kept]
        if self._condition is not None and batch.num_rows:
            mask = self._condition(batch)
            batch, positions = batch.filter(mask), positions[mask.to_numpy(zero_copy_only=False)]
        if not batch.num_rows:
            return None
        if self._wanted != self._schema.names:
            batch = batch.select(self._wanted)
        return Rows(batch, group.file.path, positions)

    def _array(self, source: _Source, decoded: pa.RecordBatch | None, count: int, file: DataFile) -> pa.Array:
        import pyarrow as pa

        if source.name is None or decoded is None:
            return pa.repeat(source.value, count)
        array = decoded.column(decoded.schema.get_field_index(source.name))
        try:
            array = array if source.convert is None else source.convert(array)
        except (ValueError, LookupError, NotImplementedError) as error:
            raise self._misfit(source.column, file, f"has a value that is none ({error})") from error
        if source.is_old and is_ambiguous(array):
            raise Unsupported(
                f"`{file.path}` of `{self._files.table}` has dates or times in `{source.column.name}` that its writer "
                "told by the Julian calendar",
                hint=OTHER_ENGINE,
            )
        return array

    def read(self, group: _Group) -> Iterator[Rows]:
        """Decodes one row group."""
        names = list(dict.fromkeys(source.name for source in group.sources if source.name is not None))
        meta = group.metadata.row_group(group.index)
        if not names:
            for start in range(0, meta.num_rows, _MOST_BATCH_ROWS):
                count = min(_MOST_BATCH_ROWS, meta.num_rows - start)
                if (rows := self._rows(None, count, group.start + start, group)) is not None:
                    yield rows
            return
        with self._files.named(group.file.path):
            opened = open_parquet(self._files, group.file, group.metadata)
            size, is_huge = self._batch_rows(opened, group.index, names)
            batches = opened.iter_batches(size, row_groups=[group.index], columns=names, use_threads=is_huge)
        start = group.start
        while True:
            with self._files.named(group.file.path):
                decoded = next(batches, None)
            if decoded is None:
                break
            self._learn(decoded)
            rows = self._rows(decoded, decoded.num_rows, start, group)
            start += decoded.num_rows
            if rows is not None:
                yield rows
        if start - group.start != meta.num_rows:
            raise damaged(
                self._files.table,
                f"`{group.file.path}` gives {start - group.start} rows where its footer says {meta.num_rows}",
            )


@dataclass(frozen=True, slots=True)
class _Group:
    """One row group of a data file, which begins at the position `start` there."""

    reader: Reader
    file: DataFile
    metadata: pq.FileMetaData
    index: int
    start: int
    sources: Sequence[_Source]
    deleted: npt.NDArray[np.int64] | None

    def rows(self) -> Iterator[Rows]:
        """Its rows."""
        return self.reader.read(self)


def is_below(path: str, names: set[str]) -> bool:
    """Whether a leaf, whose path is dotted, belongs to one of the top-level columns, whose names may have dots."""
    return path in names or any(path.startswith(f"{name}.") for name in names)


def _no_columns(rows: int) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["_"]).select([])
