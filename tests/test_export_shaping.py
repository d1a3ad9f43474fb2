"""Exports shaped for training: files by ranks and workers, splits, orders, samples, casts, files as they are."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.delta import export, make_numbers, parquet_files, request
from uc_stage import exporting
from uc_stage.errors import InvalidRequest, StageError, Unsupported, VerificationFailed
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder

if TYPE_CHECKING:
    from uc_stage.model import ExportPlan

NAN = float("nan")


def planned(table: object, dest: object, **asked: Any) -> ExportPlan:
    with exporting.prepare(request(table, dest, **asked)) as prepared:
        return prepared.plan


def rows_by_file(dest: Path, split: str = "train") -> list[list[dict[str, Any]]]:
    manifest = read_manifest(LocalFolder(str(dest)))
    assert manifest is not None
    return [pq.ParquetFile(dest / file.path).read().to_pylist() for file in manifest.splits[split]]


def ids(dest: Path, split: str = "train") -> list[int]:
    return [row["id"] for rows in rows_by_file(dest, split) for row in rows]


# Files


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        ({"world_size": 4}, 4),
        ({"world_size": 4, "workers": 2}, 8),
        ({"world_size": 4, "workers": 0}, 4),
        ({"workers": 3}, 3),
        ({"world_size": 2, "workers": 3, "files_per_worker": 2}, 12),
        ({"world_size": 2, "file_bytes": 3000}, None),
    ],
)
def test_the_number_of_files_is_a_multiple_of_ranks_times_workers(
    table: str, dest: Path, asked: dict[str, int], files: int | None
) -> None:
    report = export(table, dest, **asked)
    assert report.files % (asked.get("world_size", 1) * max(1, asked.get("workers", 0))) == 0
    assert report.files == len(parquet_files(dest))
    assert report.files == files if files else report.files > 2
    assert len(set(map(len, rows_by_file(dest)))) <= 2


def test_equal_rows_are_equal_give_or_take_one_and_exact_where_the_remainder_is_dropped(
    table: str, dest: Path, tmp_path: Path
) -> None:
    export(table, dest, files=7, equal_rows=True)
    assert sorted(map(len, rows_by_file(dest))) == [142] * 1 + [143] * 6

    report = export(table, tmp_path / "exact", files=7, drop_remainder=True)

    assert (report.rows, report.dropped) == (994, 6)
    assert list(map(len, rows_by_file(tmp_path / "exact"))) == [142] * 7
    again = export(table, tmp_path / "exact", files=7, drop_remainder=True)
    assert (again.status, again.rows, again.dropped) == ("unchanged", 994, 6)


def test_rows_too_few_for_every_rank_are_refused(table: str, dest: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"the split `train` has 5 rows, too few for 8 files"):
        planned(table, dest, limit=5, world_size=8)
    with pytest.raises(InvalidRequest, match=r"the split `test` has \d+ rows, too few for 64 files"):
        planned(table, dest, world_size=64, splits=(("train", 0.99), ("test", 0.01)))


def test_no_rows_are_one_file_whoever_will_read_them(table: str, dest: Path) -> None:
    report = export(table, dest, where="id < 0", world_size=8, drop_remainder=True)
    assert (report.rows, report.files) == (0, 1)


def test_files_are_planned_by_the_bytes_of_the_columns_that_are_written(table: str, dest: Path) -> None:
    size = sum(os.path.getsize(path) for path in parquet_files(table))
    assert planned(table, dest, file_bytes=size // 10).files >= 10
    assert planned(table, dest, file_bytes=size // 10, columns=("half",)).files <= 6


def test_rows_keep_the_order_of_their_files_paths_and_their_positions(table: str, dest: Path, tmp_path: Path) -> None:
    export(table, dest, files=3)
    export(table, tmp_path / "other", files=5, row_group_bytes=500)
    paths = sorted(os.path.relpath(path, table) for path in parquet_files(table))
    expected = [value for path in paths for value in pq.read_table(f"{table}/{path}")["id"].to_pylist()]
    assert ids(dest) == ids(tmp_path / "other") == expected


# Splits


def test_splits_are_disjoint_complete_and_the_same_each_time(table: str, dest: Path, tmp_path: Path) -> None:
    splits = (("train", 0.8), ("validation", 0.1), ("test", 0.1))
    report = export(table, dest, splits=splits, seed=5)
    export(table, tmp_path / "again", splits=splits, seed=5, files=3)
    export(table, tmp_path / "other", splits=splits, seed=6)

    parts = {name: set(ids(dest, name)) for name, _ in splits}
    assert sorted(value for part in parts.values() for value in part) == list(range(1000))
    assert {name: len(part) for name, part in parts.items()} == report.splits
    assert report.splits["train"] == pytest.approx(800, abs=50)
    assert all(set(ids(tmp_path / "again", name)) == part for name, part in parts.items())
    assert set(ids(tmp_path / "other", "test")) != parts["test"]


def test_a_split_by_a_column_never_parts_equal_values(tmp_path: Path, dest: Path) -> None:
    users = pa.table({"user": [f"u{i % 90}" if i % 91 else None for i in range(5000)], "id": range(5000)})
    write_deltalake(str(tmp_path / "users"), users)
    export(tmp_path / "users", dest, splits=(("train", 0.7), ("test", 0.3)), split_by="USER", columns=("id",))
    seen = {name: {users["user"][row].as_py() for row in ids(dest, name)} for name in ("train", "test")}
    assert not seen["train"] & seen["test"]
    assert len(seen["train"] | seen["test"]) == 91
    assert len(ids(dest)) + len(ids(dest, "test")) == 5000


def test_load_dataset_sees_the_splits(table: str, dest: Path, tmp_path: Path) -> None:
    import datasets

    report = export(table, dest, splits=(("train", 0.8), ("validation", 0.1), ("test", 0.1)), files=2)
    loaded = datasets.load_dataset(str(dest), cache_dir=str(tmp_path / "hf"))
    assert {name: split.num_rows for name, split in loaded.items()} == report.splits
    assert sorted(loaded["test"]["id"]) == sorted(ids(dest, "test"))


def test_a_split_that_drew_no_rows_is_told_before_the_write(table: str, dest: Path) -> None:
    with pytest.raises(InvalidRequest, match="the split `test` would have no rows of 1000"):
        export(table, dest, splits=(("train", 0.999999), ("test", 0.000001)))
    assert not dest.exists()
    assert export(table, dest, splits=(("train", 0.5), ("test", 0.5)), where="id < 0").splits == {"train": 0, "test": 0}


def test_columns_that_differ_in_more_than_their_case_are_told_apart(tmp_path: Path, dest: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"strasse": [1, 2, 3], "straße": [10, 20, 30], "id": [3, 2, 1]}))
    export(tmp_path / "t", dest, columns=("STRASSE", "id"), where="`Straße` > 15", order_by=("strasse desc",))
    assert rows_by_file(dest) == [[{"strasse": 3, "id": 1}, {"strasse": 2, "id": 2}]]


# Order


def test_a_shuffle_is_a_permutation_that_the_seed_alone_decides(table: str, dest: Path, tmp_path: Path) -> None:
    export(table, dest, shuffle=True, seed=1)
    export(table, tmp_path / "again", shuffle=True, seed=1, files=4)
    export(table, tmp_path / "other", shuffle=True, seed=2)
    shuffled = ids(dest)
    assert sorted(shuffled) == list(range(1000)) != shuffled
    assert ids(tmp_path / "again") == shuffled != ids(tmp_path / "other")


def test_a_shuffle_with_a_limit_draws_the_first_rows_of_the_shuffled_order(
    table: str, dest: Path, tmp_path: Path
) -> None:
    export(table, dest, shuffle=True, seed=1)
    export(table, tmp_path / "some", shuffle=True, seed=1, limit=20, splits=(("train", 0.5), ("test", 0.5)))
    some = ids(tmp_path / "some"), ids(tmp_path / "some", "test")
    assert sorted([*some[0], *some[1]]) == sorted(ids(dest)[:20])


def test_a_where_does_not_change_what_is_drawn(table: str, dest: Path, tmp_path: Path) -> None:
    export(table, dest, shuffle=True, sample=0.5, seed=3)
    export(table, tmp_path / "some", shuffle=True, sample=0.5, seed=3, where="id >= 500")
    assert ids(tmp_path / "some") == [value for value in ids(dest) if value >= 500]


def test_a_table_larger_than_the_budget_is_shuffled_within_it(tmp_path: Path) -> None:
    script = (
        "import re, sys; from uc_stage import export\n"
        "export(sys.argv[1], sys.argv[2], shuffle=True, memory=16 * 1024**2, row_group_bytes=4 * 1024**2)\n"
        # The peak that getrusage tells goes back to before the exec.
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    peaks = []
    for size in (1, 4):
        for commit in range(size):
            rows = pa.table({"id": range(commit * 200_000, (commit + 1) * 200_000), "pad": ["x" * 200] * 200_000})
            write_deltalake(str(tmp_path / f"t{size}"), rows, mode="append")
        dest = tmp_path / f"d{size}"
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / f"t{size}", dest], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
        assert sorted(ids(dest)) == list(range(size * 200_000))
    # Four times the rows are 120 MB more, and to hold and gather them takes that twice.
    assert peaks[1] - peaks[0] < 100 * 1024


@pytest.fixture
def odd(tmp_path: Path) -> str:
    rows = pa.table(
        {
            "id": range(8),
            "x": pa.array([1.5, None, NAN, -1.0, 0.0, math.inf, None, -0.0]),
            "s": pa.array(["b", "a", None, "é", "Z", "", "a", "a"]),
        }
    )
    write_deltalake(str(tmp_path / "odd"), rows)
    return str(tmp_path / "odd")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (("x",), [1, 6, 3, 4, 7, 0, 5, 2]),
        (("x DESC",), [1, 6, 2, 5, 0, 4, 7, 3]),
        (("s", "id desc"), [2, 5, 4, 7, 6, 1, 0, 3]),
        (("S asc", "X"), [2, 5, 4, 1, 6, 7, 0, 3]),
    ],
)
def test_an_order_has_null_first_and_nan_as_the_greatest_number(
    odd: str, dest: Path, order: tuple[str, ...], expected: list[int]
) -> None:
    export(odd, dest, order_by=order, columns=("id",))
    assert ids(dest) == expected


def test_an_order_holds_across_files_and_drops_the_last_rows(table: str, dest: Path) -> None:
    export(table, dest, order_by=("half desc",), files=3, drop_remainder=True, limit=100)
    assert [[row["id"] for row in rows] for rows in rows_by_file(dest)] == [
        list(range(999 - start, 999 - start - 33, -1)) for start in (0, 33, 66)
    ]


def test_a_column_whose_name_ends_like_a_direction_can_be_ordered_by(tmp_path: Path, dest: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1, 2, 3], "price desc": [5, 4, 6]}))
    export(tmp_path / "t", dest, order_by=("price desc",))
    assert ids(dest) == [2, 1, 3]


# What is drawn and what is written


def test_a_sample_is_a_part_of_the_rows_and_grows_with_the_fraction(table: str, dest: Path, tmp_path: Path) -> None:
    small = export(table, dest, sample=0.1, seed=4)
    export(table, tmp_path / "large", sample=0.3, seed=4)
    assert small.rows == pytest.approx(100, abs=40)
    assert set(ids(dest)) < set(ids(tmp_path / "large"))


def test_deleted_rows_are_neither_drawn_nor_shuffled_in(tmp_path: Path, dest: Path) -> None:
    table = make_numbers(tmp_path / "t", 1000)
    DeltaTable(table).delete("id % 3 = 0")
    export(table, dest, shuffle=True, splits=(("train", 0.5), ("test", 0.5)))
    assert sorted(ids(dest) + ids(dest, "test")) == [value for value in range(1000) if value % 3]


def test_excluded_columns_are_left_out_and_have_the_id_of_the_rest_chosen(
    table: str, dest: Path, tmp_path: Path
) -> None:
    one = export(table, dest, exclude=("TEXT",))
    other = export(table, tmp_path / "other", columns=("id", "half"))
    assert one.id == other.id
    assert rows_by_file(dest)[0][0].keys() == {"id", "half"}


def test_casts_change_the_schema_the_values_and_the_id(table: str, dest: Path, tmp_path: Path) -> None:
    plain = export(table, tmp_path / "plain")
    report = export(table, dest, casts=(("id", "int32"), ("float", "float32")))
    manifest = read_manifest(LocalFolder(str(dest)))
    assert manifest is not None
    assert [field.type for field in manifest.schema] == ["int32", "float", "string"]
    assert manifest.source.casts == ("id=int32", "half=float32")
    assert report.id != plain.id
    assert rows_by_file(dest) == rows_by_file(tmp_path / "plain")


def test_a_value_that_a_cast_cannot_hold_leaves_nothing_behind(table: str, dest: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"`--cast id=int8`"):
        export(table, dest, casts=(("id", "int8"),))
    assert not dest.exists()


def test_a_type_that_the_loader_does_not_take_is_refused_before_the_write(tmp_path: Path, dest: Path) -> None:
    tags = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1], "tags": tags}))
    with pytest.raises(Unsupported, match=r"`--for hf` does not take `tags`") as caught:
        planned(tmp_path / "t", dest, loader="hf")
    assert caught.value.hint == "add --cast tags=entries"

    import datasets

    export(tmp_path / "t", dest, loader="hf", casts=(("tags", "entries"),))
    loaded = datasets.load_dataset(str(dest), cache_dir=str(tmp_path / "hf"))["train"]
    assert loaded[0]["tags"] == [{"key": "a", "value": 1}]


# As they are


def test_files_go_over_as_they_are_and_the_manifest_says_so(tmp_path: Path, dest: Path) -> None:
    table = make_numbers(tmp_path / "t", 100, commits=3)
    report = export(table, dest, as_is=True)
    manifest = read_manifest(LocalFolder(str(dest)))
    assert manifest is not None
    assert manifest.layout.as_is
    assert (report.rows, report.files) == (100, 3)
    sources = sorted(Path(path).read_bytes() for path in parquet_files(table))
    assert sorted((dest / file.path).read_bytes() for file in manifest.files) == sources
    assert export(table, dest, as_is=True).status == "unchanged"


def test_files_that_hold_other_than_the_rows_do_not_go_over_as_they_are(tmp_path: Path, dest: Path) -> None:
    parts = pa.table({"id": [1, 2], "day": ["a", "b"]})
    write_deltalake(str(tmp_path / "parts"), parts, partition_by=["day"])
    with pytest.raises(InvalidRequest, match=r"partitioned by `day`"):
        planned(tmp_path / "parts", dest, as_is=True)

    table = make_numbers(tmp_path / "grown", 10)
    write_deltalake(
        table, pa.table({"id": [11], "half": [0.5], "text": ["x"], "more": [1]}), mode="append", schema_mode="merge"
    )
    with pytest.raises(InvalidRequest, match=r"holds `more`, which is `int64` in the table, not at all"):
        planned(table, dest, as_is=True)


def test_files_that_tell_times_by_the_old_calendar_do_not_go_over_as_they_are(tmp_path: Path, dest: Path) -> None:
    import datetime as dt

    rows = pa.table({"day": [dt.date(1500, 1, 1)]})
    write_deltalake(str(tmp_path / "t"), rows)
    (path,) = parquet_files(tmp_path / "t")
    marked = {"org.apache.spark.version": "2.4.0", "org.apache.spark.legacyDateTime": ""}
    pq.write_table(rows.replace_schema_metadata(marked), path, compression="snappy")
    with pytest.raises(InvalidRequest, match="Julian calendar"):
        planned(tmp_path / "t", dest, as_is=True)


def test_an_empty_table_goes_over_as_a_file_of_no_rows(tmp_path: Path, dest: Path) -> None:
    table = make_numbers(tmp_path / "t", 10)
    DeltaTable(table).delete()
    assert export(table, dest, as_is=True).rows == 0
    assert len(parquet_files(dest)) == 1


# The guard and the flags


def test_nulls_that_the_log_does_not_tell_of_keep_an_export_from_being_published(tmp_path: Path, dest: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1, 2, 3], "x": [None, 5, 6]}))
    commit = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if "add" in line:
            stats = json.loads(line["add"]["stats"])
            stats["nullCount"]["x"] = 0
            line["add"]["stats"] = json.dumps(stats)
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(VerificationFailed, match=r"tells of 0 NULLs in `x`, and 1 were written"):
        export(tmp_path / "t", dest)
    assert not dest.exists()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"shuffle": True, "order_by": ("id",)}, "`--shuffle` and `--order-by` exclude each other"),
        ({"files": 2, "world_size": 2}, "`--files` and `--world-size` exclude each other"),
        ({"compression": "gzip"}, "`--compression` is `gzip`"),
        ({"loader": "pytorch"}, "`--for` is `pytorch`"),
        ({"engine": "lokal"}, "`--engine` is `lokal`"),
        ({"files": 2, "files_per_worker": 2}, "`--files` and `--files-per-worker` exclude each other"),
        ({"files_per_worker": 2}, "`--files-per-worker` needs `--world-size` or `--workers`"),
        ({"split_by": "id"}, "`--split-by` needs `--split`"),
        ({"splits": (("train", 0.5), ("test", 0.4))}, "add up to 0.9"),
        ({"splits": (("train", 0.5), ("train", 0.5))}, "names a split twice"),
        ({"splits": (("dev", 1.0),)}, "`--split dev=1`"),
        ({"splits": (("train", 1.5),)}, "`--split train=1.5` is not a fraction"),
        ({"sample": 0.0}, "`--sample 0` is not a fraction"),
        ({"seed": 2**63}, "is not a number from 0 to"),
        ({"seed": -1}, "`--seed -1` is not a number from 0 to"),
        ({"memory": 1024}, "`--memory 1024` is too small"),
        ({"row_group_bytes": 2**31}, "would near 2 GiB"),
        ({"columns": ("id",), "exclude": ("half",)}, "`--columns` and `--exclude-columns` exclude each other"),
        ({"exclude": ("id", "half", "text")}, "`--exclude-columns` leaves no column"),
        ({"exclude": ("nope",)}, "`--exclude-columns` names `nope`"),
        ({"order_by": ("nope desc",)}, "`--order-by` names `nope`"),
        ({"order_by": ("id", "ID desc")}, "`--order-by` names a column twice"),
        ({"splits": (("train", 1.0),), "split_by": "half"}, "`--split-by half`: values of type `double`"),
        ({"as_is": True, "shuffle": True}, "`--as-is` copies the table's files, and `--shuffle`"),
        ({"as_is": True, "workers": 2}, "`--as-is` copies the table's files, and `--workers`"),
        ({"as_is": True, "compression": "snappy"}, "`--as-is` copies the table's files, and `--compression`"),
        ({"as_is": True, "where": "id > 1"}, "`--as-is` copies the table's files, and `--where`"),
        ({"query": "SELECT 1", "engine": "local"}, "`--query` and `--engine local` exclude each other"),
    ],
)
def test_flags_that_cannot_be_right_are_named(table: str, dest: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(StageError, match=words) as caught:
        planned(table, dest, **asked)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert not dest.exists()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(1, 5),
    workers=st.integers(0, 3),
    limit=st.integers(0, 400),
    drop=st.booleans(),
    splits=st.sampled_from([(), (("train", 0.6), ("validation", 0.4))]),
)
def test_a_plan_gives_every_reader_files_and_loses_no_row(
    table: str, dest: Path, world: int, workers: int, limit: int, drop: bool, splits: tuple[tuple[str, float], ...]
) -> None:
    readers = world * max(1, workers)
    try:
        plan = planned(table, dest, world_size=world, workers=workers, limit=limit, drop_remainder=drop, splits=splits)
    except InvalidRequest:
        # The smaller split has two fifths of the rows, give or take.
        assert limit < 10 * readers
        return
    assert plan.rows + plan.dropped == limit
    for split in plan.splits:
        assert split.rows == 0 or split.files % readers == 0
        assert split.rows >= split.files or (split.rows, split.files) == (0, 1)
        assert not drop or split.rows % split.files == 0
