"""Copies that `cache --pack` makes; how shards are planned and written is in test_pack.py."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.copies import Watcher, leftovers
from tests.fixtures.exports import make_export
from tests.fixtures.shell import uc_stage
from tests.test_cache_processes import start
from uc_stage import caching, inspection, pruning
from uc_stage.errors import InvalidRequest, NoSpace
from uc_stage.model import CacheReport, CacheRequest, InspectRequest, Packed, PruneRequest
from uc_stage.sources import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.volume import Volume

PACK = "R = CacheRequest\nCacheRequest = lambda *a, **k: R(*a, **k, pack=True, pack_size=60_000)\n"


def make_images(folder: Path | str, count: int = 200) -> dict[str, bytes]:
    """Two class folders of images, each with a text beside it."""
    made = {}
    for number in range(count):
        label = "cat" if number % 3 else "dog"
        made[f"train/{label}/{number:04d}.jpg"] = os.urandom(50 + 3 * number)
        made[f"train/{label}/{number:04d}.txt"] = f"a {label} of number {number}".encode()
    for path, data in made.items():
        os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
        with open(f"{folder}/{path}", "wb") as file:
            file.write(data)
    return made


@pytest.fixture
def images(tmp_path: Path) -> dict[str, bytes]:
    return make_images(tmp_path / "images")


def request(tmp_path: Path, **options: Any) -> CacheRequest:
    return CacheRequest(str(tmp_path / "images"), **{"cache_dir": str(tmp_path / "cache"), "pack": True, **options})


def members(path: str) -> dict[str, bytes]:
    """The files of all shards, read by the index."""
    import pyarrow as pa

    index = pa.ipc.open_file(pa.memory_map(f"{path}/index.feather")).read_all()
    found = {}
    for row in index.to_pylist():
        with open(f"{path}/{row['shard']}", "rb") as shard:
            found[row["path"]] = os.pread(shard.fileno(), row["bytes"], row["offset"])
    return found


def run(tmp_path: Path, **options: Any) -> CacheReport:
    return caching.run(request(tmp_path, **options))


def test_webdataset_sees_each_sample_once_in_a_loader_of_two_workers(tmp_path: Path, images: dict[str, bytes]) -> None:
    import webdataset
    from torch.utils.data import DataLoader

    report = run(tmp_path)
    last = report.files - 2
    shards = f"{report.path}/shard-{{000000..{last:06d}}}.tar"
    dataset = webdataset.WebDataset(shards, shardshuffle=False)

    seen = list(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="forkserver"))

    assert sorted(sample["__key__"] for sample in seen) == sorted(path[:-4] for path in images if path.endswith("jpg"))
    for sample in seen:
        assert sample["jpg"] == images[f"{sample['__key__']}.jpg"]
        assert sample["txt"] == images[f"{sample['__key__']}.txt"]
    assert Counter(sample["__key__"].split("/")[1] for sample in seen) == {"cat": 133, "dog": 67}


def test_hugging_face_loads_the_folder_of_shards(tmp_path: Path) -> None:
    import datasets

    for number in range(40):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / f"images/{number}.txt").write_text(f"text {number}")
    report = run(tmp_path, pack_size=20_000)

    found = datasets.load_dataset(report.path, split="train", cache_dir=str(tmp_path / "hf"))

    assert sorted(found["txt"]) == sorted(f"text {number}" for number in range(40))


def test_the_index_finds_each_file_of_the_source(tmp_path: Path, images: dict[str, bytes]) -> None:
    assert members(run(tmp_path).path) == images


def test_a_run_says_which_files_webdataset_passes_over(tmp_path: Path, images: dict[str, bytes]) -> None:
    (tmp_path / "images/LICENSE").write_text("free")
    watcher = Watcher()

    report = caching.run(request(tmp_path), watcher)

    assert members(report.path) == {**images, "LICENSE": b"free"}
    (note,) = watcher.notes
    assert "WebDataset passes over a file without an extension, such as `LICENSE`" in note


def test_progress_ends_at_the_total_that_it_began_with(tmp_path: Path, images: dict[str, bytes]) -> None:
    watcher = Watcher()

    caching.run(request(tmp_path), watcher)

    assert sum(watcher.amounts) == dict(watcher.phases)["copy"]


def test_the_plan_tells_the_room_that_the_copy_takes(tmp_path: Path, images: dict[str, bytes]) -> None:
    plan = caching.plan(request(tmp_path))
    report = run(tmp_path)
    taken = sum(item.stat().st_blocks * 512 for item in os.scandir(report.path) if item.is_file())

    assert taken <= plan.bytes_needed
    assert plan.bytes_to_copy == report.bytes_copied == sum(map(len, images.values()))


def test_without_room_for_the_shards_nothing_is_fetched(disk: str, tmp_path: Path) -> None:
    # The files take less than the disk has; a header for each does not fit.
    (tmp_path / "images").mkdir()
    for number in range(400):
        (tmp_path / f"images/{number}.txt").write_bytes(b"1")

    watcher = Watcher()
    with pytest.raises(NoSpace):
        caching.execute(caching.plan(request(tmp_path, cache_dir=f"{disk}/cache")), watcher)
    assert watcher.phases == []


@pytest.mark.parametrize("size", [None, 30_000])
def test_a_copy_is_told_fresh_partial_and_stale_without_reading(
    tmp_path: Path, images: dict[str, bytes], size: int | None
) -> None:
    assert run(tmp_path, pack_size=size, check=True).state == "absent"
    report = run(tmp_path, pack_size=size)
    assert run(tmp_path, pack_size=size, check=True).state == "fresh"
    assert run(tmp_path, pack_size=size).status == "unchanged"
    assert run(tmp_path, pack=False, check=True).state == "absent"
    os.truncate(f"{report.path}/shard-000001.tar", 100)
    assert run(tmp_path, pack_size=size, check=True).state == "partial"
    (tmp_path / "images/train/cat/new.jpg").write_bytes(b"new")
    assert run(tmp_path, pack_size=size, check=True).state == "stale"


def test_a_damaged_shard_is_made_again_from_its_own_files_alone(tmp_path: Path, images: dict[str, bytes]) -> None:
    report = run(tmp_path)
    before = {item.name: item.stat().st_ino for item in os.scandir(report.path)}
    with open(f"{report.path}/shard-000003.tar", "r+b") as shard:
        shard.write(b"?")

    again = run(tmp_path)

    after = {item.name: item.stat().st_ino for item in os.scandir(again.path)}
    assert {name for name in after if name.startswith("shard") and after[name] != before[name]} == {"shard-000003.tar"}
    assert 0 < again.bytes_copied < report.bytes_copied / 10
    assert members(again.path) == images


def test_a_copy_without_its_index_gets_it_again(tmp_path: Path, images: dict[str, bytes]) -> None:
    report = run(tmp_path)
    os.unlink(f"{report.path}/index.feather")
    assert inspection.run(InspectRequest(report.path)).packed is None

    again = run(tmp_path)

    assert again.bytes_copied == 0
    assert members(again.path) == images


def test_a_copy_with_a_damaged_record_is_made_anew(tmp_path: Path, images: dict[str, bytes]) -> None:
    report = run(tmp_path)
    with open(f"{report.path}/.uc_stage/copy.json", "w") as record:
        record.write("{")

    again = run(tmp_path)

    assert again.path == report.path
    assert members(again.path) == images


def test_killed_again_and_again_the_path_is_absent_and_each_run_fetches_only_what_lacks(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images")
    source, root = str(tmp_path / "images"), str(tmp_path / "cache")
    asked = request(tmp_path, pack_size=60_000)
    # Two shards have their names then, and a third one is to get its; or the last two have, and the index is due.
    killer = (
        "import itertools, os, signal\n"
        "from uc_stage import publish\n"
        "jobs = 1\n"
        "calls = itertools.count(1)\n"
        "def deadly(real):\n"
        "    def call(*a, **k):\n"
        "        if next(calls) == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return real(*a, **k)\n"
        "    return call\n"
        "for name in ('_note', 'accept', 'put', 'commit'):\n"
        "    setattr(publish.CopyPublication, name, deadly(getattr(publish.CopyPublication, name)))\n"
    )
    lacking = []
    while (plan := caching.plan(asked)).outputs:
        lacking.append(plan.bytes_to_copy)
        assert not os.path.exists(plan.path)
        process = start(source, root, PACK + killer)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL

    report = run(tmp_path, pack_size=60_000)

    assert len(lacking) > 2
    assert lacking == sorted(set(lacking), reverse=True)
    assert (report.bytes_copied, report.bytes_reused > 0) == (0, True)
    assert members(report.path) == images
    assert leftovers(tmp_path / "cache") == []


def test_what_cannot_be_read_leaves_no_half_of_a_shard(volume: Volume, tmp_path: Path) -> None:
    images = make_images(f"{volume.backing}/images", 30)
    volume.fault("images/train/dog/0000.jpg", error=5)
    asked = CacheRequest(f"{volume.mount}/images", cache_dir=str(tmp_path / "cache"), pack=True, retries=0)

    with pytest.raises(Exception, match=r"train/dog/0000\.jpg"):
        caching.run(asked)
    (partial,) = (tmp_path / "cache/partial").iterdir()
    assert list((partial / ".uc_stage/unnamed").iterdir()) == []

    volume.clear()
    report = caching.run(asked)
    assert members(report.path) == images
    assert inspection.run(InspectRequest(report.path, verify=True)).verified


def test_inspect_says_what_the_shards_hold_and_finds_a_flipped_byte(tmp_path: Path, images: dict[str, bytes]) -> None:
    report = run(tmp_path, pack_size=50_000)

    found = inspection.run(InspectRequest(report.path, verify=True))
    assert (found.kind, found.freshness, found.verified, found.problems) == ("copy", "fresh", True, ())
    assert found.packed == Packed(shards=report.files - 1, samples=200, files=400)
    assert f"400 files of 200 samples in {report.files - 1} shards" in uc_stage("inspect", report.path).out

    with open(f"{report.path}/shard-000000.tar", "r+b") as shard:
        shard.seek(600)
        shard.write(bytes([shard.read(1)[0] ^ 1]))
    assert inspection.run(InspectRequest(report.path, verify=True)).verified is False


def test_prune_removes_a_copy_of_shards(tmp_path: Path, images: dict[str, bytes]) -> None:
    made = run(tmp_path).path

    report = pruning.run(PruneRequest(paths=(made,), cache_dir=str(tmp_path / "cache")))

    assert report.removed == (made,)
    assert not os.path.exists(made)


def test_the_command_packs_to_a_size(tmp_path: Path, images: dict[str, bytes]) -> None:
    folder, cache = tmp_path / "images", ("--cache-dir", tmp_path / "cache")
    planned = uc_stage("cache", folder, "--pack", "--dry-run", *cache)
    assert "form        pack\n" in planned.out
    done = uc_stage("cache", folder, "--pack", "--pack-size", "100kB", *cache)
    assert done.code == 0
    assert members(done.out.strip()) == images
    assert len(os.listdir(done.out.strip())) < 8

    assert "error: `--pack-size` is for `--pack`" in uc_stage("cache", folder, "--pack-size", "1MB", *cache).err
    assert "is no size" in uc_stage("cache", folder, "--pack", "--pack-size", "0", *cache).err


@pytest.mark.parametrize("options", [{"form": "arrow"}, {}])
def test_an_export_and_a_second_form_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    make_export(str(tmp_path / "images"))

    with pytest.raises(
        InvalidRequest, match=r"`--pack` (is for folders of small files|and `--as arrow` are two forms)"
    ):
        run(tmp_path, **options)


def test_another_layout_is_another_copy(tmp_path: Path, images: dict[str, bytes]) -> None:
    paths = {run(tmp_path, **options).path for options in ({}, {"pack_size": 50_000}, {"pack": False})}

    assert len(paths) == 3
    assert len(open_source(str(tmp_path / "images")).files) == len(images)
