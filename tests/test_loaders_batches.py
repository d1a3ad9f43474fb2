"""The torch dataset as a training script uses it: real files, real workers, states that go on."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import uc_stage
from tests.fixtures.exports import make_export, put_manifest
from tests.test_loaders import write
from uc_stage.errors import InvalidRequest, NotFound, Unsupported, VerificationFailed
from uc_stage.loaders.torch import ParquetBatches, as_is
from uc_stage.ranks import reader_of
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def through(dataset: ParquetBatches, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=None,
        collate_fn=as_is,
        num_workers=workers,
        timeout=60 if workers else 0,
        multiprocessing_context=multiprocessing.get_context(options.pop("context", "fork")) if workers else None,
        **options,
    )


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [value for batch in batches for value in batch]


@pytest.mark.parametrize(("context", "workers"), [("fork", 3), ("spawn", 1)])
def test_workers_that_live_on_see_the_epoch_and_yield_each_row_once_in_it(
    tmp_path: Path, context: str, workers: int
) -> None:
    write(tmp_path, [50, 0, 1, 30])
    dataset = ParquetBatches(str(tmp_path), batch_size=8, shuffle=True)
    loader = through(dataset, workers, context=context, persistent_workers=True)

    seen = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        seen.append(ids(loader))

    assert [sorted(flat(epoch)) for epoch in seen] == [list(range(81))] * 2
    assert seen[0] != seen[1]
    assert [len(epoch) for epoch in seen] == [len(dataset)] * 2


def test_without_shuffle_the_rows_come_in_order_in_full_batches_across_files(tmp_path: Path) -> None:
    write(tmp_path, [20, 0, 5])
    dataset = ParquetBatches(str(tmp_path), batch_size=8, columns=["id"])

    expected = [list(range(8)), list(range(8, 16)), list(range(16, 24)), [24]]
    assert ids(through(dataset, 0)) == expected
    assert ids(dataset) == expected
    assert (dataset.rows, len(dataset)) == (25, 4)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    group=st.integers(1, 20),
    batch_size=st.integers(1, 50),
    world=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    buffer=st.integers(1, 5000),
    data=st.data(),
)
def test_ranks_together_have_each_row_once_and_go_on_with_other_ranks_and_batches(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[int],
    group: int,
    batch_size: int,
    world: int,
    shuffle: bool,
    drop_last: bool,
    buffer: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    write(folder, rows, group)

    def ranks(count: int, size: int) -> list[ParquetBatches]:
        try:
            return [
                ParquetBatches(
                    str(folder), size, shuffle=shuffle, buffer=buffer, rank=rank, world_size=count, drop_last=drop_last
                )
                for rank in range(count)
            ]
        except InvalidRequest:
            assume(False)
            raise

    seen = [ids(dataset) for dataset in ranks(world, batch_size)]
    assert len({len(batches) for batches in seen}) == 1
    held = [value for batches in seen for value in flat(batches)]
    assert len(held) == len(set(held))
    assert len(held) == (sum(rows) // (world * batch_size) * world * batch_size if drop_last else sum(rows))

    made = data.draw(st.integers(0, len(seen[0])))
    had = [value for batches in seen for value in flat(batches[:made])]
    state: dict[str, Any] = {}
    for dataset in ranks(world, batch_size):
        for _, _ in zip(range(made), dataset, strict=False):
            pass
        state = json.loads(json.dumps(dataset.state_dict(batches=made)))
    same = ranks(world, batch_size)
    for dataset, batches in zip(same, seen, strict=True):
        dataset.load_state_dict(state)
        assert ids(dataset) == batches[made:]
        assert ids(dataset) == batches
    others = ranks(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 50)))
    rest = []
    for dataset in others:
        try:
            dataset.load_state_dict(state)
        except InvalidRequest:
            return
        rest.append(ids(dataset))
    assert len({len(batches) for batches in rest}) == 1
    had += [value for batches in rest for value in flat(batches)]
    assert len(had) == len(set(had))
    if not drop_last:
        assert sorted(had) == list(range(sum(rows)))


def test_an_epochs_order_is_that_of_its_seed_and_no_workers_and_one_have_the_same_batches(tmp_path: Path) -> None:
    write(tmp_path, [200, 100])

    def order(workers: int = 0, epoch: int = 0, **options: Any) -> list[list[int]]:
        dataset = ParquetBatches(str(tmp_path), 16, shuffle=True, **options)
        dataset.set_epoch(epoch)
        return ids(through(dataset, workers))

    first = order()
    assert order() == order(workers=1) == first
    assert sorted(flat(order(workers=2))) == list(range(300))
    assert order(columns=["id"]) == first
    others = [order(epoch=1), order(seed=1), order(buffer=1), ids(ParquetBatches(str(tmp_path), 16))]
    assert all(other != first for other in others)


def test_which_rows_a_rank_sees_does_not_depend_on_its_workers(tmp_path: Path) -> None:
    write(tmp_path, [100, 60])
    for rank in range(2):
        dataset = ParquetBatches(str(tmp_path), 7, shuffle=True, rank=rank, world_size=2)
        assert sorted(flat(ids(through(dataset, 3)))) == sorted(flat(ids(dataset)))


def test_a_loop_over_workers_goes_on_by_the_batches_that_it_took(tmp_path: Path) -> None:
    write(tmp_path, [100, 61])
    made = ParquetBatches(str(tmp_path), 8, shuffle=True)
    made.set_epoch(4)
    whole = ids(through(made, 3))
    with pytest.raises(InvalidRequest, match="how far the loop is"):
        made.state_dict()
    state = made.state_dict(batches=7)

    for workers, rest in ((3, whole[7:]), (2, None)):
        again = ParquetBatches(str(tmp_path), 8, shuffle=True)
        again.load_state_dict(state)
        again.set_epoch(again.epoch)
        read = ids(through(again, workers))
        assert rest is None or read == rest
        assert sorted(flat(read)) == sorted(flat(whole[7:]))
        further = again.state_dict(batches=2)
        last = ParquetBatches(str(tmp_path), 8, shuffle=True)
        last.load_state_dict(further)
        assert sorted(flat(ids(through(last, 1)))) == sorted(flat(read[2:]))
        again.set_epoch(5)
        assert sorted(flat(ids(through(again, workers)))) == list(range(161))


# torchdata 0.11 calls what torch 2.15 deprecates.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on_and_with_another_world_size_too(tmp_path: Path, workers: int) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    write(tmp_path, [100, 60])

    def loader(rank: int, world: int) -> Any:
        dataset = ParquetBatches(str(tmp_path), 8, shuffle=True, rank=rank, world_size=world)
        return loaders.StatefulDataLoader(dataset, batch_size=None, collate_fn=as_is, num_workers=workers)

    whole = [ids(loader(rank, 2)) for rank in range(2)]
    states = []
    for rank in range(2):
        begun = loader(rank, 2)
        batches = iter(begun)
        assert [next(batches)["id"].tolist() for _ in range(5)] == whole[rank][:5]
        states.append(begun.state_dict())
        del batches
    for rank in range(2):
        again = loader(rank, 2)
        again.load_state_dict(states[rank])
        assert ids(again) == whole[rank][5:]
        assert ids(again) == whole[rank]
    rest = []
    for rank in range(3):
        other = loader(rank, 3)
        other.load_state_dict(states[0])
        rest.append(ids(other))
    assert len({len(batches) for batches in rest}) == 1
    had = [value for batches in whole for value in flat(batches[:5])]
    assert sorted(had + [value for batches in rest for value in flat(batches)]) == list(range(160))


def test_a_state_of_other_data_another_seed_or_too_few_rows_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write(tmp_path / "a", [50])
    write(tmp_path / "b", [51])
    dataset = ParquetBatches(str(tmp_path / "a"), 10, shuffle=True)
    state = dataset.state_dict(batches=4)

    with pytest.raises(InvalidRequest, match="other files"):
        ParquetBatches(str(tmp_path / "b"), 10, shuffle=True).load_state_dict(state)
    with pytest.raises(InvalidRequest, match="saved with `seed=0`, and this has `seed=1`"):
        ParquetBatches(str(tmp_path / "a"), 10, shuffle=True, seed=1).load_state_dict(state)
    with pytest.raises(InvalidRequest, match="10 rows in batches of 10 give 20 ranks unequal"):
        ParquetBatches(str(tmp_path / "a"), 10, shuffle=True, rank=0, world_size=20).load_state_dict(state)


def test_a_state_before_and_between_epochs_is_that_of_the_next_one(tmp_path: Path) -> None:
    write(tmp_path, [50])
    dataset = ParquetBatches(str(tmp_path), 10)

    assert (dataset.state_dict()["epoch"], dataset.state_dict()["taken"]) == (0, 0)
    assert len(ids(dataset)) == dataset.state_dict()["taken"] == 5
    dataset.set_epoch(1)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["taken"]) == (1, 0)
    state = dataset.state_dict(batches=2)
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    assert ids(dataset) == [list(range(start, start + 10)) for start in (20, 30, 40)]


def test_a_small_batch_comes_from_a_worker_in_one_message_and_a_large_one_whole(tmp_path: Path) -> None:
    columns = {
        "id": pa.array(range(40), pa.int64()),
        "half": pa.array(range(40), pa.float32()),
        "flag": pa.array([row % 3 == 0 for row in range(40)]),
        "pair": pa.array([[row, row + 1] for row in range(40)], pa.list_(pa.int16())),
        "none": pa.array([[] for _ in range(40)], pa.list_(pa.int16())),
        "ragged": pa.array([[1] * (row % 2) for row in range(40)], pa.list_(pa.int64())),
        "text": [f"row {row}" for row in range(40)],
        "large": pa.FixedSizeListArray.from_arrays(pa.array(range(40 * 8000), pa.float64()), 8000),
    }
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "a.parquet")
    for columns_, size in ((table.schema.names, 8), (table.schema.names[:-1], 8), (["text"], 8)):
        dataset = ParquetBatches(str(tmp_path), size, columns=columns_)
        for found, expected in zip(through(dataset, 1), dataset, strict=True):
            assert list(found) == list(expected)
            for name, value in expected.items():
                if isinstance(value, torch.Tensor):
                    assert found[name].dtype == value.dtype
                    assert found[name].equal(value)
                else:
                    assert str(found[name]) == str(value)


def test_the_readmes_loop_runs(tmp_path: Path) -> None:
    readme = os.path.join(os.path.dirname(os.path.dirname(__file__)), "README.md")
    with open(readme, encoding="utf-8") as file:
        code = file.read().partition("<!-- the tests run this -->\n```python\n")[2].partition("```")[0]
    features = pa.FixedSizeListArray.from_arrays(pa.array(range(600 * 16), pa.float32()), 16)
    table = pa.table({"features": features, "label": pa.array(range(600), pa.int32()), "text": ["a"] * 600})
    pq.write_table(table, tmp_path / "a.parquet")

    left: dict[str, Any] = {"path": str(tmp_path)}
    exec(code, left)

    assert (left["features"].dtype, tuple(left["features"].shape)) == (torch.float32, (600 % 256, 16))
    assert left["label"].dtype == torch.int32
    assert (left["state"]["epoch"], left["state"]["taken"]) == (1, 3)


def length_of(batch: dict[str, Any]) -> int:
    return len(batch["id"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_makes_what_the_loop_gets(tmp_path: Path, workers: int) -> None:
    write(tmp_path, [25])
    assert list(through(ParquetBatches(str(tmp_path), 10, transform=length_of), workers)) == [10, 10, 5]


def test_a_loop_that_ends_early_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So little is read ahead that there is always more to read.
    for name in ("AHEAD_BYTES", "WINDOW_BYTES"):
        monkeypatch.setattr(f"uc_stage.loaders.torch.{name}", 1)
    write(tmp_path, [500, 500])
    batches = iter(ParquetBatches(str(tmp_path), 3))
    next(batches)
    assert any(thread.name.startswith("uc-stage-read") for thread in threading.enumerate())
    del batches
    assert not any(thread.name.startswith("uc-stage-read") for thread in threading.enumerate())


def test_a_script_that_ends_with_an_iterator_in_its_hands_ends_quietly(tmp_path: Path) -> None:
    write(tmp_path, [5000])
    script = f"""
from torch.utils.data import DataLoader
from uc_stage.loaders.torch import ParquetBatches, as_is
batches = iter(DataLoader(ParquetBatches({str(tmp_path)!r}, 3), None, collate_fn=as_is))
print(len(next(batches)["id"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_a_dataset_pickles_to_paths_not_data(tmp_path: Path) -> None:
    write(tmp_path, [100_000], group=10_000)
    dataset = ParquetBatches(str(tmp_path), batch_size=64)
    dataset.set_epoch(3)

    stored = pickle.dumps(dataset)
    again = pickle.loads(stored)

    assert len(stored) < 2000
    assert (again.rows, again.epoch) == (100_000, 3)
    again.set_epoch(4)
    assert dataset.epoch == 3


def test_the_rank_is_as_given_else_of_the_process_group_else_of_the_launcher() -> None:
    told = {"RANK": "3", "WORLD_SIZE": "4"}
    assert reader_of(1, 2, (0, 8), environment=told) == (1, 2)
    assert reader_of(None, None, (5, 8), environment=told) == (5, 8)
    assert reader_of(None, None, environment=told) == (3, 4)
    assert reader_of(None, None, environment={}) == (0, 1)
    assert reader_of(None, None, environment={"WORLD_SIZE": "1"}) == (0, 1)
    with pytest.raises(InvalidRequest, match="`WORLD_SIZE=4` is set, and `RANK` is not"):
        reader_of(None, None, environment={"WORLD_SIZE": "4"})
    for rank, world_size in ((1, None), (None, 2)):
        with pytest.raises(InvalidRequest, match="go together"):
            reader_of(rank, world_size, environment={})


def test_a_nodes_shard_is_shared_out_over_the_ranks_of_that_node() -> None:
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    shard = (2, 4)
    assert reader_of(None, None, None, shard, told) == (1, 2)
    assert reader_of(None, None, (5, 8), shard, told) == (1, 2)
    assert reader_of(None, None, (5, 8), shard, {}) == (1, 2)
    assert reader_of(None, None, None, shard, {}) == (0, 1)
    assert reader_of(1, 2, (5, 8), shard, told) == (1, 2)
    assert reader_of(5, 8, None, shard, {}) == (5, 8)
    with pytest.raises(InvalidRequest, match="node 2 of 4, and 8 ranks are those of all nodes"):
        reader_of(5, 8, (5, 8), shard, told)
    with pytest.raises(InvalidRequest, match="which rank of that node this one is"):
        reader_of(None, None, (1, 8), shard, {})
    with pytest.raises(InvalidRequest, match="which rank of that node this one is"):
        reader_of(None, None, (5, 7), shard, {})


def test_a_dataset_takes_the_rank_from_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [40])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert flat(ids(ParquetBatches(str(tmp_path), 10))) == list(range(20, 40))


def test_a_dataset_takes_the_rank_from_the_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [40])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert flat(ids(ParquetBatches(str(tmp_path), 10))) == list(range(40))
    finally:
        torch.distributed.destroy_process_group()


def test_the_copy_of_a_nodes_shard_is_not_shared_out_by_node_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_export(str(tmp_path / "export"), files=4, rows=10)
    seen = []
    for node in range(2):
        path = uc_stage.cache(str(tmp_path / "export"), cache_dir=str(tmp_path / "cache"), shard=(node, 2))
        for local in range(2):
            told = {"RANK": 2 * node + local, "WORLD_SIZE": 4, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": 2}
            for name, value in told.items():
                monkeypatch.setenv(name, str(value))
            seen.append(flat(ids(ParquetBatches(path, 4))))
            with pytest.raises(InvalidRequest, match=f"node {node} of 2"):
                ParquetBatches(path, 4, rank=2 * node + local, world_size=4)
    assert [len(rank) for rank in seen] == [10] * 4
    assert len({value for rank in seen for value in rank}) == 40


def test_one_split_of_several_is_read_and_which_must_be_said(tmp_path: Path) -> None:
    manifest = make_export(str(tmp_path), files=3, rows=10)
    files = manifest.files
    put_manifest(str(tmp_path), manifest, splits={"train": files[:2], "test": files[2:]})

    with pytest.raises(InvalidRequest, match="holds the splits `test`, `train`"):
        ParquetBatches(str(tmp_path), 5)
    assert ParquetBatches(str(tmp_path), 5, split="train").rows == 20
    assert ParquetBatches(str(tmp_path), 5, split="all").rows == 30
    with pytest.raises(NotFound, match="holds no split `val`"):
        ParquetBatches(str(tmp_path), 5, split="val")


def test_a_folder_has_no_splits(tmp_path: Path) -> None:
    write(tmp_path, [5])
    with pytest.raises(NotFound, match="holds no split `train`"):
        ParquetBatches(str(tmp_path), 5, split="train")


def test_files_behind_a_url_are_read(tmp_path: Path) -> None:
    [(path, _)] = write(tmp_path, [10])
    with open(path, "rb") as file:
        open_folder("memory://batches").put("a.parquet", file.read())

    assert ids(ParquetBatches("memory://batches", 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"rank": 2, "world_size": 2}, InvalidRequest, "no rank 2 of 2"),
        ({"rank": -1, "world_size": 2}, InvalidRequest, "no rank -1 of 2"),
        ({"batch_size": 0}, InvalidRequest, "`batch_size=0`"),
        ({"seed": -1}, InvalidRequest, "`seed=-1` is negative"),
        ({"nulls": "zero"}, InvalidRequest, "`nulls='zero'` is no way with NULL"),
        ({"nulls": {"idd": 0}}, NotFound, "has no column `idd`"),
        ({"columns": ["ids"]}, NotFound, "has no column `ids`"),
        ({"rank": 0, "world_size": 6}, InvalidRequest, "5 rows in batches of 1 give 6 ranks"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_first_batch(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    write(tmp_path, [5])
    with pytest.raises(error, match=words):
        ParquetBatches(str(tmp_path), **{"batch_size": 1, **arguments})


def test_an_epoch_is_counted_from_0(tmp_path: Path) -> None:
    write(tmp_path, [5])
    with pytest.raises(InvalidRequest, match="no epoch -1"):
        ParquetBatches(str(tmp_path), 1).set_epoch(-1)


def test_a_dataset_is_refused_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not there"):
        ParquetBatches(str(tmp_path / "none"), 1)
    with pytest.raises(NotFound, match="holds no Parquet"):
        ParquetBatches(str(tmp_path), 1)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(VerificationFailed):
        ParquetBatches(str(tmp_path), 1)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(InvalidRequest, match="is a Delta table"):
        ParquetBatches(str(tmp_path), 1)


def test_files_with_other_columns_are_refused_unless_those_of_all_are_named(tmp_path: Path) -> None:
    write(tmp_path, [5])
    pq.write_table(pa.table({"id": [5, 6], "more": [1, 2]}), tmp_path / "z.parquet")
    with pytest.raises(InvalidRequest, match=r"z\.parquet` has other columns than"):
        ParquetBatches(str(tmp_path), 4)
    assert ids(ParquetBatches(str(tmp_path), 4, columns=["id"])) == [[0, 1, 2, 3], [4, 5, 6]]


def test_a_file_that_is_gone_or_damaged_is_an_error_that_names_it(tmp_path: Path) -> None:
    [(path, _)] = write(tmp_path, [10_000])
    dataset = ParquetBatches(str(tmp_path), 100)
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 500)
    with pytest.raises(VerificationFailed, match=r"part-000\.parquet` is not whole Parquet"):
        list(dataset)
    (tmp_path / "part-000.parquet").unlink()
    with pytest.raises(NotFound, match=r"part-000\.parquet"):
        list(dataset)


def test_nulls_are_as_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, None, 3]}), tmp_path / "a.parquet")
    with pytest.raises(Unsupported, match="`x` holds NULL"):
        list(ParquetBatches(str(tmp_path), 2))
    assert [batch["x"].tolist() for batch in ParquetBatches(str(tmp_path), 2, nulls={"x": -1})] == [[1, -1], [3]]
