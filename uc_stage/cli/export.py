"""The `export` command: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from uc_stage.cli import codes, output
from uc_stage.cli.options import (
    Debug,
    DryRun,
    Force,
    Json,
    Quiet,
    Remote,
    Timestamp,
    Version,
    fraction,
    names,
    pairs,
    positive_size,
)
from uc_stage.cli.progress import shown
from uc_stage.errors import InvalidRequest
from uc_stage.model import Compression, EngineName, ExportRequest, Loader, TableRef

SUMMARY = "Write a Delta table's version as Parquet files"
EPILOG = codes.epilog("uc-stage export main.sales.orders /Volumes/main/sales/train/orders", 10, 11, 12, 13, 14, 15, 16)


def export(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="Path or URL of a Delta table, or catalog.schema.table; @vN pins a version. None with --query.",
        ),
    ],
    dest: Annotated[
        str | None, typer.Argument(metavar="DEST", help="Folder of the export: a volume, a path or a URL.")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            envvar="UC_STAGE_QUERY",
            metavar="SQL",
            help="Export what this SELECT gives, in place of TABLE; Spark alone.",
        ),
    ] = None,
    version: Version = None,
    timestamp: Timestamp = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", envvar="UC_STAGE_ENGINE", help="What reads the table.")
    ] = "auto",
    remote: Remote = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", envvar="UC_STAGE_COLUMNS", metavar="A,B", help="These columns only, in this order."),
    ] = None,
    exclude_columns: Annotated[
        str | None,
        typer.Option(
            "--exclude-columns", envvar="UC_STAGE_EXCLUDE_COLUMNS", metavar="A,B", help="All columns but these."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", envvar="UC_STAGE_WHERE", metavar="SQL", help="Rows for which this Spark SQL condition holds."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", envvar="UC_STAGE_LIMIT", metavar="N", min=0, help="At most this many rows.")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample", envvar="UC_STAGE_SAMPLE", metavar="FRACTION", help="This part of the rows, drawn by --seed."
        ),
    ] = None,
    cast: Annotated[
        list[str] | None,
        typer.Option(
            "--cast",
            envvar="UC_STAGE_CAST",
            metavar="COLUMN=TYPE",
            help="Write a column, or each top-level one of a type (decimal=float64), as another type; repeatable.",
        ),
    ] = None,
    loader: Annotated[
        Loader,
        typer.Option(
            "--for", envvar="UC_STAGE_FOR", help="Refuse columns that this loader does not take, before the write."
        ),
    ] = "any",
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split",
            envvar="UC_STAGE_SPLIT",
            metavar="NAME=FRACTION",
            help="Draw the rows into train, validation and test, by --seed; repeatable.",
        ),
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option(
            "--split-by",
            envvar="UC_STAGE_SPLIT_BY",
            metavar="COLUMN",
            help="Rows that are equal in this column stay in one split.",
        ),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", envvar="UC_STAGE_SHUFFLE", help="Write all rows in a random order, by --seed.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option("--seed", envvar="UC_STAGE_SEED", metavar="N", help="One version and one seed give one result."),
    ] = 0,
    order_by: Annotated[
        str | None,
        typer.Option(
            "--order-by",
            envvar="UC_STAGE_ORDER_BY",
            metavar="A,B",
            help="Write the rows in the order of these columns, each perhaps with DESC.",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            envvar="UC_STAGE_WORLD_SIZE",
            metavar="N",
            min=1,
            help="Ranks that will read it: the number of files is a multiple of ranks times workers.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", envvar="UC_STAGE_WORKERS", metavar="N", min=0, help="Workers of each rank's loader."),
    ] = None,
    files_per_worker: Annotated[
        int | None,
        typer.Option(
            "--files-per-worker",
            envvar="UC_STAGE_FILES_PER_WORKER",
            metavar="N",
            min=1,
            help="So many files for each worker, where --file-size shall not decide.",
        ),
    ] = None,
    equal_rows: Annotated[
        bool,
        typer.Option(
            "--equal-rows",
            envvar="UC_STAGE_EQUAL_ROWS",
            help="The same number of rows in every file, give or take one.",
        ),
    ] = False,
    drop_remainder: Annotated[
        bool,
        typer.Option(
            "--drop-remainder",
            envvar="UC_STAGE_DROP_REMAINDER",
            help="Exactly the same number: leave out the last few rows, and say how many.",
        ),
    ] = False,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is",
            envvar="UC_STAGE_AS_IS",
            help="Copy the table's files byte for byte, where they hold just its rows.",
        ),
    ] = False,
    files: Annotated[
        int | None, typer.Option("--files", envvar="UC_STAGE_FILES", metavar="N", min=1, help="Files of each split.")
    ] = None,
    file_size: Annotated[
        str | None,
        typer.Option(
            "--file-size",
            envvar="UC_STAGE_FILE_SIZE",
            metavar="SIZE",
            help="Size of a file, where --files is not given.",
        ),
    ] = None,
    row_group_size: Annotated[
        str,
        typer.Option(
            "--row-group-size",
            envvar="UC_STAGE_ROW_GROUP_SIZE",
            metavar="SIZE",
            help="Uncompressed size of a row group.",
        ),
    ] = "64MiB",
    compression: Annotated[
        Compression, typer.Option("--compression", envvar="UC_STAGE_COMPRESSION", help="Compression of the pages.")
    ] = "zstd",
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            envvar="UC_STAGE_MEMORY",
            metavar="SIZE",
            help="What a sort by the local engine gets along with; beyond it, rows go to TMPDIR and back.",
        ),
    ] = "512MiB",
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            envvar="UC_STAGE_KEEP",
            metavar="N",
            min=0,
            help="Keep the files of N earlier generations for jobs that still read them; a glob sees them too.",
        ),
    ] = 0,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Writes one version of a Delta table as Parquet files with a manifest.

    Prints DEST. An export that already holds that version with the same options, whole, is left as it is.
    """
    from uc_stage import exporting

    if query is not None:
        if dest is not None:
            raise InvalidRequest("`--query` stands in place of TABLE", hint=f"leave `{table}` out")
        table, dest = "query", table
    if dest is None:
        raise InvalidRequest("DEST is missing", hint=f"uc-stage export {table} DEST")
    request = ExportRequest(
        table=TableRef.parse(table, version, timestamp),
        dest=dest,
        query=query,
        engine=engine,
        remote=remote,
        columns=names(columns, "--columns"),
        exclude=names(exclude_columns, "--exclude-columns"),
        where=where,
        limit=limit,
        sample=None if sample is None else fraction(sample, "--sample"),
        seed=seed,
        casts=pairs(cast, "--cast", "price=float64"),
        loader=loader,
        splits=tuple((name, fraction(part, "--split")) for name, part in pairs(split, "--split", "train=0.9")),
        split_by=split_by,
        shuffle=shuffle,
        order_by=names(order_by, "--order-by") or (),
        world_size=world_size,
        workers=workers,
        files_per_worker=files_per_worker,
        equal_rows=equal_rows,
        drop_remainder=drop_remainder,
        memory=positive_size(memory, "--memory"),
        as_is=as_is,
        files=files,
        file_bytes=None if file_size is None else positive_size(file_size, "--file-size"),
        row_group_bytes=positive_size(row_group_size, "--row-group-size"),
        compression=compression,
        keep=keep,
        force=force,
    )
    with shown(quiet=quiet) as progress, exporting.prepare(request, progress) as prepared:
        if dry_run:
            return output.show("export", prepared.plan, json=json)
        report = prepared.execute(progress)
    return output.show("export", report, json=json, quiet=quiet)
