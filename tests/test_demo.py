"""The README's first command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tests.fixtures.shell import uc_stage
from uc_stage.cli import demo


def test_demo_shows_four_commands_that_work_and_cleans_up(tmp_path: Path) -> None:
    done = uc_stage("demo", "--size", "1MB", TMPDIR=str(tmp_path))
    assert done.code == 0, done.err
    shown = [line.split()[2] for line in done.out.splitlines() if line.startswith("$ uc-stage ")]
    assert shown == ["export", "cache", "inspect", "bench"]
    assert "every byte matches" in done.out
    assert "exported" in done.err
    assert list(tmp_path.iterdir()) == []


def test_demo_is_not_steered_by_the_users_own_variables(tmp_path: Path) -> None:
    done = uc_stage("demo", "--size", "1MB", "--quiet", TMPDIR=str(tmp_path), UC_STAGE_JSON="1", UC_STAGE_LIMIT="0")
    assert done.code == 0, done.err
    assert done.err == ""
    assert "$" not in done.out


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
