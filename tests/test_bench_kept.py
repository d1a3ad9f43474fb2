"""What becomes of a report of bench: kept, compared, judged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.results import COPY, MACHINE, SOURCE, full, keep, measurement, report
from tests.fixtures.shell import uc_stage as command
from uc_stage import benchmark
from uc_stage.benchmark import beside, keeping, reports
from uc_stage.errors import AccessDenied, InvalidRequest, NotFound, Unsupported
from uc_stage.model import BenchRequest, ComparedCell, Comparison

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from uc_stage.model import BenchReport

LONG = 60.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("export") / "orders")
    make_export(path, files=2, rows=500)
    return path


@pytest.fixture(scope="module")
def measured(target: str) -> BenchReport:
    return uc_stage.bench(target, readers=["raw", "arrow"])


def times(kept: BenchReport, factor: float) -> BenchReport:
    """A report of what was so many times as fast."""
    found = [
        replace(
            one,
            rates=tuple(factor * rate for rate in one.rates),
            rows_per_second=one.rows_per_second and factor * one.rows_per_second,
            bytes_per_second=factor * one.bytes_per_second,
        )
        for one in kept.measurements
    ]
    return replace(kept, measurements=tuple(found))


def here(**changed: Any) -> BenchReport:
    """A kept report of this machine."""
    return replace(report(measurement("arrow", 1000.0)), machine=reports.machine(), **changed)


def cells(comparison: Comparison) -> list[tuple[str, str]]:
    return [(cell.reader, cell.verdict) for cell in comparison.cells]


# Kept results


def test_a_kept_result_is_what_json_prints_and_both_can_be_read(target: str, tmp_path: Path) -> None:
    saved = tmp_path / "new" / "a.json"
    done = command("bench", target, "--readers", "raw,arrow", "--seconds", "5", "--save", saved, "--json")
    kept, printed = json.loads(saved.read_bytes()), done.json

    assert done.code == 0, done.err
    assert kept == {name: printed[name] for name in ("schema_version", "command", "data")}
    assert {"at", "machine", "targets", "measurements"} <= kept["data"].keys()
    assert kept["data"]["targets"][0]["generation"]
    assert kept["data"]["machine"]["cpus"] >= 1
    assert os.uname().nodename not in json.dumps(kept["data"]["machine"])
    (tmp_path / "printed.json").write_text(done.out)
    assert keeping.read(str(tmp_path / "printed.json"), "--compare") == keeping.read(str(saved), "--compare")
    assert [entry.name for entry in saved.parent.iterdir()] == ["a.json"]


def test_a_report_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    kept = full()
    odd = replace(kept, measurements=(replace(kept.measurements[0], target="caf\udce9\n<b>"), *kept.measurements[1:]))

    assert keeping.read(keep(tmp_path / "a.json", odd), "--compare") == odd


def test_what_a_later_version_adds_is_left_out_and_what_an_earlier_lacks_has_its_default(tmp_path: Path) -> None:
    kept = json.loads(keeping.record(here()))
    kept["data"]["colour"] = kept["data"]["measurements"][0]["colour"] = "blue"
    del kept["data"]["comparisons"], kept["data"]["measurements"][0]["rates"]
    (tmp_path / "a.json").write_text(json.dumps(kept))

    assert keeping.read(str(tmp_path / "a.json"), "--compare") == here()


@pytest.mark.parametrize("flag", ["save", "html", "compare", "baseline"])
def test_what_is_no_file_is_refused_before_anything_is_measured(target: str, tmp_path: Path, flag: str) -> None:
    os.mkfifo(tmp_path / "pipe")

    for name in ("pipe", "."):
        given: Any = {flag: [str(tmp_path / name)] if flag == "compare" else str(tmp_path / name)}
        with pytest.raises(InvalidRequest, match=f"`--{flag} .*` is no file"):
            uc_stage.bench(target, **given)
    assert (tmp_path / "pipe").is_fifo()


def test_a_result_of_another_training_is_no_baseline_and_beside_it_nothing_is_compared(
    target: str, tmp_path: Path
) -> None:
    kept = here()
    file = keep(tmp_path / "a.json", kept)

    for asked, named in (({"step_ms": 5.0}, "--step-ms` none then, 5 now"), ({"world_size": 2}, "1 then, 2 now")):
        with pytest.raises(InvalidRequest, match=named):
            uc_stage.bench(target, baseline=file, **asked)
    played = beside.compare("a.json", replace(kept, step_ms=5.0), kept, baseline=False)
    assert "`--step-ms` 5 then, none now" in played.notes
    assert not played.judged
    alone = replace(kept, step_ms=5.0)
    with pytest.raises(InvalidRequest, match="--step-ms` none then, 5 now"):
        uc_stage.bench(compare=[keep(tmp_path / "b.json", alone)], baseline=file)


def test_passes_are_compared_by_their_turn_whatever_the_pages_were(tmp_path: Path) -> None:
    def passes(*rates: float, cold: tuple[bool | None, bool | None]) -> BenchReport:
        first, second = (replace(measurement("arrow", rate), cold=seen) for rate, seen in zip(rates, cold, strict=True))
        return report(first, replace(second, warm=True))

    kept = passes(1000.0, 5000.0, cold=(True, None))

    for cold in ((None, False), (True, False), (None, None)):
        now = beside.compare("a.json", kept, passes(500.0, 5000.0, cold=cold), baseline=True)
        assert [(cell.warm, cell.factor, cell.regressed) for cell in now.cells] == [
            (False, 0.5, True),
            (True, 1, False),
        ]


def test_a_table_that_nobody_reads_any_more_is_no_bug(tmp_path: Path) -> None:
    file = keep(tmp_path / "a.json", here())
    read, write = os.pipe()
    os.close(read)
    try:
        words = [sys.executable, "-m", "uc_stage", "bench", "--compare", file]
        done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_only_a_kept_result_or_nothing_is_replaced(target: str, tmp_path: Path) -> None:
    mine = tmp_path / "a.json"
    mine.write_bytes(b"")
    uc_stage.bench(target, readers=["raw"], seconds=LONG, save=str(mine))
    first = mine.read_bytes()
    uc_stage.bench(target, readers=["arrow"], seconds=LONG, save=str(mine))
    assert mine.read_bytes() != first

    for content in (b"{}", b'{"command": "bench"}', b"text", b"\x00\xff", b"[" * 100_000):
        mine.write_bytes(content)
        with pytest.raises(InvalidRequest, match="is no kept result of bench") as raised:
            uc_stage.bench("/nonexistent", save=str(mine))
        assert raised.value.hint == "move it away, or name another file"
        assert mine.read_bytes() == content


def test_what_cannot_be_written_is_refused_before_anything_is_measured(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(InvalidRequest, match="is no folder"):
        uc_stage.bench(target, save=str(tmp_path / "file" / "a.json"))
    with pytest.raises(InvalidRequest, match="is empty"):
        uc_stage.bench(target, html=" ")
    for two in ({"save": "x", "html": "./x"}, {"save": "x", "baseline": f"{os.getcwd()}/x"}):
        with pytest.raises(InvalidRequest, match="name the same file"):
            uc_stage.bench(target, **two)  # type: ignore[arg-type]  # some of the keywords
    with pytest.raises(AccessDenied, match=r"nothing can be written in `/proc`: "):
        uc_stage.bench(target, save="/proc/new/a.json")


def test_results_are_kept_and_read_behind_a_url(target: str, bucket: Bucket) -> None:
    url = f"{bucket.url}/results/a.json"
    uc_stage.bench(target, readers=["arrow"], seconds=LONG, save=url)

    again = uc_stage.bench(target, readers=["arrow"], seconds=LONG, save=url, compare=url)

    assert again.comparisons[0].judged


@pytest.mark.parametrize("flag", ["compare", "baseline"])
def test_what_is_no_kept_result_is_refused_before_anything_is_measured(flag: str, tmp_path: Path) -> None:
    good = json.loads(keeping.record(here()))

    def refuse(content: bytes | None, kind: type[Exception], words: str) -> None:
        path = tmp_path / "kept.json"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(kind, match=words):
            uc_stage.bench("/nonexistent", **{flag: str(path)})  # type: ignore[arg-type]  # one of two keywords

    def changed(**data: Any) -> bytes:
        return json.dumps({**good, "data": {**good["data"], **data}}).encode()

    one = good["data"]["measurements"][0]
    refuse(None, NotFound, "kept.json")
    refuse(b"", InvalidRequest, "is no kept result of bench")
    refuse(b'{"command": "cache", "schema_version": 1}', InvalidRequest, "is no kept result of bench")
    refuse(keeping.record(here())[:-40], InvalidRequest, "is no kept result of bench")
    refuse(json.dumps({**good, "schema_version": 2}).encode(), Unsupported, "has the format 2")
    refuse(json.dumps({**good, "data": None}).encode(), InvalidRequest, "is damaged")
    refuse(changed(measurements=[]), InvalidRequest, "holds no measurement")
    refuse(changed(measurements=[{}]), InvalidRequest, "is damaged")
    for wrong in (
        {"rates": [float("nan")]},
        {"rows": "many"},
        {"seconds": 10**400},
        {"reader": ["\x1b[2J"]},
        {"cold": 1},
    ):
        refuse(changed(measurements=[{**one, **wrong}]), InvalidRequest, "is damaged")
    refuse(changed(requirements=[{**asdict(full().requirements[0]), "unit": "miles"}]), InvalidRequest, "is damaged")
    with open(tmp_path / "kept.json", "wb") as file:
        file.truncate(keeping._MOST_BYTES + 1)
    with pytest.raises(InvalidRequest, match="is no kept result of bench"):
        uc_stage.bench("/nonexistent", **{flag: str(tmp_path / "kept.json")})  # type: ignore[arg-type]  # see above


# Comparisons


def test_a_kept_result_stands_beside_the_run_cell_by_cell(target: str, measured: BenchReport, tmp_path: Path) -> None:
    old = times(measured, 0.5)
    gone = [replace(one, reader="hf") for one in old.measurements if one.reader == "arrow"]
    arrow = [one for one in old.measurements if one.reader == "arrow"]
    kept = keep(tmp_path / "a.json", replace(old, measurements=(*arrow, *gone), machine=MACHINE))
    words = ["bench", target, "--readers", "raw,arrow", "--compare", kept]

    machine, human = command(*words, "--json"), command(*words)

    [comparison] = machine.json["data"]["comparisons"]
    now = [one for one in machine.json["data"]["measurements"] if one["reader"] == "arrow"]
    found = [cell for cell in comparison["cells"] if cell["reader"] == "arrow"]
    for cell, before, after in zip(found, arrow, now, strict=True):
        rates = (cell["kept_rows_per_second"], cell["rows_per_second"])
        assert rates == (before.rows_per_second, after["rows_per_second"])
        assert cell["factor"] == rates[1] / rates[0]
    absent = {
        (cell["reader"], cell["kept_bytes_per_second"] is None) for cell in comparison["cells"] if not cell["factor"]
    }
    assert absent == {("raw", True), ("hf", False)}
    assert (human.code, machine.code) == (0, 0)
    lines = human.out[human.out.index("beside ") :].splitlines()
    assert lines[0] == f"beside {kept}, measured {old.at}"
    verdicts = [line.split(maxsplit=1) for line in lines[2:] if line.startswith("  ")]
    assert all(rest.rstrip().endswith("only now") for reader, rest in verdicts if reader == "raw")
    assert all(rest.rstrip().endswith("only then") for reader, rest in verdicts if reader == "hf")
    assert any("another processor: EPYC 7763 then" in line for line in lines)


def test_kept_results_are_compared_alone_without_a_target(tmp_path: Path) -> None:
    one = keep(tmp_path / "a.json", report(measurement("torch", 100.0, workers=2), measurement("torch", 50.0)))
    two = keep(tmp_path / "b.json", report(measurement("torch", 150.0, workers=2), requirements=full().requirements))

    listed = command("bench", "--compare", f"{one},{two}")
    repeated = command("bench", "--compare", one, "--compare", two, "--json")

    assert (listed.code, repeated.code) == (0, 0)
    assert listed.out.startswith(f"kept in {two}, measured 2026-11-30T12:00:00+00:00\n{COPY}\n")
    assert "1.50x    faster, noise unknown" in listed.out
    data = repeated.json["data"]
    assert (data["kept_in"], data["requirements"]) == (two, [])
    assert [(cell["workers"], cell["factor"]) for cell in data["comparisons"][0]["cells"]] == [(2, 1.5), (0, None)]
    shown = command("bench", "--compare", one)
    assert (shown.code, "beside" in shown.out) == (0, False)


@pytest.mark.parametrize("flag", ["--save", "--require"])
def test_without_a_target_nothing_is_saved_or_required(flag: str, tmp_path: Path) -> None:
    done = command("bench", "--compare", keep(tmp_path / "a.json", here()), flag, "1B/s")
    assert (done.code, done.err.splitlines()[1]) == (2, "hint: name a TARGET to measure")


def test_the_only_target_of_each_is_the_same_wherever_it_lies() -> None:
    moved = beside.compare(
        "a", report(measurement("arrow", 1.0, "/a")), report(measurement("arrow", 1.0, "/b")), baseline=False
    )
    assert cells(moved) == [("arrow", "the same, noise unknown")]
    assert "`/a` then, `/b` now" in moved.notes
    two = report(measurement("arrow", 1.0, "/a"), measurement("arrow", 1.0, "/b"))
    assert len(beside.compare("a", two, report(measurement("arrow", 1.0, "/c")), baseline=False).cells) == 3


def test_what_else_differs_is_told() -> None:
    kept = report(measurement("arrow", 1.0))
    [old] = kept.targets

    def notes(**changed: Any) -> tuple[str, ...]:
        return beside.compare("a", kept, replace(kept, **changed), baseline=False).notes

    assert notes() == ()
    other = replace(MACHINE, processor="M2", cpus=1, memory=1, python="3.12.0", packages={"torch": "2.6.0"})
    assert notes(machine=other) == (
        "another processor: EPYC 7763 then, M2 now",
        "8 processors then, 1 now",
        "64.0 GB of memory then, 0.0 GB now",
        "python 3.11.7 then, 3.12.0 now",
        "uc-stage 0.1.0 then, none now",
        "pyarrow 26.0.0 then, none now",
        "torch none then, 2.6.0 now",
    )
    assert notes(machine=None) == ("nothing tells which machine it was measured on",)
    for changed, words in (
        ({"generation": None}, "generation v42-1f3a9c then, none now"),
        ({"rows": 7}, "1,000,000 rows then, 7 now"),
        ({"bytes": 7}, "180,000,000 bytes then, 7 now"),
    ):
        assert notes(targets=(replace(old, **changed),)) == (f"`{COPY}`: {words}",)


rates = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=5).map(sorted)


@given(rates, rates)
def test_a_regression_is_slower_in_every_repeat_and_by_more_than_the_tolerance(
    before: list[float], now: list[float]
) -> None:
    then = measurement("arrow", before[len(before) // 2], rates=tuple(before))
    here = measurement("arrow", now[len(now) // 2], rates=tuple(now))

    def judge(kept: Any, after: Any) -> ComparedCell:
        [cell] = beside.compare("a", report(kept), report(after), baseline=True).cells
        return cell

    cell = judge(then, here)
    known = len(before) > 1 and len(now) > 1
    apart = now[-1] < before[0] or before[-1] < now[0]
    assert cell.within_noise is (None if not known else not apart)
    fell = now[len(now) // 2] / before[len(before) // 2] < 1 - beside.TOLERANCE
    assert cell.regressed is (fell and (apart or not known))
    assert not (cell.regressed and judge(here, then).regressed)


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        ({"rates": (90.0, 100.0)}, {"rates": (70.0, 80.0)}, "regression"),
        ({"rates": (75.0, 100.0)}, {"rates": (70.0, 80.0)}, "within noise"),
        ({"rates": (99.0, 100.0)}, {"rates": (94.0, 95.0), "rows_per_second": 95.0}, "slower"),
        ({"rates": (99.0, 100.0)}, {"rates": (199.0, 200.0), "rows_per_second": 200.0}, "faster"),
        ({}, {}, "regression"),
        ({}, {"failed": True, "rows_per_second": None}, "regression"),
        ({"failed": True}, {}, "failed then"),
        ({"rows_per_second": None, "bytes_per_second": 100.0}, {"bytes_per_second": 101.0}, "faster, noise unknown"),
        ({"rows_per_second": 0.0, "bytes_per_second": 0.0}, {}, "failed then"),
    ],
)
def test_each_cell_has_a_verdict(then: dict[str, Any], now: dict[str, Any], verdict: str) -> None:
    kept = replace(measurement("arrow", 100.0), **then)
    after = replace(measurement("arrow", 80.0), **now)
    [cell] = beside.compare("a", report(kept), report(after), baseline=True).cells
    assert (cell.verdict, cell.regressed) == (verdict, verdict == "regression")


def test_cold_and_warm_and_other_settings_are_cells_of_their_own() -> None:
    kept = report(measurement("torch", 1.0), measurement("torch", 2.0, workers=2, prefetch=4))
    now = report(measurement("torch", 1.0, warm=True), measurement("torch", 2.0, workers=2, prefetch=2))
    found = beside.compare("a", kept, now, baseline=True)
    assert [cell.verdict for cell in found.cells] == ["only now"] * 2 + ["only then"] * 2
    assert not found.judged
    assert not replace(now, comparisons=(found,)).met


# Gates


def test_a_regression_exits_20_and_says_which(target: str, measured: BenchReport, tmp_path: Path) -> None:
    quick, slow = (keep(tmp_path / f"{factor}.json", times(measured, factor)) for factor in (1e6, 1e-6))
    words = ["bench", target, "--readers", "raw,arrow"]

    fell = command(*words, "--baseline", quick, "--save", tmp_path / "now.json")
    stayed = command(*words, "--baseline", slow)
    machine = command(*words, "--baseline", quick, "--json")

    assert (fell.code, stayed.code, machine.code) == (20, 0, 20)
    more = len(measured.measurements) - 1
    assert re.match(
        rf"error: `(raw|arrow)` reads `{target}` 100% slower than in `{quick}`, and {more} more (is|are) slower",
        fell.err.splitlines()[-2],
    )
    assert fell.out.count("x    regression") == more + 1
    assert (tmp_path / "now.json").exists()
    assert (machine.json["status"], machine.json["errors"][0]["code"]) == ("failed", "regression")
    assert all(cell["regressed"] for cell in machine.json["data"]["comparisons"][0]["cells"])
    assert uc_stage.bench(target, readers=["arrow"], baseline=slow).met
    assert not uc_stage.bench(target, readers=["arrow"], baseline=quick).met


def test_a_baseline_that_has_nothing_of_the_run_does_not_pass(target: str, tmp_path: Path) -> None:
    other = keep(tmp_path / "a.json", here(measurements=(measurement("arrow", 1.0, batch_size=9),)))
    done = command("bench", target, "--readers", "arrow", "--baseline", other, "--json")
    assert (done.code, done.json["errors"][0]["code"]) == (20, "no_baseline")


def test_a_baseline_of_a_machine_with_more_processors_is_refused(target: str, tmp_path: Path) -> None:
    mine = reports.machine()
    other = keep(tmp_path / "a.json", here(measurements=(measurement("arrow", 1.0),)))
    more = keep(tmp_path / "b.json", replace(here(), machine=replace(mine, cpus=mine.cpus + 1)))

    done = command("bench", target, "--baseline", more)

    assert (done.code, done.out) == (2, "")
    assert f"was measured with {mine.cpus + 1:,} processors, and here are {mine.cpus:,}" in done.err
    # Of two kept results the machines that they were measured on count.
    assert command("bench", "--compare", more, "--baseline", more).code == 0
    assert command("bench", "--compare", other, "--baseline", more).code == 2


@pytest.mark.parametrize(
    ("require", "words"),
    [
        ("stall<5%", "without a training step"),
        ("torch:stall < 5 %", "without a training step"),
        ("stall<0%", "no share of a time"),
        ("stall<101%", "no share of a time"),
        ("stall<5", "not a throughput"),
    ],
)
def test_a_stall_that_cannot_be_judged_is_refused_before_anything_is_read(require: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        uc_stage.bench("/nonexistent", require=[require])


def test_raw_makes_no_batches_that_a_training_could_wait_for() -> None:
    for readers, require in ((("raw",), "stall<5%"), (None, "raw:stall<5%")):
        with pytest.raises(InvalidRequest, match="makes no batches"):
            benchmark.run(BenchRequest(("/nonexistent",), readers, require=(require,), step_ms=35.0))


def test_a_stall_is_judged_by_the_reader_that_a_training_waits_for_least() -> None:
    waiting = [
        measurement("raw", 9.0),
        measurement("arrow", 9.0, wait_share=0.2),
        measurement("hf", 9.0, wait_share=0.0, failed=True),
        measurement("torch", 9.0, wait_share=0.04),
    ]

    def judge(text: str, *measured: Any) -> tuple[bool, float, str]:
        found = benchmark._judge(benchmark._parse(text, 35.0), measured)
        assert found.unit == "share"
        return found.met, found.measured, found.reader

    assert judge("stall<5%", *waiting) == (True, 0.04, "torch")
    assert judge("STALL<4%", *waiting) == (False, 0.04, "torch")
    assert judge("arrow:stall<5%", *waiting) == (False, 0.2, "arrow")
    assert judge("hf:stall<100%", *waiting) == (False, 1.0, "hf")
    assert judge("stall<100%", measurement("arrow", 9.0)) == (False, 1.0, "arrow")


def test_an_unmet_stall_names_what_was_measured() -> None:
    from uc_stage.cli import measuring

    missed = full()
    assert measuring.shortfall(missed)[:2] == (
        "below_requirement",
        "`--require stall<1%` is not met: 2.0% of the time by torch",
    )


def test_source_and_copy_of_one_run_stay_apart() -> None:
    both = report(measurement("arrow", 1.0, SOURCE), measurement("arrow", 2.0, COPY))
    found = beside.compare("a", both, both, baseline=True)
    assert [(cell.target, cell.factor) for cell in found.cells] == [(SOURCE, 1.0), (COPY, 1.0)]
