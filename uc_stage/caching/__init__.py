"""`cache`: one verified copy of a source on this machine, made by one process and shared by all."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.caching.early import EarlyCopy, plan_early
from uc_stage.caching.forming import form_of
from uc_stage.caching.making import make
from uc_stage.caching.parts import part_of
from uc_stage.caching.places import is_in, place_of, root_of
from uc_stage.caching.room import look_for_room
from uc_stage.caching.survey import survey
from uc_stage.errors import InvalidRequest, NotFound
from uc_stage.holders import caller, hold
from uc_stage.locks import Lock, describe
from uc_stage.manifest import COPY_PATH, MANIFEST_PATH, Manifest
from uc_stage.model import CachePlan, CacheReport
from uc_stage.progress import SILENT
from uc_stage.publish import is_marked, prepare_root, read_copy, refuse_unsafe_root
from uc_stage.ranks import read_rank
from uc_stage.sources import PlainFolder, find_source
from uc_stage.storage import open_folder
from uc_stage.transfer import DEFAULT_JOBS, hash_files

if TYPE_CHECKING:
    from uc_stage.caching.making import Made
    from uc_stage.caching.places import Place
    from uc_stage.model import CacheRequest
    from uc_stage.progress import Progress
    from uc_stage.sources import CopySource

# So often a copy is begun that others take away.
_TRIES = 5


def run(request: CacheRequest, progress: Progress = SILENT) -> CacheReport:
    """Plans and executes. Raises what `plan` and `execute` raise."""
    began = time.monotonic()
    progress.phase("list", unit="files")
    source = _look(request)
    report = _begin_early(request, source, progress) if isinstance(source, PlainFolder) else None
    # Of all ranks that ask, the one that copies weighs what it will write, holding the lock.
    report = report or execute(_plan(request, source, None), progress)
    return replace(report, seconds=time.monotonic() - began)


def plan(request: CacheRequest, progress: Progress = SILENT) -> CachePlan:
    """Says what `cache` would do, from listings and records alone: no data file is read, nothing is written.

    A copy in another form is estimated by the footers of its source's files, and by a sample where they do not tell.

    Raises:
        InvalidRequest: DEST holds something else, or lies in SOURCE, or SOURCE in it.
        AccessDenied: the cache folder is a link or another user's.
        NotFound: no file is chosen. NotFound, Unsupported, VerificationFailed, Unavailable: as `open_source`.
    """
    return _plan(request, _look(request), progress)


def _look(request: CacheRequest) -> CopySource | PlainFolder:
    """Refuses what cannot be, and finds the source."""
    if not request.cache_dir.strip() or (request.dest is not None and not request.dest.strip()):
        flag = "DEST" if request.cache_dir.strip() else "`--cache-dir`"
        raise InvalidRequest(f"{flag} is empty", hint="name a folder, or leave it out")
    if request.timeout is not None and not request.timeout >= 0:
        raise InvalidRequest(f"`--timeout {request.timeout}` is no time to wait", hint="give 0 or more seconds")
    form_of(request, "", None)
    refuse_unsafe_root(root_of(request))
    source = find_source(request.source)
    url = source.folder.url if isinstance(source, PlainFolder) else source.url
    if "://" not in url and is_in(root_of(request), url):
        raise InvalidRequest(
            f"the cache folder `{root_of(request)}` lies in its source `{url}`",
            hint="choose another one with `--cache-dir`",
        )
    return source


def _plan(request: CacheRequest, source: CopySource | PlainFolder, weighing: Progress | None) -> CachePlan:
    if isinstance(source, PlainFolder):
        source = source.listed(source.files())
    manifest_id = source.manifest.id if source.manifest else None
    files = part_of(request, source)
    form = form_of(request, source.generation, source.manifest)
    weighing = None if request.check else weighing
    found = survey(request, source.url, source.generation, manifest_id, files, form, weighing)
    if request.check or (found.state == "fresh" and not request.force) or (form and not weighing):
        return found
    place = place_of(request, source.url, source.generation, manifest_id)
    room = look_for_room(request, place, found.bytes, found.bytes_needed)
    return replace(found, evictions=room.evictions, bytes_lacking=room.lacking)


def _begin_early(request: CacheRequest, source: PlainFolder, progress: Progress) -> CacheReport | None:
    """Copies a plain folder while it is listed; None where that cannot be, and the listing has to come first."""
    began = time.monotonic()
    if (planned := plan_early(request, source)) is None:
        return None
    # Its path is of no generation yet; the folder that becomes the copy, and the lock, are right.
    place = place_of(request, planned.source, planned.generation, None)
    prepare_root(root_of(request))
    with Lock(place.lock) as lock, contextlib.ExitStack() as stack:
        _acquire(lock, request, progress)
        planned = plan_early(request, source)
        if planned is None or planned.state != "absent":
            # There is a copy now, or what a run that ended has left of one.
            return None
        lock.tell(at_once=True, rank=read_rank())

        def own(place: Place) -> None:
            _take_own(place, stack, request, progress)

        try:
            current, place, made = EarlyCopy(planned, source, place, lock, own, progress).make()
        except NotFound:
            # A file went away, or the whole partial folder: what there is now is to be listed.
            return None
        report = _made(current, made, began)
        return report if _hold(request, place) else None


def execute(planned: CachePlan, progress: Progress = SILENT) -> CacheReport:
    """Makes the copy, or finds it made, and says so; with `check` it only says what the plan found.

    Where an export publishes a new generation meanwhile, that one is copied in place of the planned one.

    Raises:
        Busy: another process copies, and the wait ran out. NoSpace: before the first byte wherever that is possible.
        VerificationFailed: bytes that are not what they should be, also when fetched again, or a source that changed.
        NotFound, AccessDenied, Unavailable: as the file systems say.
    """
    began = time.monotonic()
    for _ in range(_TRIES - 1):
        try:
            return _execute(planned, progress, began)
        except NotFound:  # noqa: PERF203 - a copy costs a million times more
            place = place_of(planned.request, planned.source, planned.generation, planned.manifest_id)
            taken = not is_marked(place.partial)
            newer = _plan(planned.request, _look(planned.request), None)
            # The generation was retired while it was read; or a run that no lock kept apart has published the copy, or
            # somebody removed it. What the source itself lacks stays missing.
            if newer.generation == planned.generation and newer.state != "fresh" and not taken:
                raise
            planned = newer
    return _execute(planned, progress, began)


def _execute(planned: CachePlan, progress: Progress, began: float) -> CacheReport:
    request = planned.request
    place = place_of(request, planned.source, planned.generation, planned.manifest_id)
    before = _stamp(place.path)
    planned, verified = _rehashed(planned, progress)
    if request.check:
        return replace(_report(planned, "checked", began), verified=verified)
    if planned.state == "fresh" and not request.force and _hold(request, place):
        return replace(_report(planned, "unchanged", began), verified=verified)
    manifest = _manifest(planned)
    told = Manifest.from_json(manifest, planned.source) if manifest else None
    form = form_of(request, planned.generation, told)
    prepare_root(root_of(request))
    again = request.force or verified is False
    with Lock(place.lock) as lock, contextlib.ExitStack() as stack:
        _acquire(lock, request, progress)
        lock.tell(at_once=True, rank=read_rank())
        _take_own(place, stack, request, progress)
        current = survey(request, planned.source, planned.generation, planned.manifest_id, planned.files, form)
        if current.state == "fresh" and (not again or _stamp(place.path) != before):
            report = _report(current, "unchanged", began)
        else:
            made = make(replace(current, outputs=planned.outputs), place, manifest, form, lock, progress)
            report = _made(current, made, began)
        if _hold(request, place):
            return report
    raise NotFound(f"the copy `{place.path}` was removed as soon as it was there", hint="run `cache` again")


def _rehashed(found: CachePlan, progress: Progress) -> tuple[CachePlan, bool | None]:
    """With `verify`, a copy that looks whole is hashed again: one with other bytes than were copied is damaged.

    Gives the plan, and whether all bytes are right; None where nobody looked.
    """
    record = read_copy(found.path) if found.request.verify and found.state == "fresh" else None
    if record is None:
        return found, None
    progress.phase("verify", total=sum(file.bytes for file in record.files))
    good = hash_files(found.path, record.files, found.request.jobs or DEFAULT_JOBS, progress)
    if bad := {file.path for file in record.files} - {file.path for file in good}:
        reason = f"the copy is damaged: `{min(bad)}` has other bytes than were copied"
        return replace(found, state="partial", reason=reason), False
    return replace(found, reason=f"{found.reason}, by the hash of each file"), True


def _acquire(lock: Lock, request: CacheRequest, progress: Progress) -> None:
    lock.acquire(request.timeout, lambda holder: progress.note(_waiting(holder)))


def _take_own(place: Place, stack: contextlib.ExitStack, request: CacheRequest, progress: Progress) -> None:
    """Takes the lock of the copy's path, too, where that is another one: nobody removes it before it is held."""
    if place.own != place.lock:
        _acquire(stack.enter_context(Lock(place.own)), request, progress)


def _made(current: CachePlan, made: Made, began: float) -> CacheReport:
    return replace(
        _report(current, "done", began),
        state="fresh",
        verified=True if current.request.verify else None,
        files=made.files,
        bytes=made.bytes,
        bytes_copied=made.copied,
        bytes_reused=made.reused,
        evicted=made.evicted,
    )


def _hold(request: CacheRequest, place: Place) -> bool:
    """Notes who uses the copy from now on; says False where it went away meanwhile."""
    lasting = request.holder == "process"
    return hold(place.path, os.getpid() if lasting else caller(), lasting=lasting)


def _manifest(planned: CachePlan) -> bytes | None:
    """The bytes of the export's manifest, as they were planned for; for a part, of one that names its files alone.

    Raises:
        NotFound: another generation was published since.
    """
    if planned.manifest_id is None:
        return None
    folder = open_folder(planned.source)
    data = folder.read(MANIFEST_PATH)
    manifest = Manifest.from_json(data, folder.locate(MANIFEST_PATH))
    if manifest.generation != planned.generation:
        raise NotFound(f"`{planned.source}` holds another generation now", hint="run `cache` again")
    if len(planned.files) < len(manifest.files):
        return manifest.part({file.path for file in planned.files}, planned.variant).to_json()
    return data


def _report(planned: CachePlan, status: Literal["done", "unchanged", "checked"], began: float) -> CacheReport:
    return CacheReport(
        status=status,
        state=planned.state,
        source=planned.source,
        path=planned.path,
        generation=planned.generation,
        manifest_id=planned.manifest_id,
        files=planned.file_count,
        bytes=planned.bytes,
        bytes_copied=0,
        bytes_reused=planned.bytes if status == "unchanged" else 0,
        seconds=time.monotonic() - began,
        reason=planned.reason,
        in_memory=planned.in_memory,
        variant=planned.variant,
    )


def _stamp(path: str) -> tuple[int, int] | None:
    """What tells one copy from another that took its place."""
    try:
        found = os.stat(os.path.join(path, COPY_PATH))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _waiting(holder: dict[str, Any]) -> str:
    who, done, total = describe(holder), holder.get("done"), holder.get("total")
    if not isinstance(done, int) or not isinstance(total, int) or max(done, total) <= 0:
        return f"waiting for {who}, which makes this copy"
    if total <= 0:
        return f"waiting for {who}, which makes this copy: {done / 1e6:.1f} MB so far"
    return f"waiting for {who}, which makes this copy: {done / 1e6:.1f} of {total / 1e6:.1f} MB"
