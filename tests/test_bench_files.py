"""What `bench` measures of images, audio and text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import uc_stage
from tests.fixtures.exports import make_export
from tests.test_bench import LONG, cold
from tests.test_bench_cells import passes
from uc_stage.benchmark.jobs import Job
from uc_stage.errors import InvalidRequest, NotFound, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from uc_stage.loaders.samples import Kind


@pytest.fixture
def images(tmp_path: Path) -> str:
    """Images of two sizes in two folders, and a text that is none of them."""
    for number in range(12):
        folder = tmp_path / "images" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3 + number // 8), (number, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "images" / "README.md").write_text("of cats and dogs")
    return str(tmp_path / "images")


def test_a_folder_of_images_and_its_packed_copy_are_read_raw_and_decoded(images: str, tmp_path: Path) -> None:
    packed = uc_stage.cache(images, str(tmp_path / "copy"), pack=True)

    report = uc_stage.bench(images, packed, batch_size=4, workers=1, seconds=LONG, require=["files:1rows/s"])

    found = cold(report)
    assert [(one.reader, one.rows, one.distinct_rows) for one in found] == [("raw", None, None), ("files", 12, 12)] * 2
    assert [one.note for one in report.measurements if one.failed] == []
    assert report.met
    assert found[0].bytes == sum(os.path.getsize(f"{images}/{('cat', 'dog')[n % 2]}/{n}.png") for n in range(12))
    with pytest.raises(InvalidRequest, match="the reader `arrow` reads no"):
        uc_stage.bench(images, readers=["arrow"])
    with pytest.raises(InvalidRequest, match="does not read"):
        uc_stage.bench(images, require=["torch:1rows/s"])


def test_a_file_that_does_not_decode_is_a_result(images: str) -> None:
    with open(f"{images}/dog/5.png", "wb") as file:
        file.write(b"no image")
    files = tuple((f"{images}/{('cat', 'dog')[n % 2]}/{n}.png", 10, 1) for n in range(12))

    told = passes(Job("files", images, files, 4, 0, LONG, kind="image"))

    assert "`" in str(told[0].error)
    assert "5.png` cannot be decoded as image" in str(told[0].error)


def test_audio_and_text_are_samples_too(tmp_path: Path) -> None:
    import soundfile

    for name in ("sound", "text"):
        (tmp_path / name).mkdir()
    for number in range(3):
        soundfile.write(tmp_path / "sound" / f"{number}.wav", np.zeros(100 + number), 8000)
        (tmp_path / "text" / f"{number}.txt").write_text("word")

    both: tuple[tuple[Kind, str, str], ...] = (("audio", "sound", "wav"), ("text", "text", "txt"))
    for kind, name, end in both:
        files = tuple((f"{tmp_path}/{name}/{number}.{end}", 10, 1) for number in range(3))
        told = passes(Job("files", str(tmp_path / name), files, 2, 0, LONG, kind=kind))
        assert [(state.rows, state.surplus, state.error) for state in told.values()] == [(3, 0, None)] * 2
    shares = [passes(Job("files", str(tmp_path / "text"), files, 2, 0, LONG, kind="text", rank=rank, world_size=2))
              for rank in range(2)]  # fmt: skip
    assert [[state.rows for state in share.values()] for share in shares] == [[2, 2], [1, 1]]


def test_files_without_what_decodes_them_are_left_out(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uc_stage import benchmark

    monkeypatch.setattr(benchmark, "installed", lambda package: package != "PIL")

    report = uc_stage.bench(images, seconds=LONG)

    assert [one.reader for one in cold(report)] == ["raw"]
    assert report.skipped == {"files": "`pillow` is not installed: pip install pillow"}
    with pytest.raises(Unavailable, match="`pillow`"):
        uc_stage.bench(images, readers=["files"])
    make_export(str(tmp_path / "export"))
    with pytest.raises(InvalidRequest, match="no images, audio or text"):
        uc_stage.bench(str(tmp_path / "export"), readers=["files"])
    copy = uc_stage.cache(images, str(tmp_path / "copy"))
    os.unlink(f"{copy}/cat/0.png")
    with pytest.raises(NotFound, match=r"cat/0\.png` is not there"):
        uc_stage.bench(copy)
