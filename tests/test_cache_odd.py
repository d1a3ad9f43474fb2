"""Sources that change, that are damaged or are no sources, and records."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.copies import tree
from tests.fixtures.exports import make_export, put_manifest
from uc_stage import caching, transfer
from uc_stage.buffers import SMALL_BYTES
from uc_stage.caching import places
from uc_stage.errors import (
    InvalidRequest,
    NotFound,
    StageError,
    Unsupported,
    VerificationFailed,
)
from uc_stage.manifest import CopyRecord
from uc_stage.model import CacheReport, CacheRequest, CopyFile
from uc_stage.sources import open_source
from uc_stage.transfer import moving

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_generation_published_between_plan_and_copy_is_the_one_that_is_copied(export: str, tmp_path: Path) -> None:
    plan = caching.plan(CacheRequest(export, cache_dir=str(tmp_path / "cache")))
    make_export(export, version=2)

    report = caching.execute(plan)

    assert report.generation == "v2-000002"
    assert tree(report.path).keys() == tree(export).keys()


def test_a_file_that_the_manifest_names_and_nobody_has_is_an_error(
    export: str, cache: Callable[..., CacheReport]
) -> None:
    victim = min(tree(export))
    os.unlink(f"{export}/{victim}")

    with pytest.raises(NotFound, match=victim):
        cache(export)


def test_a_file_that_is_not_what_the_manifest_says_is_no_copy(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    victim = min(tree(export))
    with open(f"{export}/{victim}", "r+b") as file:
        file.seek(50)
        file.write(b"\0\1\2\3")

    with pytest.raises(VerificationFailed, match=rf"{victim}` came with other bytes"):
        cache(export)
    assert os.listdir(tmp_path / "cache/copies") == []


@pytest.mark.parametrize(
    "path", ["../escaped.parquet", "/etc/passwd", "a/../../b.parquet", ".uc_stage/copy.json", "a\\b", "a//b"]
)
def test_a_manifest_with_a_hostile_path_is_refused(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path, path: str
) -> None:
    manifest = open_source(export).manifest
    assert manifest is not None
    bad = (replace(manifest.files[0], path=path), *manifest.files[1:])
    put_manifest(export, manifest, splits={"train": bad}, raw={})

    with pytest.raises(VerificationFailed, match="unsafe path"):
        cache(export)
    assert not (tmp_path / "cache").exists()


def test_a_link_out_of_an_export_is_refused(export: str, cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    victim = min(tree(export))
    shutil.move(f"{export}/{victim}", tmp_path / "outside")
    os.symlink(tmp_path / "outside", f"{export}/{victim}")

    with pytest.raises(VerificationFailed, match=f"{victim}` is a link out of the folder"):
        cache(export)


def test_names_of_any_bytes_are_copied(source: str, cache: Callable[..., CacheReport]) -> None:
    for name in (b"\xff\xfe.bin", "ü 漢.bin".encode(), b"new\nline", b"-rf", b"a'b\"c"):
        with open(os.path.join(os.fsencode(source), name), "wb") as file:
            file.write(name)

    report = cache(source)

    assert tree(report.path) == tree(source)
    assert cache(source).status == "unchanged"


def test_a_folder_with_an_odd_name_gets_a_tame_path(tmp_path: Path, cache: Callable[..., CacheReport]) -> None:
    for name, expected in (("a b\n;ü", "a_b"), ("...", "copy"), ("x" * 200, "x" * 64)):
        folder = tmp_path / "odd" / name
        folder.mkdir(parents=True)
        (folder / "f").write_bytes(b"1")
        assert os.path.basename(cache(str(folder)).path).rpartition("-")[0] == expected


def make_pipe(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda folder: folder, NotFound, "is not there"),
        (lambda folder: folder.mkdir(), NotFound, "holds no files to copy"),
        (lambda folder: (folder.mkdir(), (folder / "_SUCCESS").touch()), NotFound, "holds no files to copy"),
        (lambda folder: folder.write_bytes(b"1"), InvalidRequest, "is a file"),
        (lambda folder: (folder / "_delta_log").mkdir(parents=True), InvalidRequest, "`.*/s` is a Delta table"),
        (
            lambda folder: ((folder / "t/_delta_log").mkdir(parents=True), (folder / "t/_delta_log/0.json").touch()),
            InvalidRequest,
            "`.*/s/t` is a Delta table",
        ),
        (make_pipe, Unsupported, "pipe` is neither a file nor"),
        (lambda folder: (folder.mkdir(), (folder / "a\\b").touch()), Unsupported, "unsafe path"),
        (lambda folder: (folder.mkdir(), (folder / "up").symlink_to("/etc")), VerificationFailed, "link out of"),
        (lambda folder: (folder.mkdir(), (folder / "me").symlink_to(".")), VerificationFailed, "that it lies in"),
        (lambda folder: (folder.mkdir(), (folder / "no").symlink_to("gone")), NotFound, "/no`"),
    ],
    ids=[
        "absent", "empty", "markers alone", "file", "delta", "delta below", "pipe", "backslash", "link out", "circle",
        "link to nothing",
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_copied_says_why(
    tmp_path: Path,
    cache: Callable[..., CacheReport],
    make: Callable[[Path], object],
    error: type[StageError],
    words: str,
) -> None:
    make(tmp_path / "s")

    with pytest.raises(error, match=words) as caught:
        cache(str(tmp_path / "s"))
    assert caught.value.hint


def test_an_export_that_was_never_published_is_not_a_source(tmp_path: Path, cache: Callable[..., CacheReport]) -> None:
    folder = tmp_path / "export"
    (folder / ".uc_stage/claims").mkdir(parents=True)
    (folder / ".uc_stage/claims/v3-0a1b2c.json").write_text("{}")
    (folder / "train-00000-of-00001-v3-0a1b2c.parquet").write_bytes(b"PAR1")

    with pytest.raises(NotFound, match="only an export that was not published"):
        cache(str(folder))


def test_what_spark_and_the_desktop_leave_in_a_folder_is_left_out(
    source: str, cache: Callable[..., CacheReport]
) -> None:
    expected = tree(source)
    for name in (
        "_SUCCESS",
        "_committed_123",
        "_committed_vacuum123",
        "_started_123",
        ".a.bin.crc",
        ".DS_Store",
        "cats/_SUCCESS",
    ):
        with open(f"{source}/{name}", "wb") as file:
            file.write(b"1")
    os.makedirs(f"{source}/.git/objects")
    os.symlink("/etc", f"{source}/.git/out")

    report = cache(source)

    assert tree(report.path) == expected


def test_links_in_a_folder_are_copied_as_what_they_mean(source: str, cache: Callable[..., CacheReport]) -> None:
    os.symlink("a.bin", f"{source}/also")
    os.symlink("cats", f"{source}/felines")

    report = cache(source)

    assert {"also", "felines/b.bin", "felines/small/empty"} <= tree(report.path).keys()
    assert not os.path.islink(f"{report.path}/also")


def test_a_record_tells_what_it_was_given() -> None:
    files = (CopyFile("a/\udcff.bin", 3, 5, "0" * 32), CopyFile("b", 0, None, None))
    record = CopyRecord("s3://bucket/data", "v1-000001", "id", "2026-11-30T12:00:00+00:00", files)

    assert CopyRecord.from_json(record.to_json(), "x") == record


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"format": "uc-stage-copy/2"}, Unsupported, "this version reads `uc-stage-copy/1`"),
        ({"format": "uc-stage/1"}, VerificationFailed, "is not a"),
        ({"source": None}, VerificationFailed, "wrong kind"),
        ({"files": [{"path": "../a", "bytes": 1}]}, VerificationFailed, "unsafe path"),
        ({"files": [{"path": "a", "bytes": 1}, {"path": "a", "bytes": 1}]}, VerificationFailed, "twice"),
        ({"files": [{"path": "a", "bytes": 1}, {"path": "a/b", "bytes": 1}]}, VerificationFailed, "as a folder"),
        ({"files": [{"path": "a", "bytes": -1}]}, VerificationFailed, "of the wrong kind"),
        ({"files": [{"path": "a", "bytes": 1, "mtime_ns": "x"}]}, VerificationFailed, "of the wrong kind"),
        ({"files": [{"path": "a", "bytes": 1, "xxh3_128": 1}]}, VerificationFailed, "of the wrong kind"),
        ({"files": [{"bytes": 1}]}, VerificationFailed, "wrong kind"),
    ],
)
def test_a_record_that_is_not_one_is_refused(change: dict[str, object], error: type[StageError], words: str) -> None:
    stored = json.loads(CopyRecord("s", "g", None, "t", ()).to_json())

    with pytest.raises(error, match=words):
        CopyRecord.from_json(json.dumps({**stored, **change}).encode(), "copy.json")


@given(st.text())
def test_a_copys_name_is_one_plain_part_of_a_path(url: str) -> None:
    name = places.name_of(url)

    assert 0 < len(name) <= 64
    assert name[0] not in ".-"
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_the_default_number_of_threads_holds_memory_within_a_quarter_of_a_gigabyte() -> None:
    assert moving._BUFFERS * transfer.RANGE_BYTES + transfer.DEFAULT_JOBS * SMALL_BYTES <= 256 * 1024**2
