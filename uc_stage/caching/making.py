"""How a copy is made, by the one process that holds its lock."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from uc_stage.caching.forming import weigh
from uc_stage.caching.places import root_of, variant_of
from uc_stage.caching.room import make_room, needed
from uc_stage.caching.survey import copies_of, lack_of, record_at
from uc_stage.errors import InvalidRequest, NoSpace, Unsupported
from uc_stage.manifest import CopyRecord
from uc_stage.publish import CopyPublication, evict, foreign_file, is_marked, now, remove_copy
from uc_stage.storage import open_folder, space_at
from uc_stage.transfer import DEFAULT_JOBS, copy_files, hash_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from uc_stage.caching.places import Place
    from uc_stage.forms import Form, Outputs
    from uc_stage.locks import Lock
    from uc_stage.model import CachePlan, CacheRequest, CopyFile
    from uc_stage.progress import Progress
    from uc_stage.transfer import Sink


@dataclass(frozen=True, slots=True)
class Made:
    """What it took: the bytes that were copied, those that were there, and the copies that had to go; what it gave."""

    copied: int
    reused: int
    evicted: tuple[str, ...]
    files: int
    bytes: int


def make(
    current: CachePlan, place: Place, manifest: bytes | None, form: Form | None, lock: Lock, progress: Progress
) -> Made:
    """Makes the copy, holding its lock."""
    request, jobs = current.request, current.request.jobs or DEFAULT_JOBS
    shared = Shared(progress, lock)
    shares = current.manifest_id is None and not variant_of(request)
    generation = "" if shares else current.generation
    blank = CopyRecord(current.source, generation, current.manifest_id, now(), (), variant_of(request))
    publication = CopyPublication(place.path, place.partial)
    damaged = record_at(place.path, request)
    outputs: Outputs = form.outputs(current.files) if form else {file.path: (file,) for file in current.files}
    refuse_foreign(place.path, damaged, form, outputs)
    publication.open(blank)
    if request.force:
        publication.clear()
    elif damaged is not None:
        publication.adopt(place.path, damaged)
    wanted = {path: None if form else files[0] for path, files in outputs.items()}
    good = _good(publication, wanted, jobs, shared)
    kept = {file.path: file.bytes for file in good}
    lacking = {path: files for path, files in outputs.items() if path not in kept}
    missing = [file for files in lacking.values() for file in files]
    size = sum(file.bytes for file in missing)
    sweep(request, place, current)
    sizes, scratch = {file.path: file.bytes for file in missing}, 0
    try:
        if form:
            sizes, scratch = weigh(form, current.source, lacking, current.outputs, shared), form.scratch(lacking)
        total = sum(sizes.values()) + sum(kept.values())
        need = needed(request, total, sizes.values(), space_at(place.partial)) + scratch
        # What is done of a form counts what is read as well as what is written.
        evicted = make_room(request, place, total, need, lock, progress, beyond=size if form else 0)
    except (NoSpace, Unsupported):
        if not good:
            publication.drop()
        raise
    if form is None:
        shared.phase("copy", total=size)
        copied = _fetch(current, missing, publication, jobs, shared)
    else:
        # To write takes its time, too.
        shared.phase("copy", total=size + sum(sizes.values()))
        with contextlib.closing(form.sink(publication, lacking, sizes, shared)) as sink:
            _fetch(current, missing, sink, jobs, shared, sink.takes)
        copied = [*sink.written, *(publication.put(path, data) for path, data in form.beside(outputs))]
        # It names files that are not there.
        manifest = None
    files = tuple(sorted([*good, *copied], key=lambda file: file.path))
    record = replace(blank, generation=current.generation, created_at=now(), files=files)
    publish(publication, place, request, record, manifest, outputs, form, instead=damaged is not None)
    return Made(size, sum(kept.values()), evicted, len(files), sum(file.bytes for file in files))


def _good(
    publication: CopyPublication, wanted: Mapping[str, CopyFile | None], jobs: int, progress: Progress
) -> list[CopyFile]:
    """What the partial folder holds of the wanted files, each hashed again; all else is removed."""
    claimed = publication.claimed(wanted)
    if not claimed:
        return []
    progress.phase("verify", total=sum(file.bytes for file in claimed))
    good = hash_files(publication.partial, claimed, jobs, progress)
    publication.keep(claimed, good)
    return good


def _fetch(
    current: CachePlan,
    files: list[CopyFile],
    sink: Sink,
    jobs: int,
    progress: Progress,
    takes: Callable[[CopyFile], bool] | None = None,
) -> list[CopyFile]:
    request = current.request
    return copy_files(
        open_folder(current.source),
        files,
        sink,
        jobs,
        progress,
        retries=request.retries,
        timeout=request.read_timeout,
        takes=takes,
        # What is made of them must be, and they are gone then.
        durable=takes is None,
    )


def publish(
    publication: CopyPublication,
    place: Place,
    request: CacheRequest,
    record: CopyRecord,
    manifest: bytes | None,
    outputs: Outputs,
    form: Form | None,
    *,
    instead: bool,
) -> None:
    """Gives a copy that is whole its name, in place of what has it where that is to be, or is no such copy."""
    asked = replace(record, files=tuple(file for files in outputs.values() for file in files))
    while not publication.commit(record, manifest, replace=instead):
        # A run that no lock kept apart was quicker.
        if lack_of(place.path, record_at(place.path, request), asked, outputs if form else None) is None:
            publication.drop()
            break
        instead = True


def refuse_foreign(path: str, record: CopyRecord | None, form: Form | None, outputs: Outputs) -> None:
    """Refuses to make a copy anew where somebody put files of their own: they would go with the damaged one."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path) or (os.listdir(path) and not is_marked(path)):
        raise InvalidRequest(f"`{path}` is not uc-stage's", hint="move it away")
    beside = [name for name, _ in form.beside(outputs)] if form else []
    ours = {*outputs, *beside, *(file.path for file in (record.files if record else ()))}
    if (found := foreign_file(path, ours)) is not None:
        raise InvalidRequest(
            f"the copy `{path}` has to be made anew, and holds `{found}`, which uc-stage did not write",
            hint="move that file away",
        )


def sweep(request: CacheRequest, place: Place, current: CachePlan) -> None:
    """Removes partial copies of other generations of the source that nobody works on any more."""
    above, name = os.path.split(place.partial)
    prefix = name.rpartition("-")[0] + "-"
    for folder, record in copies_of(above, prefix, current.source):
        if folder == place.partial:
            continue
        if request.dest is not None:
            # All generations of a DEST have the one lock that is held here.
            remove_copy(folder)
            continue
        # One that somebody works on stays, another part or form of this generation, and what all generations share.
        if record.generation not in (current.generation, ""):
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
