from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.copies import leftovers
from tests.fixtures.exports import make_export
from tests.fixtures.shell import uc_stage
from tests.test_cache_arrow import column_of, rows_in
from tests.test_cache_processes import finish, start
from uc_stage import caching
from uc_stage.model import CacheRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.volume import Volume

AS_ARROW = "R = CacheRequest\nCacheRequest = lambda *a, **k: R(*a, **k, form='arrow')\n"


def test_the_command_line_prints_the_path_and_says_what_it_took(tmp_path: Path) -> None:
    source, root = str(tmp_path / "orders"), str(tmp_path / "cache")
    make_export(source)

    planned = uc_stage("cache", source, "--as", "arrow", "--cache-dir", root, "--dry-run")
    done = uc_stage("cache", source, "--cache-dir", root, UC_STAGE_AS="arrow")

    assert "form        arrow\nsize        about " in planned.out
    assert os.path.exists(f"{done.out.strip()}/dataset_dict.json")
    assert f"copied {source} as arrow: 6 files (" in done.err


def test_killed_in_the_middle_of_a_conversion_a_run_keeps_what_is_whole(tmp_path: Path) -> None:
    source, root = str(tmp_path / "orders"), str(tmp_path / "cache")
    manifest = make_export(source, files=4, rows=5000)
    dying = AS_ARROW + (
        "import itertools, os, signal\njobs = 1\n"
        "from uc_stage.forms import arrow\n"
        "real, calls = arrow._write, itertools.count(1)\n"
        "def late(path, parts, out):\n"
        "    if next(calls) == 3:\n"
        "        out.write(b'a half')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(path, parts, out)\n"
        "arrow._write = late\n"
    )
    dies = start(source, root, dying)
    dies.communicate(timeout=60)
    assert dies.returncode == -signal.SIGKILL
    request = CacheRequest(source, cache_dir=root, form="arrow")
    plan = caching.plan(request)
    assert (plan.state, len(plan.outputs), os.path.exists(plan.path)) == ("partial", 2, False)

    report, _ = finish(start(source, root, AS_ARROW))

    assert report["bytes_copied"] == plan.bytes_to_copy
    assert report["bytes_copied"] == sum(sorted(file.bytes for file in manifest.files)[:2])
    assert report["bytes_reused"] > 0
    assert column_of(report["path"], "id") == [row["id"] for row in rows_in(source)["train"]]
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("step", ["publish.CopyPublication._note", "storage.LocalFolder.put"])
def test_killed_at_each_step_of_publication_a_run_goes_on(step: str, tmp_path: Path) -> None:
    source, root = str(tmp_path / "orders"), str(tmp_path / "cache")
    make_export(source)
    last = {"publish.CopyPublication._note": 3, "storage.LocalFolder.put": 5}[step]
    killer = AS_ARROW + (
        "import os, itertools, signal\nfrom uc_stage import publish, storage\n"
        f"real, calls = {step}, itertools.count(1)\n"
        "def late(*a, **k):\n"
        f"    if next(calls) == {last}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*a, **k)\n"
        f"{step} = late\n"
    )
    dies = start(source, root, killer)
    dies.communicate(timeout=60)
    assert dies.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path / "cache/copies") == []

    report, _ = finish(start(source, root, AS_ARROW))

    assert report["bytes_reused"] > 0
    assert column_of(report["path"], "id") == [row["id"] for row in rows_in(source)["train"]]
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("lock", ["", "import fcntl; fcntl.flock = lambda *_: None\n"])
def test_of_several_processes_all_give_one_path_also_where_the_lock_lies(lock: str, tmp_path: Path) -> None:
    source, root = str(tmp_path / "orders"), str(tmp_path / "cache")
    make_export(source, files=6, rows=20_000)
    processes = [start(source, root, AS_ARROW + lock) for _ in range(2)]

    reports = [finish(one)[0] for one in processes]

    assert len({report["path"] for report in reports}) == 1
    if not lock:
        assert sorted(report["status"] for report in reports) == ["done", "unchanged"]
    assert column_of(reports[0]["path"], "id") == [row["id"] for row in rows_in(source)["train"]]


def test_a_signal_in_the_middle_of_a_conversion_leaves_no_half_of_a_file(volume: Volume, tmp_path: Path) -> None:
    make_export(f"{volume.backing}/orders", files=3, rows=5000)
    source, root = f"{volume.mount}/orders", str(tmp_path / "cache")
    slow = AS_ARROW + (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "from uc_stage import crew\nfrom uc_stage.forms import arrow\ncrew._JOIN_SECONDS = 0.1\n"
        "def late(path, parts, out):\n"
        "    out.write(b'a half')\n"
        "    sys.stderr.write('half\\n')\n"
        "    time.sleep(1)\n"
        "    while True: out.write(b'more')\n"
        "arrow._write = late\n"
    )
    with start(source, root, slow) as dies:
        assert dies.stderr is not None
        while dies.stderr.readline() != "half\n":
            assert dies.poll() is None
        dies.send_signal(signal.SIGTERM)
        dies.communicate(timeout=60)
        assert dies.returncode == 143

    assert os.listdir(tmp_path / "cache/copies") == []
    report, _ = finish(start(source, root, AS_ARROW))
    assert column_of(report["path"], "id") == [row["id"] for row in rows_in(source)["train"]]
    assert leftovers(tmp_path / "cache") == []
