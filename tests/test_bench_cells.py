"""What `bench` measures of each cell, in this process where one pass is meant and in its own where a process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.shell import uc_stage as command
from tests.test_bench import LONG, Watch, big, children, is_gone, reader_process
from uc_stage.benchmark import cells, keys, pages, process, readers, recipes, usage
from uc_stage.benchmark.jobs import Job, State
from uc_stage.benchmark.keys import Keys, column_for
from uc_stage.benchmark.outcome import measurements
from uc_stage.errors import InvalidRequest, NoSpace
from uc_stage.model import BenchRequest
from uc_stage.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def parquet(folder: Path, tables: dict[str, pa.Table]) -> tuple[tuple[str, int, int], ...]:
    """Puts tables there, and gives the files as a job has them."""
    found = []
    for name, table in tables.items():
        pq.write_table(table, folder / name)
        found.append((str(folder / name), os.path.getsize(folder / name), table.num_rows))
    return tuple(found)


def passes(job: Job) -> dict[int, State]:
    """What each pass of a job told last, read in this process."""
    told: dict[int, State] = {}

    def tell(state: State) -> None:
        told[state.number] = state

    readers.run(job, tell)
    return told


# The grid


def test_a_reader_is_measured_over_what_it_has() -> None:
    request = BenchRequest(("t",), batch_sizes=(1, 2), workers=(0, 3), prefetch=(2, 4))

    assert [cells.grid(reader, request) for reader in ("raw", "arrow")] == [
        [cells.Cell("raw")],
        [cells.Cell("arrow", 1), cells.Cell("arrow", 2)],
    ]
    for reader in ("hf", "hf-stream", "torch", "files"):
        assert [(cell.batch_size, cell.workers, cell.prefetch) for cell in cells.grid(reader, request)] == [
            (1, 0, 0), (1, 3, 2), (1, 3, 4), (2, 0, 0), (2, 3, 2), (2, 3, 4)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "seconds", "repeats", "said"),
    [
        (1, 5.0, 1, "1 cell, cold and warm: 15 s at most"),
        (12, 5.0, 1, "12 cells, each cold and warm: 3 min at most"),
        (1000, 1.0, 3, "1,000 cells, each cold and warm, 3 times: 3.1 h at most"),
    ],
)
def test_the_time_of_a_grid_is_told_beforehand(count: int, seconds: float, repeats: int, said: str) -> None:
    assert cells.announce(count, BenchRequest(("t",), seconds=seconds, repeats=repeats)) == said


def test_a_grid_that_takes_longer_than_a_day_is_refused(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=1, rows=1)

    with pytest.raises(InvalidRequest, match=r"can take 27\.8 h"):
        uc_stage.bench(str(tmp_path), readers=["arrow"], batch_size=range(1, 1001), seconds=47.5)


def test_each_combination_is_measured_and_shown_with_what_it_was(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=1, rows=2000)
    words = ["bench", tmp_path, "--readers", "raw,arrow", "--batch-size", "10,100", "--repeats", "3", "--seconds", "2"]

    told = command(*words, "--json", "--save", tmp_path.parent / "kept.json")
    human = command("bench", "--compare", tmp_path.parent / "kept.json")

    found = told.json["data"]["measurements"]
    assert [(one["reader"], one["batch_size"]) for one in found[::2]] == [("raw", 0), ("arrow", 10), ("arrow", 100)]
    assert [len(one["rates"]) for one in found] == [3] * 6
    for one in found:
        unit = "bytes_per_second" if one["reader"] == "raw" else "rows_per_second"
        assert one[unit] == pytest.approx(sorted(one["rates"])[1])
    assert told.json["data"]["named"] == ["arrow", "raw"]
    assert "3 cells, each cold and warm, 3 times: 51 s at most" in told.err
    assert {"batch", "spread", "cache"} <= set(human.out.splitlines()[2].split())
    assert "workers" not in human.out
    assert "fastest" in human.out
    for wrong, named in ((["--workers", "two"], "two"), (["--batch-size", "1,,2"], "--batch-size")):
        done = command("bench", tmp_path, *wrong)
        assert (done.code, named in done.err) == (2, True)


# Cold and warm


def test_a_cold_pass_begins_without_pages_and_a_warm_one_with_those_that_the_cold_one_read(tmp_path: Path) -> None:
    files = parquet(tmp_path, {"a.parquet": pa.table({"id": np.random.default_rng(1).integers(0, 2**60, 400_000)})})
    path = files[0][0]
    pages.drop([path])
    if pages.share_present([path]) != 0:
        pytest.skip("this file system keeps its pages")

    first, second = passes(Job("raw", path, files, 0, 0, LONG)).values()

    assert (first.warm, first.cold, second.warm, second.cold) == (False, True, True, False)
    assert first.bytes == second.bytes == files[0][1]
    assert (first.notes, second.notes) == ((), ())
    assert pages.share_present([path]) == 1
    with open(path, "rb") as file:
        pages.drop([path])
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(4096)
    assert 0 < (pages.share_present([path]) or 0) < 0.5


def test_pages_that_stay_are_told(tmp_path: Path) -> None:
    files = parquet(tmp_path, {"a.parquet": pa.table({"id": range(100_000)})})
    with open(files[0][0], "rb") as file:
        import mmap

        # Pages that a process maps are not dropped.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert sum(mapped[::4096]) >= 0
            first, second = passes(Job("raw", str(tmp_path), files, 0, 0, LONG)).values()

    assert (first.cold, second.cold) == (None, False)
    assert "of the pages could not be dropped" in first.notes[0]


def test_a_warm_pass_goes_no_further_than_the_cold_one(tmp_path: Path) -> None:
    first, second = passes(
        Job("arrow", big(tmp_path), ((f"{tmp_path}/big.parquet", 1, 400_000),), 1, 0, 0.1, str(tmp_path))
    ).values()

    assert first.rows < 400_000
    assert not first.ended
    assert second.rows <= first.rows
    assert second.ended is False


def test_what_the_kernel_does_not_say_is_not_told_as_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = parquet(tmp_path, {"a.parquet": pa.table({"id": range(10)})})
    # Of a file of somebody else that one may only read, all pages are said to be there.
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(files[0][0]).st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_: False)

    first, second = passes(Job("raw", str(tmp_path), files, 0, 0, LONG)).values()

    assert (first.cold, second.cold) == (None, None)
    assert first.notes == ("the kernel does not say which pages are in memory",)
    assert pages.share_present(["s3://bucket/a", str(tmp_path / "none")]) is None
    assert pages.share_present([str(tmp_path / "none")]) is None
    # One that went away is told by whoever reads it.
    monkeypatch.undo()
    assert pages.share_present([files[0][0], str(tmp_path / "none")]) == pages.share_present([files[0][0]])


# Rows that come twice


class Whole(torch.utils.data.IterableDataset[dict[str, Any]]):
    """A dataset as many are written: it does not ask which worker it is in."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in pq.ParquetFile(self._path).iter_batches(100, use_threads=False):
            yield {
                name: torch.from_numpy(values.to_numpy().copy()) for name, values in zip(("id",), batch, strict=False)
            }


def test_rows_that_every_worker_gives_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = parquet(tmp_path, {"a.parquet": pa.table({"id": range(1000)})})

    def unshared(job: Job) -> readers.Steps:
        for batch in torch.utils.data.DataLoader(Whole(job.files[0][0]), None, num_workers=job.workers):
            yield len(batch["id"]), 0, batch

    monkeypatch.setitem(readers._READERS, "torch", unshared)
    monkeypatch.setattr(readers, "_warm_up", lambda _: None)
    job = Job("torch", str(tmp_path), files, 100, 2, LONG, prefetch=2)
    told = passes(job)
    assert [state.error for state in told.values()] == [None, None]

    first, _ = measurements(job, 10, told, {}, "")

    assert (first.rows, first.distinct_rows, first.failed) == (2000, 1000, True)
    assert "an epoch gave 2000 rows of 1000" in str(first.note)
    assert "1,000 rows came more often than the data holds them, told apart by `id`" in str(first.note)


def test_values_that_the_data_holds_more_than_once_are_no_rows_that_came_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a frame that is written in parts, whose index begins at 0 in each.
    table = pa.table({"index": range(100), "word": pa.array(["a", "b"] * 50).dictionary_encode()})
    files = parquet(tmp_path, {"a.parquet": table, "b.parquet": table})

    def surplus(column: str, batches: list[Any]) -> int | None:
        keys = Keys(column, files)
        for batch in batches:
            keys.add(batch, len(batch[column]))
        return keys.surplus(LONG)

    once = torch.arange(100)
    assert column_for(files) == "index"
    assert surplus("index", [{"index": once}, {"index": once}]) == 0
    assert surplus("index", [{"index": once}, {"index": once}, {"index": once[:30]}]) == 30
    assert surplus("word", [{"word": ["a"] * 60}, {"word": ["a"] * 45 + ["b"]}]) == 5
    assert surplus("index", [{"index": [1, 2, None]}, {"index": ["x"]}]) is None
    # Values without end are not kept: what came behind them is not told apart.
    monkeypatch.setattr(keys, "MOST_BYTES", 100)
    many = Keys("index", files)
    for _ in range(3):
        many.add({"index": once}, 100)
    assert (many.rows, many.surplus(LONG)) == (100, 0)
    late = Keys("index", files)
    late.add({"index": torch.tensor([1, 1, 1])}, 3)
    assert late.surplus(-1.0) is None
    numbers = Keys("number", ())
    numbers.add({"number": [1, 2, 2]}, 3)
    assert numbers.surplus(LONG) == 1
    nothing = Keys(None, files)
    nothing.add({"index": once}, 100)
    assert nothing.surplus(LONG) is None


def test_the_column_that_tells_most_rows_apart_is_taken(tmp_path: Path) -> None:
    rows = 300
    halves = pa.array([index / 2 for index in range(rows)])
    texts = pa.array([f"row {index}" for index in range(rows)])
    gaps = pa.array([None, *range(1, rows)])
    columns = {"label": pa.array([index % 3 for index in range(rows)]), "gaps": gaps, "half": halves, "text": texts}

    for left_out, taken in (
        ([], "text"),
        (["text"], "half"),
        (["text", "half"], "label"),
        (list(columns)[::2], "text"),
    ):
        table = pa.table({name: column for name, column in columns.items() if name not in left_out})
        assert column_for(parquet(tmp_path, {"a.parquet": table})) == taken
    assert column_for(parquet(tmp_path, {"a.parquet": pa.table({"pair": [[1, 2]]})})) is None


# Hugging Face's recipes


def test_columns_that_the_recipe_cannot_take_are_left_out_and_lists_of_other_lengths_stay_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    rows = 20
    table = pa.table(
        {
            "id": range(rows),
            "time": pa.array(range(rows), pa.timestamp("us")),
            "words": [["a"] * (index % 3) for index in range(rows)],
            "ragged": [[1.0] * (index % 3) for index in range(rows)],
        }
    )
    files = parquet(tmp_path, {"part [1].parquet": table})
    job = Job("hf-stream", str(tmp_path), files, 8, 0, LONG, str(tmp_path))

    batches = list(recipes.stream(job))

    assert [list(batch) for batch in batches] == [["id", "words", "ragged"]] * 3
    assert batches[0]["id"].tolist() == list(range(8))
    assert [len(value) for value in batches[0]["ragged"]] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [state.rows for state in passes(job).values()] == [rows, rows]


def test_no_more_is_built_than_fits_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {f"{name}.parquet": pa.table({"id": range(1000)}) for name in "abc"}
    files = parquet(tmp_path, tables)
    monkeypatch.setattr(recipes, "_PROBE_BYTES", 800)
    # What a build takes of one row, and of a hundred: a row takes a millisecond.
    monkeypatch.setattr(recipes, "_probe", lambda _, rows: (0.5 + rows / 1000, 8 * rows))

    def built(seconds: float, name: str) -> tuple[Job, str]:
        (tmp_path / name).mkdir()
        job = Job("hf", str(tmp_path), files, 100, 0, seconds, str(tmp_path / name), row_bytes=8)
        return recipes.build(job)

    job, note = built(3.0, "two")
    assert job.files == files[:2]
    assert "of Arrow of the first 2,000 of 3,000 rows, which fit the time and the room, before" in note
    assert recipes.build(Job("hf", str(tmp_path), files, 5, 2, 3.0, str(tmp_path / "two")))[1] == note
    assert built(9.0, "all")[0].files == files
    first, _ = built(0.9, "some")
    assert [(rows, path.startswith(str(tmp_path / "some"))) for path, _, rows in first.files] == [(403, True)]
    assert sum(len(batch["id"]) for batch in recipes.map_style(first)) == 403
    state = State(400, 0, 1.0, 0.1, ended=True, expected=400)
    [partly] = measurements(Job("hf", "t", files, 100, 0, 0.9), 30, {0: state}, {}, "")
    assert (partly.complete, partly.failed, partly.rows) == (False, False, 400)


def test_hf_is_left_out_where_its_copy_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uc_stage import benchmark
    from uc_stage.storage import Space

    make_export(str(tmp_path / "export"), files=1)
    monkeypatch.setattr(benchmark, "space_at", lambda _: Space(1000, 1, 1, in_memory=False))
    monkeypatch.setattr(benchmark, "measure", lambda job, *_: [*measurements(job, 1, {}, {}, "not read")])

    report = uc_stage.bench(str(tmp_path / "export"), stages=False)

    assert [one.reader for one in report.measurements] == ["raw", "arrow", "hf-stream", "torch"]
    assert "has no room: 1.0 kB are free" in report.skipped["hf"]
    with pytest.raises(NoSpace, match="`hf` writes an Arrow copy"):
        uc_stage.bench(str(tmp_path / "export"), readers=["hf"])


# What a process takes, and processes that go wrong


def test_processor_time_and_memory_are_those_of_the_workers_too() -> None:
    code = "import sys; data = b'x' * 50_000_000; n = sum(range(3_000_000)); print(flush=True); sys.stdin.read()"
    before = usage.cpu_seconds()
    # Below a shell: this process may have other children, and larger ones.
    words = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        shell.stdout.readline()
        alive = usage.cpu_seconds() - before
        [worker] = usage.descendants(shell.pid)
        sizes = [usage.largest(shell.pid), usage.largest(worker)]
        assert {shell.pid, worker} <= set(usage.descendants(os.getpid()))
        shell.communicate(timeout=60)
    assert 0.01 < alive <= usage.cpu_seconds() - before + 0.02
    assert all(size is not None and 50_000_000 < size < 250_000_000 for size in sizes)
    assert usage.largest(2**22 + 1) is None


def test_a_worker_that_hangs_is_a_result_with_what_was_read_and_the_next_cell_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 1.0)
    stopped: list[int] = []

    def stop_the_worker() -> None:
        stopped.append(reader_process())
        for child in children(stopped[0]):
            os.kill(child, signal.SIGSTOP)

    class Twice(Watch):
        def note(self, message: str) -> None:
            assert message.startswith("2 cells")

    report = uc_stage.bench(
        big(tmp_path), readers=["torch"], batch_size=[1, 4096], workers=1, seconds=2.0, progress=Twice(stop_the_worker)
    )

    hung, *others = report.measurements
    assert (hung.failed, hung.workers, hung.batch_size) == (True, 1, 1)
    assert "was stopped" in str(hung.note)
    assert hung.rows
    assert [(one.batch_size, one.failed) for one in others] == [(4096, False)] * 2
    assert all(one.worker_bytes for one in others)
    assert is_gone(stopped[0])


def test_what_a_library_raised_is_told_of_a_reader_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's workers pass memory on by sockets, whose paths a kernel limits to 107 bytes: one thread raises, all wait.
    scratch = tmp_path / ("long" * 25)
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(process, "GRACE_SECONDS", 2.0)
    parquet(tmp_path, {"a.parquet": pa.table({"id": range(1000)})})

    [hung] = uc_stage.bench(str(tmp_path), readers=["hf-stream"], workers=1, seconds=0.5).measurements

    assert "was stopped: OSError: AF_UNIX path too long: name a shorter folder in `TMPDIR`" in str(hung.note)


def test_a_worker_s_memory_is_looked_at_while_it_reads_and_what_counts_afterwards_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reader that tells often, takes memory late in a pass, and more when all is read.
    (tmp_path / "growing.py").write_text(GROWING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(process, "_READER", "growing")
    monkeypatch.setattr(process, "GRACE_SECONDS", 1.7)

    [one] = process.measure(Job("arrow", "t", (("a.parquet", 10, 10),), 4, 0, 0.5, str(tmp_path)), 10, SILENT)

    assert (one.failed, one.note) == (False, None)
    assert one.worker_bytes is not None
    assert 100_000_000 < one.worker_bytes < 200_000_000


# It reads and counts for longer than a pass and its grace take, but for each less.
GROWING = """
import dataclasses, json, sys, time
from uc_stage.benchmark.jobs import State

def main():
    sys.stdin.read()
    state = State(rows=1, seconds=0.1, first=0.1)
    def tell():
        print(json.dumps(dataclasses.asdict(state)), flush=True)
    tell()
    held = b""
    for number in range(30):
        time.sleep(0.05)
        state.seconds += 0.05
        if number == 5:
            held = b"x" * 100_000_000
        tell()
    state.read = True
    tell()
    held = b"x" * 300_000_000
    time.sleep(1.5)
    state.done = state.final = True
    state.rows, state.ended = 10, True
    tell()
"""


def test_a_reader_that_was_named_and_fails_is_no_success(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:24] = b"\xff" * 20
    (tmp_path / "a.parquet").write_bytes(data)
    began = time.monotonic()

    done = command("bench", tmp_path, "--readers", "raw,arrow", "--seconds", "0.2", "--json")

    assert (done.code, done.json["status"]) == (12, "failed")
    assert "the reader `arrow` failed on" in done.json["errors"][0]["message"]
    assert time.monotonic() - began < 120


def test_a_reader_that_nobody_named_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uc_stage.cli import measuring

    job = Job("hf", str(tmp_path), (("a.parquet", 10, 10),), 4, 0, 1.0)
    well = [*measurements(job, 10, {0: State(10, 0, 1.0, 0.1, ended=True)}, {}, "")]
    ill = [*measurements(job, 10, {0: State(3, 0, 1.0, 0.1, ended=True)}, {}, "")]
    from uc_stage.model import BenchReport

    assert measuring.unread(BenchReport((*well, *ill))) is None
    assert measuring.unread(BenchReport(tuple(well), named=("hf",))) is None
    assert measuring.unread(BenchReport((*well, *ill), named=("hf",))) is not None
    assert measuring.unread(BenchReport(tuple(ill))) is not None


def test_a_repeat_that_fails_is_what_is_told_and_the_others_rates_are_kept() -> None:
    job = Job("arrow", "t", (("a.parquet", 10, 10),), 4, 0, 1.0)
    states = {number: State(10, 0, 1.0 + number, 0.1, ended=True, number=number) for number in (0, 2, 4)}
    [median] = measurements(job, 10, states, {2: 7}, "")
    assert (median.seconds, median.rates, median.worker_bytes) == (3.0, (10.0, 10 / 3, 2.0), 7)
    [broken] = measurements(job, 10, {**states, 6: State(1, number=6)}, {}, "the reader's process died (SIGKILL)")
    assert (broken.failed, broken.rows, len(broken.rates)) == (True, 1, 3)
    [short] = measurements(Job("raw", "t", job.files, 0, 0, 1.0), 10, {0: State(0, 9, 1.0, ended=True)}, {}, "")
    assert (short.failed, short.note) == (True, "9 bytes of 10")


def test_rows_are_distinct_where_all_were_told_apart() -> None:
    job = Job("arrow", "t", (("a.parquet", 10, 10),), 4, 0, 1.0)

    for told_apart, distinct in ((10, 10), (9, None)):
        state = State(10, 0, 1.0, 0.1, ended=True, surplus=0, told_apart=told_apart)
        assert [one.distinct_rows for one in measurements(job, 10, {0: state}, {}, "")] == [distinct]


def test_a_mapped_file_is_read_as_a_whole(tmp_path: Path) -> None:
    # Two files of the same layout, which may lie in the same place one after the other.
    rows = 4_000_000
    batch = pa.record_batch({"id": np.random.default_rng(1).integers(0, 2**60, rows)})
    files = []
    for name in "ab":
        path = str(tmp_path / f"{name}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        files.append((path, os.path.getsize(path), rows))
    paths = [path for path, _, _ in files]
    pages.drop(paths)
    if pages.share_present(paths) != 0:
        pytest.skip("this file system keeps its pages")

    for _ in readers._arrow(Job("arrow", str(tmp_path), tuple(files), 100_000, 0, LONG)):
        pass

    assert (pages.share_present(paths) or 0) > 0.95


def test_two_ranges_that_overlap_are_within_noise() -> None:
    job = Job("arrow", "t", (("a.parquet", 10, 10),), 4, 0, 1.0)

    def over(*seconds: float) -> Any:
        states = {2 * n: State(10, 0, each, 0.1, ended=True, number=2 * n) for n, each in enumerate(seconds)}
        [found] = measurements(job, 10, states, {}, "")
        return found

    assert over(1.0, 2.0).differs_from(over(1.5, 3.0)) is False
    assert over(1.0, 2.0).differs_from(over(2.5, 3.0)) is True
    assert over(1.0).differs_from(over(2.5, 3.0)) is None
