"""The changes that `bench` tries against a bottleneck, and what it tells to do."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import uc_stage
from tests.fixtures.exports import make_export
from tests.test_bench_stages import ROWS, files, probed
from uc_stage.benchmark.ceilings import read_at_once, storage_limit
from uc_stage.benchmark.changes import try_changes
from uc_stage.benchmark.opening import open_dataset
from uc_stage.benchmark.probing import Ladder
from uc_stage.benchmark.sampling import take_sample
from uc_stage.errors import StageError
from uc_stage.model import Compression
from uc_stage.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fixtures.volume import Volume

SECONDS = {"storage": 1.0, "decompression": 2.0, "decode": 3.0, "tensors": 4.0, "collation": 5.0}


def test_batches_of_the_ladder_are_those_of_the_loader(tmp_path: Path) -> None:
    ladder = Ladder(take_sample(files(tmp_path)), 1250)

    batches = list(ladder.made(ladder.sample.decoded(ladder.chunk_rows)))

    assert [len(batch["id"]) for batch in batches] == [1250, 1250, 1250, 1250, 1000]
    assert batches[0]["pair"].shape == (1250, 2)
    assert batches[0]["hole"][0] is None
    assert set(ladder.converting()) == {"tensors", "collation"}


def test_each_bottleneck_has_changes_that_keep_what_they_do_not_move(tmp_path: Path) -> None:
    held = files(tmp_path)
    ladder = Ladder(take_sample(held), 100)
    seconds = SECONDS
    probe = probed(held, tmp_path / "scratch")

    def tried(worst: str) -> dict[str, dict[str, float]]:
        return dict(try_changes(probe, ladder, seconds, worst))

    (warm,) = tried("storage").values()
    assert 0 < warm["storage"] < 1.0
    assert {**warm, "storage": 1.0} == seconds
    for worst in ("decompression", "decode"):
        named = [what.split("--compression ")[1].strip("`") for what in tried(worst) if "--compression" in what]
        assert named == ["none", "snappy"]
        assert set(named) < set(get_args(Compression))
        arrow, plain, quick = tried(worst).values()
        assert arrow["decompression"] == plain["decompression"] == 0.0
        assert arrow["decode"] < 3.0
        # The storage has as many more bytes to give as the same rows take in that codec.
        for codec, after in (("none", plain), ("snappy", quick)):
            (tmp_path / codec).mkdir(exist_ok=True)
            other = take_sample(files(tmp_path / codec, compression=codec))
            assert after["storage"] == pytest.approx(other.bytes / ladder.sample.bytes, rel=0.02)
        assert 0 < quick["decompression"] < 2.0
        assert plain["decode"] == quick["decode"] == 3.0
    ((larger, after),) = tried("collation").items()
    assert larger == "`--batch-size 400`"
    assert (after["storage"], after["decode"]) == (1.0, 3.0)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_column_that_takes_longest_is_left_out_with_what_it_costs(tmp_path: Path) -> None:
    costs = {"id": 1.0, "text": 2.0, "ragged": 16.0, "pair": 4.0, "hole": 8.0}

    class Priced(Ladder):
        """Each column takes a time of its own to become tensors."""

        def converting(self, columns: Sequence[str] | None = None) -> dict[str, float]:
            return {"tensors": sum(costs[name] for name in columns or costs), "collation": 0.0}

    held = files(tmp_path)
    ladder = Priced(take_sample(held), 100)
    groups = [group for piece in ladder.sample.pieces for group in piece.groups]
    of_it = sum(size for group in groups for name, _, _, _, size in group.columns if name == "ragged")

    ((what, left),) = try_changes(
        probed(held, tmp_path / "scratch"), ladder, {"storage": 1.0, "tensors": 31.0}, "tensors"
    )

    assert "`ragged`" in what
    assert left["tensors"] == 15.0
    assert left["storage"] == pytest.approx(1 - of_it / ladder.sample.bytes)


def test_a_scratch_folder_in_memory_stands_for_no_disk(tmp_path: Path) -> None:
    held = files(tmp_path)
    ladder = Ladder(take_sample(held), 100)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        probe = probed(held, Path(memory))
        tried = [what for worst in ("storage", "decode") for what, _ in try_changes(probe, ladder, SECONDS, worst)]

    assert [what for what in tried if "uc-stage cache" in what] == []
    assert len(tried) == 3


def test_one_column_cannot_be_left_out_and_what_is_not_compressed_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(100)}), path, compression="none")
    ladder = Ladder(take_sample([(str(path), path.stat().st_size, 100)]), 10)
    probe = probed((), tmp_path / "scratch")

    assert list(try_changes(probe, ladder, {"tensors": 1.0}, "tensors")) == []
    assert [what for what, _ in try_changes(probe, ladder, {"storage": 1.0}, "decode")] == [
        "`uc-stage cache SOURCE --as arrow`"
    ]


def test_what_is_packed_by_the_quickest_codec_is_not_changed_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(1000)}), path, compression="snappy")
    ladder = Ladder(take_sample([(str(path), path.stat().st_size, 1000)]), 10)

    tried = try_changes(probed((), tmp_path / "scratch"), ladder, {"storage": 1.0, "decode": 1.0}, "decode")

    assert [what for what, _ in tried] == ["`uc-stage cache SOURCE --as arrow`", "`export --compression none`"]


def test_another_copy_is_made_of_what_a_copy_was_made_of(tmp_path: Path) -> None:
    source = str(tmp_path / "export")
    make_export(source, files=1, rows=10)
    copy = uc_stage.cache(source, cache_dir=str(tmp_path / "cache"))

    assert [open_dataset(target, SILENT).source for target in (source, copy)] == [source, source]


def test_a_copy_is_told_by_its_record_or_by_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_export("export", files=1, rows=10)
    as_arrow = uc_stage.cache("export", cache_dir="cache", form="arrow")
    shutil.copytree("export", "by hand")
    Path("other").mkdir()
    pq.write_table(pa.table({"id": range(10)}), "other/a.parquet")

    first, *others = (open_dataset(target, SILENT) for target in ("export", as_arrow, "by hand", "other"))

    assert [other.is_copy_of(first) for other in others] == [True, True, False]


def test_a_slow_mount_is_tried_against_the_disk_of_this_node(volume: Volume, tmp_path: Path) -> None:
    files(Path(volume.backing))
    held = tuple(
        (os.path.join(volume.mount, name), os.path.getsize(os.path.join(volume.backing, name)), ROWS)
        for name in sorted(os.listdir(volume.backing))
    )
    ladder = Ladder(take_sample(held), 100)

    tried = dict(try_changes(probed(held, tmp_path / "scratch"), ladder, {"storage": 1.0}, "storage"))

    assert next(iter(tried)) == "`uc-stage cache SOURCE`: this node's disk"
    assert all(0 < after["storage"] < 1.0 for after in tried.values())


def test_the_limit_of_the_storage_is_read_within_its_bounds(tmp_path: Path) -> None:
    held = files(tmp_path, 3)

    rate, streams = storage_limit(held)
    assert rate > 0
    assert streams in (1, 4, 16)
    assert read_at_once(held, 4, most=100) > 0
    assert read_at_once(held, 4, seconds=0.0) == 0.0
    with pytest.raises(StageError, match="none"):
        storage_limit([(str(tmp_path / "none"), 10, 1)])
