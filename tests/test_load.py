"""`load`: a small table in memory, by the same engines and in the same types as an export."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import uc_stage
from tests.fixtures.delta import make_kinds, make_numbers
from tests.fixtures.readme import readme_code
from uc_stage.errors import InvalidRequest, NoSpace, NotFound, Unavailable, Unsupported, VerificationFailed
from uc_stage.exporting.loading import Loaded
from uc_stage.loaders.arrays import _combined, arrays
from uc_stage.model import Source
from uc_stage.storage import limits, memory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_numbers(tmp_path_factory.mktemp("tables") / "numbers", 5000, commits=4)


def loaded_of(table: pa.Table) -> Loaded:
    return Loaded(table, Source("t", "0", 0), "local", "it was asked for")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_kinds(tmp_path_factory.mktemp("tables") / "kinds")


def test_a_table_comes_as_its_export_has_it(kinds: str, tmp_path: Path) -> None:
    loaded = uc_stage.load(kinds, where="id > 0", columns=["NAME", "s", "ts", "ntz", "dec", "Id"])
    uc_stage.export(
        kinds,
        str(tmp_path),
        where="id > 0",
        columns=["NAME", "s", "ts", "ntz", "dec", "Id"],
        files=1,
        row_group_bytes=1,
    )

    (file,) = tmp_path.glob("*.parquet")
    exported = pq.read_table(file)
    assert loaded.table.schema.equals(exported.schema)
    assert loaded.table.to_pylist() == exported.to_pylist()
    assert (loaded.source.version, loaded.engine) == (0, "local")
    assert loaded.engine_reason


def test_rows_are_chosen_as_an_export_chooses_them(numbers: str) -> None:
    first = uc_stage.load(numbers, limit=7, columns=["id"])
    drawn = uc_stage.load(numbers, sample=0.1, seed=3, columns=["id"])
    again = uc_stage.load(numbers, sample=0.1, seed=3, columns=["id"])
    older = uc_stage.load(numbers, version=0, exclude_columns=["text"])
    cast = uc_stage.load(f"{numbers}@v1", columns=["id"], cast={"id": "float32"})

    assert first.table["id"].to_pylist() == uc_stage.load(numbers, columns=["id"]).table["id"].to_pylist()[:7]
    assert drawn.table.equals(again.table)
    assert 300 < drawn.table.num_rows < 700
    assert older.table.num_rows == 1250
    assert "text" not in older.table.schema.names
    assert cast.table.schema.field("id").type == pa.float32()
    assert cast.table.num_rows == 2500


def test_no_row_is_a_table_with_the_columns(kinds: str) -> None:
    loaded = uc_stage.load(kinds, where="false")

    assert loaded.table.num_rows == 0
    assert len(loaded.table.schema) == 15
    assert list(loaded.to_pandas().columns) == loaded.table.schema.names
    assert {len(array) for array in loaded.to_numpy().values()} == {0}


def test_what_would_not_fit_is_refused_before_it_is_read_with_the_way_to_export_it(numbers: str) -> None:
    with pytest.raises(NoSpace, match=r"version 3 would be 5,000 rows of about .* may take 20\.0 kB") as caught:
        uc_stage.load(numbers, memory=20_000)

    assert f"uc-stage export {numbers} DEST" in str(caught.value.hint)
    assert uc_stage.load(numbers, memory=20_000, where="id < 100").table.num_rows == 100
    with pytest.raises(NoSpace):
        uc_stage.load(numbers, memory=20_000, where="id < 4900")


def test_what_turns_out_larger_than_it_looked_is_stopped(tmp_path: Path) -> None:
    table = pa.table({"text": ["x"] * 5000 + ["y" * 1000] * 5000})
    write_deltalake(str(tmp_path / "table"), table)

    with pytest.raises(NoSpace, match="10,000 rows of more than"):
        uc_stage.load(str(tmp_path / "table"), memory=1_000_000)


def test_rows_that_do_not_come_are_noticed(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": range(5000)}))
    (log,) = (tmp_path / "t" / "_delta_log").glob("*.json")
    log.write_text(log.read_text().replace('\\"numRecords\\":5000', '\\"numRecords\\":6000'))

    with pytest.raises(VerificationFailed):
        uc_stage.load(str(tmp_path / "t"))


def test_without_a_word_half_of_the_memory_that_a_container_leaves_may_be_taken(
    numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("max", "9000000\n"), ("current", "8960000\n"), ("stat", "anon 1\ninactive_file 10000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(limits, "_GROUPS", str(tmp_path))

    assert memory().available == 50_000
    with pytest.raises(NoSpace, match=r"25\.0 kB"):
        uc_stage.load(numbers)


def test_where_nothing_tells_of_memory_nothing_is_refused(
    numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_PROC", str(tmp_path))

    assert uc_stage.load(numbers).table.num_rows == 5000


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"columns": ["nmae"]}, InvalidRequest), ({"where": "nmae = 1"}, InvalidRequest),
        ({"memory": 0}, InvalidRequest), ({"version": 99}, NotFound), ({"sample": 2.0}, InvalidRequest),
        ({"query": "SELECT 1"}, InvalidRequest),
    ],
)  # fmt: skip
def test_errors_are_those_of_an_export(numbers: str, asked: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        uc_stage.load(numbers, **asked)


def test_large_integers_with_null_stay_what_they_are_in_pandas(tmp_path: Path) -> None:
    big = 2**53 + 1
    table = pa.table(
        {
            "n": pa.array([big, None], pa.int64()),
            "b": pa.array([1, None], pa.int8()),
            "id": pa.array([1, 2], pa.int64()),
            "f": pa.array([0.5, None], pa.float64()),
            "ok": pa.array([True, None]),
        }
    )
    write_deltalake(str(tmp_path / "t"), table)

    frame = uc_stage.load(str(tmp_path / "t")).to_pandas()

    assert frame["n"][0] == big
    assert frame["n"][1] is pd.NA
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "Int8", "int64", "float64", "object"]
    assert list(frame.columns) == ["n", "b", "id", "f", "ok"]


def test_large_integers_beside_null_within_lists_maps_and_structs_stay_what_they_are_in_pandas() -> None:
    big = 2**53 + 1
    table = pa.table(
        {
            "l": [[big, None], None],
            "s": [{"n": big}, {"n": None}],
            "m": pa.array([[("a", big)], [("b", None)]], pa.map_(pa.string(), pa.int64())),
            "n": [big, None],
        }
    )

    frame = loaded_of(table).to_pandas()

    assert list(frame["l"][0]) == [big, None]
    assert list(frame["s"]) == [{"n": big}, {"n": None}]
    assert list(frame["m"]) == [[("a", big)], [("b", None)]]
    assert (str(frame["n"].dtype), frame["n"][0]) == ("Int64", big)


def test_times_in_lists_that_no_array_holds_are_integers_too() -> None:
    far = pa.array([2**62, None, 5], pa.timestamp("us", "UTC"))
    days = pa.array([2**31 - 1, None, 5], pa.int32()).cast(pa.date32())
    table = pa.table(
        {
            "null": pa.ListArray.from_arrays([0, 1, 3], far),
            "deep": pa.ListArray.from_arrays([0, 1, 1], pa.LargeListArray.from_arrays([0, 3], days)),
            "fixed": pa.FixedSizeListArray.from_arrays(far.slice(0, 2), 1),
        }
    )

    found = arrays(table, "object")

    assert found["null"].tolist() == [[2**62], [None, 5]]
    assert found["deep"].tolist() == [[[2**31 - 1, None, 5]], []]
    assert found["fixed"].tolist() == [[2**62], [None]]


def test_times_beyond_those_of_python_are_refused_by_the_name_of_their_column() -> None:
    far = pa.array([2**62, None], pa.timestamp("us", "UTC"))
    loaded = loaded_of(pa.table({"id": [1, 2], "s": pa.StructArray.from_arrays([far], names=["at"])}))

    for convert in (loaded.to_pandas, loaded.to_numpy):
        with pytest.raises(Unsupported, match="`s` holds a value that Python has none for"):
            convert()
    assert loaded_of(pa.table({"at": far})).to_pandas()["at"][0].year == 148108


def test_a_missing_pandas_is_told_with_what_installs_it(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = uc_stage.load(kinds, columns=["key"])
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(Unavailable, match="needs pandas") as caught:
        loaded.to_pandas()
    assert caught.value.hint == "pip install pandas"


def test_lists_of_more_values_than_32_bits_count_are_put_together() -> None:
    half = pa.ListArray.from_arrays([0, 2**30 + 1], pa.nulls(2**30 + 1))  # nulls take no memory

    found = _combined(pa.chunked_array([half, half]))

    assert found.type == pa.large_list(pa.null())
    assert found.offsets.to_pylist() == [0, 2**30 + 1, 2**31 + 2]


def test_columns_become_arrays_by_the_rules_of_the_loaders() -> None:
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
    table = pa.table(
        {
            "i": pa.chunked_array([[1], [2, 3]], pa.int32()),
            "ts": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
            "d": pa.array([dt.date(1970, 1, 2)] * 3),
            "f": pa.array([0.5, None, 1.5], pa.float32()),
            "ok": [True, False, True],
            "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64())),
            "cube": [[[1, 2]], [[3, 4]], [[5, 6]]],
            "ragged": [[1], [], [2, 3]],
            "words": [["a"], None, ["b", "c"]],
            "text": ["a", None, "ü"],
            "raw": [b"\0", None, b""],
            "dec": pa.array([Decimal("1.50"), None, None], pa.decimal128(5, 2)),
            "s": [{"x": 1}, None, {"x": None}],
        }
    )
    found = arrays(table, {"ts": 0})

    assert found["i"].tolist() == [1, 2, 3]
    assert found["ts"].tolist() == [1_704_067_200_000_000, 0, 1_704_067_200_000_000]
    assert found["d"].tolist() == [1, 1, 1]
    assert np.isnan(found["f"][1])
    assert found["pair"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found["cube"].shape == (3, 1, 2)
    assert [array.tolist() for array in found["ragged"]] == [[1], [], [2, 3]]
    assert found["words"].tolist() == [["a"], None, ["b", "c"]]
    assert found["text"].tolist() == ["a", None, "ü"]
    assert found["raw"].tolist() == [b"\0", None, b""]
    assert found["dec"].tolist() == [Decimal("1.50"), None, None]
    assert found["s"].tolist() == [{"x": 1}, None, {"x": None}]
    kinds = {name: str(array.dtype) for name, array in found.items() if array.dtype != object}
    assert kinds == {
        "i": "int32", "ts": "int64", "d": "int32", "f": "float32", "ok": "bool", "pair": "int64", "cube": "int64",
    }  # fmt: skip


def test_null_in_an_array_is_refused_filled_or_an_object() -> None:
    table = pa.table({"n": pa.array([1, None]), "f": pa.array([None, 1.0]), "l": [[1], None]})

    with pytest.raises(Unsupported, match="`n` holds NULL, and an array has no place for it") as caught:
        arrays(table)
    assert "where='n IS NOT NULL'" in str(caught.value.hint)
    assert arrays(table, "object")["n"].tolist() == [1, None]
    assert arrays(table, "object")["l"].tolist() == [[1], None]
    with pytest.raises(Unsupported, match="`f`"):
        arrays(table.select(["f"]), "error")
    with pytest.raises(Unsupported, match="a list") as caught:
        arrays(table.select(["l"]))
    assert caught.value.hint == "give `nulls='object'`, or load the other rows: where='l IS NOT NULL'"
    with pytest.raises(InvalidRequest, match="no value of `n`"):
        arrays(table, {"n": "x"})
    with pytest.raises(InvalidRequest, match=r"`1\.5` in `nulls` is no value of `n`"):
        arrays(table, {"n": 1.5})
    assert arrays(table.select(["n", "f"]), {"n": np.float32(2)})["n"].tolist() == [1, 2]
    with pytest.raises(InvalidRequest, match="`nulls` names `m`"):
        arrays(table, {"m": 1})
    with pytest.raises(InvalidRequest, match="`nulls='zero'` is no way"):
        arrays(table, "zero")


def test_arrays_over_the_tables_memory_cannot_be_written_to() -> None:
    found = arrays(pa.table({"n": [1, 2]}))

    with pytest.raises(ValueError, match="read-only"):
        found["n"][0] = 5


def test_the_readmes_lines_run(tmp_path: Path) -> None:
    features = pa.array([[float(n)] * 16 for n in range(10)], pa.list_(pa.float32()))
    write_deltalake(str(tmp_path / "t"), pa.table({"id": range(10), "label": range(10), "features": features}))

    left: dict[str, Any] = {"table": str(tmp_path / "t")}
    exec(readme_code("load"), left)

    assert left["loaded"].table["id"].to_pylist() == [5, 6, 7, 8, 9]
    found = left["loaded"].to_numpy()
    assert (found["features"].shape, found["features"].dtype) == ((5, 16), np.float32)
