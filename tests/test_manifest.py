from __future__ import annotations

import dataclasses
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.errors import StageError, Unsupported, VerificationFailed
from uc_stage.manifest import Manifest, check_paths, content_id
from uc_stage.model import ExportFile, Field, Layout, Source

SOURCE = Source("/tables/orders", "0f1e", 42, "2026-11-30T12:00:00+00:00", ("id",), "`id` > 1", 10)
SCHEMA = (Field("id", "int64"), Field("at", "timestamp[us, tz=UTC]"))
LAYOUT = Layout(files=None, file_bytes=512, row_group_bytes=64, compression="zstd")
MANIFEST = Manifest(
    id=content_id(SOURCE, SCHEMA, LAYOUT),
    generation="v42-1f3a9c",
    source=SOURCE,
    schema=SCHEMA,
    splits={
        "train": (ExportFile("train-0.parquet", 10, 2, 1, "0" * 32), ExportFile("train-1.parquet", 11, 3, 1)),
        "test": (ExportFile("test/é.parquet", 12, 4, 1),),
    },
    layout=LAYOUT,
    engine="local",
    engine_version="deltalake 1.6.6",
    uc_stage_version="0.1.0",
    created_at="2026-11-30T12:00:00+00:00",
    retained={"v41-000000": ("old.parquet",), "v9-000000": ("older.parquet",)},
)

_words = st.text(string.ascii_letters, min_size=1, max_size=8)
_sizes = st.integers(0, 2**63 - 1)
_files = st.builds(ExportFile, _words, _sizes, _sizes, _sizes, st.none() | _words)


def stored(**changed: Any) -> bytes:
    return json.dumps({**json.loads(MANIFEST.to_json()), **changed}).encode()


def test_a_manifest_reads_back_as_it_was_written() -> None:
    read = Manifest.from_json(MANIFEST.to_json(), "m")

    assert read == MANIFEST
    assert list(read.retained) == ["v41-000000", "v9-000000"]
    assert (read.rows, read.size, len(read.files)) == (9, 33, 3)


@given(st.lists(_files, unique_by=lambda file: file.path), st.text(max_size=5), st.none() | _sizes)
def test_any_manifest_reads_back_as_it_was_written(files: list[ExportFile], table: str, limit: int | None) -> None:
    source = dataclasses.replace(SOURCE, table=table, limit=limit, columns=None)
    manifest = dataclasses.replace(MANIFEST, source=source, splits={"train": tuple(files)}, retained={})

    assert Manifest.from_json(manifest.to_json(), "m") == manifest


def test_fields_that_this_version_does_not_know_survive_a_rewrite() -> None:
    raw = json.loads(MANIFEST.to_json())
    raw["later"] = {"x": 1}
    raw["source"]["later"] = 2
    raw["splits"]["train"]["later"] = 3
    raw["splits"]["train"]["files"][1]["later"] = 4
    raw["schema"][0]["later"] = 5

    again = json.loads(Manifest.from_json(json.dumps(raw).encode(), "m").to_json())

    assert again == raw


def test_a_newer_format_is_refused_with_the_way_to_read_it() -> None:
    with pytest.raises(Unsupported, match="uc-stage/2") as caught:
        Manifest.from_json(stored(format="uc-stage/2"), "m")

    assert caught.value.hint is not None
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"format": 1}', b'{"format": "other/1"}', b'{"format": "uc-stage/1"}',
        stored(id=5), stored(schema=None), stored(source={}), stored(splits={"train": {"files": [{"path": "a"}]}}),
        stored(splits={"train": {"files": [{"path": "a", "bytes": -1, "rows": 0, "row_groups": 0}]}}),
        stored(splits={"train": {"files": [{"path": "a", "bytes": "1", "rows": 0, "row_groups": 0}]}}),
        stored(splits={"train": []}), stored(layout=[]), stored(retained=3), stored(retained=[3]),
        stored(retained=[{"name": "v1-000000", "files": ["../x"]}]),
    ],
)  # fmt: skip
def test_what_is_no_whole_manifest_fails_verification_and_names_the_file(data: bytes) -> None:
    with pytest.raises(VerificationFailed, match="`m`") as caught:
        Manifest.from_json(data, "m")

    assert caught.value.hint


@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_bytes_make_the_reader_fail_otherwise(data: bytes) -> None:
    with pytest.raises(StageError):
        Manifest.from_json(data, "m")


@pytest.mark.parametrize(
    "path",
    ["", "/a", "../a", "a/../b", "a//b", "./a", "a/.", "a\\b", "a\0b", ".uc_stage/manifest.json", ".uc_stage", "a/"],
)
def test_a_path_that_could_leave_the_folder_is_refused(path: str) -> None:
    with pytest.raises(VerificationFailed, match="unsafe path"):
        check_paths(["fine.parquet", path], "m")


def test_a_path_that_stands_twice_is_refused() -> None:
    with pytest.raises(VerificationFailed, match="twice"):
        check_paths(("a.parquet", "b.parquet", "a.parquet"), "m")


def test_the_id_is_of_the_content_alone() -> None:
    same = dataclasses.replace(SOURCE, table="main.sales.orders", timestamp=None)

    assert content_id(same, SCHEMA, LAYOUT) == MANIFEST.id
    others = [
        content_id(dataclasses.replace(SOURCE, version=43), SCHEMA, LAYOUT),
        content_id(dataclasses.replace(SOURCE, where=None), SCHEMA, LAYOUT),
        content_id(dataclasses.replace(SOURCE, columns=None), SCHEMA, LAYOUT),
        content_id(dataclasses.replace(SOURCE, table_id="x"), SCHEMA, LAYOUT),
        content_id(SOURCE, SCHEMA[:1], LAYOUT),
        content_id(SOURCE, SCHEMA, dataclasses.replace(LAYOUT, compression="none")),
    ]
    assert len({MANIFEST.id, *others}) == 7


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["source"].update(version="0"),
        lambda raw: raw["source"].update(table=5),
        lambda raw: raw["schema"][0].update(name=1),
        lambda raw: raw["layout"].update(compression="lzma"),
        lambda raw: raw["splits"]["train"]["files"][0].update(xxh3_128=5),
        lambda raw: raw["splits"]["train"]["files"][0].update(bytes=10**400),
        lambda raw: raw["splits"]["train"]["files"][0].update(rows=-1),
        lambda raw: raw["splits"]["train"]["files"][0].update(path="a\nhint: b"),
        lambda raw: raw.update(generation="v1-\ud800"),
    ],
)
def test_a_field_of_another_kind_is_refused(change: Any) -> None:
    raw = json.loads(MANIFEST.to_json())
    change(raw)
    with pytest.raises(VerificationFailed, match="`m`"):
        Manifest.from_json(json.dumps(raw).encode(), "m")


def test_a_manifest_nested_without_end_is_refused() -> None:
    with pytest.raises(VerificationFailed, match="is not JSON"):
        Manifest.from_json(b"[" * 100_000, "m")
