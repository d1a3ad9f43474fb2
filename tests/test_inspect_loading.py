from __future__ import annotations

import ast
import datetime as dt
import decimal
import json
import os
import runpy
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.shell import clean_environment, unmeasured
from tests.fixtures.shell import uc_stage as command_line
from uc_stage import inspection
from uc_stage.errors import InvalidRequest, StageError, Unsupported, VerificationFailed
from uc_stage.inspection.settings import Here, settings
from uc_stage.inspection.snippets import snippet
from uc_stage.loaders.torch import ParquetBatches
from uc_stage.model import Framework, InspectReport, InspectRequest, Pile, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 2000
MANY = Here(cpus=16)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher, and caches of the test's own."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    # So long it waits for the threads of a stream to end.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def export(tmp_path: Path) -> str:
    """An export of three splits at a path with odd letters, with columns that not every loader makes a tensor of."""
    table = str(tmp_path / "orders")
    columns = {
        "id": pa.array(range(ROWS)),
        "label": pa.array([n % 3 if n % 7 else None for n in range(ROWS)], pa.int32()),
        "weight": pa.array([n / 2 if n % 5 else None for n in range(ROWS)], pa.float64()),
        "pair": pa.array([[1.0, float(n)] for n in range(ROWS)]),
        "at": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)] * ROWS, pa.timestamp("us", "UTC")),
        "price": pa.array([decimal.Decimal("1.50")] * ROWS, pa.decimal128(9, 2)),
        "text": ["word"] * ROWS,
    }
    deltalake.write_deltalake(table, pa.table(columns))
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    dest = str(tmp_path / 'it\'s [1] "ex"port')
    return uc_stage.export(table, dest, files=2, split=fractions, shuffle=True).dest


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs code as `python load.py` does, by a rank, and gives what it defined."""

    def execute(code: str, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        path = tmp_path / "load.py"
        path.write_text(code)
        # On the node of a shard, those of the node count.
        for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
            monkeypatch.setenv(name, str(value))
        with warnings.catch_warnings():
            # Lightning's advice.
            warnings.simplefilter("ignore")
            return runpy.run_path(str(path), run_name="__main__")

    return execute


def ids(found: dict[str, Any], split: str | None, *, shuffle: bool = False) -> list[int]:
    batches = list(found["loader"](split, shuffle=shuffle))
    assert all(isinstance(batch["id"], torch.Tensor) for batch in batches)
    return [int(value) for batch in batches for value in batch["id"]]


def code_of(target: str, framework: Framework, here: Here | None = None, **changed: Any) -> str:
    """The snippet for a machine that is given."""
    if here is None:
        return uc_stage.inspect(target, snippet=framework).code
    report = replace(uc_stage.inspect(target), **changed)
    return snippet(replace(report, loader=settings(report, here)), framework).code


# Snippets


@pytest.mark.parametrize("framework", ["torch", "hf"])
def test_a_snippet_reads_each_row_of_each_split_once_over_all_ranks(
    framework: Framework, export: str, run: Callable[..., dict[str, Any]]
) -> None:
    code = uc_stage.inspect(export, snippet=framework).code
    splits = uc_stage.inspect(export).splits
    assert [line for line in code.splitlines() if len(line) > 120 and "port" not in line] == []

    for split, rows in splits.items():
        found = [ids(run(code, rank, 2), split) for rank in range(2)]
        assert len({len(one) for one in found}) == 1 or framework == "torch"
        assert len({row for one in found for row in one}) == rows
        # A DistributedSampler repeats a row where they do not come out even.
        assert sum(map(len, found)) - rows in (0, 1)
    shuffled = ids(run(code), "train", shuffle=True)
    assert sorted(shuffled) == sorted(ids(run(code), "train"))
    assert shuffled != ids(run(code), "train")


def test_names_in_a_file_are_no_code_and_no_end_of_a_comment(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    names = ["a\nraise SystemExit", "b\x00\r", "c\u2028\x1b[31m"]
    path = str(tmp_path / "odd.parquet")
    pq.write_table(pa.table({name: pa.array([1, None, 3]) for name in names}), path)

    found = run(uc_stage.inspect(path, snippet="torch").code)

    batch, *_ = found["loader"](None, shuffle=False)
    assert list(batch) == names


@pytest.mark.parametrize("framework", ["torch", "hf"])
def test_a_split_of_a_changed_manifest_is_no_code(framework: Framework, export: str) -> None:
    manifest = Path(export) / ".uc_stage" / "manifest.json"
    told = json.loads(manifest.read_text())
    told["splits"]["x\nraise SystemExit"] = told["splits"].pop("test")
    manifest.write_text(json.dumps(told))

    code = uc_stage.inspect(export, snippet=framework).code

    assert not any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(code)))


@pytest.mark.parametrize("framework", ["torch", "hf"])
def test_the_ends_of_names_are_read_as_they_are_spelled(
    framework: Framework, tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    folder = tmp_path / "cased"
    folder.mkdir()
    for at, name in enumerate(("A.PARQUET", "b.parquet", "c.Pq")):
        pq.write_table(pa.table({"id": [at]}), folder / name)

    assert sorted(ids(run(uc_stage.inspect(str(folder), snippet=framework).code), None)) == [0, 1, 2]


def test_the_command_prints_code_alone_which_runs_as_it_is_pasted(
    export: str, run: Callable[..., dict[str, Any]]
) -> None:
    done = command_line("inspect", export, "--snippet", "torch", UC_STAGE_QUIET="")
    told = command_line("inspect", export, "--snippet", "torch", "--json").json["data"]

    assert (done.code, done.err) == (0, "")
    assert done.out == told["code"] == uc_stage.inspect(export, snippet="torch").code
    assert told["loader"]["num_workers"] == 0
    assert len(ids(run(done.out), "train")) == uc_stage.inspect(export).splits["train"]
    assert [line for line in done.out.splitlines() if len(line) > 120] == []


def test_a_lightning_module_trains_and_sees_another_order_in_each_epoch(
    export: str, run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    import lightning

    found = run(uc_stage.inspect(export, snippet="lightning").code)
    orders: list[list[int]] = []

    class Watch(lightning.Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            orders.append([])

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:  # noqa: ARG002 - the hook's
            orders[-1] += batch["id"].tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=2, callbacks=[found["Epochs"](), Watch()], logger=False, enable_checkpointing=False,
            accelerator="cpu", enable_progress_bar=False, default_root_dir=str(tmp_path),
        )  # fmt: skip
        trainer.fit(found["Model"](), datamodule=found["Data"]())

    assert len(orders) == 2
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(orders[0]) == uc_stage.inspect(export).splits["train"]
    assert {"val_dataloader", "test_dataloader"} <= vars(found["Data"]).keys()


def test_a_copy_as_arrow_is_mapped_and_written_no_second_time(
    export: str, tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    arrow = uc_stage.cache(export, cache_dir=str(tmp_path / "nvme"), form="arrow")
    code = uc_stage.inspect(arrow, snippet="hf").code

    assert "load_from_disk" in code
    assert len(set(ids(run(code), "train"))) == uc_stage.inspect(export).splits["train"]
    assert not (tmp_path / "hf").exists()
    assert (
        len(ids(run(uc_stage.inspect(arrow, snippet="torch").code), "test")) == uc_stage.inspect(arrow).splits["test"]
    )


@pytest.mark.parametrize("framework", ["torch", "hf", "lightning"])
def test_a_folder_and_a_file_without_splits_are_read_too(
    framework: Framework, tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    for path, first in (("data/a.parquet", 0), ("data/sub/b.pq", 50)):
        pq.write_table(pa.table({"id": range(first, first + 50)}), tmp_path / path)
    (tmp_path / "data" / "_SUCCESS").write_bytes(b"")

    folder = run(uc_stage.inspect(str(tmp_path / "data"), snippet=framework).code)
    file = run(uc_stage.inspect(str(tmp_path / "data" / "sub" / "b.pq"), snippet=framework).code)

    assert sorted(ids(folder, None)) == list(range(100))
    assert sorted(ids(file, None)) == list(range(50, 100))


def test_where_there_is_no_room_for_an_arrow_copy_hugging_face_streams(
    export: str, tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    code = code_of(export, "hf", Here(cpus=2, arrow_room=10))

    assert "streaming=True" in code
    found = [ids(run(code, rank, 2), "train") for rank in range(2)]
    assert sorted(found[0] + found[1]) == sorted(ids(run(code), "train", shuffle=True))
    assert len(set(found[0] + found[1])) == uc_stage.inspect(export).splits["train"]
    assert not list((tmp_path / "hf").rglob("*.arrow"))


def test_files_that_no_manifest_names_are_not_read(tmp_path: Path, run: Callable[..., dict[str, Any]]) -> None:
    make_export(str(tmp_path / "export"))
    stray = pa.table({"id": [-1]})
    pq.write_table(stray, tmp_path / "export" / "train-00000-of-00001-v9-00000a.parquet")

    for framework in ("torch", "hf"):
        report = inspection.write_snippet(InspectRequest(str(tmp_path / "export")), framework)
        assert min(ids(run(report.code), "train")) > 0


def test_the_shard_of_a_node_is_shared_out_over_the_ranks_of_that_node(tmp_path: Path) -> None:
    make_export(str(tmp_path / "export"), files=4)
    copy = uc_stage.cache(str(tmp_path / "export"), cache_dir=str(tmp_path / "nvme"), shard="1/2")

    code = code_of(copy, "hf")

    assert 'os.environ.get("LOCAL_RANK", "0")' in code
    assert 'os.environ.get("LOCAL_WORLD_SIZE", "1")' in code


def test_pictures_are_decoded_by_workers(tmp_path: Path) -> None:
    """In a process of its own, as pasted: workers are forked from it."""
    pictures = pa.table({"id": range(40), "picture": [os.urandom(5000) for _ in range(40)]})
    pq.write_table(pictures, tmp_path / "a.parquet", row_group_size=10)

    code = code_of(str(tmp_path / "a.parquet"), "torch", Here(cpus=2))
    (tmp_path / "load.py").write_text(f"{code}    print(sorted(i for batch in train for i in batch['id'].tolist()))\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "load.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=unmeasured(clean_environment()),
    )

    assert "num_workers=1, prefetch_factor=2, persistent_workers=True" in code
    assert (done.returncode, done.stdout) == (0, f"{list(range(40))}\n"), done.stderr


def test_a_wide_dataset_with_times_is_read_by_hugging_face_too(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    wide = {f"a column's {number}": [1.0, 2.0] for number in range(40)}
    times = pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)] * 2)
    pq.write_table(pa.table({"id": [1, 2], "at": times, **wide}), tmp_path / "a.parquet")

    found = run(uc_stage.inspect(str(tmp_path / "a.parquet"), snippet="hf").code)
    (batch,) = found["loader"](None, shuffle=False)

    assert sorted(batch) == sorted(["id", "at", *wide])
    assert batch["a column's 39"].tolist() == [1.0, 2.0]
    assert batch["at"] == times.to_pylist()


def test_nulls_are_allowed_for_where_a_tensor_has_no_place_for_them(export: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "weight": [1.0, None]}), tmp_path / "floats.parquet")

    assert "# NULL in label makes a list of that batch" in code_of(export, "torch")
    assert 'nulls="list"' not in code_of(str(tmp_path / "floats.parquet"), "torch")


def test_what_no_code_would_read_is_refused_with_what_mends_it(export: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"x")
    (tmp_path / "drift").mkdir()
    for number, kind in enumerate((pa.int64(), pa.int32())):
        pq.write_table(pa.table({"id": pa.array([1], kind)}), tmp_path / "drift" / f"{number}.parquet")
    maps = pa.table({"id": [1], "words": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    pq.write_table(maps, tmp_path / "maps.parquet")
    packed = uc_stage.cache(str(tmp_path / "images"), cache_dir=str(tmp_path / "nvme"), pack=True)

    def refused(target: object, framework: Framework = "torch") -> StageError:
        with pytest.raises(StageError) as raised:
            uc_stage.inspect(str(target), snippet=framework)
        return raised.value

    table = refused(tmp_path / "orders")
    assert (type(table), f"uc-stage export {tmp_path}/orders DEST" in str(table.hint)) == (InvalidRequest, True)
    assert "no Parquet or Arrow rows" in refused(tmp_path / "images").message
    assert "WebDataset" in str(refused(packed).hint)
    assert "has another schema" in refused(tmp_path / "drift").message
    assert isinstance(refused(tmp_path / "maps.parquet", "hf"), Unsupported)
    assert "--exclude-columns words" in str(refused(tmp_path / "maps.parquet", "hf").hint)
    assert "ParquetBatches" in uc_stage.inspect(str(tmp_path / "maps.parquet"), snippet="torch").code
    next(Path(export).glob("train-*.parquet")).unlink()
    assert isinstance(refused(export), VerificationFailed)
    with pytest.raises(InvalidRequest, match="verifies nothing"):
        uc_stage.inspect(export, snippet="torch", verify=True)
    with pytest.raises(InvalidRequest, match="two answers"):
        uc_stage.inspect(export, snippet="torch", diff=export)  # type: ignore[call-overload]  # a caller's mistake


# Settings


def report_of(rows: int, row_bytes: int, group: int, **changed: Any) -> InspectReport:
    return replace(
        InspectReport(
            "/data", "folder", rows=rows, bytes=rows * row_bytes // 2, uncompressed=rows * row_bytes,
            row_group_rows=Spread(group, group, group),
            row_group_bytes=Spread(group * row_bytes, group * row_bytes, group * row_bytes),
        ),
        **changed,
    )  # fmt: skip


@hypothesis_settings(max_examples=50)
@given(
    rows=st.integers(1, 10**9),
    row_bytes=st.integers(1, 10**8),
    world_size=st.integers(1, 512),
    cpus=st.integers(1, 256),
    local=st.integers(1, 8),
)
def test_settings_are_possible_for_any_dataset(
    rows: int, row_bytes: int, world_size: int, cpus: int, local: int
) -> None:
    report = report_of(rows, row_bytes, min(rows, 1000))

    for found in settings(report, Here(cpus, world_size, min(local, world_size), 10**12)).values():
        assert 1 <= found.batch_size <= 256
        assert found.batch_size <= max(1, rows // world_size)
        assert found.batch_size == 1 or found.batch_size * row_bytes <= 32 * 1024**2
        assert (found.prefetch_factor is None) == (found.num_workers == 0)
        assert 1 <= found.read_rows <= max(rows, found.batch_size)
        assert found.worker_bytes > found.read_bytes
        assert {"num_workers", "prefetch_factor", "batch_size", "read_bytes", "worker_bytes"} == found.reasons.keys()


def test_tabular_rows_are_read_without_workers_whatever_the_machine() -> None:
    found = settings(report_of(10**7, 200, 50_000), Here(cpus=64, world_size=8, local_ranks=8, arrow_room=10**12))

    assert {name: (one.num_workers, one.prefetch_factor) for name, one in found.items()} == {
        "torch": (0, None), "hf": (0, None),
    }  # fmt: skip
    assert "cheap to decode" in found["torch"].reasons["num_workers"]
    assert "for 8 processes here" in found["torch"].reasons["worker_bytes"]


def test_what_is_read_at_once_is_what_the_loader_shuffles_together(tmp_path: Path) -> None:
    """128 MiB at most, or one row group that is larger; the loader itself goes by the same."""
    large = settings(report_of(10**7, 1000, 10**6), MANY)["torch"]
    small = settings(report_of(10**7, 1000, 1000), MANY)["torch"]
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    tiny = uc_stage.inspect(str(tmp_path)).loader["torch"]

    assert (large.read_bytes, large.read_rows) == (10**9, 10**6)
    assert "one row group, the least there is" in large.reasons["read_bytes"]
    assert (small.read_bytes, small.read_rows) == (128 * 1024**2, 134_217)
    assert tiny.read_rows == ParquetBatches(str(tmp_path), 10, rank=0, world_size=1).rows


def test_long_and_few_rows_make_small_batches() -> None:
    long = settings(report_of(10**5, 10**6, 100), MANY)["torch"]
    few = settings(report_of(1000, 8, 1000), replace(MANY, world_size=16))["torch"]
    split = settings(report_of(1000, 8, 1000, splits={"train": 100, "test": 900}), MANY)["torch"]

    assert (long.batch_size, "since rows are long" in long.reasons["batch_size"]) == (32, True)
    assert (few.batch_size, "62 rows for each of 16 ranks" in few.reasons["batch_size"]) == (32, True)
    assert split.batch_size == 64


@pytest.mark.parametrize(("cpus", "local_ranks", "workers"), [(16, 1, 8), (6, 1, 5), (16, 4, 3), (1, 1, 0), (8, 8, 0)])
def test_pictures_get_the_processors_that_their_rank_has_but_one(
    cpus: int, local_ranks: int, workers: int, tmp_path: Path
) -> None:
    pictures = pa.table({"id": range(10), "picture": [os.urandom(5000) for _ in range(10)]})
    pq.write_table(pictures, tmp_path / "a.parquet")
    report = uc_stage.inspect(str(tmp_path))

    found = settings(report, Here(cpus, local_ranks, local_ranks))

    assert found["torch"].num_workers == found["hf"].num_workers == workers
    assert found["torch"].prefetch_factor == (2 if workers else None)
    assert "`picture`" in found["torch"].reasons["num_workers"]


def test_hugging_face_reads_by_the_form_of_the_target_and_the_room_there_is() -> None:
    plain = report_of(1000, 100, 100)
    arrow = replace(plain, kind="copy", variant="as=arrow", uncompressed=None, extensions={".arrow": Pile(2, 10**5)})

    def loader(report: InspectReport, room: int | None) -> str:
        return settings(report, Here(2, arrow_room=room))["hf"].loader

    assert loader(plain, None) == loader(plain, 10**9) == "load_dataset"
    assert loader(plain, 100) == "load_dataset, streaming"
    assert loader(replace(plain, target="s3://bucket/data"), 10**9) == "load_dataset, streaming"
    assert loader(arrow, 100) == "load_from_disk"
    assert settings(arrow, MANY)["torch"].read_bytes == 10**5


def test_what_has_no_rows_has_no_settings(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "none.parquet")

    assert uc_stage.inspect(str(tmp_path)).loader == {}


def test_ranks_processors_and_room_are_those_of_this_machine(tmp_path: Path) -> None:
    environment = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "HF_HOME": str(tmp_path)}

    here = Here.found(environment)

    assert (here.world_size, here.local_ranks) == (16, 8)
    assert 1 <= here.cpus <= (os.cpu_count() or 1)
    assert here.arrow_room
    assert Here.found({"WORLD_SIZE": "x"}).world_size == 1


def test_ranks_and_batches_that_are_asked_for_go_before_those_that_are_found(export: str) -> None:
    words = ("inspect", export, "--world-size", 100, "--snippet", "torch", "--json")
    share = uc_stage.inspect(export).splits["train"] // 100

    ranks = command_line(*words).json["data"]["loader"]
    batch = command_line(*words, "--batch-size", 50).json["data"]

    assert f"there are {share} rows for each of 100 ranks" in ranks["reasons"]["batch_size"]
    assert share / 2 < ranks["batch_size"] <= share
    assert (batch["loader"]["batch_size"], "ParquetBatches(PATH, 50, " in batch["code"]) == (50, True)
    assert command_line("inspect", export, "--snippet", "torch", "--fail-on", "warn").code == 2
    assert Here.found({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 4).local_ranks == 4
    assert Here.found({}, 64).local_ranks == 8


def test_a_person_sees_the_settings_in_two_lines(export: str) -> None:
    lines = command_line("inspect", export).out.splitlines()

    torch_line, hf_line = (
        next(line for line in lines if line.startswith(f"loader {name} ")) for name in ("torch", "hf")
    )
    assert "ParquetBatches: num_workers 0, batch_size 256, reads 2,000 rows (" in torch_line
    assert "load_dataset: num_workers 0, batch_size 256, reads 256 rows (" in hf_line
    assert torch_line.endswith("of memory")
