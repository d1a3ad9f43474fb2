"""The README's first command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from tests.fixtures.shell import program, uc_stage
from uc_stage.cli import demo

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    """The commands of a session, without what differs from one run to the next."""
    lines = [line for line in text.splitlines() if line.startswith("$ uc-stage ")]
    return [re.sub(r"-[0-9a-f]{12}\b", "-", re.sub(r"/\S*/uc-stage-demo-[^/ ]+", "/tmp/demo", line)) for line in lines]


def test_demo_shows_four_commands_that_work_and_cleans_up(tmp_path: Path) -> None:
    # What users set for their own runs must not steer it.
    done = program("demo", "--size", "1MB", TMPDIR=str(tmp_path), UC_STAGE_JSON="1", UC_STAGE_LIMIT="0")
    assert done.code == 0, done.err
    shown = commands(done.out)
    assert [line.split()[2] for line in shown] == ["export", "cache", "inspect", "bench"]
    # Those of other sections come later.
    assert shown == commands(README)[: len(shown)]
    assert re.search(r"verified +yes: 8 files by their xxh3_128", done.out)
    assert "exported" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_quiet_demo_shows_the_answers_alone(events: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answer = demo.run_step(["export", events, str(tmp_path / "x")], quiet=True)
    assert (answer, capfd.readouterr()) == (f"{tmp_path}/x", (f"{tmp_path}/x\n", ""))


def test_demo_ends_with_the_exit_code_of_the_command_that_failed(tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as stop:
        demo.run_step(["inspect", str(tmp_path / "none")], quiet=True)
    assert stop.value.exit_code == 10


def test_the_table_of_the_demo_is_the_same_each_time_and_not_trivial(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    rows = []
    for name in ("a", "b"):
        path = str(tmp_path / name)
        demo.make_table(path, 2000)
        table = DeltaTable(path)
        assert table.version() == 4
        assert table.metadata().partition_columns == ["country"]
        ordered = QueryBuilder().register("t", table).execute("select * from t order by id")
        rows.append(pa.RecordBatchReader.from_stream(ordered).read_all())
    assert rows[0].equals(rows[1])
    assert 0 < rows[0].num_rows < 2000  # some were deleted


def test_a_size_that_is_none_is_a_usage_error() -> None:
    assert uc_stage("demo", "--size", "much").code == 2
