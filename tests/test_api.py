"""The four functions, as a training script calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import uc_stage
from tests.fixtures.shell import clean_environment
from uc_stage.errors import InvalidRequest, NotFound

RANK = """
import sys, uc_stage
from uc_stage.progress import Silent
class Notes(Silent):
    def phase(self, name, *, total=None, unit="bytes"):
        print("phase", name, file=sys.stderr)
print(uc_stage.cache(sys.argv[1], progress=Notes()))
"""


def test_the_four_steps_as_functions(events: str, tmp_path: Path) -> None:
    report = uc_stage.export(events, str(tmp_path / "x"), columns=["id", "label"], where="label >= 5", files=2)
    path = uc_stage.cache(str(tmp_path / "x"), cache_dir=str(tmp_path / "nvme"))
    found = uc_stage.inspect(path, verify=True)
    measured = uc_stage.bench(path, readers=["raw", "arrow"], seconds=0.2, require=["1B/s"])

    assert report.status == "done"
    assert report.files == 2
    assert found.kind == "copy"
    assert found.verified is True
    assert found.rows == report.rows > 0
    assert [field.name for field in found.schema] == ["id", "label"]
    assert measured.met
    assert {m.reader for m in measured.measurements} == {"raw", "arrow"}


def test_eight_ranks_at_once_make_one_copy(exported: str, tmp_path: Path) -> None:
    environment = clean_environment(UC_STAGE_CACHE_DIR=str(tmp_path / "nvme"), WORLD_SIZE="8")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, exported],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "LOCAL_RANK": str(rank)},
        )
        for rank in range(8)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 8, said
    paths = {out for out, _ in said}
    assert len(paths) == 1
    assert sum("phase copy" in err for _, err in said) == 1
    assert list((tmp_path / "nvme" / "copies").iterdir()) == [Path(paths.pop().strip())]


def test_errors_are_typed(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        uc_stage.cache(str(tmp_path / "none"), cache_dir=str(tmp_path / "nvme"))
    with pytest.raises(InvalidRequest):
        uc_stage.export("t@v1", str(tmp_path / "x"), version=2)


def test_export_takes_the_server_from_the_environment(
    events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uc_stage.errors import Unavailable

    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        uc_stage.export(events, str(tmp_path / "x"), engine="spark")


def test_a_query_and_a_table_are_not_both_exported(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="`query` stands in place of the table"):
        uc_stage.export("t", str(tmp_path / "x"), query="SELECT 1 AS x")
