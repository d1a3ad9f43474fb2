"""How a copy gets its name in a cache, on a local disk.

Its files get their names in a partial folder, which gets its own last, by one rename. Whatever kills that, the copy's
path is absent or complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import threading
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, NotFound, VerificationFailed
from uc_stage.locks import alive, identity
from uc_stage.manifest import COPY_PATH, FOLDER, MANIFEST_PATH, CopyRecord
from uc_stage.model import CopyFile
from uc_stage.storage import LocalFolder, sync_all, sync_folder, translated

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from uc_stage.storage import Entry

_JOURNAL = f"{FOLDER}/journal.jsonl"
_TEMPORARY = f"{FOLDER}/unnamed"
_STATE = "state.json"
_DERIVED = re.compile(r"cache-.*\.arrow|tmp[a-z0-9_]{8}")


def tag_cache(root: str) -> None:
    """Marks a cache folder for what makes backups, by the standard of https://bford.info/cachedir/."""
    text = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by uc-stage; backups may leave this folder out.\n"
    LocalFolder(root).put("CACHEDIR.TAG", text.encode(), durable=False)


def is_marked(path: str) -> bool:
    """Whether a local folder carries the marker of what `cache` made."""
    return LocalFolder(path).stat(COPY_PATH) is not None


def refuse_unmarked(path: str) -> None:
    """Refuses a folder that `cache` did not make.

    Raises:
        InvalidRequest: it carries no marker of uc-stage.
    """
    if not is_marked(path):
        raise InvalidRequest(
            f"`{path}` carries no marker of uc-stage",
            hint="`prune` removes what `cache` made; remove another folder yourself",
        )


def read_copy(path: str) -> CopyRecord | None:
    """The record of the copy, or of the part of one, in a local folder; None where there is none.

    Raises:
        VerificationFailed, Unsupported: as `CopyRecord.from_json`.
    """
    folder = LocalFolder(path)
    if folder.stat(COPY_PATH) is None:
        return None
    try:
        data = folder.read(COPY_PATH)
    except NotFound:
        # Another run removed it between the look and the open.
        return None
    return CopyRecord.from_json(data, folder.locate(COPY_PATH))


def read_partial(path: str) -> CopyRecord | None:
    """The record of an unfinished copy; None where there is none, or where a loss of power has damaged it."""
    try:
        return read_copy(path)
    except VerificationFailed:
        return None


def read_journal(partial: str) -> dict[str, CopyFile]:
    """The files that a partial copy named, with their hashes, by path; a torn line tells of none."""
    # A run that was killed at its very end has a whole record, and may have no journal any more.
    record = read_partial(partial)
    found: dict[str, CopyFile] = {file.path: file for file in record.files} if record else {}
    with contextlib.suppress(FileNotFoundError), open(os.path.join(partial, _JOURNAL), "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                file = CopyFile(**json.loads(line))
                found[file.path] = file
    return found


def is_same(asked: CopyFile, noted: CopyFile) -> bool:
    """Whether a file that was noted in a copy is the one that is asked for, as far as hash or size and time tell."""
    if asked.bytes != noted.bytes:
        return False
    if asked.xxh3_128 is not None:
        return asked.xxh3_128 == noted.xxh3_128
    return asked.mtime_ns in (None, noted.mtime_ns)


def remove_copy(path: str) -> None:
    """Removes a folder that `cache` made, its marker last.

    Raises:
        InvalidRequest: it carries no marker of uc-stage.
    """
    refuse_unmarked(path)
    own, marker = os.path.join(path, FOLDER), os.path.join(path, COPY_PATH)
    with translated(path):
        _empty(path, but=own)
        _empty(own, but=marker)
        for name, remove in ((marker, os.unlink), (own, os.rmdir), (path, os.rmdir)):
            with contextlib.suppress(FileNotFoundError):
                remove(name)


def finish_removal(path: str) -> None:
    """Removes a copy that lost its name, or the empty folders that are left of one: its marker goes last.

    Another run may be at it; what carries no marker is none of uc-stage's, and stays.
    """
    if is_marked(path):
        with contextlib.suppress(InvalidRequest):
            remove_copy(path)
        return
    for folder in (os.path.join(path, FOLDER), path):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _empty(folder: str, *, but: str | None = None) -> None:
    """Removes what a folder holds, with another run perhaps at the same; links are removed, and not followed."""
    try:
        with os.scandir(folder) as found:
            items = [item for item in found if item.path != but]
    except FileNotFoundError:
        return
    for item in items:
        with contextlib.suppress(FileNotFoundError):
            if item.is_dir(follow_symlinks=False):
                _empty(item.path)
                os.rmdir(item.path)
            else:
                os.unlink(item.path)


def foreign_file(path: str, ours: Collection[str]) -> str | None:
    """A file below a copy that is neither one of its own nor uc-stage's: somebody put it there; None for no such.

    What `datasets` keeps beside the files that it maps, the results of `map` and the like, goes with the copy.
    """
    for folder, _, names in os.walk(path):
        for name in names:
            found = os.path.relpath(os.path.join(folder, name), path)
            if found not in ours and not found.startswith(f"{FOLDER}/") and not is_derived(found, ours):
                return found
    return None


def is_derived(path: str, ours: Collection[str]) -> bool:
    """Whether a file is one that `datasets` makes from a copy as Arrow: in the folder of a split, by its name.

    https://huggingface.co/docs/datasets/about_cache; it has another name until it is whole.
    """
    above, _, name = path.rpartition("/")
    return f"{above}/{_STATE}" in ours and _DERIVED.fullmatch(name) is not None


class CopyPublication:
    """One run's way to publish a copy: `open`, fill the partial folder file by file, `commit`.

    A run that ends before its `commit` leaves the partial folder, for the next one to go on from. Two runs at once
    that no lock keeps apart have temporary names of their own, and can only do the work twice.
    """

    def __init__(self, path: str, partial: str) -> None:
        self.path, self.partial = path, partial
        self._folder = LocalFolder(partial)
        self._lock = threading.Lock()
        self._count = self._named = 0
        self._made: set[str] = set()
        self._journal = -1
        self._me = identity()

    def open(self, record: CopyRecord) -> None:
        """Makes the partial folder, marked with a record that names no files yet, or goes on with the one there.

        Raises:
            InvalidRequest: a folder that uc-stage did not make stands there.
        """
        above, name = os.path.split(self.partial)
        with translated(self.partial):
            os.makedirs(self._folder.locate(_TEMPORARY), exist_ok=True)
            if read_partial(self.partial) is None:
                if self._entries() and not is_marked(self.partial):
                    raise InvalidRequest(f"`{self.partial}` is not uc-stage's", hint="move that folder away")
                self._folder.put(COPY_PATH, record.to_json())
            for temporary in os.listdir(self._folder.locate(_TEMPORARY)):
                pid, _, rest = temporary.partition("-")
                if not alive({**self._me, "pid": pid, "started": rest.partition("-")[0]}):
                    self._folder.remove(f"{_TEMPORARY}/{temporary}")
            for aside in os.listdir(above):
                if aside.startswith(f"{name}.old-"):
                    finish_removal(os.path.join(above, aside))

    def adopt(self, path: str, record: CopyRecord) -> None:
        """Takes in the files of a damaged copy, by hard links, as if a killed run had named them."""
        for file in record.files:
            whole = self._folder.locate(file.path)
            with translated(whole), contextlib.suppress(FileNotFoundError, NotADirectoryError, FileExistsError):
                if stat.S_ISREG(os.lstat(os.path.join(path, file.path)).st_mode):
                    os.makedirs(os.path.dirname(whole), exist_ok=True)
                    os.link(os.path.join(path, file.path), whole)
                    self._note(file)

    def clear(self) -> None:
        """Removes what the partial folder holds, but not its marker."""
        for entry in self._entries():
            self._folder.remove(entry.path)
        self._close()
        self._folder.remove(_JOURNAL)

    def claimed(self, wanted: Mapping[str, CopyFile | None]) -> list[CopyFile]:
        """Those of the wanted files that are there in their size, with their hash; removes all others.

        What is wanted at a path is a file of the source, or None where only the run that wrote it knows size and hash.
        """
        found: list[CopyFile] = []
        # Listed before the journal is read: a file that another run names in between is in neither.
        entries = self._entries()
        journal = read_journal(self.partial)
        for entry in entries:
            noted = journal.get(entry.path) if entry.path in wanted else None
            file = wanted.get(entry.path) or noted
            if file and noted and file.bytes == entry.bytes and is_same(file, noted):
                found.append(noted)
            else:
                self._folder.remove(entry.path)
        return found

    def keep(self, files: Sequence[CopyFile], good: Sequence[CopyFile]) -> None:
        """Settles which of the claimed files are good: gives those their times back, and removes the others."""
        paths = {file.path for file in good}
        for file in files:
            if file.path not in paths:
                self._folder.remove(file.path)
            elif file.mtime_ns is not None:
                with translated(self._folder.locate(file.path)):
                    os.utime(self._folder.locate(file.path), ns=(file.mtime_ns, file.mtime_ns))

    def temporary(self) -> str:
        """A path of this process's own for a file that has no name yet."""
        with self._lock:
            self._count += 1
            return self._folder.locate(f"{_TEMPORARY}/{self._me['pid']}-{self._me['started']}-{self._count}")

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Names a file that is whole and checked, and notes its hash before: a named file never lacks it.

        Its bytes are durable once `commit` gives the copy its name; what a loss of power leaves before is hashed again.
        """
        whole = self._folder.locate(file.path)
        folder = os.path.dirname(whole)
        with translated(whole):
            if folder not in self._made:
                os.makedirs(folder, exist_ok=True)
                self._made.add(folder)
            self._note(file)
            with self._lock:
                self._named += file.bytes
            os.rename(temporary, whole)

    def taken(self) -> int:
        """The bytes of the files that this run has named, and of those that it has begun; never too few."""
        found, mine = 0, f"{self._me['pid']}-{self._me['started']}-"
        for name in os.listdir(self._folder.locate(_TEMPORARY)):
            if name.startswith(mine):
                # One that got its name meanwhile is counted below.
                with contextlib.suppress(FileNotFoundError):
                    found += os.stat(self._folder.locate(f"{_TEMPORARY}/{name}")).st_size
        return found + self._named

    def put(self, path: str, data: bytes) -> CopyFile:
        """Names a small file of the copy that is none of the source's."""
        import xxhash

        self._folder.put(path, data)
        found = self._folder.stat(path)
        return CopyFile(path, len(data), found.mtime_ns if found else None, xxhash.xxh3_128_hexdigest(data))

    def commit(self, record: CopyRecord, manifest: bytes | None, *, replace: bool) -> bool:
        """Gives the copy its name; says False where the name is taken, unless it is to `replace` what is there.

        Raises:
            NotFound: a file of the record is not in the partial folder any more.
        """
        if manifest is not None:
            self._folder.put(MANIFEST_PATH, manifest, durable=False)
        # At once: the folder that became a copy in vain is gone on from by the next run.
        self._folder.put(COPY_PATH, record.to_json())
        self._close()
        self._folder.remove(_JOURNAL)
        self._folder.prune(_TEMPORARY)
        aside = self._aside()
        for file in record.files:
            if (there := self._folder.stat(file.path)) is None or there.bytes != file.bytes:
                whole = self._folder.locate(file.path)
                raise NotFound(f"`{whole}` was taken away before the copy was whole", hint="run `cache` again")
        with translated(self.path):
            own = [COPY_PATH] if manifest is None else [COPY_PATH, MANIFEST_PATH]
            sync_all(self.partial, [*(file.path for file in record.files), *own])
            if replace:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path, aside)
            try:
                os.rename(self.partial, self.path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
            sync_folder(os.path.dirname(self.path))
        if os.path.lexists(aside):
            remove_copy(aside)
        return True

    def drop(self) -> None:
        """Removes the partial folder, in whole: nobody can publish a half of it meanwhile."""
        aside = self._aside()
        # Another run that no lock keeps apart may remove it at the same time, marker and all.
        with translated(self.partial), contextlib.suppress(FileNotFoundError, InvalidRequest):
            os.rename(self.partial, aside)
            remove_copy(aside)

    def _aside(self) -> str:
        """A name for what is to be removed; `open` finds it where a run was killed at that."""
        return f"{self.partial}.old-{secrets.token_hex(3)}"

    def _entries(self) -> list[Entry]:
        """The files outside of uc-stage's own folder."""
        return [entry for entry in self._folder.entries() if not entry.path.startswith(f"{FOLDER}/")]

    def _note(self, file: CopyFile) -> None:
        # As `dataclasses.asdict`, in a tenth of its time.
        fields = {name: getattr(file, name) for name in CopyFile.__slots__}
        line = json.dumps(fields).encode() + b"\n"
        with self._lock:
            if self._journal < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._journal = os.open(self._folder.locate(_JOURNAL), flags, 0o600)
            # One write, so that two runs' lines never mix.
            os.write(self._journal, line)

    def _close(self) -> None:
        """Lets go of the journal: another one may get its name."""
        with self._lock:
            if self._journal >= 0:
                os.close(self._journal)
                self._journal = -1
