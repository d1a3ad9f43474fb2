"""Copies killed by SIGKILL at each change that they make to the disk, and what the next run makes of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.exports import make_export

if TYPE_CHECKING:
    from pathlib import Path

_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Kills a copy at its first change, the next one at its second, and so on until one is not killed. After each death the
# copy's path is absent or whole, and the run after it, which finds a byte flipped in what was kept, makes it whole.
PROGRAM = """
import dataclasses, glob, json, os, shutil, sys
from tests.fixtures.dying import dies_at, runs
from tests.fixtures.copies import leftovers, tree
from uc_stage import caching, pruning, transfer
from uc_stage.model import CacheRequest, PruneRequest
from pathlib import Path

source, root, options, before, stride = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4], int(sys.argv[5])
transfer.ranges.RANGE_BYTES = 64 * 1024
request = CacheRequest(source, cache_dir=root, jobs=2, **options)
given = tree(source)
if options:
    # Once, and not by each process.
    import pyarrow.compute, pyarrow.feather, pyarrow.parquet

def held(path):
    # What is made from the source's files has times of its own.
    return {name: found if name in given else found[0] for name, found in tree(path).items()}

def made():
    # Of which there is one at most, beside the one that makes room.
    return next((path for path in glob.glob(f"{root}/copies/*") if "orders-other" not in path), None)

def copy():
    return dataclasses.asdict(caching.run(request))

def flip(path):
    where = os.stat(path)
    with open(path, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 255]))
    os.utime(path, ns=(where.st_atime_ns, where.st_mtime_ns))

def prepare():
    shutil.rmtree(root, ignore_errors=True)
    if before == "damaged":
        # The copy is replaced, and all but one of its files are taken over.
        made = runs(copy)["path"]
        os.unlink(sorted(path for path in glob.glob(f"{made}/**", recursive=True) if os.path.isfile(path))[0])
    elif before == "room":
        other = sys.argv[1] + "-other"
        size = sum(len(data) for data, _ in given.values())
        runs(lambda: dataclasses.asdict(caching.run(CacheRequest(other, cache_dir=root, jobs=2))))
        globals()["request"] = dataclasses.replace(request, max_size=size + size // 2)

prepare()
whole = held(runs(copy)["path"])
summary = {"steps": 1 - stride, "states": [], "reused": 0, "kept": 0, "flipped": 0}
while True:
    summary["steps"] += stride
    prepare()
    code, _ = dies_at(summary["steps"], copy)
    assert tree(source) == given
    state = runs(lambda: caching.plan(dataclasses.replace(request, check=True)).state)
    if made() is not None and before != "damaged":
        assert state == "fresh", (summary["steps"], state)
    if state == "fresh":
        assert held(made()) == whole
    if code == 0:
        break
    assert code == -9, (summary["steps"], code)
    summary["states"].append(state)
    kept = sorted(path for path in glob.glob(f"{root}/partial/*/**", recursive=True) if os.path.isfile(path))
    # Beside a whole copy they are what it took over, by hard links.
    if kept and state != "fresh":
        summary["kept"] += 1
        if summary["kept"] % 2:
            flip(kept[0])
            summary["flipped"] += 1
    healed = runs(copy)
    summary["reused"] += healed["status"] == "done" and healed["bytes_reused"] > 0
    assert held(healed["path"]) == whole, summary["steps"]
    if leftovers(Path(root)):
        # What the killed run had yet to remove, beside a copy that was whole.
        assert state == "fresh", summary["steps"]
        runs(lambda: dataclasses.asdict(pruning.run(PruneRequest(cache_dir=root))))
        assert held(made()) == whole
    assert leftovers(Path(root)) == [], (summary["steps"], leftovers(Path(root)))
    assert glob.glob(f"{root}/trash/*") == []
print(json.dumps(summary))
"""


def killed_at_each_step(source: Path, root: Path, before: str = "", stride: int = 1, **options: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, str(source), str(root), json.dumps(options), before, str(stride)]
    done = subprocess.run(command, cwd=_PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary["steps"] > 30
    assert summary["flipped"]
    assert summary["reused"]
    return summary


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two small files, one in a folder of its own, and one of three ranges."""
    source = tmp_path / "orders"
    (source / "a").mkdir(parents=True)
    for name, size in (("a/x.txt", 10), ("y.txt", 3000), ("z.bin", 150_000)):
        (source / name).write_bytes(os.urandom(size))
    return source


def test_a_folder_s_copy_is_absent_or_whole_and_goes_on_from_what_is_good(folder: Path, tmp_path: Path) -> None:
    summary = killed_at_each_step(folder, tmp_path / "cache")
    assert set(summary["states"]) == {"absent", "partial", "fresh"}


def test_an_export_s_copy_is_absent_or_whole_and_goes_on_from_what_is_good(tmp_path: Path) -> None:
    make_export(str(tmp_path / "orders"))
    summary = killed_at_each_step(tmp_path / "orders", tmp_path / "cache")
    assert set(summary["states"]) == {"absent", "partial", "fresh"}


def test_a_damaged_copy_that_is_replaced_stays_damaged_or_is_whole(folder: Path, tmp_path: Path) -> None:
    summary = killed_at_each_step(folder, tmp_path / "cache", "damaged", 2)
    assert set(summary["states"]) == {"partial", "fresh"}


def test_a_copy_that_another_makes_room_for_is_whole_or_gone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "orders-other").mkdir()
    (tmp_path / "orders-other/x").write_bytes(b"1" * 150_000)
    killed_at_each_step(folder, tmp_path / "cache", "room", 3)


@pytest.mark.parametrize("options", [{"form": "arrow"}, {"pack": True}], ids=["arrow", "pack"])
def test_a_copy_in_another_form_is_absent_or_whole(options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    source = folder
    if "form" in options:
        source = tmp_path / "export"
        make_export(str(source), files=4, rows=20)
    killed_at_each_step(source, tmp_path / "cache", stride=3, **options)
