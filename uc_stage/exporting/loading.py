"""`load`: the rows of a small table in memory, by the same engines and in the same types as an export."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage import storage
from uc_stage.engines.selection import NATURAL
from uc_stage.errors import InvalidRequest, NoSpace, Unavailable, VerificationFailed
from uc_stage.exporting import choose_engine, open_engine
from uc_stage.exporting.planning import check_flags
from uc_stage.loaders.arrays import no_value
from uc_stage.progress import SILENT
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    import pyarrow as pa

    from uc_stage.engines import Engine
    from uc_stage.model import ExportRequest, Snapshot, Source
    from uc_stage.progress import Progress

# So many rows tell how many bytes one has in memory.
_FEW = 4096
# `to_pandas` and `to_numpy` copy what they cannot share.
_SHARE = 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of one version of a table, in memory.

    Attributes:
        table: a `pyarrow.Table` in an export's types: timestamps in microseconds, all columns nullable.
        source: the version that it holds, and what was asked of it.
        engine: which one read it; `engine_reason` says why that one.
    """

    table: pa.Table
    source: Source
    engine: str
    engine_reason: str

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a `pandas.DataFrame`, as pyarrow makes it, but for integers with NULL.

        Those have pandas' own nullable type (`Int64`), and within lists, maps and structs they are Python's: as
        floating-point numbers, large ones would be others.

        Raises:
            Unavailable: pandas is not installed. Unsupported: a value that Python has none for.
        """
        return _frame(self.table)

    def to_numpy(self, nulls: str | Mapping[str, Any] = "nan") -> dict[str, Any]:
        """The columns as NumPy arrays by name: lists of one length as one of two axes, timestamps as int64.

        Args:
            nulls: what NULL among numbers is, as `uc_stage.loaders.arrays` has it: `nan`, `error`, `object` or a
                mapping from columns to values.

        Raises:
            Unsupported: a NULL that is not allowed for, or a value that Python has none for.
            InvalidRequest: a value that the column's type does not hold.
        """
        from uc_stage.loaders.arrays import arrays

        return arrays(self.table, nulls)


def load(request: ExportRequest, memory: int | None = None, progress: Progress = SILENT) -> Loaded:
    """Reads the rows of a request, which has no `dest`, into memory.

    Args:
        request: the table, and which rows and columns of it.
        memory: bytes that the rows may take; None for half of what can be had here.
        progress: who is told of progress.

    Raises:
        NoSpace: they would take more.
        StageError: as of an export.
    """
    check_flags(request)
    if memory is not None and memory < 1:
        raise InvalidRequest(f"`memory={memory}` is no number of bytes", hint="give 1 or more, or leave it out")
    most = storage.memory().available // _SHARE if memory is None else memory
    name, reason = choose_engine(request)
    engine = open_engine(name, request.remote)
    try:
        progress.phase("resolve")
        snapshot = engine.resolve(request)
        table = _read(engine, request, snapshot, most, progress)
    finally:
        engine.close()
    return Loaded(table, snapshot.source, name, reason)


def _read(engine: Engine, request: ExportRequest, snapshot: Snapshot, most: int, progress: Progress) -> pa.Table:
    import pyarrow as pa

    with closing(engine.read(request, snapshot, few=_FEW)) as batches:
        look = pa.Table.from_batches(batches)
    rows = snapshot.rows
    if rows is None and look.num_rows < _FEW:
        rows = look.num_rows
    if rows is None:
        progress.phase("count")
        rows = sum(engine.count(snapshot, NATURAL).values())
    estimate = rows * look.nbytes // max(1, look.num_rows)
    if estimate > most:
        raise _too_large(request, snapshot, f"{rows:,} rows of about {format_size(estimate)}", most)
    progress.phase("read", total=rows, unit="rows")
    held, size = [], 0
    with closing(engine.read(request, snapshot)) as batches:
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            progress.advance(batch.num_rows)
            if size > most:
                raise _too_large(request, snapshot, f"{rows:,} rows of more than {format_size(size)}", most)
    table = pa.Table.from_batches(held)
    if table.num_rows != rows:
        source = snapshot.source
        raise VerificationFailed(
            f"`{source.table}` version {source.version} holds {rows} rows of this, and {table.num_rows} came",
            hint="load it again; if it stays, check the table with another reader",
        )
    return table


def _too_large(request: ExportRequest, snapshot: Snapshot, what: str, most: int) -> NoSpace:
    source = snapshot.source
    named = f"--query '{request.query}'" if request.query is not None else request.table.text
    return NoSpace(
        f"`{source.table}` version {source.version} would be {what} in memory, and they may take {format_size(most)}",
        hint=f"export it, and read it in batches: uc-stage export {named} DEST; or load fewer columns or rows, "
        "or give `memory=`",
    )


def _frame(table: pa.Table) -> pd.DataFrame:
    import pyarrow.types as is_a

    try:
        import pandas as pd
    except ImportError as error:
        raise Unavailable(f"`to_pandas` needs pandas ({error})", hint="pip install pandas") from error
    with_null = {
        index: column
        for index, column in enumerate(table.columns)
        if is_a.is_integer(column.type) and column.null_count
    }
    filled = table
    for index, column in with_null.items():
        filled = filled.set_column(index, table.schema.field(index), column.fill_null(0))
    frame: pd.DataFrame = _converted(filled)
    for index, column in with_null.items():
        dtype = {1: pd.Int8Dtype, 2: pd.Int16Dtype, 4: pd.Int32Dtype, 8: pd.Int64Dtype}[column.type.byte_width]()
        frame[table.schema.names[index]] = dtype.__from_arrow__(column)
    return frame


def _converted(table: pa.Table) -> pd.DataFrame:
    try:
        return table.to_pandas(integer_object_nulls=True)
    except (ValueError, OverflowError):
        for name in table.schema.names:
            try:
                table.select([name]).to_pandas(integer_object_nulls=True)
            except (ValueError, OverflowError) as error:  # noqa: PERF203 - each by itself, to name the one
                raise no_value(name, error) from error
        raise
