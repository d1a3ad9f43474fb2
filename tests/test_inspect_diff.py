from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.exports import make_export, put_manifest
from tests.fixtures.logs import add, field, inline_vector, metadata, protocol, remove, write_log
from tests.fixtures.shell import uc_stage as command_line
from uc_stage.errors import InvalidRequest, NotFound, VerificationFailed
from uc_stage.inspection.diff import Side, compare
from uc_stage.manifest import Manifest
from uc_stage.model import Differing, DiffReport, Field, Retyped, RowsDiff

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table of three versions: 1,000 rows, 3,000, and these without one of the first data file's."""
    path = str(tmp_path / "orders")
    settings = {"delta.enableDeletionVectors": "false"}
    deltalake.write_deltalake(path, pa.table({"id": range(1000), "text": ["a"] * 1000}), configuration=settings)
    deltalake.write_deltalake(path, pa.table({"id": range(2000), "text": ["b"] * 2000}), mode="append")
    deltalake.DeltaTable(path).delete("id = 7 AND text = 'a'")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Callable[..., str]:
    return lambda source, **options: uc_stage.cache(str(source), cache_dir=str(tmp_path / "nvme"), **options)


def diff(one: object, other: object) -> DiffReport:
    return uc_stage.inspect(str(one), diff=str(other))


def origin(report: DiffReport) -> dict[str, tuple[Any, Any]]:
    return {differing.name: (differing.value, differing.other) for differing in report.origin}


# Tables


def test_two_versions_of_a_table_differ_in_the_rows_and_data_files_that_the_log_tells(table: str) -> None:
    report = diff(f"{table}@v0", f"{table}@v2")

    assert (report.target.version, report.other.version, report.same) == (0, 2, False)
    assert report.rows == RowsDiff(1000, 2999, 1999)
    assert (len(report.files.added), len(report.files.removed), report.files.same, report.files.by) == (2, 1, 0, "name")
    assert report.origin == (Differing("version", 0, 2),)
    grown = diff(f"{table}@v0", f"{table}@v1").files
    assert (len(grown.added), len(grown.removed), grown.same) == (1, 0, 1)


def test_a_data_file_whose_deleted_rows_are_others_is_changed(tmp_path: Path) -> None:
    one, two = inline_vector([5]), inline_vector([5, 6])
    begin = [protocol("deletionVectors"), metadata(field("id", "long")), add("a", 9, deletionVector=one), add("b", 9)]
    table = write_log(tmp_path / "t", begin, [remove("a", deletionVector=one), add("a", 9, deletionVector=two)])

    report = diff(f"{table}@v0", f"{table}@v1")

    assert (report.files.changed, report.files.same) == (("a",), 1)
    assert report.rows == RowsDiff(17, 16, -1)


def test_an_engine_that_does_not_list_a_tables_files_leaves_them_uncompared(table: str) -> None:
    """Spark tells how many there are, and not which."""
    sides = [Side.of_table(uc_stage.inspect(f"{table}@v{version}"), {}) for version in (0, 1)]

    report = compare(*sides)

    assert (report.files.by, report.files.reason) == (None, "the engine does not list a table's files")
    assert (report.same, report.rows.difference) == (False, 2000)


def test_the_columns_of_two_versions_are_added_removed_retyped_and_reordered(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"a": [1], "b": ["x"], "c": [1.5], "d": [True]}))
    after = pa.table({"d": [True], "a": pa.array([1], pa.int32()), "b": ["x"], "e": [2]})
    deltalake.write_deltalake(path, after, mode="overwrite", schema_mode="overwrite")

    schema = diff(f"{path}@v0", path).schema

    assert schema.added == (Field("e", "int64"),)
    assert schema.removed == (Field("c", "double"),)
    assert schema.retyped == (Retyped("a", "int64", "int32"),)
    assert schema.reordered


def test_a_table_is_the_same_as_itself_and_as_an_export_of_all_its_rows(table: str, tmp_path: Path) -> None:
    export = uc_stage.export(table, str(tmp_path / "export"), files=2).dest

    assert diff(table, f"{table}@v2").same
    report = diff(table, export)
    assert report.same
    assert "files of its own" in str(report.files.reason)
    behind = diff(export, f"{table}@v1")
    assert (behind.same, behind.rows.difference, origin(behind)) == (False, 1, {"version": (2, 1)})


def test_an_export_of_some_rows_and_columns_is_not_the_same_as_its_table(table: str, tmp_path: Path) -> None:
    export = uc_stage.export(table, str(tmp_path / "export"), where="id < 10", columns=["id"]).dest

    report = diff(table, export)

    assert (report.same, report.rows) == (False, RowsDiff(2999, 19, -2980))
    assert report.schema.removed == (Field("text", "string"),)
    assert report.origin == ()


# Exports


def test_two_exports_differ_in_version_options_and_the_rows_of_each_split(table: str, tmp_path: Path) -> None:
    old = uc_stage.export(f"{table}@v0", str(tmp_path / "old"), files=2).dest
    new = uc_stage.export(table, str(tmp_path / "new"), files=2, split={"train": 0.5, "test": 0.5}, seed=3).dest

    report = diff(old, new)

    told = origin(report)
    assert told["version"] == (0, 2)
    assert told["options.splits"] == (None, ("train=0.5", "test=0.5"))
    assert told["options.seed"] == (None, 3)
    assert told["generation"] == (report.target.generation, report.other.generation)
    assert told.keys() == {"version", "generation", "options.splits", "options.seed"}
    assert report.splits["test"].rows == 0
    assert report.splits["train"].other == uc_stage.inspect(new).splits["train"]
    assert sum(split.difference or 0 for split in report.splits.values()) == report.rows.difference == 1999


def test_files_of_two_generations_are_matched_by_what_is_before_the_generation(tmp_path: Path) -> None:
    """The same content under the name of another generation is the same file."""
    make_export(str(tmp_path / "a"))
    manifest = make_export(str(tmp_path / "b"))
    names = {file.path: file.path.replace("v1-000001", "v1-aaaaaa") for file in manifest.files}
    for before, after in names.items():
        os.rename(tmp_path / "b" / before, tmp_path / "b" / after)
    renamed = [file.__class__(names[file.path], file.bytes, file.rows, 1, file.xxh3_128) for file in manifest.files]
    put_manifest(str(tmp_path / "b"), manifest, generation="v1-aaaaaa", splits={"train": tuple(renamed)})

    report = diff(tmp_path / "a", tmp_path / "b")

    assert (report.same, report.files.same, report.files.by) == (True, 3, "hash")
    assert origin(report) == {"generation": ("v1-000001", "v1-aaaaaa")}


def test_files_are_compared_by_their_size_where_no_hash_is_recorded(tmp_path: Path) -> None:
    make_export(str(tmp_path / "a"), hashes=False)
    make_export(str(tmp_path / "b"))

    files = diff(tmp_path / "a", tmp_path / "b").files

    assert (files.by, files.same) == ("size", 3)


# Copies


def test_an_export_and_its_copy_are_the_same_until_a_file_of_one_goes_or_changes(
    tmp_path: Path, cache: Callable[..., str]
) -> None:
    make_export(str(tmp_path / "export"))
    copy = cache(tmp_path / "export")

    whole = diff(tmp_path / "export", copy)
    first, second, third = sorted(name for name in os.listdir(copy) if name.endswith(".parquet"))
    os.unlink(os.path.join(copy, first))
    with open(os.path.join(copy, second), "ab") as file:
        file.write(b"x")
    broken = diff(tmp_path / "export", copy)

    assert (whole.same, whole.files.same, whole.files.by) == (True, 3, "hash")
    assert (broken.same, broken.files.removed, broken.files.changed) == (False, (first,), (second,))
    assert (broken.files.same, third in broken.files.changed) == (1, False)


def test_a_stale_copy_differs_from_its_export_in_files_whose_sizes_are_the_same(
    tmp_path: Path, cache: Callable[..., str]
) -> None:
    make_export(str(tmp_path / "export"))
    copy = cache(tmp_path / "export")
    make_export(str(tmp_path / "export"), version=2)

    report = diff(copy, tmp_path / "export")

    assert origin(report)["version"] == (1, 2)
    assert (report.same, len(report.files.changed), report.rows.difference) == (False, 3, 0)


def test_a_copy_as_arrow_has_files_of_its_own_and_is_told_from_a_stale_one_by_its_record(
    tmp_path: Path, cache: Callable[..., str]
) -> None:
    make_export(str(tmp_path / "export"))
    arrow = cache(tmp_path / "export", form="arrow")

    same = diff(tmp_path / "export", arrow)
    make_export(str(tmp_path / "export"), version=2)
    stale = diff(tmp_path / "export", arrow)

    assert (same.same, same.rows.difference, same.origin) == (True, 0, ())
    assert same.files.reason == "a copy as Arrow has files of its own"
    assert (stale.same, stale.rows.difference) == (False, 0)
    assert origin(stale).keys() == {"generation", "id"}


def test_a_packed_copy_is_compared_by_the_files_in_its_shards(tmp_path: Path, cache: Callable[..., str]) -> None:
    folder = tmp_path / "images"
    (folder / "cat").mkdir(parents=True)
    for number in range(9):
        (folder / "cat" / f"{number}.jpg").write_bytes(bytes(10 + number))
    (folder / "_SUCCESS").write_bytes(b"")
    packed = cache(folder, pack=True)

    same = diff(packed, folder)
    (folder / "cat" / "3.jpg").write_bytes(b"other")
    (folder / "cat" / "4.jpg").unlink()
    (folder / "dog.jpg").write_bytes(b"new")
    other = diff(packed, folder)
    os.unlink(os.path.join(packed, "index.feather"))
    blind = diff(packed, folder)

    assert (same.same, same.files.same, same.rows) == (True, 9, RowsDiff(None, None, None))
    assert other.files.added == ("dog.jpg",)
    assert other.files.removed == ("cat/4.jpg",)
    assert other.files.changed == ("cat/3.jpg",)
    assert (other.files.same, other.files.by, other.same) == (7, "size", False)
    assert "index" in str(blind.files.reason)


def test_forms_that_share_no_file_are_not_compared_by_files(tmp_path: Path, cache: Callable[..., str]) -> None:
    make_export(str(tmp_path / "export"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"x")

    arrow, packed = cache(tmp_path / "export", form="arrow"), cache(tmp_path / "images", pack=True)

    assert diff(packed, arrow).files.by is None
    assert diff(packed, arrow).same is False  # other columns


# Folders


def test_two_plain_folders_are_compared_by_size_and_schema(tmp_path: Path) -> None:
    for name, kind in (("a", pa.int64()), ("b", pa.int32())):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": pa.array(range(10), kind)}), tmp_path / name / "x.parquet")
    (tmp_path / "b" / "_SUCCESS").write_bytes(b"")

    report = diff(tmp_path / "a", tmp_path / "b")

    assert report.schema.retyped == (Retyped("id", "int64", "int32"),)
    assert (report.files.changed, report.files.added, report.rows.difference) == (("x.parquet",), (), 0)
    assert (report.origin, report.splits) == ((), {})


# What cannot be compared


def test_other_that_is_not_there_or_damaged_is_an_error_as_ever(tmp_path: Path, cache: Callable[..., str]) -> None:
    make_export(str(tmp_path / "export"))
    copy = cache(tmp_path / "export")

    with pytest.raises(NotFound, match="nowhere"):
        diff(tmp_path / "export", tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="is a cache folder"):
        diff(tmp_path / "export", tmp_path / "nvme")
    with pytest.raises(InvalidRequest, match="one version alone"):
        diff(tmp_path / "export", f"{copy}@v3")
    with pytest.raises(InvalidRequest, match="verifies nothing"):
        uc_stage.inspect(copy, diff=copy, verify=True)
    Path(copy, ".uc_stage", "copy.json").write_text("{")
    with pytest.raises(VerificationFailed, match=r"copy\.json"):
        diff(tmp_path / "export", copy)


# The command


def test_a_person_sees_what_differs_and_a_script_gets_the_same(table: str, tmp_path: Path) -> None:
    old = uc_stage.export(f"{table}@v0", str(tmp_path / "old"), files=7).dest
    new = uc_stage.export(table, str(tmp_path / "new"), files=1, columns=["id"]).dest

    shown, told = command_line("inspect", old, "--diff", new), command_line("inspect", old, "--diff", new, "--json")

    assert (shown.code, told.code, shown.err) == (0, 0, "")
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["version", "0", "2", "differs"] in lines
    assert ["rows", "1,000", "2,999", "+1,999"] in lines
    assert ["-", "text:", "string"] in lines
    assert ["-", "and", "2", "more", "removed:", "--json", "has", "them"] in lines
    assert lines[-1] == ["not", "the", "same"]
    data = told.json["data"]
    assert (told.json["command"], told.json["status"], data["same"]) == ("inspect", "done", False)
    assert data["rows"] == {"rows": 1000, "other": 2999, "difference": 1999}
    assert len(data["files"]["removed"]) == 7
    assert data["target"]["kind"] == data["other"]["kind"] == "export"


def test_a_person_sees_that_nothing_differs(tmp_path: Path) -> None:
    make_export(str(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    done = command_line("inspect", tmp_path / "a", "--diff", tmp_path / "b")

    assert done.code == 0
    assert "files: 3 files the same by hash\n\nthe same\n" in done.out
    assert [line.split() for line in done.out.splitlines() if line.startswith("generation")] == [
        ["generation", "v1-000001", "v1-000001"]
    ]


def test_a_diff_of_other_forms_and_orders_says_so(tmp_path: Path, cache: Callable[..., str]) -> None:
    make_export(str(tmp_path / "export"))
    arrow = cache(tmp_path / "export", form="arrow")
    for name, columns in (("a", ["x", "y"]), ("b", ["y", "x"])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({column: [1] for column in columns}), tmp_path / name / "x.parquet")

    assert "files were not compared: a copy as Arrow" in command_line("inspect", arrow, "--diff", tmp_path / "a").out
    assert "the columns are in another order" in command_line("inspect", tmp_path / "a", "--diff", tmp_path / "b").out
    assert command_line("inspect", "--diff", arrow).code == 2
    assert command_line("inspect", arrow, "--diff", arrow, "--snippet", "torch").code == 2


# How far behind


def test_an_export_tells_how_many_versions_and_rows_it_is_behind(table: str, tmp_path: Path) -> None:
    behind = uc_stage.inspect(uc_stage.export(f"{table}@v0", str(tmp_path / "a")).dest)
    ahead = uc_stage.inspect(uc_stage.export(f"{table}@v1", str(tmp_path / "b")).dest)
    fresh = uc_stage.inspect(uc_stage.export(table, str(tmp_path / "c")).dest)
    part = uc_stage.inspect(uc_stage.export(f"{table}@v0", str(tmp_path / "d"), where="id < 5").dest)

    assert (behind.freshness, behind.versions_behind, behind.rows_behind) == ("stale", 2, 1999)
    assert str(behind.freshness_detail).endswith("is at version 2: 2 versions behind, it has 1,999 rows more")
    assert (ahead.versions_behind, ahead.rows_behind) == (1, -1)
    assert str(ahead.freshness_detail).endswith("1 version behind, it has 1 row fewer")
    assert (fresh.freshness, fresh.versions_behind, fresh.rows_behind) == ("fresh", 0, 0)
    assert (part.versions_behind, part.rows_behind) == (2, None)


def test_a_copy_tells_how_far_it_is_behind_its_export_and_that_behind_its_table(
    table: str, tmp_path: Path, cache: Callable[..., str]
) -> None:
    dest = str(tmp_path / "export")
    uc_stage.export(f"{table}@v0", dest)
    files, arrow = cache(dest), cache(dest, form="arrow")
    at_first = uc_stage.inspect(files)
    uc_stage.export(f"{table}@v1", dest)
    later = [uc_stage.inspect(path) for path in (files, arrow)]

    assert (at_first.freshness, at_first.versions_behind, at_first.rows_behind) == ("fresh", 0, 0)
    assert at_first.source_freshness
    assert (at_first.source_freshness.state, at_first.source_freshness.versions_behind) == ("stale", 2)
    for report in later:
        assert (report.freshness, report.versions_behind, report.rows_behind) == ("stale", 1, 2000)
        assert report.source_freshness
        assert report.source_freshness.rows_behind == -1
    listed = {copy.path: copy for copy in uc_stage.inspect(cache_dir=str(tmp_path / "nvme")).copies}
    assert (listed[files].versions_behind, listed[files].rows_behind) == (1, 2000)
    assert (listed[arrow].versions_behind, listed[arrow].rows_behind) == (1, None)
    assert "  its source    stale: " in command_line("inspect", files).out


def test_an_export_made_anew_of_the_same_version_makes_copies_stale_by_no_version(
    table: str, tmp_path: Path, cache: Callable[..., str]
) -> None:
    dest = str(tmp_path / "export")
    uc_stage.export(table, dest, files=1)
    copy = cache(dest)
    uc_stage.export(table, dest, files=2)

    report = uc_stage.inspect(copy)

    assert (report.freshness, report.versions_behind, report.rows_behind) == ("stale", 0, 0)
    assert "of the same version, exported anew, it has as many rows" in str(report.freshness_detail)


def test_a_part_of_an_export_is_not_compared_by_rows(table: str, tmp_path: Path, cache: Callable[..., str]) -> None:
    dest = uc_stage.export(f"{table}@v0", str(tmp_path / "export"), files=3).dest
    copy = cache(dest, shard="0/3")
    uc_stage.export(table, dest)

    report = uc_stage.inspect(copy)

    assert (report.versions_behind, report.rows_behind) == (2, None)


def test_a_table_that_does_not_answer_keeps_no_copy_from_being_looked_at(
    tmp_path: Path, cache: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from uc_stage.inspection import freshness
    from uc_stage.manifest import MANIFEST_PATH

    manifest = make_export(str(tmp_path / "export"))
    assert isinstance(manifest, Manifest)
    assert (tmp_path / "export" / MANIFEST_PATH).exists()
    never = threading.Event()

    def resolve(_: str) -> Any:
        never.wait(20)
        raise NotFound("at last")

    told = freshness.of_source(manifest, resolve, seconds=0.05)
    never.set()

    assert (told.state, "did not answer" in told.detail) == ("unknown", True)
