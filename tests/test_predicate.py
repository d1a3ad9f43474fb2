from __future__ import annotations

import pytest

from uc_stage.engines.predicate import checked, chosen
from uc_stage.errors import InvalidRequest

NAMES = ["Id", "n", "name", "ts", "ntz", "d", "s", "l"]


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


def test_columns_are_chosen_in_the_tables_case_and_once_each() -> None:
    assert chosen(["NAME", "id"], NAMES) == ("name", "Id")
    for asked in (["id", "ID"], []):
        with pytest.raises(InvalidRequest, match="twice, or none"):
            chosen(asked, NAMES)
    with pytest.raises(InvalidRequest, match="`nmae`"):
        chosen(["nmae"], NAMES)
