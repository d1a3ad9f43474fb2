from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.fixtures.delta import actions, commit, left_in, make_numbers, read_export, request
from tests.fixtures.logs import PLAIN, add, bitmap, field, metadata, protocol, stored_vectors, write_log, z85
from tests.fixtures.s3 import Bucket
from tests.fixtures.shell import uc_stage
from uc_stage import exporting
from uc_stage.engines.delta.table_files import TableFiles
from uc_stage.engines.local import LocalEngine
from uc_stage.errors import (
    AccessDenied,
    InvalidRequest,
    NotFound,
    StageError,
    Unavailable,
    Unsupported,
    VerificationFailed,
)
from uc_stage.model import ExportReport, Layout, Snapshot

UTC = dt.timezone.utc


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine()
    yield engine
    engine.close()


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    return make_numbers(tmp_path / "numbers", 1000, commits=4)


def resolve(engine: LocalEngine, table: object, **asked: Any) -> Snapshot:
    return engine.resolve(request(table, "unused", **asked))


def export(table: object, dest: object, **asked: Any) -> ExportReport:
    return exporting.run(request(table, dest, engine="local", **asked))


def test_a_snapshot_is_pinned_and_tells_what_the_log_knows(engine: LocalEngine, numbers: str) -> None:
    snapshot = resolve(engine, numbers, limit=600)

    metadata = DeltaTable(numbers).metadata()
    assert (snapshot.source.table, snapshot.source.table_id) == (numbers, str(metadata.id))
    assert (snapshot.source.version, snapshot.rows, snapshot.table_rows) == (3, 600, 1000)
    assert snapshot.bytes == sum(os.path.getsize(path) for path in Path(numbers).glob("*.parquet"))
    assert [(field.name, field.type) for field in snapshot.schema] == [
        ("id", "int64"),
        ("half", "double"),
        ("text", "string"),
    ]
    assert re.fullmatch(r"uc-stage \S+, pyarrow \S+", engine.version)


def test_rows_that_the_log_does_not_tell_are_counted_even_after_a_close(
    engine: LocalEngine, numbers: str, corpus: Path
) -> None:
    chosen = resolve(engine, numbers, where="id < 10")
    unknown = resolve(engine, corpus / "kernel-rs/golden/data-reader-nested-struct/delta", limit=4)
    assert [chosen.rows, unknown.rows] == [None, None]

    engine.close()

    layout = Layout(files=1, file_bytes=None, row_group_bytes=1, compression="zstd")
    assert [engine.count(chosen, layout), engine.count(unknown, layout)] == [{"train": 10}, {"train": 4}]
    assert engine.count(resolve(engine, numbers), layout) == {"train": 1000}


def test_a_path_may_be_relative_or_a_file_url(
    engine: LocalEngine, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(os.path.dirname(numbers))

    for text in ("numbers", "./numbers", f"file://{numbers}", f"{numbers}/"):
        assert resolve(engine, text).source.table == numbers


def test_rows_that_deletion_vectors_hide_are_not_counted(engine: LocalEngine, corpus: Path) -> None:
    snapshot = resolve(engine, corpus / "kernel-rs/data/with-short-dv")

    assert (snapshot.rows, snapshot.table_rows, snapshot.null_counts) == (7, 7, None)


def test_the_null_counts_of_the_log_are_told_where_all_rows_are_asked_for(engine: LocalEngine, tmp_path: Path) -> None:
    rows = pa.table({"key": [1, None, None], "part": ["a", "b", None]})
    write_deltalake(str(tmp_path / "table"), rows, partition_by=["part"])

    assert resolve(engine, tmp_path / "table").null_counts == {"key": 2, "part": 1}
    assert resolve(engine, tmp_path / "table", columns=("part",)).null_counts == {"part": 1}
    for asked in ({"limit": 2}, {"where": "key = 1"}, {"sample": 0.5}):
        assert resolve(engine, tmp_path / "table", **asked).null_counts is None


def set_times(table: str, *times: dt.datetime) -> None:
    for version, time in enumerate(times):
        os.utime(Path(table) / "_delta_log" / f"{version:020}.json", (time.timestamp(), time.timestamp()))


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        ("2024-01-01T00:00:00Z", 0),
        ("2024-01-01 12:30:00", 0),
        ("2024-01-02", 1),
        ("2024-01-03T01:00:00+01:00", 2),
        ("2024-01-04T00:00:00+00:00", 3),
    ],
)
def test_a_time_pins_the_newest_version_of_then(
    engine: LocalEngine, numbers: str, timestamp: str, version: int
) -> None:
    set_times(numbers, *(dt.datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)))

    source = resolve(engine, numbers, timestamp=timestamp).source

    assert source.version == version
    assert source.timestamp == f"2024-01-0{version + 1}T00:00:00.000+00:00"


def test_commits_with_one_time_or_a_clock_that_went_back_keep_their_order(engine: LocalEngine, numbers: str) -> None:
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=UTC)
    set_times(numbers, noon, noon, noon - dt.timedelta(hours=1), noon + dt.timedelta(hours=1))

    assert resolve(engine, numbers, timestamp="2024-01-01T12:00:00Z").source.version == 0
    assert resolve(engine, numbers, timestamp="2024-01-01T12:00:00.002Z").source.version == 2


@pytest.mark.parametrize("timestamp", ["2023-12-31T23:59:59Z", "2024-01-04T00:00:01Z", "2200-01-01"])
def test_a_time_before_the_first_or_after_the_last_commit_is_not_found(
    engine: LocalEngine, numbers: str, timestamp: str
) -> None:
    set_times(numbers, *(dt.datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)))

    with pytest.raises(NotFound) as caught:
        resolve(engine, numbers, timestamp=timestamp)

    assert caught.value.hint is not None
    assert "version 0 at 2024-01-01" in caught.value.hint
    assert "version 3 at 2024-01-04" in caught.value.hint


def test_what_is_no_time_is_an_invalid_request(engine: LocalEngine, numbers: str) -> None:
    with pytest.raises(InvalidRequest, match="yesterday"):
        resolve(engine, numbers, timestamp="yesterday")


def test_in_commit_timestamps_count_where_the_table_has_them(engine: LocalEngine, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(str(table), pa.table({"id": [0]}))
    set_times(str(table), dt.datetime(2024, 1, 1, tzinfo=UTC))
    metadata = actions(table, 0, "metaData")[0]
    properties = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "1"}
    days = [int(dt.datetime(2024, 2, day, tzinfo=UTC).timestamp() * 1000) for day in (1, 2, 3)]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    commit(
        table, 1,
        {"commitInfo": {"inCommitTimestamp": days[0]}}, {"protocol": protocol},
        {"metaData": {**metadata, "configuration": properties}},
    )  # fmt: skip
    commit(table, 2, {"commitInfo": {"inCommitTimestamp": days[1]}})
    commit(table, 3, {"commitInfo": {"inCommitTimestamp": days[2]}})

    found = {
        at: resolve(engine, table, timestamp=at).source.version
        for at in ("2024-01-15", "2024-02-01", "2024-02-02T12:00:00Z", "2024-02-03")
    }
    assert found == {"2024-01-15": 0, "2024-02-01": 1, "2024-02-02T12:00:00Z": 2, "2024-02-03": 3}
    assert resolve(engine, table).source.timestamp == "2024-02-03T00:00:00.000+00:00"
    with pytest.raises(NotFound):
        resolve(engine, table, timestamp="2024-02-04")

    for odd in ({"operation": "WRITE"}, None):
        commit(table, 4, {"commitInfo": odd})
        with pytest.raises(VerificationFailed, match=r"version 4 of `.*` lacks the in-commit timestamp"):
            resolve(engine, table)


def test_a_version_that_was_cleaned_away_is_not_found_and_the_others_are_told(
    engine: LocalEngine, numbers: str
) -> None:
    DeltaTable(numbers, version=2).create_checkpoint()
    for version in (0, 1):
        os.unlink(Path(numbers) / "_delta_log" / f"{version:020}.json")

    for version in (0, 1, 4):
        with pytest.raises(NotFound, match=f"no version {version}") as caught:
            resolve(engine, numbers, version=version)
        assert caught.value.hint == "it has the versions 2 to 3"
    assert resolve(engine, numbers, version=2).rows == 750


def test_a_data_file_that_is_gone_is_named_and_nothing_is_left(numbers: str, tmp_path: Path) -> None:
    gone = max(Path(numbers).glob("*.parquet"))
    gone.unlink()

    with pytest.raises(NotFound, match=gone.name) as caught:
        export(numbers, tmp_path / "out")

    assert caught.value.hint is not None
    assert "VACUUM" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_damaged_data_file_or_log_fails_verification(numbers: str, tmp_path: Path) -> None:
    damaged = max(Path(numbers).glob("*.parquet"))
    data = damaged.read_bytes()
    damaged.write_bytes(b"\xff" * len(data))
    with pytest.raises(VerificationFailed, match="numbers"):
        export(numbers, tmp_path / "out")

    (Path(numbers) / "_delta_log" / f"{2:020}.json").write_text("{torn")
    with pytest.raises(VerificationFailed, match="numbers"):
        export(numbers, tmp_path / "out")

    assert left_in(tmp_path / "out") == []


@pytest.mark.parametrize("wrong", [249, 251])
def test_statistics_that_are_not_true_fail_verification(numbers: str, wrong: int, tmp_path: Path) -> None:
    path = Path(numbers) / "_delta_log" / f"{3:020}.json"
    path.write_text(path.read_text().replace('\\"numRecords\\":250', f'\\"numRecords\\":{wrong}'))

    with pytest.raises(VerificationFailed, match=f"should hold {wrong} rows, and holds 250"):
        export(numbers, tmp_path / "out", files=3)

    assert not (tmp_path / "out").exists()


def test_a_path_without_a_table_says_what_is_there(engine: LocalEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, says in [("nothing", "No such file"), ("file", "no Delta table"), (".", "no Delta table")]:
        with pytest.raises(NotFound, match=says):
            resolve(engine, tmp_path / path)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(NotFound, match="no Delta table"):
        resolve(engine, tmp_path)


def test_a_url_of_no_storage_is_an_invalid_request(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="no storage"):
        resolve(engine, "foo://bucket/table")


def upload(bucket: Bucket, table: str, prefix: str) -> str:
    for path in left_in(table):
        bucket.put(f"{prefix}/{os.path.relpath(path, table)}", Path(path).read_bytes())
    return f"{bucket.url}/{prefix}"


def test_a_table_in_an_object_store_is_read_with_the_environment_alone(
    bucket: Bucket, numbers: str, tmp_path: Path
) -> None:
    url = upload(bucket, numbers, "tables/numbers")

    # In processes of their own: deltalake holds the interpreter while it waits for the server, which is in this one.
    done = uc_stage("export", f"{url}@v1", tmp_path / "out", "--json", **bucket.environment)
    unknown = uc_stage("export", url, tmp_path / "other", "--version", 9, **bucket.environment)
    nothing = uc_stage("export", f"{bucket.url}/nothing", tmp_path / "other", **bucket.environment)

    assert done.code == 0, done.err
    assert (done.json["data"]["table"], done.json["data"]["rows"]) == (url, 500)
    assert len(read_export(tmp_path / "out")) == 500
    assert (unknown.code, nothing.code) == (10, 10)
    assert "no version 9" in unknown.err
    assert "no Delta table" in nothing.err


def test_odd_paths_other_folders_and_deletion_vectors_are_found_in_an_object_store(
    bucket: Bucket, tmp_path: Path
) -> None:
    name = uuid.uuid4()
    (offset,) = stored_vectors(tmp_path / "vectors.bin", [1])
    held = {"storageType": "u", "pathOrInlineDv": f"ä b{z85(name.bytes)}", "offset": offset}
    vector = {**held, "sizeInBytes": len(bitmap([1])), "cardinality": 1}
    adds = [
        add("p=a%20%2520+%C3%A4/x", 2, deletionVector=vector),
        add(f"{bucket.url}/other/y%20z", 2),
        add("/other/slash", 2),
    ]
    table = write_log(tmp_path / "table", [protocol("deletionVectors"), metadata(field("id", "long")), *adds])
    for number, key in enumerate(("my table/p=a %20+ä/x", "other/y z", "other/slash")):
        pq.write_table(pa.table({"id": [2 * number, 2 * number + 1]}), tmp_path / "data")
        bucket.put(key, (tmp_path / "data").read_bytes())
    bucket.put(f"my table/ä b/deletion_vector_{name}.bin", (tmp_path / "vectors.bin").read_bytes())
    url = upload(bucket, str(table), "my table")

    done = uc_stage("export", url, tmp_path / "out", "--json", **bucket.environment)
    commit(table, 1, add("file:///etc/hosts", 1))
    upload(bucket, str(table), "my table")
    elsewhere = uc_stage("export", url, tmp_path / "other", **bucket.environment)

    assert done.code == 0, done.err
    assert sorted(row["id"] for row in read_export(tmp_path / "out")) == [0, 2, 3, 4, 5]
    assert elsewhere.code == 12, elsewhere.err
    assert "a file of some machine" in elsewhere.err


class PanicException(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PanicException("index out of bounds"), Unsupported),
        (FileNotFoundError(2, "No such file"), NotFound),
        (OSError("Object at location x/y not found: Error performing GET"), NotFound),
        (PermissionError(13, "Permission denied"), AccessDenied),
        (OSError("Generic S3 error: Client error with status 403 Forbidden: AccessDenied"), AccessDenied),
        (OSError("\x1b[31mKernel error -> an error occurred while loading credentials\x1b[0m"), AccessDenied),
        (Exception("Generic S3 error: error sending request for url (http://x)"), Unavailable),
        (OSError("operation timed out"), Unavailable),
        (Exception("something else\n   0: <unknown>"), VerificationFailed),
        (Exception(""), VerificationFailed),
    ],
)
def test_whatever_storage_and_parquet_raise_becomes_one_line_with_a_hint(
    error: BaseException, kind: type[StageError]
) -> None:
    with pytest.raises(kind) as caught, TableFiles("/place", {}, "my/table").named("file"):
        raise error

    assert "`my/table`" in caught.value.message or "`/place/file`" in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert "\x1b" not in caught.value.message
    assert "<unknown>" not in caught.value.message


def test_an_interrupt_passes_as_it_is() -> None:
    with pytest.raises(KeyboardInterrupt), TableFiles("/place", {}, "t").named("file"):
        raise KeyboardInterrupt


def test_an_export_goes_into_an_object_store(bucket: Bucket, numbers: str) -> None:
    first = export(numbers, f"{bucket.url}/out", files=2)
    again = export(numbers, f"{bucket.url}/out", files=2)
    other = export(numbers, f"{bucket.url}/out", files=2, version=0)

    assert (first.status, again.status, other.status, other.retired) == ("done", "unchanged", "done", 2)
    keys = [item["Key"] for item in bucket.client.list_objects_v2(Bucket=bucket.url[5:])["Contents"]]
    assert len(keys) == 3
    assert "out/.uc_stage/manifest.json" in keys


@dataclass(frozen=True)
class Widths:
    """What of a file's layout a test looks at."""

    rows: list[int]
    groups: list[list[int]]


def layout_of(dest: Path) -> Widths:
    metadata = [pq.read_metadata(path) for path in sorted(dest.glob("*.parquet"))]
    groups = [[meta.row_group(i).num_rows for i in range(meta.num_row_groups)] for meta in metadata]
    return Widths([meta.num_rows for meta in metadata], groups)


def test_rows_are_shared_out_evenly_over_files_and_row_groups(tmp_path: Path) -> None:
    table = make_numbers(tmp_path / "table", 10_007, commits=3)

    export(table, tmp_path / "out", files=5, row_group_bytes=20_000)

    layout = layout_of(tmp_path / "out")
    assert sorted(layout.rows) == [2001, 2001, 2001, 2002, 2002]
    for groups in layout.groups:
        assert len(groups) > 2
        assert max(groups) - min(groups) <= max(groups) // 3
        assert 200 < max(groups) < 2000
    assert sorted(row["id"] for row in read_export(tmp_path / "out")) == list(range(10_007))


def test_a_row_wider_than_a_row_group_is_one(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "table"), pa.table({"blob": [os.urandom(50_000) for _ in range(5)]}))

    export(tmp_path / "table", tmp_path / "out", row_group_bytes=1000, files=1)

    assert layout_of(tmp_path / "out").groups == [[1, 1, 1, 1, 1]]


def test_more_files_than_rows_are_one_a_row(tmp_path: Path) -> None:
    table = make_numbers(tmp_path / "table", 3)

    export(table, tmp_path / "out", files=50)

    assert layout_of(tmp_path / "out").rows == [1, 1, 1]


def test_odd_column_names_and_kinds_of_arrow_come_out_plain(tmp_path: Path) -> None:
    odd = pa.table(
        {
            'say "hi"': pa.array(["a", None], pa.large_string()),
            "a.b c": pa.array(["x", "y"]).dictionary_encode(),
            "list": pa.array([[1], None], pa.large_list(pa.int16())),
            "map": pa.array([[("k", b"v")], []], pa.map_(pa.string(), pa.binary())),
        }
    )
    write_deltalake(str(tmp_path / "table"), odd)

    export(tmp_path / "table", tmp_path / "out", columns=('say "hi"', "a.b c", "list", "map"))

    (path,) = (tmp_path / "out").glob("*.parquet")
    schema = pq.read_schema(path)
    assert [str(field.type) for field in schema][:3] == ["string", "string", "list<element: int16>"]
    assert read_export(tmp_path / "out")[0] == {'say "hi"': "a", "a.b c": "x", "list": [1], "map": [("k", b"v")]}


def test_a_table_of_no_columns_is_refused(engine: LocalEngine, tmp_path: Path) -> None:
    table = make_numbers(tmp_path / "table", 1)
    metadata = actions(table, 0, "metaData")[0]
    commit(table, 1, {"metaData": {**metadata, "schemaString": '{"type":"struct","fields":[]}'}})

    with pytest.raises(Unsupported, match="no columns"):
        resolve(engine, table)


def test_the_corpus_archive_holds_tables_alone(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parent / "data/delta/tables.tar.gz") as tar:
        assert sum(member.size for member in tar) < 1_000_000
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("collated", {"where": "collated = 'a'"}),
        ("padded", {"where": "id > 1 OR padded IS NULL"}),
        ("collated", {"order_by": ("collated",)}),
        ("padded", {"splits": (("train", 1.0),), "split_by": "padded"}),
    ],
)
def test_text_with_rules_of_its_own_is_written_and_never_compared(
    engine: LocalEngine, tmp_path: Path, name: str, asked: dict[str, Any]
) -> None:
    columns = (
        field("id", "long"),
        field("collated", "string", __COLLATIONS={"collated": "spark.UTF8_LCASE"}),
        field("padded", "string", __CHAR_VARCHAR_TYPE_STRING="char(5)"),
        field("bounded", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(5)"),
    )
    table = write_log(tmp_path / "t", [PLAIN, metadata(*columns)])
    with pytest.raises(Unsupported, match=f"`{name}` is compared by a collation, or as CHAR"):
        engine.resolve(request(table, tmp_path / "x", **asked))
    assert engine.resolve(request(table, tmp_path / "x", where="bounded = 'a'")).schema
