"""The `bench` command: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from uc_stage.cli import codes, output
from uc_stage.cli.options import Debug, Json, Quiet, names, numbers
from uc_stage.cli.progress import shown
from uc_stage.model import BenchRequest

SUMMARY = "Measure how fast a dataset can be read"
EPILOG = codes.epilog(
    'uc-stage bench /Volumes/main/sales/train/orders "$DATA" --require 500MB/s', 10, 12, 13, 14, 15, 16, 20
)


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET]...", help="Exports, copies, folders or files; several are compared."),
    ] = None,
    readers: Annotated[
        str | None,
        typer.Option(
            "--readers",
            envvar="UC_STAGE_READERS",
            metavar="A,B",
            help="Of raw, arrow, hf, hf-stream, torch and files; without it, those that are installed and apply.",
        ),
    ] = None,
    batch_size: Annotated[
        str,
        typer.Option(
            "--batch-size",
            envvar="UC_STAGE_BATCH_SIZE",
            metavar="N,N",
            help="Rows of a batch; each combination of several numbers is measured.",
        ),
    ] = "256",
    workers: Annotated[
        str,
        typer.Option("--workers", envvar="UC_STAGE_WORKERS", metavar="N,N", help="Workers of the torch DataLoader."),
    ] = "0",
    prefetch: Annotated[
        str,
        typer.Option(
            "--prefetch", envvar="UC_STAGE_PREFETCH", metavar="N,N", help="Batches that each worker makes ahead."
        ),
    ] = "2",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            envvar="UC_STAGE_SECONDS",
            metavar="S",
            min=0.1,
            help="Longest time of one pass; each combination is read cold, then warm.",
        ),
    ] = 5.0,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", envvar="UC_STAGE_REPEATS", metavar="N", min=1, help="Measure each N times, for a spread."
        ),
    ] = 1,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            envvar="UC_STAGE_REQUIRE",
            metavar="RATE",
            help="Exit 20 unless the last target reaches it: 500MB/s, torch:200krows/s, stall<5% (with --step-ms).",
        ),
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(
            "--step-ms",
            envvar="UC_STAGE_STEP_MS",
            metavar="MS",
            help="Play a training whose step takes so long: GPU wait = waiting for batches / all time.",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            envvar="UC_STAGE_WORLD_SIZE",
            metavar="W",
            min=1,
            help="So many ranks of this node read at once, each its share; the slowest counts.",
        ),
    ] = None,
    stages: Annotated[
        bool | None,
        typer.Option(
            "--stages/--no-stages",
            envvar="UC_STAGE_STAGES",
            help="Measure where the time goes, and the limits; by default without --readers and --require.",
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option("--save", envvar="UC_STAGE_SAVE", metavar="FILE", help="Keep the result, as JSON."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            envvar="UC_STAGE_COMPARE",
            metavar="FILE",
            help="Show a kept result beside this one; without TARGET, beside the last FILE; repeatable.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            envvar="UC_STAGE_BASELINE",
            metavar="FILE",
            help="Exit 20 where it is slower than this kept result, by more than 10 % and than noise.",
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", envvar="UC_STAGE_HTML", metavar="FILE", help="Draw the result as a page."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Measures how fast a dataset can be read, by the readers that a training job uses."""
    from uc_stage import benchmark

    request = BenchRequest(
        targets=tuple(targets or ()),
        readers=names(readers, "--readers", "arrow,torch"),
        batch_sizes=numbers(batch_size, "--batch-size"),
        workers=numbers(workers, "--workers"),
        prefetch=numbers(prefetch, "--prefetch"),
        seconds=seconds,
        repeats=repeats,
        require=tuple(require or ()),
        step_ms=step_ms,
        world_size=world_size,
        stages=stages,
        save=save,
        compare=tuple(file for text in compare or () for file in names(text, "--compare") or ()),
        baseline=baseline,
        html=html,
    )
    with shown(quiet=quiet) as progress:
        report = benchmark.run(request, progress)
    return output.show("bench", report, json=json, quiet=quiet)
