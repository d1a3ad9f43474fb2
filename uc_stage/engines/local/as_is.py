"""Copies a table's data files into an export as they are, where they hold just the rows that the version holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.crew import each
from uc_stage.engines.local.calendars import has_times, is_marked
from uc_stage.engines.schema import fields
from uc_stage.errors import InvalidRequest
from uc_stage.parquet import FOOTER_JOBS
from uc_stage.storage import translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.parquet as pq

    from uc_stage.engines.delta.replay import DataFile
    from uc_stage.engines.local.scan import Table
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication

_BLOCK_BYTES = 4 * 1024**2
# A volume takes several streams at once, and each is bounded by its latency.
_COPY_JOBS = 8


def copyable(table: Table) -> list[DataFile]:
    """The data files that hold rows, in their order.

    Raises:
        InvalidRequest: a file holds deleted rows, lacks a column of the table or has it in another form.
        NotFound, VerificationFailed: a file is gone or damaged.
    """
    if table.mapping_mode != "none":
        raise _refused(f"the table maps its columns by {table.mapping_mode}: its files have other names for them")
    if table.partition_columns:
        raise _refused(f"the table is partitioned by `{table.partition_columns[0]}`, which its files do not hold")
    for file in table.files:
        if file.deletion_vector is not None:
            raise _refused(f"`{file.path}` holds rows that are deleted")

    def read(file: DataFile) -> bool:
        return _holds_rows(table, file)

    filled = each(read, table.files, FOOTER_JOBS)
    return [file for file, has_rows in zip(table.files, filled, strict=True) if has_rows]


def copy_files(
    table: Table, files: Sequence[DataFile], names: Sequence[str], publication: Publication, progress: Progress
) -> None:
    """Copies each file under its new name.

    Raises:
        StageError: as the table's storage or that of the export says.
    """

    def copy(pair: tuple[DataFile, str]) -> None:
        file, name = pair
        with translated(publication.folder.locate(name)), publication.create(name) as target:
            for block in table.blocks(file, _BLOCK_BYTES):
                target.write(block)
        progress.advance(file.size)

    progress.phase("write", total=sum(file.size for file in files), unit="bytes")
    each(copy, list(zip(files, names, strict=True)), _COPY_JOBS)


def _holds_rows(table: Table, file: DataFile) -> bool:
    """Whether a file has rows, once its columns are those of an export of the whole table."""
    with table.parquet(file) as opened:
        schema, metadata = opened.schema, opened.metadata
        told = [(field.name, str(field.type)) for field in schema.to_arrow_schema()]
        planned = [(field.name, field.type) for field in fields(table.schema)]
        if told != planned:
            had = dict(told)
            odd = [
                f"`{name}`, which is `{kind}` in the table, " + (f"as `{had[name]}`" if name in had else "not at all")
                for name, kind in planned
                if had.get(name) != kind
            ]
            raise _refused(f"`{file.path}` holds {', '.join(odd) or 'other columns, or the same in another order'}")
        _refuse_int96(schema, file)
        if is_marked(metadata.metadata) and any(has_times(field.type) for field in table.schema):
            raise _refused(f"`{file.path}` tells its times by the Julian calendar")
        groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        if metadata.num_rows and 0 in groups:
            raise _refused(f"`{file.path}` has a row group of no rows, which some loaders fail on")
        return bool(metadata.num_rows)


def _refuse_int96(schema: pq.ParquetSchema, file: DataFile) -> None:
    for index in range(len(schema)):
        if schema.column(index).physical_type == "INT96":
            raise _refused(f"`{file.path}` holds `{schema.column(index).path}` as INT96, a form that wraps beyond 2262")


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"`--as-is` cannot be: {why}", hint="leave `--as-is` out, to have the rows written anew")
