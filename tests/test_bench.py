from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.exports import make_export
from uc_stage.benchmark import process
from uc_stage.errors import InvalidRequest, NotFound, Unavailable, Unsupported, VerificationFailed
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from tests.fixtures.volume import Volume
    from uc_stage.model import BenchReport, Measurement

ODD = os.path.join(os.path.dirname(__file__), "data", "parquet")
LONG = 60.0


def only(report: BenchReport) -> Measurement:
    """The first measurement of the only cell, which is the cold one; the warm one follows, where that went well."""
    measurement, *warm = report.measurements
    assert len(warm) == (0 if measurement.failed else 1)
    assert [(each.reader, each.target, each.failed) for each in warm] == [
        (measurement.reader, measurement.target, False) for _ in warm
    ]
    return measurement


def cold(report: BenchReport) -> list[Measurement]:
    """The first measurement of each cell."""
    found: dict[tuple[object, ...], Measurement] = {}
    for each in report.measurements:
        found.setdefault((each.target, each.reader, each.batch_size, each.workers, each.prefetch), each)
    return list(found.values())


def big(folder: Path) -> str:
    """More rows than any reader passes in an instant, of lists that are slow to convert."""
    rows = 400_000
    pairs = pa.ListArray.from_arrays(pa.array(range(0, 4 * rows + 1, 4), pa.int32()), pa.array(range(4 * rows)))
    pq.write_table(pa.table({"id": range(rows), "pair": pairs}), folder / "big.parquet", row_group_size=20_000)
    return str(folder)


class Watch:
    """Does one thing when the first progress of a reader comes."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then: Callable[[], None] | None = then
        self._reading = False

    def phase(self, name: str, **_: object) -> None:
        self._reading = name.startswith(("raw ", "arrow ", "hf ", "hf-stream ", "torch "))

    def advance(self, amount: int) -> None:
        if self._reading and amount and self._then:
            then, self._then = self._then, None
            then()

    def note(self, message: str) -> None:
        assert message.startswith("1 cell, cold and warm: ")


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/stat", encoding="ascii"):
        pass
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            found += [int(child) for child in file.read().split()]
    return found


def reader_process() -> int:
    """The one process of this one that reads for `bench`."""

    def command(pid: int) -> bytes:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()

    [found] = [child for child in children(os.getpid()) if b"uc_stage.benchmark.readers" in command(child)]
    return found


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    return not os.path.exists(f"/proc/{pid}")


def test_every_reader_passes_over_every_row_once_and_leaves_no_trace(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # A worker's sockets lie there, whose paths have 107 bytes at most (unix(7)).
    home, scratch = tmp_path / "home", tmp_path_factory.mktemp("s")
    home.mkdir()
    for name in ("HOME", "HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    make_export(str(tmp_path / "export"), files=3, rows=1000)
    size = sum(entry.bytes for entry in open_folder(str(tmp_path / "export")).entries(hidden=False))

    report = uc_stage.bench(str(tmp_path / "export"), batch_size=64, workers=2, seconds=LONG, stages=False)

    readers = ["raw", "arrow", "hf", "hf-stream", "torch"]
    assert [measurement.reader for measurement in report.measurements] == [name for name in readers for _ in range(2)]
    assert report.skipped == {}
    assert report.named == ()
    for measurement in report.measurements:
        assert measurement.complete
        assert measurement.bytes == size
        assert measurement.bytes_per_second == pytest.approx(size / measurement.seconds)
        assert measurement.first_batch_seconds is not None
        assert 0 < measurement.first_batch_seconds <= measurement.seconds
        assert len(measurement.rates) == 1
        assert measurement.cpu_seconds is not None
    raw, *others = cold(report)
    assert (raw.rows, raw.rows_per_second, raw.distinct_rows) == (None, None, None)
    assert (raw.batch_size, raw.workers, raw.prefetch, raw.batch_p50_seconds) == (0, 0, 0, None)
    assert [(each.rows, each.distinct_rows) for each in others] == [(3000, 3000)] * 4
    assert [(each.batch_size, each.workers, each.prefetch) for each in others] == [(64, 0, 0), *[(64, 2, 2)] * 3]
    for each in others:
        assert each.batch_p50_seconds is not None
        assert each.batch_p99_seconds is not None
        assert 0 < each.batch_p50_seconds <= each.batch_p99_seconds
    assert "of Arrow before, in " in str(others[1].note)
    assert 'load_dataset(streaming=True).with_format("torch") in a DataLoader' in str(others[2].note)
    assert list(home.rglob("*")) == []
    assert list(scratch.rglob("*")) == []
    assert capfd.readouterr() == ("", "")


def test_targets_are_measured_side_by_side_in_order(tmp_path: Path) -> None:
    make_export(str(tmp_path / "export"), files=2)
    copy = uc_stage.cache(str(tmp_path / "export"), cache_dir=str(tmp_path / "cache"))
    pq.write_table(pa.table({"id": range(7)}), tmp_path / "one")
    targets = [copy, str(tmp_path / "one")]

    report = uc_stage.bench(*targets, readers=["arrow", "raw", "arrow"], seconds=LONG)

    assert [(each.target, each.reader, each.rows) for each in cold(report)] == [
        (targets[0], "arrow", 2000),
        (targets[0], "raw", None),
        (targets[1], "arrow", 7),
        (targets[1], "raw", None),
    ]
    assert [measurement.note for measurement in report.measurements if not measurement.complete] == []


def test_only_the_files_of_the_manifest_are_read(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=1)
    pq.write_table(pa.table({"id": range(50)}), tmp_path / "train-00000-of-00001-v9-0a1b2c.parquet")

    assert only(uc_stage.bench(str(tmp_path), readers=["arrow"], seconds=LONG)).rows == 1000


def test_a_reader_stops_when_its_time_is_over(tmp_path: Path) -> None:
    measurement = only(uc_stage.bench(big(tmp_path), readers=["arrow"], batch_size=1, seconds=0.3))

    assert measurement.complete is False
    assert measurement.rows
    assert 0 < measurement.rows < 400_000
    assert measurement.bytes == os.path.getsize(tmp_path / "big.parquet") * measurement.rows // 400_000
    assert measurement.seconds >= 0.3
    assert measurement.note is None


def test_a_reader_that_fails_on_the_data_is_a_result_and_the_others_go_on(tmp_path: Path) -> None:
    maps = pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"map": maps}), tmp_path / "a.parquet")

    hf, arrow = cold(uc_stage.bench(str(tmp_path), readers=["hf-stream", "arrow"], seconds=LONG))

    assert (hf.rows_per_second, hf.bytes_per_second, hf.complete) == (None, 0.0, False)
    assert "map<string, int64" in str(hf.note)
    assert (arrow.rows, arrow.complete) == (2, True)


def test_a_page_that_does_not_decode_is_a_result(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:24] = b"\xff" * 20
    (tmp_path / "a.parquet").write_bytes(data)

    raw, arrow = cold(uc_stage.bench(str(tmp_path), readers=["raw", "arrow"], seconds=LONG))

    assert raw.complete
    assert not arrow.complete
    assert "OSError" in str(arrow.note)


def test_a_reader_that_dies_is_a_result(tmp_path: Path) -> None:
    watch = Watch(lambda: os.kill(reader_process(), signal.SIGKILL))

    measurement = only(uc_stage.bench(big(tmp_path), readers=["arrow"], batch_size=1, seconds=LONG, progress=watch))

    assert measurement.complete is False
    assert measurement.rows
    assert str(measurement.note).startswith("the reader's process died (SIGKILL)")


def test_a_torch_worker_that_dies_is_a_result(tmp_path: Path) -> None:
    def kill_a_worker() -> None:
        workers = [child for child in children(reader_process()) if children(child) == []]
        os.kill(workers[0], signal.SIGKILL)

    measurement = only(
        uc_stage.bench(
            big(tmp_path), readers=["torch"], batch_size=1, workers=1, seconds=LONG, progress=Watch(kill_a_worker)
        )
    )

    assert measurement.complete is False
    assert measurement.note  # torch tells of it in one of several ways


def test_a_reader_that_hangs_is_stopped_with_what_it_had_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    stopped: list[int] = []

    def stop() -> None:
        stopped.append(reader_process())
        os.kill(stopped[0], signal.SIGSTOP)

    measurement = only(
        uc_stage.bench(big(tmp_path), readers=["arrow"], batch_size=1, seconds=2.0, progress=Watch(stop))
    )

    assert "was stopped" in str(measurement.note)
    assert measurement.rows
    assert is_gone(stopped[0])


def test_a_reader_that_does_not_start_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_export(str(tmp_path), files=1)
    monkeypatch.setattr(process, "START_SECONDS", 0.0)

    measurement = only(uc_stage.bench(str(tmp_path), readers=["arrow"]))

    assert measurement.note == "the reader did not start, and was stopped"
    assert (measurement.seconds, measurement.bytes_per_second, measurement.first_batch_seconds) == (0.0, 0.0, None)


def test_a_reader_that_cannot_start_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_export(str(tmp_path), files=1)
    broken = tmp_path / "broken"
    (broken / "uc_stage").mkdir(parents=True)
    (broken / "uc_stage" / "__init__.py").write_text("import os\nos.write(2, b'no licence\\n')\nos._exit(3)\n")
    monkeypatch.syspath_prepend(str(broken))

    measurement = only(uc_stage.bench(str(tmp_path), readers=["arrow"]))

    assert measurement.note == "the reader's process died (exit 3): no licence"


def test_nothing_is_left_running_when_bench_is_interrupted(tmp_path: Path) -> None:
    running: list[int] = []

    def interrupt() -> None:
        running.append(reader_process())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uc_stage.bench(big(tmp_path), readers=["arrow"], batch_size=1, seconds=LONG, progress=Watch(interrupt))

    assert is_gone(running[0])


def test_the_readers_process_imports_what_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_export(str(tmp_path / "export"), files=1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyarrow.py").write_text("raise SystemExit('a file of the user was imported')")

    assert only(uc_stage.bench("export", readers=["arrow"], seconds=LONG)).complete


def test_bench_reads_through_a_mount_and_from_an_object_store(volume: Volume, bucket: Bucket) -> None:
    make_export(os.path.join(volume.backing, "export"), files=2)
    for entry in open_folder(os.path.join(volume.backing, "export")).entries():
        with open(os.path.join(volume.backing, "export", entry.path), "rb") as file:
            bucket.put(f"export/{entry.path}", file.read())

    report = uc_stage.bench(
        os.path.join(volume.mount, "export"), f"{bucket.url}/export", readers=["raw", "arrow"], seconds=LONG
    )

    assert [measurement.note for measurement in report.measurements if not measurement.complete] == []
    assert [measurement.rows for measurement in report.measurements] == [None, None, 2000, 2000, None, 2000]
    # Of a URL nothing is kept here, so that nothing can be read from memory.
    assert [measurement.cold for measurement in report.measurements[4:]] == [None, None]


# Requirements


def test_a_requirement_is_judged_on_the_last_target_by_the_fastest_reader_that_is_not_raw(tmp_path: Path) -> None:
    make_export(str(tmp_path / "one"), files=1, rows=10)
    make_export(str(tmp_path / "two"), files=1, rows=1000)
    targets = [str(tmp_path / "one"), str(tmp_path / "two")]
    wants = ["1B/s", "1rows/s", "900TB/s", "raw:1B/s", "arrow:900Grows/s"]

    report = uc_stage.bench(*targets, readers=["raw", "arrow"], seconds=LONG, require=wants)

    raw, _, arrow, _ = report.measurements[4:]
    assert [(each.text, each.met, each.reader, each.unit) for each in report.requirements] == [
        ("1B/s", True, "arrow", "bytes/s"),
        ("1rows/s", True, "arrow", "rows/s"),
        ("900TB/s", False, "arrow", "bytes/s"),
        ("raw:1B/s", True, "raw", "bytes/s"),
        ("arrow:900Grows/s", False, "arrow", "rows/s"),
    ]
    assert [each.measured for each in report.requirements] == [
        arrow.bytes_per_second,
        arrow.rows_per_second,
        arrow.bytes_per_second,
        raw.bytes_per_second,
        arrow.rows_per_second,
    ]
    assert report.met is False


def test_raw_answers_a_requirement_in_bytes_where_it_is_alone(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=1)

    report = uc_stage.bench(str(tmp_path), readers=["raw"], seconds=LONG, require=["1B/s"])

    assert (report.requirements[0].reader, report.met) == ("raw", True)


def test_a_reader_that_failed_meets_no_requirement(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:24] = b"\xff" * 20
    (tmp_path / "a.parquet").write_bytes(data)

    report = uc_stage.bench(str(tmp_path), readers=["arrow"], seconds=LONG, require=["1rows/s"])

    assert (report.requirements[0].met, report.requirements[0].measured) == (False, 0.0)


@pytest.mark.parametrize(
    ("readers", "require", "words"),
    [
        (["arow"], [], "unknown reader `arow`"),
        (None, ["arow:5MB/s"], "unknown reader `arow`"),
        (None, ["fast"], "not a throughput"),
        (["raw"], ["5rows/s"], "counts no rows"),
        (None, ["raw:5rows/s"], "counts no rows"),
        (["raw"], ["arrow:5MB/s"], "is not measured"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_is_read(
    readers: list[str] | None, require: list[str], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        uc_stage.bench("/nonexistent", readers=readers, require=require)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch_size": 0}, "--batch-size 0"),
        ({"workers": [0, -1]}, "--workers -1"),
        ({"workers": []}, "--workers` names no number"),
        ({"prefetch": 0}, "--prefetch 0"),
        ({"repeats": 0}, "--repeats 0"),
        ({"batch_size": (64, 64)}, "names one number twice"),
        ({"seconds": 0.0}, "--seconds 0"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        uc_stage.bench("/nonexistent", **changed)  # type: ignore[arg-type]  # one of several keywords


def test_without_a_target_there_is_nothing_to_do() -> None:
    with pytest.raises(InvalidRequest, match="no TARGET"):
        uc_stage.bench()


# Libraries that are not there


def test_a_reader_without_its_library_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_export(str(tmp_path), files=1, rows=10)
    for package in ("datasets", "torch"):
        monkeypatch.setitem(sys.modules, package, None)

    report = uc_stage.bench(str(tmp_path), seconds=LONG, stages=False)

    assert [measurement.reader for measurement in cold(report)] == ["raw", "arrow"]
    assert report.skipped == {
        "hf": "`datasets` is not installed: pip install 'uc-stage[hf,torch]'",
        "hf-stream": "`datasets` is not installed: pip install 'uc-stage[hf,torch]'",
        "torch": "`torch` is not installed: pip install 'uc-stage[torch]'",
        "files": "`torch` is not installed: pip install 'uc-stage[torch]'",
    }


@pytest.mark.parametrize(("readers", "require"), [(["hf"], []), (None, ["hf:5MB/s"])])
def test_a_reader_that_is_named_must_have_its_library(
    readers: list[str] | None, require: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(Unavailable, match="`datasets`") as raised:
        uc_stage.bench("/nonexistent", readers=readers, require=require)

    assert raised.value.hint == "pip install 'uc-stage[hf,torch]'"


# Targets that cannot be measured


def test_a_delta_table_is_refused_with_a_pointer_to_export(tmp_path: Path) -> None:
    path = str(tmp_path / "lake" / "orders")
    deltalake.write_deltalake(path, pa.table({"id": [1]}))

    for target in (path, str(tmp_path / "lake")):
        with pytest.raises(InvalidRequest, match="is a Delta table") as raised:
            uc_stage.bench(target)
        assert raised.value.hint == f"export it first: uc-stage export {path} DEST"


def test_a_target_without_parquet_or_rows_or_whole_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_text("text")
    with pytest.raises(NotFound, match="holds no Parquet file"):
        uc_stage.bench(str(tmp_path))
    with pytest.raises(VerificationFailed, match=r"a\.bin"):
        uc_stage.bench(str(tmp_path / "a.bin"))
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(NotFound, match="holds no rows"):
        uc_stage.bench(str(tmp_path))
    with pytest.raises(Unsupported, match="is encrypted"):
        uc_stage.bench(os.path.join(ODD, "encrypted.parquet"))
    with pytest.raises(NotFound, match="is not there"):
        uc_stage.bench(str(tmp_path / "none"))


def test_an_export_with_a_missing_file_is_refused_with_the_file_named(tmp_path: Path) -> None:
    manifest = make_export(str(tmp_path), files=2)
    os.unlink(tmp_path / manifest.files[0].path)

    with pytest.raises(NotFound, match=manifest.files[0].path):
        uc_stage.bench(str(tmp_path))
