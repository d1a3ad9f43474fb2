from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.copies import leftovers
from tests.fixtures.delta import export as export_table
from tests.fixtures.delta import make_numbers
from tests.fixtures.exports import make_export
from uc_stage import caching, inspection, pruning
from uc_stage.benchmark import readers, recipes
from uc_stage.benchmark.jobs import Job
from uc_stage.errors import InvalidRequest, NoSpace, Unsupported, VerificationFailed
from uc_stage.forms import arrow, arrow_schema, sink
from uc_stage.loaders.arrow import batches, share
from uc_stage.loaders.huggingface import huggingface
from uc_stage.loaders.torch import ParquetBatches
from uc_stage.model import CacheReport, CacheRequest, InspectRequest, PruneRequest
from uc_stage.publish import read_copy
from uc_stage.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from tests.fixtures.volume import Volume


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., CacheRequest]:
    def make(source: object, **options: Any) -> CacheRequest:
        return CacheRequest(str(source), **{"cache_dir": str(tmp_path / "cache"), "form": "arrow", **options})

    return make


@pytest.fixture
def cache(request_of: Callable[..., CacheRequest]) -> Callable[..., CacheReport]:
    return lambda source, **options: caching.run(request_of(source, **options))


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`datasets`, with a cache folder of its own that must stay empty."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    yield datasets
    assert not (tmp_path / "hf").exists()


def allocated(act: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives, and the bytes that Arrow allocated for it in memory."""
    before = pa.total_allocated_bytes()
    given = act()
    return given, pa.total_allocated_bytes() - before


def rows_in(source: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of an export by split, in the manifest's order."""
    manifest = open_source(source).manifest
    assert manifest is not None
    return {
        split: [row for file in files for row in pq.ParquetFile(f"{source}/{file.path}").read().to_pylist()]
        for split, files in manifest.splits.items()
    }


def put(folder: Path, tables: dict[str, pa.Table], **options: Any) -> str:
    for name, table in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name, **options)
    return str(folder)


class TestWithDatasets:
    def test_an_export_loads_split_by_split_in_its_order_without_a_second_copy(
        self, cache: Callable[..., CacheReport], tmp_path: Path, hf: Any
    ) -> None:
        dest = str(tmp_path / "export")
        export_table(
            make_numbers(tmp_path / "table", 60_000, commits=3), dest, files=3, shuffle=True,
            splits=(("train", 0.8), ("test", 0.2)),
        )  # fmt: skip

        report = cache(dest)
        loaded, memory = allocated(lambda: hf.load_from_disk(report.path))

        assert {split: dataset.to_list() for split, dataset in loaded.items()} == rows_in(dest)
        assert list(loaded) == ["train", "test"]
        size = sum(dataset.data.nbytes for dataset in loaded.values())
        assert memory < 10_000 < size
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped = maps.read()
        files = [file["filename"] for dataset in loaded.values() for file in dataset.cache_files]
        assert len(files) == 6
        assert all(file in mapped and file.startswith(f"{report.path}/") for file in files)
        one, memory = allocated(lambda: hf.Dataset.from_file(files[0]))
        assert one.num_rows > 0
        assert memory < 10_000
        assert report.bytes == sum(os.path.getsize(os.path.join(d, n)) for d, _, names in os.walk(report.path)
                                   for n in names if ".uc_stage" not in d)  # fmt: skip

    def test_what_datasets_would_cast_in_memory_is_written_as_it_takes_it(
        self, cache: Callable[..., CacheReport], tmp_path: Path, hf: Any
    ) -> None:
        table = pa.table(
            {
                "kind": pa.array(["red", "green"] * 20_000).dictionary_encode(),
                "id": pa.array(range(40_000)),
                "tags": pa.array([[1, 2], None] * 20_000, pa.list_(pa.field("element", pa.int8(), nullable=False))),
            },
            pa.schema(
                [
                    ("kind", pa.dictionary(pa.int32(), pa.string())),
                    pa.field("id", pa.int64(), nullable=False),
                    ("tags", pa.list_(pa.field("element", pa.int8(), nullable=False))),
                ]
            ),
        )
        source = put(tmp_path / "source", {"a.parquet": table, "b.parquet": table})

        path = cache(source).path
        loaded, memory = allocated(lambda: hf.load_from_disk(path)["train"])

        assert memory < 10_000
        assert loaded.to_list() == table.to_pylist() * 2
        assert loaded.features["kind"].dtype == "string"

    def test_an_empty_export_loads_with_its_columns(
        self, cache: Callable[..., CacheReport], tmp_path: Path, hf: Any
    ) -> None:
        dest = str(tmp_path / "export")
        export_table(make_numbers(tmp_path / "table", 10), dest, where="id < 0")

        loaded = hf.load_from_disk(cache(dest).path)

        assert loaded["train"].num_rows == 0
        assert list(loaded["train"].features) == ["id", "half", "text"]

    def test_features_that_a_file_brings_survive(
        self, cache: Callable[..., CacheReport], tmp_path: Path, hf: Any
    ) -> None:
        features = hf.Features({"label": hf.ClassLabel(names=["cat", "dog"]), "text": hf.Value("string")})
        made = hf.Dataset.from_dict({"label": [0, 1], "text": ["a", "b"]}, features=features)
        source = put(tmp_path / "source", {"x.parquet": made.data.table})

        assert hf.load_from_disk(cache(source).path)["train"].features == features

    def test_what_datasets_keeps_beside_it_neither_troubles_a_run_nor_keeps_the_copy(
        self, cache: Callable[..., CacheReport], tmp_path: Path, hf: Any
    ) -> None:
        make_export(str(tmp_path / "orders"))
        path = cache(tmp_path / "orders").path
        hf.load_from_disk(path)["train"].map(lambda row: {"twice": 2 * row["id"]})
        assert [name for name in os.listdir(f"{path}/train") if name.startswith("cache-")]

        assert cache(tmp_path / "orders").status == "unchanged"
        assert inspection.run(InspectRequest(path)).problems == ()
        removed = pruning.run(PruneRequest((path,), str(tmp_path / "cache"))).removed

        assert removed == (path,)
        assert not os.path.exists(path)

    def test_what_is_plain_needs_no_datasets_to_be_asked_and_is_taken_by_it_as_it_is(self, hf: Any) -> None:
        plain = [
            pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.time32("ms"), pa.time64("us"),
            pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"), pa.date32(), pa.date64(), pa.duration("s"),
            pa.decimal128(38, 2), pa.decimal256(60, 1), pa.binary(), pa.large_binary(), pa.string(), pa.large_string(),
            pa.list_(pa.int8()), pa.large_list(pa.string()), pa.list_(pa.float32(), 4),
            pa.struct([("a", pa.list_(pa.struct([("b", pa.date32())])))]), pa.dictionary(pa.int8(), pa.string()),
        ]  # fmt: skip
        for kind in plain:
            found = arrow_schema._plain(kind)
            assert found == hf.Features.from_arrow_schema(pa.schema([("c", kind)])).arrow_schema.field(0).type, kind
        assert arrow_schema._asked(pa.string_view()) == pa.string_view()
        assert arrow_schema._asked(pa.month_day_nano_interval()) is None


def test_the_size_is_planned_a_little_above_what_it_comes_to(
    volume: Volume, request_of: Callable[..., CacheRequest], tmp_path: Path
) -> None:
    rows = 20_000
    table = pa.table(
        {
            "id": range(rows),
            "maybe": pa.array([None if i % 9 else i for i in range(rows)], pa.int16()),
            "kind": [("red", "green", "a longer one")[i % 3] for i in range(rows)],
            "text": [f"row {i}" for i in range(rows)],
            "tags": [[i] * (i % 5) if i % 7 else None for i in range(rows)],
            "point": pa.array([[0.5] * 4 if i % 3 else None for i in range(rows)], pa.list_(pa.float32(), 4)),
            "nested": [{"a": i, "b": [{"c": True}]} for i in range(rows)],
            "long": pa.array(["x" * (i % 30) for i in range(rows)], pa.large_string()),
            "nothing": pa.nulls(rows),
        }
    )
    put(tmp_path / "backing/data", {f"{n}.parquet": table.slice(0, rows // n) for n in (1, 2, 3)}, row_group_size=7000)
    put(tmp_path / "backing/data", {"plain.parquet": table}, use_dictionary=False, compression="none")
    request = request_of(f"{volume.mount}/data")

    plan = caching.plan(request)
    report = caching.run(request)

    held = {path: os.path.getsize(f"{report.path}/{path}") for path in plan.outputs}
    assert all(held[path] <= told <= 1.1 * held[path] for path, told in plan.outputs.items())
    assert plan.bytes == sum(plan.outputs.values())
    fetched = sum(file.bytes for file in plan.files)
    assert plan.bytes_needed >= plan.bytes + fetched
    assert (plan.bytes_to_copy, report.bytes_copied) == (fetched, fetched)
    assert report.files == len(held) + 3
    assert report.bytes == sum(held.values()) + sum(
        os.path.getsize(f"{report.path}/{name}")
        for name in ("dataset_dict.json", "train/state.json", "train/dataset_info.json")
    )
    assert {os.stat(f"{report.path}/{path}").st_mtime_ns for path in held} == {
        file.mtime_ns for file in open_source(request.source).files
    }


def test_an_object_store_tells_the_size_too(
    bucket: Bucket, request_of: Callable[..., CacheRequest], tmp_path: Path
) -> None:
    source = put(
        tmp_path / "source", {"a.parquet": pa.table({"id": range(9000), "text": ["red", "green", "x"] * 3000})}
    )
    bucket.put("data/a.parquet", pathlib.Path(f"{source}/a.parquet").read_bytes())
    request = request_of(f"{bucket.url}/data")

    plan = caching.plan(request)
    report = caching.run(request)

    assert report.bytes <= 1.1 * plan.bytes
    assert plan.bytes <= 1.1 * report.bytes
    assert column_of(report.path, "id") == list(range(9000))


def test_a_copy_that_would_not_fit_as_arrow_is_refused_before_its_first_byte(
    request_of: Callable[..., CacheRequest], tmp_path: Path
) -> None:
    source = put(tmp_path / "source", {"a.parquet": pa.table({"text": ["always the same"] * 200_000})})
    request = request_of(source)
    plan = caching.plan(request)
    assert plan.bytes > 100 * sum(file.bytes for file in plan.files)

    with pytest.raises(NoSpace, match="--max-size"):
        caching.run(replace(request, max_size=plan.bytes // 2))

    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (pa.list_(pa.struct([("deep", pa.map_(pa.string(), pa.int64()))])), [{"deep": [("a", 1)]}]),
    ],
)
@pytest.mark.parametrize("installed", [True, False])
def test_a_column_that_datasets_cannot_take_is_refused_before_the_first_byte(
    kind: pa.DataType, value: Any, installed: bool, cache: Callable[..., CacheReport], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = put(tmp_path / "source", {"a.parquet": pa.table({"odd": pa.array([value], kind)})})
    if not installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(Unsupported, match=r"no column of the type .*, which `odd` has") as caught:
        cache(source)

    assert "--cast odd=json" in str(caught.value.hint)
    assert leftovers(tmp_path / "cache") == []
    assert os.listdir(tmp_path / "cache/copies") == []


def test_neither_a_plan_nor_a_copy_imports_datasets(tmp_path: Path) -> None:
    make_export(str(tmp_path / "orders"))
    program = (
        "import sys, uc_stage\n"
        "uc_stage.cache(sys.argv[1], cache_dir=sys.argv[2], form='arrow')\n"
        "assert 'datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "orders"), str(tmp_path / "cache")], check=True)


def test_a_disk_that_fills_up_meanwhile_ends_the_copy_and_keeps_no_half_of_a_file(
    disk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(tmp_path / "s", {"a.parquet": pa.table({"text": ["always the same"] * 200_000})})
    monkeypatch.setattr(arrow, "estimated", lambda *_: {"train/a.arrow": 1})
    os.chmod(disk, 0o700)

    with pytest.raises(NoSpace, match="No space left"):
        caching.run(CacheRequest(source, cache_dir=f"{disk}/cache", form="arrow"))

    assert not [path for path in pathlib.Path(disk).rglob("*") if path.parent.name == "unnamed"]


def test_of_ranks_that_ask_at_once_only_the_one_that_copies_reads_footers(
    cache: Callable[..., CacheReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "orders")
    make_export(source)
    cache(source)
    monkeypatch.delattr(arrow, "estimated")

    assert cache(source).status == "unchanged"
    with pytest.raises(InvalidRequest, match="no form `tar`"):
        cache(source, form="tar")


def test_files_that_do_not_belong_together_are_refused(cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    one = pa.table({"id": [1]})
    mixed = put(tmp_path / "mixed", {"a.parquet": one})
    (tmp_path / "mixed/notes.txt").write_text("text")
    with pytest.raises(Unsupported, match=r"`notes\.txt` is not Parquet"):
        cache(mixed)
    with pytest.raises(Unsupported, match=r"other\.parquet` has other columns than `a\.parquet`: `id`, `name`"):
        cache(put(tmp_path / "columns", {"a.parquet": one, "other.parquet": pa.table({"name": ["x"]})}))
    with pytest.raises(Unsupported, match="in their suffix alone"):
        cache(put(tmp_path / "twice", {"a.parquet": one, "a.pq.parquet": one, "a.pq": one, "b/a.parquet": one}))
    double = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(Unsupported, match="two columns `id`"):
        cache(put(tmp_path / "double", {"a.parquet": double}))


def test_a_plain_folder_keeps_its_folders_and_its_splits(cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    one = pa.table({"id": [1]})
    source = put(tmp_path / "s", {"train/a.parquet": one, "test/a.pq": one, "val/x/a.parquet": one})

    path = cache(source).path

    record = read_copy(path)
    assert record is not None
    assert [file.path for file in record.files] == [
        "dataset_dict.json",
        *("test/dataset_info.json", "test/state.json", "test/test/a.pq.arrow"),
        *("train/dataset_info.json", "train/state.json", "train/train/a.arrow"),
        *("validation/dataset_info.json", "validation/state.json", "validation/val/x/a.arrow"),
    ]


def test_both_forms_of_a_generation_stand_side_by_side_and_neither_makes_the_other_stale(
    cache: Callable[..., CacheReport], request_of: Callable[..., CacheRequest], tmp_path: Path
) -> None:
    source = str(tmp_path / "orders")
    make_export(source)
    files = cache(source, form="files")
    assert cache(source, check=True).state == "absent"

    made = cache(source)

    assert made.path != files.path
    assert cache(source, form="files").status == cache(source).status == "unchanged"
    checked = cache(source, check=True)
    assert (checked.state, checked.bytes, checked.files) == ("fresh", made.bytes, made.files)
    make_export(source, version=2)
    assert cache(source, check=True).state == "stale"
    listed = {copy.path: copy.variant for copy in inspection.list_copies(str(tmp_path / "cache")).copies}
    assert listed == {files.path: "", made.path: "as=arrow"}


def test_a_dest_that_holds_one_form_is_not_taken_by_another(cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    source, dest = str(tmp_path / "orders"), str(tmp_path / "dest")
    make_export(source)
    assert cache(source, dest=dest).path == dest
    assert cache(source, dest=dest).status == "unchanged"

    with pytest.raises(InvalidRequest, match=r"holds another part or form of .*: `as=arrow`"):
        cache(source, dest=dest, form="files")
    assert cache(source, dest=dest, form="files", check=True).state == "absent"


def test_a_flipped_byte_on_the_way_is_noticed_before_it_is_written_as_arrow(
    volume: Volume, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    manifest = make_export(f"{volume.backing}/orders")
    victim = min(manifest.files, key=lambda file: file.bytes).path
    volume.fault(f"orders/{victim}", flip=100)
    source = f"{volume.mount}/orders"
    with pytest.raises(VerificationFailed, match=f"{victim}` came with other bytes .* also when fetched again"):
        cache(source, jobs=1)
    assert os.listdir(tmp_path / "cache/copies") == []

    volume.fault(f"orders/{victim}", flip=100, times=1)
    report = cache(source)

    assert report.status == "done"
    assert report.bytes_reused > 0
    assert column_of(report.path, "id") == [row["id"] for row in rows_in(f"{volume.backing}/orders")["train"]]


def streams(path: str) -> list[str]:
    record = read_copy(path)
    assert record is not None
    return [file.path for file in record.files if file.path.endswith(".arrow")]


def column_of(path: str, name: str) -> list[Any]:
    """The values of a column, read as the loaders do."""
    files = [(f"{path}/{name}", 10**9) for name in streams(path)]
    return [value for batch in batches(share(files, 0, 1), 700, [name]) for value in batch.column(0).to_pylist()]


def test_a_page_that_no_longer_decodes_is_named_and_leaves_nothing(
    cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    table = pa.table({"text": [f"text {i}" for i in range(20_000)]})
    source = put(tmp_path / "s", {"a.parquet": table}, compression="none", use_dictionary=False)
    with open(f"{source}/a.parquet", "r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 500)

    with pytest.raises(VerificationFailed, match=r"a\.parquet` is not whole Parquet"):
        cache(source)

    assert os.listdir(tmp_path / "cache/copies") == []
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.parent.name == "unnamed"]


def test_a_damaged_file_is_found_and_made_anew_from_its_source_alone(
    cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    source = str(tmp_path / "orders")
    manifest = make_export(source)
    path = cache(source).path
    victim = f"{path}/train/{manifest.files[1].path.removesuffix('parquet')}arrow"
    found = inspection.run(InspectRequest(path, verify=True))
    assert (found.verified, found.rows, found.splits, found.id) == (True, 3000, {"train": 3000}, manifest.id)
    assert [field.name for field in found.schema] == ["id"]
    with open(victim, "r+b") as file:
        file.seek(-3000, os.SEEK_END)
        file.write(b"\xff" * 8)
    assert inspection.run(InspectRequest(path, verify=True)).verified is False
    with open(victim, "r+b") as file:
        file.truncate(3000)
    report = inspection.run(InspectRequest(path))
    assert [problem.code for problem in report.problems] == ["truncated"]
    assert cache(source, check=True).state == "partial"

    again = cache(source)

    assert (again.path, again.bytes_copied) == (path, manifest.files[1].bytes)
    assert inspection.run(InspectRequest(path, verify=True)).verified
    os.unlink(f"{path}/train/state.json")
    assert cache(source).bytes_copied == 0
    assert os.path.exists(f"{path}/train/state.json")


def test_each_reader_reads_a_copy_as_arrow(cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    source = str(tmp_path / "orders")
    make_export(source)
    path = cache(source).path
    ids = [row["id"] for row in rows_in(source)["train"]]

    report = uc_stage.bench(path, readers=["raw", "arrow"], batch_size=300, seconds=60)

    assert [(one.reader, one.rows, one.failed) for one in report.measurements] == [
        ("raw", None, False), ("raw", None, False), ("arrow", 3000, False), ("arrow", 3000, False)
    ]  # fmt: skip
    dataset = ParquetBatches(path, 64)
    assert dataset.rows == 3000
    assert [value for batch in dataset for value in batch["id"].tolist()] == ids
    job = Job("hf", path, tuple((f"{path}/{name}", 1, 1000) for name in streams(path)), 700, 0, 60.0)
    built, note = recipes.build(job)
    assert (built.files, built.mapped) == (job.files, tuple(path for path, _, _ in job.files))
    assert "Dataset.from_file" in note
    for reader in ("hf", "hf-stream"):
        assert sum(rows for rows, _, _ in readers._READERS[reader](built)) == 3000


def test_a_file_that_is_no_arrow_stream_is_told_as_such(cache: Callable[..., CacheReport], tmp_path: Path) -> None:
    make_export(str(tmp_path / "orders"), files=1)
    path = cache(tmp_path / "orders").path
    (victim,) = (f"{path}/train/{name}" for name in os.listdir(f"{path}/train") if name.endswith(".arrow"))
    size = os.path.getsize(victim)
    with open(victim, "wb") as file:
        file.write(b"\1" * size)

    assert [problem.code for problem in inspection.run(InspectRequest(path)).problems] == ["unreadable"]
    with pytest.raises(VerificationFailed, match="is not whole Arrow IPC"):
        uc_stage.bench(path, readers=["arrow"])


def test_files_of_the_source_wait_in_bounded_room(
    cache: Callable[..., CacheReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "orders")
    manifest = make_export(source, files=12, rows=3000)
    monkeypatch.setattr(sink, "WAITING_BYTES", 3 * max(file.bytes for file in manifest.files))
    real, most = arrow._write, [0]

    def watched(path: str, parts: Any, out: Any) -> None:
        above = os.path.dirname(parts[0].here)
        most[0] = max(most[0], len(os.listdir(above)))
        real(path, parts, out)

    monkeypatch.setattr(arrow, "_write", watched)
    report = cache(source)

    # With the Arrow files that are being written.
    assert 1 <= most[0] <= 3 + (os.cpu_count() or 1)
    assert column_of(report.path, "id") == [row["id"] for row in rows_in(source)["train"]]


def test_the_loaders_know_the_splits_of_a_copy_as_arrow_and_map_it(tmp_path: Path) -> None:
    source = tmp_path / "plain"
    source.mkdir()
    for name, rows in (("train", 30), ("test", 10)):
        pq.write_table(pa.table({"id": range(rows)}), source / f"{name}-00000-of-00001.parquet")
    path = caching.run(CacheRequest(str(source), cache_dir=str(tmp_path / "cache"), form="arrow")).path

    with pytest.raises(InvalidRequest, match="holds the splits"):
        huggingface(path)
    assert huggingface(path, "test")["id"][:] == list(range(10))
    assert all(entry["filename"].startswith(path) for entry in huggingface(path, "train").cache_files)
    assert sum(len(batch["id"]) for batch in ParquetBatches(path, 8, split="train", shuffle=True)) == 30


def test_what_a_failed_run_made_of_an_earlier_generation_is_not_taken_for_this_one_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(tmp_path / "s", {name: pa.table({"id": [1, 2, 3]}) for name in ("a.parquet", "b.parquet")})
    request = CacheRequest(source, cache_dir=str(tmp_path / "cache"), form="arrow", jobs=1)
    real = arrow._write

    def write(output: str, *given: Any) -> None:
        if output.endswith("b.arrow"):
            raise NoSpace("full", hint="")
        real(output, *given)

    with monkeypatch.context() as patch:
        patch.setattr(arrow, "_write", write)
        with pytest.raises(NoSpace):
            caching.run(request)
    pq.write_table(pa.table({"id": [7, 8, 9]}), f"{source}/a.parquet")

    path = caching.run(request).path

    with pa.memory_map(f"{path}/train/a.arrow") as mapped:
        assert pa.ipc.open_stream(mapped).read_all()["id"].to_pylist() == [7, 8, 9]
