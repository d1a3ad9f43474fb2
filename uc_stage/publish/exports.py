"""How a generation of an export gets its names.

An export is published without a lock and without a rename of folders, since a volume has neither: files are written
under names that carry a new generation, and the manifest, replaced whole, is the commit. A *claim*
(`.uc_stage/claims/<generation>.json`) is written before the first of them, so that the next run knows what a killed
one left behind, and that two runs at once notice each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import math
import os
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from uc_stage.crew import join
from uc_stage.errors import Busy, InvalidRequest, NotFound, StageError
from uc_stage.locks import alive, has_ended, identity, mark
from uc_stage.manifest import FOLDER, MANIFEST_PATH, Manifest
from uc_stage.publish.hashing import HashedFile, Written
from uc_stage.storage import TEMPORARY_SUFFIX, open_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from uc_stage.storage import Folder

_CLAIMS = f"{FOLDER}/claims"
_OUR_NAME = re.compile(r"\w[\w.]*-\d{5}-of-\d{5}-v\d+-[0-9a-f]{6}\.parquet")
_HEARTBEAT_SECONDS = 20.0
_SILENCE_SECONDS = 120.0
_YIELD_SECONDS = 3.0
_LOOKS = 5
# A call to a hung mount cannot be ended; all that is there is left to the next run.
_CLOSE_SECONDS = 5.0

# The generations that this process is writing.
_under_way: set[str] = set()


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of the export in `folder`, or None where there is none.

    Raises:
        VerificationFailed, Unsupported: as `Manifest.from_json`.
    """
    for _ in range(_LOOKS):
        if folder.stat(MANIFEST_PATH) is None:
            return None
        # On a mount, a manifest that another run replaces right now can be missed between the look and the open.
        with contextlib.suppress(NotFound):
            return Manifest.from_json(folder.read(MANIFEST_PATH), folder.locate(MANIFEST_PATH))
    raise NotFound(f"`{folder.locate(MANIFEST_PATH)}` cannot be opened, though it is listed", hint="run it again")


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
        self._mark = mark()
        self.claim = f"{_CLAIMS}/{self.generation}.json"
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="uc-stage-claim", daemon=True)
        self._open: list[HashedFile] = []
        self._opening = 0
        self._left = False
        self._opened = threading.Condition()

    def __enter__(self) -> Self:
        self._existed = self.folder.exists()
        _under_way.add(self.generation)
        try:
            self._write_claim()
            self._yield_to_others()
            sweep(self.folder)
            self.previous = read_manifest(self.folder)
            self._refuse_foreign_parquet()
        except BaseException:
            self._clear([])
            _under_way.discard(self.generation)
            raise
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._leave()
        except BaseException:
            # A signal, raised in the middle of the clean-up: that is what it asks for.
            self._leave()
            raise
        finally:
            _under_way.discard(self.generation)

    def _leave(self) -> None:
        self._stop.set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        if not join([self._heart], deadline):
            # The mount hangs, and would hold this thread as well.
            return
        try:
            published = self._is_published()
        except StageError:
            # Nobody can tell now what the manifest says: the next run asks again, and sweeps what it does not name.
            return
        if published:
            self._clear(self.retired)
        elif self._close_all(deadline):
            self._clear(self._begun)

    def _close_all(self, deadline: float) -> bool:
        """Closes what threads still write, so that nothing gets a name later, and says whether that was possible.

        Where it was not, the mount hangs, and the removal of a file would wait for the write to it.
        """
        with self._opened:
            self._left = True
            closed = self._opened.wait_for(lambda: not self._opening, max(0.0, deadline - time.monotonic()))
        return closed and all(file.abandon(deadline) for file in self._open)

    def name(self, split: str, index: int, total: int) -> str:
        """The final name of a split's file, in Hugging Face's form with the generation before the suffix."""
        return f"{split}-{index:05d}-of-{total:05d}-{self.generation}.parquet"

    def create(self, name: str) -> BinaryIO:
        """Opens a file of this generation under its final name, for one sequential write; `written` tells of it then.

        Safe to call from any thread.
        """
        with self._opened:
            if self._left:
                raise Busy(f"this run of `{self.folder.url}` has ended", hint="run the export again")
            self._begun.append(name)
            self._opening += 1
        try:
            file = HashedFile(self.folder.create(name), name, self.written)
            self._open.append(file)
        finally:
            with self._opened:
                self._opening -= 1
                self._opened.notify_all()
        return cast("BinaryIO", file)

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
        try:
            self.folder.put(MANIFEST_PATH, stored.to_json(), self._mark)
        except StageError:
            # A volume's rename may fail after its copy: then all is published, and only the temporary file stays.
            if not self._is_published():
                raise
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
        self.folder.put(self.claim, json.dumps(record, sort_keys=True).encode(), self._mark)

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
                hint = "wait for it to end, or choose another folder"
                if alive(other) is None:
                    left = math.ceil(other["beat"] + _SILENCE_SECONDS - time.time())
                    hint = f"wait for it to end; if it was killed, run the export again in {left} s"
                raise Busy(
                    f"`{self.folder.url}` is being exported by process {other.get('pid')} on `{other.get('host')}`",
                    hint=hint,
                )
            time.sleep(0.2)

    def _clear(self, doomed: Sequence[str]) -> None:
        """Removes these files, this run's scratch and its claim, and the folders that are empty then.

        What cannot be removed stays, and the claim with it: the run has ended as it has, and the next one sweeps.
        """
        keep_claim = False
        try:
            for path in [*doomed, *_below(self.folder, self.scratch)]:
                if not self._remove(path):
                    keep_claim = True
        except StageError:
            keep_claim = True
        if not keep_claim:
            self._remove(self.claim)
        self.folder.prune(self.scratch)
        _prune(self.folder)
        if not self._existed:
            self.folder.prune("", deep=False)

    def _remove(self, path: str) -> bool:
        try:
            self.folder.remove(path)
        except StageError:
            return False
        return True


def sweep(folder: Folder) -> list[str]:
    """Removes what killed runs left in an export's folder, and gives the removed paths.

    That is what the claims of dead runs tell, and in a folder with a manifest each file that has the form of an
    export's name, that the manifest does not name, and that no live run is writing.
    """
    # In this order: the claim of a file that is listed is older than the file, and where its run has ended meanwhile,
    # the manifest tells what became of it.
    there = [entry.path for entry in folder.entries()] if folder.exists() else []
    claims = _claims(folder)
    manifest = read_manifest(folder)
    live = {str(claim["generation"]) for claim in claims if _alive(claim)}
    dead = {str(claim["generation"]) for claim in claims} - live
    unnamed = strays(there, manifest)
    doomed = [path for path in unnamed if _of(path, dead) or (manifest is not None and not _of(path, live))]
    for generation in dead:
        doomed += _below(folder, f"{FOLDER}/scratch/{generation}")
    oldest = (time.time() - _SILENCE_SECONDS) * 1e9
    for path in there:
        if path.startswith(f"{FOLDER}/") and path.endswith(TEMPORARY_SUFFIX):
            entry = folder.stat(path)
            if entry is not None and (has_ended(path) or (entry.mtime_ns or 0) < oldest):
                doomed.append(path)
    for path in [*doomed, *(f"{_CLAIMS}/{generation}.json" for generation in dead)]:
        folder.remove(path)
    for generation in dead:
        folder.prune(f"{FOLDER}/scratch/{generation}")
    if not live:
        _prune(folder)
    return doomed


def _prune(folder: Folder) -> None:
    """Removes the folders of uc-stage's own that are empty; those of another run's scratch are left alone."""
    for path in ("scratch", "claims", ""):
        folder.prune(f"{FOLDER}/{path}", deep=False)


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
    if known and claim["pid"] == os.getpid():
        return claim["generation"] in _under_way
    return time.time() - claim["beat"] < _SILENCE_SECONDS if known is None else known
