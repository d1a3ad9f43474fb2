from __future__ import annotations

from typing import Any

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.engines.datafusion import to_datafusion
from uc_stage.engines.predicate import checked, chosen
from uc_stage.errors import InvalidRequest, Unsupported

KINDS: dict[str, Any] = {
    "Id": "long", "n": "integer", "name": "string", "ts": "timestamp", "ntz": "timestamp_ntz", "d": "date",
    "f": "double", "g": "float", "dec": "decimal(10,2)", "wide": "decimal(38,0)", "ok": "boolean", "bin": "binary",
    'odd "name"': "long",
    "s": {"type": "struct", "fields": [{"name": "It's", "type": "integer", "nullable": True, "metadata": {}}]},
    "l": {"type": "array", "elementType": "long", "containsNull": True}, "v": "variant",
}  # fmt: skip
SCHEMA = {
    "type": "struct",
    "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in KINDS.items()],
}
NAMES = list(KINDS)


def local(where: str) -> str:
    return to_datafusion(checked(where, NAMES), SCHEMA)


@pytest.mark.parametrize(
    ("where", "canonical"),
    [
        ("id=1", "`Id` = 1"),
        ('ID == 1 and NAME <> "it\'s"', r"`Id` = 1 AND `name` <> 'it\'s'"),
        ("s.x > 1 -- a note", "`s`.`x` > 1"),
        ("exists(l, x -> x > id)", "EXISTS(`l`, `x` -> `x` > `Id`)"),
        ("ts > timestamp '2024-01-01'", "`ts` > CAST('2024-01-01T00:00:00Z' AS TIMESTAMP)"),
        ("ts > timestamp '2024-01-01 02:00:00.5+02:00'", "`ts` > CAST('2024-01-01T00:00:00.500000Z' AS TIMESTAMP)"),
        ("ntz > timestamp_ntz '2024-01-01 12:00'", "`ntz` > CAST('2024-01-01T12:00:00' AS TIMESTAMP_NTZ)"),
        ("d > date '2024-01-31'", "`d` > CAST('2024-01-31' AS DATE)"),
        (r"name rlike '^a\\d'", r"`name` RLIKE '^a\\d'"),
        ("id is not null", "NOT `Id` IS NULL"),
    ],
)
def test_one_predicate_has_one_canonical_form(where: str, canonical: str) -> None:
    assert checked(where, NAMES) == canonical
    assert checked(canonical, NAMES) == canonical


@pytest.mark.parametrize(
    ("where", "says", "hint"),
    [
        ("naem = 'a'", "the column `naem`", "`name`"),
        ("zzzz = 'a'", "the column `zzzz`", "`Id`, `n`"),
        ("t.id = 1", "the column `t`", ""),
        ("id in (select 1)", "a subquery", ""),
        ("exists (select 1)", "a subquery", ""),
        ("count(*) > 1", "an aggregate", ""),
        ("explode(l) > 1", "an aggregate or a generator", ""),
        ("sum(id) over () > 1", "a window", ""),
        ("id = :p", "a parameter", ""),
        ("id = ?", "a parameter", ""),
        ("*", "`*`", ""),
        ("id = 1; drop table x", "`drop`", "one condition"),
        ("id = 1 union select 1", "`union`", ""),
        ("id = 1 order by id", "`order by`", ""),
        ("id =", "`=`", ""),
        ("", "does not parse", ""),
        ("name = 'a", "open quote", ""),
        ("current_timestamp() > ts", "changes from run to run", "TIMESTAMP"),
        ("now() > ts", "changes from run to run", ""),
        ("rand() > 0.5", "changes from run to run", ""),
        ("name = 'it''s'", "two strings in a row", r"\'"),
        ("ts > timestamp '2024-13-01'", "`2024-13-01` as a timestamp", "2026-01-31"),
        ("ts > timestamp '0001-01-01 00:00:00+10:00'", "as a timestamp", ""),
        ("ts > timestamp '2024-01-01 00:00:00 Europe/Berlin'", "as a timestamp", "+02:00"),
        ("d > date '2024-01-01 12:00:00'", "as a date", ""),
        ("ntz > timestamp_ntz '2024-01-01 12:00:00Z'", "as a timestamp_ntz", ""),
        ("(" * 5000 + "id" + ")" * 5000, "nested too deeply", "IN"),
    ],
)
def test_what_does_not_decide_on_one_row_by_its_columns_alone_is_refused(where: str, says: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(where, NAMES)

    assert says in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "where",
    [
        "name rlike 'a'", "name ilike 'a'", "name like 'a' escape '/'", "name like name", r"name like 'a\\b'",
        "size(l) = 1", "l = l", "l[0] = 1", "v is not null and v = v", "name = 5", "id = '5'", "ok = 1", "bin = 'a'",
        "ts > ntz", "ts > d", "d > timestamp '2024-01-01'", "d = '2024-01-01 12:00:00'", "d = 'today'",
        "ntz = '2024-01-01T00:00:00Z'", "id + 1 > 0", "-id > 0", "n * n * n > 0", "id div -1 = 1", "n / 0 = 1",
        "n % n = 0", "f div 2 = 1", "dec + 1 > 2", "n * 0.5 > 1", "dec > 1.5D", "dec > f", "g = n", "g = 16777217",
        "wide = 0.5", "f > 1e400", "f = f + g", "id = null", "id in (1, null)", "id between null and 3",
        "cast(name as int) = 1", "cast('x' as date) = d", "case when ok then true else false end", "ok is null is 5",
        "-dec > 0", "length(id) = 1", "isnan(id)", "id in ()", "id = 99999999999999999999999999999999999999999",
    ],
)  # fmt: skip
def test_the_local_engine_refuses_what_it_might_run_otherwise_than_spark(where: str) -> None:
    with pytest.raises((Unsupported, InvalidRequest)) as caught:
        local(where)

    assert caught.value.hint


@pytest.mark.parametrize(
    "where", ["id", "name", "null", "id and ok", "not id", "s.nope = 1", "name.x = 1", "l.x.y = 1"]
)
def test_what_is_no_condition_over_columns_that_are_there_is_an_invalid_request(where: str) -> None:
    with pytest.raises(InvalidRequest):
        local(where)


def test_deep_nesting_is_refused_by_the_translation_too() -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        to_datafusion(" AND ".join(["ok"] * 3000), SCHEMA)


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ("ID = 1", '("Id" = 1)'),
        ('`odd "name"` = 1', '("odd ""name""" = 1)'),
        ("s.`it's` = 1", "(\"s\"['It''s'] = 1)"),
        ('name = "a\'b"', "(\"name\" = 'a''b')"),
        ("name = r'a\\b'", "(\"name\" = 'a\\b')"),
        ("id = 1L", '("Id" = CAST(1 AS BIGINT))'),
        (
            "f = -1.5D",
            "((nanvl(CAST(\"f\" AS DOUBLE), CAST('NaN' AS DOUBLE)) + CAST('0.0' AS DOUBLE)) = CAST('-1.5' AS DOUBLE))",
        ),
        ("dec = -.5", "(\"dec\" = CAST(CAST('-0.5' AS DECIMAL(1,1)) AS DECIMAL(10,2)))"),
    ],
)
def test_names_and_values_are_quoted_for_datafusion(where: str, sql: str) -> None:
    assert local(where) == sql


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_any_string_reaches_both_engines_as_it_is(text: str) -> None:
    from sqlglot import exp

    canonical = checked(exp.column("name").eq(exp.Literal.string(text)).sql(dialect="spark"), NAMES)

    read = sqlglot.parse_one(to_datafusion(canonical, SCHEMA), read="postgres").find(exp.Literal)
    assert read is not None
    assert read.this == text


@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_any_long_reaches_datafusion_as_it_is(number: int) -> None:
    assert local(f"id = {number}").endswith(f"= {number})")


def test_columns_are_chosen_in_the_tables_case_and_once_each() -> None:
    assert chosen(["NAME", "id"], NAMES) == ("name", "Id")
    for asked in (["id", "ID"], []):
        with pytest.raises(InvalidRequest, match="twice, or none"):
            chosen(asked, NAMES)
    with pytest.raises(InvalidRequest, match="`nmae`"):
        chosen(["nmae"], NAMES)
