"""Where a generation's copy goes: its path, and that of the folder that becomes it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.caching.parts import words_of
from uc_stage.errors import InvalidRequest
from uc_stage.forms import shards
from uc_stage.publish import lock_path

if TYPE_CHECKING:
    from uc_stage.model import CacheRequest


@dataclass(frozen=True, slots=True)
class Place:
    """Where one generation's copy goes.

    Attributes:
        path: the copy's.
        partial: the folder that becomes it. All generations of a plain folder that is copied whole have one, since it
            is filled before the listing that names the generation is whole; a file in it counts where the listing still
            shows its time.
        lock: whose holder may make a copy out of `partial`.
        own: the lock of `path`, which whoever removes the copy takes; often the same.
    """

    path: str
    partial: str
    lock: str
    own: str


def place_of(request: CacheRequest, url: str, generation: str, manifest_id: str | None) -> Place:
    """The place of the copy of one generation of a source."""
    root = root_of(request)
    variant = variant_of(request)
    digest = _digest(url, generation, manifest_id, variant)
    filled = digest if manifest_id is not None or variant else _digest(url, None, None, variant)
    if request.dest is None:
        path, partial = f"{root}/copies/{name_of(url)}-{digest}", f"{root}/partial/{name_of(url)}-{filled}"
        lock = lock_path(root, f"{root}/copies/{os.path.basename(partial)}")
    else:
        path = os.path.abspath(os.path.expanduser(request.dest))
        above, name = os.path.split(path)
        partial = os.path.join(above, f".{name}.uc-stage-{filled}")
        lock = lock_path(root, path)
    return Place(path, partial, lock, lock_path(root, path))


def _digest(*identity: str | None) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]


def variant_of(request: CacheRequest) -> str:
    """Which part of the source a copy holds, and in which form, as text that its record keeps."""
    words = words_of(request)
    if request.form != "files":
        words.append(f"as={request.form}")
    if request.pack:
        words += shards.variant(request.pack_size)
    return " ".join(words)


def root_of(request: CacheRequest) -> str:
    """The cache folder, as an absolute path."""
    return os.path.abspath(os.path.expanduser(request.cache_dir))


def name_of(url: str) -> str:
    """The last part of a source's path, made safe for a folder's name anywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", url.rstrip("/").rpartition("/")[2]).strip("._-")[:64] or "copy"


def is_in(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, or is it, after links."""
    folder = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), folder]) == folder


def refuse_nesting(path: str, url: str) -> None:
    """Refuses a copy in its source, and a source in its copy."""
    if "://" in url:
        return
    if is_in(url, path) or is_in(path, url):
        raise InvalidRequest(
            f"the copy `{path}` and its source `{url}` lie in one another",
            hint="choose a DEST or a `--cache-dir` apart from SOURCE",
        )
