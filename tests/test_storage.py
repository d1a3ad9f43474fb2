from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from uc_stage.errors import AccessDenied, NotFound, Unavailable, Unsupported, VerificationFailed
from uc_stage.storage import LocalFolder, RemoteFolder, durable, open_folder, sync, sync_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from tests.fixtures.volume import Volume
    from uc_stage.storage import Folder


@pytest.fixture(params=["local", "volume", "s3", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return open_folder(str(tmp_path / "folder"))
    if request.param == "volume":
        return open_folder(f"{request.getfixturevalue('volume').mount}/folder")
    if request.param == "s3":
        return open_folder(f"{request.getfixturevalue('bucket').url}/folder")
    return open_folder(f"memory://{tmp_path.name}/folder")


def test_any_storage_does_what_a_folder_promises(folder: Folder) -> None:
    assert not folder.exists()
    assert folder.stat("sub/a") is None
    with pytest.raises(NotFound):
        list(folder.entries())

    with folder.create("sub/a") as file:
        file.write(b"0123")
        file.write(b"456789")
    folder.put("b", b"first")
    folder.put("b", b"second")
    folder.put(".hidden/c", b"")

    assert folder.exists()
    assert sorted((entry.path, entry.bytes) for entry in folder.entries()) == [
        (".hidden/c", 0),
        ("b", 6),
        ("sub/a", 10),
    ]
    assert sorted(entry.path for entry in folder.entries(hidden=False)) == ["b", "sub/a"]
    assert folder.read("b") == b"second"
    with folder.open("sub/a") as stream:
        stream.seek(8)
        assert stream.read() == b"89"
    found = folder.stat("sub/a")
    assert found is not None
    assert found.bytes == 10
    assert found.mtime_ns
    assert folder.locate("sub/a") == f"{folder.url}/sub/a"

    ranges = folder.ranges("sub/a")
    buffer = memoryview(bytearray(4))
    assert (ranges.read_into(buffer, 3), bytes(buffer)) == (4, b"3456")
    assert ranges.read_into(buffer, 8) == 2
    assert ranges.read_into(buffer[:0], 0) == 0
    ranges.forget()
    assert (ranges.read_into(buffer, 3), bytes(buffer)) == (4, b"3456")
    ranges.close()

    folder.rename("sub/a", "sub/d")
    assert folder.stat("sub/a") is None
    assert folder.read("sub/d") == b"0123456789"
    folder.remove("sub/d")
    folder.remove("sub/d")
    folder.prune("sub")
    assert sorted(entry.path for entry in folder.entries()) == [".hidden/c", "b"]


def test_a_missing_file_is_named(folder: Folder) -> None:
    for act in (folder.read, folder.open):
        with pytest.raises(NotFound, match="folder/gone"):
            act("gone")


def test_a_folder_is_pruned_as_far_as_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a/empty").mkdir(parents=True)
    (tmp_path / "a/full").mkdir()
    (tmp_path / "a/full/x").touch()

    LocalFolder(str(tmp_path)).prune("a")

    assert [path.name for path in (tmp_path / "a").iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("text", "url"),
    [("dbfs:/Volumes/a/b", "/Volumes/a/b"), ("file:///x/y/../z", "/x/z"), ("/x/y/", "/x/y")],
)
def test_local_paths_have_one_form(text: str, url: str) -> None:
    assert open_folder(text).url == url


def test_an_unknown_protocol_says_what_to_install() -> None:
    with pytest.raises(Unavailable, match="nosuch") as caught:
        open_folder("nosuch://x/y")
    assert "install" in str(caught.value.hint)


def test_an_object_that_was_replaced_is_seen_though_the_listing_is_remembered(bucket: Bucket) -> None:
    folder = open_folder(f"{bucket.url}/data")
    bucket.put("data/x", b"1")
    assert [entry.bytes for entry in folder.entries()] == [1]
    bucket.put("data/x", b"22")
    bucket.put("data/y", b"333")

    assert folder.stat("x") == folder.stat("x")
    assert [entry.bytes for entry in sorted(folder.entries(), key=lambda entry: entry.path)] == [2, 3]
    assert open_folder(f"{bucket.url}/data").read("x") == b"22"


def test_a_bucket_that_is_not_there_is_an_error_of_the_storage(bucket: Bucket) -> None:
    folder = open_folder(f"{bucket.url}-gone/data")

    assert isinstance(folder, RemoteFolder)
    with pytest.raises((NotFound, Unavailable)):
        list(folder.entries())


def test_a_file_is_written_once(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    folder.put("x", b"1")

    with pytest.raises(Unavailable, match="/x`: File exists"):
        folder.create("x")


def test_a_put_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    (tmp_path / "x/in").mkdir(parents=True)

    with pytest.raises(Unavailable):
        folder.put("x", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_link_is_followed_inside_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "folder/sub").mkdir(parents=True)
    (tmp_path / "folder/sub/x").write_bytes(b"in")
    (tmp_path / "secret").write_bytes(b"out")
    folder = LocalFolder(str(tmp_path / "folder"))
    os.symlink("sub/x", tmp_path / "folder/good")
    os.symlink("../secret", tmp_path / "folder/bad")
    os.symlink("..", tmp_path / "folder/up")

    assert folder.read("good") == b"in"
    for path in ("bad", "up/secret"):
        for act in (folder.open, folder.ranges):
            with pytest.raises(VerificationFailed, match=f"{path}` is a link out of the folder"):
                act(path)
    with pytest.raises(VerificationFailed, match="link out of the folder"):
        list(folder.entries())


def test_circles_of_links_end(tmp_path: Path) -> None:
    for name in ("a", "b", "c/d"):
        (tmp_path / name).mkdir(parents=True)
    os.symlink("../b", tmp_path / "a/to_b")
    os.symlink("../a", tmp_path / "b/to_a")

    with pytest.raises(VerificationFailed, match="links to a folder that it lies in"):
        list(LocalFolder(str(tmp_path)).entries())

    os.unlink(tmp_path / "b/to_a")
    os.symlink("../c", tmp_path / "b/to_c")
    os.symlink("c/d", tmp_path / "to_d")
    (tmp_path / "c/d/x").touch()
    found = sorted(entry.path for entry in LocalFolder(str(tmp_path)).entries())

    assert found == ["a/to_b/to_c/d/x", "b/to_c/d/x", "c/d/x", "to_d/x"]


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    folder = LocalFolder(str(tmp_path))

    for act in (folder.open, folder.ranges):
        with pytest.raises(Unsupported, match="pipe` is not a file"):
            act("pipe")
    with pytest.raises(Unsupported, match="pipe` is neither a file nor a folder"):
        list(folder.entries())


def test_a_listing_that_is_left_early_ends(tmp_path: Path) -> None:
    for index in range(200):
        (tmp_path / f"{index}").touch()

    assert next(LocalFolder(str(tmp_path)).entries()).bytes == 0


def test_a_large_tree_is_listed_whole(tmp_path: Path) -> None:
    expected = set()
    for index in range(40):
        (tmp_path / f"d{index}/e").mkdir(parents=True)
        for name in ("x", "e/y"):
            (tmp_path / f"d{index}/{name}").write_bytes(b"1" * index)
            expected.add((f"d{index}/{name}", index))

    assert {(entry.path, entry.bytes) for entry in LocalFolder(str(tmp_path)).entries()} == expected


def test_a_refusal_of_the_system_names_the_path(tmp_path: Path, volume: Volume) -> None:
    with open(f"{volume.backing}/x", "wb") as file:
        file.write(b"1")
    volume.fault("x", error=errno.EACCES)

    with pytest.raises(AccessDenied, match="Volumes/x`: Permission denied"):
        LocalFolder(volume.mount).read("x")
    os.mkdir(f"{volume.backing}/sub")
    # A volume renames no folders.
    with pytest.raises(Unavailable, match="Volumes/sub`: Operation not supported"):
        LocalFolder(volume.mount).rename("sub", "other")


def test_a_mount_without_fsync_is_no_error() -> None:
    reading, writing = os.pipe()
    try:
        sync(writing)
        with pytest.raises(OSError, match="Bad file descriptor"):
            sync(2**20)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(("name", "value"), [("_SYNCED_AS_A_WHOLE", set()), ("_TELLS_SINCE", (99, 0))])
def test_files_are_synced_one_by_one_where_all_at_once_cannot_be_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/1").write_bytes(b"1")
    (tmp_path / "2").write_bytes(b"2")
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(durable, name, value)
    sync_all(str(tmp_path), ["a/b/1", "2"])

    assert sorted(synced) == [".", "2", "a", "a/b", "a/b/1"]


def test_a_small_file_that_is_replaced_between_the_look_and_the_open_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"new")
    real, stale = LocalFolder._descriptor, [True, True]

    def replaced(folder: LocalFolder, path: str) -> tuple[int, os.stat_result]:
        if stale:
            stale.pop()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(folder, path)

    monkeypatch.setattr(LocalFolder, "_descriptor", replaced)
    assert LocalFolder(str(tmp_path)).read("x") == b"new"
    stale[:] = [True] * 10
    with pytest.raises(Unavailable, match="Stale file handle"):
        LocalFolder(str(tmp_path)).read("x")
