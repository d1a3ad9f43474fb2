"""What there is of a copy, told from records, sizes and times."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from uc_stage.caching.forming import weigh
from uc_stage.caching.places import name_of, place_of, refuse_nesting, root_of, variant_of
from uc_stage.caching.room import needed
from uc_stage.errors import InvalidRequest, StageError, VerificationFailed
from uc_stage.manifest import CopyRecord
from uc_stage.model import CachePlan
from uc_stage.publish import is_same, read_copy, read_journal, read_partial
from uc_stage.storage import space_at, translated

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from uc_stage.forms import Form, Outputs
    from uc_stage.model import CacheRequest, CopyFile, CopyState
    from uc_stage.progress import Progress


def survey(
    request: CacheRequest,
    url: str,
    generation: str,
    manifest_id: str | None,
    files: tuple[CopyFile, ...],
    form: Form | None,
    weighing: Progress | None = None,
) -> CachePlan:
    """What there is of a generation's copy, and what is still to do.

    The bytes that a form's outputs will have are estimated where somebody is to be told of that: it takes its time.
    """
    place = place_of(request, url, generation, manifest_id)
    refuse_nesting(place.path, url)
    if request.dest is not None:
        _refuse_taken(place.path, url)
    record = record_at(place.path, request)
    outputs: Outputs = form.outputs(files) if form else {file.path: (file,) for file in files}
    asked = {path: None if form else parts[0] for path, parts in outputs.items()}
    total = sum(file.bytes for file in files)
    held: dict[str, int] = {}
    wanted = CopyRecord(url, generation, manifest_id, "", files, variant_of(request))
    lack = lack_of(place.path, record, wanted, outputs if form else None)
    state: CopyState
    if record is not None and lack is None:
        state, reason = "fresh", f"the copy holds generation `{generation}`, whole"
        held = {file.path: file.bytes for file in record.files}
    elif record is not None and _what(record) == _what(wanted):
        state, reason = "partial", f"the copy is damaged: {lack}"
        held = _held(place.path, record.files, asked)
    elif read_partial(place.partial) is not None:
        noted = tuple(read_journal(place.partial).values())
        held = _held(place.partial, noted, asked)
        done = sum(file.bytes for path in held for file in outputs[path])
        state, reason = "partial", f"{done} of {total} bytes are copied"
    elif record is not None and (record.generation, record.manifest_id) == (generation, manifest_id):
        state, reason = "absent", f"there is another part or form of it: `{record.variant or 'all its files'}`"
    elif other := record or _other(request, wanted):
        state = "stale"
        reason = f"a copy of {other.created_at} holds generation `{other.generation}`; now it is `{generation}`"
    else:
        state, reason = "absent", "there is no copy of it here"
    if request.dest is not None and record is not None and not request.check:
        _refuse_other(place.path, record, wanted)
    space = space_at(place.path)
    lacking = {path: parts for path, parts in outputs.items() if request.force or path not in held}
    missing = [file for parts in lacking.values() for file in parts]
    sizes, scratch = {file.path: file.bytes for file in missing}, 0
    if form and state == "fresh":
        assert record is not None
        total = sum(file.bytes for file in record.files)
    if form and lacking and weighing:
        sizes, scratch = weigh(form, url, lacking, {}, weighing), form.scratch(lacking)
        total = sum(sizes.values()) + sum(held[path] for path in held if path not in sizes)
    return CachePlan(
        request=request,
        source=url,
        generation=generation,
        manifest_id=manifest_id,
        path=place.path,
        state=state,
        files=files,
        bytes=total,
        bytes_to_copy=sum(file.bytes for file in missing),
        bytes_free=space.free,
        reason=reason,
        bytes_needed=needed(request, total, sizes.values(), space) + scratch,
        in_memory=space.in_memory,
        variant=wanted.variant,
        file_count=len(record.files) if record is not None and state == "fresh" else len(outputs),
        outputs=sizes if form and weighing else {},
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


def _refuse_other(path: str, record: CopyRecord, wanted: CopyRecord) -> None:
    """Refuses a DEST that holds another generation, part or form of the source."""
    if record.generation != wanted.generation:
        raise InvalidRequest(
            f"`{path}` holds generation `{record.generation}` of `{wanted.source}`, "
            f"which is at `{wanted.generation}` now",
            hint=f"choose another DEST, or none: then each generation has a path of its own; or uc-stage prune {path}",
        )
    if record.variant != wanted.variant:
        raise InvalidRequest(
            f"`{path}` holds another part or form of `{wanted.source}`: `{record.variant or 'all its files'}`",
            hint=f"choose another DEST, or none: then each has a path of its own; or uc-stage prune {path}",
        )


def record_at(path: str, request: CacheRequest) -> CopyRecord | None:
    """The record of the copy at a path; below the cache folder one that is damaged is none, and is made anew."""
    try:
        return read_copy(path)
    except VerificationFailed:
        if request.dest is not None:
            raise
        return None


def lack_of(
    path: str, record: CopyRecord | None, wanted: CopyRecord, outputs: Collection[str] | None = None
) -> str | None:
    """Why the folder is not the copy that is wanted, told from its record and from sizes and times; None if it is.

    `outputs` are the paths of a copy whose files are made from those that `wanted` names.
    """
    if record is None:
        return "there is no record"
    if _what(record) != _what(wanted):
        return "its record is of something else"
    recorded = {file.path: file for file in record.files}
    if outputs is not None:
        if lost := next((name for name in outputs if name not in recorded), None):
            return f"its record does not hold `{lost}`"
        gone = next((file for file in record.files if not _is_there(path, file)), None)
        return f"`{gone.path}` is gone or was changed" if gone else None
    for file in wanted.files:
        known = recorded.get(file.path)
        if known is None or known.bytes != file.bytes or file.xxh3_128 not in (None, known.xxh3_128):
            return f"its record does not hold `{file.path}` as the source does"
        if not _is_there(path, known):
            return f"`{file.path}` is gone or was changed"
    return None


def _what(record: CopyRecord) -> tuple[str, str, str | None, str]:
    return record.source, record.generation, record.manifest_id, record.variant


def _is_there(path: str, file: CopyFile) -> bool:
    """Whether a file has the size and the time that its record tells."""
    whole = os.path.join(path, file.path)
    with translated(whole):
        try:
            found = os.lstat(whole)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (file.bytes, file.mtime_ns)


def _held(path: str, noted: tuple[CopyFile, ...], wanted: Mapping[str, CopyFile | None]) -> dict[str, int]:
    """The wanted files that a folder holds, as far as sizes and times tell, with their bytes.

    What is wanted at a path is a file of the source, or None for what is made of several.
    """
    return {
        file.path: file.bytes
        for file in noted
        if file.path in wanted
        and ((asked := wanted[file.path]) is None or is_same(asked, file))
        and _is_there(path, file)
    }


def _other(request: CacheRequest, wanted: CopyRecord) -> CopyRecord | None:
    """The newest copy of another generation of a source, in the same part and form, in the cache folder."""
    if request.dest is not None:
        return None
    copies = copies_of(f"{root_of(request)}/copies", f"{name_of(wanted.source)}-", wanted.source)
    found = [record for _, record in copies if record.variant == wanted.variant]
    return max(found, key=lambda record: record.created_at, default=None)


def copies_of(folder: str, prefix: str, url: str) -> list[tuple[str, CopyRecord]]:
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
