"""Images, audio and text from folders and packed copies, as a training script reads them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch.utils.data import DataLoader, DistributedSampler

import uc_stage
from tests.fixtures.readme import readme_code
from uc_stage.errors import InvalidRequest, NotFound, Unavailable, VerificationFailed
from uc_stage.loaders.media import files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.s3 import Bucket

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Newer versions of Python say so of each fork beside Arrow's threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
CLASSES = ("cat", "cat-2", "dog")


def to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy())


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve images, four of each class, each of one colour that tells which it is; and what Spark leaves."""
    folder = tmp_path / "images"
    for number in range(12):
        place = folder / CLASSES[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (number, 0, 0)).save(place / f"{number:02d}.png")
    (folder / "_SUCCESS").touch()
    (folder / "cat" / ".hidden.png").touch()
    (folder / "cat" / "notes.csv").write_text("a,b")
    return folder


@pytest.mark.parametrize("form", ["folder", "copy", "packed"])
def test_each_image_comes_with_the_label_of_its_folder(images: Path, tmp_path: Path, form: str) -> None:
    path = str(images)
    if form != "folder":
        path = uc_stage.cache(path, str(tmp_path / "copy"), pack=form == "packed")

    dataset = files(path, transform=to_tensor)

    assert (dataset.kind, dataset.classes, len(dataset)) == ("image", list(CLASSES), 12)
    assert dataset.class_to_idx == {"cat": 0, "cat-2": 1, "dog": 2}
    assert dataset.targets == [0] * 4 + [1] * 4 + [2] * 4
    assert [dataset.path(index) for index in (0, 3, 4)] == ["cat/00.png", "cat/09.png", "cat-2/01.png"]
    red = [int(image[0, 0, 0]) for image, _ in (dataset[index] for index in range(12))]
    assert red == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
    assert dataset[-1][1] == 2
    with pytest.raises(IndexError):
        dataset[12]


@pytest.mark.parametrize(("context", "packed"), [("fork", True), ("spawn", True), ("fork", False)])
def test_workers_and_ranks_share_the_files_out(images: Path, tmp_path: Path, context: str, packed: bool) -> None:
    path = uc_stage.cache(str(images), str(tmp_path / "copy"), pack=packed)
    dataset = files(path, transform=to_tensor)
    assert dataset[0][1] == 0  # the parent has files open

    ranks = 1 if context == "spawn" else 2
    seen = []
    for rank in range(ranks):
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=2,
            num_workers=1 if context == "spawn" else 2,
            timeout=60,
            sampler=DistributedSampler(dataset, num_replicas=ranks, rank=rank, shuffle=True),
            multiprocessing_context=multiprocessing.get_context(context),
        )
        for batch, labels in loader:
            assert batch.shape == (2, 3, 4, 3)
            seen += [(int(image[0, 0, 0]), int(label)) for image, label in zip(batch, labels, strict=True)]

    assert sorted(seen) == [(number, number % 3) for number in range(12)]


def test_a_dataset_is_pickled_without_what_it_has_open(images: Path, tmp_path: Path) -> None:
    dataset = files(uc_stage.cache(str(images), str(tmp_path / "copy"), pack=True), transform=to_tensor)
    first = dataset[0]

    again = pickle.loads(pickle.dumps(dataset))

    assert torch.equal(again[0][0], first[0])
    assert again.classes == dataset.classes


def test_few_of_many_shards_are_open_at_once_and_none_once_the_dataset_is_gone(tmp_path: Path) -> None:
    for number in range(40):
        place = tmp_path / "b" / f"{number % 2}" / f"{number:02d}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes([number]) * 600)
    path = uc_stage.cache(str(tmp_path / "b"), str(tmp_path / "copy"), pack=True, pack_size=1)

    dataset = files(path)
    opened = []
    for index in [*range(40), *range(40)]:
        assert dataset[index][0] == bytes([int(dataset.path(index)[2:4])]) * 600
        opened.append(len(opened_shards(path)))

    assert 20 < max(opened) < 40
    del dataset
    assert not opened_shards(path)


def opened_shards(path: str) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [file for file in found if file.startswith(f"{path}/shard-")]


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_an_image_of_more_than_8_bits_a_channel_is_refused_rather_than_cut_off(tmp_path: Path, name: str) -> None:
    kind = np.uint16 if name == "a.png" else np.float32
    Image.fromarray(np.full((2, 2), 1000, kind)).save(tmp_path / name)

    with pytest.raises(VerificationFailed, match=rf"{name}` cannot .* has more than 8 bits a channel"):
        files(str(tmp_path))[0]


def test_audio_is_a_tensor_of_channels_with_its_rate(tmp_path: Path) -> None:
    frames = np.linspace(-0.5, 0.5, 800, dtype=np.float32).reshape(400, 2)
    soundfile.write(tmp_path / "a.wav", frames, 16_000, subtype="FLOAT")

    dataset = files(str(tmp_path))
    sound, rate = dataset[0]

    assert (dataset.kind, dataset.classes, rate) == ("audio", [], 16_000)
    assert torch.equal(sound, torch.from_numpy(frames.T.copy()))


def test_text_is_a_string_and_a_folder_within_counts_as_the_whole(tmp_path: Path) -> None:
    for name in ("train/b/1.txt", "train/a/sub/2.txt", "test/a/3.txt"):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_text(f"ü {name}", encoding="utf-8")

    train = files(str(tmp_path / "t"), within="train/")
    packed = files(uc_stage.cache(str(tmp_path / "t"), str(tmp_path / "copy"), pack=True), within="train")

    assert (train.classes, [train[0], train[1]]) == (["a", "b"], [("ü train/a/sub/2.txt", 0), ("ü train/b/1.txt", 1)])
    assert [packed[0], packed[1]] == [train[0], train[1]]
    assert files(str(tmp_path / "t"), labels=False)[0] == "ü test/a/3.txt"
    with pytest.raises(NotFound, match="dev"):
        files(str(tmp_path / "t"), within="dev")


def test_bytes_are_given_as_they_are_where_nothing_is_to_be_decoded(images: Path, tmp_path: Path) -> None:
    data, label = files(str(images), decode=False)[0]
    assert (data, label) == ((images / "cat" / "00.png").read_bytes(), 0)

    every = files(str(images), "bytes")
    assert len(every) == 13
    assert every[4] == (b"a,b", 0)

    odd = tmp_path / "odd"
    odd.mkdir()
    name = os.path.join(os.fsencode(odd), b"n\xe9.bin")
    with open(name, "wb") as file:
        file.write(b"xyz")
    assert files(str(odd))[0] == b"xyz"
    packed = files(uc_stage.cache(str(odd), str(tmp_path / "copy"), pack=True))
    assert (packed[0], os.fsencode(packed.path(0))) == (b"xyz", b"n\xe9.bin")


@pytest.mark.parametrize("damage", [b"", b"no image", "cut"])
def test_a_broken_file_is_named(images: Path, damage: bytes | str) -> None:
    path = images / "dog" / "05.png"
    path.write_bytes(path.read_bytes()[:40] if isinstance(damage, str) else damage)
    dataset = files(str(images))

    with pytest.raises(VerificationFailed, match=r"dog/05\.png` cannot be decoded as image"):
        dataset[dataset.targets.index(2) + 1]


def test_a_cut_shard_and_a_broken_index_are_told(images: Path, tmp_path: Path) -> None:
    path = uc_stage.cache(str(images), str(tmp_path / "copy"), pack=True)
    dataset = files(path)
    os.truncate(os.path.join(path, "shard-000000.tar"), 512)

    with pytest.raises(VerificationFailed, match=r"shard-000000\.tar` ends before"):
        dataset[0]
    with open(os.path.join(path, "index.feather"), "wb") as file:
        file.write(b"none")
    with pytest.raises(VerificationFailed, match=r"index\.feather` is damaged"):
        files(path)


def test_what_cannot_be_meant_is_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="`kind='video'` is no kind"):
        files(str(images), "video")  # type: ignore[arg-type]  # a caller may write anything
    (images / "cat" / "00.txt").write_text("a cat")
    with pytest.raises(InvalidRequest, match="files of image and text"):
        files(str(images))
    assert len(files(str(images), "image")) == 12
    with pytest.raises(NotFound, match="no file of audio"):
        files(str(images), "audio")
    Image.new("RGB", (1, 1)).save(images / "top.png")
    with pytest.raises(InvalidRequest, match=r"top\.png` lies in no folder"):
        files(str(images), "image")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="Delta table"):
        files(str(tmp_path / "table"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Unavailable, match="`pillow`, which is not installed") as caught:
        files(str(images), "image", labels=False)
    assert "pip install pillow" in str(caught.value.hint)
    assert isinstance(files(str(images), "image", labels=False, decode=False)[0], bytes)


def test_files_behind_a_url_are_read_by_the_parent_and_then_by_forked_workers(bucket: Bucket) -> None:
    for number in range(4):
        bucket.put(f"x/{'ab'[number % 2]}/{number}.txt", f"text {number}".encode())

    dataset = files(f"{bucket.url}/x")
    assert dataset[0] == ("text 0", 0)
    fork = multiprocessing.get_context("fork")
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=2, timeout=30, multiprocessing_context=fork
    )

    assert [tuple(sample) for sample in loader] == [("text 0", 0), ("text 2", 0), ("text 1", 1), ("text 3", 1)]


def test_the_readmes_loop_runs(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all").mkdir()
    images.rename(tmp_path / "all" / "train")

    exec(readme_code("files"), {"path": str(tmp_path / "all"), "to_tensor": to_tensor})

    assert "['cat', 'cat-2', 'dog'] torch.Size([2, 3, 4, 3])" in capsys.readouterr().out
