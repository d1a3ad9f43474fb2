from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.copies import tree
from tests.test_cache_processes import finish, start
from uc_stage import caching, publish
from uc_stage.caching import places
from uc_stage.errors import InvalidRequest, NoSpace, NotFound, VerificationFailed
from uc_stage.model import CacheRequest
from uc_stage.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.volume import Volume

FIRST, LATER = 300_000, 200_000


@pytest.fixture
def slow(volume: Volume, tmp_path: Path) -> Volume:
    """A source of two folders, of which `late` is not listed before a file `go` is there, for some seconds."""
    for path, size in (("early/first.bin", FIRST), ("early/second.bin", 1000), ("late/last.bin", LATER)):
        Path(f"{volume.backing}/{path}").parent.mkdir(exist_ok=True)
        Path(f"{volume.backing}/{path}").write_bytes(os.urandom(size))
    volume.fault("late/", run=waiting_for(f"test -e {tmp_path}/go"))
    return volume


def waiting_for(condition: str) -> str:
    return f"for i in $(seq 600); do {condition} && break; sleep 0.05; done"


def wait_until_named(root: str, name: str) -> None:
    deadline = time.monotonic() + 30
    while not list(Path(root).glob(f"partial/*/{name}")):
        assert time.monotonic() < deadline, f"`{name}` did not come"
        time.sleep(0.02)


@contextlib.contextmanager
def copying(volume: Volume, root: str, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that copies, which has named the first file and has not listed the last one."""
    with start(volume.mount, root, before) as process:
        try:
            wait_until_named(root, "early/first.bin")
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("dest", [None, "nvme/data"])
def test_the_first_bytes_are_read_before_the_listing_ends(slow: Volume, tmp_path: Path, dest: str | None) -> None:
    seen = f"grep -q first.bin {slow.control}.reads"
    slow.fault("late/", run=f"{waiting_for(seen)}; {seen} && touch {tmp_path}/before || true")

    request = CacheRequest(slow.mount, dest and str(tmp_path / dest), str(tmp_path / "cache"))
    report = caching.run(request)

    assert (tmp_path / "before").exists()
    assert (report.files, report.bytes_copied, report.bytes_reused) == (3, FIRST + 1000 + LATER, 0)
    assert report.generation == open_source(slow.mount).generation
    slow.clear()
    assert caching.run(request).status == "unchanged"
    assert {path: data for path, (data, _) in tree(report.path).items()} == {
        path: data for path, (data, _) in tree(slow.backing).items()
    }


def test_a_run_killed_before_its_listing_ended_keeps_what_did_not_change(slow: Volume, tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    with copying(slow, root) as process:
        wait_until_named(root, "early/second.bin")
        process.send_signal(signal.SIGKILL)
        # The kernel ends a thread that asks a mount when that has answered.
        (tmp_path / "go").touch()
        process.wait()
        (left,) = publish.list_copies(root)
        assert (left.kind, left.generation, left.source) == ("partial", None, slow.mount)
    slow.clear()
    Path(f"{slow.backing}/early/second.bin").write_bytes(os.urandom(1000))
    os.utime(f"{slow.backing}/early/second.bin", (1, 1))
    assert caching.plan(CacheRequest(slow.mount, cache_dir=root)).state == "partial"

    report, _ = finish(start(slow.mount, root))

    assert (report["bytes_reused"], report["bytes_copied"]) == (FIRST, 1000 + LATER)
    assert {path: data for path, (data, _) in tree(report["path"]).items()} == {
        path: data for path, (data, _) in tree(slow.backing).items()
    }
    assert os.listdir(f"{root}/partial") == []


def test_others_wait_for_the_one_that_lists_and_no_file_is_read_twice(slow: Volume, tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    with copying(slow, root) as process, start(slow.mount, root) as other:
        assert other.stderr is not None
        while "which makes this copy" not in (line := other.stderr.readline()):
            assert line, "it did not wait"
        assert f"process {process.pid}" in line
        (tmp_path / "go").touch()
        reports = [finish(one)[0] for one in (process, other)]

    assert [report["status"] for report in reports] == ["done", "unchanged"]
    assert reports[0]["path"] == reports[1]["path"]
    # The kernel asks for a file of this size in three pieces or a few more.
    assert slow.reads("early/first.bin") < 2 * -(-FIRST // (128 * 1024))


def test_a_waiter_takes_over_from_one_that_is_killed_while_it_lists(slow: Volume, tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    with copying(slow, root) as process, start(slow.mount, root) as other:
        assert other.stderr is not None
        while "which makes this copy" not in other.stderr.readline():
            assert other.poll() is None
        process.kill()
        (tmp_path / "go").touch()
        report, _ = finish(other)

    assert report["bytes_reused"] >= FIRST
    assert tree(report["path"]).keys() == tree(slow.backing).keys()


def test_what_turns_out_not_to_fit_leaves_nothing_and_evicts_nobody(slow: Volume, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").write_bytes(os.urandom(100_000))
    root = str(tmp_path / "cache")
    other = finish(start(str(tmp_path / "other"), root))[0]["path"]
    slow.fault("late/", run=waiting_for(f"grep -q first.bin {slow.control}.reads"))

    # The first folder would fit beside the other copy, and both together not even without it.
    with pytest.raises(NoSpace, match="--max-size"):
        caching.run(CacheRequest(slow.mount, cache_dir=root, max_size=450_000))

    assert slow.reads("early/first.bin") > 0
    assert os.path.exists(other)
    assert os.listdir(f"{root}/partial") == []


def test_room_is_made_once_the_listing_tells_that_it_is_needed(slow: Volume, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").write_bytes(os.urandom(100_000))
    root = str(tmp_path / "cache")
    # By a process that has ended, and holds it no more.
    other = finish(start(str(tmp_path / "other"), root))[0]["path"]
    slow.fault("late/", run=waiting_for(f"grep -q first.bin {slow.control}.reads"))

    report = caching.run(CacheRequest(slow.mount, cache_dir=root, max_size=FIRST + 1000 + LATER + 50_000))

    assert report.evicted == (other,)
    assert tree(report.path).keys() == tree(slow.backing).keys()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda late: os.rename(f"{late}/folder", f"{late}/_delta_log"), InvalidRequest),
        (lambda late: os.symlink("/etc/passwd", f"{late}/users"), VerificationFailed),
        (lambda late: os.symlink("/nowhere", f"{late}/users"), NotFound),
    ],
)
def test_a_source_that_turns_out_to_be_none_leaves_nothing(
    tmp_path: Path, spoil: Callable[[Path], object], error: type[Exception]
) -> None:
    for folder in ("early", "late"):
        (tmp_path / "source" / folder).mkdir(parents=True)
        (tmp_path / "source" / folder / "x").write_bytes(b"1")
    (tmp_path / "source/late/folder").mkdir()
    (tmp_path / "source/late/folder/0.json").touch()
    spoil(tmp_path / "source/late")

    with pytest.raises(error):
        caching.run(CacheRequest(str(tmp_path / "source"), cache_dir=str(tmp_path / "cache")))

    assert os.listdir(tmp_path / "cache/partial") == []
    assert os.listdir(tmp_path / "cache/copies") == []


def test_a_file_that_goes_away_under_the_listing_is_none_of_the_copy(slow: Volume, tmp_path: Path) -> None:
    slow.fault("late/", run=f"{waiting_for(f'grep -q first.bin {slow.control}.reads')}; rm -f {slow.backing}/late/*")

    report = caching.run(CacheRequest(slow.mount, cache_dir=str(tmp_path / "cache")))

    assert sorted(tree(report.path)) == ["early/first.bin", "early/second.bin"]


def test_what_stands_in_the_way_of_the_copy_is_found_when_its_name_is(slow: Volume, tmp_path: Path) -> None:
    request = CacheRequest(slow.mount, cache_dir=str(tmp_path / "cache"))
    (tmp_path / "go").touch()
    path = Path(caching.plan(request).path)
    path.mkdir(parents=True)
    os.chmod(tmp_path / "cache", 0o700)
    (path / "theirs").touch()

    with pytest.raises(InvalidRequest, match="is not uc-stage's"):
        caching.run(request)

    assert (path / "theirs").exists()
    assert os.listdir(tmp_path / "cache/partial") == []


def test_how_far_a_copy_is_can_be_told_before_its_size_is_known() -> None:
    holder = {"pid": 7, "host": "node", "done": 300_000, "total": 0}

    assert caching._waiting(holder).endswith("which makes this copy: 0.3 MB so far")
    assert caching._waiting({**holder, "total": 10**6}).endswith("which makes this copy: 0.3 of 1.0 MB")
    assert caching._waiting({**holder, "done": 0}).endswith("which makes this copy")


def test_all_generations_of_a_folder_are_filled_in_one_place(tmp_path: Path) -> None:
    request = CacheRequest("/data/images")

    one, two = (places.place_of(request, "/data/images", generation, None) for generation in ("1", "2"))
    other = places.place_of(request, "/data/images", "1", "id")

    assert (one.partial, one.lock) == (two.partial, two.lock)
    assert (one.path, one.own) != (two.path, two.own)
    assert other.lock == other.own
    assert other.partial != one.partial


def test_a_file_more_takes_little_memory(tmp_path: Path) -> None:
    few, many = (peak(tmp_path, count) for count in (1000, 6000))

    # So that 100,000 files stay far below 300 MB.
    assert (many - few) / 5000 < 2000


def peak(tmp_path: Path, count: int) -> int:
    source = tmp_path / f"of-{count}"
    source.mkdir()
    for index in range(count):
        (source / f"image-{index:08}.jpg").write_bytes(b"1")
    program = "import sys, uc_stage; uc_stage.cache(sys.argv[1], cache_dir=sys.argv[2])\n"
    program += "print(open('/proc/self/status').read())"
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "cache")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
