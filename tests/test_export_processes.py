"""Exports as processes of their own: killed, interrupted, side by side, out of room, and measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.fixtures.delta import make_numbers, parquet_files, read_export, request
from tests.fixtures.shell import clean_environment, tree
from uc_stage import exporting
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder

# Runs an export; `where` is an audit event and a pattern of the path that it is about, and `action` what the process
# does to itself right before that.
SCRIPT = r"""
import fnmatch, os, re, resource, signal, sys, time
from uc_stage import exporting
from uc_stage.errors import StageError
from uc_stage.model import ExportRequest, TableRef

table, dest, where, action, files, group = sys.argv[1:]
event, _, pattern = where.partition(" ")
acted = []

def hook(name, given):
    if name != event or acted or not fnmatch.fnmatch(str(given[0]), f"{dest}/{pattern}"):
        return
    if name == "open" and not given[2] & os.O_WRONLY:
        return
    acted.append(name)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if action.startswith("wait:"):
        open(action[5:] + ".reached", "w").close()
        while not os.path.exists(action[5:]):
            time.sleep(0.01)

if action != "-":
    sys.addaudithook(hook)
if where == "small files":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    report = exporting.run(ExportRequest(TableRef.parse(table), dest, files=int(files), row_group_bytes=int(group)))
    # The peak that getrusage tells goes back to before the exec.
    print(report.status, re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
except StageError as error:
    print(f"error: {error.message}", file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sys.exit(error.exit_code)
"""


def start(table: str, dest: Path, where: str = "-", action: str = "-", files: int = 4, group: int = 10_000) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, table, str(dest), where, action, str(files), str(group)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )


def finish(process: Any) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_a_killed_export_leaves_the_generation_before_it_and_the_next_run_heals_it(tmp_path: Path) -> None:
    table, dest = make_numbers(tmp_path / "numbers", 5000, commits=3), tmp_path / "export"
    old = exporting.run(request(table, dest, version=0, files=2))
    points = [
        "os.rename .uc_stage/claims/*", "open train-00003-*", "os.rename .uc_stage/manifest.json*", "os.remove train-*",
    ]  # fmt: skip
    for point in points:
        code, _, err = finish(start(table, dest, point, "kill"))
        assert code == -signal.SIGKILL, (point, err)

        manifest = read_manifest(LocalFolder(str(dest)))
        assert manifest is not None
        committed = point == "os.remove train-*"
        assert (manifest.generation == old.generation) is not committed
        assert manifest.rows == (5000 if committed else old.rows)
        assert all((dest / file.path).stat().st_size == file.bytes for file in manifest.files)

        healed = exporting.run(request(table, dest, version=None if committed else 0, files=4 if committed else 2,
                                       **({"row_group_bytes": 10_000} if committed else {})))  # fmt: skip
        assert healed.status == "unchanged"
        after = read_manifest(LocalFolder(str(dest)))
        assert after is not None
        assert set(tree(dest)) == {".uc_stage/manifest.json", *(file.path for file in after.files)}, point

    assert sorted(row["id"] for row in read_export(dest)) == list(range(5000))


def test_a_killed_first_export_is_healed_by_the_next(tmp_path: Path) -> None:
    table, dest = make_numbers(tmp_path / "numbers", 5000), tmp_path / "export"
    assert finish(start(table, dest, "open .uc_stage/manifest.json*", "kill"))[0] == -signal.SIGKILL
    torn = parquet_files(dest)
    assert torn

    report = exporting.run(request(table, dest))

    assert (report.status, len(parquet_files(dest))) == ("done", 1)
    assert not set(torn) & set(parquet_files(dest))


def test_an_interrupted_export_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    table, dest = make_numbers(tmp_path / "numbers", 50_000), tmp_path / "export"

    code, _, err = finish(start(table, dest, "open train-00002-*", "interrupt"))

    assert code == -signal.SIGINT or "KeyboardInterrupt" in err
    assert "ignored" not in err
    assert not dest.exists()


def test_of_two_exports_at_once_one_goes_on_and_the_other_is_busy(tmp_path: Path) -> None:
    table, dest = make_numbers(tmp_path / "numbers", 5000), tmp_path / "export"
    gate = str(tmp_path / "gate")
    first = start(table, dest, "open train-00001-*", f"wait:{gate}")
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{gate}.reached") and time.monotonic() < deadline:
        time.sleep(0.01)

    second = finish(start(table, dest))
    Path(gate).touch()

    assert finish(first)[0] == 0
    assert second[0] == 11
    assert f"process {first.pid}" in second[2]
    assert len(read_export(dest)) == 5000


def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(str(table), pa.table({"blob": [os.urandom(1000) for _ in range(1000)]}))

    code, _, err = finish(start(str(table), tmp_path / "export", "small files"))

    assert code == 14, err
    assert err.startswith("error: `")
    assert "Traceback" not in err
    assert "ignored" not in err
    assert not (tmp_path / "export").exists()


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    bytes_, peaks = os.urandom(20 * 1024**2), []
    offsets = pa.array(range(0, len(bytes_) + 1, 1024), pa.int32()).buffers()[1]
    blobs = pa.Array.from_buffers(pa.binary(), len(bytes_) // 1024, [None, offsets, pa.py_buffer(bytes_)])
    for size in (5, 20):
        table = str(tmp_path / f"table-{size}")
        for _ in range(size):
            write_deltalake(table, pa.table({"blob": blobs}), mode="append")
        code, out, err = finish(start(table, tmp_path / f"export-{size}", group=4 * 1024**2))
        assert code == 0, err
        peaks.append(int(out.split()[1]))

    # It is three hundred MiB more; on a busy machine what is free goes back to the system later.
    assert peaks[1] < 1.5 * peaks[0], peaks


@pytest.mark.parametrize("files", [1, 3])
def test_the_rows_of_an_export_are_those_of_the_table_whatever_the_number_of_files(tmp_path: Path, files: int) -> None:
    table, dest = make_numbers(tmp_path / "numbers", 5000, commits=2), tmp_path / "export"

    assert exporting.run(request(table, dest, files=files)).files == files
    assert sorted(row["id"] for row in read_export(dest)) == list(range(5000))
