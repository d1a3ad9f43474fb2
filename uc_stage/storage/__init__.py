"""Folders, here or behind a URL.

A local path, a FUSE mount of a volume and `file://` are `LocalFolder`; any other URL is fsspec's (`RemoteFolder`).
Every failure leaves as a `StageError` that names the path.
"""

from __future__ import annotations

import os

from uc_stage.storage.apart import Apart, ApartRanges, Connection, reading_apart
from uc_stage.storage.durable import sync, sync_all, sync_folder
from uc_stage.storage.folder import Entry, Folder, Ranges, translated
from uc_stage.storage.limits import Cpus, Memory, cpus, memory
from uc_stage.storage.local import TEMPORARY_SUFFIX, LocalFolder, go_direct
from uc_stage.storage.remote import RemoteFolder
from uc_stage.storage.space import Space, kind_of, space_at

__all__ = [
    "TEMPORARY_SUFFIX",
    "Apart",
    "ApartRanges",
    "Connection",
    "Cpus",
    "Entry",
    "Folder",
    "LocalFolder",
    "Memory",
    "Ranges",
    "RemoteFolder",
    "Space",
    "cpus",
    "folder_of",
    "go_direct",
    "kind_of",
    "memory",
    "open_folder",
    "reading_apart",
    "space_at",
    "sync",
    "sync_all",
    "sync_folder",
    "table_around",
    "translated",
]


def open_folder(url: str) -> Folder:
    """Gives the folder at a path or URL, whether it exists or not.

    Raises:
        Unavailable: the URL's protocol needs a package that is not installed.
    """
    if url.startswith("dbfs:/Volumes/"):
        url = url.removeprefix("dbfs:")
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    return RemoteFolder(url) if "://" in url else LocalFolder(url)


def folder_of(url: str) -> tuple[Folder, str]:
    """The folder that the file at a path or URL lies in, and the file's name there.

    Raises:
        Unavailable: as `open_folder`.
    """
    above, _, name = url.rpartition("/")
    return open_folder(above or "/"), name


def table_around(folder: Folder) -> str | None:
    """The Delta table that a folder is, or whose files it holds, as the folder of a partition does; None for others.

    Above a URL's folder nothing is looked for: each look costs a round trip, and a bucket has no parents to speak of.
    """
    if not isinstance(folder, LocalFolder):
        return folder.url if open_folder(folder.locate("_delta_log")).exists() else None
    above = os.path.realpath(folder.url)
    while True:
        if os.path.isdir(os.path.join(above, "_delta_log")):
            return above
        if above == os.path.dirname(above):
            return None
        above = os.path.dirname(above)
