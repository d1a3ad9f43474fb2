"""What `inspect` says of real tables, exports, copies and folders, and what `--fail-on` makes of it."""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.exports import make_export, put_manifest
from tests.fixtures.shell import uc_stage as command_line
from uc_stage.cli import inspecting
from uc_stage.errors import InvalidRequest
from uc_stage.loaders import built
from uc_stage.model import Advice, InspectReport, Problem

if TYPE_CHECKING:
    from pathlib import Path

ODD = os.path.join(os.path.dirname(__file__), "data", "parquet")


def ids(report: InspectReport) -> list[str]:
    return [one.rule for one in report.advice]


def advice(report: InspectReport, rule: str) -> Advice:
    (found,) = (one for one in report.advice if one.rule == rule)
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Hugging Face cache and a launcher of nobody else's."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("HF_HOME", raising=False)
    cache = str(tmp_path / "hf")
    monkeypatch.setenv("HF_DATASETS_CACHE", cache)
    return cache


@pytest.fixture
def table(tmp_path: Path) -> str:
    """An ordinary table: numbers, text, lists, structs, times and dates, and a partition column."""
    path = str(tmp_path / "orders")
    rows = pa.table(
        {
            "id": pa.array(range(600), pa.int64()),
            "text": [f"word {n}" for n in range(600)],
            "pair": [[float(n), 1.0] for n in range(600)],
            "origin": [{"word": "ab"[n % 2], "score": n} for n in range(600)],
            "when": pa.array(range(600), pa.timestamp("us", "UTC")),
            "day": [dt.date(2026, 1, 1 + n % 2) for n in range(600)],
        }
    )
    deltalake.write_deltalake(path, rows, partition_by=["day"])
    return path


# What is good


@pytest.mark.parametrize("splits", [None, {"train": 0.9, "test": 0.1}])
def test_an_export_by_the_defaults_and_its_copies_get_no_advice(
    table: str, tmp_path: Path, splits: dict[str, float] | None
) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export"), split=splits).dest
    copies = [uc_stage.cache(dest, cache_dir=str(tmp_path / "nvme"), form=form) for form in ("files", "arrow")]

    for target in (dest, *copies):
        report = uc_stage.inspect(target)
        assert (report.advice, report.problems) == ((), ())


def test_an_export_for_its_ranks_gets_no_advice_about_ranks(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export"), world_size=2, workers=3, drop_remainder=True).dest

    report = uc_stage.inspect(dest, world_size=2, workers=3, batch_size=10)
    other = uc_stage.inspect(dest, world_size=4, workers=3, batch_size=10)

    assert ids(report) == ["UCS206"]
    assert report.advice[0].severity == "info"
    assert ids(other) == ["UCS208", "UCS301", "UCS206"]


# Tables


def test_a_table_is_told_by_its_log_what_a_glob_would_bring_back(table: str) -> None:
    whole = uc_stage.inspect(table)
    deltalake.DeltaTable(table).delete("id < 100")
    report = uc_stage.inspect(table)

    assert ids(whole) == ["UCS109"]
    assert advice(whole, "UCS109").evidence == {"columns": ["day"]}
    assert ids(report) == ["UCS101", "UCS109"]
    assert advice(report, "UCS101").evidence["files_of_other_versions"] == 2
    assert advice(report, "UCS101").fix == f"uc-stage export {table} DEST"
    exported = pq.read_table(uc_stage.export(table, f"{table}-export").dest)
    globbed = sum(
        pq.read_metadata(os.path.join(top, name)).num_rows
        for top, _, names in os.walk(table)
        for name in names
        if name.endswith(".parquet")
    )
    assert exported.num_rows < globbed


def test_deletion_vectors_and_renamed_columns_are_told_from_the_actions(corpus: Path) -> None:
    vectors = uc_stage.inspect(str(corpus / "kernel-rs/data/with-short-dv"))
    mapped = uc_stage.inspect(str(corpus / "delta-golden/table-with-columnmapping-mode-id"))

    assert advice(vectors, "UCS101").evidence["files_with_deletion_vectors"] > 0
    assert advice(vectors, "UCS101").evidence["deleted_rows"] > 0
    renamed = advice(mapped, "UCS102").evidence["renamed"]
    assert all(name != physical for name, physical in renamed.items())
    files = pq.read_schema(next((corpus / "delta-golden/table-with-columnmapping-mode-id").glob("*.parquet")))
    assert {physical for name, physical in renamed.items() if "." not in name} <= set(files.names)


def test_an_empty_table_has_no_rows_to_train_on(tmp_path: Path) -> None:
    path = str(tmp_path / "empty")
    deltalake.write_deltalake(path, pa.table({"id": pa.array([], pa.int64())}))

    assert ids(uc_stage.inspect(path)) == ["UCS212"]


def test_a_tables_map_is_told_with_the_cast_that_mends_it(tmp_path: Path) -> None:
    path = str(tmp_path / "tags")
    deltalake.write_deltalake(path, pa.table({"tags": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}))

    found = advice(uc_stage.inspect(path), "UCS205")
    mended = uc_stage.export(path, str(tmp_path / "export"), cast={"tags": "entries"}).dest

    assert found.fix == f"uc-stage export {path} DEST --cast tags=entries"
    assert ids(uc_stage.inspect(mended)) == []


# Exports and copies


def test_the_command_that_mends_an_export_asks_for_what_it_was_asked_for(table: str, tmp_path: Path) -> None:
    dest = str(tmp_path / "the export")
    uc_stage.export(
        table, dest, columns=["id", "text"], where="id > 9", split={"train": 0.5, "test": 0.5}, seed=7, shuffle=True,
        cast={"id": "float64"}, limit=500, compression="snappy", split_by="id",
    )  # fmt: skip

    fix = advice(uc_stage.inspect(dest, world_size=2), "UCS208").fix.partition("  #")[0]

    assert fix == (
        f"uc-stage export {table} '{dest}' --world-size 2 --drop-remainder --columns id,text --where '`id` > 9' "
        "--limit 500 --seed 7 --split-by id --compression snappy --cast id=float64 --split train=0.5 --split test=0.5 "
        "--shuffle"
    )
    assert command_line(*shlex.split(fix)[1:]).code == 0
    mended = uc_stage.inspect(dest, world_size=2)
    assert (mended.advice, mended.files, 500 - (mended.rows or 0) < 4) == ((), 4, True)


def test_an_excluded_column_leaves_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "odd")
    kind = pa.struct([("tags", pa.map_(pa.string(), pa.int64()))])
    deltalake.write_deltalake(path, pa.table({"a": [1], "b": pa.array([{"tags": [("x", 1)]}], kind), "c,d": [2]}))
    chosen = uc_stage.export(path, str(tmp_path / "chosen"), columns=["c,d", "b"]).dest
    every = uc_stage.export(path, str(tmp_path / "every"), order_by=["a DESC"], equal_rows=True).dest

    assert advice(uc_stage.inspect(chosen), "UCS205").fix == f"""uc-stage export {path} {chosen} --columns '"c,d"'"""
    assert advice(uc_stage.inspect(every), "UCS205").fix == (
        f"uc-stage export {path} {every} --exclude-columns b --order-by 'a DESC' --equal-rows"
    )


@pytest.mark.parametrize(
    ("asked", "again", "mended"),
    [
        ({"files": 2, "row_group_bytes": 10**6}, "--files 2 --row-group-size 1000000", "--row-group-size 1000000"),
        ({"file_bytes": 10**6}, "--file-size 1000000", "--file-size 1000000"),
        ({"as_is": True}, "--as-is", ""),
        ({"world_size": 3, "equal_rows": True}, "--world-size 3 --equal-rows", "--equal-rows"),
    ],
)
def test_how_an_export_was_cut_is_asked_for_again_where_a_rule_does_not_change_it(
    tmp_path: Path, asked: dict[str, Any], again: str, mended: str
) -> None:
    path, dest = str(tmp_path / "plain"), str(tmp_path / "export")
    deltalake.write_deltalake(path, pa.table({"id": range(10)}))
    uc_stage.export(path, dest, **asked)
    deltalake.DeltaTable(path).delete("id = 1")

    report = uc_stage.inspect(dest, workers=8)

    assert advice(report, "UCS401").fix == f"uc-stage export {path} {dest} {again}"
    fix = advice(report, "UCS301").fix.partition("  #")[0]
    assert fix == f"uc-stage export {path} {dest} --workers 8 {mended}".rstrip()
    assert command_line(*shlex.split(fix)[1:]).code == 0
    assert ids(uc_stage.inspect(dest, workers=8)) == []


def test_what_is_older_than_its_source_is_told(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export")).dest
    copy = uc_stage.cache(dest, cache_dir=str(tmp_path / "nvme"))
    part = uc_stage.cache(dest, cache_dir=str(tmp_path / "nvme"), include=["*.parquet"])
    deltalake.DeltaTable(table).delete("id = 1")
    behind = uc_stage.inspect(dest)
    uc_stage.export(table, dest, keep=1)

    assert advice(behind, "UCS401").severity == "info"
    assert advice(behind, "UCS401").fix == f"uc-stage export {table} {dest}"
    told = uc_stage.inspect(copy, world_size=2)
    assert advice(told, "UCS112").fix == f"uc-stage cache {dest}"
    flags = "--include '*.parquet'"
    assert advice(uc_stage.inspect(part), "UCS112").fix == f"uc-stage cache {dest} {flags}"
    again = f"uc-stage export {table} {dest} --world-size 2 --drop-remainder && uc-stage cache {dest}  # or"
    assert advice(told, "UCS208").fix.startswith(again)
    assert advice(uc_stage.inspect(dest), "UCS114").evidence == {"files": 1}


def test_what_a_manifest_keeps_of_footers_is_judged_without_reading_one(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export")).dest
    path = os.path.join(dest, ".uc_stage", "manifest.json")
    with open(path, encoding="utf-8") as file:
        raw = json.load(file)
    for column in raw["footers"]["columns"]:
        column["largest"] = 2**31
    raw["footers"]["row_group_bytes"]["max"] = 2**31
    with open(path, "w", encoding="utf-8") as file:
        json.dump(raw, file)

    report = uc_stage.inspect(dest)

    assert ids(report) == ["UCS207", "UCS213"]
    nested = {"pair.list.element", "origin.word", "origin.score"}
    assert advice(report, "UCS207").evidence["columns"].keys() == nested
    assert report.footers_read == 0


def test_a_query_is_asked_again_where_an_export_of_one_is_to_be_mended(tmp_path: Path) -> None:
    folder = str(tmp_path / "export")
    manifest = make_export(folder)
    raw = json.loads(manifest.to_json())
    raw["source"].update(table="query", query="SELECT id FROM t", table_id="", version=0)
    put_manifest(folder, type(manifest).from_json(json.dumps(raw).encode(), folder))

    fix = advice(uc_stage.inspect(folder, workers=4), "UCS301").fix

    assert fix.startswith(
        f"uc-stage export --query 'SELECT id FROM t' {folder} --workers 4 --compression snappy  # or "
    )


# Folders


def test_a_hive_folder_an_underscore_and_drifting_schemas_are_told(tmp_path: Path) -> None:
    for path in ("day=1/a.parquet", "day=2/b.parquet", "_old/c.parquet"):
        os.makedirs(tmp_path / "data" / os.path.dirname(path))
        pq.write_table(pa.table({"id" if "day" in path else "key": [1]}), tmp_path / "data" / path)

    report = uc_stage.inspect(str(tmp_path / "data"))

    assert ids(report) == ["UCS109", "UCS110"]
    (problem,) = report.problems
    assert (problem.code, problem.rule, problem.severity, problem.path) == (
        "schema_differs", "UCS108", "wrong", "_old/c.parquet",
    )  # fmt: skip
    assert problem.fix


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("int96_from_spark.parquet", ["UCS113"]),
        ("no_columns.parquet", ["UCS212"]),
        ("nested_maps.parquet", ["UCS205"]),
        ("uuid_in_variant.parquet", ["UCS205"]),
        ("nanoseconds.parquet", ["UCS115"]),
        ("no_rows.parquet", ["UCS212"]),
        ("../large/large_string_map.parquet", ["UCS205", "UCS207", "UCS213"]),
    ],
)
def test_odd_files_of_other_projects_get_their_rule(name: str, rules: list[str]) -> None:
    assert ids(uc_stage.inspect(os.path.join(ODD, name))) == rules


def test_many_small_files_of_two_kinds_are_told(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(1000):
        (images / f"{number}.jpg").write_bytes(b"x")
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    pq.write_table(pa.table({"a": range(3)}), parquet / "0.parquet", row_group_size=1)
    for number in range(1, 100):
        shutil.copyfile(parquet / "0.parquet", parquet / f"{number}.parquet")

    assert advice(uc_stage.inspect(str(images)), "UCS303").fix == f"uc-stage cache {images} --pack"
    assert ids(uc_stage.inspect(str(parquet))) == ["UCS302", "UCS303"]


# Hugging Face's builds


def put(folder: Path, rows: int, seconds: int = 10**9) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": range(rows)}), folder / "a.parquet")
    os.utime(folder / "a.parquet", (seconds, seconds))


def test_a_build_of_the_same_path_and_time_with_other_rows_is_told(tmp_path: Path, own_cache: str) -> None:
    import datasets

    data = tmp_path / "data"
    put(data, 10)
    datasets.load_dataset(str(data), cache_dir=own_cache)
    fresh = uc_stage.inspect(str(data))
    put(data, 20)
    before = sorted(os.listdir(own_cache))
    stale = uc_stage.inspect(str(data))

    assert ids(fresh) == []
    found = advice(stale, "UCS111")
    assert (found.evidence["build_rows"], found.evidence["rows"]) == (10, 20)
    # The library does as is told of it, and the look left nothing in its cache.
    assert len(datasets.load_dataset(str(data), cache_dir=own_cache)["train"]) == 10
    assert sorted(os.listdir(own_cache)) == before
    put(data, 20, seconds=2 * 10**9)
    assert ids(uc_stage.inspect(str(data))) == []


def test_a_build_of_more_files_than_the_exports_own_is_not_called_old(
    table: str, tmp_path: Path, own_cache: str
) -> None:
    import datasets

    dest = uc_stage.export(table, str(tmp_path / "export")).dest
    deltalake.DeltaTable(table).delete("id < 100")
    uc_stage.export(table, dest, keep=1)
    both = datasets.load_dataset(dest, cache_dir=own_cache)["train"]

    assert len(both) == 600 + 500
    assert ids(uc_stage.inspect(dest)) == ["UCS114"]


def test_the_library_is_asked_only_where_a_build_could_be_meant(
    tmp_path: Path, own_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(built, "_asked", never)
    data = tmp_path / "data"
    put(data, 20)
    for number, told in enumerate(
        (
            {"splits": {"train": {"num_examples": 9}}, "features": {"other": {}}, "download_size": 5},
            {"splits": {"train": {"num_examples": 20}}, "features": {"id": {}}, "download_size": None},
            {"splits": None, "features": {}},
            [],
        )
    ):
        place = tmp_path / "hf" / "parquet" / f"default-{number}" / "0.0.0" / "hash"
        place.mkdir(parents=True)
        (place / "dataset_info.json").write_text(json.dumps(told))

    assert ids(uc_stage.inspect(str(data))) == []
    os.makedirs(tmp_path / "hf" / "data" / "default" / "0.0.0" / "hash")
    (tmp_path / "hf" / "data" / "default" / "0.0.0" / "hash" / "dataset_info.json").write_text(
        json.dumps({"splits": {"train": {"num_examples": 9}}, "features": {"id": {}}})
    )
    with pytest.raises(AssertionError):
        uc_stage.inspect(str(data))


def test_what_the_library_cannot_ask_for_has_no_build(
    tmp_path: Path, own_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(built._asked(str(tmp_path), [str(tmp_path / "a.parquet")], own_cache)) == []
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(built._asked(str(tmp_path), [], own_cache)) == []


# The command


def test_fail_on_exits_20_and_says_which_rules(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data, 10)
    (data / "_SUCCESS").touch()
    (data / "b.parquet").touch()
    (data / "c.parquet").touch()

    told = command_line("inspect", data)
    wrong = command_line("inspect", data, "--fail-on", "wrong")
    warn = command_line("inspect", data, "--fail-on", "warn", "--json")
    ignoring = command_line("inspect", data, "--fail-on", "wrong", "--ignore", "UCS202")
    by_environment = command_line("inspect", data, UC_STAGE_FAIL_ON="warn", UC_STAGE_IGNORE="ucs202 UCS203")

    assert (told.code, ignoring.code, by_environment.code) == (0, 0, 0)
    assert wrong.code == warn.code == 20
    assert wrong.err.splitlines()[-2:] == [
        f"error: `{data}` has 2 findings that `--fail-on wrong` does not let pass: UCS202 (2 times)",
        "hint: mend what is told above, or leave a rule out: --ignore UCS202",
    ]
    assert warn.json["status"] == "failed"
    (error,) = warn.json["errors"]
    assert (error["code"], error["exit_code"]) == ("advice", 20)
    assert "3 findings" in error["message"]
    assert {problem["rule"] for problem in warn.json["data"]["problems"]} == {"UCS202", "UCS203"}
    assert "  UCS202  b.parquet: is empty" in told.out.splitlines()
    assert "  fix UCS202: remove the file, or write it again" in told.out.splitlines()
    assert "UCS202" not in ignoring.out


def test_advice_is_shown_in_two_lines_each_and_held_by_the_json(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data, 1000)
    words = ("inspect", data, "--world-size", 4, "--workers", 2, "--batch-size", 100)

    shown = command_line(*words, "--fail-on", "wrong")
    told = command_line(*words, "--json")

    lines = shown.out.splitlines()
    at = lines.index("advice (2)")
    assert shown.code == 0
    assert lines[at + 1].startswith("  UCS208  warn   dealt out file by file, rank 1 of 4 gets 0 rows and rank 0 1,000")
    assert lines[at + 2].startswith("          fix    uc-stage export TABLE DEST --world-size 4 --workers 2")
    assert lines[at + 3].startswith("  UCS301  warn   1 file for 4 ranks of 2 workers")
    assert len(lines) == at + 5
    first, second = told.json["data"]["advice"]
    assert (first["rule"], first["severity"], first["evidence"]["missing_batches"]) == ("UCS208", "warn", 10)
    assert (second["rule"], second["evidence"]["readers"]) == ("UCS301", 8)
    assert command_line(*words, "--fail-on", "warn").err.splitlines()[-2].endswith("pass: UCS208, UCS301")


def test_a_terminal_is_shown_what_fits_the_worst_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [Problem("extra", "is odd", f"{n}.txt", "UCS402", "info", "move it") for n in range(11)]
    problems.append(Problem("missing", "is gone", "a.parquet", "UCS104", "wrong", "run it again"))
    told = tuple(Advice("UCS303", "warn", f"number {n}", {}, "mend\x1b it") for n in range(9))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    inspecting.render(InspectReport("data", "export", problems=tuple(problems), advice=told))

    lines = capsys.readouterr().out.splitlines()
    at = lines.index("problems (12)")
    assert lines[at + 1] == "  UCS104  a.parquet: is gone"
    assert lines[at + 11 : at + 14] == [
        "  and 2 more: --json has them", "  fix UCS104: run it again", "  fix UCS402: move it",
    ]  # fmt: skip
    at = lines.index("advice (9)")
    assert lines[at + 1 : at + 3] == ["  UCS303  warn   number 0", "          fix    mend\\x1b it"]
    assert lines[-1] == "  and 1 more: --json has them"
    assert len(lines) == at + 2 + 2 * 8


def test_the_launchers_world_size_counts_where_no_flag_tells(tmp_path: Path) -> None:
    put(tmp_path / "data", 10)

    launched = command_line("inspect", tmp_path / "data", "--json", WORLD_SIZE="8").json["data"]["advice"]

    assert [one["rule"] for one in launched] == ["UCS208", "UCS301"]
    assert command_line("inspect", tmp_path / "data", "--json").json["data"]["advice"] == []


def test_fail_on_needs_a_target_and_knows_no_other_word(tmp_path: Path) -> None:
    put(tmp_path / "data", 10)

    bare = command_line("inspect", "--fail-on", "wrong", "--cache-dir", tmp_path / "nvme")
    assert (bare.code, "need a TARGET" in bare.err) == (2, True)
    unknown = command_line("inspect", tmp_path / "data", "--ignore", "UCS999")
    assert (unknown.code, "`--ignore UCS999` names no rule" in unknown.err) == (2, True)
    for words in ({"world_size": 0}, {"workers": -1}, {"batch_size": 0}, {"fail_on": "info"}, {"ignore": "x"}):
        with pytest.raises(InvalidRequest):
            uc_stage.inspect(str(tmp_path / "data"), **words)


def test_failed_verification_keeps_its_code_whatever_is_ignored(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export")).dest
    (name,) = (name for name in os.listdir(dest) if name.endswith(".parquet"))
    os.truncate(os.path.join(dest, name), 100)

    assert command_line("inspect", dest, "--fail-on", "wrong").code == 20
    assert command_line("inspect", dest, "--verify", "--fail-on", "wrong").code == 12
    assert command_line("inspect", dest, "--verify", "--ignore", "UCS105").code == 12
