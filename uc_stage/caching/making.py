"""How a copy is made, by the one process that holds its lock."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from uc_stage.caching.places import root_of, variant_of
from uc_stage.caching.room import make_room, needed
from uc_stage.caching.survey import copies_of, lack_of, record_at
from uc_stage.errors import InvalidRequest, NoSpace
from uc_stage.manifest import CopyRecord
from uc_stage.publish import CopyPublication, evict, foreign_file, is_marked, now, remove_copy
from uc_stage.storage import open_folder, space_at
from uc_stage.transfer import DEFAULT_JOBS, copy_files, hash_files

if TYPE_CHECKING:
    from uc_stage.caching.places import Place
    from uc_stage.locks import Lock
    from uc_stage.model import CachePlan, CacheRequest, CopyFile
    from uc_stage.progress import Progress


@dataclass(frozen=True, slots=True)
class Made:
    """What it took: the bytes that were copied, those that were there, and the copies that had to go."""

    copied: int
    reused: int
    evicted: tuple[str, ...]


def make(current: CachePlan, place: Place, manifest: bytes | None, lock: Lock, progress: Progress) -> Made:
    """Makes the copy, holding its lock."""
    request, jobs = current.request, current.request.jobs or DEFAULT_JOBS
    shared = Shared(progress, lock)
    blank = CopyRecord(current.source, current.generation, current.manifest_id, now(), (), variant_of(request))
    publication = CopyPublication(place.path, place.partial)
    damaged = record_at(place.path, request)
    refuse_foreign(place.path, damaged, current.files)
    publication.open(blank)
    if request.force:
        publication.clear()
    elif damaged is not None:
        publication.adopt(place.path, damaged)
    claimed = publication.claimed(current.files)
    good: list[CopyFile] = []
    if claimed:
        shared.phase("verify", total=sum(file.bytes for file in claimed))
        good = hash_files(place.partial, claimed, jobs, shared)
        publication.keep(claimed, good)
    kept = {file.path for file in good}
    missing = [file for file in current.files if file.path not in kept]
    size = sum(file.bytes for file in missing)
    sweep(request, place, current.source)
    need = needed(request, current.bytes, missing, space_at(place.partial))
    try:
        evicted = make_room(request, place, current.bytes, need, lock, progress)
    except NoSpace:
        if not good:
            publication.drop()
        raise
    shared.phase("copy", total=size)
    copied = copy_files(
        open_folder(current.source),
        missing,
        publication,
        jobs,
        shared,
        retries=request.retries,
        timeout=request.read_timeout,
    )
    files = tuple(sorted([*good, *copied], key=lambda file: file.path))
    record = replace(blank, created_at=now(), files=files)
    publish(publication, place, request, record, manifest, current.files, instead=damaged is not None)
    return Made(size, sum(file.bytes for file in good), evicted)


def publish(
    publication: CopyPublication,
    place: Place,
    request: CacheRequest,
    record: CopyRecord,
    manifest: bytes | None,
    files: tuple[CopyFile, ...],
    *,
    instead: bool,
) -> None:
    """Gives a copy that is whole its name, in place of what has it where that is to be, or is no copy of `files`."""
    while not publication.commit(record, manifest, replace=instead):
        # A run that no lock kept apart was quicker.
        if lack_of(place.path, record_at(place.path, request), replace(record, files=files)) is None:
            publication.drop()
            break
        instead = True


def refuse_foreign(path: str, record: CopyRecord | None, files: tuple[CopyFile, ...]) -> None:
    """Refuses to make a copy anew where somebody put files of their own: they would go with the damaged one."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path) or (os.listdir(path) and not is_marked(path)):
        raise InvalidRequest(f"`{path}` is not uc-stage's", hint="move it away")
    ours = {file.path for file in (*files, *(record.files if record else ()))}
    if (found := foreign_file(path, ours)) is not None:
        raise InvalidRequest(
            f"the copy `{path}` has to be made anew, and holds `{found}`, which uc-stage did not write",
            hint="move that file away",
        )


def sweep(request: CacheRequest, place: Place, url: str) -> None:
    """Removes partial copies of other generations of the source that nobody works on any more."""
    above, name = os.path.split(place.partial)
    prefix = name.rpartition("-")[0] + "-"
    for folder, _ in copies_of(above, prefix, url):
        if folder == place.partial:
            continue
        if request.dest is not None:
            # All generations of a DEST have the one lock that is held here.
            remove_copy(folder)
            continue
        # One that somebody works on stays.
        evict(root_of(request), folder)


class Shared:
    """Progress that those who wait for the lock can read, too."""

    def __init__(self, progress: Progress, lock: Lock) -> None:
        self._progress, self._holder = progress, lock
        self._counting = threading.Lock()
        self.done, self._total = 0, 0

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        """As `Progress.phase`."""
        self.done, self._total = 0, total or 0
        self._holder.tell(at_once=True, done=0, total=self._total)
        self._progress.phase(name, total=total, unit=unit)

    def know(self, total: int) -> None:
        """Tells of how much a phase is that began without that."""
        with self._counting:
            self._total = total
            self._holder.tell(at_once=True, done=self.done, total=total)
            self._progress.phase("copy", total=total)
            self._progress.advance(self.done)

    def advance(self, amount: int) -> None:
        """As `Progress.advance`."""
        with self._counting:
            self.done += amount
            self._holder.tell(done=self.done, total=self._total)
            self._progress.advance(amount)

    def note(self, message: str) -> None:
        """As `Progress.note`."""
        self._progress.note(message)
