from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.fixtures.delta import export, make_kinds, parquet_files, read_export, request
from tests.fixtures.shell import tree
from uc_stage import exporting
from uc_stage.errors import InvalidRequest, StageError, Unsupported, VerificationFailed
from uc_stage.exporting import choose_engine
from uc_stage.manifest import MANIFEST_PATH, Manifest
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder, open_folder


def manifest_of(dest: object) -> Manifest:
    manifest = read_manifest(LocalFolder(str(dest)))
    assert manifest is not None
    return manifest


class Watcher:
    """A progress that writes down what it is told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None, str]] = []
        self.done: dict[str, int] = {}

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        self.phases.append((name, total, unit))

    def advance(self, amount: int) -> None:
        name = self.phases[-1][0]
        self.done[name] = self.done.get(name, 0) + amount

    def note(self, message: str) -> None:
        raise AssertionError(message)


def test_an_export_is_its_files_and_a_manifest_that_names_them(table: str, dest: Path) -> None:
    import xxhash

    report = export(table, dest, files=3)

    manifest = manifest_of(dest)
    names = [os.path.basename(path) for path in parquet_files(dest)]
    assert names == [f"train-0000{index}-of-00003-{report.generation}.parquet" for index in range(3)]
    assert [file.path for file in manifest.files] == names
    for file in manifest.files:
        data = (dest / file.path).read_bytes()
        assert (file.bytes, file.xxh3_128) == (len(data), xxhash.xxh3_128_hexdigest(data))
    assert set(tree(dest)) == {*names, MANIFEST_PATH}
    assert (report.status, report.version, report.rows, report.files) == ("done", 3, 1000, 3)
    assert (report.id, report.bytes, report.retired) == (manifest.id, manifest.size, 0)
    assert (report.engine, report.dest, report.table) == ("local", str(dest), table)
    assert manifest.source.table_id == str(DeltaTable(table).metadata().id)


def test_hugging_face_loads_the_folder_and_the_glob(table: str, dest: Path, tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    export(table, dest, files=4)

    by_folder = datasets.load_dataset(str(dest), cache_dir=str(tmp_path / "one"))
    by_glob = datasets.load_dataset("parquet", data_files=f"{dest}/*.parquet", cache_dir=str(tmp_path / "two"))

    for loaded in (by_folder, by_glob):
        assert list(loaded) == ["train"]
        assert sorted(loaded["train"]["id"]) == list(range(1000))


def test_an_unchanged_table_is_nothing_to_do(table: str, dest: Path) -> None:
    first = export(table, dest)
    before = tree(dest)

    again = export(table, dest, version=3)

    assert (again.status, again.generation, again.rows, again.bytes) == (
        "unchanged",
        first.generation,
        1000,
        first.bytes,
    )
    assert tree(dest) == before


@pytest.mark.parametrize(
    "asked",
    [{"columns": ("id",)}, {"where": "id < 5"}, {"limit": 5}, {"version": 1}, {"files": 2}, {"compression": "none"}],
)
def test_another_request_replaces_what_is_there(table: str, dest: Path, asked: dict[str, Any]) -> None:
    first = export(table, dest)

    second = export(table, dest, **asked)

    assert second.status == "done"
    assert second.id != first.id
    assert second.retired == 1
    assert len(parquet_files(dest)) == second.files


def test_a_new_version_replaces_the_one_before(table: str, dest: Path) -> None:
    export(table, dest, files=2)
    write_deltalake(table, pa.table({"id": [5000], "half": [0.5], "text": ["new"]}), mode="append")

    report = export(table, dest, files=2)

    assert (report.status, report.version, report.rows, report.retired) == ("done", 4, 1001, 2)
    assert len(parquet_files(dest)) == 2


def test_force_writes_again(table: str, dest: Path) -> None:
    first = export(table, dest)

    again = export(table, dest, force=True)

    assert (again.status, again.id) == ("done", first.id)
    assert again.generation != first.generation


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_an_export_that_is_not_whole_is_written_again(table: str, dest: Path, damage: str) -> None:
    export(table, dest, files=2)
    victim = Path(parquet_files(dest)[0])
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1])

    report = export(table, dest, files=2)

    assert report.status == "done"
    assert sorted(row["id"] for row in read_export(dest)) == list(range(1000))


def test_keep_leaves_earlier_generations_to_those_who_read_them(table: str, dest: Path) -> None:
    first = export(table, dest, version=0)
    second = export(table, dest, version=1, keep=1)

    assert second.retired == 0
    assert len(parquet_files(dest)) == 2
    assert list(manifest_of(dest).retained) == [first.generation]
    third = export(table, dest, version=2, keep=1)
    assert (third.retired, len(parquet_files(dest))) == (1, 2)


def test_a_plan_writes_nothing_and_says_what_would_be_done(table: str, dest: Path) -> None:
    with exporting.prepare(request(table, dest, where="id < 100", files=7)) as prepared:
        plan = prepared.plan

    assert (plan.action, plan.rows, plan.files, plan.engine) == ("write", 100, 7, "local")
    assert not dest.exists()
    report = export(table, dest, where="id < 100", files=7)
    with exporting.prepare(request(table, dest, where="id < 100", files=7)) as prepared:
        assert (prepared.plan.action, prepared.plan.id) == ("unchanged", report.id)


def test_files_are_as_many_as_the_tables_bytes_fill(table: str, dest: Path) -> None:
    size = sum(os.path.getsize(path) for path in Path(table).glob("*.parquet"))

    def files(**asked: Any) -> int:
        with exporting.prepare(request(table, dest, **asked)) as prepared:
            return prepared.plan.files

    assert files() == 1
    assert files(file_bytes=size) == 1
    assert files(file_bytes=size - 1) == 2
    assert files(file_bytes=size // 10) in {10, 11}
    assert files(file_bytes=size // 20, limit=100) in {2, 3}
    assert files(file_bytes=size // 20, where="id < 100") in {2, 3}
    assert files(file_bytes=1, limit=3) == 3
    assert files(file_bytes=1, limit=0) == 1


def test_progress_tells_rows_and_then_files(table: str, dest: Path) -> None:
    watcher = Watcher()

    exporting.run(request(table, dest, where="id >= 500", files=2), watcher)

    assert watcher.phases == [
        ("resolve", None, "bytes"), ("count", None, "bytes"), ("write", 500, "rows"), ("footers", 2, "files"),
    ]  # fmt: skip
    assert watcher.done == {"write": 500, "footers": 2}


def test_an_interrupt_while_writing_leaves_nothing(table: str, dest: Path) -> None:
    class Interrupted(Watcher):
        def advance(self, amount: int) -> None:
            raise KeyboardInterrupt(amount)

    with pytest.raises(KeyboardInterrupt):
        exporting.run(request(table, dest, files=3), Interrupted())

    assert not dest.exists()


def test_a_file_that_an_engine_does_not_tell_of_keeps_an_export_from_being_published(
    table: str, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uc_stage.engines.local import LocalEngine

    whole = LocalEngine.write

    def write(self: LocalEngine, plan: Any, publication: Any, progress: Any) -> dict[str, tuple[str, ...]]:
        return {split: names[1:] for split, names in whole(self, plan, publication, progress).items()}

    monkeypatch.setattr(LocalEngine, "write", write)
    with pytest.raises(VerificationFailed, match="`train` should have 3 files, and 2 were written"):
        export(table, dest, files=3)
    assert not dest.exists()


def test_what_an_engine_wrote_is_checked_before_it_is_published(
    table: str, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(table, dest, version=0)
    before = tree(dest)

    from uc_stage.engines.local import LocalEngine

    whole = LocalEngine.write

    def tampered(change: Any, *, known: bool = False) -> Any:
        def write(self: LocalEngine, plan: Any, publication: Any, progress: Any) -> dict[str, tuple[str, ...]]:
            names = whole(self, plan, publication, progress)
            change(publication.folder.locate(names["train"][0]))
            if not known:
                publication.written.clear()  # as with an engine that writes elsewhere
            return names

        return write

    def rewrite(path: str, change: Any) -> None:
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)

    def add_empty_row_group(path: str) -> None:
        read = pq.read_table(path, partitioning=None)
        with pq.ParquetWriter(path, read.schema, store_schema=False) as writer:
            writer.write_table(read)
            writer.write_table(read.slice(0, 0))

    changes = {
        "were written": lambda path: rewrite(path, lambda read: read.slice(1)),
        "another schema": lambda path: rewrite(
            path, lambda read: read.set_column(0, "id", read["id"].cast(pa.int32()))
        ),
        "its order": lambda path: rewrite(path, lambda read: read.select(["half", "id", "text"])),
        "row group of no rows": add_empty_row_group,
        "not whole Parquet": lambda path: Path(path).write_bytes(Path(path).read_bytes()[:-3]),
        "No such file": os.unlink,
    }
    for says, change in changes.items():
        monkeypatch.setattr(LocalEngine, "write", tampered(change))
        with pytest.raises(StageError, match=says):
            export(table, dest, files=2)
        assert tree(dest) == before
    monkeypatch.setattr(LocalEngine, "write", tampered(lambda path: rewrite(path, lambda read: read), known=True))
    with pytest.raises(VerificationFailed, match="were written"):
        export(table, dest, files=2)
    assert tree(dest) == before


@pytest.mark.parametrize("place", [".", "inside", "_delta_log/deeper"])
def test_an_export_does_not_go_into_a_tables_folder(table: str, place: str) -> None:
    with pytest.raises(InvalidRequest, match="lies in the Delta table"):
        export(table, Path(table) / place)


def test_an_export_goes_neither_over_a_file_nor_nowhere(table: str, dest: Path) -> None:
    dest.write_text("mine")
    with pytest.raises(InvalidRequest, match="not a folder"):
        export(table, dest)
    with pytest.raises(InvalidRequest, match="DEST is empty"):
        export(table, " ")

    assert dest.read_text() == "mine"


def test_parquet_files_of_others_are_left_alone_and_refused(table: str, dest: Path) -> None:
    dest.mkdir()
    (dest / "theirs.parquet").write_bytes(b"x")

    with pytest.raises(InvalidRequest, match=r"theirs\.parquet"):
        export(table, dest)

    assert tree(dest) == {"theirs.parquet": b"x"}


def test_a_damaged_manifest_is_told_with_the_way_that_mends_it(table: str, dest: Path) -> None:
    export(table, dest)
    (dest / MANIFEST_PATH).write_bytes(b"{")

    with pytest.raises(VerificationFailed) as caught:
        export(table, dest)

    assert caught.value.hint is not None
    assert f"remove `{dest}` and export again" in caught.value.hint
    shutil.rmtree(dest)
    assert export(table, dest).status == "done"


def test_a_manifest_of_a_newer_format_is_left_alone(table: str, dest: Path) -> None:
    export(table, dest)
    newer = {**json.loads((dest / MANIFEST_PATH).read_bytes()), "format": "uc-stage/2"}
    (dest / MANIFEST_PATH).write_text(json.dumps(newer))
    before = tree(dest)

    with pytest.raises(Unsupported, match="uc-stage/2"):
        export(table, dest, force=True)

    assert tree(dest) == before


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"files": 1, "file_bytes": 1}, "exclude each other"),
        ({"files": 0}, "--files 0"),
        ({"file_bytes": 0}, "--file-size 0"),
        ({"row_group_bytes": 0}, "--row-group-size 0"),
        ({"limit": -1}, "--limit -1"),
        ({"keep": -1}, "--keep -1"),
        ({"where": "nope = 1"}, "`nope`"),
    ],
)
def test_a_request_that_cannot_be_right_is_refused_before_anything_is_made(
    table: str, dest: Path, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        export(table, dest, **asked)

    assert not dest.exists()


def test_an_export_goes_to_a_url_and_back(table: str) -> None:
    url = "memory://export-test/numbers"
    report = export(table, url, files=2)

    folder = open_folder(url)
    manifest = read_manifest(folder)
    assert manifest is not None
    rows = [row for file in manifest.files for row in pq.read_table(folder.open(file.path)).to_pylist()]
    assert (report.dest, sorted(row["id"] for row in rows)) == (url, list(range(1000)))
    assert export(table, url, files=2).status == "unchanged"


def test_a_url_inside_a_table_is_refused(table: str) -> None:
    with pytest.raises(InvalidRequest, match="lies in the table itself"):
        export("memory://bucket/table", "memory://bucket/table/export")
    open_folder("memory://other/table").put("_delta_log/0.json", b"{}")
    with pytest.raises(InvalidRequest, match="lies in the Delta table"):
        export(table, "memory://other/table")


def test_the_manifest_that_vanishes_after_the_plan_is_not_called_unchanged(table: str, dest: Path) -> None:
    export(table, dest)
    with exporting.prepare(request(table, dest)) as prepared:
        os.unlink(dest / MANIFEST_PATH)
        with pytest.raises(StageError, match="manifest"):
            prepared.execute()


def test_every_kind_of_column_survives_the_way(tmp_path: Path, dest: Path) -> None:
    table = make_kinds(tmp_path / "kinds")

    export(table, dest)

    wanted = sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: row["key"])
    assert repr(sorted(read_export(dest), key=lambda row: row["key"])) == repr(wanted)


def test_the_engine_is_chosen_by_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "SPARK_REMOTE", "DATABRICKS_RUNTIME_VERSION", "DATABRICKS_CLUSTER_ID", "DATABRICKS_SERVERLESS_COMPUTE_ID",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    # Other tests of this process may have a session.
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)

    def chosen(table: str, **asked: Any) -> tuple[str, str]:
        return choose_engine(request(table, tmp_path, **asked))

    assert chosen("main.s.t") == (
        "local",
        "a name of the catalog and no Spark session: its files are read with the catalog's credentials",
    )
    assert chosen("/a/path", remote="sc://x")[0] == "local"
    assert chosen("s3://a/path")[0] == "local"
    assert chosen("main.s.t", engine="spark") == ("spark", "asked for")
    assert chosen("main.s.t", engine="local", remote="sc://x") == ("local", "asked for")
    assert chosen("main.s.t", remote="sc://x")[0] == "spark"

    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.s.t").mkdir()
    assert chosen("main.s.t", remote="sc://x")[0] == "local"
    os.rmdir(tmp_path / "main.s.t")

    for name, says in [
        ("SPARK_REMOTE", "Spark Connect server"),
        ("DATABRICKS_RUNTIME_VERSION", "runtime has"),
    ]:
        with monkeypatch.context() as patch:
            patch.setenv(name, "x")
            engine, reason = chosen("main.s.t")
            assert engine == "spark"
            assert says in reason
    with monkeypatch.context() as patch:
        session = SimpleNamespace(getActiveSession=lambda: None)
        module = ModuleType("pyspark.sql")
        module.SparkSession = session  # type: ignore[attr-defined]  # a module of the test's own
        patch.setitem(sys.modules, "pyspark.sql", module)
        assert chosen("main.s.t")[0] == "local"
        session.getActiveSession = object
        assert chosen("main.s.t") == ("spark", "a name of the catalog, and this process has a Spark session")
    with monkeypatch.context() as patch:
        patch.setenv("DATABRICKS_CLUSTER_ID", "x")
        patch.setattr("importlib.util.find_spec", {}.get)
        assert chosen("main.s.t")[0] == "local"
        patch.setattr("importlib.util.find_spec", str)
        assert chosen("main.s.t") == (
            "spark",
            "a name of the catalog, and Databricks Connect is installed and DATABRICKS_CLUSTER_ID names its compute",
        )
