from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures.logs import (
    PLAIN,
    add,
    field,
    inline_vector,
    metadata,
    open_table,
    protocol,
    remove,
    state_of,
    write_log,
)
from uc_stage.engines.delta.log import DeltaLog
from uc_stage.engines.delta.replay import READ
from uc_stage.engines.delta.table_files import TableFiles
from uc_stage.errors import StageError, Unsupported, VerificationFailed

META = metadata(field("id", "long"))
START = [PLAIN, META]
TEXTS = pa.map_(pa.string(), pa.string())
ADD = pa.struct([("path", pa.string()), ("partitionValues", TEXTS), ("size", pa.int64()), ("stats", pa.string())])
FORMAT = pa.struct([("provider", pa.string())])
METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", FORMAT),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", TEXTS),
    ]
)
PROTOCOL = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
SIDECAR = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64())])


def paths(table: Path, version: int | None = None) -> list[str]:
    return [file.path for file in state_of(table, version).files]


def parquet(path: Path, *actions: dict[str, Any], add_type: pa.DataType = ADD) -> None:
    """Writes actions as a checkpoint in Parquet does: a row for each, a column for each kind."""
    kinds = {"add": add_type, "metaData": METADATA, "protocol": PROTOCOL, "sidecar": SIDECAR, "remove": ADD}

    def plain(value: dict[str, Any] | None, kind: pa.DataType) -> dict[str, Any] | None:
        return value and {kind.field(i).name: value.get(kind.field(i).name) for i in range(kind.num_fields)}

    columns = {name: pa.array([plain(a.get(name), kind) for a in actions], kind) for name, kind in kinds.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def checkpoint(table: Path, version: int, *actions: dict[str, Any], name: str = "parquet", **more: Any) -> Path:
    path = table / "_delta_log" / f"{version:020}.checkpoint.{name}"
    parquet(path, *actions, **more)
    return path


def json_lines(path: Path, *actions: dict[str, Any]) -> None:
    path.write_text("\n".join(json.dumps(action) for action in actions))


def forget(table: Path, *versions: int) -> None:
    for version in versions:
        (table / "_delta_log" / f"{version:020}.json").unlink()


def test_files_are_those_added_and_not_removed_since_sorted_by_their_paths(tmp_path: Path) -> None:
    table = write_log(
        tmp_path / "t",
        [*START, add("b"), add("a"), add("c")],
        [remove("a"), {"cdc": {"path": "x"}}, {"txn": {"appId": "x", "version": 1}}, {"domainMetadata": {}}],
        [add("a", 7), remove("never there"), remove("c")],
    )

    assert [paths(table, version) for version in range(3)] == [["a", "b", "c"], ["b", "c"], ["a", "b"]]
    assert state_of(table).files[0].num_records == 7


def test_a_file_that_is_added_again_counts_once_as_it_was_added_last(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", [*START, add("a", 1)], [add("a", 2)])

    assert [(file.path, file.num_records) for file in state_of(table).files] == [("a", 2)]


def test_another_deletion_vector_of_a_file_is_another_file_until_the_first_is_removed(tmp_path: Path) -> None:
    one, two = inline_vector([1]), inline_vector([1, 2])
    start = [protocol("deletionVectors"), META, add("a", 9, deletionVector=one)]
    replaced = [remove("a", deletionVector=one), add("a", 9, deletionVector=two)]
    table = write_log(tmp_path / "t", start, replaced, [remove("a", deletionVector=one)])
    wrong = write_log(tmp_path / "wrong", start, replaced[1:])

    for version in (1, 2):
        (file,) = state_of(table, version).files
        assert file.deletion_vector is not None
        assert file.deletion_vector.cardinality == 2
    with pytest.raises(VerificationFailed, match="`a` twice in version 1"):
        state_of(wrong)


def test_paths_are_decoded_once_and_names_of_one_absolute_file_are_one(tmp_path: Path) -> None:
    table = write_log(
        tmp_path / "t",
        [
            *START,
            add("x=a%20b/c%2520d+e%F0%9F%8E%89.parquet"),
            add("/abs/p%20q"),
            add("file:///abs/r"),
            add("s3://b/k%20"),
        ],
        [remove("file:/abs/r"), remove("x=a%2520b/nothing")],
    )

    assert paths(table) == ["file:/abs/p q", "s3://b/k ", "x=a b/c%20d+e🎉.parquet"]
    assert TableFiles("s3://bucket/table", {}, "t").decoded("/a%20b") == "s3://bucket/a b"


def test_metadata_and_protocol_are_the_last_ones_up_to_the_version(tmp_path: Path) -> None:
    later = metadata(field("id", "long"), field("more", "string"), configuration={"delta.x": "1"})
    table = write_log(tmp_path / "t", START, [later, protocol("timestampNtz")])

    first, last = open_table(table, 0), open_table(table, 1)

    assert (first.schema.names, last.schema.names) == (["id"], ["id", "more"])
    assert (first.state.configuration, last.state.configuration) == ({}, {"delta.x": "1"})
    assert (first.state.features, last.state.features) == (frozenset(), frozenset({"timestampNtz"}))


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview", "geospatial", "somethingNew"])
def test_a_reader_feature_that_is_not_known_is_refused_by_its_name(tmp_path: Path, feature: str) -> None:
    table = write_log(tmp_path / "t", [protocol("timestampNtz", feature), META])

    with pytest.raises(Unsupported, match=f"needs `{feature}`") as caught:
        state_of(table)

    assert "--engine spark" in (caught.value.hint or "")


def test_known_reader_features_and_all_writer_features_are_read(tmp_path: Path) -> None:
    known = protocol(*READ)
    known["protocol"]["writerFeatures"] += ["rowTracking", "somethingNew"]

    assert state_of(write_log(tmp_path / "t", [known, META])).features == READ


def test_reader_version_2_means_column_mapping(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, META])

    assert state_of(table).features == {"columnMapping"}


@pytest.mark.parametrize(
    ("actions", "kind", "says"),
    [
        ([META], VerificationFailed, "no protocol"),
        ([PLAIN], VerificationFailed, "no schema"),
        ([PLAIN, {"metaData": {"id": "x"}}], VerificationFailed, "no schema"),
        ([PLAIN, {"metaData": {"schemaString": "{torn"}}], VerificationFailed, "the schema is no JSON"),
        ([PLAIN, {"metaData": {"schemaString": "{}", "format": {"provider": "orc"}}}], Unsupported, "`orc`"),
        ([{"protocol": {"minReaderVersion": 4}}, META], Unsupported, "reader version 4"),
        ([{"protocol": {}}, META], VerificationFailed, "no reader version"),
        ([*START, {"add": {"partitionValues": {}}}], VerificationFailed, "action that is none"),
        ([*START, {"add": "a"}], VerificationFailed, "action that is none"),
        ([*START, ["add"]], VerificationFailed, "which is no action"),
    ],
)
def test_a_log_without_what_every_table_has_is_refused(
    tmp_path: Path, actions: list[Any], kind: type[StageError], says: str
) -> None:
    table = write_log(tmp_path / "t", actions)

    with pytest.raises(kind, match=says):
        state_of(table)


@pytest.mark.parametrize("text", ["", '{"add": {"path"', "\x00\x00", '{"txn": {}} {"add"', "\xff"])
def test_a_torn_commit_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    table = write_log(tmp_path / "t", START, [add("a")])
    (table / "_delta_log" / f"{1:020}.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(VerificationFailed, match=r"00001\.json` is (no sequence of JSON objects|empty)"):
        state_of(table)


def test_a_commit_that_was_laid_out_for_reading_is_read(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", START, [])
    text = "\n".join(json.dumps(action, indent=2) for action in (add("a"), add("b")))
    (table / "_delta_log" / f"{1:020}.json").write_text(f"{text}\n\n")

    assert paths(table) == ["a", "b"]


def test_a_gap_in_the_log_is_an_error_and_no_skip(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", [*START, add("a")], [add("b")], [add("c")])
    forget(table, 1)

    with pytest.raises(VerificationFailed, match="no commit 1, which version 2"):
        state_of(table)


def test_compacted_commits_stand_in_for_those_that_were_cleaned_away(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", [*START, add("a")], [add("b")], [remove("a"), add("c")], [add("d")])
    log = table / "_delta_log"
    json_lines(log / f"{1:020}.{2:020}.compacted.json", remove("a"), add("b"), add("c"))
    json_lines(log / f"{1:020}.{3:020}.compacted.json", remove("a"), add("b"), add("c"), add("d"))
    assert paths(table) == ["b", "c", "d"]
    forget(table, 1, 2)

    assert [paths(table, version) for version in (0, 2, 3)] == [["a"], ["b", "c"], ["b", "c", "d"]]
    with pytest.raises(VerificationFailed, match="no commit 1"):
        state_of(table, 1)


def test_a_checkpoint_stands_for_all_commits_before_it(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", [*START, add("gone")], [remove("gone"), add("a", 3)], [add("b")])
    checkpoint(table, 1, PLAIN, META, remove("gone"), add("a", 3))
    forget(table, 0, 1)
    (table / "_delta_log" / "_last_checkpoint").write_text('{"version": 77, "size": 1')

    assert [(file.path, file.num_records) for file in state_of(table).files] == [("a", 3), ("b", None)]
    assert DeltaLog(TableFiles(str(table), {}, "t")).versions() == (1, 2)


def test_a_checkpoint_in_parts_counts_only_when_all_of_them_are_there(tmp_path: Path) -> None:
    table = write_log(tmp_path / "t", [*START, add("a")], [add("b")])
    checkpoint(table, 1, PLAIN, META, add("a"), name=f"{1:010}.{2:010}.parquet")
    assert paths(table) == ["a", "b"]
    forget(table, 0)
    with pytest.raises(VerificationFailed, match="no commit 0"):
        state_of(table)

    checkpoint(table, 1, add("b"), name=f"{2:010}.{2:010}.parquet")

    assert paths(table) == ["a", "b"]


@pytest.mark.parametrize("name", ["0e2f2a0c-1111.json", "0e2f2a0c-1111.parquet", "parquet"])
def test_a_checkpoint_may_keep_its_files_in_sidecars(tmp_path: Path, name: str) -> None:
    table = write_log(tmp_path / "t", START, [add("a"), add("b")])
    parquet(table / "_delta_log/_sidecars/one.parquet", add("a", 1))
    parquet(table / "_delta_log/_sidecars/two two.parquet", add("b", 2))
    sidecars: list[dict[str, Any]] = [{"sidecar": {"path": path}} for path in ("one.parquet", "two%20two.parquet")]
    actions = [{"checkpointMetadata": {"version": 1}}, PLAIN, META, *sidecars]
    if name.endswith("json"):
        json_lines(table / "_delta_log" / f"{1:020}.checkpoint.{name}", *actions)
    else:
        checkpoint(table, 1, *actions, name=name)
    forget(table, 0, 1)

    assert [(file.path, file.num_records) for file in state_of(table).files] == [("a", 1), ("b", 2)]

    (table / "_delta_log/_sidecars/one.parquet").unlink()
    with pytest.raises(StageError, match=r"one\.parquet"):
        state_of(table)


@pytest.mark.parametrize("damage", ["truncated", "empty", "no protocol"])
def test_a_damaged_checkpoint_is_passed_over_where_the_commits_are_there(tmp_path: Path, damage: str) -> None:
    table = write_log(tmp_path / "t", [*START, add("a")], [add("b")], [add("c")])
    checkpoint(table, 0, PLAIN, META, add("a"))
    path = checkpoint(table, 1, META, add("wrong"))
    if damage != "no protocol":
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-40])

    assert paths(table) == ["a", "b", "c"]
    forget(table, 0)
    assert paths(table) == ["a", "b", "c"]
    forget(table, 1)
    with pytest.raises(VerificationFailed, match="checkpoint"):
        state_of(table)


def test_statistics_and_partition_values_come_from_their_typed_forms_where_there_is_no_text(tmp_path: Path) -> None:
    import datetime as dt
    from decimal import Decimal

    parsed = pa.struct(
        [("d", pa.date32()), ("n", pa.decimal128(5, 2)), ("b", pa.bool_()), ("i", pa.int32()), ("s", pa.string())]
    )
    nulls = pa.struct([("v", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
    stats = pa.struct([("numRecords", pa.int64()), ("minValues", pa.struct([("v", pa.int64())])), ("nullCount", nulls)])
    kind = pa.struct(
        [("path", pa.string()), ("size", pa.int64()), ("partitionValues_parsed", parsed), ("stats_parsed", stats)]
    )
    values = {"d": dt.date(2024, 1, 2), "n": Decimal("1.50"), "b": True, "i": -3, "s": None}
    told = {"numRecords": 5, "minValues": {"v": 1}, "nullCount": {"v": 2, "s": {"x": 1}}}
    table = write_log(tmp_path / "t", START)
    checkpoint(
        table, 0, PLAIN, META,
        {"add": {"path": "a", "size": 1, "partitionValues_parsed": values, "stats_parsed": told}},
        add_type=kind,
    )  # fmt: skip

    (file,) = state_of(table).files

    assert dict(file.partition_values) == {"d": "2024-01-02", "n": "1.50", "b": "true", "i": "-3", "s": None}
    assert file.num_records == 5
    assert file.null_counts is not None
    assert file.null_counts["v"] == 2


@pytest.mark.parametrize("stats", ["{torn", '"text"', "null", "", '{"numRecords": "many", "nullCount": 3}', None])
def test_statistics_that_are_none_tell_nothing(tmp_path: Path, stats: str | None) -> None:
    table = write_log(tmp_path / "t", [*START, add("a", stats=stats)])

    (file,) = state_of(table).files

    assert (file.num_records, file.null_counts) == (None, None)
