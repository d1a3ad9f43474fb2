"""The only module that puts bytes under a final name.

A copy is published on a local disk: its files get their names in a partial folder, which gets its own last, by one
rename. Whatever kills that, the copy's path is absent or complete.

An export is published without a lock and without a rename of folders, since a volume has neither: files are written
under names that carry a new generation, and the manifest, replaced whole, is the commit. A *claim*
(`.uc_stage/claims/<generation>.json`) is written before the first of them, so that the next run knows what a killed
one left behind, and that two runs at once notice each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import json
import os
import re
import secrets
import shutil
import stat
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from uc_stage.errors import Busy, InvalidRequest, NotFound, StageError
from uc_stage.locks import alive, identity
from uc_stage.manifest import COPY_PATH, FOLDER, MANIFEST_PATH, CopyRecord, Manifest
from uc_stage.model import CopyFile
from uc_stage.storage import TEMPORARY_SUFFIX, LocalFolder, open_folder, sync_folder, translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from uc_stage.storage import Entry, Folder

_CLAIMS = f"{FOLDER}/claims"
_OUR_NAME = re.compile(r"[a-z]+-\d{5}-of-\d{5}-v\d+-[0-9a-f]{6}\.parquet")
_HEARTBEAT_SECONDS = 20.0
_SILENCE_SECONDS = 120.0
_YIELD_SECONDS = 3.0

_JOURNAL = f"{FOLDER}/journal.jsonl"
_TEMPORARY = f"{FOLDER}/unnamed"


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of the export in `folder`, or None where there is none.

    Raises:
        VerificationFailed, Unsupported: as `Manifest.from_json`.
    """
    if folder.stat(MANIFEST_PATH) is None:
        return None
    return Manifest.from_json(folder.read(MANIFEST_PATH), folder.locate(MANIFEST_PATH))


def strays(paths: Sequence[str], manifest: Manifest | None) -> list[str]:
    """Those of `paths` that an export wrote and no manifest names: what a killed run left behind."""
    named = set(_named(manifest))
    return sorted(path for path in paths if _OUR_NAME.fullmatch(path) and path not in named)


def running(folder: Folder) -> set[str]:
    """The generations that runs are writing there now."""
    return {str(claim["generation"]) for claim in _claims(folder) if _alive(claim)}


class Publication:
    """One run's way to publish a generation in a folder: enter, write files, `commit`; leaving without one undoes it.

    Raises on entering:
        Busy: another run that is alive publishes there.
        InvalidRequest: the folder holds Parquet files that no manifest names.
    """

    def __init__(self, folder: Folder, version: int, keep: int = 0) -> None:
        self.folder = folder
        self.generation = f"v{version}-{secrets.token_hex(3)}"
        self.scratch = f"{FOLDER}/scratch/{self.generation}"
        self.retired: tuple[str, ...] = ()
        self.written: dict[str, Written] = {}
        self._keep = keep
        self._begun: list[str] = []
        self._committing = False
        self._lost = False
        self.claim = f"{_CLAIMS}/{self.generation}.json"
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="uc-stage-claim", daemon=True)

    def __enter__(self) -> Self:
        self._existed = self.folder.exists()
        try:
            self._write_claim()
            self._yield_to_others()
            sweep(self.folder)
            self.previous = read_manifest(self.folder)
            self._refuse_foreign_parquet()
        except BaseException:
            self._clear([])
            raise
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._heart.join()
        try:
            published = self._is_published()
        except StageError:
            # Nobody can tell now what the manifest says: the next run asks again, and sweeps what it does not name.
            return
        try:
            # The export is published even if an earlier file stays: the next run sweeps it.
            with contextlib.suppress(StageError):
                for path in self.retired if published else ():
                    self.folder.remove(path)
        finally:
            self._clear([] if published else self._begun)

    def name(self, split: str, index: int, total: int) -> str:
        """The final name of a split's file, in Hugging Face's form with the generation before the suffix."""
        return f"{split}-{index:05d}-of-{total:05d}-{self.generation}.parquet"

    def create(self, name: str) -> BinaryIO:
        """Opens a file of this generation under its final name, for one sequential write; `written` tells of it then.

        Safe to call from any thread.
        """
        self._begun.append(name)
        return cast("BinaryIO", _Hashed(self.folder.create(name), name, self.written))

    def adopt(self, path: str, name: str) -> None:
        """Gives a file that an engine wrote below `scratch` its final name."""
        self._begun.append(name)
        self.folder.rename(path, name)

    def commit(self, manifest: Manifest) -> Manifest:
        """Publishes the generation and gives what was stored; leaving retires the earlier files beyond `keep`.

        Raises:
            Busy: another run published here since this one began.
        """
        current = read_manifest(self.folder)
        if (current and current.generation) != (self.previous and self.previous.generation):
            raise Busy(f"another export published `{self.folder.url}` meanwhile", hint="run the export again")
        if self._lost or self.folder.stat(self.claim) is None:
            raise Busy(
                f"another export took this run for a dead one and swept `{self.folder.url}`",
                hint="run the export again; check that the clocks of the machines that export there agree",
            )
        kept: dict[str, tuple[str, ...]] = {}
        if self.previous is not None:
            earlier = {self.previous.generation: tuple(f.path for f in self.previous.files), **self.previous.retained}
            kept = dict(list(earlier.items())[: self._keep])
        stored = dataclasses.replace(manifest, retained=kept)
        self.retired = tuple(strays(_named(self.previous), stored))
        self._committing = True
        self.folder.put(MANIFEST_PATH, stored.to_json())
        return stored

    def _is_published(self) -> bool:
        """Whether the manifest is this run's, asked of the folder itself: a `put` that failed may have replaced it."""
        if not self._committing:
            return False
        manifest = read_manifest(self.folder)
        return manifest is not None and manifest.generation == self.generation

    def _refuse_foreign_parquet(self) -> None:
        named = set(_named(self.previous))
        foreign = sorted(
            entry.path
            for entry in (self.folder.entries() if self._existed else ())
            if entry.path.endswith(".parquet") and entry.path not in named and not entry.path.startswith(f"{FOLDER}/")
        )
        if foreign:
            raise InvalidRequest(
                f"`{self.folder.url}` holds Parquet files that no manifest names, such as `{foreign[0]}`: "
                "a loader would read them with the export",
                hint="choose an empty folder, or move those files away",
            )

    def _write_claim(self) -> None:
        record = {**identity(), "generation": self.generation, "beat": time.time()}
        self.folder.put(self.claim, json.dumps(record, sort_keys=True).encode())

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            # A missed beat costs nothing while the next one comes; the run itself meets a real failure.
            with contextlib.suppress(StageError):
                self._lost = self._lost or self.folder.stat(self.claim) is None
                if not self._lost:
                    self._write_claim()

    def _yield_to_others(self) -> None:
        """Lets one of several runs go on: the others see its claim, since each wrote its own before it looked."""
        deadline = time.monotonic() + _YIELD_SECONDS
        while others := [c for c in _claims(self.folder) if c["generation"] != self.generation and _alive(c)]:
            first = min(str(c["generation"]) for c in others)
            if first < self.generation or time.monotonic() > deadline:
                other = others[0]
                raise Busy(
                    f"`{self.folder.url}` is being exported by process {other.get('pid')} on `{other.get('host')}`",
                    hint="wait for it to end, or choose another folder",
                )
            time.sleep(0.2)

    def _clear(self, doomed: list[str]) -> None:
        """Removes files of this run, its scratch and its claim, and the folders that are empty then."""
        for path in [*doomed, *_below(self.folder, self.scratch), self.claim]:
            self.folder.remove(path)
        for path in ("scratch", "claims"):
            self.folder.prune(f"{FOLDER}/{path}")
        self.folder.prune(FOLDER)
        if not self._existed:
            self.folder.prune("")


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What passed into a file that this process wrote: its bytes and their hash."""

    bytes: int
    xxh3_128: str


class _Hashed:
    """A file that is hashed as its bytes pass; what was written is told once it is closed."""

    def __init__(self, file: BinaryIO, name: str, told: dict[str, Written]) -> None:
        import xxhash

        self._file, self._name, self._told = file, name, told
        self._hasher = xxhash.xxh3_128()
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        self._hasher.update(data)
        count = self._file.write(data)
        self._bytes += count
        return count

    def close(self) -> None:
        self._file.close()
        self._told[self._name] = Written(self._bytes, self._hasher.hexdigest())


def sweep(folder: Folder) -> list[str]:
    """Removes what killed runs left in an export's folder, and gives the removed paths.

    That is what the claims of dead runs tell, and in a folder with a manifest each file that has the form of an
    export's name, that the manifest does not name, and that no live run is writing.
    """
    manifest = read_manifest(folder)
    claims = _claims(folder)
    live = {str(claim["generation"]) for claim in claims if _alive(claim)}
    dead = {str(claim["generation"]) for claim in claims} - live
    unnamed = strays([entry.path for entry in folder.entries()], manifest) if claims or manifest else []
    doomed = [path for path in unnamed if _of(path, dead) or (manifest is not None and not _of(path, live))]
    for generation in dead:
        doomed += _below(folder, f"{FOLDER}/scratch/{generation}")
    oldest = (time.time() - _SILENCE_SECONDS) * 1e9
    for path in _below(folder, FOLDER):
        entry = folder.stat(path) if path.endswith(TEMPORARY_SUFFIX) else None
        if entry is not None and (entry.mtime_ns or 0) < oldest:
            doomed.append(path)
    for path in [*doomed, *(f"{_CLAIMS}/{generation}.json" for generation in dead)]:
        folder.remove(path)
    return doomed


def _of(path: str, generations: set[str]) -> bool:
    return path.endswith(tuple(f"-{generation}.parquet" for generation in generations))


def now() -> str:
    """The time as a manifest holds it."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _named(manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None:
        return ()
    return (*(file.path for file in manifest.files), *(path for paths in manifest.retained.values() for path in paths))


def _below(folder: Folder, path: str) -> list[str]:
    """The files below a folder of the folder, as paths relative to the latter; none where it does not exist."""
    inner = open_folder(folder.locate(path))
    return [f"{path}/{entry.path}" for entry in inner.entries()] if inner.exists() else []


def _claims(folder: Folder) -> list[dict[str, Any]]:
    """The claims in the folder that can be read; one that is torn belongs to a run that wrote nothing yet."""
    found = []
    for path in _below(folder, _CLAIMS):
        try:
            claim = json.loads(folder.read(path))
        except (ValueError, StageError):
            continue
        kinds: dict[str, Any] = {"generation": str, "machine": (str, type(None)), "pid": int, "beat": (int, float)}
        whole = isinstance(claim, dict) and all(isinstance(claim.get(name), kind) for name, kind in kinds.items())
        if whole and path == f"{_CLAIMS}/{claim['generation']}.json":
            found.append(claim)
    return found


def _alive(claim: dict[str, Any]) -> bool:
    """Whether the run behind a claim is still there: asked of the kernel where it can tell, else of the heartbeat."""
    known = alive(claim)
    return time.time() - claim["beat"] < _SILENCE_SECONDS if known is None else known


def tag_cache(root: str) -> None:
    """Marks a cache folder for what makes backups, by the standard of https://bford.info/cachedir/."""
    text = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by uc-stage; backups may leave this folder out.\n"
    LocalFolder(root).put("CACHEDIR.TAG", text.encode())


def is_marked(path: str) -> bool:
    """Whether a local folder carries the marker of what `cache` made."""
    return LocalFolder(path).stat(COPY_PATH) is not None


def read_copy(path: str) -> CopyRecord | None:
    """The record of the copy, or of the part of one, in a local folder; None where there is none.

    Raises:
        VerificationFailed, Unsupported: as `CopyRecord.from_json`.
    """
    folder = LocalFolder(path)
    if folder.stat(COPY_PATH) is None:
        return None
    return CopyRecord.from_json(folder.read(COPY_PATH), folder.locate(COPY_PATH))


def read_journal(partial: str) -> dict[str, CopyFile]:
    """The files that a partial copy named, with their hashes, by path; a torn line tells of none."""
    # A run that was killed at its very end has a whole record, and may have no journal any more.
    record = read_copy(partial)
    found: dict[str, CopyFile] = {file.path: file for file in record.files} if record else {}
    with contextlib.suppress(FileNotFoundError), open(os.path.join(partial, _JOURNAL), "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                file = CopyFile(**json.loads(line))
                found[file.path] = file
    return found


def remove_copy(path: str) -> None:
    """Removes a folder that `cache` made, its marker last.

    Raises:
        InvalidRequest: it carries no marker of uc-stage.
    """
    if not is_marked(path):
        raise InvalidRequest(f"`{path}` carries no marker of uc-stage", hint="remove that folder if it is yours")
    with translated(path):
        with os.scandir(path) as found:
            doomed = [item for item in found if item.name != FOLDER]
        for item in doomed:
            if item.is_dir(follow_symlinks=False):
                shutil.rmtree(item.path)
            else:
                os.unlink(item.path)
        shutil.rmtree(path)


class CopyPublication:
    """One run's way to publish a copy: `open`, fill the partial folder file by file, `commit`.

    A run that ends before its `commit` leaves the partial folder, for the next one to go on from. Two runs at once
    that no lock keeps apart have temporary names of their own, and can only do the work twice.
    """

    def __init__(self, path: str, partial: str) -> None:
        self.path, self.partial = path, partial
        self._folder = LocalFolder(partial)
        self._lock = threading.Lock()
        self._count = 0
        self._made: set[str] = set()
        self._me = identity()

    def open(self, record: CopyRecord) -> None:
        """Makes the partial folder, marked with a record that names no files yet, or goes on with the one there.

        Raises:
            InvalidRequest: a folder that uc-stage did not make stands there.
        """
        above, name = os.path.split(self.partial)
        with translated(self.partial):
            os.makedirs(self._folder.locate(_TEMPORARY), exist_ok=True)
            if read_copy(self.partial) is None:
                if self._entries():
                    raise InvalidRequest(f"`{self.partial}` is not uc-stage's", hint="move that folder away")
                self._folder.put(COPY_PATH, record.to_json())
            for temporary in os.listdir(self._folder.locate(_TEMPORARY)):
                pid, _, rest = temporary.partition("-")
                if not alive({**self._me, "pid": pid, "started": rest.partition("-")[0]}):
                    self._folder.remove(f"{_TEMPORARY}/{temporary}")
            for aside in os.listdir(above):
                if aside.startswith(f"{name}.old-"):
                    # Another run that no lock keeps apart may be at it.
                    with contextlib.suppress(InvalidRequest, NotFound):
                        remove_copy(os.path.join(above, aside))

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
        self._folder.remove(_JOURNAL)

    def claimed(self, files: Sequence[CopyFile]) -> list[CopyFile]:
        """Those of `files` that are there in their size, with the hash that each must have; removes all others."""
        wanted = {file.path: file for file in files}
        found: list[CopyFile] = []
        # Listed before the journal is read: a file that another run names in between is in neither.
        entries = self._entries()
        journal = read_journal(self.partial)
        for entry in entries:
            file, noted = wanted.get(entry.path), journal.get(entry.path)
            if file and noted and file.bytes == entry.bytes and file.xxh3_128 in (None, noted.xxh3_128):
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
        """Names a file that is whole, checked and durable, and notes its hash before: a named file never lacks it."""
        whole = self._folder.locate(file.path)
        folder = os.path.dirname(whole)
        with translated(whole):
            if folder not in self._made:
                os.makedirs(folder, exist_ok=True)
                self._made.add(folder)
            self._note(file)
            os.rename(temporary, whole)

    def commit(self, record: CopyRecord, manifest: bytes | None, *, replace: bool) -> bool:
        """Gives the copy its name; says False where the name is taken, unless it is to `replace` what is there.

        Raises:
            NotFound: a file of the record is not in the partial folder any more.
        """
        if manifest is not None:
            self._folder.put(MANIFEST_PATH, manifest)
        self._folder.put(COPY_PATH, record.to_json())
        self._folder.remove(_JOURNAL)
        self._folder.prune(_TEMPORARY)
        aside = self._aside()
        for file in record.files:
            if (there := self._folder.stat(file.path)) is None or there.bytes != file.bytes:
                whole = self._folder.locate(file.path)
                raise NotFound(f"`{whole}` was taken away before the copy was whole", hint="run `cache` again")
        with translated(self.path):
            for folder in _folders([*(file.path for file in record.files), COPY_PATH]):
                sync_folder(self._folder.locate(folder))
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
        with translated(self.partial), contextlib.suppress(FileNotFoundError):
            os.rename(self.partial, aside)
            remove_copy(aside)

    def _aside(self) -> str:
        """A name for what is to be removed; `open` finds it where a run was killed at that."""
        return f"{self.partial}.old-{secrets.token_hex(3)}"

    def _entries(self) -> list[Entry]:
        """The files outside of uc-stage's own folder."""
        return [entry for entry in self._folder.entries() if not entry.path.startswith(f"{FOLDER}/")]

    def _note(self, file: CopyFile) -> None:
        line = json.dumps(dataclasses.asdict(file)).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._folder.locate(_JOURNAL), flags, 0o600)
        try:
            # One write, so that two threads' lines never mix.
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _folders(paths: list[str]) -> set[str]:
    """All folders above some relative paths, the root `""` among them."""
    found = {""}
    for path in paths:
        while (path := path.rpartition("/")[0]) not in found:
            found.add(path)
    return found
