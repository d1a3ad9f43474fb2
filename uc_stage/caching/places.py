"""Where a generation's copy goes: the cache folder, which has to be this user's own, and the paths in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import AccessDenied, InvalidRequest
from uc_stage.publish import tag_cache
from uc_stage.storage import translated

if TYPE_CHECKING:
    from uc_stage.model import CacheRequest


@dataclass(frozen=True, slots=True)
class Place:
    """Where one generation's copy goes: its path, the folder that becomes it, and the lock of the two."""

    path: str
    partial: str
    lock: str


def place_of(request: CacheRequest, url: str, generation: str, manifest_id: str | None) -> Place:
    """The place of the copy of one generation of a source."""
    root = root_of(request)
    identity = json.dumps([url, generation, manifest_id]).encode()
    digest = hashlib.sha256(identity).hexdigest()[:12]
    if request.dest is None:
        name = f"{name_of(url)}-{digest}"
        path, partial = f"{root}/copies/{name}", f"{root}/partial/{name}"
    else:
        path = os.path.abspath(os.path.expanduser(request.dest))
        above, name = os.path.split(path)
        partial = os.path.join(above, f".{name}.uc-stage-{digest}")
    return Place(path, partial, lock_path(root, path))


def root_of(request: CacheRequest) -> str:
    """The cache folder, as an absolute path."""
    return os.path.abspath(os.path.expanduser(request.cache_dir))


def name_of(url: str) -> str:
    """The last part of a source's path, made safe for a folder's name anywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", url.rstrip("/").rpartition("/")[2]).strip("._-")[:64] or "copy"


def lock_path(root: str, path: str) -> str:
    """The file whose lock keeps processes apart that make the copy at `path`."""
    return f"{root}/locks/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.lock"


def refuse_unsafe_root(root: str) -> None:
    """Refuses a cache folder that somebody else prepared: under `/tmp` anybody could plant files that look cached."""
    with translated(root):
        try:
            found = os.lstat(root)
        except FileNotFoundError:
            return
    if stat.S_ISLNK(found.st_mode):
        why = "is a link"
    elif not stat.S_ISDIR(found.st_mode):
        why = "is not a folder"
    elif found.st_uid != os.geteuid():
        why = f"belongs to user {found.st_uid}, and this process runs as {os.geteuid()}"
    elif found.st_mode & 0o022:
        why = "can be written by other users"
    else:
        return
    raise AccessDenied(f"the cache folder `{root}` {why}", hint="choose a folder of your own with `--cache-dir`")


def prepare_root(root: str) -> None:
    """Makes the cache folder and the folders in it."""
    with translated(root):
        os.makedirs(root, mode=0o700, exist_ok=True)
        refuse_unsafe_root(root)
        if not os.listdir(root):
            # A folder that was there before can hold what somebody wants in a backup.
            tag_cache(root)
        for name in ("copies", "partial", "locks"):
            os.makedirs(f"{root}/{name}", mode=0o700, exist_ok=True)


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


def free_at(path: str) -> int:
    """The bytes that this user may still write on the file system where `path` is or will be."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    with translated(path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
