"""What every engine must give alike: rows, types, layout and refusals. One suite, run over each of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fixtures.delta import Case, canonical_rows, cases, left_in, make_kinds, make_numbers, read_export, request
from uc_stage import exporting
from uc_stage.engines.predicate import checked
from uc_stage.errors import InvalidRequest, NotFound, StageError, Unsupported
from uc_stage.manifest import Manifest
from uc_stage.model import EngineName, ExportReport
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder

# Readable by the table's own rules, and refused by the local engine rather than read wrongly or not known by it.
NOT_LOCAL = {
    "dremio/kernel/columnMappingConvertedIceberg",
    "kernel-rs/golden/basic-with-vacuum-protocol-check-feature/delta",
}
READABLE = [case for case in cases() if case.rows is not None]
BROKEN = [case for case in cases() if case.rows is None]


@dataclass(frozen=True)
class Engine:
    """An engine as a request names it."""

    name: EngineName
    remote: str | None = None

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
    if engine.name == "local" and case.name in NOT_LOCAL:
        with pytest.raises(Unsupported, match=r"maps columns by id|VacuumProtocolCheck"):
            engine.export(corpus / case.table, tmp_path / "out")
        assert left_in(tmp_path) == []
        return

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
