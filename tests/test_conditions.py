from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.where import KEPT, edge_table
from uc_stage.engines.conditions import Condition, condition
from uc_stage.engines.predicate import checked
from uc_stage.errors import InvalidRequest, Unsupported

TABLE = edge_table()
NAMES = TABLE.column_names
VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])


def ready(where: str, schema: pa.Schema = TABLE.schema) -> Condition:
    return condition(checked(where, schema.names), schema)


def kept(where: str, table: pa.Table = TABLE) -> list[int]:
    """The numbers of the rows that a condition keeps."""
    (batch,) = table.combine_chunks().to_batches()
    mask = ready(where, table.schema)(batch)
    assert (mask.type, len(mask), mask.null_count) == (pa.bool_(), table.num_rows, 0)
    return [row for row, keep in enumerate(mask.to_pylist()) if keep]


def rows_of(bits: int) -> list[int]:
    return [row for row in range(TABLE.num_rows) if bits >> row & 1]


@pytest.mark.parametrize("where", KEPT)
def test_a_condition_keeps_the_rows_that_spark_keeps(where: str) -> None:
    assert kept(where) == rows_of(KEPT[where])


def test_spark_keeps_these_rows(spark_session: Any, tmp_path: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(TABLE, tmp_path / "edges.parquet")
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.parquet.inferTimestampNTZ.enabled": "true"}
    for name, value in settings.items():
        spark_session.conf.set(name, value)
    frame = spark_session.read.parquet(str(tmp_path / "edges.parquet"))

    found: dict[str, list[int]] = {}
    conditions = list(KEPT)
    for start in range(0, len(conditions), 100):
        some = conditions[start : start + 100]
        rows = frame.selectExpr(
            "key", *[f"({checked(where, NAMES)}) AS w{i}" for i, where in enumerate(some)]
        ).collect()
        found |= {where: sorted(row["key"] for row in rows if row[f"w{i}"]) for i, where in enumerate(some)}

    assert found == {where: rows_of(bits) for where, bits in KEPT.items()}


@pytest.mark.parametrize("where", ["id > 1 and name like 'a%'", "array_contains(l, 1)", "m['b'] = 2", "f in (0, 1)"])
def test_slices_of_a_batch_and_empty_ones_give_their_own_rows(where: str) -> None:
    (batch,) = TABLE.combine_chunks().to_batches()
    test = ready(where)

    parts = [batch.slice(0, 7), batch.slice(7, 1), batch.slice(8, 0), batch.slice(8)]

    assert [keep for part in parts for keep in test(part).to_pylist()] == test(batch).to_pylist()


def test_a_condition_may_use_each_function_and_form() -> None:
    everything = list(range(TABLE.num_rows))
    one_row = {
        "substr(name, -2, 5) = 'bc'",
        "name rlike '^a[\\\\_]b$'",
        "dec = cast('1.5' as decimal(2,1))",
    }
    for where in one_row:
        assert 0 < len(kept(where)) < len(everything)
    for where in (
        "cardinality(l) <=> size(l)",
        "if(id = 1, null, null) is null",
        "null = null or id is null or true",
        "cast(null as int) is null",
    ):
        assert kept(where) == everything


def test_a_condition_names_the_columns_that_it_needs_once_and_in_the_tables_case() -> None:
    schema = pa.schema([("Id", pa.int64()), ("name", pa.string()), ("S", pa.struct([("X", pa.int64())]))])
    test = condition("`id` > 1 AND `s`.`x` = 2 OR `ID` < 0", schema)
    assert test.columns == ("Id", "S")
    batch = pa.RecordBatch.from_pydict({"S": pa.array([{"X": 2}] * 2), "Id": pa.array([1, 2])})
    assert test(batch).to_pylist() == [False, True]
    assert ready("1 = 1").columns == ()


@pytest.mark.parametrize(("where", "rows"), [("true", 3), ("1 = 2", 0), ("1 <=> null or 'a' like '%'", 3)])
def test_a_condition_without_columns_holds_for_all_rows_or_none(where: str, rows: int) -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([1, None, 3])})
    assert ready(where)(batch).to_pylist() == [rows == 3] * 3


def test_a_file_with_another_width_or_unit_is_read_as_the_tables_type() -> None:
    schema = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    batch = pa.RecordBatch.from_pydict(
        {"n": pa.array([127, 1], pa.int8()), "ts": pa.array([1, 2], pa.timestamp("ms", "UTC"))}
    )
    assert ready("n + 1 = 128", schema)(batch).to_pylist() == [True, False]
    assert ready("ts = timestamp '1970-01-01 00:00:00.002'", schema)(batch).to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("n + 1 > 0", "overflow"), ("n - id > 0", "overflow"), ("n * n > 0", "overflow"), ("-id > 0", "overflow"),
        ("abs(sh) > 0", "overflow"), ("b + 1Y > 0", "overflow"), ("id div -1 = 1", "overflow"),
        ("1 / n > 0", "divide by zero"), ("1 % n > 0", "divide by zero"), ("1 div n > 0", "divide by zero"),
        ("f / f2 > 0", "divide by zero"), ("1 / 0 = 1", "divide by zero"), ("l[0] = 1", "out of bounds"),
        ("element_at(l, 3) = 1", "out of bounds"), ("cast(id as int) = 1", "not in range"),
        ("cast(f as int) = 1", "out of the range"), ("cast(f as bigint) = 1", "out of the range"),
        ("cast(n as decimal(3,0)) = 1", "does not fit"), ("cast(dec as decimal(5,2)) = 1", "does not fit"),
    ],
)  # fmt: skip
def test_a_row_on_which_ansi_sql_fails_is_the_users_error(where: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        kept(where)

    assert "fails on a row" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "where",
    [
        "n <> 0 and 10 / n > 1", "n = 0 or n is null or 10 / n > 1", "if(n = 0, true, 10 % n = 1)",
        "case when n is null then true when n = 0 then false else 10 / n > 1 end", "not (n <> 0 and 1 div n = 1)",
        "size(l) > 0 and l[0] = 1", "case when size(l) > 1 then l[1] end = 3", "coalesce(n, 1 / 1) is not null",
        "id between -99 and 99 and abs(id) = 3",
        "f > -128 and f < 127 and cast(f as tinyint) = 1", "nullif(n, 0) / nullif(n, 0) = 1",
        "1 / nullif(n, 0) > 0 and n < 100",
    ],
)  # fmt: skip
def test_what_spark_does_not_evaluate_on_a_row_cannot_fail_there(where: str) -> None:
    assert kept(where)


@pytest.mark.parametrize(
    "where",
    [
        "name rlike '(?i)a'", r"name rlike 'a\\b'", r"name rlike '(a)\\1'", "name rlike 'a*+'", "name rlike '*'",
        "name rlike '[a&&b]'", "name rlike '[[a]]'", "name rlike 'a$b'", r"name rlike '\\s$'", "name rlike '['",
        "name rlike '(a'", "name rlike other", "name rlike 'a{2,1}'", "name like other",
        r"name like 'a\\b'", r"name like 'a\\'", "name like 'a' escape 'ab'", "name like any ('a', 'b')",
        "name rlike 'a{1001}'", "id like 'a'", "l = l", "s = s", "s in (s)", "coalesce(l, l) is null",
        "array_contains(l, null)", "array_contains(l, id)", "l[-1] = 1", "element_at(l, -1) = 1", "l[n] = 1",
        "m[1] = 1", "m[name] = 1", "ok[0]", "size(name) = 1", "map_keys(m) is null", "v.value is null", "name = 5",
        "id = 'x'", "id = ' 1'", "id = name", "ok = 1", "bin = 'a'", "d = '2024-01-01 12:00:00'", "d = 'today'",
        "ntz = '2024-01-01T00:00:00Z'", "ts in ('2024-01-01', d, ts)", "ts = 'x'", "d = name", "f div 2 = 1",
        "f % 2 = 1",
        "dec / 2 > 1", "dec > 1.5D", "dec > f", "g = n", "g = 16777217", "g + 1 > 2", "g * 2.5 > 1", "wide = 0.5",
        "wide + 1 > 1", "wide * wide > 1", "-wide > 0", "f > 1e400", "id = 99999999999999999999999999999999999999999",
        "id < 9223372036854775808", "n between 0 and 99999999999999999999", "name + 1 > 1", "d - d = 1",
        "ts + interval 1 day > ts", "cast(name as int) = 1", "try_cast(id as int) = 1", "cast(f as string) = '1'",
        "cast('x' as date) = d", "cast(dec as decimal(10,1)) = 1", "cast(id as date) = d", "cast(dec as double) = 1",
        "cast(id as decimal(40,2)) = 1",
        "cast(id as struct<a:int>) is null", "cast(id as binary) = X'00'", "cast(1e0 as decimal(3,1)) = dec",
        "16777217.0F = g", "isnan(id)", "length(id) = 1", "lower(id) = '1'", "hour(d) = 0", "year(name) = 1",
        "concat(name, id) = 'a'", "substr(name, n) = 'a'", "startswith(name, other)", "round(f) = 1", "pmod(n, 2) = 1",
        "coalesce(id, name) is null", "coalesce(d, ts) is null", "case when null then 1 end = 1", "ok is null is 5",
        "case when ok then 'a' else 1 end = 'a'", "id in ()", "xxhash64(id) = 1", "to_date(name) = d", "id + null > 1",
    ],
)  # fmt: skip
def test_what_might_be_run_otherwise_than_in_spark_is_refused(where: str) -> None:
    schema = TABLE.schema.append(pa.field("v", VARIANT))

    with pytest.raises((Unsupported, InvalidRequest)) as caught:
        ready(where, schema)

    assert caught.value.hint
    assert "fails on a row" not in caught.value.message


@pytest.mark.parametrize(
    "where", ["id", "name", "null", "id and ok", "not id", "if(id, ok, ok)", "s.nope = 1", "name.x = 1", "l[0].y = 1"]
)
def test_what_is_no_condition_over_columns_that_are_there_is_refused(where: str) -> None:
    with pytest.raises((InvalidRequest, Unsupported)):
        ready(where)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("s.bb = 'a'", "`s.bb`, which the table does not have"),
        ("id", "is an integer"),
        ("name = 5", "compares a string with the integer `5`"),
        ("not id", "`id` for a condition"),
        ("d = 'today'", "the string `today` is no date"),
        ("coalesce(l, l) is null", "a nested value"),
        ("lower(null) = 'a'", "it is NULL, not a string"),
    ],
)
def test_a_refusal_says_why(where: str, says: str) -> None:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        ready(where)

    assert says in caught.value.message.replace("``", "`")


@pytest.mark.parametrize(
    "where",
    [
        "not " * 500 + "ok",
        "+".join(["n"] * 500) + " = 1",
        "n" + " + n - n" * 500 + " = 1",
        "(" * 500 + "ok" + ")" * 500,
    ],
)
def test_deep_nesting_is_refused(where: str) -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        condition(where, TABLE.schema)


def test_a_long_chain_of_and_or_or_is_not_deep() -> None:
    numbers = " OR ".join(f"`key` = {number}" for number in range(0, 3000, 2))
    (batch,) = TABLE.combine_chunks().to_batches()

    mask = condition(numbers, TABLE.schema)(batch)

    assert mask.to_pylist() == [row % 2 == 0 for row in range(TABLE.num_rows)]


@pytest.mark.parametrize(
    ("text", "where"),
    [("ΟΔΟΣ", "lower(t) = 'x'"), ("straße", "upper(t) = 'x'"), ("İ", "t ilike 'i%'"), ("ꟓ", "lower(t) = 'x'")],
)
def test_letters_whose_case_is_not_one_letter_are_refused_where_they_are_met(text: str, where: str) -> None:
    table = pa.table({"t": ["plain", "Élan, ЖУК, 日本, 😀", None, text]})

    with pytest.raises(Unsupported, match="upper or lower case"):
        kept(where, table)
    assert kept(where, table.slice(0, 3)) == []
    assert kept(f"t <> '{text}' and {where}", table) == []


@pytest.mark.parametrize("part", ["year", "month", "dayofyear", "quarter"])
def test_dates_that_arrow_cannot_take_apart_are_refused_where_they_are_met(part: str) -> None:
    far = pa.array([2**31 - 1, 0, None], pa.int32()).cast(pa.date32())
    times = pa.array([-(2**63), 0, None], pa.int64()).cast(pa.timestamp("us", "UTC"))

    for values in (far, times):
        table = pa.table({"t": values})
        with pytest.raises(Unsupported, match="beyond the year"):
            kept(f"{part}(t) > 0", table)
        assert kept(f"{part}(t) > 0", table.slice(1)) == [0]


def test_a_date_that_is_no_timestamp_fails_instead_of_wrapping_around() -> None:
    table = pa.table({"d": pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())})

    with pytest.raises(InvalidRequest, match="overflow"):
        kept("d > timestamp '2024-01-01'", table)
    assert kept("d > date '2024-01-01'", table) == [0]


Kleene = bool | None


@st.composite
def propositions(draw: st.DrawFn, depth: int = 4) -> tuple[str, Any]:
    """A condition over `p` and `q`, and what it is for their values."""
    kind = draw(
        st.sampled_from(["p", "q", "true", "false"] + ["not", "and", "or", "eq", "null", "true?", "if"] * (depth > 0))
    )
    if kind in {"p", "q"}:
        return kind, lambda row: row[kind]
    if kind in {"true", "false"}:
        return kind, lambda _: kind == "true"
    parts = [draw(propositions(depth=depth - 1)) for _ in range(3)]
    (a, f), (b, g), (c, h) = parts
    forms: dict[str, tuple[str, Any]] = {
        "not": (f"NOT ({a})", lambda row: _not(f(row))),
        "and": (f"({a}) AND ({b})", lambda row: _and(f(row), g(row))),
        "or": (f"({a}) OR ({b})", lambda row: _not(_and(_not(f(row)), _not(g(row))))),
        "eq": (f"({a}) <=> ({b})", lambda row: f(row) is g(row)),
        "null": (f"({a}) IS NULL", lambda row: f(row) is None),
        "true?": (f"({a}) IS NOT TRUE", lambda row: f(row) is not True),
        "if": (f"IF({a}, {b}, {c})", lambda row: g(row) if f(row) else h(row)),
    }
    return forms[kind]


def _not(value: Kleene) -> Kleene:
    return None if value is None else not value


def _and(one: Kleene, two: Kleene) -> Kleene:
    if one is False or two is False:
        return False
    return None if None in {one, two} else True


@given(propositions())
def test_logic_is_three_valued(proposition: tuple[str, Any]) -> None:
    where, oracle = proposition
    values: list[Kleene] = [None, True, False]
    rows = [{"p": p, "q": q} for p in values for q in values]
    table = pa.Table.from_pylist(rows, pa.schema([("p", pa.bool_()), ("q", pa.bool_())]))

    assert kept(where, table) == [index for index, row in enumerate(rows) if oracle(row)]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_any_string_is_compared_as_it_is(text: str) -> None:
    from sqlglot import exp

    table = pa.table({"name": [text, text + "x", None]})
    for operator in (exp.EQ, exp.In):
        right = (
            {"expression": exp.Literal.string(text)}
            if operator is exp.EQ
            else {"expressions": [exp.Literal.string(text)]}
        )
        assert kept(operator(this=exp.column("name"), **right).sql(dialect="spark"), table) == [0]


@given(st.text(alphabet="ab%_\\é\n.", max_size=8), st.text(alphabet="ab%_é\n.", max_size=6))
def test_like_is_a_match_of_the_whole_text(text: str, pattern: str) -> None:
    from sqlglot import exp

    regex = "".join({"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern)
    where = exp.Like(this=exp.column("t"), expression=exp.Literal.string(pattern)).sql(dialect="spark")

    assert kept(where, pa.table({"t": [text]})) == ([0] if re.fullmatch(regex, text, re.DOTALL) else [])


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_any_long_is_compared_as_it_is(number: int) -> None:
    table = pa.table({"id": pa.array([number, number ^ 1, None], pa.int64())})

    for where in (f"id = {number}", f"id in ({number})", f"id = {number}.0", f"id <=> '{number}'"):
        if abs(number) < 10**18 or "'" not in where:
            assert kept(where, table) == [0]


@given(st.decimals(min_value=-(10**8), max_value=10**8, places=3), st.decimals(-(10**8) + 1, 10**8 - 1, places=2))
def test_decimals_are_compared_and_added_exactly(literal: Decimal, value: Decimal) -> None:
    table = pa.table({"dec": pa.array([value], pa.decimal128(10, 2))})

    assert kept(f"dec > {literal:f}", table) == ([0] if value > literal else [])
    assert kept(f"dec + {literal:f} = {value + literal:f}", table) == [0]


@given(st.datetimes())
def test_any_time_is_compared_as_it_is(moment: dt.datetime) -> None:
    table = pa.table({"ts": pa.array([moment], pa.timestamp("us", "UTC")), "d": pa.array([moment.date()])})

    assert kept(f"ts = '{moment.isoformat()}' and d = date '{moment.date()}'", table) == [0]
    assert kept(f"cast(ts as date) = d and year(ts) = {moment.year} and second(ts) = {moment.second}", table) == [0]
