"""Where the time goes, the limits and the played training: on real files, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.shell import uc_stage as command
from tests.test_bench import Watch, big, children, is_gone
from uc_stage.benchmark import _wants_stages, stages
from uc_stage.benchmark.ceilings import read_at_once
from uc_stage.benchmark.changes import try_changes
from uc_stage.benchmark.probing import Ladder, Probe
from uc_stage.benchmark.ranks import MOST_RANKS, come, meet
from uc_stage.benchmark.sampling import Sample, take_sample
from uc_stage.cli import measuring
from uc_stage.errors import InvalidRequest
from uc_stage.model import (
    BenchReport,
    BenchRequest,
    BreakEven,
    Ceiling,
    Change,
    Measurement,
    Stage,
    Stages,
)
from uc_stage.parquet import read_metadata
from uc_stage.progress import SILENT
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from tests.fixtures.s3 import Bucket

LONG = 60.0
ROWS = 3000


def table(first: int = 0, rows: int = ROWS) -> Any:
    ids = range(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "text": [f"row {i}" for i in ids],
            "ragged": [[i] * (i % 3) for i in ids],
            "pair": [[float(i), 1.0] for i in ids],
            "hole": [None if i % 7 == 0 else i for i in ids],
        }
    )


def files(folder: Path, count: int = 2, **written: Any) -> tuple[tuple[str, int, int], ...]:
    written = {"row_group_size": 1000, "compression": "zstd", **written}
    found = []
    for index in range(count):
        path = folder / f"{index}.parquet"
        pq.write_table(table(index * ROWS), path, **written)
        found.append((str(path), path.stat().st_size, ROWS))
    return tuple(found)


def probed(held: tuple[tuple[str, int, int], ...], scratch: Path) -> Probe:
    scratch.mkdir(exist_ok=True)
    return Probe("SOURCE", held, 100, False, str(scratch))


def ids(sample: Sample) -> list[int]:
    return [value for batch in sample.batches(100) for value in batch.column("id").to_pylist()]


# The sample


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_a_sample_holds_whole_row_groups_and_every_page_of_them(tmp_path: Path, codec: str, version: str) -> None:
    held = files(tmp_path, compression=codec, data_page_version=version)

    sample = take_sample(held)
    pages = [page for piece in sample.pieces for page in piece.pages()]

    assert ids(sample) == [*range(2 * ROWS)]
    assert sample.rows == 2 * ROWS
    assert 0 < sample.bytes < sum(size for _, size, _ in held)
    for name, data, size in pages:
        assert name == {"lz4": "lz4_raw"}.get(codec, codec)
        assert len(pa.Codec(name).decompress(data, size)) == size
    footers = [read_metadata(open_folder(str(tmp_path)), os.path.basename(path)) for path, _, _ in held]
    saved = sum(
        group.column(at).total_uncompressed_size - group.column(at).total_compressed_size
        for footer in footers
        for group in (footer.row_group(number) for number in range(footer.num_row_groups))
        for at in range(group.num_columns)
    )
    # A page that its codec could not make smaller is none that is decompressed to anything.
    assert sum(size - len(data) for _, data, size in pages) >= saved
    assert bool(pages) == (codec != "none")


def test_a_sample_is_bounded_but_has_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = files(tmp_path, 9)
    monkeypatch.setattr("uc_stage.benchmark.sampling.SAMPLE_BYTES", 1)

    sample = take_sample(held)

    assert ids(sample) == [*range(1000)]
    monkeypatch.setattr("uc_stage.benchmark.sampling.SAMPLE_UNCOMPRESSED", 1)
    assert [batch.num_rows for batch in sample.decoded(100)] == [100]
    monkeypatch.undo()
    spread = take_sample(held)
    assert [Path(piece.path).name for piece in spread.pieces] == [f"{at}.parquet" for at in (0, 2, 4, 6)]
    monkeypatch.setattr("uc_stage.benchmark.sampling.SAMPLE_SECONDS", 0.0)
    assert len(take_sample(held).pieces) == 1


def test_a_sample_of_an_arrow_copy_is_its_record_batches(tmp_path: Path) -> None:
    path = str(tmp_path / "a.arrow")
    whole = table()
    with pa.ipc.new_stream(path, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=1000)

    sample = take_sample([(path, os.path.getsize(path), ROWS)])

    assert ids(sample) == [*range(ROWS)]
    assert sample.columns == whole.schema.names
    assert [batch.schema.names for batch in sample.batches(500, ["text"])] == [["text"]] * 6
    ladder = Ladder(sample, 100)
    assert set(ladder.decoding()) == {"decode"}
    assert list(try_changes(probed((), tmp_path / "s"), ladder, {"storage": 1.0, "decode": 2.0}, "decode")) == []


# In a process of its own


def test_a_bare_look_tells_of_every_stage_and_the_limits_of_a_source_and_its_copy(tmp_path: Path) -> None:
    source = str(tmp_path / "export")
    make_export(source, files=2, rows=20_000)
    copy = uc_stage.cache(source, cache_dir=str(tmp_path / "cache"), form="arrow")

    report = uc_stage.bench(source, copy, readers=["raw", "arrow"], seconds=LONG, stages=True, workers=1)

    names = [[stage.name for stage in one.stages] for one in report.stages]
    assert names == [
        ["storage", "decompression", "decode", "tensors", "collation", "transfer"],
        ["storage", "decode", "tensors", "collation", "transfer"],
    ]
    for one in report.stages:
        assert one.note is None
        assert (one.rows, one.bytes > 0) == (40_000, True)
        assert sum(stage.share or 0.0 for stage in one.stages) == pytest.approx(1)
        assert one.bottleneck in [stage.name for stage in one.stages]
        assert [change.after for change in one.changes] == sorted(
            (change.after for change in one.changes), reverse=True
        )
    first, second = report.ceilings
    assert (first.target, second.target) == (source, copy)
    assert first.decode_rows_per_second
    assert second.decode_rows_per_second is None
    assert second.limit == "storage"
    for measurement, ceiling in zip(report.measurements, [first] * 4 + [second] * 4, strict=True):
        rate, limit = (
            (measurement.bytes_per_second, ceiling.storage_bytes_per_second)
            if measurement.reader == "raw"
            else (measurement.rows_per_second, ceiling.rows_per_second)
        )
        assert measurement.limit_share == pytest.approx((rate or 0) / limit)
    [even] = report.break_even
    assert (even.source, even.copy, even.reader) == (source, copy, "arrow")


def test_a_sample_of_an_object_store_is_tried_against_the_disk_of_this_node(bucket: Bucket, tmp_path: Path) -> None:
    ((path, size, rows),) = files(tmp_path, 1)
    bucket.put("data/0.parquet", Path(path).read_bytes())
    held = ((f"{bucket.url}/data/0.parquet", size, rows),)

    sample = take_sample(held)
    tried = dict(try_changes(probed(held, tmp_path / "scratch"), Ladder(sample, 100), {"storage": 1.0}, "storage"))

    assert ids(sample) == [*range(ROWS)]
    assert read_at_once(held, 4) > 0
    assert list(tried) == ["`uc-stage cache SOURCE`: this node's disk"]


def test_a_target_that_goes_away_has_a_note(tmp_path: Path) -> None:
    gone = ((str(tmp_path / "gone"), 100, 10),)

    told, ceiling = stages.probe("TARGET", "SOURCE", gone, 100, workers=False, progress=SILENT)

    assert (told.stages, told.bottleneck, told.changes, ceiling) == ((), None, (), None)
    assert str(told.note).startswith("NotFound: ")


def measuring_does(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the process that measures the stages do something else."""
    (folder / "something_else.py").write_text(f"main = int\n{script}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(stages, "_PROBER", "something_else")


def test_what_kills_the_measuring_process_costs_what_it_had_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = files(tmp_path, 1)
    told = '{"rows": 10, "bytes": 100, "seconds": {"storage": 0.5}, "storage_bytes_per_second": 1000.0}'
    words = f"print('''{told}''', flush=True)\nprint('{{', end='', flush=True)"
    measuring_does(f"import os, signal\n{words}\nos.kill(os.getpid(), signal.SIGBUS)", tmp_path, monkeypatch)

    found, ceiling = stages.probe("TARGET", "TARGET", held, 100, workers=False, progress=SILENT)

    assert found.note == "the process that measures the stages died (SIGBUS)"
    assert [(stage.name, stage.seconds_per_million_rows, stage.share) for stage in found.stages] == [
        ("storage", 500_000.0, 1.0)
    ]
    assert ceiling is not None
    assert (ceiling.decode_rows_per_second, ceiling.limit) == (None, "storage")
    measuring_does("import time; time.sleep(60)", tmp_path, monkeypatch)
    monkeypatch.setattr(stages, "PROBE_SECONDS", 0.3)
    slow, none = stages.probe("TARGET", "TARGET", held, 100, workers=False, progress=SILENT)
    assert slow.note == "the measurement of the stages went on for 0.3 s, and was stopped"
    assert none is None


def test_nothing_is_left_running_when_the_stages_are_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = files(tmp_path, 1)
    running: list[int] = []
    ask = subprocess.Popen.communicate

    def interrupted(process: Any, *given: Any, **named: Any) -> Any:
        running.append(process.pid)
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        return ask(process, *given, **named)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    measuring_does("import time; time.sleep(60)", tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        stages.probe("TARGET", "TARGET", held, 100, workers=False, progress=SILENT)

    assert is_gone(running[0])


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, True),
        ({"stages": False}, False),
        ({"readers": ("raw",)}, False),
        ({"require": ("1B/s",)}, False),
        ({"readers": ("raw",), "stages": True}, True),
    ],
)
def test_stages_are_measured_where_a_look_at_the_whole_is_asked_for(given: dict[str, Any], asked: bool) -> None:
    assert _wants_stages(BenchRequest(("t",), **given)) is asked


# Ranks, and a played training


def test_ranks_that_read_at_once_read_every_row_once(tmp_path: Path) -> None:
    make_export(str(tmp_path / "export"), files=3)
    size = sum(entry.bytes for entry in open_folder(str(tmp_path / "export")).entries(hidden=False))

    raw, raw_warm, hf, hf_warm = uc_stage.bench(
        str(tmp_path / "export"), readers=["raw", "hf"], world_size=2, batch_size=64, seconds=LONG
    ).measurements

    for cold, warm in ((raw, raw_warm), (hf, hf_warm)):
        assert (cold.complete, warm.complete, warm.cold in (False, None)) == (True, True, True)
    assert (raw.rows, raw.bytes, hf.rows, hf.distinct_rows) == (None, size, 3000, None)
    assert "of Arrow before, in " in str(hf.note)
    assert [hf.rows_per_second] == [pytest.approx(rate) for rate in hf.rates]


def test_a_training_is_played_against_the_readers_that_give_batches(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=1, rows=1000)

    measurements = uc_stage.bench(
        str(tmp_path), readers=["arrow", "torch"], step_ms=20, world_size=2, batch_size=100, seconds=LONG
    ).measurements

    assert [one.reader for one in measurements] == ["arrow", "arrow", "torch", "torch"]
    for one in measurements:
        assert one.wait_share is not None
        assert 0 < one.wait_share < 1
        # Five batches a rank, and a step after each.
        assert one.seconds >= 0.1
        assert (one.rows, one.complete) == (1000, True)


def test_a_rank_that_dies_is_a_result_and_the_others_do_not_wait_for_it(tmp_path: Path) -> None:
    def kill_one() -> None:
        readers = [child for child in children(os.getpid()) if is_reader(child)]
        os.kill(readers[0], signal.SIGKILL)

    [measurement] = uc_stage.bench(
        big(tmp_path), readers=["arrow"], batch_size=1, seconds=1, world_size=2, progress=Watch(kill_one)
    ).measurements

    assert (measurement.failed, measurement.complete) == (True, False)
    assert "the reader's process died (SIGKILL)" in str(measurement.note)


def is_reader(pid: int) -> bool:
    return b"uc_stage.benchmark.readers" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_no_rank_is_left_running_when_bench_is_interrupted(tmp_path: Path) -> None:
    running: list[int] = []

    def interrupt() -> None:
        running.extend(child for child in children(os.getpid()) if is_reader(child))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uc_stage.bench(
            big(tmp_path), readers=["arrow"], batch_size=1, seconds=LONG, world_size=3, progress=Watch(interrupt)
        )

    assert len(running) == 3
    assert all(is_gone(pid) for pid in running)


def test_ranks_meet_before_they_read_but_do_not_wait_forever(tmp_path: Path) -> None:
    first = threading.Thread(target=meet, args=(str(tmp_path), 0, 2, LONG))
    first.start()
    first.join(0.1)
    assert first.is_alive()
    meet(str(tmp_path), 1, 2, LONG)
    first.join(10)
    assert not first.is_alive()
    meet(str(tmp_path), 0, 3, 0.05)


def test_ranks_meet_in_one_place_after_another_without_those_that_are_gone(tmp_path: Path) -> None:
    meet(str(tmp_path), 1, 3, 0.0, "seen")
    come(str(tmp_path), 2)
    first = threading.Thread(target=meet, args=(str(tmp_path), 0, 3, LONG, "over"))
    first.start()
    first.join(0.1)
    assert first.is_alive()
    meet(str(tmp_path), 1, 3, LONG, "over")
    first.join(10)
    assert not first.is_alive()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"step_ms": 0.0}, "--step-ms 0"),
        ({"step_ms": float("nan")}, "--step-ms nan"),
        ({"world_size": 0}, "--world-size 0"),
        ({"world_size": MOST_RANKS + 1}, f"--world-size {MOST_RANKS + 1}"),
    ],
)
def test_steps_and_ranks_that_no_node_has_are_refused(changed: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as raised:
        uc_stage.bench("/nonexistent", **changed)  # type: ignore[arg-type]  # one of several keywords
    assert raised.value.hint


# As a person reads it


def test_json_tells_of_waits(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=1)

    done = command("bench", tmp_path, "--readers", "raw,arrow", "--seconds", "2", "--step-ms", "1", "--json")

    raw, _, arrow, _ = done.json["data"]["measurements"]
    assert raw["wait_share"] is None
    assert 0 < arrow["wait_share"] < 1
    assert (done.json["data"]["stages"], done.json["data"]["ceilings"], done.json["data"]["break_even"]) == ([], [], [])


def test_the_table_tells_where_the_time_goes_and_what_moves_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = Measurement("/s", "arrow", 100, 1000, 2.0, 0.1, 50.0, 500.0, complete=True, limit_share=0.5)
    ceiling = Ceiling("/s", 1000.0, 100.0, 16, 200.0, 2000.0, 2, 100.0, "storage")
    told = (Stage("storage", 0.75, 0.75), Stage("decode", 0.25, 0.25), Stage("transfer", 2.0, None))
    report = BenchReport(
        (
            made,
            replace(made, reader="raw", rows_per_second=None, limit_share=0.012),
            replace(made, target="/c", limit_share=None, wait_share=0.25),
        ),
        stages=(
            Stages("/s", 100, 1000, told, "storage", (Change("`uc-stage cache /s`", 1000.0, 3000.0),)),
            Stages("/c", 0, 0, note="it died"),
        ),
        ceilings=(ceiling, replace(ceiling, target="/c", decode_rows_per_second=None)),
        break_even=(
            BreakEven("/s", "/c", "arrow", 30.0, "1 kB at a rate", 2.0, 0.5, 20.0),
            BreakEven("/s", "/c", "arrow", 0.03, "1 kB at a rate", 2.0, 0.5, 0.02),
            BreakEven("/s", "/c", "arrow", 30.0, "1 kB at a rate", 2.0, 2.5, None),
        ),
    )

    measuring.show(report, quiet=False)

    out = capsys.readouterr().out
    header, arrow, raw, *_ = (line.split() for line in out.splitlines()[1:])
    assert header[-5:] == ["GPU", "wait", "of", "limit", "read"]
    assert arrow[-3:] == ["-", "50%", "whole"]
    assert raw[-3:] == ["-", "1.2%", "whole"]
    for line in (
        (
            "  limits: storage 1.0 kB/s in 16 streams = 100 rows/s; decode 200 rows/s a processor = 400 with 2;"
            " the storage is the smaller one"
        ),
        "  limits: storage 1.0 kB/s in 16 streams = 100 rows/s; the storage is the smaller one",
        "  where the time goes, one processor, 100 rows (1.0 kB):",
        "    storage       0.750 s/Mrow   75%  ###############",
        "    transfer      2.000 s/Mrow     -    (what a worker would add)",
        "  bottleneck: storage",
        "    `uc-stage cache /s`: 1,000 -> 3,000 rows/s (3.00x)",
        "  stages: it died",
        "GPU wait: time waiting for batches / (that + time in steps), after the first (Mohan et al., PVLDB 2021)",
        (
            "`/c` has paid for itself after 20 epochs: it takes at least 30 s to make (1 kB at a rate),"
            " and an epoch takes 500 ms instead of 2.00 s (arrow)"
        ),
        (
            "`/c` has paid for itself after 1 epoch: it takes at least 30 ms to make (1 kB at a rate),"
            " and an epoch takes 500 ms instead of 2.00 s (arrow)"
        ),
        "`/c` does not pay: an epoch takes 2.50 s instead of 2.00 s (arrow)",
    ):
        assert line in out.splitlines()
