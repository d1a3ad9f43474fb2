"""Copies at a path of the user's, and what others put where a copy belongs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.copies import tree
from tests.fixtures.exports import make_export
from uc_stage import caching
from uc_stage.errors import (
    InvalidRequest,
    NotFound,
)
from uc_stage.manifest import COPY_PATH
from uc_stage.model import CacheReport, CacheRequest

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_dest_is_the_copy_and_nothing_else(source: str, cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    dest = str(tmp_path / "nvme/data")
    os.makedirs(dest)

    report = cache(source, dest=dest)

    assert report.path == dest
    assert tree(dest) == tree(source)
    assert os.listdir(tmp_path / "nvme") == ["data"]
    assert cache(source, dest=dest).status == "unchanged"


def test_a_dest_with_another_generation_is_stale_and_never_overwritten(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    dest = str(tmp_path / "data")
    cache(source, dest=dest)
    before = tree(dest)
    os.utime(f"{source}/a.bin", ns=(1, 1))

    assert cache(source, dest=dest, check=True).state == "stale"
    with pytest.raises(InvalidRequest, match="holds generation") as caught:
        cache(source, dest=dest)
    assert "DEST" in str(caught.value.hint)
    assert tree(dest) == before


def test_a_failed_run_into_a_dest_leaves_no_dest_and_the_next_one_goes_on(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    dest = str(tmp_path / "nvme/data")
    victim = max(tree(export))
    shutil.move(f"{export}/{victim}", tmp_path / "aside")
    with pytest.raises(NotFound):
        cache(export, dest=dest)
    assert not os.path.exists(dest)
    assert cache(export, dest=dest, check=True).state == "partial"
    shutil.move(tmp_path / "aside", f"{export}/{victim}")

    assert cache(export, dest=dest).bytes_reused > 0
    assert os.listdir(tmp_path / "nvme") == ["data"]


def test_a_failed_run_of_an_earlier_generation_beside_a_dest_is_swept(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    dest = str(tmp_path / "nvme/data")
    os.unlink(f"{export}/{max(tree(export))}")
    with pytest.raises(NotFound):
        cache(export, dest=dest)
    make_export(export, version=2)

    cache(export, dest=dest)

    assert os.listdir(tmp_path / "nvme") == ["data"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b"1"), "is no folder"),
        (lambda path: (path.with_name("else").mkdir(), path.symlink_to("else")), "is no folder"),
        (lambda path: (path.mkdir(), (path / "theirs").write_bytes(b"1")), "holds files that uc-stage did not write"),
    ],
    ids=["file", "link", "foreign folder"],
)
def test_a_dest_that_is_something_else_is_refused_and_left_alone(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "dest")

    for options in ({}, {"force": True}, {"check": True}):
        with pytest.raises(InvalidRequest, match=words):
            cache(source, dest=str(tmp_path / "dest"), **options)
    assert os.path.lexists(tmp_path / "dest")


def test_a_dest_with_a_copy_of_another_source_is_refused(
    source: str, export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    cache(export, dest=str(tmp_path / "dest"))

    with pytest.raises(InvalidRequest, match=r"holds a copy of `.*/orders`"):
        cache(source, dest=str(tmp_path / "dest"))


def test_a_mount_point_as_dest_is_refused(source: str, cache: Callable[..., CacheReport]) -> None:
    with pytest.raises(InvalidRequest, match="is a mount point"):
        cache(source, dest="/proc")


@pytest.mark.parametrize("dest", ["images/copy", ".", "images"])
def test_a_copy_and_its_source_do_not_lie_in_one_another(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path, dest: str
) -> None:
    with pytest.raises(InvalidRequest, match="lie in one another"):
        cache(source, dest=str(tmp_path / dest))
    with pytest.raises(InvalidRequest, match="lies in its source"):
        cache(source, cache_dir=f"{source}/cache")


def test_a_copy_can_be_copied_on(source: str, cache: Callable[..., CacheReport]) -> None:
    first = cache(source)
    second = cache(first.path)

    assert second.path != first.path
    assert tree(second.path) == tree(source)


def test_a_users_file_in_a_copy_is_never_removed(source: str, cache: Callable[..., CacheReport]) -> None:
    path = Path(cache(source).path)
    (path / "labels.csv").write_text("precious")
    assert cache(source).status == "unchanged"
    victim = next(file for file in sorted(path.rglob("*")) if file.is_file() and ".uc_stage" not in str(file))
    os.utime(victim, (1, 1))
    before = tree(str(path))

    for options in ({}, {"force": True}):
        with pytest.raises(InvalidRequest, match=r"holds `labels\.csv`, which uc-stage did not write"):
            cache(source, **options)
    assert tree(str(path)) == before

    (path / "labels.csv").unlink()
    assert cache(source).status == "done"


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"1"), lambda path: path.symlink_to("/usr")])
def test_what_stands_where_the_copy_belongs_is_left_alone(
    make: Callable[[Path], object], source: str, tmp_path: Path
) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"))
    path = Path(caching.plan(request).path)
    path.parent.mkdir(parents=True)
    os.chmod(tmp_path / "cache", 0o700)
    make(path)
    with pytest.raises(InvalidRequest, match="is not uc-stage's"):
        caching.run(request)
    assert os.path.lexists(path)


def test_a_copy_whose_marker_is_gone_is_left_alone(source: str, cache: Callable[..., CacheReport]) -> None:
    path = Path(cache(source).path)
    (path / COPY_PATH).unlink()
    before = tree(str(path))
    with pytest.raises(InvalidRequest, match="is not uc-stage's"):
        cache(source)
    assert tree(str(path)) == before


def test_a_folder_of_a_copy_that_became_a_file_is_refused_as_foreign(
    tmp_path: Path, cache: Callable[..., CacheReport]
) -> None:
    (tmp_path / "s/a").mkdir(parents=True)
    (tmp_path / "s/a/1").write_bytes(b"1")
    path = Path(cache(str(tmp_path / "s")).path)
    (path / "a/1").unlink()
    (path / "a").rmdir()
    (path / "a").write_bytes(b"x")
    with pytest.raises(InvalidRequest, match="holds `a`, which uc-stage did not write"):
        cache(str(tmp_path / "s"))


def test_a_partition_of_a_delta_table_is_no_source(tmp_path: Path, cache: Callable[..., CacheReport]) -> None:
    (tmp_path / "table/_delta_log").mkdir(parents=True)
    (tmp_path / "table/country=DE").mkdir()
    (tmp_path / "table/country=DE/1.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidRequest, match="table` is a Delta table"):
        cache(str(tmp_path / "table/country=DE"))


def test_a_folder_that_was_there_before_gets_no_tag_and_a_source_no_cache(source: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "thesis.tex").touch()
    caching.run(CacheRequest(source, cache_dir=str(home)))
    assert not (home / "CACHEDIR.TAG").exists()
    before = tree(source)
    with pytest.raises(InvalidRequest, match="lies in its source"):
        caching.run(CacheRequest(source, dest=str(tmp_path / "d"), cache_dir=f"{source}/cache"))
    assert tree(source) == before
