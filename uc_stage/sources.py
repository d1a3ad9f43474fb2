"""What `cache` copies: an export by its manifest, or a plain folder by its listing.

What is left out of a plain folder's listing: names that begin with a dot (`.uc_stage`, Hadoop's `.name.crc`), Spark's
marker files, and the files of an export that was not published. Links are followed inside the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.crew import each
from uc_stage.errors import InvalidRequest, NotFound, Unsupported, VerificationFailed
from uc_stage.manifest import FOLDER, check_paths
from uc_stage.model import CopyFile
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder, open_folder, table_around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from uc_stage.manifest import Manifest
    from uc_stage.storage import Entry, Folder

# What Spark and Databricks leave beside the data: https://spark.apache.org/docs/latest/cloud-integration.html
_MARKER = re.compile(r"_SUCCESS|_(?:committed|started)_.*")
_GENERATION = re.compile(r"-(v\d+-[0-9a-f]{6})\.parquet")


@dataclass(frozen=True, slots=True)
class CopySource:
    """One generation of a source.

    Attributes:
        url: the absolute path or URL of the folder.
        generation: the export's, or a digest of a plain folder's paths, sizes and modification times.
        manifest: the export's; None for a plain folder.
        files: in the order of their paths. Those of an export have the manifest's sizes and hashes, and an
            `mtime_ns` only where it came with a listing.
    """

    url: str
    generation: str
    manifest: Manifest | None
    files: tuple[CopyFile, ...]


@dataclass(frozen=True, slots=True)
class PlainFolder:
    """A source without a manifest, which is not listed yet; `unpublished` are the generations that are left out."""

    folder: Folder
    unpublished: frozenset[str]

    def files(self) -> Iterator[CopyFile]:
        """The files to copy, in no order, as the listing finds them.

        Raises:
            InvalidRequest: there is a Delta table. The errors of `Folder.entries`.
        """
        for entry in self.folder.entries(hidden=False):
            if entry.path.endswith("/"):
                continue
            above, found, _ = f"/{entry.path}".partition("/_delta_log/")
            if found:
                raise _delta(self.folder.locate(above.lstrip("/")))
            if not _left_out(entry, self.unpublished):
                yield CopyFile(entry.path, entry.bytes, entry.mtime_ns)

    def listed(self, files: Iterable[CopyFile]) -> CopySource:
        """The generation that all files of the listing make.

        Raises:
            NotFound, InvalidRequest, Unsupported: as `open_source`.
        """
        url = self.folder.url
        kept = sorted(files, key=lambda file: file.path)
        paths = [file.path for file in kept]
        if paths == [""]:
            raise InvalidRequest(f"`{url}` is a file", hint=f"give its folder, `{url.rpartition('/')[0]}`")
        if not kept:
            why = "only an export that was not published" if self.unpublished else "no files to copy"
            raise NotFound(f"`{url}` holds {why}", hint="check the path, or run `uc-stage export` to its end")
        try:
            check_paths(paths, url)
        except VerificationFailed as error:
            raise Unsupported(error.message, hint="rename that file") from None
        if any(file.mtime_ns is None for file in kept):
            raise Unsupported(
                f"`{url}`: its server tells no times of its files, so that nobody could see that they changed",
                hint="cache an export, which has a manifest, or a folder of a volume or an object store",
            )
        return CopySource(url, _digest(kept), None, tuple(kept))


def open_source(url: str) -> CopySource:
    """Reads what a source holds now; no data file is read.

    Raises:
        NotFound: no such folder, or none with files. InvalidRequest: a single file, a Delta table's folder.
        Unsupported: a pipe or a device, a file's name that a copy cannot have, a server that tells no times.
        VerificationFailed: a damaged manifest or an unsafe path in it, a link out of the folder or in a circle.
        AccessDenied, Unavailable: as the storage says.
    """
    found = find_source(url)
    return found.listed(found.files()) if isinstance(found, PlainFolder) else found


def find_source(url: str) -> CopySource | PlainFolder:
    """Looks at what kind of source there is: an export is read, a plain folder is not listed yet.

    Raises:
        Those of `open_source`.
    """
    if not url.strip():
        raise InvalidRequest("SOURCE is empty", hint="name an export or a folder")
    folder = open_folder(url)
    if isinstance(folder, LocalFolder) and os.path.isfile(folder.url):
        raise InvalidRequest(f"`{folder.url}` is a file", hint=f"give its folder, `{os.path.dirname(folder.url)}`")
    # Each is a round trip or more, and a plain folder takes them all.
    looks: list[Callable[[Folder], Any]] = [
        read_manifest, table_around, lambda folder: folder.exists(), _unpublished
    ]  # fmt: skip
    manifest, table, there, unpublished = each(lambda look: look(folder), looks, len(looks))
    if manifest is not None:
        return _export(folder, manifest)
    if table is not None:
        raise _delta(table)
    if not there:
        raise NotFound(f"`{folder.url}` is not there", hint="check the path, and that the volume is mounted here")
    return PlainFolder(folder, unpublished)


def is_marker(path: str) -> bool:
    """Whether a file is one of the marker files that Spark and Databricks write beside the data."""
    return _MARKER.fullmatch(path.rpartition("/")[2]) is not None


def _export(folder: Folder, manifest: Manifest) -> CopySource:
    # A local file tells its time when it is opened, which a copy does anyway; a store tells many in one listing.
    listed = {} if isinstance(folder, LocalFolder) else {entry.path: entry for entry in folder.entries()}
    files = []
    for file in sorted(manifest.files, key=lambda file: file.path):
        entry = listed.get(file.path)
        files.append(CopyFile(file.path, file.bytes, entry.mtime_ns if entry else None, file.xxh3_128))
    return CopySource(folder.url, manifest.generation, manifest, tuple(files))


def _unpublished(folder: Folder) -> frozenset[str]:
    """The generations that an export without a manifest has claims for: it was killed, or is being written."""
    claims = open_folder(folder.locate(f"{FOLDER}/claims"))
    return frozenset(entry.path.removesuffix(".json") for entry in claims.entries()) if claims.exists() else frozenset()


def _left_out(entry: Entry, unpublished: frozenset[str]) -> bool:
    generation = _GENERATION.search(entry.path)
    if generation and generation[1] in unpublished:
        return True
    return is_marker(entry.path)


def _digest(files: Sequence[CopyFile]) -> str:
    listing = [[file.path, file.bytes, file.mtime_ns] for file in files]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:16]


def _delta(url: str) -> InvalidRequest:
    return InvalidRequest(
        f"`{url}` is a Delta table, whose files hold deleted rows too",
        hint=f"export it first: uc-stage export {url} DEST",
    )
