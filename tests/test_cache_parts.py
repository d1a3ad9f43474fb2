"""`cache --include`, `--exclude` and `--shard`: parts of a source."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import uc_stage as api
from tests.fixtures.copies import tree
from tests.fixtures.exports import make_export, put_manifest
from tests.fixtures.shell import clean_environment, uc_stage
from uc_stage import caching, inspection
from uc_stage.caching import making
from uc_stage.caching.parts import part_of, shares
from uc_stage.errors import InvalidRequest, NotFound
from uc_stage.loaders.files import open_files
from uc_stage.manifest import MANIFEST_PATH, Manifest
from uc_stage.model import CacheReport, CacheRequest, CopyFile, InspectRequest
from uc_stage.publish import read_copy, read_manifest
from uc_stage.sources import CopySource
from uc_stage.storage import LocalFolder
from uc_stage.targets import look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

WEIGHTS = st.dictionaries(
    st.sampled_from(["train", "validation", "test"]),
    st.dictionaries(st.text("abcd/", min_size=1, max_size=6), st.integers(0, 10**6), min_size=1, max_size=25),
)


@pytest.fixture
def images(tmp_path: Path) -> str:
    folder = tmp_path / "images"
    for path in ("a.jpg", "b.txt", "cats/c.jpg", "cats/small/d.jpg", "cats/small/e.txt", "dogs/f.jpg"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(os.urandom(1000))
    return str(folder)


@pytest.fixture
def export(tmp_path: Path) -> str:
    """Two splits, of 5 and 4 files, with a manifest that has fields of a later version."""
    folder = str(tmp_path / "orders")
    manifest = make_export(folder, files=9)
    splits = {"train": manifest.files[:5], "validation": manifest.files[5:]}
    put_manifest(folder, manifest, splits=splits, dropped=3, retained={"v0-000000": ("old.parquet",)})
    with open(f"{folder}/{MANIFEST_PATH}", "rb+") as file:
        raw = json.loads(file.read())
        raw["later"] = {"key": 1}
        raw["splits"]["train"]["later"] = True
        raw["splits"]["train"]["files"][0]["later"] = "yes"
        file.seek(0)
        file.write(json.dumps(raw).encode())
    return folder


@given(WEIGHTS, st.integers(1, 9), st.randoms())
def test_shares_are_disjoint_complete_balanced_and_the_same_in_any_order(
    splits: dict[str, dict[str, int]], count: int, random: Random
) -> None:
    every = {f"{split}/{path}": weight for split, files in splits.items() for path, weight in files.items()}
    named = {split: {f"{split}/{path}": weight for path, weight in files.items()} for split, files in splits.items()}

    found = shares(named, count)

    assert len(found) == count
    assert sorted(path for share in found for path in share) == sorted(every)
    for files in named.values():
        loads = [sum(weight for path, weight in files.items() if path in share) for share in found]
        assert max(loads) - min(loads) <= max(files.values())
        assert len(files) < count or all(share & files.keys() for share in found)
    shuffled = list(named.items())
    random.shuffle(shuffled)
    mixed = {}
    for split, files in shuffled:
        items = list(files.items())
        random.shuffle(items)
        mixed[split] = dict(items)
    assert shares(mixed, count) == found


def test_what_is_left_over_of_one_split_is_made_up_for_in_another() -> None:
    one, other = shares({"test": {"a": 10, "b": 10, "c": 10}, "train": {"d": 10, "e": 10, "f": 10}}, 2)

    assert len(one) == len(other) == 3


def test_patterns_choose_by_the_whole_relative_path_as_hugging_faces_do(
    images: str, cache: Callable[..., CacheReport]
) -> None:
    def chosen(*include: str, exclude: tuple[str, ...] = ()) -> list[str]:
        return sorted(tree(cache(images, include=include, exclude=exclude).path))

    assert chosen("*.jpg") == ["a.jpg", "cats/c.jpg", "cats/small/d.jpg", "dogs/f.jpg"]
    assert chosen("cats/") == ["cats/c.jpg", "cats/small/d.jpg", "cats/small/e.txt"]
    assert chosen("?.jpg", "dogs/*") == ["a.jpg", "dogs/f.jpg"]
    assert chosen("*.jpg", exclude=("cats/small/", "a*")) == ["cats/c.jpg", "dogs/f.jpg"]
    assert chosen(exclude=("*.jpg", "*.none")) == ["b.txt", "cats/small/e.txt"]


@given(st.lists(st.text("*?[]!ab./", min_size=1, max_size=4), max_size=2))
def test_patterns_match_as_huggingface_hub_matches(patterns: list[str]) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    paths = ["a", "a.b", "a/b", "ab/a.b", "b/a/b"]
    source = CopySource("x", "g", None, tuple(CopyFile(path, 1) for path in paths))

    def left(request: CacheRequest) -> list[str]:
        try:
            return [file.path for file in part_of(request, source)]
        except NotFound:
            return []

    assert left(CacheRequest("x", exclude=tuple(patterns))) == list(
        filter_repo_objects(paths, ignore_patterns=patterns)
    )
    for pattern in patterns:
        assert left(CacheRequest("x", include=(pattern,))) == list(filter_repo_objects(paths, allow_patterns=[pattern]))


def test_a_pattern_that_includes_nothing_names_what_is_there(images: str, cache: Callable[..., CacheReport]) -> None:
    with pytest.raises(NotFound, match=r"`--include \*\.png` matches no file") as caught:
        cache(images, include=("*.jpg", "*.png"))
    assert caught.value.hint == "it holds `a.jpg`, `b.txt`, `cats/c.jpg` and 3 more"
    with pytest.raises(NotFound, match="leave no file"):
        cache(images, include=("cats/",), exclude=("*",))
    with pytest.raises(InvalidRequest, match="`--exclude` is empty"):
        cache(images, exclude=(" ",))


def test_one_part_has_one_path_and_another_part_another(images: str, cache: Callable[..., CacheReport]) -> None:
    whole = cache(images)
    one = cache(images, include=("cats/", "*.txt"), exclude=("b*",))
    same = cache(images, include=("*.txt", "cats/*", "*.txt"), exclude=("b*",))
    other = cache(images, include=("*.txt",))

    assert (same.path, same.status) == (one.path, "unchanged")
    assert len({whole.path, one.path, other.path}) == 3
    assert one.variant == "include='*.txt' include='cats/*' exclude='b*'"
    assert (whole.variant, cache(images, shard=(0, 1)).path) == ("", whole.path)
    record = read_copy(one.path)
    assert record is not None
    assert record.variant == one.variant


def test_a_part_is_checked_by_itself(export: str, cache: Callable[..., CacheReport]) -> None:
    cache(export, shard=(0, 4))

    assert cache(export, shard=(0, 4), check=True).state == "fresh"
    assert cache(export, shard=(1, 4), check=True).state == "absent"
    assert cache(export, check=True).state == "absent"

    make_export(export, files=9, version=2)
    assert cache(export, shard=(0, 4), check=True).state == "stale"
    assert cache(export, shard=(1, 4), check=True).state == "absent"
    assert cache(export, check=True).state == "absent"


def test_a_dest_holds_one_part_and_is_not_overwritten_by_another(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    dest = str(tmp_path / "mine")
    made = cache(export, dest=dest, shard=(0, 4))

    assert cache(export, dest=dest, shard=(0, 4)).status == "unchanged"
    checked = cache(export, dest=dest, check=True)
    assert (checked.state, checked.reason) == ("absent", "there is another part or form of it: `shard=0/4`")
    before = tree(made.path)
    with pytest.raises(InvalidRequest, match=r"holds another part or form of `.*`: `shard=0/4`"):
        cache(export, dest=dest, shard=(1, 4), force=True)
    assert tree(dest) == before
    whole = str(tmp_path / "whole")
    cache(export, dest=whole)
    with pytest.raises(InvalidRequest, match=r"holds another part or form of `.*`: `all its files`"):
        cache(export, dest=whole, shard=(1, 4))


def test_what_a_killed_run_left_of_another_part_stays(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cache(export, shard=(0, 4))
    partial = made.path.replace("/copies/", "/partial/")
    os.rename(made.path, partial)
    cache(export, shard=(1, 4))
    assert os.path.isdir(partial)
    again = cache(export, shard=(0, 4))
    assert (again.status, again.bytes_copied, again.bytes_reused) == ("done", 0, again.bytes)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # As above, but of a generation that is gone, and held by nobody.
    kept = CacheRequest(export, cache_dir=str(tmp_path / "cache"), shard=(2, 4))
    with monkeypatch.context() as patch:
        patch.setattr(making, "copy_files", interrupted)
        with pytest.raises(KeyboardInterrupt):
            caching.run(kept)
    assert len(os.listdir(tmp_path / "cache/partial")) == 1
    make_export(export, files=9, version=2)
    cache(export, shard=(1, 4))
    assert os.listdir(tmp_path / "cache/partial") == []


def test_the_manifest_of_a_part_names_what_is_there_and_keeps_what_it_does_not_know(
    export: str, cache: Callable[..., CacheReport]
) -> None:
    original = read_manifest(LocalFolder(export))
    assert original is not None
    report = cache(export, include=("train-0000[0-4]-*",))

    manifest = read_manifest(LocalFolder(report.path))
    assert manifest is not None
    assert sorted(file.path for file in manifest.files) == sorted(tree(report.path))
    assert (list(manifest.splits), manifest.rows, manifest.retained) == (["train"], 5000, {})
    assert (manifest.id, manifest.generation, manifest.dropped) == (original.id, original.generation, 3)
    assert (manifest.raw["later"], manifest.raw["part"]) == ({"key": 1}, report.variant)
    assert manifest.raw["splits"]["train"]["later"] is True
    assert manifest.raw["splits"]["train"]["files"][0]["later"] == "yes"
    assert look(report.path).data_files().keys() == tree(report.path).keys()

    everything = cache(export, include=("*",))
    with open(f"{everything.path}/{MANIFEST_PATH}", "rb") as copied, open(f"{export}/{MANIFEST_PATH}", "rb") as source:
        assert copied.read() == source.read()


def test_a_part_of_an_export_can_be_named_by_a_pattern_that_is_no_text(
    export: str, cache: Callable[..., CacheReport]
) -> None:
    report = cache(export, include=("train-00000*",), exclude=("\udcff",))
    assert inspection.run(InspectRequest(report.path, verify=True)).verified is True


def test_inspect_finds_a_part_whole_and_fresh_and_says_which(
    export: str, cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    report = cache(export, shard=(3, 4))

    seen = inspection.run(InspectRequest(report.path, verify=True))
    assert (seen.kind, seen.variant, seen.freshness, seen.verified) == ("copy", "shard=3/4", "fresh", True)
    assert (seen.problems, seen.files, seen.rows) == ((), 2, 2000)
    assert seen.splits == {"train": 1000, "validation": 1000}
    (listed,) = inspection.list_copies(str(tmp_path / "cache")).copies
    assert listed.variant == "shard=3/4"

    os.unlink(next(os.path.join(report.path, path) for path in tree(report.path)))
    assert [problem.code for problem in inspection.run(InspectRequest(report.path)).problems] == ["missing"]


def test_rows_are_shared_out_in_each_split_and_bytes_where_there_is_no_manifest(
    export: str, images: str, cache: Callable[..., CacheReport]
) -> None:
    manifest = read_manifest(LocalFolder(export))
    assert manifest is not None
    rows = dict(zip((file.path for file in manifest.files), (90, 30, 30, 30, 1, 7, 7, 7, 7), strict=True))
    splits = {
        name: tuple(dataclasses.replace(file, rows=rows[file.path]) for file in files)
        for name, files in manifest.splits.items()
    }
    put_manifest(export, manifest, splits=splits)

    def held(split: str, shard: int) -> int:
        part = Manifest.from_json(LocalFolder(cache(export, shard=(shard, 2)).path).read(MANIFEST_PATH), "it")
        return sum(file.rows for file in part.splits[split])

    assert [held("train", shard) for shard in range(2)] == [91, 90]
    assert [held("validation", shard) for shard in range(2)] == [14, 14]

    with open(f"{images}/a.jpg", "wb") as large:
        large.write(bytes(5000))
    assert [cache(images, shard=(shard, 2)).bytes for shard in range(2)] == [5000, 5000]


def test_patterns_come_before_shares(images: str, cache: Callable[..., CacheReport]) -> None:
    parts = [tree(cache(images, include=("*.jpg",), shard=(shard, 2)).path) for shard in range(2)]

    assert [len(part) for part in parts] == [2, 2]
    assert all(path.endswith(".jpg") for part in parts for path in part)


def test_fewer_files_than_nodes_are_refused_on_every_node(
    export: str, images: str, cache: Callable[..., CacheReport]
) -> None:
    for rank in (0, 4):
        with pytest.raises(
            InvalidRequest, match=r"split `validation` of `.*` has 4 files to share out over 5 nodes"
        ) as e:
            cache(export, shard=(rank, 5))
        assert "--world-size" in str(e.value.hint)
        assert "--exclude 'validation-*'" in str(e.value.hint)
    with pytest.raises(InvalidRequest, match=r"images` has 1 file to share out over 2 nodes"):
        cache(images, include=("dogs/",), shard=(0, 2))
    with pytest.raises(InvalidRequest, match="`--shard 5/5` names no node"):
        cache(export, shard=(5, 5))


@pytest.mark.parametrize(
    "launcher",
    [
        "GROUP_RANK={node} GROUP_WORLD_SIZE=2 RANK={rank} WORLD_SIZE=4 LOCAL_WORLD_SIZE=2",
        "SLURM_PROCID={rank} SLURM_NODEID={node} SLURM_NNODES=2",
    ],
)
def test_the_ranks_of_a_node_get_one_share_and_the_nodes_together_have_all_files(
    launcher: str, export: str, tmp_path: Path
) -> None:
    def start(rank: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "uc_stage", "cache", export, "--shard", "auto", "--json"]
        words += ["--cache-dir", str(tmp_path / f"nvme{rank // 2}")]
        told = dict(word.split("=") for word in launcher.format(node=rank // 2, rank=rank).split())
        return subprocess.Popen(words, env=clean_environment(**told), stdout=subprocess.PIPE, text=True)

    runs = [start(rank) for rank in range(4)]
    data = [json.loads(run.communicate(timeout=60)[0])["data"] for run in runs]

    assert [one["variant"] for one in data] == ["shard=0/2", "shard=0/2", "shard=1/2", "shard=1/2"]
    assert (data[0]["path"], data[2]["path"]) == (data[1]["path"], data[3]["path"])
    parts = [tree(data[rank]["path"]) for rank in (0, 2)]
    assert [len(part) for part in parts] == [5, 4]
    assert {**parts[0], **parts[1]} == tree(export)


def test_the_command_line_says_which_part_in_words(export: str, tmp_path: Path) -> None:
    words = ("cache", export, "--cache-dir", tmp_path / "nvme", "--include", "train-*", "--shard", "1/2")
    part = "shard 1 of 2"

    planned = uc_stage(*words, "--dry-run")
    assert f"\npart        include train-*, {part}\n" in planned.out
    absent = uc_stage(*words, "--check", "--json")
    assert absent.code == 17
    assert absent.json["errors"][0]["hint"] == f"uc-stage cache {export} --include 'train-*' --shard 1/2"
    made = uc_stage(*words)
    assert f"copied {export} (include train-*, {part}): 4 files" in made.err
    assert f"the copy of {export} (include train-*, {part}) is whole" in uc_stage(*words).err
    assert f"part            include train-*, {part}" in uc_stage("inspect", made.out.strip()).out
    assert f"part        include train-*, {part}" in uc_stage("inspect", "--cache-dir", tmp_path / "nvme").out
    told = uc_stage(*words[:4], UC_STAGE_SHARD="1/2", UC_STAGE_INCLUDE="train-*")
    assert told.out == made.out


def test_a_record_whose_part_was_changed_is_still_shown(export: str, tmp_path: Path) -> None:
    made = uc_stage("cache", export, "--cache-dir", tmp_path / "nvme", "--shard", "0/2")
    with open(f"{made.out.strip()}/.uc_stage/copy.json", "r+", encoding="utf-8") as file:
        text = file.read().replace("shard=0/2", "shard='0/2")
        file.seek(0)
        file.write(text)

    shown = uc_stage("inspect", "--cache-dir", tmp_path / "nvme")
    assert shown.code == 0
    assert "part        shard '0 of 2" in shown.out


def test_the_function_takes_a_share_as_text_or_numbers_and_one_pattern_as_text(
    export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvme = str(tmp_path / "nvme")
    for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "2" if name.endswith("SIZE") else "1")

    path = api.cache(export, cache_dir=nvme, shard=(1, 2), exclude="validation-*")
    assert api.cache(export, cache_dir=nvme, shard="1/2", exclude=["validation-*"]) == path
    assert api.cache(export, cache_dir=nvme, shard="auto", exclude=["validation-*"]) == path
    with pytest.raises(InvalidRequest, match="`shard 2` is neither RANK/WORLD nor auto"):
        api.cache(export, cache_dir=nvme, shard="2")


def test_the_files_of_a_sample_go_to_one_node_where_they_are_packed(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for index in range(20):
        (tmp_path / f"s/{index:04}.jpg").write_bytes(b"1" * (100 + index))
        (tmp_path / f"s/{index:04}.json").write_bytes(b"{}")
    held = []
    for node in range(2):
        request = CacheRequest(str(tmp_path / "s"), cache_dir=str(tmp_path / f"c{node}"), pack=True, shard=(node, 2))
        plan = caching.plan(request)
        keys = [file.path.partition(".")[0] for file in plan.files]
        assert all(keys.count(key) == 2 for key in keys)
        held += [file.path for file in plan.files]
    assert sorted(held) == sorted(os.listdir(tmp_path / "s"))


def test_each_node_has_all_splits_of_a_folder_that_becomes_arrow(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "s").mkdir()
    for name in ("train-a", "train-b", "test-a", "test-b"):
        pq.write_table(pa.table({"x": range(100 if name == "train-a" else 3)}), tmp_path / f"s/{name}.parquet")
    for node in range(2):
        request = CacheRequest(str(tmp_path / "s"), cache_dir=str(tmp_path / "c"), form="arrow", shard=(node, 2))
        path = caching.run(request).path
        assert {"train", "test"} <= set(os.listdir(path))
        assert open_files(path, "train", []).shard == (node, 2)
