from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

from uc_stage.errors import Unsupported
from uc_stage.forms import sink
from uc_stage.forms.arrow import named_splits
from uc_stage.manifest import CopyRecord
from uc_stage.model import CopyFile
from uc_stage.progress import SILENT
from uc_stage.publish import CopyPublication

if TYPE_CHECKING:
    from pathlib import Path


def test_the_splits_of_a_plain_folder_are_told_by_its_names() -> None:
    sharded = ["train-00000-of-00001.parquet", "data/dev.b-00000-of-00002-x.parquet"]
    assert named_splits(sharded) == {sharded[0]: "train", sharded[1]: "dev.b"}
    assert named_splits(["a/test/1.parquet", "train.parquet", "my_val-2.pq"]) == {
        "a/test/1.parquet": "test", "train.parquet": "train", "my_val-2.pq": "validation"
    }  # fmt: skip
    plain = ["part-00000-5f.snappy.parquet", "contest.parquet", "train.parquet"]
    assert named_splits(plain) == dict.fromkeys(plain, "train")
    with pytest.raises(Unsupported, match=r"`test\.parquet` names the split `test` and `x\.parquet` names none"):
        named_splits(["test.parquet", "x.parquet"])


def test_an_output_of_several_parts_is_written_once_all_are_there_and_none_stay_behind(tmp_path: Path) -> None:
    files = [CopyFile(name, 10, 5) for name in ("a", "b", "c")]
    outputs = {"ab": (files[0], files[1]), "c": (files[2],)}
    written: list[tuple[str, list[str]]] = []

    def write(path: str, parts: Any, out: Any) -> None:
        written.append((path, [part.file.path for part in parts]))
        out.write(b"".join(pathlib.Path(part.here).read_bytes() for part in parts))

    publication = CopyPublication(str(tmp_path / "copy"), str(tmp_path / "partial"))
    publication.open(CopyRecord("s", "g", None, "", ()))
    made = sink.OutputSink(publication, outputs, write, 1, {"ab": 20, "c": 10}, SILENT)

    def bring(file: CopyFile) -> str:
        here = made.temporary()
        with open(here, "w", encoding="utf-8") as stream:
            stream.write(file.path)
        made.accept(here, file)
        return here

    assert sink.waiting(outputs) == 30
    assert made.takes(files[1])
    first = bring(files[1])
    assert written == []
    bring(files[0])
    assert written == [("ab", ["a", "b"])]
    assert (tmp_path / "partial/ab").read_bytes() == b"ab"
    assert not os.path.exists(first)
    made.close()
    with pytest.raises(sink._ClosedError):
        bring(files[2])
    assert [file.path for file in made.written] == ["ab"]
    assert not (tmp_path / "partial/c").exists()
