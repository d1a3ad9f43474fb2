"""Real processes, ended by real signals in the middle of their work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.shell import clean_environment, tree, uc_stage
from uc_stage.cli.demo import make_table

ENDING = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Delta table that takes an export to many files long enough to be met in the middle."""
    path = str(tmp_path_factory.mktemp("tables") / "large")
    make_table(path, 60_000)
    return path


def interrupted(
    words: list[str], number: signal.Signals, begun: Path, pattern: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command and sends the signal as soon as a file of `pattern` appears below `begun`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "uc_stage", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    while process.poll() is None and not next(begun.glob(pattern), None):
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.mark.parametrize("number", ENDING)
def test_an_export_that_is_ended_removes_its_files_and_leaves_the_previous_one(
    number: signal.Signals, large: str, tmp_path: Path
) -> None:
    dest = tmp_path / "x"
    assert uc_stage("export", f"{large}@v1", dest).code == 0
    before = tree(dest)
    words = ["export", large, str(dest), "--files", "400"]
    done = interrupted(words, number, dest, "*-of-00400-*")
    assert done.returncode == ENDING[number], done.stderr
    assert done.stdout == ""
    assert f"ended by {number.name}" in done.stderr
    assert tree(dest) == before


def test_an_export_that_is_ended_tells_json_too(large: str, tmp_path: Path) -> None:
    words = ["export", large, str(tmp_path / "x"), "--files", "400", "--json"]
    done = interrupted(words, signal.SIGTERM, tmp_path, "x/*-of-00400-*")
    assert done.returncode == 143, done.stderr
    problem = json.loads(done.stdout)["errors"][0]
    assert (problem["code"], problem["exit_code"]) == ("signal", 143)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("number", ENDING)
def test_a_copy_that_is_ended_is_not_there_and_the_next_run_makes_it(number: signal.Signals, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(3000):
        (source / f"{i}.bin").write_bytes(os.urandom(2000))
    words = ["cache", str(source), "--cache-dir", str(tmp_path / "nvme")]
    done = interrupted(words, number, tmp_path / "nvme", "partial/*/*.bin")
    assert done.returncode == ENDING[number], done.stderr
    assert list((tmp_path / "nvme").glob("copies/*")) == []

    again = uc_stage(*words)
    assert again.code == 0, again.err
    assert {p.name: p.read_bytes() for p in Path(again.out.strip()).glob("*.bin")} == {
        p.name: p.read_bytes() for p in source.iterdir()
    }


def test_a_signal_while_python_still_imports_has_its_code_too() -> None:
    codes = set()
    for milliseconds in range(20, 400, 20):
        process = subprocess.Popen(
            [sys.executable, "-m", "uc_stage", "cache", "/nothing/here"],
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        codes.add(process.returncode)
    # Before the first line of ours runs, the kernel's own default ends the process.
    assert codes <= {-signal.SIGTERM, 143, 10}
    assert 143 in codes


def test_verifying_one_large_file_can_be_ended(tmp_path: Path) -> None:
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(200 * 1024**3)  # a hole, which takes no space and minutes to read
    process = subprocess.Popen(
        [sys.executable, "-m", "uc_stage", "inspect", str(tmp_path), "--verify"],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    time.sleep(4)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 143, err


def test_nohup_is_respected(large: str, tmp_path: Path) -> None:
    words = ["nohup", sys.executable, "-m", "uc_stage", "export", large, str(tmp_path / "x"), "--files", "100"]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    while process.poll() is None and not next(tmp_path.glob("x/*-of-00100-*"), None):
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
