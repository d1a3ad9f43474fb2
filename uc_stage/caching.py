"""`cache`: one verified copy of a source on this machine, made by one process and shared by all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.errors import AccessDenied, InvalidRequest, NoSpace, NotFound, StageError, VerificationFailed
from uc_stage.locks import Lock, describe
from uc_stage.manifest import COPY_PATH, FOLDER, MANIFEST_PATH, CopyRecord, Manifest
from uc_stage.model import CachePlan, CacheReport
from uc_stage.progress import SILENT
from uc_stage.publish import CopyPublication, is_marked, now, read_copy, read_journal, remove_copy, tag_cache
from uc_stage.sources import open_source
from uc_stage.storage import open_folder, translated
from uc_stage.transfer import DEFAULT_JOBS, copy_files, hash_files

if TYPE_CHECKING:
    from uc_stage.model import CacheRequest, CopyFile, CopyState
    from uc_stage.progress import Progress


def run(request: CacheRequest, progress: Progress = SILENT) -> CacheReport:
    """Plans and executes. Raises what `plan` and `execute` raise."""
    began = time.monotonic()
    progress.phase("list", unit="files")
    report = execute(plan(request), progress)
    return replace(report, seconds=time.monotonic() - began)


def plan(request: CacheRequest) -> CachePlan:
    """Says what `cache` would do, from listings and records alone: no data file is read, nothing is written.

    Raises:
        InvalidRequest: DEST holds something else, or lies in SOURCE, or SOURCE in it.
        AccessDenied: the cache folder is a link or another user's.
        NotFound, Unsupported, VerificationFailed, Unavailable: as `open_source`.
    """
    if not request.cache_dir.strip() or (request.dest is not None and not request.dest.strip()):
        flag = "DEST" if request.cache_dir.strip() else "`--cache-dir`"
        raise InvalidRequest(f"{flag} is empty", hint="name a folder, or leave it out")
    if request.timeout is not None and not request.timeout >= 0:
        raise InvalidRequest(f"`--timeout {request.timeout}` is no time to wait", hint="give 0 or more seconds")
    _refuse_unsafe_root(_root(request))
    source = open_source(request.source)
    if "://" not in source.url and _is_in(_root(request), source.url):
        raise InvalidRequest(
            f"the cache folder `{_root(request)}` lies in its source `{source.url}`",
            hint="choose another one with `--cache-dir`",
        )
    manifest_id = source.manifest.id if source.manifest else None
    return _survey(request, source.url, source.generation, manifest_id, source.files)


def execute(planned: CachePlan, progress: Progress = SILENT) -> CacheReport:
    """Makes the copy, or finds it made, and says so; with `check` it only says what the plan found.

    Where an export publishes a new generation meanwhile, that one is copied in place of the planned one.

    Raises:
        Busy: another process copies, and the wait ran out. NoSpace: before the first byte wherever that is possible.
        VerificationFailed: bytes that are not what they should be, also when fetched again, or a source that changed.
        NotFound, AccessDenied, Unavailable: as the file systems say.
    """
    began = time.monotonic()
    try:
        return _execute(planned, progress, began)
    except NotFound:
        # The generation was retired while it was read, or a run that no lock kept apart has published the copy.
        newer = plan(planned.request)
        if newer.generation == planned.generation and newer.state != "fresh":
            raise
        return _execute(newer, progress, began)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one generation's copy goes: its path, the folder that becomes it, and the lock of the two."""

    path: str
    partial: str
    lock: str


def _place(request: CacheRequest, url: str, generation: str, manifest_id: str | None) -> _Place:
    root = _root(request)
    identity = json.dumps([url, generation, manifest_id]).encode()
    digest = hashlib.sha256(identity).hexdigest()[:12]
    if request.dest is None:
        name = f"{_name(url)}-{digest}"
        path, partial = f"{root}/copies/{name}", f"{root}/partial/{name}"
    else:
        path = os.path.abspath(os.path.expanduser(request.dest))
        above, name = os.path.split(path)
        partial = os.path.join(above, f".{name}.uc-stage-{digest}")
    return _Place(path, partial, _lock_path(root, path))


def _root(request: CacheRequest) -> str:
    return os.path.abspath(os.path.expanduser(request.cache_dir))


def _name(url: str) -> str:
    """The last part of a source's path, made safe for a folder's name anywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", url.rstrip("/").rpartition("/")[2]).strip("._-")[:64] or "copy"


def _lock_path(root: str, path: str) -> str:
    return f"{root}/locks/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.lock"


def _refuse_unsafe_root(root: str) -> None:
    """Refuses a cache folder that somebody else prepared: under `/tmp` anybody could plant files that look cached."""
    with translated(root):
        try:
            found = os.lstat(root)
        except FileNotFoundError:
            return
    if stat.S_ISLNK(found.st_mode):
        why = "is a link"
    elif not stat.S_ISDIR(found.st_mode):
        why = "is not a folder"
    elif found.st_uid != os.geteuid():
        why = f"belongs to user {found.st_uid}, and this process runs as {os.geteuid()}"
    elif found.st_mode & 0o022:
        why = "can be written by other users"
    else:
        return
    raise AccessDenied(f"the cache folder `{root}` {why}", hint="choose a folder of your own with `--cache-dir`")


def _prepare_root(root: str) -> None:
    with translated(root):
        os.makedirs(root, mode=0o700, exist_ok=True)
        _refuse_unsafe_root(root)
        if not os.listdir(root):
            # A folder that was there before can hold what somebody wants in a backup.
            tag_cache(root)
        for name in ("copies", "partial", "locks"):
            os.makedirs(f"{root}/{name}", mode=0o700, exist_ok=True)


def _survey(
    request: CacheRequest, url: str, generation: str, manifest_id: str | None, files: tuple[CopyFile, ...]
) -> CachePlan:
    """What there is of a generation's copy, and what is still to do."""
    place = _place(request, url, generation, manifest_id)
    _refuse_nesting(place.path, url)
    if request.dest is not None:
        _refuse_taken(place.path, url)
    record = _record_at(place.path, request)
    total = sum(file.bytes for file in files)
    held = 0
    lack = _lack(place.path, record, CopyRecord(url, generation, manifest_id, "", files))
    state: CopyState
    if record is not None and lack is None:
        state, reason, held = "fresh", f"the copy holds generation `{generation}`, whole", total
    elif record is not None and record.generation == generation and record.manifest_id == manifest_id:
        state, reason = "partial", f"the copy is damaged: {lack}"
        held = _held(place.path, record.files, files)
    elif read_copy(place.partial) is not None:
        noted = tuple(read_journal(place.partial).values())
        held = _held(place.partial, noted, files)
        state, reason = "partial", f"{held} of {total} bytes are copied"
    elif other := record or _other(request, url):
        state = "stale"
        reason = f"a copy of {other.created_at} holds generation `{other.generation}`; now it is `{generation}`"
    else:
        state, reason = "absent", "there is no copy of it here"
    if request.dest is not None and record is not None and record.generation != generation and not request.check:
        raise InvalidRequest(
            f"`{place.path}` holds generation `{record.generation}` of `{url}`, which is at `{generation}` now",
            hint="choose another DEST, or none: then each generation has a path of its own",
        )
    return CachePlan(
        request=request,
        source=url,
        generation=generation,
        manifest_id=manifest_id,
        path=place.path,
        state=state,
        files=files,
        bytes=total,
        bytes_to_copy=total if request.force else total - held,
        bytes_free=_free(place.path),
        reason=reason,
    )


def _record_at(path: str, request: CacheRequest) -> CopyRecord | None:
    """The record of the copy at a path; below the cache folder one that is damaged is none, and is made anew."""
    try:
        return read_copy(path)
    except VerificationFailed:
        if request.dest is not None:
            raise
        return None


def _is_in(path: str, folder: str) -> bool:
    folder = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), folder]) == folder


def _refuse_nesting(path: str, url: str) -> None:
    if "://" in url:
        return
    if _is_in(url, path) or _is_in(path, url):
        raise InvalidRequest(
            f"the copy `{path}` and its source `{url}` lie in one another",
            hint="choose a DEST or a `--cache-dir` apart from SOURCE",
        )


def _refuse_taken(path: str, url: str) -> None:
    """Refuses a DEST that uc-stage would have to overwrite: all but an empty folder and a copy of the same source."""
    with translated(path):
        if not os.path.lexists(path):
            return
        if os.path.islink(path) or not os.path.isdir(path):
            why = "is no folder"
        elif os.path.ismount(path):
            why = "is a mount point, which no folder can take the name of"
        elif not os.listdir(path):
            return
        else:
            record = read_copy(path)
            if record is not None and record.source == url:
                return
            why = f"holds a copy of `{record.source}`" if record else "holds files that uc-stage did not write"
    raise InvalidRequest(f"`{path}` {why}", hint="choose a DEST that does not exist yet")


def _lack(path: str, record: CopyRecord | None, wanted: CopyRecord) -> str | None:
    """Why the folder is not the copy that is wanted, told from its record and from sizes and times; None if it is."""
    if record is None:
        return "there is no record"
    if (record.source, record.generation, record.manifest_id) != (wanted.source, wanted.generation, wanted.manifest_id):
        return "its record is of something else"
    recorded = {file.path: file for file in record.files}
    for file in wanted.files:
        known = recorded.get(file.path)
        if known is None or known.bytes != file.bytes or file.xxh3_128 not in (None, known.xxh3_128):
            return f"its record does not hold `{file.path}` as the source does"
        if not _is_there(path, known):
            return f"`{file.path}` is gone or was changed"
    return None


def _is_there(path: str, file: CopyFile) -> bool:
    """Whether a file has the size and the time that its record tells."""
    whole = os.path.join(path, file.path)
    with translated(whole):
        try:
            found = os.lstat(whole)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (file.bytes, file.mtime_ns)


def _held(path: str, noted: tuple[CopyFile, ...], files: tuple[CopyFile, ...]) -> int:
    """The bytes of `files` that a folder holds, as far as sizes and times tell."""
    wanted = {file.path for file in files}
    return sum(file.bytes for file in noted if file.path in wanted and _is_there(path, file))


def _other(request: CacheRequest, url: str) -> CopyRecord | None:
    """The newest copy of another generation of a source in the cache folder."""
    if request.dest is not None:
        return None
    found = [record for _, record in _ours(f"{_root(request)}/copies", f"{_name(url)}-", url)]
    return max(found, key=lambda record: record.created_at, default=None)


def _ours(folder: str, prefix: str, url: str) -> list[tuple[str, CopyRecord]]:
    """The folders in a folder, by a prefix of their names, that carry a marker of a copy of `url`."""
    with translated(folder):
        try:
            names = sorted(name for name in os.listdir(folder) if name.startswith(prefix))
        except FileNotFoundError:
            return []
    found = []
    for name in names:
        # Another run may be removing it, and a damaged record marks nothing.
        with contextlib.suppress(StageError):
            record = read_copy(os.path.join(folder, name))
            if record is not None and record.source == url:
                found.append((os.path.join(folder, name), record))
    return found


def _free(path: str) -> int:
    """The bytes that this user may still write on the file system where `path` is or will be."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    with translated(path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _execute(planned: CachePlan, progress: Progress, began: float) -> CacheReport:
    request = planned.request
    if request.check:
        return _report(planned, "checked", began)
    if planned.state == "fresh" and not request.force:
        return _report(planned, "unchanged", began)
    manifest = _manifest(planned)
    _prepare_root(_root(request))
    place = _place(request, planned.source, planned.generation, planned.manifest_id)
    before = _stamp(place.path)
    with Lock(place.lock) as lock:
        lock.acquire(request.timeout, lambda holder: progress.note(_waiting(holder)))
        current = _survey(request, planned.source, planned.generation, planned.manifest_id, planned.files)
        if current.state == "fresh" and (not request.force or _stamp(place.path) != before):
            return _report(current, "unchanged", began)
        copied, reused = _make(current, place, manifest, lock, progress)
    return replace(_report(current, "done", began), state="fresh", bytes_copied=copied, bytes_reused=reused)


def _make(current: CachePlan, place: _Place, manifest: bytes | None, lock: Lock, progress: Progress) -> tuple[int, int]:
    """Makes the copy, holding its lock, and gives the bytes that were copied and those that were there."""
    request, jobs = current.request, current.request.jobs or DEFAULT_JOBS
    shared = _Shared(progress, lock)
    blank = CopyRecord(current.source, current.generation, current.manifest_id, now(), ())
    publication = CopyPublication(place.path, place.partial)
    damaged = _record_at(place.path, request)
    _refuse_foreign(place.path, damaged, current.files)
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
    _sweep(request, place, current.source)
    _refuse_full(place.partial, size, request.reserve)
    shared.phase("copy", total=size)
    copied = copy_files(open_folder(current.source), missing, publication, jobs, shared)
    files = tuple(sorted([*good, *copied], key=lambda file: file.path))
    record = replace(blank, created_at=now(), files=files)
    instead = damaged is not None
    while not publication.commit(record, manifest, replace=instead):
        # A run that no lock kept apart was quicker.
        if _lack(place.path, _record_at(place.path, request), replace(record, files=current.files)) is None:
            publication.drop()
            break
        instead = True
    return size, sum(file.bytes for file in good)


def _refuse_foreign(path: str, record: CopyRecord | None, files: tuple[CopyFile, ...]) -> None:
    """Refuses to make a copy anew where somebody put files of their own: they would go with the damaged one."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path) or (os.listdir(path) and not is_marked(path)):
        raise InvalidRequest(f"`{path}` is not uc-stage's", hint="move it away")
    ours = {file.path for file in (*files, *(record.files if record else ()))}
    for folder, _, names in os.walk(path):
        for name in names:
            found = os.path.relpath(os.path.join(folder, name), path)
            if found not in ours and not found.startswith(f"{FOLDER}/"):
                raise InvalidRequest(
                    f"the copy `{path}` has to be made anew, and holds `{found}`, which uc-stage did not write",
                    hint="move that file away",
                )


def _manifest(planned: CachePlan) -> bytes | None:
    """The bytes of the export's manifest, as they were planned for.

    Raises:
        NotFound: another generation was published since.
    """
    if planned.manifest_id is None:
        return None
    folder = open_folder(planned.source)
    data = folder.read(MANIFEST_PATH)
    if Manifest.from_json(data, folder.locate(MANIFEST_PATH)).generation != planned.generation:
        raise NotFound(f"`{planned.source}` holds another generation now", hint="run `cache` again")
    return data


def _sweep(request: CacheRequest, place: _Place, url: str) -> None:
    """Removes partial copies of other generations of the source that nobody works on any more."""
    above, name = os.path.split(place.partial)
    prefix = name.rpartition("-")[0] + "-"
    for folder, _ in _ours(above, prefix, url):
        if folder == place.partial:
            continue
        if request.dest is not None:
            # All generations of a DEST have the one lock that is held here.
            remove_copy(folder)
            continue
        root = _root(request)
        with Lock(_lock_path(root, f"{root}/copies/{os.path.basename(folder)}")) as lock:
            if lock.try_acquire() and os.path.isdir(folder):
                remove_copy(folder)


def _refuse_full(path: str, size: int, reserve: int) -> None:
    free = _free(path)
    if size + reserve > free:
        raise NoSpace(
            f"`{path}` has room for {free} bytes, and the copy needs {size} more with {reserve} in reserve",
            hint=f"free {size + reserve - free} bytes there, or choose another disk with `--cache-dir`",
        )


def _report(planned: CachePlan, status: Literal["done", "unchanged", "checked"], began: float) -> CacheReport:
    return CacheReport(
        status=status,
        state=planned.state,
        source=planned.source,
        path=planned.path,
        generation=planned.generation,
        manifest_id=planned.manifest_id,
        files=len(planned.files),
        bytes=planned.bytes,
        bytes_copied=0,
        bytes_reused=planned.bytes if status == "unchanged" else 0,
        seconds=time.monotonic() - began,
        reason=planned.reason,
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
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return f"waiting for {who}, which makes this copy"
    return f"waiting for {who}, which makes this copy: {done / 1e6:.1f} of {total / 1e6:.1f} MB"


class _Shared:
    """Progress that those who wait for the lock can read, too."""

    def __init__(self, progress: Progress, lock: Lock) -> None:
        self._progress, self._holder = progress, lock
        self._counting = threading.Lock()
        self._done, self._total = 0, 0

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        self._done, self._total = 0, total or 0
        self._progress.phase(name, total=total, unit=unit)

    def advance(self, amount: int) -> None:
        with self._counting:
            self._done += amount
            self._holder.tell(done=self._done, total=self._total)
        self._progress.advance(amount)

    def note(self, message: str) -> None:
        self._progress.note(message)
