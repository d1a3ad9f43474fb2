"""Planning and writing of tar shards; the copies that `cache --pack` makes of them are in test_cache_pack.py."""

from __future__ import annotations

import os
import tarfile
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uc_stage.errors import Unsupported
from uc_stage.forms import shards
from uc_stage.forms.pack import INDEX_PATH, Pack, ShardSink
from uc_stage.manifest import CopyRecord
from uc_stage.model import CopyFile
from uc_stage.progress import SILENT
from uc_stage.publish import CopyPublication
from uc_stage.storage import LocalFolder

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from uc_stage.forms import Outputs

SECOND = 10**9


def is_name(text: str) -> bool:
    """Whether a folder's listing can tell such a name."""
    return text not in ("", ".", "..") and len(os.fsencode(text)) < 256 and os.fsdecode(os.fsencode(text)) == text


LETTERS = st.characters(codec="utf-8", exclude_characters="/\0\\") | st.sampled_from("ab._") | st.just("\udcff")
NAMES = st.text(LETTERS, min_size=1, max_size=12).filter(is_name)
LONG_NAMES = st.builds(lambda name, count: (name * count)[:80], NAMES, st.integers(1, 80)).filter(is_name)
PATHS = st.lists(NAMES | LONG_NAMES, min_size=1, max_size=3).map("/".join)
FILES = st.lists(
    st.builds(CopyFile, PATHS, st.integers(0, 3000), st.integers(-5 * SECOND, 2**62)),
    min_size=1,
    max_size=20,
    unique_by=lambda file: file.path,
)


def key_of(path: str) -> str | None:
    """What WebDataset itself tells."""
    from webdataset.tariterators import base_plus_ext

    key: str | None = base_plus_ext(path)[0]
    return key


def publication(folder: Path) -> CopyPublication:
    made = CopyPublication(str(folder / "copy"), str(folder / "partial"))
    made.open(CopyRecord("/src", "0", None, "2026-11-30T12:00:00+00:00", ()))
    return made


def content(file: CopyFile) -> bytes:
    return (os.fsencode(file.path) * (file.bytes // len(file.path) + 1))[: file.bytes]


def give(sink: ShardSink, files: Sequence[CopyFile], *, flaw: str | None = None) -> None:
    import xxhash

    for file in files:
        data, temporary = content(file), sink.temporary()
        with open(temporary, "xb") as stream:
            stream.write(data[:-1] + b"!" if file.path == flaw else data)
        sink.accept(temporary, CopyFile(file.path, file.bytes, file.mtime_ns, xxhash.xxh3_128_hexdigest(data)))


def packed(folder: Path, outputs: Outputs) -> ShardSink:
    sink = ShardSink(publication(folder), outputs, SILENT)
    # In another order than they lie in.
    give(sink, sorted((file for files in outputs.values() for file in files), key=lambda file: file.path))
    return sink


@settings(max_examples=50, deadline=None)
@given(FILES, st.integers(1, 20_000) | st.none(), st.randoms())
def test_each_file_has_one_place_that_the_listing_alone_decides(
    files: list[CopyFile], size: int | None, random: random.Random
) -> None:
    try:
        dealt = shards.deal(files, size)
    except Unsupported:
        return
    shuffled = random.sample(files, len(files))

    assert shards.deal(shuffled, size) == dealt
    assert sorted(file.path for members in dealt.values() for file in members) == sorted(file.path for file in files)
    assert all(dealt.values())
    assert list(dealt) == [f"shard-{number:06d}.tar" for number in range(len(dealt))]


@settings(max_examples=50, deadline=None)
@given(FILES, st.integers(1, 20_000) | st.none())
def test_the_files_of_a_sample_lie_side_by_side_and_shards_have_equally_many_samples(
    files: list[CopyFile], size: int | None
) -> None:
    try:
        dealt = shards.deal(files, size)
    except Unsupported:
        return
    samples = [
        (name, key)
        for name, members in dealt.items()
        for key, _ in groupby(members, key=lambda file: key_of(file.path) or file.path)
    ]
    counts = [sum(found == name for found, _ in samples) for name in dealt]

    assert len({key for _, key in samples}) == len(samples)
    assert max(counts) - min(counts) <= 1


@settings(max_examples=25, deadline=None)
@given(files=FILES)
def test_tar_and_webdataset_read_what_was_put_in_whatever_its_name(
    files: list[CopyFile], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from webdataset.tariterators import tar_file_iterator

    folder = tmp_path_factory.mktemp("names")
    try:
        outputs = shards.deal(files, 4000)
    except Unsupported:
        return
    packed(folder, outputs)

    wanted = {file.path: content(file) for file in files}
    found = {}
    for name in outputs:
        with tarfile.open(folder / "partial" / name) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                assert stream is not None
                found[member.name] = stream.read()
                (file,) = [file for file in files if file.path == member.name]
                assert member.mtime == (file.mtime_ns or 0) // SECOND
    assert found == wanted

    seen: dict[str, bytes] = {}
    for name in outputs:
        with open(folder / "partial" / name, "rb") as shard:
            seen |= {item["fname"]: item["data"] for item in tar_file_iterator(shard)}
    assert seen == {path: data for path, data in wanted.items() if not shards.SKIPPED.match(path)}


@settings(max_examples=25, deadline=None)
@given(files=FILES)
def test_the_index_tells_where_each_files_bytes_are(
    files: list[CopyFile], tmp_path_factory: pytest.TempPathFactory
) -> None:
    import pyarrow as pa

    folder = tmp_path_factory.mktemp("index")
    try:
        outputs = shards.deal(files, 4000)
    except Unsupported:
        return
    packed(folder, outputs)
    ((path, data),) = Pack().beside(outputs)
    rows = pa.ipc.open_file(data).read_all().to_pylist()

    assert path == INDEX_PATH
    assert [row["path"] for row in rows] == [
        file.path.replace("\udcff", r"\udcff") for members in outputs.values() for file in members
    ]
    by_path = {file.path.replace("\udcff", r"\udcff"): file for file in files}
    for row in rows:
        with open(folder / "partial" / row["shard"], "rb") as shard:
            assert os.pread(shard.fileno(), row["bytes"], row["offset"]) == content(by_path[row["path"]])
    keys = [key_of(file.path) or file.path for members in outputs.values() for file in members]
    assert [row["sample"] for row in rows] == [list(dict.fromkeys(keys)).index(key) for key in keys]


def test_an_index_of_more_rows_than_a_batch_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr("uc_stage.forms.pack._BATCH_ROWS", 4)
    outputs = shards.deal([CopyFile(f"{number}.txt", 5) for number in range(10)], 3000)
    ((_, data),) = Pack().beside(outputs)

    rows = pa.ipc.open_file(data).read_all()
    assert rows["sample"].to_pylist() == list(range(10))
    assert rows["shard"].to_pylist() == [name for name, members in outputs.items() for _ in members]


@pytest.mark.parametrize(
    ("samples", "each", "count"),
    [
        (1, 10, 1),
        (15, 10, 1),
        (16, 10, 2),
        (100, 10, 16),
        (512, 10, 64),
        (10_000, 10, 64),
        (640, 100 * 1000**2, 256),
        (9, 3 * 10**8, 9),
    ],
)
def test_there_are_as_many_shards_as_workers_can_share_evenly(samples: int, each: int, count: int) -> None:
    dealt = shards.deal(CopyFile(f"{number}.jpg", each) for number in range(samples))

    assert len(dealt) == count


def test_a_shard_has_no_more_samples_than_a_reader_can_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_SHARD_SAMPLES", 10)

    assert len(shards.deal(CopyFile(f"{number}.jpg", 10) for number in range(641))) == 128


@given(files=FILES, jobs=st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_the_room_beside_the_shards_holds_the_index_and_what_is_on_its_way(files: list[CopyFile], jobs: int) -> None:
    try:
        outputs = shards.deal(files)
    except Unsupported:
        return
    ((_, index),) = Pack().beside(outputs)

    on_their_way = sorted(file.bytes for file in files)[-jobs:]
    assert len(index) + sum(on_their_way) <= Pack(jobs=jobs).scratch(outputs)


def test_a_size_that_is_asked_for_decides_how_many_shards_there_are(tmp_path: Path) -> None:
    files = [CopyFile(f"{number}.jpg", 10_000) for number in range(1000)]

    sizes = Pack(size=1000**2).estimate(LocalFolder(str(tmp_path)), Pack(size=1000**2).outputs(files), SILENT)

    assert len(sizes) == 11
    assert max(sizes.values()) < 1.1 * 1000**2


def test_a_shard_mixes_the_folders() -> None:
    files = [CopyFile(f"train/{label}/{number}.jpg", 100) for label in "abcd" for number in range(256)]

    for members in shards.deal(files).values():
        assert len({file.path.split("/")[1] for file in members}) > 1


@pytest.mark.parametrize(("one", "other"), [("a/1.jpg", "a/1.JPG"), ("1.Jpg", "1.jPg")])
def test_two_files_that_are_one_field_of_a_sample_are_refused(one: str, other: str) -> None:
    with pytest.raises(Unsupported, match="are one field of one sample to WebDataset"):
        shards.deal([CopyFile(one, 1), CopyFile(other, 1)])


def test_a_file_that_takes_a_field_of_webdatasets_own_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"`a.__key__` and what WebDataset adds"):
        shards.deal([CopyFile("a.__key__", 1)])


def test_files_of_one_name_that_webdataset_passes_over_are_not_refused() -> None:
    dealt = shards.deal([CopyFile("__x__/1.jpg", 1), CopyFile("__x__/1.JPG", 1), CopyFile("LICENSE", 1)])

    assert sum(len(members) for members in dealt.values()) == 3


def test_a_shard_is_named_once_its_last_member_is_there(tmp_path: Path) -> None:
    outputs = shards.deal([CopyFile(f"{number}.txt", 700, number * SECOND) for number in range(1, 5)], 10**6)
    ((name, files),) = outputs.items()
    sink = ShardSink(publication(tmp_path), outputs, SILENT)

    give(sink, files[:-1])
    assert not (tmp_path / "partial" / name).exists()
    give(sink, files[-1:])

    (shard,) = sink.written
    found = os.stat(tmp_path / "partial" / name)
    assert (shard.path, shard.bytes, shard.mtime_ns) == (name, found.st_size, 4 * SECOND)
    assert found.st_mtime_ns == 4 * SECOND
    assert Pack().estimate(LocalFolder(str(tmp_path)), outputs, SILENT) == {name: found.st_size}
    assert os.listdir(tmp_path / "partial/.uc_stage/unnamed") == []


def test_a_member_that_does_not_have_the_bytes_that_came_is_noticed(tmp_path: Path) -> None:
    from uc_stage.errors import VerificationFailed

    files = [CopyFile(f"{number}.txt", 700) for number in range(4)]
    sink = ShardSink(publication(tmp_path), shards.deal(files, 10**6), SILENT)

    with pytest.raises(VerificationFailed, match=r"does not hold the bytes of `2.txt`"):
        give(sink, files, flaw="2.txt")
    sink.close()
    assert os.listdir(tmp_path / "partial/.uc_stage/unnamed") == []


def test_a_sink_that_is_closed_leaves_nothing_and_takes_nothing(tmp_path: Path) -> None:
    files = [CopyFile(f"{number}.txt", 700) for number in range(4)]
    sink = ShardSink(publication(tmp_path), shards.deal(files, 10**6), SILENT)
    give(sink, files[:2])

    sink.close()
    give(sink, files[2:])

    assert os.listdir(tmp_path / "partial/.uc_stage/unnamed") == []
    assert sink.written == []
