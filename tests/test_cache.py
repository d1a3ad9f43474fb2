from __future__ import annotations

import builtins
import dataclasses
import errno
import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.exports import make_export, put_manifest
from uc_stage import caching, transfer
from uc_stage.buffers import SMALL_BYTES
from uc_stage.caching import making, places
from uc_stage.caching.places import place_of
from uc_stage.errors import (
    AccessDenied,
    Busy,
    InvalidRequest,
    NoSpace,
    NotFound,
    StageError,
    Unsupported,
    VerificationFailed,
)
from uc_stage.locks import Lock
from uc_stage.manifest import COPY_PATH, MANIFEST_PATH, CopyRecord
from uc_stage.model import CacheReport, CacheRequest, CopyFile
from uc_stage.publish import CopyPublication, lock_path, read_copy, remove_copy
from uc_stage.sources import open_source
from uc_stage.storage import LocalFolder
from uc_stage.transfer import moving

if TYPE_CHECKING:
    from collections.abc import Callable


class Watcher:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.amounts: list[int] = []
        self.notes: list[str] = []

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:  # noqa: ARG002 - the protocol's
        self.phases.append((name, total))

    def advance(self, amount: int) -> None:
        self.amounts.append(amount)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "images"
    (folder / "cats/small").mkdir(parents=True)
    (folder / "a.bin").write_bytes(os.urandom(200_000))
    (folder / "cats/b.bin").write_bytes(b"miau")
    (folder / "cats/small/empty").write_bytes(b"")
    return str(folder)


@pytest.fixture
def export(tmp_path: Path) -> str:
    folder = str(tmp_path / "orders")
    make_export(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Callable[..., CacheReport]:
    def run(source: str, **options: object) -> CacheReport:
        request = CacheRequest(source, **{"cache_dir": str(tmp_path / "cache"), **options})  # type: ignore[arg-type]  # as the test says
        return caching.run(request)

    return run


def tree(folder: str) -> dict[str, tuple[bytes, int]]:
    """The content and time of all files that are not uc-stage's own."""
    found = {}
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".uc_stage"]
        for name in names:
            whole = os.path.join(where, name)
            with open(whole, "rb") as file:
                found[os.path.relpath(whole, folder)] = file.read(), os.stat(whole).st_mtime_ns
    return found


def leftovers(root: Path) -> list[str]:
    return [*os.listdir(root / "partial"), *(str(path) for path in root.rglob("unnamed"))]


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


def digest(path: str) -> str:
    import xxhash

    with open(path, "rb") as file:
        return str(xxhash.xxh3_128_hexdigest(file.read()))


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
    caching.run(request)
    (copy,) = (tmp_path / "cache/copies").iterdir()
    partial = place_of(request, source, "", None).partial
    record = read_copy(str(copy))
    assert record is not None
    os.rename(copy, partial)
    LocalFolder(partial).put(COPY_PATH, dataclasses.replace(record, generation="", files=()).to_json())

    caching.run(dataclasses.replace(request, include=("*",), exclude=(min(tree(source)),)))

    assert os.path.isdir(partial)
