"""The command tree: options and arguments, and for each command the one function that it calls."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from uc_stage.cli import bench, codes, output
from uc_stage.cli.export import EPILOG, SUMMARY, export
from uc_stage.cli.options import CacheDir, Debug, DryRun, Force, Json, Quiet, Remote, Timestamp, Version
from uc_stage.cli.progress import shown
from uc_stage.errors import InvalidRequest
from uc_stage.model import (
    DEFAULT_CACHE_DIR,
    CacheRequest,
    CopyForm,
    Framework,
    InspectRequest,
    PruneRequest,
)
from uc_stage.ranks import parse_shard
from uc_stage.sizes import parse_age, parse_headroom, parse_size

app = typer.Typer(
    # Plain help is twice as fast as Rich's, and can be quoted in the README.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    # Typer's own completion imports pydantic at each TAB: static scripts are shipped instead.
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=False, epilog="Each command's help ends with its exit codes.")
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=output.version)
    ] = False,
) -> None:
    """Takes a Delta table to Parquet in a volume, to a verified local copy, to a measured throughput."""


app.command(short_help=SUMMARY, epilog=EPILOG)(export)


@app.command(
    short_help="Copy an export or a folder to this node's disk",
    epilog=codes.epilog("DATA=$(uc-stage cache /Volumes/main/sales/train/orders)", 10, 11, 12, 13, 14, 15, 16, 17),
)
def cache(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="An export or any folder: a volume, a path or a URL.")
    ],
    dest: Annotated[
        str | None, typer.Argument(metavar="DEST", help="Path of the copy; without it, one below the cache folder.")
    ] = None,
    cache_dir: CacheDir = DEFAULT_CACHE_DIR,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", envvar="UC_STAGE_JOBS", metavar="N", min=1, help="Reads at once.")
    ] = None,
    reserve: Annotated[
        str, typer.Option("--reserve", envvar="UC_STAGE_RESERVE", metavar="SIZE", help="Space to leave free.")
    ] = "0",
    headroom: Annotated[
        str,
        typer.Option(
            "--headroom",
            envvar="UC_STAGE_HEADROOM",
            metavar="SIZE|FACTOR",
            help="What a loader will write beside the copy: 20GB, or 1.8x its size.",
        ),
    ] = "0",
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            envvar="UC_STAGE_MAX_SIZE",
            metavar="SIZE",
            help="Most bytes of all copies in the cache folder.",
        ),
    ] = None,
    form: Annotated[
        CopyForm,
        typer.Option(
            "--as", envvar="UC_STAGE_AS", help="Write Parquet as Arrow IPC, which `datasets.load_from_disk` maps."
        ),
    ] = "files",
    pack: Annotated[
        bool,
        typer.Option("--pack", envvar="UC_STAGE_PACK", help="Pack small files into tar shards that WebDataset reads."),
    ] = False,
    pack_size: Annotated[
        str | None,
        typer.Option(
            "--pack-size",
            envvar="UC_STAGE_PACK_SIZE",
            metavar="SIZE",
            help="About how many bytes a shard has; without it, what most trainings can share evenly.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            envvar="UC_STAGE_TIMEOUT",
            metavar="SECONDS",
            min=0,
            help="Longest wait for another process's copy.",
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            "--retries", envvar="UC_STAGE_RETRIES", metavar="N", min=0, help="Further tries of a read that fails."
        ),
    ] = 4,
    read_timeout: Annotated[
        float,
        typer.Option(
            "--read-timeout",
            envvar="UC_STAGE_READ_TIMEOUT",
            metavar="SECONDS",
            min=0.1,
            help="A read that takes longer has failed.",
        ),
    ] = 60,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            envvar="UC_STAGE_INCLUDE",
            metavar="PATTERN",
            help="Copy the files that match alone; `*` crosses folders, FOLDER/ means all below it; repeatable.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            envvar="UC_STAGE_EXCLUDE",
            metavar="PATTERN",
            help="Leave out the files that match; repeatable.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            envvar="UC_STAGE_SHARD",
            metavar="RANK/WORLD",
            help="Copy this node's share of the files, whole ones, balanced by rows: 0/4; auto asks the launcher.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", envvar="UC_STAGE_CHECK", help="Print fresh, stale, partial or absent; copy and read nothing."
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", envvar="UC_STAGE_VERIFY", help="Hash a copy that is there again; with --check, only say so."
        ),
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Copies an export or a folder to this node's disk, verified, once for all its processes.

    Prints the path of the copy, which is there whole or not at all. A copy that is there already is left as it is.
    Where there is no room, the least recently used copies that no live process holds are removed.
    """
    from uc_stage import caching

    headroom_bytes, headroom_factor = parse_headroom(headroom, "--headroom")
    request = CacheRequest(
        source=source,
        dest=dest,
        cache_dir=cache_dir,
        jobs=jobs,
        reserve=parse_size(reserve, "--reserve"),
        timeout=timeout,
        retries=retries,
        read_timeout=read_timeout,
        check=check,
        verify=verify,
        force=force,
        headroom=headroom_bytes,
        headroom_factor=headroom_factor,
        max_size=None if max_size is None else parse_size(max_size, "--max-size"),
        holder="caller",
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        shard=parse_shard(shard, "--shard"),
        form=form,
        pack=pack,
        pack_size=None if pack_size is None else parse_size(pack_size, "--pack-size"),
    )
    if dry_run and not check:
        if verify:
            raise InvalidRequest("`--dry-run` reads no data", hint="`--check --verify` hashes and changes nothing")
        return output.show("cache", caching.plan(request), json=json)
    with shown(quiet=quiet) as progress:
        report = caching.run(request, progress)
    return output.show("cache", report, json=json, quiet=quiet)


@app.command(
    short_help="Show what a dataset is, and whether it is whole",
    epilog=codes.epilog("uc-stage inspect /Volumes/main/sales/train/orders --verify", 10, 12, 13, 15, 16, 20),
)
def inspect(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A table, an export, a copy, a folder or a file; a cache folder, or nothing, lists its copies.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", envvar="UC_STAGE_VERIFY", help="Read every file and compare it with its recorded hash."
        ),
    ] = False,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff",
            envvar="UC_STAGE_DIFF",
            metavar="OTHER",
            help="Tell how OTHER differs from TARGET: schema, rows, files; t@v3 --diff t@v5.",
        ),
    ] = None,
    snippet: Annotated[
        Framework | None,
        typer.Option(
            "--snippet",
            envvar="UC_STAGE_SNIPPET",
            help="Print Python that reads TARGET, with its splits and settings, and nothing else.",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            envvar="UC_STAGE_WORLD_SIZE",
            metavar="N",
            min=1,
            help="Ranks that will read it; without it, what the launcher tells.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", envvar="UC_STAGE_WORKERS", metavar="N", min=0, help="Workers of each rank's loader."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", envvar="UC_STAGE_BATCH_SIZE", metavar="N", min=1, help="Rows of a batch; without it 256."
        ),
    ] = None,
    fail_on: Annotated[
        Literal["wrong", "warn"] | None,
        typer.Option(
            "--fail-on", envvar="UC_STAGE_FAIL_ON", help="Exit 20 where a rule says something as severe, or more."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", envvar="UC_STAGE_IGNORE", metavar="RULE", help="Leave out a rule, such as UCS303; repeatable."
        ),
    ] = None,
    cache_dir: CacheDir = DEFAULT_CACHE_DIR,
    version: Version = None,
    timestamp: Timestamp = None,
    remote: Remote = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Shows what a table, an export, a copy, a folder or a file is and holds, and whether it is whole and fresh.

    Tells what it will do to a training, the worst first, and how to mend it; docs/rules.md has the rules.

    Without TARGET, lists the copies of this node: of what, how old, whether stale, who uses them, what room they leave;
    and says whether this machine can do the job, with what mends each thing that is not well.
    """
    from uc_stage import inspection

    if target is None:
        needing = (diff, snippet, version, timestamp, fail_on)
        if verify or any(given is not None for given in needing):
            raise InvalidRequest(
                "`--verify`, `--diff`, `--snippet`, `--version`, `--timestamp` and `--fail-on` need a TARGET",
                hint="name what to look at",
            )
        return output.show("inspect", inspection.look_at_node(cache_dir, remote, os.environ), json=json, quiet=quiet)
    special = verify or any(given is not None for given in (diff, snippet, version, timestamp, fail_on))
    if not special and inspection.is_cache(target):
        return output.show("inspect", inspection.list_copies(target), json=json, quiet=quiet)
    if diff is not None and snippet is not None:
        raise InvalidRequest("`--diff` and `--snippet` are two answers", hint="ask for one of them")
    if fail_on is not None and (diff is not None or snippet is not None):
        raise InvalidRequest("`--fail-on` is for what `inspect` says of TARGET alone", hint="ask for it by itself")
    request = InspectRequest(
        target=target,
        verify=verify,
        version=version,
        timestamp=timestamp,
        remote=remote,
        world_size=world_size,
        workers=workers,
        batch_size=batch_size,
        fail_on=fail_on,
        ignore=tuple(ignore or ()),
    )
    with shown(quiet=quiet) as progress:
        report: output.Report
        if diff is not None:
            report = inspection.diff(request, diff, progress)
        elif snippet is not None:
            report = inspection.write_snippet(request, snippet, progress)
        else:
            report = inspection.run(request, progress)
    return output.show("inspect", report, json=json, quiet=quiet)


@app.command(
    short_help="Remove copies from this node's disk",
    epilog=codes.epilog("uc-stage prune --older-than 7d --max-size 500GB", 10, 11, 13),
)
def prune(
    context: typer.Context,
    copies: Annotated[
        list[str] | None, typer.Argument(metavar="[COPY]...", help="Paths of copies, as `uc-stage inspect` lists them.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            envvar="UC_STAGE_OLDER_THAN",
            metavar="AGE",
            help="Remove what nobody used for so long: 12h, 7d, 2w.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            envvar="UC_STAGE_MAX_SIZE",
            metavar="SIZE",
            help="Remove the least recently used until the rest is no larger.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", envvar="UC_STAGE_SOURCE", metavar="SOURCE", help="Copies of this one only."),
    ] = None,
    cache_dir: CacheDir = DEFAULT_CACHE_DIR,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Removes copies that no live process uses, and prints their paths.

    Without a path and a condition, only what is left of runs that were killed. Nothing without uc-stage's own marker
    is ever removed.
    """
    from uc_stage import pruning

    if copies:
        # The environment's bounds are for the runs that name nothing.
        older_than = older_than if _typed(context, "older_than") else None
        max_size = max_size if _typed(context, "max_size") else None
        source = source if _typed(context, "source") else None
    request = PruneRequest(
        paths=tuple(copies or ()),
        cache_dir=cache_dir,
        older_than=None if older_than is None else parse_age(older_than, "--older-than"),
        max_size=None if max_size is None else parse_size(max_size, "--max-size"),
        source=source,
    )
    if dry_run:
        return output.show("prune", pruning.plan(request), json=json)
    with shown(quiet=quiet) as progress:
        report = pruning.run(request, progress)
    return output.show("prune", report, json=json, quiet=quiet)


app.command(short_help=bench.SUMMARY, epilog=bench.EPILOG)(bench.bench)


@app.command(
    short_help="Run the four steps on a table made for it",
    epilog=codes.epilog("uc-stage demo --size 200MB", 14, 15),
)
def demo(
    size: Annotated[
        str,
        typer.Option("--size", envvar="UC_STAGE_SIZE", metavar="SIZE", help="About how many bytes the table holds."),
    ] = "20MB",
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Makes a Delta table in a temporary folder, takes the four steps on it, and cleans up.

    Each command is shown as you would type it, followed by what it prints.
    """
    from uc_stage.cli import demo as demonstration

    return demonstration.run(parse_size(size, "--size"), quiet=quiet)


def _typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, rather than in the environment."""
    found = context.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"
