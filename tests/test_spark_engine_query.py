"""`--query` with the Spark engine: what SQL it takes, and which versions of the tables it reads."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_export import Exported, export, rows_of
from uc_stage.engines.spark import SparkEngine
from uc_stage.engines.spark.query import Query
from uc_stage.errors import InvalidRequest, NotFound
from uc_stage.exporting.planning import plan_export
from uc_stage.model import ExportRequest, TableRef
from uc_stage.progress import SILENT
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOIN = "SELECT u.id, u.name, sum(b.price) AS spent FROM {users} u JOIN {bought} b ON u.id = b.user GROUP BY ALL"


@pytest.fixture(scope="module")
def engine(spark_remote: str) -> Iterator[SparkEngine]:
    engine = SparkEngine(spark_remote)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def shop(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tables `users` (by name, of 2 versions) and `bought` (by path), the view `looked`, and `shop_plain`."""
    place = tmp_path_factory.mktemp("shop")
    spark_session.sql(
        f"CREATE TABLE users USING delta LOCATION '{place}/users' AS SELECT id, 'u' AS name FROM range(4)"
    )
    spark_session.sql("INSERT INTO users VALUES (9, 'late')")
    path = f"{place}/bought ü"
    spark_session.range(20).selectExpr("id % 5 AS user", "CAST(id AS INT) AS price").write.format("delta").save(path)
    spark_session.sql("CREATE VIEW looked AS SELECT * FROM users WHERE id < 2")
    spark_session.sql(f"CREATE TABLE shop_plain USING parquet LOCATION '{place}/plain' AS SELECT 1 AS id")
    return {"users": "users", "bought": f"delta.`{path}`"}


def query(engine: SparkEngine, dest: Path, sql: str, **asked: Any) -> Exported:
    return export(engine, "query", dest, query=sql, files=1, **asked)


def test_a_join_is_exported_with_the_versions_of_its_tables(
    engine: SparkEngine, shop: dict[str, str], tmp_path: Path
) -> None:
    sql = JOIN.format(**shop)

    done = query(
        engine, tmp_path / "out", f" {sql} ;\n", where="spent > 30", columns=("SPENT", "id"), order_by=("id",), limit=2
    )

    assert rows_of(done) == {"spent": [34, 38], "id": [1, 2]}
    source = json.loads((tmp_path / "out/.uc_stage/manifest.json").read_text("utf-8"))["source"]
    assert (source["query"], source["table"], source["version"]) == (sql, "query", 0)
    assert source["tables"] == [f"{shop['bought']}@v0", "users@v1"]
    assert [field.type for field in done.snapshot.schema] == ["int64", "int64"]


def test_a_table_that_changes_under_the_run_is_read_as_it_was(
    engine: SparkEngine, spark_session: Any, tmp_path: Path
) -> None:
    spark_session.sql(f"CREATE TABLE moving USING delta LOCATION '{tmp_path}/moving' AS SELECT id FROM range(3)")
    asked = ExportRequest(TableRef("query"), str(tmp_path / "out"), "spark", query="SELECT moving.id FROM moving")
    snapshot = engine.resolve(asked)
    spark_session.sql("INSERT INTO moving VALUES (77)")

    plan = plan_export(asked, engine, "asked for", open_folder(asked.dest), SILENT)

    assert engine.count(snapshot, plan.layout) == {"train": 3}
    assert (snapshot.source.tables, plan.snapshot.source.tables) == (("moving@v0",), ("moving@v1",))
    assert rows_of(query(engine, tmp_path / "old", "SELECT id FROM moving VERSION AS OF 0"))["id"] == [0, 1, 2]


def test_what_has_no_version_is_told_by_its_bare_name(
    engine: SparkEngine, shop: dict[str, str], tmp_path: Path
) -> None:
    sql = "WITH users AS (SELECT id FROM looked UNION ALL SELECT id FROM shop_plain) SELECT id FROM users"

    done = query(engine, tmp_path / "out", sql)

    assert rows_of(done)["id"] == [0, 1, 1]
    assert done.snapshot.source.tables == ("looked", "shop_plain")


def test_rows_of_a_query_are_ordered_and_split_by_their_values(
    engine: SparkEngine, shop: dict[str, str], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"splits": (("train", 0.5), ("test", 0.5)), "split_by": "user", "order_by": ("price desc",)}

    done = query(engine, tmp_path / "out", f"SELECT * FROM {shop['bought']}", equal_rows=True, **asked)

    import pyarrow.parquet as pq

    splits = [pq.read_table(os.path.join(done.dest, name)).to_pydict() for name in done.names]
    assert sum(len(split["user"]) for split in splits) == 20
    assert not set(splits[0]["user"]) & set(splits[1]["user"])
    assert all(split["price"] == sorted(split["price"], reverse=True) for split in splits)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"sample": 0.5}, "`--sample`"),
        ({"shuffle": True}, "`--shuffle`"),
        ({"splits": (("train", 1.0),)}, "--split-by COLUMN"),
        ({"splits": (("train", 1.0),), "split_by": "id", "limit": 3}, "--order-by COLUMN"),
        ({"limit": 3}, "--order-by COLUMN"),
        ({"equal_rows": True}, "--order-by COLUMN"),
        ({"drop_remainder": True}, "`--drop-remainder`"),
    ],
)
def test_what_needs_a_rows_place_is_refused_for_a_query(flags: Any, words: str) -> None:
    asked = ExportRequest(TableRef("query"), "out", "spark", query="SELECT 1 AS id", **flags)
    with pytest.raises(InvalidRequest) as caught:
        SparkEngine("sc://127.0.0.1:1").resolve(asked)
    assert words in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DROP TABLE users", "not one SELECT"),
        ("INSERT INTO users SELECT 1", "not one SELECT"),
        ("FROM users INSERT INTO other SELECT *", "not one SELECT"),
        ("SHOW TABLES", "not one SELECT"),
        ("SELECT 1 AS a; SELECT 2 AS b", "not one SELECT"),
        ("", "not one SELECT"),
        ("SELECT * INTO other FROM users", "changes tables"),
        ("SELECT a FROM", "does not parse"),
        ("SELECT 'a", "open quote"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "nested too deeply"),
        ("SELECT id, rand() AS r FROM users", "RAND()"),
        ("SELECT reflect('java.lang.System', 'nanoTime') AS t FROM users", "changes from run to run"),
        ("SELECT java_method('java.lang.System', 'nanoTime') AS t", "changes from run to run"),
        ("SELECT id FROM users WHERE at < now()", "changes from run to run"),
        ("SELECT id FROM users TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("SELECT id + 1 FROM users", "without a name: `id + 1`"),
        ("SELECT id FROM users TIMESTAMP AS OF '2026-01-01'", "no version"),
    ],
)
def test_sql_that_is_no_lasting_selection_is_refused(sql: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Query.parse(sql)
    assert words in caught.value.message
    assert caught.value.hint
    assert capfd.readouterr().err == ""


# Each with `§` where the version is put.
PINNED = {
    "SELECT * FROM a.`b c`.t§ AS x": ["a.`b c`.t@v7"],
    "SELECT 'ü€' AS x FROM t§, T2§ y": ["T2@v7", "t@v7"],
    "SELECT * FROM t VERSION AS OF 3 JOIN t§ u": ["t@v3", "t@v7"],
    "WITH t AS (SELECT * FROM t§) SELECT * FROM t": ["t@v7"],
    "WITH RECURSIVE t AS (SELECT * FROM t) SELECT * FROM t": [],
    "SELECT (WITH i AS (SELECT 1 AS x) SELECT x FROM i) AS m FROM i§": ["i@v7"],
    "SELECT id FROM t§ WHERE EXISTS (SELECT 1 FROM u§) -- ok": ["t@v7", "u@v7"],
    "SELECT id FROM range(5), explode(array(1)), inline_outer(array(struct(1))), STACK(1, 1)": [],
    "SELECT id FROM range§ JOIN range(4) USING (id)": ["range@v7"],
    "SELECT * FROM a.explode§, stack§, `inline`§": ["`inline`@v7", "a.explode@v7", "stack@v7"],
    "WITH range AS (SELECT 1 AS id) SELECT * FROM range": [],
    "SELECT * FROM `t@v1`§": ["`t@v1`@v7"],
    "SELECT * FROM table_changes('t', 0)": ["table_changes"],
}


@pytest.mark.parametrize("marked", PINNED)
def test_each_table_that_a_query_reads_is_pinned_where_it_is_named(marked: str) -> None:
    pinned, tables = Query.parse(marked.replace("§", "")).pinned(lambda _: 7)

    assert pinned == f"SELECT * FROM (\n{marked.replace('§', ' VERSION AS OF 7')}\n)"
    assert list(tables) == PINNED[marked]


def test_a_table_without_versions_never_reads_as_pinned() -> None:
    _, tables = Query.parse("SELECT * FROM `t@v1`").pinned(lambda _: None)

    assert [re.search(r"@v\d+$", table) for table in tables] == [None]


def test_a_table_named_as_a_function_is_read_in_its_version(
    engine: SparkEngine, spark_session: Any, tmp_path: Path
) -> None:
    spark_session.sql(f"CREATE TABLE stack USING delta LOCATION '{tmp_path}/stack' AS SELECT id FROM range(3)")

    done = query(engine, tmp_path / "out", "SELECT id FROM stack")
    spark_session.sql("INSERT INTO stack VALUES (7)")
    again = query(engine, tmp_path / "out", "SELECT id FROM stack")

    assert (done.snapshot.source.tables, again.snapshot.source.tables) == (("stack@v0",), ("stack@v1",))
    assert rows_of(again)["id"] == [0, 1, 2, 7]


@pytest.fixture(scope="module")
def wide(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """A table of 20 000 rows in one file, with its bytes."""
    path = str(tmp_path_factory.mktemp("tables") / "wide")
    spark_session.range(0, 20_000, 1, 1).selectExpr("id", "uuid() AS text").write.format("delta").save(path)
    return path, sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path) if name[-1] == "t")


@pytest.mark.parametrize(
    ("sql", "asked", "least", "most"),
    [
        ("SELECT * FROM {}", {}, 4, 5),
        ("SELECT * FROM {}", {"where": "id < 10000"}, 2, 3),
        ("SELECT * FROM {0} UNION ALL SELECT * FROM {0}", {}, 8, 9),
        ("SELECT a.*, b.id AS of FROM {} a JOIN range(3) b ON true", {}, 12, 14),
        ("SELECT id % 2 AS k, count(*) AS n FROM {} GROUP BY ALL", {}, 1, 1),
        ("SELECT id FROM range(0, 20000)", {}, 2, 3),
        ("SELECT id FROM {} WHERE false", {}, 1, 1),
    ],
)
def test_files_of_a_query_are_planned_by_its_rows_and_the_sizes_of_its_tables(
    engine: SparkEngine, wide: tuple[str, int], sql: str, asked: dict[str, Any], least: int, most: int, tmp_path: Path
) -> None:
    path, size = wide
    text = sql.format(f"delta.`{path}`")
    request = ExportRequest(TableRef("query"), str(tmp_path), "spark", query=text, file_bytes=size // 4, **asked)

    plan = plan_export(request, engine, "asked for", open_folder(request.dest), SILENT)

    assert least <= plan.files <= most


def test_a_query_over_a_view_is_planned_by_what_the_view_reads(
    engine: SparkEngine, spark_session: Any, wide: tuple[str, int], tmp_path: Path
) -> None:
    path, size = wide
    spark_session.sql(f"CREATE VIEW seen AS SELECT * FROM delta.`{path}`")
    asked = ExportRequest(TableRef("query"), str(tmp_path), "spark", query="SELECT * FROM seen", file_bytes=size // 4)

    plan = plan_export(asked, engine, "asked for", open_folder(asked.dest), SILENT)

    assert 4 <= plan.files <= 5
    assert plan.snapshot.table_rows is None


def test_a_size_that_spark_does_not_know_is_guessed_by_the_columns(engine: SparkEngine, spark_session: Any) -> None:
    made = "range(1000000000000000)"
    spark_session.sql(f"CREATE VIEW vast AS SELECT a.id FROM {made} a CROSS JOIN {made} b CROSS JOIN {made} c")

    snapshot = engine.resolve(ExportRequest(TableRef("query"), "out", "spark", query="SELECT id, id AS b FROM vast"))

    assert (snapshot.bytes, snapshot.table_rows) == (32, 1)


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        ("SELECT id FROM no_such_table", NotFound, "no_such_table"),
        ("SELECT id, ID FROM users", InvalidRequest, "two columns named `ID`"),
        ("SELECT nothing FROM users", InvalidRequest, "nothing"),
    ],
)
def test_a_query_that_spark_cannot_answer_is_refused(
    engine: SparkEngine, shop: dict[str, str], sql: str, kind: Any, words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        engine.resolve(ExportRequest(TableRef("query"), "out", "spark", query=sql))
    assert caught.value.hint
    assert "\n" not in caught.value.message
