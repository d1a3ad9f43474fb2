from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.copies import leftovers, tree
from tests.fixtures.exports import make_export
from uc_stage import caching
from uc_stage.model import CacheRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.volume import Volume

_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = """
import dataclasses, json, sys
from uc_stage import caching
from uc_stage.model import CacheRequest
from uc_stage.transfer import ranges
class Notes:
    # Each a line in one piece, from whatever thread.
    def phase(self, name, *, total=None, unit="bytes"): sys.stderr.write(f"{name}\\n")
    def advance(self, amount): pass
    def note(self, message): sys.stderr.write(f"{message}\\n")
ranges.RANGE_BYTES = 64 * 1024
jobs = 4
exec(sys.argv[3])
report = caching.run(CacheRequest(sys.argv[1], cache_dir=sys.argv[2], jobs=jobs), Notes())
report = dataclasses.asdict(report)
print(json.dumps(report))
"""


def start(source: str, root: str, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, source, root, before]
    return subprocess.Popen(command, cwd=_PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads(out)
    return report, errors


def fetched_last(folder: str) -> str:
    return min(tree(folder), key=lambda name: (os.path.getsize(f"{folder}/{name}"), name))


def test_of_eight_processes_one_copies_and_all_give_the_same_path(volume: Volume, tmp_path: Path) -> None:
    make_export(f"{volume.backing}/orders", rows=100_000)
    processes = [start(f"{volume.mount}/orders", str(tmp_path / "cache")) for _ in range(8)]

    reports = [finish(process)[0] for process in processes]

    assert len({report["path"] for report in reports}) == 1
    assert sorted(report["status"] for report in reports) == ["done"] + ["unchanged"] * 7
    assert sum(report["bytes_copied"] > 0 for report in reports) == 1
    assert tree(reports[0]["path"]) == tree(f"{volume.mount}/orders")
    assert leftovers(tmp_path / "cache") == []


def test_eight_processes_that_no_lock_keeps_apart_lose_no_byte(tmp_path: Path) -> None:
    source, root = str(tmp_path / "orders"), str(tmp_path / "cache")
    make_export(source, files=20, rows=20_000)
    lying = "import fcntl; fcntl.flock = lambda *_: None"
    processes = [start(source, root, lying) for _ in range(8)]

    reports = [finish(process)[0] for process in processes]

    assert len({report["path"] for report in reports}) == 1
    assert {path: data for path, (data, _) in tree(reports[0]["path"]).items()} == {
        path: data for path, (data, _) in tree(source).items()
    }
    assert caching.plan(CacheRequest(source, cache_dir=root)).state == "fresh"


def test_a_waiter_says_whom_it_waits_for_and_takes_over_when_that_one_is_killed(volume: Volume, tmp_path: Path) -> None:
    make_export(f"{volume.backing}/orders", files=4, rows=50_000)
    last = fetched_last(f"{volume.backing}/orders")
    volume.fault(f"orders/{last}", run="sleep 4", times=1)
    source, root = f"{volume.mount}/orders", str(tmp_path / "cache")
    with start(source, root) as copier:
        assert copier.stderr is not None
        while copier.stderr.readline() != "copy\n":
            assert copier.poll() is None
        with start(source, root) as waiter:
            assert waiter.stderr is not None
            assert waiter.stderr.readline() == "list\n"
            assert f"waiting for process {copier.pid} on" in waiter.stderr.readline()
            copier.send_signal(signal.SIGKILL)
            report, _ = finish(waiter)

    assert report["status"] == "done"
    assert tree(report["path"]) == tree(source)
    assert leftovers(tmp_path / "cache") == []


def test_seven_wait_with_a_line_that_says_for_whom_and_how_far_and_one_takes_over_from_a_killed_copier(
    volume: Volume, tmp_path: Path
) -> None:
    make_export(f"{volume.backing}/orders", files=4, rows=50_000)
    last = fetched_last(f"{volume.backing}/orders")
    volume.fault(f"orders/{last}", run="sleep 30", times=1)
    source, root = f"{volume.mount}/orders", str(tmp_path / "cache")
    often = "from uc_stage import locks; locks._SAY_SECONDS, locks._TELL_SECONDS = 0.2, 0.0\n"
    often += "import os; os.environ.update(RANK='5', WORLD_SIZE='8')"
    with start(source, root, often) as copier:
        assert copier.stderr is not None
        while copier.stderr.readline() != "copy\n":
            assert copier.poll() is None
        with contextlib.ExitStack() as stack:
            waiters = [stack.enter_context(start(source, root, often)) for _ in range(7)]
            pattern = re.compile(
                rf"waiting for process {copier.pid} \(rank 5\) on `.+`, "
                r"which makes this copy: (\d+\.\d) of (\d+\.\d) MB\n"
            )
            for waiter in waiters:
                assert waiter.stderr is not None
                while not (said := pattern.fullmatch(waiter.stderr.readline())):
                    assert waiter.poll() is None
                assert 0 < float(said[1]) <= float(said[2])
            copier.kill()
            reports = [finish(waiter)[0] for waiter in waiters]

    assert len({report["path"] for report in reports}) == 1
    assert sorted(report["status"] for report in reports) == ["done"] + ["unchanged"] * 6
    assert sum(report["bytes_copied"] > 0 for report in reports) == 1
    assert tree(reports[0]["path"]) == tree(source)
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("where", ["local", "volume"])
def test_killed_at_any_instant_the_path_is_absent_or_complete_and_a_run_goes_on(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if where == "volume":
        volume: Volume = request.getfixturevalue("volume")
        behind, source = f"{volume.backing}/orders", f"{volume.mount}/orders"
    else:
        behind = source = str(tmp_path / "orders")
    make_export(behind, files=30, rows=30_000)
    expected = {path: data for path, (data, _) in tree(source).items()}
    root = str(tmp_path / "cache")
    plan = caching.plan(CacheRequest(source, cache_dir=root))
    generator = random.Random(5)
    reused: list[int] = []
    kills = 0
    for _ in range(60):
        if kills >= 4 and any(reused):
            break
        with start(source, root) as process:
            assert process.stderr is not None
            phase = generator.choice(["list\n", "copy\n"])
            while (line := process.stderr.readline()) not in (phase, ""):
                pass
            time.sleep(generator.random() * 0.15)
            process.kill()
            process.wait()
            kills += process.returncode == -signal.SIGKILL
        if os.path.exists(plan.path):
            assert {path: data for path, (data, _) in tree(plan.path).items()} == expected
            assert caching.plan(plan.request).state == "fresh"
            if line:
                # From the start again, now and then with the copy's files damaged.
                os.rename(plan.path, f"{tmp_path}/done-{len(os.listdir(tmp_path))}")
                continue
        else:
            report, _ = finish(start(source, root))
            reused.append(report["bytes_reused"])
            assert {path: data for path, (data, _) in tree(report["path"]).items()} == expected
            assert report["bytes_copied"] + report["bytes_reused"] == plan.bytes
            assert leftovers(tmp_path / "cache") == []
            os.rename(plan.path, f"{tmp_path}/done-{len(os.listdir(tmp_path))}")

    assert kills >= 4
    assert any(reused)


@pytest.mark.parametrize("step", ["note", "rename", "put", "sync_all", "sync_folder", "commit"])
def test_killed_at_each_step_of_publication_a_run_goes_on_from_what_is_good(step: str, tmp_path: Path) -> None:
    source, root = str(tmp_path / "orders"), str(tmp_path / "cache")
    make_export(source, files=5)
    names = {
        "note": ("publish.CopyPublication", "_note", 3),
        "rename": ("os", "rename", 4),
        "put": ("storage.LocalFolder", "put", 4),
        "sync_all": ("publish.copies", "sync_all", 1),
        "sync_folder": ("publish.copies", "sync_folder", 1),
        "commit": ("publish.copies", "remove_copy", 1),
    }
    owner, name, count = names[step]
    killer = (
        "import os, itertools, signal\n"
        "jobs = 1\n"
        "from uc_stage import publish, storage\n"
        f"real, calls = {owner}.{name}, itertools.count(1)\n"
        "def late(*a, **k):\n"
        f"    if next(calls) == {count}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*a, **k)\n"
        f"{owner}.{name} = late\n"
    )
    if step == "commit":
        # The removal of the copy that another one replaced.
        first, _ = finish(start(source, root))
        os.unlink(next(iter(sorted(f"{first['path']}/{path}" for path in tree(first["path"])))))
    process = start(source, root, killer)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL

    plan = caching.plan(CacheRequest(source, cache_dir=root))
    if os.path.exists(plan.path):
        assert plan.state == "fresh"
    else:
        assert plan.state == "partial"
    report, _ = finish(start(source, root))

    assert tree(report["path"]).keys() == tree(source).keys()
    assert report["bytes_reused"] > 0
    if step != "commit":
        assert leftovers(tmp_path / "cache") == []
    finish(
        start(
            source, root, "import dataclasses; R = CacheRequest\nCacheRequest = lambda *a, **k: R(*a, **k, force=True)"
        )
    )
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_copy_and_the_next_run_goes_on(volume: Volume, tmp_path: Path, number: signal.Signals) -> None:
    make_export(f"{volume.backing}/orders", files=10, rows=50_000)
    last = fetched_last(f"{volume.backing}/orders")
    volume.fault(f"orders/{last}", run="sleep 3", times=1)
    source, root = f"{volume.mount}/orders", str(tmp_path / "cache")
    handler = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"
    with start(source, root, handler) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "copy\n":
            assert process.poll() is None
        time.sleep(0.5)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode != 0

    assert os.listdir(tmp_path / "cache/copies") == []
    (partial,) = (tmp_path / "cache/partial").iterdir()
    assert list((partial / ".uc_stage/unnamed").iterdir()) == []
    report, _ = finish(start(source, root))
    assert report["bytes_reused"] > 0
    assert tree(report["path"]) == tree(source)
