"""The contract of the command line: streams, JSON, exit codes, environment variables, help."""

from __future__ import annotations

import inspect as stdlib_inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import uc_stage as api
from tests.fixtures.shell import program, tree, uc_stage
from uc_stage import errors
from uc_stage.cli import codes
from uc_stage.cli.app import app
from uc_stage.errors import StageError

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group has them
ENVELOPE = {"schema_version", "command", "status", "data", "errors"}
PROBLEM = {"code", "message", "hint", "exit_code"}
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_stdout_of_the_data_commands_is_the_answer_and_nothing_else(events: str, tmp_path: Path) -> None:
    dest = tmp_path / "volume" / "events"
    exported = program("export", events, dest)
    assert (exported.code, exported.out) == (0, f"{dest}\n")
    assert "version 4" in exported.err

    cached = program("cache", dest, "--cache-dir", tmp_path / "nvme")
    path = cached.out.removesuffix("\n")
    assert cached.code == 0
    assert "\n" not in path
    assert Path(path).is_dir()
    assert sorted(p.name for p in Path(path).glob("*.parquet")) == sorted(p.name for p in dest.glob("*.parquet"))


def test_quiet_leaves_stderr_empty(events: str, tmp_path: Path) -> None:
    done = uc_stage("export", events, tmp_path / "x", "--quiet")
    assert (done.code, done.out, done.err) == (0, f"{tmp_path}/x\n", "")


def test_a_second_run_changes_nothing_and_says_so(events: str, tmp_path: Path) -> None:
    uc_stage("export", events, tmp_path / "x")
    before = tree(tmp_path)
    again = uc_stage("export", events, tmp_path / "x")
    assert (again.code, again.out) == (0, f"{tmp_path}/x\n")
    assert again.err.startswith("unchanged:")
    assert len(again.err.splitlines()) == 1
    assert tree(tmp_path) == before

    copied = uc_stage("cache", tmp_path / "x", "--cache-dir", tmp_path / "nvme")
    once_more = uc_stage("cache", tmp_path / "x", "--cache-dir", tmp_path / "nvme")
    assert once_more.out == copied.out
    assert once_more.err.startswith("unchanged:")


@pytest.mark.parametrize("command", ["export", "cache"])
def test_dry_run_prints_the_plan_and_writes_nothing(command: str, events: str, exported: str, tmp_path: Path) -> None:
    words = [events, tmp_path / "x"] if command == "export" else [exported, "--cache-dir", tmp_path / "nvme"]
    human = uc_stage(command, *words, "--dry-run")
    machine = uc_stage(command, *words, "--dry-run", "--json")
    assert (human.code, machine.code) == (0, 0)
    assert "1 file" in human.out or "files" in human.out
    assert machine.json["status"] == "planned"
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object_with_the_same_keys_on_success_and_on_failure(
    events: str, exported: str, tmp_path: Path
) -> None:
    good = [
        uc_stage("export", events, tmp_path / "x", "--json"),
        uc_stage("cache", exported, "--cache-dir", tmp_path / "nvme", "--json"),
        uc_stage("inspect", exported, "--json"),
        uc_stage("bench", exported, "--readers", "raw,arrow", "--seconds", "0.2", "--json"),
    ]
    for done in good:
        assert done.code == 0, done.err
        assert done.json.keys() == ENVELOPE
        assert done.json["errors"] == []
        assert isinstance(done.json["data"], dict)
    assert [done.json["command"] for done in good] == ["export", "cache", "inspect", "bench"]
    assert good[0].json["data"]["version"] == 4
    assert good[2].json["data"]["rows"] == good[0].json["data"]["rows"]

    bad = [
        uc_stage("export", tmp_path / "none", tmp_path / "y", "--json"),
        uc_stage("cache", tmp_path / "none", "--json"),
        uc_stage("inspect", tmp_path / "none", UC_STAGE_JSON="1"),
        uc_stage("bench", "--json"),
        uc_stage("cache", "--no-such-flag", "--json"),
    ]
    for done in bad:
        assert done.json.keys() == ENVELOPE
        assert (done.json["status"], done.json["data"]) == ("error", None)
        (problem,) = done.json["errors"]
        assert problem.keys() == PROBLEM
        assert problem["exit_code"] == done.code
    assert [done.code for done in bad] == [10, 10, 10, 2, 2]


def test_an_error_is_one_line_and_a_hint(tmp_path: Path) -> None:
    for words in (["export", tmp_path / "none", tmp_path / "x"], ["cach"], ["export"], ["cache", "a", "--jobs", "0"]):
        done = uc_stage(*words)
        first, second = done.err.splitlines()
        assert first.startswith("error: ")
        assert second.startswith("hint: ")
        assert done.out == ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["export", "t", "d", "--file-size", "many"], "--file-size"),
        (["export", "t", "d", "--row-group-size", "0"], "--row-group-size"),
        (["export", "t", "d", "--file-size", "0"], "--file-size"),
        (["export", "t", "d", "--columns", "a,,b"], "--columns"),
        (["export", "t", "d", "--columns", "a,a"], "--columns"),
        (["export", "t@v3", "d", "--version", "4"], "--version"),
        (["export", "t", "d", "--version", "3", "--timestamp", "2026-01-01"], "--timestamp"),
        (["export", "t", "d", "--files", "3", "--file-size", "1MB"], "--file-size"),
        (["export", "t", "d", "--timestamp", "yesterday"], "--timestamp"),
        (["export", "", "d"], "TABLE"),
        (["cache", "s", "--reserve", "-1"], "--reserve"),
        (["bench", "s", "--require", "fast"], "--require"),
        (["bench", "s", "--readers", "warp"], "warp"),
        (["bench", "s", "--readers", "raw\nhf"], "--readers"),
        (["bench", "s", "--seconds", "nan"], "--seconds"),
        (["bench", "s", "--seconds", "inf"], "--seconds"),
        (["cache", "/usr/share", "--timeout", "nan"], "--timeout"),
        (["cache", "/usr/share", "--cache-dir", ""], "--cache-dir"),
        (["cache", "/usr/share", ""], "DEST"),
        (["cache", "/" + "x" * 300], "x" * 300),
    ],
)
def test_a_bad_value_is_a_usage_error_that_names_the_flag(words: list[str], named: str) -> None:
    done = uc_stage(*words)
    assert done.code == 2, done.err
    assert named in done.err.splitlines()[0]
    assert done.err.splitlines()[1].startswith("hint: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_its_environment_variable(command: str) -> None:
    for parameter in COMMANDS[command].params:
        flag = max(parameter.opts, key=len)
        if flag.startswith("--"):
            variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
            assert variables[0] == f"UC_STAGE_{flag[2:].replace('-', '_').upper()}"


def test_a_flag_outranks_its_environment_variable_which_outranks_the_default(exported: str, tmp_path: Path) -> None:
    by_variable = uc_stage("cache", exported, "-n", "--json", UC_STAGE_CACHE_DIR=f"{tmp_path}/variable")
    by_flag = uc_stage(
        "cache", exported, "-n", "--json", "--cache-dir", tmp_path / "flag", UC_STAGE_CACHE_DIR=f"{tmp_path}/variable"
    )
    by_default = uc_stage("cache", exported, "-n", "--json")
    roots = [done.json["data"]["path"].rpartition("/copies/")[0] for done in (by_variable, by_flag, by_default)]
    assert roots == [f"{tmp_path}/variable", f"{tmp_path}/flag", "/tmp/uc-stage"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_its_exit_codes_and_shows_an_example(command: str) -> None:
    shown = uc_stage(command, "--help")
    assert shown.code == 0
    assert "  Example:\n      " in shown.out
    ending = shown.out.rpartition("Exit codes:\n")[2].splitlines()
    listed = [int(line.split()[0]) for line in ending]
    assert {0, 1, 2, 129, 130, 141, 143} <= set(listed)
    assert listed == sorted(listed)


def test_every_error_has_a_code_of_its_own_which_the_readme_lists() -> None:
    kinds = [
        kind for _, kind in stdlib_inspect.getmembers(errors, stdlib_inspect.isclass) if issubclass(kind, StageError)
    ]
    assert len({kind.exit_code for kind in kinds}) == len({kind.code for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert kind.exit_code in codes.MEANINGS
        assert f"| {kind.exit_code} | {codes.MEANINGS[kind.exit_code]} |" in README


def test_without_arguments_the_help_is_shown() -> None:
    done = uc_stage()
    assert done.code == 0
    assert done.out.startswith("Usage: uc-stage")


def test_version_is_printed_on_stdout() -> None:
    done = uc_stage("--version")
    assert (done.code, done.out, done.err) == (0, f"uc-stage {api.__version__}\n", "")


def test_a_closed_pipe_is_no_error(exported: str) -> None:
    import subprocess
    import sys

    for line, seen in ((f"inspect {exported} --json | head -1", "{\n"), (f"inspect {exported} | head -0", "")):
        script = f"{sys.executable} -m uc_stage {line}; echo ${{PIPESTATUS[0]}} >&2"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout == seen
        assert done.stderr in ("0\n", "141\n")  # 0 where all of it was in the pipe before `head` went


def test_a_full_stdout_is_no_space_and_a_full_stderr_is_no_matter(exported: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    def run(redirected: str) -> subprocess.CompletedProcess[str]:
        line = f"{sys.executable} -m uc_stage cache {exported} --cache-dir {tmp_path}/nvme {redirected}"
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)

    full = run(">/dev/full")
    assert full.returncode == 14
    assert "No space left" in full.stderr
    assert run("--json >/dev/full").returncode == 14
    assert run("2>/dev/full").returncode == 0


def test_what_a_terminal_would_obey_is_written_out(tmp_path: Path) -> None:
    forged = uc_stage("inspect", f"{tmp_path}/none\nhint: rm -rf /\x1b[2J")
    assert forged.code == 10
    assert len(forged.err.splitlines()) == 2
    assert "\x1b" not in forged.err
    assert "none\\nhint: rm -rf /\\x1b[2J" in forged.err


def test_a_working_directory_that_is_gone_is_no_bug(tmp_path: Path) -> None:
    import subprocess
    import sys

    line = f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; {sys.executable} -m uc_stage cache here"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 10, done.stderr


def test_a_path_that_is_not_utf8_comes_out_as_it_went_in(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    source = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(source)
    Path(os.fsdecode(source), "a.bin").write_bytes(b"x")
    dest = os.path.join(os.fsencode(tmp_path), b"copi\xe9")
    words: list[str | bytes] = [sys.executable, "-m", "uc_stage", "cache", source, dest]
    words += ["--cache-dir", str(tmp_path / "nvme")]
    done = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, dest + b"\n"), done.stderr
    missing = subprocess.run([*words[:4], dest + b"\xff"], capture_output=True, check=False, timeout=60)
    assert missing.returncode == 10
    assert missing.stderr.startswith(b"error: ")


def test_no_colour_and_no_control_bytes_where_stdout_is_no_terminal(exported: str) -> None:
    for words in (["inspect", exported], ["bench", exported, "--readers", "raw", "--seconds", "0.1"]):
        done = uc_stage(*words)
        assert "\x1b" not in done.out + done.err
        assert "\r" not in done.out + done.err


def test_a_bug_is_one_line_and_a_traceback_with_debug(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from uc_stage import inspection
    from uc_stage.cli import run

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(inspection, "run", broken)
    assert run(["inspect", "x"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: oh" in first
    assert "--debug" in second
    assert run(["inspect", "x", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_debug_shows_a_traceback_and_changes_neither_code_nor_json(tmp_path: Path) -> None:
    done = uc_stage("inspect", tmp_path / "none", "--json", "--debug")
    assert done.code == 10
    assert done.json["errors"][0]["code"] == "not_found"
    assert "Traceback" in done.err


def test_a_token_in_the_servers_url_is_never_shown(events: str, tmp_path: Path) -> None:
    words = ["export", events, tmp_path / "x", "--remote", "sc://127.0.0.1:1/;token=SECRET"]
    planned = uc_stage(*words, "--engine", "local", "--dry-run", "--json")
    refused = uc_stage(*words, "--engine", "spark", "--json")
    assert planned.json["data"]["request"]["remote"] == "sc://127.0.0.1:1/"
    assert refused.code == 15
    assert "SECRET" not in planned.out + planned.err + refused.out + refused.err


def test_an_empty_source_is_not_the_current_folder() -> None:
    done = uc_stage("cache", "")
    assert (done.code, done.out) == (2, "")
    assert "SOURCE is empty" in done.err


def test_a_closed_stdout_or_stderr_does_not_spill_into_the_other(exported: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    line = f"{sys.executable} -m uc_stage cache {exported} --cache-dir {tmp_path}/nvme"
    no_out = subprocess.run(["bash", "-c", f"{line} >&-"], capture_output=True, text=True, check=False, timeout=60)
    no_err = subprocess.run(["bash", "-c", f"{line} 2>&-"], capture_output=True, text=True, check=False, timeout=60)
    assert (no_out.returncode, no_out.stderr.count("\n")) == (0, 1)
    assert (no_err.returncode, no_err.stdout.count("\n")) == (0, 1)
    assert Path(no_err.stdout.strip()).is_dir()


def test_check_tells_the_state_by_exit_code_and_on_stdout(exported: str, tmp_path: Path) -> None:
    words = ["cache", exported, "--cache-dir", tmp_path / "nvme"]
    absent = uc_stage(*words, "--check")
    assert (absent.code, absent.out) == (17, "absent\n")
    assert not (tmp_path / "nvme").exists()
    uc_stage(*words)
    fresh = uc_stage(*words, "--check")
    assert (fresh.code, fresh.out) == (0, "fresh\n")
    (Path(exported) / "added.txt").touch()  # no part of the export
    assert uc_stage(*words, "--check", "--dry-run", "--json").json["data"]["state"] == "fresh"
    (Path(exported) / "added.txt").unlink()


def test_inspect_verify_exits_12_on_a_flipped_byte_and_names_the_file(events: str, tmp_path: Path) -> None:
    uc_stage("export", events, tmp_path / "x", "--files", "2")
    victim = sorted((tmp_path / "x").glob("*.parquet"))[1]
    assert uc_stage("inspect", tmp_path / "x", "--verify").code == 0
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    human = uc_stage("inspect", tmp_path / "x", "--verify")
    machine = uc_stage("inspect", tmp_path / "x", "--verify", "--json")
    assert (human.code, machine.code) == (12, 12)
    assert victim.name in human.err
    assert (machine.json["status"], machine.json["errors"][0]["code"]) == ("failed", "verification_failed")
    assert machine.json["data"]["verified"] is False


def test_bench_exits_20_below_the_required_throughput(exported: str) -> None:
    words = ["bench", exported, "--readers", "arrow", "--seconds", "0.2"]
    met = uc_stage(*words, "--require", "1B/s")
    missed = uc_stage(*words, "--require", "900TB/s", "--json")
    assert met.code == 0
    assert missed.code == 20
    assert missed.json["errors"][0]["code"] == "below_requirement"
    assert missed.json["data"]["requirements"][0]["met"] is False


def test_bench_does_not_pass_on_data_that_nobody_can_read(events: str, tmp_path: Path) -> None:
    uc_stage("export", events, tmp_path / "x", "--files", "1")
    (victim,) = (tmp_path / "x").glob("*.parquet")
    data = bytearray(victim.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    victim.write_bytes(data)
    words = ["bench", tmp_path / "x", "--readers", "arrow", "--seconds", "0.2"]
    assert uc_stage(*words).code == 12
    missed = uc_stage(*words, "--require", "1B/s", "--json")
    assert missed.code == 20
    assert missed.json["data"]["measurements"][0]["failed"] is True


@pytest.mark.parametrize("name", ["export", "cache", "inspect", "prune", "bench"])
def test_the_python_function_takes_what_the_command_takes(name: str) -> None:
    flags = {p.name for p in COMMANDS[name].params} - {"json", "quiet", "debug", "dry_run", "check"}
    in_bytes = {"file_size": "file_bytes", "row_group_size": "row_group_bytes"}
    taken = set(stdlib_inspect.signature(getattr(api, name)).parameters) - {"progress"}
    assert {in_bytes.get(flag, flag) for flag in flags} == taken


def test_help_names_no_default_that_the_function_does_not_have() -> None:
    defaults = stdlib_inspect.signature(api.export).parameters
    assert defaults["row_group_bytes"].default == 64 * 1024**2
    assert re.search(r"default:\s+64MiB", uc_stage("export", "--help").out)
