"""What every engine must give alike: rows, types, layout and refusals. One suite, run over each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.delta import Case, canonical_rows, cases, left_in, make_kinds, make_numbers, read_export, request
from uc_stage import exporting
from uc_stage.engines.drawing import value_hashes
from uc_stage.engines.predicate import checked
from uc_stage.engines.spark.table import SparkTable
from uc_stage.errors import InvalidRequest, NoSpace, NotFound, StageError, Unsupported
from uc_stage.exporting.loading import Loaded
from uc_stage.manifest import Manifest
from uc_stage.model import EngineName, ExportReport
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder

READABLE = [case for case in cases() if case.rows is not None]
BROKEN = [case for case in cases() if case.rows is None]


@dataclass(frozen=True)
class Engine:
    """An engine as a request names it."""

    name: EngineName
    remote: str | None = None

    def load(self, table: object, **asked: Any) -> Loaded:
        return uc_stage.load(None if table is None else str(table), engine=self.name, remote=self.remote, **asked)

    def export(self, table: object, dest: object, **asked: Any) -> ExportReport:
        return exporting.run(request(table, dest, engine=self.name, remote=self.remote, **asked))


@pytest.fixture(scope="module", params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "spark":
        return Engine("spark", request.getfixturevalue("spark_remote"))
    return Engine("local")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_kinds(tmp_path_factory.mktemp("tables") / "kinds")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_numbers(tmp_path_factory.mktemp("tables") / "numbers", 1000, commits=4)


def manifest_of(dest: object) -> Manifest:
    manifest = read_manifest(LocalFolder(str(dest)))
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("case", READABLE, ids=[case.name for case in READABLE])
def test_tables_of_other_projects_come_out_with_their_right_rows(
    engine: Engine, case: Case, corpus: Path, tmp_path: Path
) -> None:
    report = engine.export(corpus / case.table, tmp_path / "out")

    assert canonical_rows(tmp_path / "out", case.schema) == case.rows
    assert report.rows == len(case.rows or ())


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_a_table_that_cannot_be_read_rightly_is_refused_and_leaves_nothing(
    engine: Engine, case: Case, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(StageError) as caught:
        engine.export(corpus / case.table, tmp_path / "out")

    assert caught.value.exit_code in {10, 12, 16}, caught.value.message
    assert caught.value.hint
    assert left_in(tmp_path) == []


WHERE: dict[str, list[int]] = {
    "id = 1": [0],
    "ID <> 1": [1, 2, 4, 5, 6, 7, 8, 9],
    "id <=> null": [3],
    "id is distinct from null": [0, 1, 2, 4, 5, 6, 7, 8, 9],
    "id is null or id = 5": [3, 7],
    "not (id > 2)": [0, 1, 4, 5, 9],
    "id not in (1, 2)": [2, 4, 5, 6, 7, 8, 9],
    "id between 1 and 3": [0, 1, 2],
    "id not between 1 and 3": [4, 5, 6, 7, 8, 9],
    "id > 1.5": [1, 2, 6, 7, 8],
    "id >= 3e0": [2, 6, 7, 8],
    "id = 9223372036854775808": [],
    "i + 1 > 50": [5, 9],
    "i * b < 0": [1, 6],
    "i % 2 = -1": [4],
    "i / 2 = 3.5": [0],
    "i div 2 = -3": [4],
    "-i = 7": [4],
    "1 < id and ok": [8],
    "name = 'a'": [0],
    'name = "a"': [0],
    r"name = 'it\'s'": [2],
    "name like 'a%'": [0, 4],
    r"name like 'a\\%b'": [4],
    "name like 'line_break'": [5],
    r"name like 'back\\\\slash'": [8],
    "name not like 'a%'": [1, 2, 5, 6, 7, 8, 9],
    "lower(name) = 'b' or upper(name) = 'É'": [1, 6],
    "length(name) = 1": [0, 1, 6],
    "startswith(name, 'a') or endswith(name, 'h') or contains(name, 'n')": [0, 4, 5, 8],
    "s.A = 1": [0],
    "S.a in (1, 4)": [0, 3],
    "s.b is null and s is not null": [1],
    "ts = '2024-01-01'": [0],
    "ts >= date '2024-01-01'": [0, 1, 7, 8, 9],
    "ts > timestamp '2024-01-01 01:00:00+01:00'": [1, 7, 8, 9],
    "ts = timestamp '2024-01-01T00:00:00.000001Z'": [1],
    "ts between '2023-01-01' and '2024-01-01'": [0, 2],
    "cast(ts as date) = date '2024-01-01'": [0, 1],
    "ntz = timestamp_ntz '2024-01-01'": [0],
    "ntz > '2024-01-01 00:00:00'": [1, 3],
    "ntz >= timestamp '2024-01-01'": [0, 1, 3],
    "d in ('2024-01-01', '1960-01-01')": [0, 3],
    "'2024-01-01' < d": [1, 4, 5, 6, 7, 8, 9],
    "f = 0": [4, 5],
    "f > 1": [1, 6, 9],
    "f <> 1": [0, 1, 4, 5, 6, 7, 8, 9],
    "isnan(f)": [1],
    "not isnan(f)": [0, 2, 3, 4, 5, 6, 7, 8, 9],
    "f not in (0.5, 1)": [1, 4, 5, 6, 7, 8, 9],
    "f * 2 = 1 or f / 4 = 0.25": [0, 2],
    "-f < 0": [0, 2, 6, 8, 9],
    "f = g": [0, 1, 2, 4, 5, 6, 7],
    "g = 0.1": [],
    "g in (0.5, 1, 16777216)": [0, 2, 9],
    "dec in (1.5, 3, 7)": [0, 6, 7],
    "dec > 0.001 and dec < 3": [0, 5, 8],
    "dec = -2.250": [1],
    "ok is not true": [1, 2, 4, 6, 7],
    "ok <=> false": [1, 4, 7],
    "!ok": [1, 4, 7],
    "bin >= X'61'": [0, 4, 5, 6, 7, 8, 9],
    "`Odd Name` >= 8": [8, 9],
    "(id = 1 or id = 2) and not ok": [1],
    "id = null": [],
    "id in (1, null)": [0],
    "id not in (1, null)": [],
    "id + 1 = 2": [0],
    "-id = 7": [4],
    "id = '5'": [7],
    "i <> 0 and 100 / i > 40": [1, 8],
    "if(i = 0, false, 100 % i = 1)": [2, 5],
    "case when ok then id > 1 else i > 90 end": [8],
    "nullif(id, 5) is null": [3, 7],
    "name ilike 'b'": [1],
    "name rlike '^[a-z]$'": [0],
    "name like 'a!%b' escape '!'": [4],
    "substr(name, 1, 1) = 'a'": [0, 4],
    "trim(name) = ''": [7],
    "coalesce(s.b, name) = 'x'": [0],
    "year(ts) = 2023": [2],
    "ts >= ntz": [0, 4, 5, 6, 7, 8, 9],
    "dec + 0.5 = 2": [0],
    "1 = 1": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    "false": [],
}


@pytest.mark.parametrize("where", WHERE)
def test_a_predicate_selects_these_rows_in_the_local_engine(kinds: str, where: str, tmp_path: Path) -> None:
    report = Engine("local").export(kinds, tmp_path / "out", where=where, columns=("key",))

    assert sorted(row["key"] for row in read_export(tmp_path / "out")) == WHERE[where]
    assert report.rows == len(WHERE[where])


def test_all_predicates_select_the_same_rows_in_spark(kinds: str, spark_session: Any) -> None:
    spark_session.conf.set("spark.sql.session.timeZone", "UTC")
    frame = spark_session.read.format("delta").load(kinds)
    conditions = [f"{checked(where, frame.columns)} AS w{index}" for index, where in enumerate(WHERE)]

    rows = frame.selectExpr("key", *conditions).collect()

    found = {where: sorted(row["key"] for row in rows if row[f"w{index}"]) for index, where in enumerate(WHERE)}
    assert found == WHERE


@pytest.mark.parametrize("where", ["ts between '2023-01-01' and '2024-01-01'", "S.a in (1, 4)", "false"])
def test_a_predicate_selects_the_same_rows_in_every_engine(
    engine: Engine, kinds: str, where: str, tmp_path: Path
) -> None:
    report = engine.export(kinds, tmp_path / "out", where=where, columns=("key",))

    assert sorted(row["key"] for row in read_export(tmp_path / "out")) == WHERE[where]
    assert report.rows == len(WHERE[where])


def test_columns_come_in_the_order_asked_and_in_the_tables_case(engine: Engine, kinds: str, tmp_path: Path) -> None:
    engine.export(kinds, tmp_path / "out", columns=("NAME", "id"))

    assert list(read_export(tmp_path / "out")[0]) == ["name", "Id"]
    assert manifest_of(tmp_path / "out").source.columns == ("name", "Id")


def test_an_unknown_column_is_refused_with_the_nearest_name(engine: Engine, kinds: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="`naem`") as caught:
        engine.export(kinds, tmp_path / "out", columns=("naem",))

    assert caught.value.hint is not None
    assert "`name`" in caught.value.hint


def test_a_limit_bounds_the_rows(engine: Engine, numbers: str, tmp_path: Path) -> None:
    assert engine.export(numbers, tmp_path / "some", limit=7).rows == 7
    assert engine.export(numbers, tmp_path / "few", limit=7, where="id < 3").rows == 3
    assert engine.export(numbers, tmp_path / "all", limit=5000).rows == 1000
    assert engine.export(numbers, tmp_path / "none", limit=0).rows == 0


@pytest.mark.parametrize("limit", [1, 27, 28, 40, 73, 74, 200])
def test_both_engines_take_the_same_first_rows(crooked: str, spark_remote: str, limit: int, tmp_path: Path) -> None:
    written = compare_engines(crooked, spark_remote, tmp_path, {"limit": limit})

    assert sum(len(file) for files in written.values() for file in files) == min(limit, 74)


def test_an_earlier_version_comes_out_as_it_was(engine: Engine, numbers: str, tmp_path: Path) -> None:
    report = engine.export(numbers, tmp_path / "out", version=1)

    assert report.version == 1
    assert sorted(row["id"] for row in read_export(tmp_path / "out")) == list(range(500))


def test_a_version_that_is_not_there_is_not_found(engine: Engine, numbers: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        engine.export(numbers, tmp_path / "out", version=99)

    assert left_in(tmp_path) == []


def test_a_place_without_a_table_is_not_found(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        engine.export(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
        engine.export(tmp_path / "empty", tmp_path / "out")

    assert left_in(tmp_path) == []


def test_files_and_the_manifest_agree_and_the_schema_is_plain(engine: Engine, kinds: str, tmp_path: Path) -> None:
    report = engine.export(kinds, tmp_path / "out", files=3)

    manifest = manifest_of(tmp_path / "out")
    assert {field.name: field.type for field in manifest.schema} == {
        "key": "int64",
        "Id": "int64",
        "i": "int32",
        "b": "int8",
        "name": "string",
        "s": "struct<A: int32, b: string>",
        "ts": "timestamp[us, tz=UTC]",
        "ntz": "timestamp[us]",
        "d": "date32[day]",
        "f": "double",
        "g": "float",
        "dec": "decimal128(10, 2)",
        "ok": "bool",
        "bin": "binary",
        "odd name": "int64",
    }
    assert all(field.nullable for field in manifest.schema)
    assert [len(manifest.files), report.files, manifest.rows] == [report.files, report.files, 10]
    for file in manifest.files:
        read = pq.ParquetFile(tmp_path / "out" / file.path)
        assert [(f.name, str(f.type), f.nullable) for f in read.schema_arrow] == [
            (f.name, f.type, True) for f in manifest.schema
        ]
        assert read.metadata.num_rows == file.rows
        groups = [read.metadata.row_group(i) for i in range(read.metadata.num_row_groups)]
        assert all(group.num_rows for group in groups)
        times = [group.column(i) for group in groups for i in range(group.num_columns)]
        assert {c.physical_type for c in times if c.path_in_schema in {"ts", "ntz"}} == {"INT64"}
        assert (tmp_path / "out" / file.path).stat().st_size == file.bytes


def test_an_empty_result_is_one_file_with_the_schema_and_no_row_group(
    engine: Engine, kinds: str, tmp_path: Path
) -> None:
    report = engine.export(kinds, tmp_path / "out", where="false", files=4)

    (file,) = manifest_of(tmp_path / "out").files
    read = pq.ParquetFile(tmp_path / "out" / file.path)
    assert (report.rows, file.row_groups, read.metadata.num_row_groups) == (0, 0, 0)
    assert len(read.schema_arrow) == 15


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_pages_are_compressed_as_asked(engine: Engine, numbers: str, compression: Any, tmp_path: Path) -> None:
    engine.export(numbers, tmp_path / "out", files=1, compression=compression)

    (file,) = manifest_of(tmp_path / "out").files
    column = pq.ParquetFile(tmp_path / "out" / file.path).metadata.row_group(0).column(0)
    assert column.compression == {"zstd": "ZSTD", "snappy": "SNAPPY", "none": "UNCOMPRESSED"}[compression]
    assert column.statistics.has_min_max


def test_one_version_with_the_same_options_is_one_export_on_any_engine(
    engine: Engine, kinds: str, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"where": "id > 0 and name like 'a%'", "columns": ("key", "s", "ts"), "files": 1}
    first = engine.export(kinds, tmp_path / "out", **asked)

    again = Engine("local").export(kinds, tmp_path / "out", **asked)

    assert (again.status, again.id, again.generation) == ("unchanged", first.id, first.generation)


@pytest.fixture(scope="module")
def crooked(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with deletion vectors, mapped names and partitions of odd values, at a place of an odd name."""
    path = str(tmp_path_factory.mktemp("tables") / "cr%20oo+ked tä&ble")
    spark_session.sql(
        f"""CREATE TABLE delta.`{path}` (Id BIGINT, k INT, zone STRING) USING delta PARTITIONED BY (zone) TBLPROPERTIES
        ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')"""
    )
    for first in (0, 40):
        spark_session.sql(
            f"""INSERT INTO delta.`{path}` SELECT id, CAST(id % 5 AS INT),
            element_at(array('north', NULL, 'sö=ü/%d x'), CAST(id % 3 AS INT) + 1)
            FROM range({first}, {first + 40}, 1, 2)"""
        )
    spark_session.sql(f"DELETE FROM delta.`{path}` WHERE Id IN (3, 4, 41, 42, 43, 79)")
    return path


# Each order, draw and cast at least once; with an order, the rows must also lie in the same files in the same order.
SHAPES: dict[str, dict[str, Any]] = {
    "a sample of some columns": {"sample": 0.4, "seed": 5, "exclude": ("TEXT",)},
    "splits by row": {"splits": (("train", 0.8), ("validation", 0.2)), "seed": 3},
    "splits by value of the first rows": {
        "splits": (("train", 0.5), ("test", 0.5)), "split_by": "text", "limit": 300, "where": "id >= 100",
    },
    "a shuffle": {"shuffle": True, "seed": 7, "files": 3, "casts": (("half", "float32"),)},
    "the first rows of an order": {"order_by": ("text desc",), "limit": 77, "files": 2},
    "the first rows": {"limit": 333},
    "the first rows of a sample": {"limit": 111, "sample": 0.5, "seed": 4, "where": "id % 3 > 0"},
    "equal first rows": {"limit": 301, "equal_rows": True, "files": 3},
    "equal rows": {"equal_rows": True, "files": 7},
    "equal shuffled splits of a sample": {
        "splits": (("train", 0.7), ("test", 0.3)), "sample": 0.5, "shuffle": True, "equal_rows": True,
        "drop_remainder": True, "world_size": 2, "workers": 2,
    },
}  # fmt: skip
ORDERED = {"shuffle", "order_by", "equal_rows"}


def contents(dest: Path) -> dict[str, list[list[str]]]:
    """The rows of each file of each split, as text."""
    return {
        name: [[repr(row) for row in pq.ParquetFile(dest / file.path).read().to_pylist()] for file in files]
        for name, files in manifest_of(dest).splits.items()
    }


def sorted_rows(splits: dict[str, list[list[str]]]) -> dict[str, list[str]]:
    return {name: sorted(row for file in files for row in file) for name, files in splits.items()}


def compare_engines(table: str, remote: str, place: Path, asked: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Exports with both engines, asks that they agree, and gives what they wrote."""
    Engine("local").export(table, place / "local", **asked)
    Engine("spark", remote).export(table, place / "spark", **asked)

    one, two = manifest_of(place / "local"), manifest_of(place / "spark")
    assert (two.id, two.schema, two.source, two.layout) == (one.id, one.schema, one.source, one.layout)
    assert two.dropped == one.dropped
    mine, other = contents(place / "local"), contents(place / "spark")
    if ORDERED & asked.keys():
        assert other == mine
    else:
        assert sorted_rows(other) == sorted_rows(mine)
    return other


@pytest.mark.parametrize("shape", SHAPES)
def test_both_engines_shape_a_table_alike(numbers: str, spark_remote: str, shape: str, tmp_path: Path) -> None:
    written = compare_engines(numbers, spark_remote, tmp_path, SHAPES[shape])

    rows = [row for files in written.values() for file in files for row in file]
    assert 0 < len(rows) <= 1000
    assert len(set(rows)) == len(rows)


def test_both_engines_tell_rows_of_every_table_apart(crooked: str, spark_remote: str, tmp_path: Path) -> None:
    asked = {"shuffle": True, "splits": (("train", 0.5), ("test", 0.5)), "files": 2, "columns": ("Id", "zone")}

    written = compare_engines(crooked, spark_remote, tmp_path, asked)

    assert sum(len(file) for files in written.values() for file in files) == 74


@pytest.mark.parametrize("terms", [("f", "key desc"), ("g DESC", "name"), ("dec", "ok desc", "bin", "d", "ts", "ntz")])
def test_both_engines_order_values_alike(kinds: str, spark_remote: str, terms: Any, tmp_path: Path) -> None:
    compare_engines(kinds, spark_remote, tmp_path, {"order_by": terms, "columns": ("key", "f")})


@pytest.mark.parametrize("column", ["Id", "b", "bin", "ts", "ntz", "d"])
def test_both_engines_hash_values_alike(kinds: str, spark_session: Any, column: str) -> None:
    frame = spark_session.read.format("delta").load(kinds)
    found = frame.selectExpr(column, f"xxhash64('split', CAST(-3 AS BIGINT), {column}) AS hash").toArrow()

    values = found[column].combine_chunks()
    assert value_hashes("split", -3, values).tolist() == found["hash"].to_pylist()


def test_both_engines_cast_alike(kinds: str, spark_remote: str, tmp_path: Path) -> None:
    casts = (
        ("dec", "float64"), ("ts", "int64"), ("ntz", "int64"), ("d", "int32"), ("ok", "int8"), ("i", "string"),
        ("b", "float32"), ("f", "float32"), ("g", "float64"), ("key", "int16"),
    )  # fmt: skip
    compare_engines(kinds, spark_remote, tmp_path, {"casts": casts, "exclude": ("s",)})


@pytest.fixture(scope="module")
def loose(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with a map, a void column, and variants at the top and inside of others; the last has a NULL of each."""
    path = str(tmp_path_factory.mktemp("tables") / "loose")
    spark_session.sql(
        f"""CREATE TABLE delta.`{path}` (n INT NOT NULL, tags MAP<STRING, STRUCT<x: INT, y: ARRAY<DATE>>>, nothing VOID,
        v VARIANT, inside STRUCT<list: ARRAY<VARIANT>, named: MAP<STRING, VARIANT>>) USING delta"""
    )
    spark_session.sql(
        f"""INSERT INTO delta.`{path}` (n, tags, v, inside) SELECT CAST(id AS INT),
        map('k', named_struct('x', CAST(id AS INT), 'y', array(DATE'2024-02-29', NULL)), concat('ü', id), NULL),
        parse_json(concat('{{"b": [1, 2.5, "x", null, true], "a": {{"c": ', id, '}}}}')),
        named_struct('list', array(parse_json('1'), NULL, parse_json('null')), 'named', map('z', parse_json('"é"')))
        FROM range(0, 8, 1, 2) UNION ALL SELECT 8, NULL, NULL, NULL"""
    )
    return path


@pytest.mark.parametrize(
    "asked",
    [
        {}, {"files": 9}, {"order_by": ("n desc",), "files": 2}, {"limit": 4, "equal_rows": True}, {"where": "n < 0"},
        {"where": "n < 0", "shuffle": True},
    ],
)  # fmt: skip
def test_both_engines_write_maps_voids_and_variants_alike(
    loose: str, spark_remote: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    compare_engines(loose, spark_remote, tmp_path, asked)

    stored = {path: pq.read_metadata(path).schema for path in tmp_path.glob("*/*.parquet")}
    assert all(
        not str(schema.column(i).logical_type).startswith("Variant") for schema in stored.values() for i in range(9)
    )


@pytest.mark.parametrize("name", ["tags", "map"])
def test_both_engines_cast_maps_to_entries_alike(loose: str, spark_remote: str, name: str, tmp_path: Path) -> None:
    asked = {"casts": ((name, "entries"),), "columns": ("n", "tags"), "order_by": ("n",), "files": 1}

    ((first, *_),) = compare_engines(loose, spark_remote, tmp_path, asked)["train"]

    assert "'value': {'x': 0," in first


def test_a_value_that_a_cast_does_not_hold_is_refused_with_its_column(
    engine: Engine, kinds: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=r"`--cast Id=int8`: .*4611686018427387904") as caught:
        engine.export(kinds, tmp_path / "out", casts=(("Id", "int8"),))

    assert "wider" in str(caught.value.hint)
    assert left_in(tmp_path) == []


def test_decimals_become_the_nearest_double_in_both_engines(spark_remote: str, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    digits = random.Random(11)
    values = [Decimal(digits.randrange(-(10**size), 10**size)).scaleb(-10) for size in range(1, 39) for _ in range(20)]
    table = pa.table({"d": pa.array(values, pa.decimal128(38, 10)), "e": pa.array(values, pa.decimal128(38, 10))})
    write_deltalake(str(tmp_path / "table"), table)

    asked = {"casts": (("d", "float64"), ("e", "float32"))}
    written = compare_engines(str(tmp_path / "table"), spark_remote, tmp_path, asked)

    assert len(written["train"][0]) == len(values)


def test_rows_come_into_memory_as_an_export_has_them(engine: Engine, kinds: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"where": "id > 0", "columns": ("key", "s", "ts", "ntz", "d", "dec", "bin")}
    loaded = engine.load(kinds, **asked)
    Engine("local").export(kinds, tmp_path / "out", files=1, **asked)

    (file,) = manifest_of(tmp_path / "out").files
    exported = pq.read_table(tmp_path / "out" / file.path)
    assert loaded.table.schema.equals(exported.schema)
    assert loaded.table.equals(exported)
    assert loaded.source == manifest_of(tmp_path / "out").source


def test_no_row_comes_into_memory_as_a_table_with_the_columns(engine: Engine, kinds: str) -> None:
    assert engine.load(kinds, where="false", columns=("ts", "name")).table.schema == pa.schema(
        [("ts", pa.timestamp("us", "UTC")), ("name", pa.string())]
    )


def test_rows_that_would_not_fit_into_memory_are_refused(engine: Engine, numbers: str) -> None:
    with pytest.raises(NoSpace, match="1,000 rows of about"):
        engine.load(numbers, memory=2000)


@pytest.mark.parametrize(
    "asked", [{"sample": 0.5, "seed": 2, "limit": 20}, {"where": "k = 1", "cast": {"k": "string"}}]
)
def test_both_engines_load_the_same_table(crooked: str, spark_remote: str, asked: dict[str, Any]) -> None:
    one, two = Engine("local").load(crooked, **asked), Engine("spark", spark_remote).load(crooked, **asked)

    assert two.table.schema.equals(one.table.schema)
    assert two.table.equals(one.table)
    assert two.source == one.source
    assert one.table.num_rows


def test_both_engines_load_maps_and_voids_alike_and_spark_refuses_variants(loose: str, spark_remote: str) -> None:
    columns = ("n", "tags", "nothing")
    one, two = Engine("local").load(loose, columns=columns), Engine("spark", spark_remote).load(loose, columns=columns)

    assert two.table.schema.equals(one.table.schema)
    assert two.table.equals(one.table)
    assert Engine("local").load(loose).table.num_rows == 9
    with pytest.raises(Unsupported, match="column `v` holds variants"):
        Engine("spark", spark_remote).load(loose)


def test_a_server_that_does_not_tell_rows_apart_gives_them_all_the_same(
    numbers: str, spark_remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Unsupported("the rows cannot be told apart")

    monkeypatch.setattr(SparkTable, "identified", refuse)
    loaded = Engine("spark", spark_remote).load(numbers, columns=("id",))

    assert sorted(loaded.table["id"].to_pylist()) == list(range(1000))
    with pytest.raises(Unsupported, match="told apart"):
        Engine("spark", spark_remote).load(numbers, limit=5)


def test_a_query_is_loaded_in_its_own_order(numbers: str, spark_remote: str) -> None:
    query = f"SELECT id % 7 AS day, count(*) AS n FROM delta.`{numbers}` GROUP BY 1 ORDER BY 1 DESC"

    loaded = Engine("spark", spark_remote).load(None, query=query)

    assert loaded.table["day"].to_pylist() == [6, 5, 4, 3, 2, 1, 0]
    assert sum(loaded.to_numpy()["n"]) == 1000
