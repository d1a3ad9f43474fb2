"""Shredded variants, rebuilt and then read by Spark's own reader of variants."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from uc_stage.engines.local.variants import unshredded

NAMES = ["a", "b", "c", "é", "long" * 30]


def metadata(names: list[str]) -> bytes:
    encoded = [name.encode() for name in names]
    offsets = [sum(map(len, encoded[:index])) for index in range(len(encoded) + 1)]
    return b"\x01" + bytes([len(names), *offsets]) + b"".join(encoded)


META = metadata(NAMES)


def shredded(kind: pa.DataType) -> pa.DataType:
    """The group of a shredded value."""
    return pa.struct([("value", pa.binary()), ("typed_value", kind)])


def column(values: list[Any], kind: pa.DataType, meta: bytes = META) -> pa.StructArray:
    held = pa.struct([("metadata", pa.binary()), *shredded(kind)])
    return pa.array([value and {"metadata": meta, **value} for value in values], held)


def rebuilt(values: list[Any], kind: pa.DataType) -> list[Any]:
    """The variants as Spark's reader gives them."""
    from pyspark.sql.types import VariantVal

    array = unshredded(column(values, kind))
    array.validate(full=True)
    assert array.type == pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    return [row and VariantVal(row["value"], row["metadata"]).toPython() for row in array.to_pylist()]


def typed(value: Any) -> dict[str, Any]:
    return {"value": None, "typed_value": value}


def rest(value: bytes) -> dict[str, Any]:
    return {"value": value, "typed_value": None}


D = Decimal
UTC = dt.timezone.utc
MOMENT = dt.datetime.fromisoformat("2024-01-02T03:04:05.000006")
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.int64(), [0, 127, 128, -129, 32768, 2**31, -(2**63)]),
    (pa.float64(), [0.1, -1e300]),
    (pa.float32(), [0.5]),
    (pa.decimal128(9, 2), [D("-1234567.89")]),
    (pa.decimal128(38, 10), [D("1.0000000000"), D("-123456789012345678.0123456789")]),
    (pa.date32(), [dt.date(1960, 2, 29)]),
    (pa.timestamp("us"), [MOMENT]),
    (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)]),
    (pa.string(), ["", "é", "x" * 63, "x" * 64, "x" * 70_000]),
    (pa.binary(), [b"", b"\x00\xff"]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_values_of_every_kind_come_back(kind: pa.DataType, values: list[Any]) -> None:
    assert rebuilt([typed(value) for value in values], kind) == values


def test_decimals_of_38_digits_keep_them_all() -> None:
    digits = 12345678901234567890123456789012345678

    (row,) = unshredded(column([typed(D(-digits).scaleb(-10, Context(prec=60)))], pa.decimal128(38, 10))).to_pylist()

    assert row["value"] == bytes([10 << 2, 10]) + (-digits).to_bytes(16, "little", signed=True)


def test_values_that_were_not_shredded_stay_as_they_are() -> None:
    values = [rest(b"\x05x"), typed(7), None, {"value": None, "typed_value": None}]

    assert rebuilt(values, pa.int64()) == ["x", 7, None, None]
    array = unshredded(column(values, pa.int64()))
    assert [row and row["value"] for row in array.to_pylist()] == [b"\x05x", b"\x0c\x07", None, b"\x00"]


def test_objects_are_joined_from_their_shredded_fields_and_the_rest() -> None:
    kind = pa.struct([("c", shredded(pa.int64())), ("a", shredded(pa.string())), (NAMES[4], shredded(pa.bool_()))])
    # {"é": "x", "b": null}, its values not in the order of its fields.
    others = b"\x02\x02\x01\x03\x02\x00\x03" + b"\x05x" + b"\x00"
    gone = {"value": None, "typed_value": None}
    values = [
        {"value": None, "typed_value": {"c": typed(1), "a": rest(b"\x04"), NAMES[4]: gone}},
        {"value": others, "typed_value": {"c": gone, "a": typed("s"), NAMES[4]: typed(True)}},
        {"value": None, "typed_value": {"c": gone, "a": gone, NAMES[4]: gone}},
        rest(b"\x05x"),
        None,
    ]

    assert rebuilt(values, kind) == [
        {"a": True, "c": 1},
        {"a": "s", "b": None, NAMES[4]: True, "é": "x"},
        {},
        "x",
        None,
    ]


def test_arrays_and_objects_nest() -> None:
    element = shredded(pa.struct([("a", shredded(pa.list_(shredded(pa.int16()))))]))
    lists = typed(
        [typed({"a": typed([typed(1), rest(b"\x05x"), {"value": None, "typed_value": None}])}), rest(b"\x00")]
    )
    many = typed([typed({"a": typed([typed(n) for n in range(300)])})] * 2)

    assert rebuilt([typed([]), lists, None, many], pa.list_(element)) == [
        [],
        [{"a": [1, "x", None]}, None],
        None,
        [{"a": list(range(300))}] * 2,
    ]


def test_an_object_of_many_fields_is_read_back() -> None:
    from pyspark.sql.types import VariantVal

    names = [f"field {number:03}" for number in range(300)]
    offsets = [9 * number for number in range(301)]
    meta = b"\x41" + b"".join(n.to_bytes(2, "little") for n in [300, *offsets]) + "".join(names).encode()
    kind = pa.struct([(name, shredded(pa.int64())) for name in names])
    value = typed({name: typed(number) for number, name in enumerate(names)})

    (row,) = unshredded(column([value], kind, meta)).to_pylist()

    assert json.loads(VariantVal(row["value"], row["metadata"]).toJson()) == {n: i for i, n in enumerate(names)}


WRONG: list[tuple[pa.DataType, Any, bytes]] = [
    (pa.int64(), {"value": b"\x00", "typed_value": 1}, META),
    (pa.struct([("x", shredded(pa.int64()))]), typed({"x": typed(1)}), META),
    (
        pa.struct([("b", shredded(pa.int64()))]),
        {"value": b"\x02\x01\x01\x00\x01\x00", "typed_value": {"b": typed(1)}},
        META,
    ),
    (pa.struct([("b", shredded(pa.int64()))]), {"value": b"\x05x", "typed_value": {"b": typed(1)}}, META),
    (pa.struct([("b", shredded(pa.int64()))]), {"value": b"\x02\x05\x01", "typed_value": {"b": typed(1)}}, META),
    (pa.int64(), typed(1), b"\x02\x00\x00"),
    (pa.duration("s"), typed(dt.timedelta(1)), META),
]


@pytest.mark.parametrize(("kind", "value", "meta"), WRONG)
def test_variants_that_contradict_themselves_are_refused(kind: pa.DataType, value: Any, meta: bytes) -> None:
    with pytest.raises(ValueError, match="variant"):
        unshredded(column([value], kind, meta))
