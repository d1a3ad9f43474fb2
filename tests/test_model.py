from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.errors import InvalidRequest
from uc_stage.model import TableRef


@pytest.mark.parametrize(
    ("text", "version", "rest"),
    [
        ("main.sales.orders@v12", 12, "main.sales.orders"),
        ("/tables/a@v0", 0, "/tables/a"),
        ("s3://bucket/a@b@v3", 3, "s3://bucket/a@b"),
        ("/tables/a@v", None, "/tables/a@v"),
        ("/tables/a@v1/b", None, "/tables/a@v1/b"),
    ],
)
def test_a_version_at_the_end_pins_the_table(text: str, version: int | None, rest: str) -> None:
    table = TableRef.parse(text)

    assert (table.text, table.version) == (rest, version)
    assert str(table) == text


@pytest.mark.parametrize(
    ("text", "version", "timestamp", "says"),
    [
        ("a@v1", 2, None, "both pin"),
        ("a@v1", None, "2026-01-01", "a version and `--timestamp`"),
        ("a", 1, "2026-01-01", "a version and `--timestamp`"),
        ("a", -1, None, "negative"),
        (" ", None, None, "empty"),
    ],
)
def test_a_table_pinned_twice_or_not_at_all_named_is_refused(
    text: str, version: int | None, timestamp: str | None, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        TableRef.parse(text, version, timestamp)

    assert caught.value.hint


@pytest.mark.parametrize("text", ["orders", "sales.orders", "main.sales.orders", "`my cat`.sales.`or.ders`"])
def test_one_to_three_parts_are_a_name(text: str) -> None:
    assert TableRef(text).is_name


@pytest.mark.parametrize("text", ["./orders", "/a/b", "s3://b/a", "a.b.c.d", "~/t", "a b", "a..b", "dbfs:/x"])
def test_a_path_or_url_is_no_name(text: str) -> None:
    assert not TableRef(text).is_name


@given(st.text(min_size=1).filter(str.strip), st.integers(min_value=0) | st.none())
def test_what_a_table_prints_reads_back_as_the_same_table(text: str, version: int | None) -> None:
    table = TableRef.parse(text)

    pinned = TableRef(table.text, version if table.version is None else table.version)
    assert TableRef.parse(str(pinned)) == pinned
