from __future__ import annotations

import datetime as dt
import decimal
import glob
import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.exports import make_export, put_manifest
from uc_stage.benchmark import recipes
from uc_stage.benchmark.jobs import Job
from uc_stage.errors import InvalidRequest, Unsupported
from uc_stage.loaders import huggingface
from uc_stage.loaders.arrow import Part, batches, share
from uc_stage.loaders.columns import split
from uc_stage.loaders.torch import tensors
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


def test_what_no_tensor_holds_rightly_is_a_list_where_that_is_asked_for() -> None:
    large = 2**62 + 1
    columns = {
        "text": ["a", None],
        "whole": pa.array([large, None], pa.int64()),
        "stamp": pa.array([5, None], pa.timestamp("us")),
        "flag": [True, None],
        "decimal": pa.array([decimal.Decimal("1.25"), None]),
        "nested": [["a", None], []],
        "gaps": [[1, 2], None],
        "pairs": [{"a": 1}, {"a": None}],
        "word": pa.array(["x", "y"]).dictionary_encode(),
        "none": pa.array([None, None], pa.null()),
    }

    found = tensors(pa.record_batch(columns), nulls="list")

    assert found == {
        "text": ["a", None],
        "whole": [large, None],
        "stamp": [5, None],
        "flag": [True, None],
        "decimal": [decimal.Decimal("1.25"), None],
        "nested": [["a", None], []],
        "gaps": [[1, 2], None],
        "pairs": [{"a": 1}, {"a": None}],
        "word": ["x", "y"],
        "none": [None, None],
    }


def test_floats_have_nan_for_null() -> None:
    found = tensors(pa.record_batch({"x": pa.array([1.0, None], pa.float32())}))

    assert found["x"].dtype == torch.float32
    assert found["x"][0] == 1.0
    assert torch.isnan(found["x"][1])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None], pa.int64()),
        pa.array([True, None]),
        pa.array([5, None], pa.timestamp("us")),
        pa.array([[1, 2], [3, None]], pa.list_(pa.int32())),
        pa.array([[1, 2], None], pa.list_(pa.int32())),
        pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    ],
    ids=str,
)
def test_a_null_that_a_tensor_has_no_place_for_is_an_error_that_names_the_column(values: pa.Array) -> None:
    with pytest.raises(Unsupported, match="`x` holds NULL"):
        tensors(pa.record_batch({"x": values}))


def test_a_null_among_floats_is_an_error_where_that_is_asked_for() -> None:
    with pytest.raises(Unsupported, match="`x` holds NULL"):
        tensors(pa.record_batch({"x": [1.0, None]}), nulls="error")


def test_nulls_are_filled_by_column_and_nan_in_others() -> None:
    batch = pa.record_batch({"x": [1, None], "y": [[1, None], [None, 4]], "z": [None, 1.0]})

    found = tensors(batch, nulls={"x": -1, "y": 0})

    assert found["x"].tolist() == [1, -1]
    assert found["y"].tolist() == [[1, 0], [0, 4]]
    assert torch.isnan(found["z"]).tolist() == [True, False]
    with pytest.raises(InvalidRequest, match=r"`'none'` in `nulls` is no value of `x`, which holds int64"):
        tensors(batch, nulls={"x": "none"})


def test_lists_of_one_length_are_a_tensor_of_rows_that_shares_the_batchs_memory() -> None:
    columns = {
        "list": pa.array([[0, 0], [1, 2], [3, 4]], pa.list_(pa.float32())),
        "large": pa.array([[0], [1], [3]], pa.large_list(pa.int64())),
        "fixed": pa.array([[0, 0], [1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        "matrix": [[[0], [0]], [[1], [2]], [[3], [4]]],
        "empty": pa.array([[], [], []], pa.list_(pa.int8())),
        "shaped": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype="int32").reshape(3, 2)),
    }
    batch = pa.record_batch(columns).slice(1)

    found = tensors(batch)

    assert found["list"].dtype == torch.float32
    assert found["list"].tolist() == [[1, 2], [3, 4]]
    assert found["large"].tolist() == [[1], [3]]
    assert (found["fixed"].dtype, found["fixed"].tolist()) == (torch.int16, [[1, 2], [3, 4]])
    assert found["matrix"].tolist() == [[[1], [2]], [[3], [4]]]
    assert tuple(found["empty"].shape) == (2, 0)
    assert found["shaped"].tolist() == [[2, 3], [4, 5]]
    assert found["list"].data_ptr() == batch.column("list").flatten().to_numpy().ctypes.data


def test_lists_of_different_lengths_are_a_list_of_tensors() -> None:
    found = tensors(pa.record_batch({"x": pa.array([[9], [1, 2], []], pa.list_(pa.float64()))}).slice(1))

    assert [tensor.tolist() for tensor in found["x"]] == [[1, 2], []]
    assert all(tensor.dtype == torch.float64 for tensor in found["x"])


def test_whether_a_batch_is_a_tensor_depends_on_its_own_rows_alone() -> None:
    found = list(split(pa.record_batch({"x": [[1], [2], [3], [4, 5]], "y": [1, 2, None, 4]}), [2, 2], "list"))

    assert found[0]["x"].tolist() == [[1], [2]]
    assert [tensor.tolist() for tensor in found[1]["x"]] == [[3], [4, 5]]
    assert (found[0]["y"].tolist(), found[1]["y"]) == ([1, 2], [None, 4])


def test_a_batch_of_no_rows_has_tensors_of_no_rows() -> None:
    found = tensors(pa.record_batch({"x": [1], "y": [[1.0]], "z": ["a"]}).slice(1))

    assert (found["x"].tolist(), tuple(found["y"].shape), found["z"]) == ([], (0, 0), [])


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

    stream = recipes.stream(Job("hf-stream", str(tmp_path), tuple((file, 1, 10) for file in files), 4, 0, 60.0))

    assert [value for batch in stream for value in batch["id"].tolist()] == [0] * 10 + [1] * 10 + [2] * 10
    assert not glob.glob(str(tmp_path / "hf" / "**" / "*.arrow"), recursive=True)


@pytest.mark.usefixtures("hugging_face_home")
def test_hugging_face_has_the_rows_of_one_split_as_a_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    manifest = make_export(str(tmp_path / "export"), files=3, rows=10)
    files = manifest.files
    put_manifest(str(tmp_path / "export"), manifest, splits={"train": files[:2], "test": files[2:]})
    pq.write_table(pa.table({"id": [99]}), tmp_path / "export" / "stray.parquet")

    found = huggingface.huggingface(str(tmp_path / "export"), split="train")

    assert isinstance(found, datasets.Dataset)
    assert found["id"][:] == list(range(10**9, 10**9 + 20))
    with pytest.raises(InvalidRequest, match="holds the splits"):
        huggingface.huggingface(str(tmp_path / "export"))


def test_hugging_face_takes_no_url() -> None:
    pytest.importorskip("datasets")
    open_folder("memory://hugging").put("a.parquet", b"")
    with pytest.raises(InvalidRequest, match="is no local path"):
        huggingface.huggingface("memory://hugging")
