"""`uc-stage demo`: makes a Delta table and takes the four steps on it by real commands, in a temporary folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import typer

from uc_stage.cli.text import duration
from uc_stage.errors import from_os_error
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_BYTES = 150
_VECTOR = 16
_COMMITS = 3


def run(target_bytes: int, *, quiet: bool) -> int:
    """Makes a table of about `target_bytes` bytes, runs the four commands on it, and removes everything.

    Ends with the exit code of the first command that fails.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="uc-stage-demo-") as folder:
        table, volume, cache = f"{folder}/table", f"{folder}/volume", f"{folder}/nvme"
        rows = max(target_bytes // _ROW_BYTES, 100)
        _say(f"making a Delta table of about {format_size(target_bytes)} in {table}", quiet=quiet)
        try:
            make_table(table, rows)
        except OSError as error:
            raise from_os_error(error, table) from error
        said = run_step(["export", table, f"{volume}/events", "--files", "8"], quiet=quiet)
        copy = run_step(["cache", said, "--cache-dir", cache], quiet=quiet)
        run_step(["inspect", copy, "--verify"], quiet=quiet)
        run_step(["bench", said, copy, "--seconds", "1"], quiet=quiet)
    _say(f"\ndone in {duration(time.monotonic() - started)}; {folder} is removed", quiet=quiet)
    return 0


def make_table(path: str, rows: int) -> None:
    """Makes a Delta table of `rows` rows before a deletion: five commits, a partition column, nested and time columns.

    Versions 0 to 2 append, version 3 deletes every row whose label is 0, version 4 appends a last part.
    """
    from deltalake import DeltaTable, write_deltalake

    part = rows // (_COMMITS + 1)
    for commit in range(_COMMITS):
        write_deltalake(path, _rows(commit * part, part), partition_by=["country"], mode="append")
    DeltaTable(path).delete("label = 0")
    write_deltalake(path, _rows(_COMMITS * part, rows - _COMMITS * part), mode="append")


def _rows(first: int, count: int) -> pa.Table:
    """Rows `first` to `first + count` of the sample, the same at each call."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.array(range(first, first + count), pa.int64())
    noise = pc.random(count, initializer=first)
    vectors = pc.cast(pc.random(count * _VECTOR, initializer=first + 1), pa.float32())
    label = pc.cast(pc.floor(pc.multiply(noise, 10)), pa.int32())
    countries = pa.array(["DE", "FR", "JP", "US"])
    country = countries.take(pc.cast(pc.floor(pc.multiply(pc.random(count, initializer=first + 2), 4)), pa.int64()))
    words = pa.array(["cold", "new", "old", "red", "slow", "warm"])
    first_word = words.take(pc.cast(pc.floor(pc.multiply(noise, 6)), pa.int64()))
    text = pc.binary_join_element_wise(first_word, pc.cast(ids, pa.string()), " item ")
    micros = pc.add(pc.multiply(ids, 1_000_000), 1_767_225_600_000_000)
    return pa.table(
        {
            "id": ids,
            "label": label,
            "features": pa.ListArray.from_arrays(range(0, count * _VECTOR + 1, _VECTOR), vectors),
            "price": pc.multiply(noise, 100),
            "text": text,
            "origin": pa.StructArray.from_arrays([first_word, noise], ["word", "score"]),
            "created": pc.cast(micros, pa.timestamp("us", "UTC")),
            "country": country,
        }
    )


def run_step(arguments: list[str], *, quiet: bool) -> str:
    """Runs one command of uc-stage, showing it and what it prints; gives its answer, or ends with its exit code."""
    if not quiet:
        print(f"\n$ {shlex.join(['uc-stage', *arguments])}", flush=True)
    words = [sys.executable, "-m", "uc_stage", *arguments, *(["--quiet"] if quiet else [])]
    # What the user has set for their own runs, such as UC_STAGE_JSON, would make another demo of this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UC_STAGE_")}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, env=environment)  # noqa: S603 - our own
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise typer.Exit(done.returncode)
    return done.stdout.strip()


def _say(message: str, *, quiet: bool) -> None:
    if not quiet:
        print(message, file=sys.stderr, flush=True)
