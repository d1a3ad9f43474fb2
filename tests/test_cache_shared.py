"""The cache folder, its locks, and runs that race for a copy."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.copies import Watcher, tree
from uc_stage import caching, transfer
from uc_stage.caching import making, places
from uc_stage.errors import (
    AccessDenied,
    Busy,
    InvalidRequest,
    NoSpace,
    VerificationFailed,
)
from uc_stage.locks import Lock
from uc_stage.manifest import COPY_PATH
from uc_stage.model import CacheReport, CacheRequest, CopyFile
from uc_stage.publish import CopyPublication, lock_path, remove_copy

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("harm", ["link", "file", "writable"])
def test_a_cache_folder_that_somebody_else_may_have_prepared_is_refused(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path, harm: str
) -> None:
    root = tmp_path / "cache"
    if harm == "link":
        (tmp_path / "elsewhere").mkdir()
        root.symlink_to(tmp_path / "elsewhere")
    elif harm == "file":
        root.write_bytes(b"1")
    else:
        root.mkdir()
        root.chmod(0o777)

    for options in ({}, {"check": True}):
        with pytest.raises(AccessDenied, match=f"the cache folder `{root}`") as caught:
            cache(source, **options)
    assert "--cache-dir" in str(caught.value.hint)
    assert not (tmp_path / "elsewhere/copies").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_cache_folder_of_another_user_is_refused(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, 12345)

    with pytest.raises(AccessDenied, match="belongs to user 12345"):
        cache(source)


def test_the_cache_folder_is_private_and_says_what_it_is(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    cache(source)

    assert os.stat(tmp_path / "cache").st_mode & 0o777 == 0o700
    assert (tmp_path / "cache/CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


def test_space_is_counted_before_the_first_byte(source: str, cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    plan = caching.plan(CacheRequest(source, cache_dir=str(tmp_path / "cache")))

    with pytest.raises(NoSpace, match=r"needs 20\d\.\d kB more with [\d.]+ \w?B in reserve") as caught:
        cache(source, reserve=2 * plan.bytes_free)
    assert "free" in str(caught.value.hint)
    assert not os.path.exists(plan.path)
    assert cache(source, reserve=1).status == "done"


def test_a_holder_that_does_not_end_is_named_when_the_wait_runs_out(source: str, tmp_path: Path) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"), timeout=0.3)
    (tmp_path / "cache/locks").mkdir(parents=True)
    os.chmod(tmp_path / "cache", 0o700)
    path = caching.plan(request).path
    watcher = Watcher()
    with Lock(lock_path(str(tmp_path / "cache"), path)) as lock:
        assert lock.try_acquire()
        with pytest.raises(Busy, match=f"process {os.getpid()} on `{socket.gethostname()}`"):
            caching.run(request, watcher)
        assert watcher.notes == [
            f"waiting for process {os.getpid()} on `{socket.gethostname()}`, which makes this copy"
        ]
        lock._told = 0.0
        lock.tell(done=1_500_000, total=3_000_000)
        with pytest.raises(Busy):
            caching.run(request, watcher)
    assert watcher.notes[1].endswith(": 1.5 of 3.0 MB")
    assert caching.run(request).status == "done"


def test_a_copy_that_somebody_made_during_the_wait_is_used(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"), force=True)
    caching.run(request)
    plan = caching.plan(request)
    acquire = Lock.acquire

    def late(lock: Lock, *arguments: object) -> None:
        monkeypatch.setattr(Lock, "acquire", acquire)
        caching.run(request)
        acquire(lock, *arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(Lock, "acquire", late)

    assert caching.execute(plan).status == "unchanged"


def test_a_lock_that_locks_nobody_out_costs_no_bytes(
    export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lock, "acquire", lambda *_: None)
    request = CacheRequest(export, cache_dir=str(tmp_path / "cache"))
    plan = caching.plan(request)
    copy_files = transfer.copy_files

    def overtaken(*arguments: object, **options: object) -> list[CopyFile]:
        monkeypatch.setattr(making, "copy_files", copy_files)
        copied = copy_files(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came
        # The other run finds all files there, and is quicker to publish.
        caching.run(request)
        return copied

    monkeypatch.setattr(making, "copy_files", overtaken)

    report = caching.execute(plan)

    assert report.state == "fresh"
    assert caching.plan(request).state == "fresh"


def test_a_race_for_the_name_that_is_lost_to_the_same_copy_is_won(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"))
    plan = caching.plan(request)
    commit = CopyPublication.commit

    def late(publication: CopyPublication, *arguments: object, **options: object) -> bool:
        if not os.path.exists(plan.path):
            shutil.copytree(publication.partial, plan.path)
            with open(f"{plan.path}/{COPY_PATH}", "wb") as file:
                file.write(arguments[0].to_json())  # type: ignore[attr-defined]  # the record
        return commit(publication, *arguments, **options)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(CopyPublication, "commit", late)

    assert caching.execute(plan).status == "done"
    assert caching.plan(request).state == "fresh"
    assert os.listdir(tmp_path / "cache/partial") == []


def test_a_race_for_the_name_that_is_lost_to_a_broken_copy_replaces_it(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"))
    plan = caching.plan(request)
    commit = CopyPublication.commit

    def late(publication: CopyPublication, *arguments: object, **options: object) -> bool:
        if not os.path.exists(plan.path):
            shutil.copytree(publication.partial, plan.path)
            os.unlink(f"{plan.path}/a.bin")
        return commit(publication, *arguments, **options)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(CopyPublication, "commit", late)

    assert caching.execute(plan).status == "done"
    assert tree(plan.path) == tree(source)
    assert os.listdir(tmp_path / "cache/partial") == []


def test_a_partial_folder_that_is_not_ours_is_left_alone(source: str, tmp_path: Path) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"))
    partial = Path(places.place_of(request, source, "", None).partial)
    partial.mkdir(parents=True)
    os.chmod(tmp_path / "cache", 0o700)
    (partial / "theirs").write_bytes(b"1")

    with pytest.raises(InvalidRequest, match="is not uc-stage's"):
        caching.run(request)
    assert (partial / "theirs").exists()


def test_nothing_without_a_marker_is_removed(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"1")

    with pytest.raises(InvalidRequest, match="carries no marker"):
        remove_copy(str(tmp_path))
    assert (tmp_path / "data").exists()


def test_a_copy_whose_record_is_damaged_is_made_anew(source: str, cache: Callable[..., CacheReport]) -> None:
    before = tree(cache(source).path)
    path = cache(source).path
    with open(f"{path}/{COPY_PATH}", "wb") as file:
        file.write(b"{")

    assert cache(source, check=True).state != "fresh"
    assert cache(source).status == "done"
    assert tree(path) == before
    assert cache(source).status == "unchanged"


def test_at_a_path_of_the_users_a_damaged_record_is_an_error(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    dest = str(tmp_path / "mine")
    cache(source, dest=dest)
    with open(f"{dest}/{COPY_PATH}", "wb") as file:
        file.write(b"{")

    with pytest.raises(VerificationFailed, match=r"copy\.json` is not JSON") as caught:
        cache(source, dest=dest)
    assert "remove the copy" in str(caught.value.hint)
