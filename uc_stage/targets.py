"""What a path or URL holds, told by its listing and uc-stage's own records: no data file is read."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, NotFound
from uc_stage.ipc import describe, is_stream_name
from uc_stage.manifest import COPY_PATH, CopyRecord
from uc_stage.parquet import is_parquet_name, read_footers
from uc_stage.progress import SILENT
from uc_stage.publish import read_manifest
from uc_stage.storage import LocalFolder, folder_of, open_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uc_stage.errors import StageError
    from uc_stage.manifest import Manifest
    from uc_stage.model import TargetKind
    from uc_stage.parquet import Footer
    from uc_stage.progress import Progress
    from uc_stage.storage import Entry, Folder


@dataclass(frozen=True, slots=True)
class Target:
    """What is there.

    Attributes:
        folder: the folder, or that of the one file.
        entries: the files below it by their paths, without hidden ones; empty for a table.
        manifest: an export's, or that of the export which a copy holds.
        record: a copy's.
    """

    text: str
    kind: TargetKind
    folder: Folder
    entries: dict[str, Entry] = field(default_factory=dict)
    manifest: Manifest | None = None
    record: CopyRecord | None = None

    @property
    def tables(self) -> list[str]:
        """The Delta tables that lie below a folder, as relative paths."""
        return sorted({path.partition("/_delta_log/")[0] for path in self.entries if "/_delta_log/" in path})

    def data_files(self) -> dict[str, int]:
        """The Parquet files of an export, a copy, a folder or a file, in order, with their bytes as recorded or listed.

        Those of a copy as Arrow are its Arrow files.

        Raises:
            InvalidRequest: a Delta table or a folder with one in it, whose files hold deleted rows too.
            NotFound: no Parquet file, or one that the manifest or the copy's record names is not there.
        """
        tables = [self.folder.url] if self.kind == "table" else [self.folder.locate(path) for path in self.tables]
        if tables:
            raise InvalidRequest(
                f"`{tables[0]}` is a Delta table, whose files hold deleted rows too",
                hint=f"export it first: uc-stage export {tables[0]} DEST",
            )
        recorded = self.record.files if self.record else self.manifest.files if self.manifest else None
        if recorded is None:
            files = {entry.path: entry.bytes for entry in self.entries.values() if self._is_data(entry.path)}
        else:
            files = {file.path: file.bytes for file in recorded if is_data_name(file.path)}
        for path in files:
            if path not in self.entries:
                raise NotFound(f"`{self.folder.locate(path)}` is not there", hint=f"uc-stage inspect {self.text}")
        if not files:
            raise NotFound(f"`{self.text}` holds no Parquet file", hint=f"uc-stage inspect {self.text}")
        return dict(sorted(files.items()))

    def footers(self, paths: Iterable[str], progress: Progress = SILENT) -> dict[str, Footer | StageError]:
        """Reads the footers of data files, or what tells the same of an Arrow file, in the order of the paths."""
        paths = list(paths)
        streams = [path for path in paths if self.record and is_stream_name(path)]
        others = [path for path in paths if not (self.record and is_stream_name(path))]
        found = read_footers(self.folder, others, progress)
        found.update(zip(streams, describe(map(self.folder.locate, streams)).values(), strict=True))
        return {path: found[path] for path in paths}

    def _is_data(self, path: str) -> bool:
        return self.kind == "file" or is_parquet_name(path)


def is_data_name(path: str) -> bool:
    """Whether a file is called Parquet or Arrow."""
    return is_parquet_name(path) or is_stream_name(path)


def look(text: str) -> Target:
    """Tells what is at a path or URL.

    Raises:
        NotFound: nothing; the hint names what is there under a name like it. InvalidRequest: an empty text.
        VerificationFailed, Unsupported: a damaged manifest or record, or one of a newer format.
        AccessDenied, Unavailable: as the storage says.
    """
    if not text.strip():
        raise InvalidRequest("TARGET is empty", hint="name an export, a copy, a folder or a file")
    folder = open_folder(text)
    if isinstance(folder, LocalFolder) and os.path.isfile(folder.url):
        # Where the user names a link, what it links to is meant, wherever that is.
        return _file(text, os.path.realpath(folder.url))
    if folder.stat(COPY_PATH) is not None:
        record = CopyRecord.from_json(folder.read(COPY_PATH), folder.locate(COPY_PATH))
        return Target(text, "copy", folder, _listed(folder), read_manifest(folder), record)
    if (manifest := read_manifest(folder)) is not None:
        return Target(text, "export", folder, _listed(folder), manifest)
    if open_folder(folder.locate("_delta_log")).exists():
        return Target(text, "table", folder)
    if not folder.exists():
        raise NotFound(f"`{text}` is not there", hint=_nearest(folder))
    entries = _listed(folder)
    if list(entries) == [""]:
        return _file(text, folder.url)
    return Target(text, "folder", folder, entries)


def _file(text: str, url: str) -> Target:
    folder, name = folder_of(url)
    entry = folder.stat(name)
    if entry is None:
        raise NotFound(f"`{text}` is not there", hint="it went away just now: try again")
    return Target(text, "file", folder, {name: entry})


def _listed(folder: Folder) -> dict[str, Entry]:
    # An object store lists a folder as an object of no bytes, with a `/` at its end.
    found = (entry for entry in folder.entries(hidden=False) if not entry.path.endswith("/"))
    return {entry.path: entry for entry in sorted(found, key=lambda entry: entry.path)}


def _nearest(folder: Folder) -> str:
    """A hint that names the likeliest path where a local one is not there."""
    if not isinstance(folder, LocalFolder):
        return "check the URL for a typing error"
    missing = folder.url
    while not os.path.isdir(os.path.dirname(missing)):
        missing = os.path.dirname(missing)
    above, name = os.path.split(missing)
    try:
        near = difflib.get_close_matches(name, os.listdir(above), n=1)
    except OSError:  # a folder that may be entered but not listed
        near = []
    if near:
        return f"did you mean `{os.path.join(above, near[0])}`?"
    return f"`{above}` is there, `{name}` is not: check the path, and that the volume is mounted here"
