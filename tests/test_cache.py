"""What `cache` copies, finds, keeps and mends."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.copies import Watcher, digest, leftovers, tree
from tests.fixtures.exports import make_export
from uc_stage import caching
from uc_stage.caching import places
from uc_stage.caching.places import place_of
from uc_stage.errors import (
    NotFound,
)
from uc_stage.locks import Lock
from uc_stage.manifest import COPY_PATH, MANIFEST_PATH, CopyRecord
from uc_stage.model import CacheReport, CacheRequest
from uc_stage.publish import CopyPublication, lock_path, prepare_root, read_copy
from uc_stage.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_folder_is_copied_whole_with_its_times(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    report = cache(source)

    assert tree(report.path) == tree(source)
    assert (report.status, report.state, report.files, report.bytes) == ("done", "fresh", 3, 200_004)
    assert (report.bytes_copied, report.bytes_reused) == (200_004, 0)
    assert os.path.dirname(report.path) == str(tmp_path / "cache/copies")
    assert os.path.basename(report.path).startswith("images-")
    assert leftovers(tmp_path / "cache") == []


def test_an_export_is_copied_by_its_manifest_which_comes_along_byte_for_byte(
    export: str, cache: Callable[..., CacheReport]
) -> None:
    with open(f"{export}/train-00007-of-00009-v1-abcdef.parquet", "wb") as stray:
        stray.write(b"left by a killed run")
    with open(f"{export}/notes.txt", "w", encoding="utf-8") as other:
        other.write("not in the manifest")

    report = cache(export)

    manifest = open_source(export).manifest
    assert manifest is not None
    assert sorted(tree(report.path)) == sorted(file.path for file in manifest.files)
    assert (report.generation, report.manifest_id) == ("v1-000001", manifest.id)
    with open(f"{report.path}/{MANIFEST_PATH}", "rb") as copied, open(f"{export}/{MANIFEST_PATH}", "rb") as original:
        assert copied.read() == original.read()
    record = read_copy(report.path)
    assert record is not None
    assert {file.path: file.xxh3_128 for file in record.files} == {f.path: f.xxh3_128 for f in manifest.files}


def test_a_second_run_finds_the_copy_and_reads_nothing(source: str, cache: Callable[..., CacheReport]) -> None:
    first = cache(source)
    again = cache(source)

    assert again.path == first.path
    assert (again.status, again.bytes_copied, again.bytes_reused) == ("unchanged", 0, 200_004)


def test_another_generation_has_another_path_and_the_earlier_copy_stays(
    export: str, cache: Callable[..., CacheReport]
) -> None:
    first = cache(export)
    make_export(export, version=2)
    second = cache(export)

    assert first.path != second.path
    assert tree(first.path).keys().isdisjoint(tree(second.path))
    assert os.path.isdir(first.path)


def test_a_changed_time_is_another_generation_of_a_folder(source: str, cache: Callable[..., CacheReport]) -> None:
    first = cache(source)
    os.utime(f"{source}/a.bin", ns=(1, 1))

    assert cache(source).path != first.path


def test_the_state_is_told_without_a_copy(export: str, cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    absent = cache(export, check=True)
    assert (absent.status, absent.state, absent.reason) == ("checked", "absent", "there is no copy of it here")
    assert not (tmp_path / "cache").exists()

    first = cache(export)
    fresh = cache(export, check=True)
    assert (fresh.state, fresh.path) == ("fresh", first.path)

    make_export(export, version=2)
    stale = cache(export, check=True)
    assert stale.state == "stale"
    assert "holds generation `v1-000001`; now it is `v2-000002`" in str(stale.reason)

    os.unlink(f"{first.path}/{min(tree(first.path))}")
    make_export(export, version=1)
    damaged = cache(export, check=True)
    assert damaged.state == "partial"
    assert "is gone or was changed" in str(damaged.reason)


def test_a_plan_changes_nothing_and_counts_what_is_to_do(source: str, tmp_path: Path) -> None:
    plan = caching.plan(CacheRequest(source, cache_dir=str(tmp_path / "cache")))

    assert (plan.state, plan.bytes, plan.bytes_to_copy) == ("absent", 200_004, 200_004)
    assert plan.bytes_free > 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("harm", ["missing", "cut", "touched", "replaced by a link"])
def test_a_damaged_copy_is_mended_from_what_is_good(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path, harm: str
) -> None:
    first = cache(source)
    victim = f"{first.path}/cats/b.bin"
    if harm == "cut":
        os.truncate(victim, 1)
    elif harm == "touched":
        with open(victim, "wb") as file:
            file.write(b"wuff")
    else:
        os.unlink(victim)
        if harm.startswith("replaced"):
            os.symlink("/etc/hostname", victim)

    again = cache(source)

    assert (again.status, again.path) == ("done", first.path)
    assert (again.bytes_copied, again.bytes_reused) == (4, 200_000)
    assert tree(again.path) == tree(source)
    assert leftovers(tmp_path / "cache") == []


def test_force_copies_every_byte_again(source: str, cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    first = cache(source)
    inode = os.stat(f"{first.path}/a.bin").st_ino

    again = cache(source, force=True)

    assert (again.status, again.path, again.bytes_copied, again.bytes_reused) == ("done", first.path, 200_004, 0)
    assert os.stat(f"{first.path}/a.bin").st_ino != inode
    assert tree(again.path) == tree(source)
    assert leftovers(tmp_path / "cache") == []


def test_what_a_failed_run_copied_is_hashed_again_and_kept(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    # The smallest is fetched last.
    victim = min(tree(export), key=lambda path: (os.path.getsize(f"{export}/{path}"), path))
    shutil.move(f"{export}/{victim}", tmp_path / "aside")
    with pytest.raises(NotFound, match=victim):
        cache(export, jobs=1)
    partial = cache(export, check=True)
    assert partial.state == "partial"
    (folder,) = (tmp_path / "cache/partial").iterdir()
    kept = sorted(tree(str(folder)))
    assert len(kept) == 2
    # One of the two that came is damaged, and something else got in.
    with open(folder / kept[0], "r+b") as file:
        file.seek(100)
        file.write(b"damage")
    (folder / "foreign").write_bytes(b"1")
    shutil.move(tmp_path / "aside", f"{export}/{victim}")
    watcher = Watcher()

    report = caching.run(CacheRequest(export, cache_dir=str(tmp_path / "cache")), watcher)

    sizes = {path: len(data) for path, (data, _) in tree(export).items()}
    assert report.bytes_reused == sizes[kept[1]]
    assert report.bytes_copied == sizes[kept[0]] + sizes[victim]
    assert tree(report.path).keys() == tree(export).keys()
    assert watcher.phases == [
        ("list", None),
        ("verify", sizes[kept[0]] + sizes[kept[1]]),
        ("copy", report.bytes_copied),
    ]
    assert sum(watcher.amounts) == report.bytes_copied + sizes[kept[0]] + sizes[kept[1]]


def test_a_run_killed_after_its_record_goes_on_without_its_journal(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    whole = cache(source)
    shutil.move(
        whole.path, places.place_of(CacheRequest(source, cache_dir=str(tmp_path / "cache")), source, "", None).partial
    )

    again = cache(source)

    assert (again.path, again.bytes_copied, again.bytes_reused) == (whole.path, 0, 200_004)


def test_a_torn_line_of_the_journal_costs_one_file(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"))
    partial = places.place_of(request, source, "", None).partial
    shutil.copytree(source, partial)
    publication = CopyPublication(caching.plan(request).path, partial)
    os.makedirs(f"{partial}/.uc_stage")
    found = open_source(source)
    record = CopyRecord(source, found.generation, None, "2026-11-30T12:00:00+00:00", ())
    with open(f"{partial}/{COPY_PATH}", "wb") as file:
        file.write(record.to_json())
    publication.open(record)
    mtime = os.stat(f"{source}/a.bin").st_mtime_ns
    (line,) = [
        {"path": "a.bin", "bytes": 200_000, "mtime_ns": mtime, "xxh3_128": digest(f"{source}/a.bin")},
    ]
    with open(f"{partial}/.uc_stage/journal.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps(line) + '\n{"path": "cats/b.bin", "byt')

    report = cache(source)

    assert report.bytes_reused == 200_000
    assert tree(report.path).keys() == tree(source).keys()


def test_partial_copies_of_earlier_generations_are_swept_but_not_while_somebody_works_on_them(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    root = tmp_path / "cache"

    def fail(version: int) -> Path:
        make_export(export, version=version)
        os.unlink(f"{export}/{max(tree(export))}")
        before = set((root / "partial").iterdir()) if root.exists() else set()
        with pytest.raises(NotFound):
            cache(export)
        (made,) = set((root / "partial").iterdir()) - before
        return made

    busy = fail(1)
    foreign = root / "partial/orders-of-somebody"
    foreign.mkdir()
    (foreign / "data").write_bytes(b"1")
    with Lock(lock_path(str(root), f"{root}/copies/{busy.name}")) as lock:
        assert lock.try_acquire()
        free = fail(2)
        make_export(export, version=3)
        cache(export)
        assert busy.exists()
    assert not free.exists()

    make_export(export, version=4)
    cache(export)

    assert not busy.exists()
    assert (foreign / "data").exists()


def test_verify_hashes_a_copy_again_and_makes_a_damaged_one_anew(
    source: str, cache: Callable[..., CacheReport]
) -> None:
    report = cache(source)
    whole = os.path.join(report.path, min(tree(report.path)))
    times = os.stat(whole)

    assert cache(source, verify=True, check=True).state == "fresh"
    assert (cache(source).verified, cache(source, verify=True).verified) == (None, True)
    with open(whole, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(whole, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert cache(source, check=True).state == "fresh"
    checked = cache(source, check=True, verify=True)
    assert (checked.state, checked.status, checked.verified) == ("partial", "checked", False)
    assert os.path.basename(whole) in str(checked.reason)
    mended = cache(source, verify=True)
    assert (mended.status, mended.bytes_copied) == ("done", os.path.getsize(whole))
    assert tree(report.path) == tree(source)
    assert cache(source, verify=True).status == "unchanged"


def test_a_partial_copy_with_a_record_that_a_loss_of_power_emptied_is_begun_anew(
    source: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    cache(source)
    (copy,) = (tmp_path / "cache/copies").iterdir()
    (tmp_path / "cache/partial").mkdir(exist_ok=True)
    place = place_of(CacheRequest(source, cache_dir=str(tmp_path / "cache")), source, "", None)
    os.rename(copy, place.partial)
    with open(f"{place.partial}/{COPY_PATH}", "w"):
        pass

    assert cache(source, check=True).state == "absent"
    assert tree(cache(source).path) == tree(source)
    assert leftovers(tmp_path / "cache") == []


def test_a_file_that_the_disk_cannot_read_any_more_is_fetched_anew(
    source: str, cache: Callable[..., CacheReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = cache(source)
    bad = os.path.join(report.path, min(tree(report.path)))
    real = builtins.open

    def fail(path: Any, *given: Any, **more: Any) -> Any:
        if path == bad and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *given, **more)

    failed: list[str] = []
    monkeypatch.setattr(builtins, "open", fail)
    assert cache(source, check=True, verify=True).state == "partial"
    failed.clear()
    mended = cache(source, verify=True)
    assert (mended.status, mended.bytes_copied) == ("done", 0)
    assert mended.verified


def test_a_part_leaves_the_unfinished_copy_of_the_whole_alone(source: str, tmp_path: Path) -> None:
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"))
    place = place_of(request, source, "", None)
    prepare_root(request.cache_dir)
    CopyPublication(place.path, place.partial).open(CopyRecord(source, "", None, "2026-11-30T12:00:00+00:00", ()))

    caching.run(dataclasses.replace(request, exclude=(min(tree(source)),)))

    assert os.path.isdir(place.partial)
