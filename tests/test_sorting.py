"""The external sort: the order of a sort in memory, stable, whatever the budget; and nothing left on disk."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uc_stage.engines.local import sorting
from uc_stage.engines.local.sorting import sorted_batches
from uc_stage.errors import AccessDenied, NoSpace, NotFound, StageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS: list[tuple[str, sorting.Direction]] = [("a", "ascending"), ("b", "descending")]


def batches_of(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=rows)


def made(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "a": rng.integers(0, 20, rows),
            "b": pa.array([f"k{value}" for value in rng.integers(0, 5, rows)]),
            "n": np.arange(rows),
            "list": pa.array([[index] * (index % 4) if index % 7 else None for index in range(rows)]),
            "text": pa.array(["x" * (index % 50) for index in range(rows)]),
        }
    )


def expected(table: pa.Table) -> list[dict[str, object]]:
    rows = table.to_pylist()
    return sorted(sorted(rows, key=lambda row: row["b"], reverse=True), key=lambda row: row["a"])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 700), st.integers(2_000, 300_000), st.integers(0, 5))
def test_any_budget_gives_the_order_of_a_stable_sort(rows: int, batch: int, memory: int, seed: int) -> None:
    table = made(rows, seed)
    found = [row for out in sorted_batches(batches_of(table, batch), KEYS, memory) for row in out.to_pylist()]
    assert found == expected(table)


def test_many_runs_of_many_blocks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "_LEAST_BLOCK_BYTES", 2048)
    table = made(40_000)
    found = pa.Table.from_batches(list(sorted_batches(batches_of(table, 500), KEYS, 120_000)))
    assert found.schema == table.schema
    assert found.to_pylist() == expected(table)


def test_nothing_comes_of_nothing() -> None:
    assert list(sorted_batches(iter([]), KEYS, 1000)) == []


def test_what_was_spilled_has_no_name_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = sorted_batches(batches_of(made(5000), 100), KEYS, 50_000)
    next(found)
    assert os.listdir(tmp_path) == []


def test_a_merge_of_very_many_runs_stays_within_a_few_times_the_budget() -> None:
    memory, rows = 2**20, 400
    peak, total, first = 0, 0, pa.total_allocated_bytes()

    def source() -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(0)
        for _ in range(200):
            yield pa.record_batch({"a": rng.random(rows), "b": ["x" * 1000] * rows})

    for batch in sorted_batches(source(), [("a", "ascending")], memory):
        total += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - first)
    # A block of each run at once would be 12 MiB.
    assert total == 200 * rows
    assert peak < 4 * memory


def test_of_rows_larger_than_a_block_only_the_keys_stay_in_memory() -> None:
    memory, peak, total, first = 2**20, 0, 0, pa.total_allocated_bytes()
    batches = (pa.record_batch({"a": [index * 7 % 500], "b": [b"x" * 100_000]}) for index in range(500))
    for batch in sorted_batches(batches, [("a", "ascending")], memory):
        assert batch["a"].to_pylist() == list(range(total, total + batch.num_rows))
        total += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - first)
    assert total == 500
    assert peak < 4 * memory


def refusal(folder: str, monkeypatch: pytest.MonkeyPatch) -> StageError:
    """How a sort that does not fit in memory ends, where `folder` is for temporary files."""
    monkeypatch.setenv("TMPDIR", folder)
    with pytest.raises(StageError, match=f"`{folder}`") as caught:
        list(sorted_batches(batches_of(made(20_000), 100), KEYS, 50_000))
    assert "TMPDIR" in (caught.value.hint or "")
    return caught.value


def test_a_full_temporary_folder_is_named(disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(refusal(disk, monkeypatch), NoSpace)


def test_a_temporary_folder_that_is_missing_or_may_not_be_written_is_named(
    tmp_path: Path, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(refusal(str(tmp_path / "gone"), monkeypatch), NotFound)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert isinstance(refusal(disk, monkeypatch), AccessDenied)
