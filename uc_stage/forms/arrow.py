"""Arrow IPC that Hugging Face `datasets` memory-maps: a folder for each split, and in it a file for each Parquet file.

The folders are as `datasets.Dataset.save_to_disk` leaves them, the files as its writer writes them (IPC streams):
https://github.com/huggingface/datasets/blob/main/src/datasets/arrow_dataset.py
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, BinaryIO

from uc_stage.errors import Unsupported, VerificationFailed
from uc_stage.forms.arrow_schema import loadable
from uc_stage.forms.arrow_size import batch_rows, estimated
from uc_stage.forms.sink import OutputSink, waiting
from uc_stage.manifest import check_paths
from uc_stage.parquet import is_parquet_name, understood

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from uc_stage.forms import Outputs
    from uc_stage.forms.sink import Part
    from uc_stage.manifest import Manifest
    from uc_stage.model import CopyFile
    from uc_stage.progress import Progress
    from uc_stage.publish import CopyPublication
    from uc_stage.storage import Folder

_BUFFER_BYTES = 1024**2
# Each holds a row group in memory; more than a disk can take from so many is not to be had.
_AT_ONCE = 16

_SHARDED = re.compile(r"(?:.*/)?(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*")
# https://huggingface.co/docs/hub/datasets-file-names-and-splits
_KEYWORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORDS = re.compile(r"[^-._ 0-9/]+")


class ArrowForm:
    """The Arrow form of one generation; `identity` tells it from all others, and is what `datasets` fingerprints."""

    def __init__(self, manifest: Manifest | None, identity: str) -> None:
        self._splits = (
            {file.path: name for name, files in manifest.splits.items() for file in files} if manifest else {}
        )
        self._places = {path: place for place, path in enumerate(self._splits)}
        self._identity = identity

    def outputs(self, files: Sequence[CopyFile]) -> Outputs:
        """An Arrow file for each Parquet file, the largest first.

        Raises:
            Unsupported: a file that is not called Parquet, or names from which the split of each cannot be told.
        """
        if not any(is_parquet_name(file.path) for file in files):
            raise Unsupported(
                "`--as arrow` takes Parquet, and no file is", hint="leave it out; `--pack` takes images, audio and text"
            )
        if other := next((file.path for file in files if not is_parquet_name(file.path)), None):
            raise Unsupported(
                f"`{other}` is not Parquet, which alone `--as arrow` takes", hint=f"leave it out: --exclude '{other}'"
            )
        splits = self._splits or named_splits([file.path for file in files])
        found: Outputs = {
            f"{splits[file.path]}/{_renamed(file.path)}": (file,) for file in sorted(files, key=_largest_first)
        }
        if len(found) < len(files):
            raise Unsupported("two of the source's files differ in their suffix alone", hint="rename one of them")
        check_paths(list(found), "the copy")
        return found

    def estimate(self, folder: Folder, outputs: Outputs, progress: Progress) -> dict[str, int]:
        """The bytes of each Arrow file, a little above what they will be, by the footers.

        Raises:
            Unsupported: a column that `datasets` cannot take, or files of one split with different columns.
            VerificationFailed, NotFound, AccessDenied, Unavailable: as `uc_stage.parquet.read_metadata`.
        """
        return estimated(folder, {path: files[0].path for path, files in outputs.items()}, progress)

    def scratch(self, outputs: Outputs) -> int:
        """The most bytes of Parquet that wait to be written as Arrow."""
        return waiting(outputs)

    def sink(
        self, publication: CopyPublication, outputs: Outputs, sizes: Mapping[str, int], progress: Progress
    ) -> OutputSink:
        """A sink that writes as many Arrow files at once as there are processors, or `_AT_ONCE`."""
        return OutputSink(publication, outputs, _write, min(os.cpu_count() or 1, _AT_ONCE), sizes, progress)

    def beside(self, outputs: Outputs) -> Iterator[tuple[str, bytes]]:
        """What `datasets.load_from_disk` reads first: the splits, and of each its files in their order."""
        splits: dict[str, list[tuple[int, str, str]]] = {}
        for path, (file,) in outputs.items():
            split, _, name = path.partition("/")
            splits.setdefault(split, []).append((self._places.get(file.path, 0), file.path, name))
        for split, found in splits.items():
            state: dict[str, Any] = {
                "_data_files": [{"filename": name} for _, _, name in sorted(found)],
                # What `datasets` names the results of `map` after.
                "_fingerprint": hashlib.sha256(f"{self._identity} {split}".encode()).hexdigest()[:16],
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": None,
                "_output_all_columns": False,
                "_split": split,
            }
            yield f"{split}/state.json", json.dumps(state, indent=2).encode()
            # The features are those of the Arrow files.
            yield f"{split}/dataset_info.json", b"{}"
        yield "dataset_dict.json", json.dumps({"splits": sorted(splits, key=_usual_order)}).encode()


def named_splits(paths: Sequence[str]) -> dict[str, str]:
    """The split of each file of a plain folder, told from the paths as Hugging Face does; `train` where none tells.

    Raises:
        Unsupported: some name a split, another one than `train`, and others none.
    """
    sharded = {path: found[1] for path in paths if (found := _SHARDED.fullmatch(path))}
    if len(sharded) == len(paths):
        return sharded
    words = {path: [_KEYWORDS[word] for word in _WORDS.findall(path) if word in _KEYWORDS] for path in paths}
    named = {path: found[-1] for path, found in words.items() if found}
    if named and len(named) < len(paths) and set(named.values()) != {"train"}:
        one = next(path for path, split in named.items() if split != "train")
        other = next(path for path in paths if path not in named)
        raise Unsupported(
            f"`{one}` names the split `{named[one]}` and `{other}` names none",
            hint="give all files names such as train-00000-of-00001.parquet, or put them in folders train and test",
        )
    return {path: named.get(path, "train") for path in paths}


def _usual_order(split: str) -> tuple[int, str]:
    # A manifest has them in the order of their names.
    usual = list(dict.fromkeys(_KEYWORDS.values()))
    return (usual.index(split) if split in usual else len(usual)), split


def _largest_first(file: CopyFile) -> int:
    return -file.bytes


def _renamed(path: str) -> str:
    return f"{path.removesuffix('.parquet')}.arrow"


def _write(_: str, parts: Sequence[Part], out: BinaryIO) -> None:
    """Writes one Parquet file as an Arrow IPC stream; memory stays about that of a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (part,) = parts
    rows = 0
    options = {"pre_buffer": False, "page_checksum_verification": True}
    with understood(part.file.path), pq.ParquetFile(part.here, **options) as source:
        schema = loadable(source.schema_arrow, part.file.path)
        with (
            pa.BufferedOutputStream(pa.PythonFile(out, "w"), _BUFFER_BYTES) as buffered,
            pa.ipc.new_stream(buffered, schema) as writer,
        ):
            for batch in source.iter_batches(batch_rows(source.metadata)):
                # No hash may have been there to compare the file with, and `datasets` checks nothing.
                batch.validate(full=True)
                writer.write_batch(batch.cast(schema))
                rows += batch.num_rows
        if rows != source.metadata.num_rows:
            raise VerificationFailed(
                f"`{part.file.path}` tells of {source.metadata.num_rows} rows and holds {rows}",
                hint="export the table again",
            )
