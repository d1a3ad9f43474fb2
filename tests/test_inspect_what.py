from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.shell import uc_stage as command_line
from uc_stage import chunks, parquet
from uc_stage.errors import InvalidRequest, Unsupported, VerificationFailed
from uc_stage.inspection import contents, freshness
from uc_stage.manifest import Manifest
from uc_stage.model import Column, InspectReport, Pile
from uc_stage.publish import list_copies
from uc_stage.storage import open_folder
from uc_stage.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.volume import Volume

ODD = os.path.join(os.path.dirname(__file__), "data", "parquet")


def sample(rows: int = 300) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "label": pa.array([n % 10 if n % 3 else None for n in range(rows)], pa.int8()),
            "when": pa.array(range(rows), pa.timestamp("us", "UTC")),
            "pair": [[float(n), 1.0] for n in range(rows)],
            "origin": [{"word": "ab"[n % 2], "a.b": n} for n in range(rows)],
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> str:
    pq.write_table(sample(), tmp_path / "a.parquet", row_group_size=100, compression="zstd")
    pq.write_table(sample(), tmp_path / "b.parquet", compression="snappy", use_dictionary=["label"])
    return str(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "orders")
    deltalake.write_deltalake(path, sample().drop_columns(["when"]))
    return path


def column(report: InspectReport, path: str) -> Column:
    return next(found for found in report.columns if found.path == path)


def truth(folder: str, number: int, fact: str) -> int:
    """What pyarrow tells of one leaf, over all row groups of all files."""
    total = 0
    for name in sorted(os.listdir(folder)):
        metadata = pq.read_metadata(os.path.join(folder, name))
        total += sum(getattr(metadata.row_group(g).column(number), fact) for g in range(metadata.num_row_groups))
    return total


# What the footers tell


def test_each_column_is_told_with_what_the_footers_tell_of_it(folder: str) -> None:
    report = uc_stage.inspect(folder)

    paths = ["id", "label", "when", "pair.list.element", "origin.word", "origin.a.b"]
    assert [found.path for found in report.columns] == paths
    assert [found.column for found in report.columns] == ["id", "label", "when", "pair", "origin", "origin"]
    for number, found in enumerate(report.columns):
        assert found.bytes == truth(folder, number, "total_compressed_size")
        assert found.uncompressed == truth(folder, number, "total_uncompressed_size")
        assert found.values == truth(folder, number, "num_values")
    label, when = column(report, "label"), column(report, "when")
    assert (label.physical, label.logical, label.nulls) == ("INT32", "int8", 200)
    assert (when.physical, when.logical, when.encodings) == ("INT64", "timestamp(us, UTC)", ("PLAIN", "RLE_DICTIONARY"))
    assert label.encodings == ("RLE_DICTIONARY",)
    assert label.compression == ("snappy", "zstd")
    assert sum(found.share for found in report.columns) == pytest.approx(1, abs=1e-4)
    assert report.uncompressed == sum(found.uncompressed for found in report.columns)
    assert report.footers_read == 2
    assert label.largest < label.uncompressed


def test_distinct_values_are_what_dictionaries_tell_and_absent_where_none_does(folder: str) -> None:
    one = uc_stage.inspect(os.path.join(folder, "b.parquet"))
    both = uc_stage.inspect(folder)

    assert (column(one, "label").distinct_min, column(one, "label").distinct_max) == (10, 10)
    assert (column(one, "id").distinct_min, column(one, "id").distinct_max) == (None, None)
    assert column(both, "label").distinct_min == 10
    assert column(both, "label").distinct_max is None


def test_decimals_and_unsigned_numbers_have_their_logical_types(tmp_path: Path) -> None:
    data = pa.table({"price": pa.array([1], pa.decimal128(9, 2)), "n": pa.array([1], pa.uint16()), "t": ["x"]})
    pq.write_table(data, tmp_path / "a.parquet")

    found = uc_stage.inspect(str(tmp_path)).columns

    assert [one.logical for one in found] == ["decimal(9, 2)", "uint16", "string"]


def test_memory_does_not_grow_with_files(folder: str) -> None:
    tally = Tally(open_folder(folder), None)
    bare = tally.add(parquet.read_footer(open_folder(folder), "a.parquet", columns=True))

    assert (bare.leaves, bare.chunks, bare.rows) == ((), (), 300)


@pytest.mark.parametrize("bad", [b"", b"\x15\x04", b"\x00", b"\xff" * 40, b"\x19\x1c\x15"])
def test_bytes_that_are_no_dictionary_page_tell_nothing(bad: bytes) -> None:
    assert chunks.read_distinct(bad) is None


@given(st.binary(max_size=300))
def test_bytes_that_are_no_footer_give_chunks_or_a_value_error(data: bytes) -> None:
    try:
        assert isinstance(chunks.read_chunks(data), list)
    except ValueError:
        return


# Exports


def test_an_export_keeps_what_its_footers_tell_and_a_look_at_it_reads_none(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export"), files=3, split={"train": 0.5, "test": 0.5}).dest
    kept = uc_stage.inspect(dest)
    manifest = os.path.join(dest, ".uc_stage", "manifest.json")
    with open(manifest, encoding="utf-8") as file:
        raw = json.load(file)
    del raw["footers"]
    with open(manifest, "w", encoding="utf-8") as file:
        json.dump(raw, file)
    read = uc_stage.inspect(dest)

    assert (kept.footers_read, read.footers_read) == (0, kept.files)
    assert kept.columns == read.columns
    assert (kept.row_groups, kept.row_group_rows, kept.row_group_bytes) == (
        read.row_groups, read.row_group_rows, read.row_group_bytes,
    )  # fmt: skip
    assert kept.split_shares == read.split_shares
    assert kept.split_shares.keys() == {"train", "test"}
    assert sum(share.rows for share in kept.split_shares.values()) == kept.rows == 300
    assert sum(share.uncompressed or 0 for share in kept.split_shares.values()) == kept.uncompressed
    assert (kept.compression, kept.problems) == ("zstd", ())


def test_what_is_kept_of_footers_does_not_grow_with_files_nor_change_the_id(table: str, tmp_path: Path) -> None:
    few = uc_stage.export(table, str(tmp_path / "few"), files=1)
    many = uc_stage.export(table, str(tmp_path / "many"), files=40)
    kept = []
    for report in (few, many):
        with open(os.path.join(report.dest, ".uc_stage", "manifest.json"), "rb") as file:
            data = file.read()
        manifest = Manifest.from_json(data, "it")
        assert manifest.to_json() == data
        kept.append(len(json.dumps(json.loads(data)["footers"])))

    assert kept[1] < kept[0] * 1.1
    assert few.id == uc_stage.export(table, str(tmp_path / "again"), files=1).id


def test_a_part_of_an_export_is_told_by_its_own_footers(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export"), files=3).dest
    copy = uc_stage.cache(dest, cache_dir=str(tmp_path / "nvme"), include=["train-00000-*"])

    report = uc_stage.inspect(copy)

    assert (report.footers_read, report.rows) == (1, 100)
    assert column(report, "id").values == 100


def test_footers_in_a_manifest_that_are_none_are_damage(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(table, str(tmp_path / "export"), files=1).dest
    path = os.path.join(dest, ".uc_stage", "manifest.json")
    with open(path, encoding="utf-8") as file:
        raw = json.load(file)
    raw["footers"]["columns"][0]["bytes"] = "many"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(raw, file)

    with pytest.raises(VerificationFailed):
        uc_stage.inspect(dest)


def test_the_options_and_the_age_of_an_export_are_told(table: str, tmp_path: Path) -> None:
    dest = uc_stage.export(
        table, str(tmp_path / "export"), files=2, where="id < 100", limit=50, compression="none"
    ).dest

    report = uc_stage.inspect(dest)

    assert report.options == {
        "where": "`id` < 100", "limit": 50, "files": 2, "row_group_bytes": 64 * 1024**2, "compression": "none",
    }  # fmt: skip
    assert report.version_at == uc_stage.inspect(table).version_at
    assert report.version_age is not None
    assert 0 <= report.version_age < 600


# Whether a folder is whole


def test_row_groups_of_no_rows_are_named(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", sample().schema) as writer:
        for rows in (3, 0, 0):
            writer.write_table(sample(3).slice(0, rows))

    (problem,) = uc_stage.inspect(str(tmp_path)).problems

    assert (problem.code, problem.path) == ("empty_row_group", "a.parquet")
    assert "2 row groups of no rows" in problem.message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!DOCTYPE html><p>sign in", "is no Parquet, though it is named so: it begins as an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\x1f\x8b\x08\x00 and so on", "gzip"),
        (b"PK\x03\x04 and so on", "a ZIP archive"),
        (b"some text, long enough", "it begins with other bytes"),
        (b"PAR1 and then it was cut off", "does not end as Parquet does"),
    ],
)
def test_what_is_named_parquet_and_is_none_is_told_by_its_first_bytes(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(content)

    (problem,) = uc_stage.inspect(str(tmp_path)).problems

    assert (problem.code, problem.path) == ("unreadable", "a.parquet")
    assert words in problem.message


def test_a_footer_whose_pages_lie_beyond_the_end_is_not_whole(tmp_path: Path) -> None:
    pq.write_table(sample(5000), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    # As where a middle part was lost on the way.
    (tmp_path / "a.parquet").write_bytes(data[:100] + data[-footer:])

    with pytest.raises(VerificationFailed, match="where there are none"):
        uc_stage.inspect(str(tmp_path / "a.parquet"))


def test_columns_that_are_encrypted_are_named() -> None:
    with pytest.raises(Unsupported, match="its columns `float_field`, `double_field` are encrypted"):
        uc_stage.inspect(os.path.join(ODD, "encrypted-columns.parquet"))


def test_a_part_of_a_parquet_file_under_another_name_is_no_mere_file(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(b"PAR1 and then it was cut off")

    with pytest.raises(VerificationFailed, match="does not end as Parquet does"):
        uc_stage.inspect(str(tmp_path / "part-0"))


# Files of other kinds


def test_images_are_told_by_extension_and_by_class(tmp_path: Path) -> None:
    for kind, files in (("cat", 3), ("dog", 1)):
        (tmp_path / "train" / kind).mkdir(parents=True)
        for number in range(files):
            (tmp_path / "train" / kind / f"{number}.JPG").write_bytes(b"x" * 100)
    (tmp_path / "README").write_text("hello")

    report = uc_stage.inspect(str(tmp_path))

    assert report.extensions == {".jpg": Pile(4, 400), "": Pile(1, 5)}
    assert report.folders == {"train/cat": Pile(3, 300), "train/dog": Pile(1, 100), "": Pile(1, 5)}
    assert [(one.least, one.below, one.files) for one in report.file_sizes if one.files] == [(4, 8, 1), (64, 128, 4)]


@given(st.lists(st.integers(0, 2**50), max_size=40))
def test_each_file_lies_in_one_bin_and_bins_leave_no_gap(sizes: list[int]) -> None:
    bins = contents.histogram(sizes)

    assert sum(one.files for one in bins) == len(sizes)
    assert all(sum(one.least <= size < one.below for one in bins) == 1 for size in sizes)
    assert all(one.below == other.least for one, other in itertools.pairwise(bins))


# For a person


def test_a_person_sees_the_same_facts_without_colour(folder: str) -> None:
    (open_folder(folder)).put("c.parquet", b"")
    shown = command_line("inspect", folder)
    told = command_line("inspect", folder, "--json").json["data"]

    assert (shown.code, "\x1b" in shown.out) == (0, False)
    lines = shown.out.splitlines()
    (label,) = [line.split() for line in lines if line.startswith("  label ")]
    assert label[:5] == ["label", "int8", "INT32", "int8", "200"]
    assert "files by size" in lines
    assert "problems (1)" in lines
    (found,) = [one for one in told["columns"] if one["path"] == "label"]
    assert (found["nulls"], found["physical"], found["logical"]) == (200, "INT32", "int8")
    assert told["file_sizes"][0] == {"least": 0, "below": 1, "files": 1}


def test_a_person_sees_kinds_splits_and_options(table: str, tmp_path: Path) -> None:
    uc_stage.export(table, str(tmp_path / "export"), files=2, split={"train": 0.9, "test": 0.1}, shuffle=True)
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for number in range(12):
        (tmp_path / "images" / f"a.{number}").write_bytes(b"x")
    (tmp_path / "images" / "cat" / "b.png").write_bytes(b"xyz")

    export = command_line("inspect", tmp_path / "export").out
    images = command_line("inspect", tmp_path / "images").out

    assert "shuffle yes, splits train=0.9 test=0.1" in export
    assert "version 0, committed " in export
    assert "\n  train         " in export
    assert "by extension (13)\n  .png  1 file, 3 B\n" in images
    assert "  and 5 more: --json has them" in images
    assert "by folder (2)\n  (none)  12 files, 12 B\n  cat     1 file, 3 B\n" in images


# The cache folder


def test_a_cache_folder_as_the_target_lists_its_copies_and_which_are_stale(tmp_path: Path) -> None:
    root, sources = str(tmp_path / "nvme"), {name: str(tmp_path / name) for name in ("kept", "newer", "gone")}
    for source in sources.values():
        make_export(source)
        uc_stage.cache(source, cache_dir=root)
    make_export(sources["newer"], version=2)
    shutil.rmtree(sources["gone"])

    shown, told = command_line("inspect", root), command_line("inspect", root, "--json").json["data"]

    states = {copy["source"]: copy["freshness"] for copy in told["copies"]}
    assert states == {sources["kept"]: "fresh", sources["newer"]: "stale", sources["gone"]: "unknown"}
    assert f"freshness   stale: `{sources['newer']}` has the generation v2-000002 now" in shown.out
    with pytest.raises(InvalidRequest, match="is a cache folder"):
        uc_stage.inspect(root)
    assert command_line("inspect", root, "--verify").code == 2


def test_a_source_that_does_not_answer_makes_no_list_wait(volume: Volume, tmp_path: Path) -> None:
    root = str(tmp_path / "nvme")
    make_export(os.path.join(volume.backing, "orders"))
    uc_stage.cache(os.path.join(volume.mount, "orders"), cache_dir=root)
    # What the kernel has read of a file it need not ask for.
    shutil.copytree(os.path.join(volume.backing, "orders"), os.path.join(volume.backing, "again"))
    volume.fault("again/.uc_stage/manifest.json", run="sleep 5")
    (copy,) = list_copies(root)

    (copy,) = freshness.of_copies([dataclasses.replace(copy, source=os.path.join(volume.mount, "again"))], seconds=0.1)

    assert copy.freshness == "unknown"
    assert "did not answer" in str(copy.freshness_detail)
