"""Exports to a real mount with a volume's rules: killed at each step, side by side, refused, and under a vacuum."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.delta import actions, request
from tests.fixtures.shell import Done, tree
from tests.fixtures.volume import Volume
from tests.fixtures.warm import Warm
from uc_stage import exporting
from uc_stage.engines.local import scan
from uc_stage.errors import NoSpace
from uc_stage.manifest import MANIFEST_PATH, Manifest
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

# Two versions of a table with no row in common: a mix of both is neither.
IDS = (range(150), range(1000, 1300))


def rows(ids: range, width: int = 10) -> pa.Table:
    import pyarrow as pa

    return pa.table({"id": pa.array(ids, pa.int64()), "blob": [os.urandom(width) for _ in ids]})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    from deltalake import write_deltalake

    path = str(tmp_path_factory.mktemp("tables") / "numbers")
    for ids in IDS:
        write_deltalake(path, rows(ids), mode="overwrite")
    return path


@pytest.fixture
def scattered(tmp_path: Path) -> str:
    """A table of many data files, most of which a reader has not opened as it writes its first rows."""
    from deltalake import write_deltalake

    path = str(tmp_path / "scattered")
    for index in range(30):
        write_deltalake(path, rows(range(index * 100, (index + 1) * 100), 1000), mode="append")
    return path


def added(table: str) -> list[str]:
    """The data files that a table's commits added, in their order."""
    return [action["path"] for version in range(30) for action in actions(table, version, "add")]


def ids_in(dest: str, paths: tuple[str, ...]) -> list[int]:
    import pyarrow.parquet as pq

    found = [pq.ParquetFile(os.path.join(dest, path)).read(["id"])["id"].to_pylist() for path in paths]
    return sorted(value for values in found for value in values)


def whole(dest: str) -> Manifest:
    """The manifest of an export all of whose files are there, with the rows of its version."""
    manifest = read_manifest(LocalFolder(dest))
    assert manifest is not None
    assert all(os.path.getsize(os.path.join(dest, file.path)) == file.bytes for file in manifest.files)
    assert ids_in(dest, tuple(file.path for file in manifest.files)) == list(IDS[manifest.source.version])
    for generation, paths in manifest.retained.items():
        assert ids_in(dest, paths) == list(IDS[int(generation[1])])
    return manifest


def clean(dest: str) -> Manifest:
    """As `whole`, of a folder where nothing else is."""
    manifest = whole(dest)
    kept = {path for paths in manifest.retained.values() for path in paths}
    assert set(tree(dest)) == {MANIFEST_PATH, *(file.path for file in manifest.files), *kept}
    assert os.listdir(os.path.join(dest, ".uc_stage")) == ["manifest.json"]
    return manifest


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def one_error(done: Done, code: int) -> str:
    """The line that says what is wrong; below it stands the one that mends it, and there is no other."""
    assert (done.code, done.out) == (code, ""), done
    error, hint = [line for line in done.err.splitlines() if not line.startswith("engine")]
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return error


@pytest.mark.parametrize("keep", [0, 1])
def test_killed_at_any_step_an_export_leaves_a_whole_generation_and_the_next_run_heals_it(
    keep: int, table: str, volume: Volume, warm: Warm, tmp_path: Path
) -> None:
    from datasets import load_dataset

    dest, old, new, step = f"{volume.mount}/x", 0, 1, 0
    words = [dest, "--files", 2, "--keep", keep]
    assert warm.run("export", f"{table}@v0", *words).code == 0
    seen = set()
    while True:
        step += 1
        # With the other number to keep, each step has its turn in the other way.
        volume.signal_at(step, signal.SIGKILL, torn=step % 2 == keep)
        done = warm.run("export", f"{table}@v{new}", *words)
        steps = volume.steps()
        volume.clear()
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL, done

        manifest = whole(dest)
        seen.add(manifest.source.version == new)
        if step % 7 == 1 and not keep:
            files = [os.path.join(dest, file.path) for file in manifest.files]
            loaded = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "hf"))["train"]
            assert sorted(loaded["id"]) == list(IDS[manifest.source.version])

        healed = warm.run("export", f"{table}@v{new}", *words)
        assert healed.code == 0, (steps, healed)
        manifest = clean(dest)
        assert (manifest.source.version, len(manifest.retained) <= keep) == (new, True), steps
        old, new = new, old
    assert seen == {False, True}
    assert step > 20


def test_killed_at_any_step_a_first_export_is_absent_or_whole_and_the_next_run_makes_it(
    table: str, volume: Volume, warm: Warm
) -> None:
    dest, step = f"{volume.mount}/x", 0
    words = ["export", f"{table}@v0", dest, "--files", 2]
    while True:
        step += 1
        volume.signal_at(step, signal.SIGKILL, torn=step % 2 == 0)
        done = warm.run(*words)
        steps = volume.steps()
        volume.clear()
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL, done
        if read_manifest(LocalFolder(dest)) is not None:
            whole(dest)

        healed = warm.run(*words)
        assert healed.code == 0, (steps, healed)
        clean(dest)
        shutil.rmtree(f"{volume.backing}/x")
    assert step > 20


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_at_any_step_an_export_leaves_nothing_of_its_own_before_it_is_published(
    number: signal.Signals, first: bool, table: str, volume: Volume, warm: Warm
) -> None:
    dest, old, new = f"{volume.mount}/x", 0, 1
    if not first:
        assert warm.run("export", f"{table}@v{old}", dest, "--files", 2).code == 0
    # Each other step in turn, which halves the time: the two signals go the same way.
    for step in range(1 if number == signal.SIGTERM else 2, 100, 2):
        before = tree(dest)
        volume.signal_at(step, number)
        done = warm.run("export", f"{table}@v{new}", dest, "--files", 2)
        steps = volume.steps()
        volume.clear()
        if len(steps) < step:
            assert done.code == 0, done
            break
        assert done.code == 128 + number, (steps, done)
        assert done.err == f"error: ended by {number.name}\n"
        if tree(dest).keys() == before.keys():
            assert os.path.exists(dest) is not first, steps
            continue
        assert MANIFEST_PATH in tree(dest), (steps, tree(dest).keys(), done)
        assert clean(dest).source.version == new, steps
        old, new = new, old
        if first:
            shutil.rmtree(f"{volume.backing}/x")
    assert step > 20


@pytest.mark.parametrize("place", ["volume", "disk"])
def test_of_two_exports_at_once_one_is_published_whole_and_the_other_says_so_or_follows(
    place: str, table: str, volume: Volume, warm: Warm, tmp_path: Path
) -> None:
    root = volume.mount if place == "volume" else str(tmp_path)
    for number in range(10):
        dest, versions = f"{root}/{number // 4}", (number % 2, 1 - number % 2)
        started = []
        for version in versions:
            started.append(warm.start("export", f"{table}@v{version}", dest, "--files", 3, "--force"))
            time.sleep(0.02 * (number // 2))
        done = [warm.finish(process) for process in started]

        published = {version for version, one in zip(versions, done, strict=True) if one.code == 0}
        assert clean(dest).source.version in published
        for one, (process, _) in zip(done, started[::-1], strict=True):
            if one.code:
                assert f"`{dest}` is being exported by process {process} on" in one_error(one, 11)


FAULTS = [
    ("mkdir", "*.uc_stage*", errno.EACCES, 0),
    ("create", "*claims*", errno.EROFS, 0),
    ("write", "*claims*", errno.ENOSPC, 0),
    ("close", "*claims*", errno.EDQUOT, 0),
    ("copy", "*claims*", errno.EACCES, 0),
    ("create", "*train-00001*", errno.EACCES, 0),
    ("write", "*train-00001*", errno.ENOSPC, 0),
    ("write", "*train-00000*", errno.EIO, 0),
    ("write", "*train*", errno.ENOSPC, 2000),
    ("close", "*train-00000*", errno.EIO, 0),
    ("close", "*train-00001*", errno.ENOSPC, 0),
    ("create", "*manifest*", errno.EACCES, 0),
    ("write", "*manifest*", errno.ENOSPC, 0),
    ("close", "*manifest*", errno.EIO, 0),
    ("copy", "*manifest*", errno.EIO, 0),
]
CODES = {errno.ENOSPC: 14, errno.EDQUOT: 14, errno.EACCES: 13, errno.EROFS: 13, errno.EIO: 15}


@pytest.mark.parametrize(("on", "pattern", "error", "after"), FAULTS)
def test_a_refusal_of_the_volume_is_told_and_nothing_is_left(
    on: str, pattern: str, error: int, after: int, table: str, volume: Volume, warm: Warm
) -> None:
    dest = f"{volume.mount}/x"
    words = [dest, "--files", 2, "--compression", "none"]
    volume.rule(on, pattern, error=error, after=after)

    told = one_error(warm.run("export", f"{table}@v1", *words), CODES[error])

    assert told.startswith(f"error: `{dest}"), told
    assert told.endswith(f": {os.strerror(error)}"), told
    assert not os.path.exists(dest)

    volume.clear()
    assert warm.run("export", f"{table}@v0", *words).code == 0
    before = tree(dest)
    volume.rule(on, pattern, error=error, after=after)
    assert one_error(warm.run("export", f"{table}@v1", *words), CODES[error]) == told or "tmp" in told
    assert tree(dest) == before
    assert clean(dest).source.version == 0


@pytest.mark.parametrize("since", [1, 4, 6, 9, 13, 15, 18, 20, 22])
def test_a_volume_that_goes_read_only_under_a_run_is_told_and_the_next_run_heals_it(
    since: int, table: str, volume: Volume, warm: Warm
) -> None:
    dest = f"{volume.mount}/x"
    words = [dest, "--files", 2]
    assert warm.run("export", f"{table}@v0", *words).code == 0
    volume.rule("*", since=since, error=errno.EROFS)
    done = warm.run("export", f"{table}@v1", *words)

    if whole(dest).source.version == 0:
        assert one_error(done, 13).endswith(os.strerror(errno.EROFS))
    else:
        assert done.code in {0, 13}
    volume.clear()
    assert warm.run("export", f"{table}@v1", *words).code == 0
    assert clean(dest).source.version == 1


@pytest.mark.parametrize("pattern", ["*train*v0*", "*claims*", "*"])
def test_a_file_that_cannot_be_removed_keeps_no_export_from_being_published(
    pattern: str, table: str, volume: Volume, warm: Warm
) -> None:
    dest = f"{volume.mount}/x"
    assert warm.run("export", f"{table}@v0", dest, "--files", 2).code == 0
    volume.rule("unlink", f"x/{pattern}", error=errno.EIO, since=11)

    done = warm.run("export", f"{table}@v1", dest, "--files", 2)

    assert done.code == 0, (done, volume.steps())
    assert whole(dest).source.version == 1
    volume.clear()
    assert warm.run("export", f"{table}@v1", dest, "--files", 2).code == 0
    clean(dest)


def test_a_file_system_that_is_full_is_told_and_the_generation_before_stays(
    disk: str, table: str, scattered: str, warm: Warm
) -> None:
    dest = f"{disk}/x"
    one_error(warm.run("export", scattered, dest), 14)
    assert os.listdir(disk) == []

    assert warm.run("export", f"{table}@v0", dest).code == 0
    one_error(warm.run("export", scattered, dest, "--files", 3), 14)
    assert clean(dest).source.version == 0


def test_nothing_reads_on_after_a_write_that_failed_while_its_error_is_held(
    disk: str, scattered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_BUDGET_BYTES", 1)
    for asked in ({}, {"shuffle": True, "memory": 16 * 1024**2}):
        with pytest.raises(NoSpace) as caught:
            exporting.run(request(scattered, f"{disk}/x", row_group_bytes=100_000, **asked))
        assert caught.tb
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("uc-stage")] == []


def test_a_file_system_that_is_read_only_is_told(disk: str, table: str, warm: Warm) -> None:
    dest = f"{disk}/x"
    assert warm.run("export", f"{table}@v0", dest).code == 0
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

    for place in (dest, f"{disk}/new/folder"):
        told = one_error(warm.run("export", f"{table}@v1", place), 13)
        assert told.endswith(os.strerror(errno.EROFS))
        assert f"`{disk}" in told
    assert clean(dest).source.version == 0


def test_the_version_of_the_start_is_written_while_another_writer_commits(
    table: str, volume: Volume, warm: Warm, tmp_path: Path
) -> None:
    moving, dest = str(tmp_path / "moving"), f"{volume.mount}/x"
    shutil.copytree(table, moving)
    commits = [f"{moving}/_delta_log/{version:020}.json" for version in (0, 1)]
    os.rename(commits[1], f"{moving}/later")
    volume.rule("create", "*claims*", times=1, run=f"mv {moving}/later {commits[1]}")

    assert warm.run("export", moving, dest, "--files", 2).code == 0

    assert os.path.exists(commits[1])
    assert clean(dest).source.version == 0
    assert warm.run("export", moving, dest, "--files", 2).code == 0
    assert clean(dest).source.version == 1


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize(
    "doomed", ["one of the files before the first read", "all before the first read", "the others in the middle"]
)
def test_a_vacuum_under_a_run_is_refused_and_never_gives_fewer_rows(
    doomed: str, files: int, scattered: str, table: str, volume: Volume, warm: Warm
) -> None:
    dest, source, backing = f"{volume.mount}/x", f"{volume.mount}/table", f"{volume.backing}/table"
    assert warm.run("export", f"{table}@v0", dest).code == 0
    before = tree(dest)
    shutil.copytree(scattered, backing)
    # In the order in which they are read.
    names = sorted(added(scattered))
    if doomed.startswith("the others"):
        kept = names.pop(len(names) // 2)
        volume.fault(f"table/{kept}", times=1, alone=True, run=f"cd {backing} && rm {' '.join(names)}")
    else:
        names = names[len(names) // 2 :][:1] if doomed.startswith("one") else names
        volume.rule("create", "*claims*", times=1, run=f"cd {backing} && rm {' '.join(names)}")

    told = one_error(warm.run("export", source, dest, "--files", files, "--row-group-size", "100KB"), 10)

    assert not {path.name for path in Path(backing).iterdir()} & set(names)
    assert any(name in told for name in names), told
    assert tree(dest) == before
    clean(dest)


@pytest.mark.parametrize("files", [1, 6])
def test_a_run_that_fails_while_many_threads_write_leaves_nothing(
    files: int, scattered: str, table: str, volume: Volume, warm: Warm
) -> None:
    dest = f"{volume.mount}/x"
    words = ["export", scattered, dest, "--files", files, "--row-group-size", "100KB"]
    assert warm.run("export", f"{table}@v0", dest).code == 0
    before = tree(dest)

    volume.rule("write", "*train*", error=errno.ENOSPC, after=300_000)
    assert one_error(warm.run(*words), 14).endswith(f": {os.strerror(errno.ENOSPC)}")
    assert tree(dest) == before

    for step in range(10, 40, 7):
        volume.signal_at(step, signal.SIGTERM)
        assert warm.run(*words).code == 143
        assert tree(dest) == before, volume.steps()
    volume.clear()
    clean(dest)


def test_a_signal_ends_an_export_whose_write_hangs_and_the_next_run_heals_it(
    table: str, volume: Volume, warm: Warm, tmp_path: Path
) -> None:
    dest, hung, go = f"{volume.mount}/x", tmp_path / "hung", tmp_path / "go"
    assert warm.run("export", f"{table}@v0", dest).code == 0
    volume.rule("write", "*train*", times=1, run=f"touch {hung}; until [ -e {go} ]; do sleep 0.1; done")
    pid, place = warm.start("export", f"{table}@v1", dest)
    try:
        wait_for(hung.exists)
        os.kill(pid, signal.SIGTERM)
        # The kernel lets no process go before its call has come back; this one has nothing else to wait for.
        wait_for(lambda: "ended by SIGTERM" in Path(f"{place}.err").read_text("utf-8"))
        wait_for(lambda: Path(f"/proc/{pid}/task/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z")
    finally:
        go.touch()
    assert warm.finish((pid, place)).code == 143
    assert whole(dest).source.version == 0

    volume.clear()
    assert warm.run("export", f"{table}@v1", dest).code == 0
    assert clean(dest).source.version == 1
