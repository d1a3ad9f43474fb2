"""Which files of a folder or a packed copy are images, audio or text, and where each lies; no library is needed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Literal

from uc_stage.errors import VerificationFailed
from uc_stage.forms.pack import INDEX_PATH
from uc_stage.forms.shards import is_packed
from uc_stage.sources import is_marker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uc_stage.targets import Target

Kind = Literal["image", "audio", "text", "bytes"]

EXTENSIONS: dict[Kind, set[str]] = {
    "image": {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"},
    "audio": {".aif", ".aiff", ".flac", ".mp3", ".ogg", ".opus", ".wav"},
    "text": {".md", ".text", ".txt"},
}
# The module that decodes each kind, and the package that brings it.
DECODERS: dict[Kind, tuple[str, str]] = {"image": ("PIL", "pillow"), "audio": ("soundfile", "soundfile")}

_ESCAPE = re.compile(r"\\u(dc[89a-f][0-9a-f])")


def plain(target: Target) -> Iterable[str]:
    """The files of a folder, or of a copy of one, by their relative paths; without marker files (`_SUCCESS`)."""
    recorded = target.record.files if target.record else None
    paths = (entry.path for entry in target.entries.values()) if recorded is None else (file.path for file in recorded)
    return (path for path in paths if not is_marker(path))


def packed(target: Target) -> dict[str, tuple[str, int, int]] | None:
    """By the path of each packed file its shard, its offset there, and its bytes; None where nothing is packed.

    Raises:
        VerificationFailed: the index is damaged.
    """
    import pyarrow as pa

    if target.record is None or not is_packed(target.record.variant):
        return None
    try:
        index = pa.ipc.open_file(pa.py_buffer(target.folder.read(INDEX_PATH))).read_all()
    except pa.ArrowException as error:
        raise VerificationFailed(
            f"`{target.folder.locate(INDEX_PATH)}` is damaged: {error}", hint="make the copy anew with `--force`"
        ) from error
    columns = (index[name].to_pylist() for name in ("path", "shard", "offset", "bytes"))
    # A byte of a name that is no UTF-8 is written as the escape of its surrogate.
    return {_unescaped(path): (shard, at, size) for path, shard, at, size in zip(*columns, strict=True)}


def extension(path: str) -> str:
    """The end of a file's name, with its dot, in lower case."""
    return os.path.splitext(path)[1].lower()


def _unescaped(path: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path)
