from __future__ import annotations

import datetime as dt
import decimal
import glob
import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from uc_stage.errors import InvalidRequest, NotFound, VerificationFailed
from uc_stage.loaders import huggingface
from uc_stage.loaders.arrow import Part, batches, share
from uc_stage.loaders.torch import ParquetBatches, as_is, tensors
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, rows: list[int], group: int = 7) -> list[tuple[str, int]]:
    """Files of so many rows with running ids."""
    files = []
    first = 0
    for number, count in enumerate(rows):
        path = folder / f"part-{number:03d}.parquet"
        pq.write_table(pa.table({"id": pa.array(range(first, first + count), pa.int64())}), path, row_group_size=group)
        files.append((str(path), count))
        first += count
    return files


def ids(parts: list[Part], batch_size: int) -> list[int]:
    return [value for batch in batches(parts, batch_size) for value in batch.column(0).to_pylist()]


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 40))
def test_shares_hold_each_row_once_in_order_and_differ_by_one_row_at_most(rows: list[int], count: int) -> None:
    files = [(f"file {number}", held) for number, held in enumerate(rows)]
    shares = [share(files, index, count) for index in range(count)]

    read = [(part.path, row) for parts in shares for part in parts for row in range(part.start, part.stop)]
    sizes = [sum(part.stop - part.start for part in parts) for parts in shares]
    assert read == [(path, row) for path, held in files for row in range(held)]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    group=st.integers(1, 20),
    batch_size=st.integers(1, 50),
    count=st.integers(1, 9),
)
def test_the_batches_of_all_shares_are_the_rows_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], group: int, batch_size: int, count: int
) -> None:
    files = write(tmp_path_factory.mktemp("files"), rows, group)

    read = [row for index in range(count) for row in ids(share(files, index, count), batch_size)]

    assert read == list(range(sum(rows)))


def test_a_batch_has_the_batch_size_across_row_groups_and_only_the_columns_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(25), "b": range(25)}), tmp_path / "a.parquet", row_group_size=7)

    found = list(batches([Part(str(tmp_path / "a.parquet"), 0, 25)], 10, ["b"]))

    assert [batch.num_rows for batch in found] == [10, 10, 5]
    assert found[0].schema.names == ["b"]


def test_files_behind_a_url_are_read(tmp_path: Path) -> None:
    [(path, _)] = write(tmp_path, [10])
    open_folder("memory://loaders").put("a.parquet", (tmp_path / os.path.basename(path)).read_bytes())

    assert ids([Part("memory://loaders/a.parquet", 2, 9)], 3) == list(range(2, 9))


def test_numbers_are_tensors_of_their_type_that_share_the_batchs_memory() -> None:
    columns = {
        kind: pa.array([1, 2, 3], getattr(pa, kind)())
        for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
    }
    batch = pa.record_batch(columns).slice(1)

    found = tensors(batch)

    assert {name: str(tensor.dtype) for name, tensor in found.items()} == {name: f"torch.{name}" for name in columns}
    assert all(tensor.tolist() == [2, 3] for tensor in found.values())
    assert found["int64"].data_ptr() == batch.column("int64").to_numpy().ctypes.data


def test_half_floats_and_booleans_are_tensors() -> None:
    found = tensors(pa.record_batch({"half": pa.array(np.array([1.5], np.float16)), "flag": [True]}))

    assert (found["half"].dtype, found["half"].tolist()) == (torch.float16, [1.5])
    assert (found["flag"].dtype, found["flag"].tolist()) == (torch.bool, [True])


def test_times_are_integers_in_the_columns_unit() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
    found = tensors(
        pa.record_batch(
            {
                "stamp": pa.array([moment], pa.timestamp("us", "UTC")),
                "date": pa.array([dt.date(1970, 1, 3)]),
                "time": pa.array([dt.time(0, 0, 1)], pa.time64("us")),
                "span": pa.array([dt.timedelta(seconds=2)], pa.duration("ms")),
            }
        )
    )

    assert found["stamp"].tolist() == [round(moment.timestamp() * 1_000_000)]
    assert found["stamp"].dtype == torch.int64
    assert (found["date"].tolist(), found["date"].dtype) == ([2], torch.int32)
    assert (found["time"].tolist(), found["span"].tolist()) == ([1_000_000], [2000])


def test_what_no_tensor_holds_rightly_is_a_list() -> None:
    large = 2**62 + 1
    columns = {
        "text": ["a", None],
        "whole": pa.array([large, None], pa.int64()),
        "stamp": pa.array([5, None], pa.timestamp("us")),
        "flag": [True, None],
        "decimal": pa.array([decimal.Decimal("1.25"), None]),
        "nested": [[1, 2], []],
        "word": pa.array(["x", "y"]).dictionary_encode(),
        "none": pa.array([None, None], pa.null()),
    }

    found = tensors(pa.record_batch(columns))

    assert found == {
        "text": ["a", None],
        "whole": [large, None],
        "stamp": [5, None],
        "flag": [True, None],
        "decimal": [decimal.Decimal("1.25"), None],
        "nested": [[1, 2], []],
        "word": ["x", "y"],
        "none": [None, None],
    }


def test_floats_have_nan_for_null() -> None:
    found = tensors(pa.record_batch({"x": pa.array([1.0, None], pa.float32())}))

    assert found["x"].dtype == torch.float32
    assert found["x"][0] == 1.0
    assert torch.isnan(found["x"][1])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("context", "workers"), [("fork", 3), ("spawn", 1)])
def test_real_workers_yield_each_row_once(tmp_path: Path, context: str, workers: int) -> None:
    write(tmp_path, [50, 0, 1, 30])
    dataset = ParquetBatches(str(tmp_path), batch_size=8)
    loader = DataLoader(
        dataset,
        batch_size=None,
        collate_fn=as_is,
        num_workers=workers,
        multiprocessing_context=multiprocessing.get_context(context),
        persistent_workers=True,
        timeout=60,
    )

    for _ in range(2):
        assert sorted(value for batch in loader for value in batch["id"].tolist()) == list(range(81))


def test_without_workers_the_rows_come_in_order(tmp_path: Path) -> None:
    write(tmp_path, [20, 5])
    dataset = ParquetBatches(str(tmp_path), batch_size=8, columns=["id"])

    loader: Any = DataLoader(dataset, batch_size=None, collate_fn=as_is)

    assert [batch["id"].tolist() for batch in loader] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
        list(range(20, 25)),
    ]
    assert dataset.rows == 25


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_their_workers_together_yield_each_row_once(tmp_path: Path, workers: int) -> None:
    write(tmp_path, [50, 0, 1, 30])
    seen = []
    for rank in range(3):
        dataset = ParquetBatches(str(tmp_path), batch_size=8, rank=rank, world_size=3)
        loader = DataLoader(
            dataset, batch_size=None, collate_fn=as_is, num_workers=workers, timeout=60 if workers else 0
        )
        seen.append([value for batch in loader for value in batch["id"].tolist()])

    assert sorted(value for rank in seen for value in rank) == list(range(81))
    assert [len(rank) for rank in seen] == [27, 27, 27]


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_there_is_not_is_refused(tmp_path: Path, rank: int, world_size: int) -> None:
    write(tmp_path, [5])
    with pytest.raises(InvalidRequest, match=f"no rank {rank} of {world_size}"):
        ParquetBatches(str(tmp_path), 1, rank=rank, world_size=world_size)


def test_a_dataset_pickles_to_paths_not_data(tmp_path: Path) -> None:
    write(tmp_path, [100_000], group=10_000)
    dataset = ParquetBatches(str(tmp_path), batch_size=64)

    stored = pickle.dumps(dataset)

    assert len(stored) < 2000
    assert pickle.loads(stored).rows == 100_000


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


@pytest.fixture
def hugging_face_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.mark.usefixtures("hugging_face_home")
def test_hugging_face_reads_exactly_these_files_whatever_they_are_called(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    files = []
    for number, name in enumerate(["part [1].parquet", "a*b.parquet", "what?.parquet"]):
        pq.write_table(pa.table({"id": [number] * 10}), tmp_path / name)
        files.append(str(tmp_path / name))
    pq.write_table(pa.table({"id": [99]}), tmp_path / "axxb.parquet")

    stream = huggingface.stream(files)

    assert [value for batch in stream.iter(4) for value in batch["id"]] == [0] * 10 + [1] * 10 + [2] * 10
    assert not glob.glob(str(tmp_path / "hf" / "**" / "*.arrow"), recursive=True)
