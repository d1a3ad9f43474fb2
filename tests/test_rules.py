"""The rules of `inspect` as functions: each says something where it should, and nothing where it should not."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.errors import InvalidRequest
from uc_stage.inspection import facts as facts_of
from uc_stage.inspection import rules
from uc_stage.inspection.advice import layout, machine, ranks, rows, types
from uc_stage.inspection.facts import Facts, Machine, TableFacts
from uc_stage.model import Column, Field, InspectReport, InspectRequest, Packed, Problem, Spread
from uc_stage.storage import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from uc_stage.inspection.facts import Finding


ROOT = Path(__file__).parent.parent
MIB = 1024**2
# An id is for ever: one may be added here, and none taken away or given to another rule.
IDS = [
    *(f"UCS1{number:02}" for number in range(1, 16)),
    *(f"UCS2{number:02}" for number in range(1, 14)),
    *(f"UCS3{number:02}" for number in range(1, 5)),
    *(f"UCS4{number:02}" for number in range(1, 4)),
]


def facts(
    *,
    asked: dict[str, Any] | None = None,
    counts: dict[str, tuple[int, ...]] | None = None,
    environment: dict[str, str] | None = None,
    free: int | None = 2**50,
    installed: tuple[str, ...] = (),
    **known: Any,
) -> Facts:
    """Facts of a folder of one file of 1,000 rows, on a machine with room and without a library, but for `known`."""
    report = {"target": "data", "kind": "folder", "rows": 1000, "files": 1, "schema": (Field("id", "int64"),)}
    told = {name: known.pop(name) for name in list(known) if name in InspectReport.__dataclass_fields__}
    return Facts(
        request=InspectRequest("data", **asked or {}),
        report=InspectReport(**{**report, **told}),
        machine=Machine(environment or {}, lambda _: free, lambda package: package in installed),
        rows={"": (1000,)} if counts is None else counts,
        **known,
    )


def column(path: str = "id", **told: Any) -> Column:
    plain = {
        "path": path, "column": path.partition(".")[0], "physical": "INT64", "logical": None, "bytes": 0,
        "uncompressed": 0, "share": 1.0, "largest": 0, "values": 0, "nulls": 0, "encodings": (), "compression": (),
    }  # fmt: skip
    return Column(**{**plain, **told})


def only(check: Callable[[Facts], Iterator[Finding]], known: Facts) -> Finding:
    (found,) = check(known)
    return found


# The registry


def test_the_ids_are_those_of_ever_and_the_page_has_each_with_its_why() -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")

    assert [rule.id for rule in rules.RULES] == IDS
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == IDS
    for rule in rules.RULES:
        assert f"**{rule.title}** ({rule.severity}). {rule.why}" in page
        assert bool(rule.check) != bool(rule.problems and rule.fix)


def test_every_code_of_a_problem_belongs_to_a_rule() -> None:
    told = set()
    for path in (ROOT / "uc_stage" / "inspection").rglob("*.py"):
        told |= set(re.findall(r'Problem\(\s*"(\w+)"', path.read_text(encoding="utf-8")))
    codes = {code for rule in rules.RULES for code in rule.problems}

    assert told - {"truncated", "size_differs"} <= codes
    assert {"truncated", "size_differs", "missing", "changed"} <= codes
    for code in codes:
        (judged,) = rules.judged([Problem(code, "is odd", "a.parquet")], frozenset())
        assert code in next(rule.problems for rule in rules.RULES if rule.id == judged.rule)


def test_a_file_that_is_no_parquet_is_less_of_a_matter() -> None:
    told = [Problem("extra", "is no part of it", path) for path in ("a.parquet", "README.md")]

    assert [(one.rule, one.severity) for one in rules.judged(told, frozenset())] == [
        ("UCS106", "wrong"), ("UCS402", "info"),
    ]  # fmt: skip
    assert [one.path for one in rules.judged(told, frozenset({"UCS106"}))] == ["README.md"]


def test_an_unknown_rule_is_refused() -> None:
    assert rules.known(["ucs303", " UCS101 "]) == {"UCS303", "UCS101"}
    with pytest.raises(InvalidRequest, match="`--ignore UCS1O1` names no rule") as error:
        rules.known(["UCS101", "UCS1O1"])
    assert error.value.hint == "docs/rules.md has them, UCS101 to UCS403"


def test_advice_is_ranked_by_damage() -> None:
    bad = facts(
        asked={"world_size": 8},
        entries={"day=1/a.parquet": Entry("day=1/a.parquet", 1, None)},
        columns=(column("when", logical="timestamp(ns)"), column("then", physical="INT96")),
    )

    advice = rules.advise(bad, frozenset())

    assert [one.rule for one in advice] == ["UCS109", "UCS113", "UCS208", "UCS301", "UCS115"]
    assert [one.severity for one in advice] == ["wrong", "warn", "warn", "warn", "info"]
    assert [one.rule for one in rules.advise(bad, frozenset({"UCS109", "UCS208"}))] == ["UCS113", "UCS301", "UCS115"]


def test_nothing_is_said_of_an_ordinary_folder() -> None:
    assert rules.advise(facts(columns=(column(values=1000, uncompressed=8000),)), frozenset()) == ()


# Ranks and workers


def test_fewer_files_than_workers_are_told_with_how_many_stand_by() -> None:
    few = facts(asked={"world_size": 2, "workers": 4}, counts={"": (10,) * 6})

    found = only(ranks.few_files, few)

    assert found.message.startswith("6 files for 2 ranks of 4 workers: loaders that share out files leave 2 of 8")
    assert found.evidence == {
        "split": "", "files": 6, "readers": 8, "world_size": 2, "workers": 4, "batch_size": 256,
    }  # fmt: skip
    assert found.fix.startswith("uc-stage export TABLE DEST --world-size 2 --workers 4  # or uc_stage.loaders.torch")
    assert not list(ranks.few_files(dataclasses.replace(few, rows={"": (10,) * 8})))


def test_an_export_is_no_fix_where_there_are_fewer_rows_than_files_to_make() -> None:
    few = facts(asked={"world_size": 2, "workers": 2}, counts={"test": (0,), "train": (3,)})

    for check in (ranks.few_files, ranks.unequal_rows):
        assert only(check, few).fix == "fewer ranks or workers, or more rows: 3 rows cannot be cut into 4 files"
    assert "it lacks 1 batch of 256" in only(ranks.unequal_rows, few).message
    for check in (ranks.few_files, ranks.unequal_rows, ranks.uneven_files):
        assert not list(check(dataclasses.replace(few, rows={"": (0,)})))


def test_more_ranks_than_there_are_in_the_world_cost_no_time() -> None:
    many = facts(environment={"WORLD_SIZE": "999999999"}, counts={"": (1000, 400)})

    found = only(ranks.unequal_rows, many)

    assert found.message.startswith("dealt out file by file, rank 2 of 999999999 gets 0 rows and rank 0 1,000")
    assert found.evidence["ranks_with_fewer"] == 999_999_998


def test_ranks_are_a_matter_only_where_something_tells_of_them() -> None:
    alone = facts(counts={"": (10, 1000)})
    launched = facts(counts={"": (10, 1000)}, environment={"WORLD_SIZE": "4"})

    for check in (ranks.few_files, ranks.unequal_rows, ranks.uneven_files, ranks.small_shm):
        assert not list(check(alone))
    assert only(ranks.few_files, launched).evidence["readers"] == 4
    assert only(ranks.unequal_rows, launched).evidence["ranks_with_fewer"] == 3
    for text in ("0", "", "four"):
        assert not list(ranks.few_files(facts(environment={"WORLD_SIZE": text})))


def test_the_share_of_one_node_is_shared_out_over_its_own_ranks() -> None:
    shard = facts(asked={"world_size": 16}, counts={"": (1000,) * 4}, nodes=4)

    assert shard.ranks == 4
    assert not list(ranks.few_files(shard))
    assert not list(ranks.unequal_rows(shard))


def test_a_copy_as_arrow_is_shared_out_by_rows() -> None:
    arrow = {"train/a.arrow": Entry("train/a.arrow", 1, None)}
    mapped = facts(
        asked={"world_size": 8}, entries=arrow, columns=(column(values=10),), free=1, installed=("datasets",)
    )

    for check in (ranks.few_files, ranks.unequal_rows, ranks.uneven_files, machine.no_room):
        assert not list(check(mapped))


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    st.integers(1, 9),
    st.sampled_from([1, 32, 256]),
)
def test_the_batches_that_the_shortest_rank_lacks_are_counted(files: list[int], count: int, batch: int) -> None:
    dealt: dict[int, list[int]] = {rank: [] for rank in range(count)}
    for number, size in enumerate(files):
        dealt[number % count].append(size)
    batches = [math.ceil(sum(held) / batch) for held in dealt.values()]

    found = list(ranks.unequal_rows(facts(asked={"world_size": count, "batch_size": batch}, counts={"": tuple(files)})))

    lack = max(batches) - min(batches)
    assert [one.evidence["missing_batches"] for one in found] == ([lack] if lack else [])


def test_the_split_with_the_most_missing_batches_is_told() -> None:
    uneven = facts(asked={"world_size": 2}, counts={"test": (10, 600), "train": (100, 9000)})

    found = only(ranks.unequal_rows, uneven)

    assert found.message.startswith("`train`: dealt out file by file, rank 0 of 2 gets 100 rows and rank 1 9,000")
    assert found.fix.startswith("uc-stage export TABLE DEST --world-size 2 --drop-remainder")


def test_files_that_are_no_multiple_of_the_ranks_are_told() -> None:
    found = only(ranks.uneven_files, facts(asked={"world_size": 4}, counts={"": (1000,) * 9}))

    assert found.evidence["files"] == 9
    assert not list(ranks.uneven_files(facts(asked={"world_size": 3}, counts={"": (1000,) * 9})))


def test_shared_memory_is_compared_with_what_the_workers_of_a_node_keep_ready() -> None:
    wide: dict[str, Any] = {"columns": (column(values=1000, physical="DOUBLE"),), "free": 8 * 256 * 2 * 4 - 1}
    asked = {"workers": 4}

    found = only(ranks.small_shm, facts(asked=asked, **wide))

    assert found.evidence["need"] == 8 * 256 * 2 * 4
    assert found.evidence["batch_bytes"] == 8 * 256
    assert not list(ranks.small_shm(facts(asked=asked, **{**wide, "free": 8 * 256 * 2 * 4})))
    assert not list(ranks.small_shm(facts(asked=asked, **{**wide, "free": None})))
    many = facts(asked={"workers": 4, "world_size": 64}, environment={"LOCAL_WORLD_SIZE": "2"}, **wide)
    assert only(ranks.small_shm, many).evidence["local_ranks"] == 2
    assert facts(asked={"world_size": 64}).local_ranks == 8


# This machine


def test_an_arrow_copy_needs_room_where_datasets_writes_it() -> None:
    big: dict[str, Any] = {
        "columns": (column(values=1000), column("text", physical="BYTE_ARRAY", values=1000, uncompressed=99))
    }
    known: dict[str, Any] = {**big, "environment": {"HF_HOME": "/data/hf"}, "installed": ("datasets",), "free": 11_999}

    found = only(machine.no_room, facts(**known))

    assert found.evidence == {"need": 12_000, "free": 11_999, "cache": "/data/hf/datasets"}
    assert "uc-stage cache data --as arrow" in found.fix
    for other in ({"free": 12_000}, {"free": None}, {"installed": ()}, {"columns": ()}, {"kind": "table"}):
        assert not list(machine.no_room(facts(**{**known, **other})))


def test_a_cache_of_hugging_face_on_a_volume_is_told_by_the_variable_that_puts_it_there() -> None:
    for variables, name in (
        ({"HF_HOME": "/Volumes/main/x"}, "HF_HOME"),
        ({"HF_DATASETS_CACHE": "/dbfs/hf", "HF_HOME": "/tmp/hf"}, "HF_DATASETS_CACHE"),
    ):
        assert only(machine.shared_cache, facts(environment=variables)).evidence["variable"] == name
    for variables in ({}, {"HF_HOME": "/tmp/Volumes"}, {"XDG_CACHE_HOME": "/Volumes/x"}):
        assert not list(machine.shared_cache(facts(environment=variables)))


# Files and row groups


def test_row_groups_that_are_too_large_or_too_small_are_told() -> None:
    large = facts(row_groups=2, row_group_bytes=Spread(MIB, MIB, 513 * MIB))
    small = facts(row_groups=200, files=2, row_group_bytes=Spread(1, MIB - 1, 64 * MIB))

    assert only(layout.large_groups, large).evidence["largest"] == 513 * MIB
    assert only(layout.small_groups, small).evidence == {"row_groups": 200, "median": MIB - 1, "files": 2}
    assert not list(layout.large_groups(small))
    assert not list(layout.small_groups(large))
    # One in each file is as many as there can be.
    assert not list(layout.small_groups(facts(row_groups=200, files=200, row_group_bytes=Spread(1, 1, 1))))


def test_a_nested_column_near_two_gibibytes_in_one_row_group_is_told() -> None:
    near = column("words.list.element", largest=3 * 2**29)
    flat = column("text", largest=2**32)

    found = only(layout.nested_columns, facts(columns=(near, flat)))

    assert found.evidence["columns"] == {"words.list.element": 3 * 2**29}
    assert found.fix == "uc-stage export TABLE DEST --row-group-size 64MiB"
    assert not list(layout.nested_columns(facts(columns=(flat, column("a.b", largest=3 * 2**29 - 1)))))


def test_many_small_files_are_told_with_what_makes_them_few() -> None:
    tiny = Spread(1, MIB - 1, MIB)
    images: dict[str, Any] = {"files": 1000, "file_bytes": tiny, "schema": (), "counts": {}}

    assert (
        only(layout.small_files, facts(files=100, file_bytes=tiny)).fix
        == "uc-stage export TABLE DEST --file-size 512MiB"
    )
    assert only(layout.small_files, facts(**images)).fix == "uc-stage cache data --pack"
    assert only(layout.small_files, facts(**images, kind="copy", origin="/Volumes/a b")).fix == (
        "uc-stage cache '/Volumes/a b' --pack"
    )
    for other in (
        facts(files=99, file_bytes=tiny),
        facts(files=100, file_bytes=Spread(1, MIB, MIB)),
        facts(files=128, file_bytes=tiny, asked={"world_size": 8, "workers": 4}),
        facts(**{**images, "files": 999}),
        facts(**images, packed=Packed(1, 1, 1)),
    ):
        assert not list(layout.small_files(other))


def test_no_rows_and_no_columns_are_told() -> None:
    assert only(layout.no_rows, facts(counts={"train": (10,), "test": (0,)})).message.startswith(
        "the split `test` holds"
    )
    assert only(layout.no_rows, facts(counts={"": (0, 0)})).message.startswith("it holds no rows")
    assert only(layout.no_rows, facts(schema=())).evidence == {"columns": 0, "rows": 1000}
    assert not list(layout.no_rows(facts(counts={}, schema=())))


# Rows that are wrong


def test_names_of_folders_hold_columns_that_loaders_drop() -> None:
    paths = ["year=2026/day=a%2Fb/x.parquet", "id=1/y.parquet", "notes=2.txt"]
    entries = {path: Entry(path, 1, None) for path in paths}

    found = only(rows.partition_columns, facts(entries=entries))

    assert found.evidence == {"columns": ["year", "day"]}
    assert "partitioning='hive'" in found.fix


def test_names_with_an_underscore_are_told_apart_from_partitions() -> None:
    paths = ["_part/x.parquet", "a/_y.parquet", "_day=1/z.parquet", "t/_delta_log/1.parquet", "_SUCCESS", "a_b.parquet"]
    entries = {path: Entry(path, 1, None) for path in paths}

    assert only(rows.underscored, facts(entries=entries)).evidence == {"files": 2, "first": "_part/x.parquet"}
    assert not list(rows.underscored(facts(entries=entries, kind="file")))


def test_a_tables_log_tells_what_its_files_hold_beyond_it() -> None:
    table = TableFacts(7, 2, {"id": "col-1"}, ("day",), (10,) * 100, 3)
    known = facts(kind="table", version=5, table=table, counts={})

    deleted = only(rows.deleted_rows, known)
    assert deleted.evidence == {
        "deleted_rows": 7, "files_with_deletion_vectors": 2,
        "files_of_other_versions": 3,
    }  # fmt: skip
    assert "7 rows that deletion vectors hide and the rows of 3 Parquet files" in deleted.message
    assert deleted.fix == "uc-stage export data DEST"
    assert only(rows.renamed_columns, known).evidence == {"renamed": {"id": "col-1"}}
    assert only(rows.partition_columns, known).evidence == {"columns": ["day"]}
    assert only(layout.small_files, known).evidence == {"files": 100, "median": 10}
    plain = dataclasses.replace(known, table=TableFacts(0, 0, {}, (), (10,), 0))
    assert rules.advise(plain, frozenset()) == ()


# Types


def test_types_are_asked_of_the_library_where_it_is_installed_and_told_with_the_cast() -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(9, 2)),
            ("when", pa.timestamp("us", "UTC")),
            ("tags", pa.map_(pa.string(), pa.int64())),
            ("pair", pa.struct([("a, b", pa.list_(pa.float32())), ("c", pa.map_(pa.string(), pa.int8()))])),
            ("span", pa.duration("us")),
        ]
    )
    fields = tuple(Field(field.name, str(field.type)) for field in schema)
    known: dict[str, Any] = {"schema": fields, "asked": {"workers": 1}}

    def with_types(installed: tuple[str, ...]) -> Facts:
        return dataclasses.replace(facts(**known, installed=installed), schema=lambda: schema)

    by_library = only(types.datasets_types, with_types(("datasets", "torch")))
    by_list = only(types.datasets_types, with_types(()))
    assert list(by_library.evidence["columns"]) == list(by_list.evidence["columns"]) == ["tags", "pair"]
    assert by_library.evidence["asked"].startswith("datasets ")
    assert by_list.evidence["asked"] is None
    assert by_library.fix == "uc-stage export TABLE DEST --cast tags=entries --exclude-columns pair"
    torch = only(types.torch_types, with_types(("datasets", "torch")))
    assert list(torch.evidence["columns"]) == ["price", "when", "tags", "pair", "span"]
    assert "default_collate" in torch.evidence["reasons"]["when"]
    assert torch.fix.startswith("uc-stage export TABLE DEST --cast price=float64 --cast when=int64 --cast tags=entries")
    # To import torch takes seconds: nobody waits for it who did not speak of a training.
    untold = dataclasses.replace(with_types(("torch",)), request=InspectRequest("data"))
    assert not list(types.torch_types(untold))


def test_no_footer_is_read_for_types_that_every_loader_takes() -> None:
    def never() -> pa.Schema:
        raise AssertionError

    kinds = ["list<element: struct<a: int32 not null, b c: string>>", "bool", "large_list<item: binary>", "halffloat"]
    plain = facts(schema=tuple(Field(f"c{n}", kind) for n, kind in enumerate(kinds)))

    assert not list(types.datasets_types(dataclasses.replace(plain, schema=never)))


@pytest.mark.parametrize(
    "kind",
    [
        pa.uuid(), pa.dictionary(pa.int8(), pa.timestamp("ms")), pa.list_(pa.date32(), 2), pa.null(),
        pa.large_list(pa.time64("us")), pa.decimal256(40, 1),
    ],
    ids=str,
)  # fmt: skip
def test_torch_is_asked_with_values_of_any_type(kind: pa.DataType) -> None:
    schema = pa.schema([("c", kind)])
    known = facts(schema=(Field("c", str(kind)),), asked={"batch_size": 2}, installed=("torch",))

    found = list(types.torch_types(dataclasses.replace(known, schema=lambda: schema)))

    # A UUID is bytes to Python, which torch leaves as they are.
    assert bool(found) == (kind != pa.uuid())


def test_a_type_without_a_known_value_says_nothing_of_torch() -> None:
    schema = pa.schema([("c", pa.month_day_nano_interval())])
    known = facts(schema=(Field("c", "month_day_nano_interval"),), asked={"batch_size": 2}, installed=("torch",))

    assert not list(types.torch_types(dataclasses.replace(known, schema=lambda: schema)))


def test_a_type_that_the_installed_library_takes_is_no_matter() -> None:
    schema = pa.schema([("c", pa.string_view())])
    known = facts(schema=(Field("c", "string_view"),), installed=("datasets",))

    assert not list(types.datasets_types(dataclasses.replace(known, schema=lambda: schema)))


def test_a_library_that_is_broken_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("when", pa.timestamp("us"))])
    known = facts(schema=(Field("when", "timestamp[us]"),), asked={"batch_size": 2}, installed=("torch",))
    monkeypatch.setitem(sys.modules, "torch", None)

    found = only(types.torch_types, dataclasses.replace(known, schema=lambda: schema))

    assert (found.evidence["asked"], found.evidence["reasons"]) == (None, {"when": "torch has no such dtype"})


# The facts


def test_the_files_beside_a_version_are_counted_by_their_names(tmp_path: Path) -> None:
    for path in (
        "a.parquet",
        "b.parquet",
        "day=1/c.parquet",
        "_delta_log/1.checkpoint.parquet",
        ".x/d.parquet",
        "e.txt",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()

    assert facts_of._others(str(tmp_path), {"a.parquet"}) == 2
    assert facts_of._others(str(tmp_path), {"a.parquet", "b.parquet", "day=1/c.parquet"}) == 0
    for elsewhere in ("main.sales.orders", str(tmp_path / "gone"), "s3://bucket/orders"):
        assert facts_of._others(elsewhere, set()) == 0


def test_this_machine_tells_what_is_free_and_installed(tmp_path: Path) -> None:
    here = Machine.here()

    assert (here.free(str(tmp_path / "not" / "there")) or 0) > 0
    assert (here.installed("pyarrow"), here.installed("no_such_package")) == (True, False)
