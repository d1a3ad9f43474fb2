"""The only module that puts bytes under a final name.

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
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from uc_stage.errors import Busy, InvalidRequest, StageError
from uc_stage.locks import alive, identity
from uc_stage.manifest import FOLDER, MANIFEST_PATH, Manifest
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from typing_extensions import Self

    from uc_stage.storage import Folder

_CLAIMS = f"{FOLDER}/claims"
_OUR_NAME = re.compile(r"[a-z]+-\d{5}-of-\d{5}-v\d+-[0-9a-f]{6}\.parquet")
_HEARTBEAT_SECONDS = 20.0
_SILENCE_SECONDS = 120.0
_YIELD_SECONDS = 3.0


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of the export in `folder`, or None where there is none.

    Raises:
        VerificationFailed, Unsupported: as `Manifest.from_json`.
    """
    if folder.stat(MANIFEST_PATH) is None:
        return None
    return Manifest.from_json(folder.read(MANIFEST_PATH), folder.locate(MANIFEST_PATH))


def strays(paths: list[str], manifest: Manifest | None) -> list[str]:
    """Those of `paths` that an export wrote and no manifest names: what a killed run left behind."""
    named = set(_named(manifest))
    return sorted(path for path in paths if _OUR_NAME.fullmatch(path) and path not in named)


class Publication:
    """One run's way to publish a generation in a folder: enter, write files, `commit`; leaving without one undoes it.

    Raises on entering:
        Busy: another run that is alive publishes there.
        InvalidRequest: the folder holds a Delta table, or Parquet files that no manifest names.
    """

    def __init__(self, folder: Folder, version: int, keep: int = 0) -> None:
        self.folder = folder
        self.generation = f"v{version}-{secrets.token_hex(3)}"
        self.scratch = f"{FOLDER}/scratch/{self.generation}"
        self.retired: tuple[str, ...] = ()
        self._keep = keep
        self._written: list[str] = []
        self._committed = False
        self._claim = f"{_CLAIMS}/{self.generation}.json"
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="uc-stage-claim", daemon=True)

    def __enter__(self) -> Self:
        self._existed = self.folder.exists()
        if self._existed:
            _refuse_foreign_folder(self.folder)
        try:
            self._put_claim(retire=())
            self._yield_to_others()
            sweep(self.folder)
            self.previous = read_manifest(self.folder)
            self._refuse_foreign_parquet()
            self._put_claim(retire=_named(self.previous))
        except BaseException:
            self._undo()
            raise
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._heart.join()
        self._undo()

    def name(self, split: str, index: int, total: int) -> str:
        """The final name of a split's file, in Hugging Face's form with the generation before the suffix."""
        return f"{split}-{index:05d}-of-{total:05d}-{self.generation}.parquet"

    def create(self, name: str) -> BinaryIO:
        """Opens a file of this generation under its final name, for one sequential write."""
        self._written.append(name)
        return self.folder.create(name)

    def adopt(self, path: str, name: str) -> None:
        """Gives a file that an engine wrote below `scratch` its final name."""
        self._written.append(name)
        self.folder.rename(path, name)

    def commit(self, manifest: Manifest) -> Manifest:
        """Publishes the generation, then retires the files of the earlier ones beyond `keep`; gives what was stored.

        Raises:
            Busy: another run published here since this one began.
        """
        current = read_manifest(self.folder)
        if (current and current.generation) != (self.previous and self.previous.generation):
            raise Busy(f"another export published `{self.folder.url}` meanwhile", hint="run the export again")
        kept: dict[str, tuple[str, ...]] = {}
        if self.previous is not None:
            earlier = {self.previous.generation: tuple(f.path for f in self.previous.files), **self.previous.retained}
            kept = dict(list(earlier.items())[: self._keep])
        stored = dataclasses.replace(manifest, retained=kept)
        self.folder.put(MANIFEST_PATH, stored.to_json())
        self._committed = True
        self.retired = tuple(sorted(set(_named(self.previous)) - set(_named(stored))))
        for path in self.retired:
            self.folder.remove(path)
        return stored

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

    def _put_claim(self, retire: tuple[str, ...]) -> None:
        self._record = {**identity(), "generation": self.generation, "retire": list(retire)}
        self._write_claim()

    def _write_claim(self) -> None:
        record = {**self._record, "beat": time.time()}
        self.folder.put(self._claim, json.dumps(record, sort_keys=True).encode())

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            # A missed beat costs nothing while the next one comes; the run itself meets a real failure.
            with contextlib.suppress(StageError):
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

    def _undo(self) -> None:
        """Removes what this run leaves behind: its files unless they are committed, its scratch and its claim."""
        doomed = [] if self._committed else list(self._written)
        for path in [*doomed, *_below(self.folder, self.scratch), self._claim]:
            self.folder.remove(path)
        for path in ("scratch", "claims"):
            self.folder.prune(f"{FOLDER}/{path}")
        self.folder.prune(FOLDER)
        if not self._existed:
            self.folder.prune("")


def sweep(folder: Folder) -> list[str]:
    """Removes what killed runs left in an export's folder, as their claims tell it, and gives the removed paths."""
    swept: list[str] = []
    for claim in _claims(folder):
        generation = str(claim["generation"])
        if _alive(claim):
            continue
        manifest = read_manifest(folder)
        named = set(_named(manifest))
        if manifest is not None and manifest.generation == generation:
            doomed = [str(path) for path in claim.get("retire", []) if _OUR_NAME.fullmatch(str(path))]
        else:
            doomed = [entry.path for entry in folder.entries() if entry.path.endswith(f"-{generation}.parquet")]
            doomed = [path for path in doomed if _OUR_NAME.fullmatch(path)]
        doomed = [path for path in doomed if path not in named]
        doomed += _below(folder, f"{FOLDER}/scratch/{generation}")
        for path in doomed:
            folder.remove(path)
        folder.remove(f"{_CLAIMS}/{generation}.json")
        swept += doomed
    return swept


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


def _refuse_foreign_folder(folder: Folder) -> None:
    if open_folder(folder.locate("_delta_log")).exists():
        raise InvalidRequest(f"`{folder.url}` is a Delta table", hint="export into a folder of its own")


def _claims(folder: Folder) -> list[dict[str, Any]]:
    """The claims in the folder that can be read; one that is torn belongs to a run that wrote nothing yet."""
    found = []
    for path in _below(folder, _CLAIMS):
        try:
            claim = json.loads(folder.read(path))
        except (ValueError, StageError):
            continue
        if isinstance(claim, dict) and re.fullmatch(r"v\d+-[0-9a-f]{6}", str(claim.get("generation"))):
            found.append(claim)
    return found


def _alive(claim: dict[str, Any]) -> bool:
    """Whether the run behind a claim is still there: asked of the kernel where it can tell, else of the heartbeat."""
    known = alive(claim)
    return time.time() - float(claim.get("beat", 0)) < _SILENCE_SECONDS if known is None else known
