"""Casts: what is offered, what a loader takes, and values that come out as every engine has them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.cli.options import names
from uc_stage.engines.casting import cast_batch, cast_schema, planned_casts, refuse_unfit
from uc_stage.errors import InvalidRequest, Unsupported

SCHEMA = pa.schema(
    [
        ("count", pa.int64()),
        ("price", pa.decimal128(38, 9)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("flag", pa.bool_()),
        ("score", pa.float64()),
        ("text", pa.string()),
    ]
)


def cast(values: pa.Array, target: str) -> pa.Array:
    schema = pa.schema([("x", values.type)])
    casts = planned_casts(schema, [("x", target)])
    return cast_batch(pa.record_batch([values], schema=schema), cast_schema(schema, casts), casts).column(0)


def test_a_cast_of_a_family_reaches_all_its_columns_and_a_columns_own_goes_before() -> None:
    schema = pa.schema([("a", pa.decimal128(5, 2)), ("b", pa.decimal128(9, 0)), ("c", pa.int8())])
    assert planned_casts(schema, [("decimal", "float64"), ("B", "float32")]) == {"a": "float64", "b": "float32"}


def test_a_column_that_has_the_type_already_is_left_alone() -> None:
    assert planned_casts(SCHEMA, [("score", "float64"), ("count", "int64")]) == {}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([("nope", "int8")], r"names `nope`, which is no column"),
        ([("text", "int8")], r"`--cast text=int8`: a column of type `string` is not cast to that"),
        ([("price", "string")], r"is not cast to that"),
        ([("count", "int8"), ("Count", "int16")], r"names `Count` twice"),
        ([("tags", "list")], r"is not cast to that"),
    ],
)
def test_a_cast_that_is_not_offered_is_refused(asked: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        planned_casts(SCHEMA, asked)


def test_an_integer_that_does_not_fit_is_an_error_that_names_the_column() -> None:
    with pytest.raises(InvalidRequest, match=r"`--cast x=int8`: Integer value 300"):
        cast(pa.array([1, 300]), "int8")


def test_times_become_the_numbers_that_they_are_stored_as() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone.utc)
    assert cast(pa.array([moment, None], pa.timestamp("us", "UTC")), "int64").to_pylist() == [1767323045678901, None]
    assert cast(pa.array([dt.date(1969, 12, 31)]), "int32").to_pylist() == [-1]


def test_a_map_becomes_a_list_of_its_entries() -> None:
    found = cast(pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32())), "entries")
    assert found.to_pylist() == [[{"key": "a", "value": 1}, {"key": "b", "value": None}], None, []]


@given(st.lists(st.decimals(min_value=-(10**28), max_value=10**28, places=9), max_size=20))
def test_a_decimal_rounds_to_the_nearest_double(values: list[Decimal]) -> None:
    assert cast(pa.array(values, pa.decimal128(38, 9)), "float64").to_pylist() == [float(value) for value in values]


def test_an_integer_beyond_a_floats_precision_rounds_to_the_nearest() -> None:
    assert cast(pa.array([2**53 + 1]), "float64").to_pylist() == [float(2**53)]
    assert cast(pa.array([16777217], pa.int32()), "float32").to_pylist() == [16777216.0]


def test_the_gate_of_torch_names_each_column_with_the_cast_that_mends_it() -> None:
    with pytest.raises(Unsupported) as caught:
        refuse_unfit(SCHEMA, "torch")
    assert caught.value.exit_code == 16
    assert all(f"`{name}`" in caught.value.message for name in ("price", "at", "day", "tags"))
    assert caught.value.hint == "add --cast price=float64 --cast at=int64 --cast day=int32 --cast tags=entries"


def test_a_hint_is_words_for_a_shell_that_do_mend() -> None:
    inner = pa.map_(pa.string(), pa.int32())
    schema = pa.schema(
        [
            ("a b", inner),
            ("nested", pa.map_(pa.string(), inner)),
            ("x,y", pa.list_(inner)),
        ]
    )
    with pytest.raises(Unsupported) as caught:
        refuse_unfit(schema, "hf")
    assert caught.value.hint == """add --cast 'a b=entries' --exclude-columns 'nested,"x,y"'"""
    assert names('nested,"x,y"', "--exclude-columns") == ("nested", "x,y")


@pytest.mark.parametrize("loader", ["hf", "torch"])
def test_a_variant_is_told_as_one(loader: Literal["hf", "torch"]) -> None:
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    with pytest.raises(Unsupported, match=r"`deep` .*") as caught:
        refuse_unfit(pa.schema([("deep", pa.list_(kind))]), loader)
    assert caught.value.hint == "add --exclude-columns deep"


def test_what_the_hint_says_mends_the_gate() -> None:
    casts = planned_casts(SCHEMA, [("price", "float64"), ("at", "int64"), ("day", "int32"), ("tags", "entries")])
    refuse_unfit(cast_schema(SCHEMA, casts), "torch")
    refuse_unfit(cast_schema(SCHEMA, casts), "hf")


def test_a_nested_type_that_does_not_fit_is_found_and_can_be_left_out() -> None:
    schema = pa.schema([("deep", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int32()))])))])
    with pytest.raises(Unsupported, match=r"`deep` .*`datasets` has no feature for it") as caught:
        refuse_unfit(schema, "hf")
    assert caught.value.hint == "add --exclude-columns deep"
    refuse_unfit(schema, "any")
