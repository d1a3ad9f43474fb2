from __future__ import annotations

import base64
import datetime as dt
import itertools
import os
import struct
import threading
import uuid
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.logs import (
    PLAIN,
    add,
    array_of,
    bitmap,
    field,
    inline_vector,
    map_of,
    mapped,
    metadata,
    one_file,
    open_table,
    protocol,
    rows_of,
    stored_vectors,
    struct_of,
    write_log,
    z85,
)
from uc_stage.engines.conditions import condition
from uc_stage.engines.delta.partition_values import scalar_of
from uc_stage.engines.local.ahead import ahead
from uc_stage.engines.predicate import checked
from uc_stage.errors import NotFound, StageError, Unsupported, VerificationFailed

UTC = dt.timezone.utc
ID = field("id", "long")


def at(*parts: int) -> dt.datetime:
    """A time without a zone."""
    return dt.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - as most columns hold them


def numbered(table: Path, *sizes: int, group: int = 100, vectors: dict[str, Any] | None = None) -> Path:
    """Files `f0`, `f1` … of rows numbered on, in row groups of `group`; `vectors` are deletion vectors by file."""
    vectored = {name: {"deletionVector": vector} for name, vector in (vectors or {}).items()}
    adds = [add(f"f{number}", size, **vectored.get(f"f{number}", {})) for number, size in enumerate(sizes)]
    write_log(table, [protocol("deletionVectors"), metadata(ID), *reversed(adds)])
    start = 0
    for number, size in enumerate(sizes):
        pq.write_table(pa.table({"id": range(start, start + size)}), table / f"f{number}", row_group_size=group)
        start += size
    return table


def where(text: str, table: Path) -> Any:
    schema = open_table(table).schema
    return condition(checked(text, schema.names), schema)


def test_rows_come_in_the_order_of_paths_and_positions(tmp_path: Path) -> None:
    table = open_table(numbered(tmp_path / "t", 250, 0, 7, 1000))

    found = [(rows.path, rows.positions.tolist(), rows.batch["id"].to_pylist()) for rows in table.scan()]

    assert [path for path, _ in itertools.groupby(path for path, *_ in found)] == ["f0", "f2", "f3"]
    assert [value for *_, values in found for value in values] == list(range(1257))
    for path, size in (("f0", 250), ("f2", 7), ("f3", 1000)):
        assert [at for name, positions, _ in found if name == path for at in positions] == list(range(size))


def test_deleted_rows_are_gaps_in_the_positions(tmp_path: Path) -> None:
    first, second = [0, 99, 100, 249], list(range(200))
    vectors = {"f0": inline_vector(first), "f1": inline_vector(second)}
    table = open_table(numbered(tmp_path / "t", 250, 200, 5, vectors=vectors))

    found = [(rows.path, at) for rows in table.scan() for at in rows.positions.tolist()]
    told = {path: (rows, deleted if deleted is None else deleted.tolist()) for path, rows, deleted in table.positions()}

    assert found == [("f0", at) for at in range(250) if at not in first] + [("f2", at) for at in range(5)]
    assert told == {"f0": (250, first), "f1": (200, second), "f2": (5, None)}
    assert table.rows == 251


def test_a_condition_keeps_the_positions_of_its_rows_and_needs_no_column_of_the_output(tmp_path: Path) -> None:
    path = numbered(tmp_path / "t", 250, 250, vectors={"f0": inline_vector([7])})
    table = open_table(path)

    found = list(table.scan([], where("id % 100 = 7", path)))

    assert [(rows.path, rows.positions.tolist()) for rows in found] == [
        ("f0", [107]),
        ("f0", [207]),
        ("f1", [57]),
        ("f1", [157]),
    ]
    assert {(rows.batch.num_columns, rows.batch.num_rows) for rows in found} == {(0, 1)}
    assert sum(len(rows.positions) for rows in table.scan(["id"], where("1 = 1", path))) == 499
    assert sum(rows.batch.num_rows for rows in table.scan([])) == 499


def test_counts_that_the_log_does_not_tell_come_from_footers(tmp_path: Path) -> None:
    path = write_log(tmp_path / "t", [PLAIN, metadata(ID), add("a"), add("b", 3)])
    for name, size in (("a", 5), ("b", 3)):
        pq.write_table(pa.table({"id": range(size)}), path / name)
    table = open_table(path)

    assert table.rows is None
    assert [(name, rows) for name, rows, _ in table.positions()] == [("a", 5), ("b", 3)]


@pytest.mark.parametrize("told", [4, 6])
def test_a_file_with_other_rows_than_the_log_says_is_refused_by_its_name(tmp_path: Path, told: int) -> None:
    table = write_log(tmp_path / "t", [PLAIN, metadata(ID), add("a", told)])
    pq.write_table(pa.table({"id": range(5)}), table / "a")

    with pytest.raises(VerificationFailed, match=f"`a` of `t` should hold {told} rows, and holds 5"):
        list(open_table(table).scan())


def test_a_file_that_is_gone_or_damaged_ends_the_scan_and_its_threads(tmp_path: Path) -> None:
    gone, damaged = numbered(tmp_path / "gone", 50, 50, 50), numbered(tmp_path / "damaged", 50, 50, 50)
    (gone / "f2").unlink()
    (damaged / "f2").write_bytes(b"PAR1" + bytes(100) + b"PAR1")

    for table, kind in ((gone, NotFound), (damaged, VerificationFailed)):
        with pytest.raises(kind, match="`f2`"):
            list(open_table(table).scan())
    assert not reading()


def reading() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("uc-stage-read")]


def test_closing_a_scan_early_ends_its_threads(tmp_path: Path) -> None:
    scan = open_table(numbered(tmp_path / "t", 5000, 5000, group=10)).scan()

    next(scan)
    assert reading()
    scan.close()

    assert not reading()


def test_a_row_group_of_any_size_is_decoded_in_small_batches(tmp_path: Path) -> None:
    wide = pa.array(["x" * 20_000, "y" * 20_000]).dictionary_encode()
    rows = pa.table(
        {"id": pa.array(range(5000)), "text": pa.DictionaryArray.from_arrays([0, 1] * 2500, wide.dictionary)}
    )
    table = one_file(tmp_path / "t", rows, ID, field("text", "string"), store_schema=False)
    assert os.path.getsize(table / "data.parquet") < 1_000_000

    sizes = [rows.batch.nbytes for rows in open_table(table).scan()]

    assert sum(sizes) > 100_000_000
    assert max(sizes) < 30_000_000


def test_ten_columns_of_a_huge_row_group_come_out_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uc_stage.engines.local.data_files._HUGE_GROUP_BYTES", 1000)
    columns = {f"c{number}": np.arange(5000) + number for number in range(10)}
    table = one_file(tmp_path / "t", pa.table(columns), *(field(name, "long") for name in columns))

    found = pa.Table.from_batches([rows.batch for rows in open_table(table).scan()])

    assert found.equals(pa.table(columns))


# --- what fields are called -------------------------------------------------------------------------------------------

MODES = {mode: {"delta.columnMapping.mode": mode} for mode in ("name", "id")}


def numbered_field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def test_columns_go_by_number_alone_in_id_mode_and_by_physical_name_alone_in_name_mode(tmp_path: Path) -> None:
    inner = pa.struct([numbered_field("p-y", pa.int64(), 4), numbered_field("p-x", pa.string(), 3)])
    schema = pa.schema(
        [
            numbered_field("p-b", pa.int64(), 1),
            numbered_field("p-s", pa.list_(inner), 2),
            numbered_field("p-a", pa.int64(), 5),
        ]
    )
    data = pa.Table.from_pylist([{"p-b": 1, "p-s": [{"p-y": 10, "p-x": "x"}, None], "p-a": 5}], schema)
    nested = array_of(
        struct_of(mapped("x", "string", 3, "p-x"), mapped("new", "long", 9, "p-y2"), mapped("y", "long", 4, "p-y"))
    )
    fields = [mapped("p-b", "long", 5, "p-a"), mapped("b", "long", 1, "p-b"), mapped("s", nested, 2, "p-s")]
    named = one_file(tmp_path / "name", data, *fields, features=["columnMapping"], configuration=MODES["name"])
    by_id = [mapped("p-b", "long", 5, "q1"), mapped("b", "long", 1, "q2"), mapped("s", nested, 2, "p-b")]
    ids = one_file(tmp_path / "id", data, *by_id, features=["columnMapping"], configuration=MODES["id"])

    want = [{"p-b": 5, "b": 1, "s": [{"x": "x", "new": None, "y": 10}, None]}]
    assert rows_of(named) == want
    assert rows_of(ids) == want
    assert rows_of(named, ["s", "p-b"]) == [{"s": want[0]["s"], "p-b": 5}]


def test_a_struct_that_looks_right_and_goes_by_other_names_is_not_taken_as_it_is(tmp_path: Path) -> None:
    data = pa.table({"p": [{"a": 1, "b": 2}]})
    swapped = struct_of(mapped("a", "long", 2, "b"), mapped("b", "long", 3, "a"))
    table = one_file(
        tmp_path / "t", data, mapped("s", swapped, 1, "p"), features=["columnMapping"], configuration=MODES["name"]
    )

    assert rows_of(table) == [{"s": {"a": 2, "b": 1}}]


def test_a_file_without_numbers_is_refused_where_columns_go_by_them(tmp_path: Path) -> None:
    table = one_file(
        tmp_path / "t", pa.table({"p": [1]}), mapped("a", "long", 1, "p"),
        features=["columnMapping"], configuration=MODES["id"],
    )  # fmt: skip

    with pytest.raises(VerificationFailed, match=r"`data\.parquet` has no ids"):
        rows_of(table)


def test_a_mapping_that_the_protocol_does_not_know_of_is_refused(tmp_path: Path) -> None:
    for mode, kind in (("name", VerificationFailed), ("other", Unsupported)):
        configuration = {"delta.columnMapping.mode": mode}
        table = one_file(
            tmp_path / mode, pa.table({"p": [1]}), mapped("a", "long", 1, "p"), configuration=configuration
        )
        with pytest.raises(kind, match=mode):
            rows_of(table)


def test_names_match_in_any_case_and_the_exact_one_goes_first(tmp_path: Path) -> None:
    data = pa.table({"ID": [1], "Name": ["up"], "name": ["down"], "S": [{"X": 1}], "a.b": [3], "a": [{"b": 4}]})
    fields = [ID, field("name", "string"), field("s", struct_of(field("x", "long"))), field("a.b", "long")]
    table = one_file(tmp_path / "t", data, *fields, field("A", struct_of(field("B", "long"))))

    assert rows_of(table) == [{"id": 1, "name": "down", "s": {"x": 1}, "a.b": 3, "A": {"B": 4}}]
    assert rows_of(table, ["A"]) == [{"A": {"B": 4}}]
    twice = one_file(tmp_path / "twice", pa.table({"Id": [1], "iD": [2]}), ID)
    with pytest.raises(VerificationFailed, match=r"`data\.parquet` has 2 columns that may be it.*`id`"):
        rows_of(twice)


def test_columns_and_fields_that_a_file_does_not_have_are_null_and_others_are_left_out(tmp_path: Path) -> None:
    data = pa.table(
        {
            "s": [{"old": 1, "kept": 2}, None],
            "m": pa.array([[("k", {"old": 1})], None], pa.map_(pa.string(), pa.struct([("old", pa.int8())]))),
            "gone": [1, 2],
        }
    )
    kinds = struct_of(field("kept", "long"), field("new", array_of("date")))
    table = one_file(
        tmp_path / "t", data, field("s", kinds), field("m", map_of("string", struct_of(field("n", "string")))),
        field("later", "decimal(38,10)"), field("nothing", "void"),
    )  # fmt: skip

    assert rows_of(table) == [
        {"s": {"kept": 2, "new": None}, "m": {"k": {"n": None}}, "later": None, "nothing": None},
        {"s": None, "m": None, "later": None, "nothing": None},
    ]


# --- what values become -----------------------------------------------------------------------------------------------

D = Decimal
NAIVE, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
NOON = at(2024, 1, 2, 12, 0, 0, 1)
CONVERTED: list[tuple[str, pa.Array, Any, list[Any]]] = [
    ("wider integer", pa.array([1, -(2**31), None], pa.int32()), "long", [1, -(2**31), None]),
    ("narrow integer in 32 bits", pa.array([-128, 127], pa.int32()), "byte", [-128, 127]),
    ("unsigned integer", pa.array([2**32 - 1], pa.uint32()), "long", [2**32 - 1]),
    ("integer as double", pa.array([2**31 - 1, None], pa.int32()), "double", [float(2**31 - 1), None]),
    ("float as double", pa.array([0.5, None], pa.float32()), "double", [0.5, None]),
    ("integer as decimal", pa.array([-7, None], pa.int32()), "decimal(12,2)", [D("-7.00"), None]),
    ("long as decimal", pa.array([2**63 - 1], pa.int64()), "decimal(20,0)", [D(2**63 - 1)]),
    ("wider decimal", pa.array([D("1.5")], pa.decimal128(4, 1)), "decimal(38,10)", [D("1.5000000000")]),
    ("widest decimal", pa.array([D("9" * 38)], pa.decimal128(38, 0)), "decimal(38,0)", [D("9" * 38)]),
    ("date as time", pa.array([dt.date(1960, 2, 29)]), "timestamp_ntz", [at(1960, 2, 29)]),
    ("time without a zone", pa.array([NOON], NAIVE), "timestamp", [NOON.replace(tzinfo=UTC)]),
    ("time of another zone", pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")), "timestamp",
     [NOON.replace(tzinfo=UTC)]),
    ("milliseconds", pa.array([at(2024, 1, 2)], pa.timestamp("ms")), "timestamp_ntz", [at(2024, 1, 2)]),
    ("nanoseconds", pa.array([1_000_001_001], pa.timestamp("ns", "UTC")), "timestamp",
     [at(1970, 1, 1, 0, 0, 1, 1).replace(tzinfo=UTC)]),
    ("large text", pa.array(["é", None], pa.large_string()), "string", ["é", None]),
    ("text in a dictionary", pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
    ("binary as text", pa.array([b"abc"], pa.binary()), "string", ["abc"]),
    ("text as binary", pa.array(["é"]), "binary", ["é".encode()]),
    ("fixed binary", pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
    ("large list of wider", pa.array([[1], None, []], pa.large_list(pa.int8())), array_of("integer"), [[1], None, []]),
    ("fixed list", pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), array_of("float"), [[1.0, 2.0]]),
    ("map of wider", pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int16())), map_of("string", "long"),
     [{"k": 1}, None]),
    ("list of structs of wider", pa.array([[{"x": 1}, None], None]), array_of(struct_of(field("x", "long"))),
     [[{"x": 1}, None], None]),
    ("nothing but NULL", pa.nulls(2), array_of("long"), [None, None]),
    ("UUID", pa.array([b"x" * 16], pa.uuid()), "binary", [b"x" * 16]),
    ("large text in a list", pa.array([["a"]], pa.list_(pa.large_string())), array_of("string"), [["a"]]),
    ("variant in another order", pa.array([{"value": b"\x00", "metadata": b"\x01"}, None]), "variant",
     [{"metadata": b"\x01", "value": b"\x00"}, None]),
    ("variant", pa.array([{"metadata": b"\x01", "value": b"\x00"}, None]), "variant",
     [{"metadata": b"\x01", "value": b"\x00"}, None]),
    ("shredded variant", pa.array([{"metadata": b"\x01\x00\x00", "value": None, "typed_value": 7}], pa.struct(
        [("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())])), "variant",
     [{"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}]),
    ("void with values", pa.array([1, 2]), "void", [None, None]),
    ("deep nulls", pa.array([{"l": [{"m": 1}, None]}, {"l": None}, None]),
     struct_of(field("l", array_of(struct_of(field("m", "short"))))), [{"l": [{"m": 1}, None]}, {"l": None}, None]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("held", "kind", "want"), [case[1:] for case in CONVERTED], ids=[case[0] for case in CONVERTED]
)
def test_values_of_another_form_become_those_of_the_column(
    tmp_path: Path, held: pa.Array, kind: Any, want: list[Any]
) -> None:
    table = one_file(tmp_path / "t", pa.table({"c": held}), field("c", kind), row_group_size=1)

    assert [row["c"] for row in rows_of(table)] == want


REFUSED: list[tuple[pa.Array, Any]] = [
    (pa.array([2**31], pa.int64()), "integer"),
    (pa.array([200], pa.int32()), "byte"),
    (pa.array([2**64 - 1], pa.uint64()), "long"),
    (pa.array([1], pa.int64()), "double"),
    (pa.array([1.5]), "float"),
    (pa.array([1.5]), "long"),
    (pa.array([D("1.55")]), "decimal(10,1)"),
    (pa.array([D("123.5")]), "decimal(3,1)"),
    (pa.array([10**10]), "decimal(10,1)"),
    (pa.array(["1"]), "long"),
    (pa.array([1]), "string"),
    (pa.array([True]), "integer"),
    (pa.array([b"\xff"]), "string"),
    (pa.array([dt.date(2024, 1, 1)]), "timestamp"),
    (pa.array([1]), "date"),
    (pa.array([1]), struct_of(field("x", "long"))),
    (pa.array([1]), array_of("long")),
    (pa.array([1]), map_of("string", "long")),
    (pa.array([[1.5]]), array_of("long")),
    (pa.array([{"x": "a"}]), struct_of(field("x", "long"))),
    (pa.array([{"value": b"", "other": 1}]), "variant"),
    (pa.array([1]), "variant"),
]


@pytest.mark.parametrize(("held", "kind"), REFUSED, ids=[f"{held.type} as {kind}"[:60] for held, kind in REFUSED])
def test_values_that_the_column_cannot_have_are_refused_with_file_and_column(
    tmp_path: Path, held: pa.Array, kind: Any
) -> None:
    table = one_file(tmp_path / "t", pa.table({"c": held}), field("c", kind))

    with pytest.raises(VerificationFailed, match=r"`data\.parquet` has .* where the table's column `c`"):
        rows_of(table)


@pytest.mark.parametrize("kind", ["interval", "geometry(4326)", struct_of(), {"type": "udt", "sqlType": "long"}])
def test_types_that_are_not_known_are_refused(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(Unsupported, match="`c`"):
        rows_of(one_file(tmp_path / "t", pa.table({"c": [1]}), field("c", kind)))


@pytest.mark.parametrize(
    "schema", [{"fields": [{"name": "c"}]}, {"fields": 1}, {}, {"fields": [{"name": "c", "type": "decimal(50,1)"}]}]
)
def test_a_schema_that_is_none_is_refused(tmp_path: Path, schema: Any) -> None:
    import json

    action = metadata(ID)
    action["metaData"]["schemaString"] = json.dumps(schema)

    with pytest.raises(VerificationFailed, match="its schema is none"):
        open_table(write_log(tmp_path / "t", [PLAIN, action]))


# The years 1, 1600, 2262 and 9999 in one INT96 column `c`: pyarrow itself wrote it, of which not every version can.
INT96 = (
    "c-jka3^EjD5X}+I(GleUGT21fWEdD2n1GmrkpT*VT%;Hn7VI!^V`gAjp{ooNW|(|mjX~m%-^3|?3=BH|0vSYEBy~&~B-o0RGg5OC"
    "MVWxcsWM40CNqd}NXkgcs4>WhvPr74F-QW%M1g{0lNf<Wjl)w0Xfp#)y^SWDq#6SU&}fhphZ;x)gN8yuVo_mfYKd-gL4j^!QBi)m"
    "LRo52ab|v=f{~e?fu5nH49LxOKpX({4gfx?BnA"
)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_int96_times_at_the_edges_come_whole(tmp_path: Path, kind: str) -> None:
    table = write_log(tmp_path / "t", [PLAIN, metadata(field("c", kind)), add("a", 4)])
    (table / "a").write_bytes(zlib.decompress(base64.b85decode(INT96)))
    edges = [at(1, 1, 1), at(1600, 1, 1, 1), at(2262, 12, 31), at(9999, 12, 31, 23, 59, 59, 999999)]

    assert [row["c"].replace(tzinfo=None) for row in rows_of(table)] == edges


def test_times_of_the_julian_calendar_are_refused_and_later_ones_are_read(tmp_path: Path) -> None:
    for number, (day, fine) in enumerate(
        [(dt.date(1582, 10, 14), False), (dt.date(1899, 1, 1), False), (dt.date(1900, 1, 1), True)]
    ):
        nested = pa.array([[{"t": dt.datetime.combine(day, dt.time())}]], pa.list_(pa.struct([("t", NAIVE)])))
        data = pa.table({"d": [day], "s": nested, "m": pa.array([[("k", day)]], pa.map_(pa.string(), pa.date32()))})
        marked = data.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
        kinds = [
            field("d", "date"),
            field("s", array_of(struct_of(field("t", "timestamp")))),
            field("m", map_of("string", "date")),
        ]
        table = one_file(tmp_path / f"t{number}", marked, *kinds)
        assert rows_of(one_file(tmp_path / f"plain{number}", data, *kinds))[0]["d"] == day
        if fine:
            assert rows_of(table)[0]["d"] == day
            continue
        with pytest.raises(Unsupported, match="Julian"):
            rows_of(table)


def test_a_list_of_two_levels_is_a_list(tmp_path: Path) -> None:
    data = pa.table({"c": pa.array([[1, 2], []], pa.list_(pa.field("array", pa.int32(), nullable=False)))})
    table = one_file(tmp_path / "t", data, field("c", array_of("integer")), use_compliant_nested_type=False)

    assert rows_of(table) == [{"c": [1, 2]}, {"c": []}]


# --- partition values -------------------------------------------------------------------------------------------------

VALUES: list[tuple[str | None, pa.DataType, Any]] = [
    (None, pa.string(), None),
    ("", pa.string(), None),
    (" a=b/ü%20", pa.string(), " a=b/ü%20"),
    ("\x00ÿ", pa.binary(), "\x00ÿ".encode()),
    ("TRUE", pa.bool_(), True),
    ("false", pa.bool_(), False),
    ("-128", pa.int8(), -128),
    ("9223372036854775807", pa.int64(), 2**63 - 1),
    ("1.5E10", pa.float64(), 1.5e10),
    ("-Infinity", pa.float32(), float("-inf")),
    ("inf", pa.float64(), float("inf")),
    ("0.1", pa.float32(), float(np.float32(0.1))),
    ("12345678901234567890123456789012345.678", pa.decimal128(38, 3), D("12345678901234567890123456789012345.678")),
    ("1.5", pa.decimal128(5, 2), D("1.50")),
    ("1960-02-29", pa.date32(), dt.date(1960, 2, 29)),
    ("0001-01-01", pa.date32(), dt.date(1, 1, 1)),
    ("2024-01-02 03:04:05", ZONED, dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("2024-01-02 03:04:05.1234567", NAIVE, at(2024, 1, 2, 3, 4, 5, 123456)),
    ("2024-01-02T03:04:05.000001Z", ZONED, dt.datetime(2024, 1, 2, 3, 4, 5, 1, tzinfo=UTC)),
    ("2024-01-02T03:04:05+05:30", ZONED, dt.datetime(2024, 1, 1, 21, 34, 5, tzinfo=UTC)),
    ("2024-01-02 03:04-0800", ZONED, dt.datetime(2024, 1, 2, 11, 4, tzinfo=UTC)),
    ("2024-01-02", NAIVE, at(2024, 1, 2)),
    ("9999-12-31 23:59:59.999999", NAIVE, at(9999, 12, 31, 23, 59, 59, 999999)),
    ("anything", pa.null(), None),
    ("", pa.date32(), None),
]


@pytest.mark.parametrize(("text", "kind", "want"), VALUES)
def test_a_partition_value_is_read_as_its_columns_type(text: str | None, kind: pa.DataType, want: Any) -> None:
    scalar = scalar_of(text, kind)

    assert (scalar.type, scalar.as_py()) == (kind, want)


def test_a_partition_value_may_be_no_number_or_a_year_of_five_digits() -> None:
    assert str(scalar_of("NaN", pa.float32()).as_py()) == "nan"
    assert scalar_of("+10000-01-01", pa.date32()).cast(pa.int32()).as_py() == 2_932_897


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("128", pa.int8()), ("1_0", pa.int32()), ("1.0", pa.int32()), ("yes", pa.bool_()), ("1_0", pa.float64()),
        ("x", pa.decimal128(5, 2)), ("1.555", pa.decimal128(5, 2)), ("2024-13-01", pa.date32()), ("2024", pa.date32()),
        ("2024-01-01 25:00:00", NAIVE), ("2024-01-01 01:00:00+02:00", NAIVE), ("noon", ZONED),
        ("a", pa.list_(pa.int8())),
    ],
)  # fmt: skip
def test_a_partition_value_of_another_form_is_refused(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"."):
        scalar_of(text, kind)


@given(st.datetimes(at(1, 1, 1), at(9999, 12, 31)))
@settings(max_examples=50, deadline=None)
def test_any_time_as_text_is_that_time(moment: dt.datetime) -> None:
    assert scalar_of(str(moment), NAIVE).as_py() == moment


def test_partition_columns_come_from_the_log_whatever_the_file_holds(tmp_path: Path) -> None:
    fields = [ID, field("Day", "date"), field("name", "string")]
    values = [{"Day": "2024-01-02", "name": "a b"}, {"Day": None, "name": ""}]
    adds = [add(f"p={number}%20%25/x+ü", 2, partitionValues=held) for number, held in enumerate(values)]
    table = write_log(tmp_path / "t", [PLAIN, metadata(*fields, partitions=("day", "name")), *adds])
    for number in range(2):
        (table / f"p={number} %").mkdir()
        pq.write_table(pa.table({"id": [number, None], "name": ["wrong", "wrong"]}), table / f"p={number} %/x+ü")

    assert rows_of(table) == [
        {"id": 0, "Day": dt.date(2024, 1, 2), "name": "a b"},
        {"id": None, "Day": dt.date(2024, 1, 2), "name": "a b"},
        {"id": 1, "Day": None, "name": None},
        {"id": None, "Day": None, "name": None},
    ]
    assert rows_of(table, ["name"])[0] == {"name": "a b"}
    assert open_table(table).null_counts == {"Day": 2, "name": 2}


def test_partition_values_go_by_physical_names(tmp_path: Path) -> None:
    fields = [mapped("id", "long", 1, "p1"), mapped("part", "integer", 2, "p2")]
    stats = '{"numRecords": 2, "nullCount": {"p1": 1, "p2": 0}}'
    table = write_log(
        tmp_path / "t",
        [
            protocol("columnMapping"),
            metadata(*fields, partitions=("part",), configuration=MODES["name"]),
            add("a", stats=stats, partitionValues={"p2": "7"}),
        ],
    )
    pq.write_table(pa.table({"p1": [5, None]}), table / "a")

    assert rows_of(table) == [{"id": 5, "part": 7}, {"id": None, "part": 7}]
    assert open_table(table).null_counts == {"id": 1, "part": 0}


@pytest.mark.parametrize("held", [{}, {"part": "x"}])
def test_a_partition_value_that_is_missing_or_none_is_refused(tmp_path: Path, held: dict[str, str]) -> None:
    fields = metadata(ID, field("part", "integer"), partitions=("part",))
    table = write_log(tmp_path / "t", [PLAIN, fields, add("a", 1, partitionValues=held)])
    pq.write_table(pa.table({"id": [1]}), table / "a")

    with pytest.raises(VerificationFailed, match="`part`"):
        rows_of(table)


def test_a_partition_column_that_the_table_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="`other`, which is none of its columns"):
        open_table(write_log(tmp_path / "t", [PLAIN, metadata(ID, partitions=("other",))]))


# --- deletion vectors -------------------------------------------------------------------------------------------------


def left(table: Path) -> list[int]:
    return [row["id"] for row in rows_of(table)]


@pytest.mark.parametrize("prefix", ["", "ab", "a/ü"])
def test_deletion_vectors_are_read_from_the_table_s_files(tmp_path: Path, prefix: str) -> None:
    name = uuid.uuid4()
    path = tmp_path / "t" / prefix / f"deletion_vector_{name}.bin"
    offsets = stored_vectors(path, [1, 2], [], range(50, 200))
    vectors = {}
    for file, offset, rows in zip(("f0", "f1", "f2"), offsets, ([1, 2], [], range(50, 200)), strict=True):
        held = {"storageType": "u", "pathOrInlineDv": f"{prefix}{z85(name.bytes)}", "offset": offset}
        vectors[file] = {**held, "sizeInBytes": len(bitmap(rows)), "cardinality": len(rows)}
    del vectors["f0"]["offset"]

    assert left(numbered(tmp_path / "t", 5, 5, 200, vectors=vectors)) == [0, 3, 4, *range(5, 10), *range(10, 60)]


def test_deletion_vectors_may_stand_anywhere(tmp_path: Path) -> None:
    stored_vectors(tmp_path / "else where" / "dv.bin", [0])
    path = f"file://{tmp_path}/else%20where/dv.bin"
    vector = {
        "storageType": "p",
        "pathOrInlineDv": path,
        "offset": 1,
        "sizeInBytes": len(bitmap([0])),
        "cardinality": 1,
    }

    assert left(numbered(tmp_path / "t", 3, vectors={"f0": vector})) == [1, 2]
    (tmp_path / "else where" / "dv.bin").unlink()
    with pytest.raises(NotFound, match=r"dv\.bin"):
        left(tmp_path / "t")


def test_bitmaps_of_every_kind_of_container_are_read(tmp_path: Path) -> None:
    from pyroaring import BitMap64

    rows = [*range(1000, 40_000, 2), *range(70_000, 90_000), 99_999]
    runs = BitMap64(rows)
    runs.run_optimize() if hasattr(runs, "run_optimize") else None
    table = numbered(tmp_path / "t", 100_000, group=30_000, vectors={"f0": inline_vector(rows)})

    assert left(table) == sorted(set(range(100_000)) - set(rows))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cardinality": 3}, "deletes 2 rows, and the log says 3"),
        ({"sizeInBytes": 12}, "damaged"),
        ({"pathOrInlineDv": z85(b"\x00" * 40)}, "begins with 0"),
        ({"pathOrInlineDv": "abc"}, "five digits"),
        ({"pathOrInlineDv": "äbcde"}, "damaged"),
    ],
)
def test_a_deletion_vector_that_is_not_whole_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(VerificationFailed, match=says):
        left(numbered(tmp_path / "t", 5, vectors={"f0": inline_vector([1, 2], **changed)}))


@pytest.mark.parametrize("damage", ["checksum", "length", "version", "cut", "gone", "storage"])
def test_a_stored_deletion_vector_that_is_damaged_is_refused(tmp_path: Path, damage: str) -> None:
    name = uuid.uuid4()
    path = tmp_path / "t" / f"deletion_vector_{name}.bin"
    stored_vectors(path, [1, 2])
    content = bytearray(path.read_bytes())
    vector = {
        "storageType": "u",
        "pathOrInlineDv": z85(name.bytes),
        "offset": 1,
        "sizeInBytes": len(bitmap([1, 2])),
        "cardinality": 2,
    }
    kind: type[StageError] = VerificationFailed
    if damage == "checksum":
        content[-1] ^= 1
    elif damage == "length":
        content[1:5] = struct.pack(">i", 7)
    elif damage == "version":
        content[0], kind = 9, Unsupported
    elif damage == "cut":
        content = content[:-6]
    elif damage == "storage":
        vector["storageType"], kind = "x", Unsupported
    path.write_bytes(content)
    if damage == "gone":
        path.unlink()
        kind = NotFound

    with pytest.raises(kind):
        left(numbered(tmp_path / "t", 5, vectors={"f0": vector}))


def test_a_deletion_vector_of_rows_that_the_file_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="deletes row 5"):
        left(numbered(tmp_path / "known", 5, vectors={"f0": inline_vector([5])}))
    table = write_log(
        tmp_path / "t", [protocol("deletionVectors"), metadata(ID), add("a", deletionVector=inline_vector([5]))]
    )
    pq.write_table(pa.table({"id": range(5)}), table / "a")
    with pytest.raises(VerificationFailed, match="row 5"):
        left(table)


# --- reading ahead ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=4), max_size=6),
    st.integers(1, 4),
    st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_items_come_in_the_order_of_the_work_for_any_jobs_and_budget(
    work: list[list[list[int]]], jobs: int, budget: int
) -> None:
    def opener(parts: list[list[int]]) -> Any:
        return lambda: [lambda part=part: iter(part) for part in parts]

    found = list(ahead(map(opener, work), lambda item: item, jobs, budget))

    assert found == [item for parts in work for part in parts for item in part]


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    made = 0

    def part() -> Iterator[int]:
        nonlocal made
        for number in range(1000):
            made += 1
            yield number

    items = ahead([lambda: [part]], lambda _: 10, 2, 100)
    assert next(items) == 0
    threading.Event().wait(0.2)

    assert made <= 13
    assert list(items) == list(range(1, 1000))


@pytest.mark.parametrize("where", ["opener", "part", "list of openers"])
def test_an_error_of_any_thread_is_raised_where_the_items_are_consumed(where: str) -> None:
    def fail() -> Any:
        raise VerificationFailed(where)

    def openers() -> Iterator[Any]:
        yield lambda: [lambda: iter([1])]
        yield (lambda: [lambda: (fail() for _ in range(1))]) if where == "part" else fail
        if where == "list of openers":
            fail()

    with pytest.raises(VerificationFailed):
        list(ahead(openers(), lambda item: item, 2, 100))
    assert not reading()
