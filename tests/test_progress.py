"""What a person at a terminal sees, and what a log gets."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.shell import clean_environment
from uc_stage.cli import progress, text
from uc_stage.sizes import format_size


def on_a_terminal(words: list[str], **variables: str) -> tuple[str, str]:
    """Runs uc-stage with stderr on a pseudo-terminal; gives stdout and what the terminal got."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "uc_stage", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=clean_environment(**variables),
    )
    os.close(theirs)
    seen = b""
    while process.poll() is None or select.select([ours], [], [], 0.2)[0]:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # Linux says EIO where the other end has closed
                break
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, seen
    return out, seen.decode()


def test_a_terminal_gets_a_bar_and_stdout_stays_clean(events: str, tmp_path: Path) -> None:
    out, seen = on_a_terminal(["export", events, str(tmp_path / "x")])
    assert out == f"{tmp_path}/x\n"
    assert "\x1b[" in seen
    assert "write" in seen
    assert "exported" in seen


def test_a_dumb_terminal_gets_no_control_sequences(events: str, tmp_path: Path) -> None:
    _, seen = on_a_terminal(["export", events, str(tmp_path / "x")], TERM="dumb")
    assert "\x1b" not in seen
    assert "exported" in seen


def test_no_color_takes_the_colour_away(events: str, tmp_path: Path) -> None:
    _, seen = on_a_terminal(["export", events, str(tmp_path / "x")], NO_COLOR="1")
    colours = re.findall(r"\x1b\[[0-9;]*m", seen)
    assert not [code for code in colours if re.search(r"\b3[0-7]\b|\b9[0-7]\b|38;", code)]


def test_a_bar_passes_notes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.shown(quiet=False) as bar:
        bar.note("before any phase")
        bar.phase("copy", total=10)
        bar.advance(4)
        bar.note("waiting for [process 7]")
    said = capsys.readouterr().err
    assert "before any phase" in said
    assert "waiting for [process 7]" in said


def test_a_log_gets_a_line_while_a_phase_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_EVERY_SECONDS", 0.05)
    with progress.shown(quiet=False) as lines:
        lines.phase("list")
        time.sleep(0.2)
        lines.phase("copy", total=4_000_000)
        lines.advance(1_000_000)
        time.sleep(0.2)
        lines.phase("write", total=2000, unit="rows")
        lines.advance(2000)
        time.sleep(0.2)
    said = capsys.readouterr().err.splitlines()
    assert any(re.fullmatch(r"list: 0\.\d\d s", line) for line in said)
    assert any(
        re.fullmatch(r"copy: 0\.\d\d s, 1\.0 MB of 4\.0 MB \(25%\), \S+ MB/s, \S+ s left", line) for line in said
    )
    assert any(re.fullmatch(r"write: 0\.\d\d s, 2,000 rows of 2,000 rows \(100%\), .*", line) for line in said)


def test_notes_of_many_threads_are_lines_of_their_own() -> None:
    program = (
        "import sys, threading\nfrom uc_stage.cli.progress import shown\nsys.setswitchinterval(1e-6)\n"
        "with shown(quiet=False) as lines:\n"
        "    work = lambda: [lines.note('fetching it again') for _ in range(500)]\n"
        "    threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "    [thread.start() for thread in threads]\n"
        "    [thread.join() for thread in threads]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines() == ["fetching it again"] * 4000


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(quiet=True) as nobody:
        nobody.phase("copy", total=1)
        nobody.advance(1)
        nobody.note("never")
    assert capsys.readouterr().err == ""


def test_numbers_read_as_a_person_writes_them() -> None:
    assert [format_size(n) for n in (0, 999, 1000, 56_200_000, 3_000_000_000, 5e15)] == [
        "0 B", "999 B", "1.0 kB", "56.2 MB", "3.0 GB", "5000.0 TB",
    ]  # fmt: skip
    assert [text.duration(s) for s in (0.123, 12.3, 200, 7500)] == ["0.12 s", "12 s", "3 min 20 s", "2 h 5 min"]
    assert [text.amount(n, "rows") for n in (1, 1234)] == ["1 row", "1,234 rows"]
