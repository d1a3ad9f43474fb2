"""What is generated is committed as it is generated, and the completions work in the real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASH = """
source {root}/completions/uc-stage.bash
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_uc_stage
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_completions_and_readme_are_what_the_command_tree_gives() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def bash(*words: str, folder: Path) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    # compopt is only defined while bash itself completes.
    script = "compopt() { :; }\n" + BASH.format(root=ROOT, words=quoted)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_bash_completes_commands_flags_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    assert bash("uc-stage", "", folder=tmp_path) == ["export", "cache", "inspect", "prune", "bench", "demo"]
    assert bash("uc-stage", "ca", folder=tmp_path) == ["cache"]
    assert bash("uc-stage", "export", "--comp", folder=tmp_path) == ["--compression"]
    assert bash("uc-stage", "export", "--compression", "", folder=tmp_path) == ["zstd", "snappy", "none"]
    assert bash("uc-stage", "cache", "wi", folder=tmp_path) == ["with space"]
    assert bash("uc-stage", "cache", "--cache-dir", "wi", folder=tmp_path) == ["with space"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_flags_and_values() -> None:
    def fish(line: str) -> list[str]:
        script = f"source {ROOT}/completions/uc-stage.fish; complete --do-complete '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, check=True)
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    assert fish("uc-stage ca") == ["cache"]
    assert fish("uc-stage export --compr") == ["--compression"]
    assert fish("uc-stage export --compression ") == ["none", "snappy", "zstd"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_commands_flags_and_values(tmp_path: Path) -> None:
    """Types into an interactive zsh on a pseudo-terminal, since zsh completes nowhere else."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(tmp_path)}
    shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        for line in (
            f"fpath=({ROOT}/completions $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump",
            "uc-stage() { print -r -- RAN:$*: }",
            "uc-stage exp\t--compres\tzs\t",
        ):
            os.write(ours, f"{line}\n".encode())
        seen = ""
        while "RAN:export" not in seen:
            ready, _, _ = select.select([ours], [], [], 30)
            assert ready, f"nothing more after {seen!r}"
            seen += os.read(ours, 4096).decode(errors="replace")
        assert "RAN:export --compression zstd" in seen
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_the_wheel_puts_completions_where_shells_find_them(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    for place in (
        "share/bash-completion/completions/uc-stage",
        "share/zsh/site-functions/_uc-stage",
        "share/fish/vendor_completions.d/uc-stage.fish",
    ):
        assert any(name.endswith(f".data/data/{place}") for name in names)
    assert any(name.endswith("uc_stage/py.typed") for name in names)
