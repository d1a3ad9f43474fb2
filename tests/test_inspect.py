from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.exports import make_export, put_manifest
from uc_stage.errors import InvalidRequest, NotFound, StageError, Unavailable, Unsupported, VerificationFailed
from uc_stage.model import Field, InspectReport, Spread
from uc_stage.publish import Publication
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.volume import Volume

ODD = os.path.join(os.path.dirname(__file__), "data", "parquet")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A Delta table of two versions, with 1,000 and 3,000 rows."""
    path = str(tmp_path / "orders")
    deltalake.write_deltalake(path, pa.table({"id": range(1000), "text": ["a"] * 1000}))
    deltalake.write_deltalake(path, pa.table({"id": range(2000), "text": ["b"] * 2000}), mode="append")
    return path


@pytest.fixture
def export(table: str, tmp_path: Path) -> str:
    return uc_stage.export(table, str(tmp_path / "export"), files=3).dest


def found(report: InspectReport) -> list[tuple[str, str | None]]:
    return [(problem.code, problem.path) for problem in report.problems]


def names(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 255]))


# Tables


def test_a_delta_table_is_told_as_a_table_of_its_newest_version(table: str) -> None:
    report = uc_stage.inspect(table)

    assert (report.kind, report.version, report.rows, report.files) == ("table", 1, 3000, 2)
    assert report.source == table
    assert report.table_id == str(deltalake.DeltaTable(table).metadata().id)
    assert report.schema == (Field("id", "int64"), Field("text", "string"))
    assert report.bytes == sum(os.path.getsize(os.path.join(table, name)) for name in names(table))
    assert report.engine
    assert report.engine.startswith("local (uc-stage ")
    assert report.created_at
    assert report.problems == ()


def test_a_version_of_a_table_is_pinned_by_text_by_number_and_by_time(table: str) -> None:
    first = uc_stage.inspect(table, version=0)

    assert (first.version, first.rows, first.files) == (0, 1000, 1)
    assert uc_stage.inspect(f"{table}@v0").rows == 1000
    assert uc_stage.inspect(table, timestamp=first.created_at).version == 0


def test_deleted_rows_are_not_counted(table: str) -> None:
    deltalake.DeltaTable(table).delete("text = 'a'")

    assert uc_stage.inspect(table).rows == 2000


def test_a_version_that_is_not_there_is_not_found(table: str) -> None:
    with pytest.raises(NotFound):
        uc_stage.inspect(table, version=7)


def test_a_table_has_no_hashes_to_verify(table: str) -> None:
    with pytest.raises(InvalidRequest, match="records no hashes") as raised:
        uc_stage.inspect(table, verify=True)

    assert f"uc-stage export {table}" in str(raised.value.hint)


def test_a_catalog_name_that_is_no_path_goes_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("DATABRICKS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")

    with pytest.raises(StageError) as raised:
        uc_stage.inspect("main.sales.orders")

    assert isinstance(raised.value, Unavailable)
    assert "main.sales.orders" in raised.value.message


# Exports


def test_an_export_is_told_by_its_manifest_and_its_footers(table: str, export: str) -> None:
    report = uc_stage.inspect(export)

    assert (report.kind, report.source, report.version, report.rows, report.files) == ("export", table, 1, 3000, 3)
    assert report.splits == {"train": 3000}
    assert report.generation
    assert report.generation.startswith("v1-")
    assert report.id
    assert report.bytes == sum(os.path.getsize(os.path.join(export, name)) for name in names(export))
    assert (report.row_groups, report.row_group_rows, report.compression) == (3, Spread(1000, 1000, 1000), "zstd")
    assert report.schema == (Field("id", "int64"), Field("text", "string"))
    assert report.verified is None
    assert report.problems == ()


def test_an_export_is_fresh_until_its_table_has_a_newer_version(table: str, export: str) -> None:
    fresh = uc_stage.inspect(export)
    deltalake.DeltaTable(table).delete("id = 1")
    stale = uc_stage.inspect(export)

    assert fresh.freshness == "fresh"
    assert stale.freshness == "stale"
    assert "1 version behind" in str(stale.freshness_detail)


def test_an_export_of_a_table_that_was_made_anew_is_stale_at_the_same_version(table: str, export: str) -> None:
    shutil.rmtree(table)
    for mode in ("error", "append"):
        deltalake.write_deltalake(table, pa.table({"id": [1], "text": ["a"]}), mode=mode)

    report = uc_stage.inspect(export)

    assert report.freshness == "stale"
    assert "made anew" in str(report.freshness_detail)


def test_an_export_ahead_of_its_table_is_stale(table: str, export: str) -> None:
    os.unlink(os.path.join(table, "_delta_log", f"{1:020d}.json"))

    report = uc_stage.inspect(export)

    assert report.freshness == "stale"
    assert "1 version ahead" in str(report.freshness_detail)


def test_freshness_is_unknown_with_the_reason_where_the_table_is_gone(table: str, export: str) -> None:
    shutil.rmtree(table)

    report = uc_stage.inspect(export)

    assert report.freshness == "unknown"
    assert table in str(report.freshness_detail)


def test_missing_truncated_and_grown_files_of_an_export_are_named(export: str) -> None:
    gone, short, grown = names(export)
    os.unlink(os.path.join(export, gone))
    os.truncate(os.path.join(export, short), 100)
    with open(os.path.join(export, grown), "ab") as file:
        file.write(b"more")

    report = uc_stage.inspect(export)

    assert found(report) == [("missing", gone), ("truncated", short), ("size_differs", grown)]
    assert report.files == 2
    assert report.rows == 3000


def test_strays_of_a_killed_export_are_told_from_other_extra_files(export: str, table: str) -> None:
    stray = "train-00000-of-00001-v2-0a1b2c.parquet"
    shutil.copy(os.path.join(export, names(export)[0]), os.path.join(export, stray))
    pq.write_table(pa.table({"id": [1]}), os.path.join(export, "mine.parquet"))

    report = uc_stage.inspect(export)

    assert found(report) == [("extra", "mine.parquet"), ("stray", stray)]
    assert report.files == 3


def test_the_files_of_an_export_that_runs_are_no_strays(export: str) -> None:
    with Publication(open_folder(export), 2) as publication:
        name = publication.name("train", 0, 1)
        file = publication.create(name)
        file.write(b"half")
        file.close()

        assert found(uc_stage.inspect(export)) == [("in_progress", name)]


def test_what_a_first_export_that_was_killed_left_is_a_stray(tmp_path: Path) -> None:
    stray = "train-00000-of-00001-v2-0a1b2c.parquet"
    pq.write_table(pa.table({"id": [1]}), tmp_path / stray)

    report = uc_stage.inspect(str(tmp_path))

    assert report.kind == "folder"
    assert found(report) == [("stray", stray)]


def test_kept_generations_are_part_of_an_export(table: str, tmp_path: Path) -> None:
    dest = str(tmp_path / "export")
    uc_stage.export(table, dest, files=1)
    deltalake.DeltaTable(table).delete("id = 1")
    uc_stage.export(table, dest, files=1, keep=1)

    report = uc_stage.inspect(dest, verify=True)

    assert len(names(dest)) == 2
    assert (report.version, report.files, report.verified, report.problems) == (2, 1, True, ())


def test_a_footer_that_contradicts_the_manifest_is_a_problem(tmp_path: Path) -> None:
    manifest = make_export(str(tmp_path), files=2, rows=10)
    put_manifest(str(tmp_path), manifest, schema=(Field("id", "int32"),))
    first, second = names(str(tmp_path))
    data = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(9)}), data)
    padding = os.path.getsize(tmp_path / first) - data.tell()
    content = data.getvalue().to_pybytes()
    # Room before the footer is allowed: the file has its recorded size, and fewer rows.
    split = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    (tmp_path / first).write_bytes(content[:split] + bytes(max(0, padding)) + content[split:])

    report = uc_stage.inspect(str(tmp_path))

    assert ("rows_differ", first) in found(report)
    assert ("schema_differs", second) in found(report)


@pytest.mark.parametrize("content", [b"not json", b'{"format": "uc-stage/9"}', b"{}"])
def test_a_damaged_manifest_is_no_export_and_no_traceback(tmp_path: Path, content: bytes) -> None:
    make_export(str(tmp_path))
    (tmp_path / ".uc_stage" / "manifest.json").write_bytes(content)

    with pytest.raises((VerificationFailed, Unsupported)):
        uc_stage.inspect(str(tmp_path))


def test_a_version_is_for_tables_alone(export: str) -> None:
    with pytest.raises(InvalidRequest, match="no table but an export"):
        uc_stage.inspect(export, version=1)
    with pytest.raises(InvalidRequest, match="no table but a file"):
        uc_stage.inspect(os.path.join(export, names(export)[0]), timestamp="2026-01-01")


# --verify


def test_verify_reads_every_byte_and_says_by_what(export: str) -> None:
    report = uc_stage.inspect(export, verify=True)

    assert (report.verified, report.verified_detail) == (True, "3 files by their xxh3_128")


def test_verify_names_the_file_with_one_changed_byte_of_the_same_size(export: str) -> None:
    _, changed, _ = names(export)
    flip(os.path.join(export, changed), 40)

    assert uc_stage.inspect(export).problems == ()
    report = uc_stage.inspect(export, verify=True)

    assert report.verified is False
    assert found(report) == [("changed", changed)]


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_verify_fails_where_a_file_is_missing_or_short(export: str, damage: str) -> None:
    path = os.path.join(export, names(export)[0])
    if damage == "missing":
        os.unlink(path)
    else:
        os.truncate(path, 10)

    assert uc_stage.inspect(export, verify=True).verified is False


def test_strays_do_not_make_an_export_fail_verification(export: str) -> None:
    shutil.copy(os.path.join(export, names(export)[0]), os.path.join(export, "train-00000-of-00001-v2-0a1b2c.parquet"))

    assert uc_stage.inspect(export, verify=True).verified is True


def test_a_file_without_a_recorded_hash_is_decoded_whole(tmp_path: Path) -> None:
    make_export(str(tmp_path), files=2, hashes=False)
    good = uc_stage.inspect(str(tmp_path), verify=True)
    flip(str(tmp_path / names(str(tmp_path))[0]), 5)  # in the first page's header
    bad = uc_stage.inspect(str(tmp_path), verify=True)

    assert good.verified is True
    assert good.verified_detail == "2 files by decoding every page, since no hash is recorded"
    assert bad.verified is False
    assert found(bad) == [("unreadable", names(str(tmp_path))[0])]


def test_verify_of_a_folder_without_a_record_decodes_parquet_and_reads_the_rest(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("text")

    report = uc_stage.inspect(str(tmp_path), verify=True)

    assert report.verified is True
    assert "1 file by decoding every page" in str(report.verified_detail)
    assert "1 file by reading them alone" in str(report.verified_detail)


def test_verify_of_nothing_says_so(tmp_path: Path) -> None:
    assert uc_stage.inspect(str(tmp_path), verify=True).verified_detail == "there are no files"


def test_verify_tells_progress_in_bytes(export: str) -> None:
    class Watched:
        def __init__(self) -> None:
            self.phases: dict[str, list[Any]] = {}

        def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
            self.phases[name] = [total, unit, 0]

        def advance(self, amount: int) -> None:
            list(self.phases.values())[-1][2] += amount

        def note(self, message: str) -> None:
            raise AssertionError(message)

    watched = Watched()
    report = uc_stage.inspect(export, verify=True, progress=watched)

    assert watched.phases == {"verify": [report.bytes, "bytes", report.bytes]}


def test_a_mount_that_gives_other_bytes_is_found_out(volume: Volume) -> None:
    make_export(os.path.join(volume.backing, "export"))
    target = os.path.join(volume.mount, "export")
    bad = names(target)[1]
    assert uc_stage.inspect(target, verify=True).verified is True
    volume.fault(f"export/{bad}", flip=30)

    report = uc_stage.inspect(target, verify=True)

    assert report.verified is False
    assert ("changed", bad) in found(report)


def test_a_mount_that_fails_to_read_is_a_problem_of_that_file(volume: Volume) -> None:
    make_export(os.path.join(volume.backing, "export"))
    target = os.path.join(volume.mount, "export")
    bad = names(target)[0]
    volume.fault(f"export/{bad}", error=5)

    report = uc_stage.inspect(target, verify=True)

    assert report.verified is False
    assert ("unreadable", bad) in found(report)


# Copies


def test_a_copy_is_told_with_its_source_and_verified(export: str, tmp_path: Path) -> None:
    copy = uc_stage.cache(export, cache_dir=str(tmp_path / "cache"))

    report = uc_stage.inspect(copy, verify=True)

    assert (report.kind, report.source, report.rows, report.files) == ("copy", export, 3000, 3)
    assert (report.freshness, report.verified) == ("fresh", True)
    assert report.generation == uc_stage.inspect(export).generation
    assert report.problems == ()


def test_a_copy_is_stale_once_its_source_has_another_generation(table: str, export: str, tmp_path: Path) -> None:
    copy = uc_stage.cache(export, cache_dir=str(tmp_path / "cache"))
    deltalake.DeltaTable(table).delete("id = 1")
    uc_stage.export(table, export, files=3)

    report = uc_stage.inspect(copy)

    assert report.freshness == "stale"
    assert str(uc_stage.inspect(export).generation) in str(report.freshness_detail)


def test_a_copys_freshness_is_unknown_where_its_source_is_gone(export: str, tmp_path: Path) -> None:
    copy = uc_stage.cache(export, cache_dir=str(tmp_path / "cache"))
    shutil.rmtree(export)

    report = uc_stage.inspect(copy)

    assert report.freshness == "unknown"
    assert export in str(report.freshness_detail)


def test_a_copy_of_a_plain_folder_is_told_by_its_record(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(4):
        (tmp_path / "images" / f"{number}.png").write_bytes(bytes([number]) * 100)
    copy = uc_stage.cache(str(tmp_path / "images"), cache_dir=str(tmp_path / "cache"))
    clean = uc_stage.inspect(copy, verify=True)
    flip(os.path.join(copy, "2.png"), 50)
    with open(os.path.join(copy, "more.png"), "wb"):
        pass
    spoilt = uc_stage.inspect(copy, verify=True)

    assert (clean.kind, clean.files, clean.bytes, clean.rows, clean.verified) == ("copy", 4, 400, None, True)
    assert (clean.freshness, clean.problems) == ("fresh", ())
    assert spoilt.verified is False
    assert found(spoilt) == [("extra", "more.png"), ("changed", "2.png")]


# Folders


def test_a_folder_of_parquet_is_told_by_its_footers(tmp_path: Path) -> None:
    for number, rows in enumerate((10, 30, 20)):
        (tmp_path / f"day={number}").mkdir()
        pq.write_table(pa.table({"id": range(rows)}), tmp_path / f"day={number}" / "a.parquet", row_group_size=20)

    report = uc_stage.inspect(str(tmp_path))

    assert (report.kind, report.rows, report.files, report.row_groups) == ("folder", 60, 3, 4)
    assert report.row_group_rows == Spread(10, 15, 20)
    assert report.file_bytes
    assert report.file_bytes.min < report.file_bytes.max
    assert (report.compression, report.schema) == ("snappy", (Field("id", "int64"),))
    assert (report.freshness, report.id, report.splits, report.problems) == (None, None, {}, ())


def test_what_is_odd_in_a_folder_is_named(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": [number], "text": ["a"]}), tmp_path / f"good{number}.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "_committed_123").write_text("{}")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "page.parquet").write_text("<html>an error page that was saved under this name</html>")
    (tmp_path / ".hidden.parquet.crc").write_text("crc")

    report = uc_stage.inspect(str(tmp_path))

    assert found(report) == [
        ("marker", "_SUCCESS"),
        ("marker", "_committed_123"),
        ("zero_byte", "empty.parquet"),
        ("unreadable", "page.parquet"),
    ]
    assert (report.rows, report.files) == (3, 5)
    assert uc_stage.inspect(str(tmp_path), verify=True).verified is False


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"id": [1]}, "lacks `text`"),
        ({"id": [1], "text": ["a"], "more": [1]}, "has `more` too"),
        ({"id": [1.5], "text": ["a"]}, "`id` is double, not int64"),
        ({"text": ["a"], "id": [1]}, "the columns are in another order"),
        ({f"c{n}": [n] for n in range(5)}, "and 4 more"),
    ],
)
def test_files_of_another_schema_than_most_are_named_with_the_difference(
    tmp_path: Path, odd: dict[str, list[Any]], words: str
) -> None:
    for number in range(6):
        pq.write_table(pa.table({"id": [1], "text": ["a"]}), tmp_path / f"good{number}.parquet")
    for number in range(5):
        pq.write_table(pa.table(odd), tmp_path / f"odd{number}.parquet")

    report = uc_stage.inspect(str(tmp_path))

    [problem] = report.problems
    assert (problem.code, problem.path) == ("schema_differs", "odd0.parquet")
    assert words in problem.message
    assert "`odd3.parquet` and 1 more, has another schema than most files: " in problem.message
    assert report.schema == (Field("id", "int64"), Field("text", "string"))


def test_nullability_alone_makes_no_other_schema(tmp_path: Path) -> None:
    for name, nullable in (("a", True), ("b", False)):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=nullable)])
        pq.write_table(pa.table({"id": [1]}, schema=schema), tmp_path / f"{name}.parquet")

    assert uc_stage.inspect(str(tmp_path)).problems == ()


def test_a_delta_table_in_a_folder_is_not_counted_as_parquet(table: str, tmp_path: Path) -> None:
    (tmp_path / "lake" / "raw").mkdir(parents=True)
    shutil.move(table, tmp_path / "lake" / "orders")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "lake" / "raw" / "a.parquet")

    report = uc_stage.inspect(str(tmp_path / "lake"))

    assert (report.rows, report.files) == (1, 1)
    assert found(report) == [("table", "orders")]


def test_a_folder_without_parquet_is_told_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "b.txt").write_text("")

    report = uc_stage.inspect(str(tmp_path))

    assert (report.files, report.bytes, report.rows, report.row_groups, report.schema) == (2, 5, None, None, ())
    assert found(report) == [("zero_byte", "b.txt")]


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    report = uc_stage.inspect(str(tmp_path))

    assert (report.kind, report.files, report.bytes, report.file_bytes) == ("folder", 0, 0, None)


def test_odd_files_in_a_folder_are_problems_never_an_end(tmp_path: Path) -> None:
    shutil.copytree(ODD, tmp_path / "odd")

    report = uc_stage.inspect(str(tmp_path / "odd"), verify=True)

    unreadable = {problem.path for problem in report.problems if problem.code == "unreadable"}
    assert unreadable == {
        "corrupt-checksum.parquet",
        "encrypted-columns.parquet",
        "encrypted.parquet",
        "incorrect_map_schema.parquet",
        "invalid_utf8.parquet",
        "unknown-codec.parquet",
    }
    assert report.verified is False


# Files


def test_one_parquet_file_is_told_by_its_footer(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet", row_group_size=5, compression="zstd")

    report = uc_stage.inspect(str(tmp_path / "a.parquet"))

    assert (report.kind, report.files, report.rows, report.row_groups) == ("file", 1, 10, 2)
    assert (report.bytes, report.compression) == (os.path.getsize(tmp_path / "a.parquet"), "zstd")


def test_parquet_under_another_name_is_known_by_its_end(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "part-0")

    report = uc_stage.inspect(str(tmp_path / "part-0"), verify=True)

    assert (report.rows, report.verified) == (10, True)
    assert "decoding" in str(report.verified_detail)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "elsewhere" / "a.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "a.parquet")

    assert uc_stage.inspect(str(tmp_path / "link")).rows == 10


def test_one_file_that_is_no_parquet_has_its_size(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"jpeg")

    report = uc_stage.inspect(str(tmp_path / "a.jpg"))

    assert (report.kind, report.files, report.bytes, report.rows) == ("file", 1, 4, None)


@pytest.mark.parametrize(
    ("name", "error"), [("unknown-codec.parquet", VerificationFailed), ("encrypted.parquet", Unsupported)]
)
def test_one_file_that_cannot_be_read_is_the_error(name: str, error: type[StageError]) -> None:
    with pytest.raises(error, match=name):
        uc_stage.inspect(os.path.join(ODD, name))


# Where nothing is, and other storage


def test_what_is_not_there_is_not_found_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()

    with pytest.raises(NotFound) as near:
        uc_stage.inspect(str(tmp_path / "order"))
    with pytest.raises(NotFound) as above:
        uc_stage.inspect(str(tmp_path / "ordres" / "2026" / "a.parquet"))
    with pytest.raises(NotFound) as far:
        uc_stage.inspect(str(tmp_path / "unlike"))

    assert near.value.hint == f"did you mean `{tmp_path / 'orders'}`?"
    assert above.value.hint == f"did you mean `{tmp_path / 'orders'}`?"
    assert f"`{tmp_path}` is there, `unlike` is not" in str(far.value.hint)


@pytest.mark.parametrize("target", ["data.parquet", "nothing", "memory://inspect-nothing/here"])
def test_a_text_with_a_names_form_is_a_path_that_is_not_there(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotFound, match=target):
        uc_stage.inspect(target)


def test_an_empty_target_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        uc_stage.inspect(" ")


def test_an_export_behind_a_url_is_inspected_and_verified(tmp_path: Path) -> None:
    make_export(str(tmp_path))
    folder = open_folder("memory://inspect/export")
    for entry in open_folder(str(tmp_path)).entries():
        folder.put(entry.path, (tmp_path / entry.path).read_bytes())

    report = uc_stage.inspect("memory://inspect/export", verify=True)
    one = uc_stage.inspect(f"memory://inspect/export/{names(str(tmp_path))[0]}")

    assert (report.kind, report.rows, report.verified, report.problems) == ("export", 3000, True, ())
    assert (one.kind, one.rows) == ("file", 1000)
