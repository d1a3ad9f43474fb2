"""The Spark engine against a real server: what it writes."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark_export import export, leftovers, rows_of
from uc_stage.engines import spark
from uc_stage.engines.spark import SparkEngine
from uc_stage.engines.spark import session as spark_connection
from uc_stage.engines.spark import table as spark_table
from uc_stage.errors import InvalidRequest, NotFound, StageError, Unsupported
from uc_stage.model import ExportRequest, TableRef

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def engine(spark_remote: str) -> Iterator[SparkEngine]:
    engine = SparkEngine(spark_remote)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def trips(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Versions 0 to 3: made, 6 rows inserted, one more, and one deleted by a deletion vector; also named `trips`."""
    path = str(tmp_path_factory.mktemp("tables") / "trips")
    spark_session.sql(
        f"""CREATE TABLE trips (Id BIGINT NOT NULL, `Fare.in.€` DECIMAL(20, 3), at TIMESTAMP, local TIMESTAMP_NTZ,
        stops ARRAY<STRUCT<stop: STRING, n: INT>>, tags MAP<STRING, INT>, zone STRING,
        driver STRUCT<name: STRING NOT NULL, cars: ARRAY<INT>> NOT NULL)
        USING delta PARTITIONED BY (zone) LOCATION '{path}' TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"""
    )
    insert = """INSERT INTO trips SELECT id, id * 1.5, TIMESTAMP'2024-05-01 12:00:00Z' + make_interval(0, 0, 0, id),
        TIMESTAMP_NTZ'2024-05-01 12:00:00.000001', array(named_struct('stop', 'a', 'n', CAST(id AS INT)), NULL),
        map('k', CAST(id AS INT)), element_at(array('north', NULL, 'sö=ü/%d x'), CAST(id % 3 AS INT) + 1),
        named_struct('name', concat('d', id), 'cars', array(1, 2)) FROM range({}, {}, 1, 1)"""
    spark_session.sql(insert.format(0, 6))
    spark_session.sql(insert.format(6, 7))
    spark_session.sql("DELETE FROM trips WHERE Id = 3")
    return path


def test_a_table_comes_out_the_same_by_name_and_by_path(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    by_name = export(engine, "trips", tmp_path / "name")
    by_path = export(engine, trips, tmp_path / "path")
    in_full = engine.resolve(ExportRequest(TableRef.parse("spark_catalog.`default`.trips"), "out"))

    assert sorted(rows_of(by_name)["Id"]) == [0, 1, 2, 4, 5, 6]
    assert rows_of(by_path) == rows_of(by_name)
    assert in_full.schema == by_name.snapshot.schema
    assert by_path.snapshot.schema == by_name.snapshot.schema
    assert by_path.snapshot.source.table_id == by_name.snapshot.source.table_id
    assert (by_path.snapshot.source.table, by_path.snapshot.source.version) == (trips, 3)
    assert by_name.snapshot.bytes is not None
    assert by_name.snapshot.bytes > 0


def test_values_do_not_depend_on_the_time_zone_of_the_server(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    row = rows_of(export(engine, trips, tmp_path / "out", where="Id = 5"))
    assert row == {
        "Id": [5],
        "Fare.in.€": [Decimal("7.500")],
        "at": [dt.datetime(2024, 5, 6, 12, tzinfo=UTC)],
        "local": [dt.datetime(2024, 5, 1, 12, 0, 0, 1)],  # noqa: DTZ001 - a column without a zone
        "stops": [[{"stop": "a", "n": 5}, None]],
        "tags": [[("k", 5)]],
        "zone": ["sö=ü/%d x"],
        "driver": [{"name": "d5", "cars": [1, 2]}],
    }
    assert rows_of(export(engine, trips, tmp_path / "at", where="at = '2024-05-06 12:00:00'"))["Id"] == [5]


def test_files_are_plain_parquet_of_the_recorded_schema(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    done = export(engine, trips, tmp_path / "out", files=2, compression="snappy")

    assert sorted(os.listdir(done.dest)) == [".uc_stage", *sorted(done.names)]
    assert os.listdir(os.path.join(done.dest, ".uc_stage")) == ["manifest.json"]
    assert [name[:20] for name in done.names] == ["train-00000-of-00002", "train-00001-of-00002"]
    for footer in done.footers:
        assert footer.schema == done.snapshot.schema
        assert footer.compression == {"snappy"}
        assert all(group.rows for group in footer.row_groups)
    stored = str(pq.read_metadata(os.path.join(done.dest, done.names[0])).schema)
    required = [line.split()[-1] for line in stored.splitlines() if line.strip().startswith("required ")]
    assert required == ["{", "(String);"], stored  # the message itself and the map's key, by Parquet's rule


def test_a_version_and_a_time_pin_the_table(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    first = export(engine, trips, tmp_path / "1", version=1)
    assert sorted(rows_of(first)["Id"]) == [0, 1, 2, 3, 4, 5]
    committed = first.snapshot.source.timestamp
    assert committed is not None

    for text in (committed, committed.replace("+00:00", "Z")):
        again = engine.resolve(ExportRequest(TableRef.parse("trips", timestamp=text), str(tmp_path)))
        assert again.source == first.snapshot.source.__class__("trips", first.snapshot.source.table_id, 1, committed)


@pytest.mark.parametrize(
    ("pin", "hint"),
    [
        ({"version": 4}, "its newest is 3"),
        ({"timestamp": "1999-01-01"}, "go from version 0"),
        ({"timestamp": "2999-01-01"}, "to version 3"),
    ],
)
def test_a_version_that_is_not_there_is_not_found(engine: SparkEngine, trips: str, pin: Any, hint: str) -> None:
    with pytest.raises(NotFound) as caught:
        engine.resolve(ExportRequest(TableRef.parse("trips", **pin), "out"))
    assert hint in str(caught.value.hint)


def test_a_time_that_is_none_is_refused(engine: SparkEngine, trips: str) -> None:
    with pytest.raises(InvalidRequest, match="yesterday"):
        engine.resolve(ExportRequest(TableRef.parse(trips, timestamp="yesterday"), "out"))


def test_columns_rows_and_limit_are_chosen_in_spark(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    done = export(engine, trips, tmp_path / "a", columns=("ZONE", "id", "fare.in.€"), where="ID >= 4 AND zone IS NULL")
    assert rows_of(done) == {"zone": [None], "Id": [4], "Fare.in.€": [Decimal("6.000")]}
    assert done.snapshot.source.columns == ("zone", "Id", "Fare.in.€")
    assert [field.name for field in done.snapshot.schema] == ["zone", "Id", "Fare.in.€"]
    assert export(engine, trips, tmp_path / "b", limit=2).rows == 2


@pytest.mark.parametrize("flags", [{"columns": ("Id", "zona")}, {"where": "zona = 'north'"}])
def test_an_unknown_column_is_refused_with_the_nearest(engine: SparkEngine, trips: str, flags: Any) -> None:
    with pytest.raises(InvalidRequest, match="`zona`") as caught:
        engine.resolve(ExportRequest(TableRef.parse(trips), "out", **flags))
    assert "did you mean `zone`?" in str(caught.value.hint)


def test_a_predicate_of_the_wrong_type_is_refused_before_any_write(engine: SparkEngine, trips: str) -> None:
    with pytest.raises(InvalidRequest, match="--where"):
        engine.resolve(ExportRequest(TableRef.parse(trips), "out", where="tags > 3"))


def test_a_predicate_that_fails_on_a_row_is_the_users_and_leaves_nothing(
    engine: SparkEngine, trips: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be cast"):
        export(engine, trips, tmp_path / "out", where="CAST(zone AS INT) = 1")
    assert leftovers(tmp_path / "out") == []
    assert capfd.readouterr().err == ""


def test_no_rows_make_one_file_that_holds_the_schema_alone(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    done = export(engine, trips, tmp_path / "out", files=3, version=0)
    assert [name[:20] for name in done.names] == ["train-00000-of-00001"]
    assert (done.rows, done.footers[0].rows, done.footers[0].row_groups) == (0, 0, ())
    assert done.footers[0].schema == done.snapshot.schema


def test_no_file_is_without_rows(engine: SparkEngine, trips: str, tmp_path: Path) -> None:
    done = export(engine, trips, tmp_path / "out", files=4, where="Id = 1")
    assert [name[:20] for name in done.names] == ["train-00000-of-00001"]
    assert rows_of(done)["Id"] == [1]


def test_files_are_as_many_as_planned_however_spark_reads_the_table(
    engine: SparkEngine, spark_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    spark_session.range(0, 3000, 1, 3).write.format("delta").save(path)
    for files in (1, 2, 5):
        done = export(engine, path, tmp_path / f"out {files}", files=files)
        assert (len(done.names), done.rows) == (files, 3000)
    # As where the table's files are much less alike than it seems.
    monkeypatch.setattr(spark, "_likely_partitions", lambda *_: 14)
    assert len(export(engine, path, tmp_path / "more", files=7).names) == 7


@pytest.mark.parametrize(
    ("files", "megabytes", "partitions"), [(4, 92, 4), (4, 131, 5), (100, 12, 13), (1, 1024, 8), (1, 1, 1)]
)
def test_partitions_are_foreseen_as_spark_makes_them_of_files_of_one_size(
    files: int, megabytes: int, partitions: int
) -> None:
    assert spark._likely_partitions(files * megabytes * 1024**2, files) == partitions


def test_few_rows_fill_every_file_that_was_planned(engine: SparkEngine, spark_session: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark_session.range(0, 8, 1, 4).write.format("delta").save(path)

    done = export(engine, path, tmp_path / "out", files=None, world_size=4, workers=2, where="id >= 0")

    assert [footer.rows for footer in done.footers] == [1] * 8
    assert rows_of(done)["id"] == list(range(8))


def test_an_older_version_is_planned_by_its_own_size(engine: SparkEngine, spark_session: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark_session.range(0, 20_000, 1, 1).selectExpr("id", "uuid() AS text").write.format("delta").save(path)
    (written,) = [os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet")]
    size = os.path.getsize(written)
    spark_session.range(0, 9, 1, 1).selectExpr("id", "'' AS text").write.format("delta").mode("overwrite").save(path)

    done = export(engine, path, tmp_path / "out", version=0, files=None, file_bytes=size // 4)

    assert done.snapshot.bytes == pytest.approx(size, rel=0.1)
    assert 4 <= len(done.names) <= 5


def test_rows_that_a_server_does_not_tell_apart_are_refused(
    spark_remote: str, spark_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    spark_session.range(0, 3000, 1, 6).write.format("delta").save(path)
    # With sizes of its own, Spark reads several small files as one piece.
    monkeypatch.setattr(spark_table, "_UNSPLIT", {"spark.sql.files.maxPartitionBytes": "134217728"})
    engine = SparkEngine(spark_remote)
    try:
        with pytest.raises(Unsupported, match=r"cannot be told apart .*`--shuffle`") as caught:
            export(engine, path, tmp_path / "out", shuffle=True)
    finally:
        engine.close()
    assert "maxPartitionBytes" in str(caught.value.hint)
    assert leftovers(tmp_path / "out") == []


def test_row_groups_follow_the_asked_size(engine: SparkEngine, spark_session: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark_session.range(0, 20_000, 1, 1).selectExpr("id", "uuid() AS text").write.format("delta").save(path)
    small = export(engine, path, tmp_path / "small", files=1, row_group_bytes=200 * 1024, compression="none")
    whole = export(engine, path, tmp_path / "whole", files=1, compression="none")
    assert len(whole.footers[0].row_groups) == 1
    assert len(small.footers[0].row_groups) > 2
    assert sorted(rows_of(small)["id"]) == list(range(20_000))


def test_column_mapping_gives_the_tables_names(engine: SparkEngine, spark_session: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark_session.sql(
        f"CREATE TABLE delta.`{path}` (a INT, b STRUCT<x: INT, y: INT>, gone INT) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark_session.sql(f"INSERT INTO delta.`{path}` VALUES (1, named_struct('x', 2, 'y', 3), 4)")
    spark_session.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN a TO `new, name`")
    spark_session.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN b.x TO z")
    spark_session.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN gone")
    done = export(engine, path, tmp_path / "out")
    assert rows_of(done) == {"new, name": [1], "b": [{"z": 2, "y": 3}]}
    assert pq.read_schema(os.path.join(done.dest, done.names[0])).field(0).metadata is None


def test_partition_values_come_out_as_real_columns(engine: SparkEngine, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    days = [dt.date(2024, 2, 29), None]
    moments = [dt.datetime(2024, 2, 29, 23, 59, 59, 5, tzinfo=UTC), None]
    table = pa.table({
        "day": pa.array(days, pa.date32()), "at": pa.array(moments, pa.timestamp("us", "UTC")),
        "amount": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), "n": [1, 2],
    })  # fmt: skip
    write_deltalake(str(tmp_path / "table"), table, partition_by=["day", "at", "amount"])
    done = export(engine, str(tmp_path / "table"), tmp_path / "out", files=1)
    got = rows_of(done)
    assert sorted(zip(got["n"], got["day"], got["at"], got["amount"], strict=True)) == [
        (1, days[0], moments[0], Decimal("1.50")), (2, None, None, None),
    ]  # fmt: skip
    assert list(got) == ["day", "at", "amount", "n"]


def test_a_path_may_hold_any_character(
    engine: SparkEngine, spark_session: Any, trips: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "we`ird 'x' {a,b} [c]* ü+&%20"
    shutil.copytree(trips, tmp_path / name)
    done = export(engine, str(tmp_path / name), tmp_path / f"out {name}")
    assert sorted(rows_of(done)["Id"]) == [0, 1, 2, 4, 5, 6]
    monkeypatch.chdir(tmp_path)
    assert engine.resolve(ExportRequest(TableRef.parse(f"./{name}"), "out")).source == done.snapshot.source


def test_a_name_is_never_read_as_sql(engine: SparkEngine, spark_session: Any, trips: str) -> None:
    for name in ("trips;DROP-TABLE-trips", "trips--", "`trips; DROP TABLE trips`"):
        with pytest.raises(NotFound):
            engine.resolve(ExportRequest(TableRef.parse(name), "out"))
    assert spark_session.table("trips").schema.names


def test_what_is_no_delta_table_is_refused(engine: SparkEngine, spark_session: Any, trips: str, tmp_path: Path) -> None:
    plain = str(tmp_path / "plain")
    spark_session.range(1).write.parquet(plain)
    spark_session.sql(f"CREATE TABLE plain USING parquet LOCATION '{plain}'")
    spark_session.sql("CREATE OR REPLACE VIEW look AS SELECT * FROM trips")
    for text, kind, words in (
        ("no_such_table", NotFound, "no_such_table"),
        ("no_schema.no_table", NotFound, "no_table"),
        ("a.b.c", NotFound, "`a.b.c`"),
        (str(tmp_path / "nothing"), NotFound, "does not exist"),
        (plain, NotFound, "doesn't exist"),
        ("plain", Unsupported, "format `parquet`"),
        ("look", Unsupported, "view"),
    ):
        with pytest.raises(kind, match=words) as caught:
            engine.resolve(ExportRequest(TableRef.parse(text), "out"))
        assert caught.value.hint
        assert "\n" not in caught.value.message


def test_a_feature_of_the_future_is_refused(engine: SparkEngine, tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    schema = r"{\"type\":\"struct\",\"fields\":[{\"name\":\"n\",\"type\":\"long\",\"nullable\":true,\"metadata\":{}}]}"
    (log / f"{0:020}.json").write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["warp"],"writerFeatures":["warp"]}}\n'
        '{"metaData":{"id":"x","format":{"provider":"parquet","options":{}},"schemaString":"' + schema + '",'
        '"partitionColumns":[],"configuration":{},"createdTime":1}}\n'
    )
    with pytest.raises(Unsupported, match="warp"):
        engine.resolve(ExportRequest(TableRef.parse(str(tmp_path / "table")), "out"))


def test_a_type_that_readers_do_not_share_is_refused(engine: SparkEngine, spark_session: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark_session.sql(f"CREATE TABLE delta.`{path}` (n INT, v VARIANT, c CHAR(3), d VARCHAR(3)) USING delta")
    spark_session.sql(f"INSERT INTO delta.`{path}` SELECT 1, NULL, 'c', 'd'")
    asked = ExportRequest(TableRef("query"), "out", "spark", query="SELECT 1 AS a, INTERVAL '1' DAY AS b")
    with pytest.raises(Unsupported, match="column `b` is of type `interval day`") as caught:
        engine.resolve(asked)
    assert "--exclude-columns b" in str(caught.value.hint)

    rest = export(engine, path, tmp_path / "out", columns=("c", "d"), order_by=("c",), files=1)
    assert [field.type for field in rest.snapshot.schema] == ["string", "string"]
    assert rows_of(rest) == {"c": ["c  "], "d": ["d"]}


def test_a_variant_is_refused_where_the_server_would_write_it_otherwise(
    spark_remote: str, spark_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    spark_session.sql(f"CREATE TABLE delta.`{path}` (n INT, s STRUCT<v: VARIANT>) USING delta")
    # A setting that no session may change stands for any that a server refuses.
    monkeypatch.setattr(spark_connection, "_PLAIN_VARIANTS", {"spark.sql.warehouse.dir": "elsewhere"})
    engine = SparkEngine(spark_remote)
    try:
        with pytest.raises(Unsupported, match="column `s` is of type `struct<v:variant>`") as caught:
            engine.resolve(ExportRequest(TableRef.parse(path), "out"))
        assert engine.resolve(ExportRequest(TableRef.parse(path), "out", exclude=("s",))).schema
    finally:
        engine.close()
    assert "--exclude-columns s" in str(caught.value.hint)


def test_variants_that_a_server_shreds_nevertheless_are_refused(
    spark_remote: str, spark_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    spark_session.sql(f"CREATE TABLE delta.`{path}` (n INT, s STRUCT<v: VARIANT>) USING delta")
    spark_session.sql(f"""INSERT INTO delta.`{path}` SELECT 1, named_struct('v', parse_json('{{"a": 1}}'))""")
    monkeypatch.setattr(spark_connection, "_PLAIN_VARIANTS", {"spark.sql.variant.writeShredding.enabled": "true"})
    engine = SparkEngine(spark_remote)
    every: list[dict[str, Any]] = [{}, {"shuffle": True}]
    try:
        for asked in every:
            with pytest.raises(Unsupported, match="shredded the variants of column `s`"):
                export(engine, path, tmp_path / "out", files=1, **asked)
    finally:
        engine.close()
    assert leftovers(tmp_path / "out") == []


def test_a_data_file_that_is_gone_is_not_found_and_leaves_nothing(
    engine: SparkEngine, trips: str, tmp_path: Path
) -> None:
    shutil.copytree(trips, tmp_path / "table")
    for root, _, names in os.walk(tmp_path / "table"):
        for name in names:
            if name.endswith(".parquet") and "_delta_log" not in root:
                os.unlink(os.path.join(root, name))
    with pytest.raises(NotFound, match=r"\.parquet"):
        export(engine, str(tmp_path / "table"), tmp_path / "out")
    assert leftovers(tmp_path / "out") == []


def test_int96_is_refused_wherever_it_comes_from(spark_remote: str, trips: str, tmp_path: Path) -> None:
    key = "spark.sql.parquet.outputTimestampType"
    engine = SparkEngine(spark_remote)
    try:
        assert engine.version.startswith("Spark ")
        engine._connection.session.conf.set(key, "INT96")
        with pytest.raises(Unsupported, match="INT96"):
            export(engine, trips, tmp_path / "out")
        engine._connection.unmet[key] = "INT96"
        with pytest.raises(Unsupported, match=key):
            export(engine, trips, tmp_path / "out")
        assert leftovers(tmp_path / "out") == []
        assert rows_of(export(engine, trips, tmp_path / "other", columns=("Id",), where="Id = 1")) == {"Id": [1]}
    finally:
        engine.close()


def test_a_destination_that_the_server_does_not_see_is_refused_before_the_write(
    engine: SparkEngine, trips: str, tmp_path: Path
) -> None:
    # In the server's process this path names nothing.
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(InvalidRequest, match="does not see") as caught:
            export(engine, trips, f"/proc/self/fd/{handle}/out")
    finally:
        os.close(handle)
    assert "/Volumes" in str(caught.value.hint)
    assert os.listdir(tmp_path) == []


def test_a_url_as_destination_is_refused(engine: SparkEngine, trips: str) -> None:
    with pytest.raises(InvalidRequest, match="s3://bucket/out"):
        engine.resolve(ExportRequest(TableRef.parse(trips), "s3://bucket/out"))


def test_an_error_of_the_engine_is_a_stage_error_with_one_line_and_a_hint(engine: SparkEngine, trips: str) -> None:
    with pytest.raises(StageError) as caught:
        engine.resolve(ExportRequest(TableRef.parse(trips), "out", where="no_such_function(Id)"))
    assert "NO_SUCH_FUNCTION" in caught.value.message
    assert "SQLSTATE" not in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
