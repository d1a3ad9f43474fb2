"""`prune`: removes copies of a cache folder that nobody uses, and what unfinished runs left."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from uc_stage.errors import Busy, InvalidRequest, NotFound
from uc_stage.holders import ancestors, let_go, named
from uc_stage.model import CachedCopy, Kept, PrunePlan, PruneReport
from uc_stage.progress import SILENT
from uc_stage.publish import (
    Stays,
    empty_trash,
    evict,
    list_copies,
    look_at_copy,
    prepare_root,
    refuse_unmarked,
    refuse_unsafe_root,
    settled,
    trash,
)
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from uc_stage.model import PruneRequest
    from uc_stage.progress import Progress


def run(request: PruneRequest, progress: Progress = SILENT) -> PruneReport:
    """Plans and executes. Raises what `plan` and `execute` raise."""
    began = time.monotonic()
    progress.phase("list", unit="files")
    return replace(execute(plan(request), progress), seconds=time.monotonic() - began)


def plan(request: PruneRequest) -> PrunePlan:
    """Says what `prune` would remove; nothing is removed.

    Raises:
        InvalidRequest: a path without uc-stage's marker, or with a condition, or a condition that cannot be met.
        NotFound: no such path. Busy: a live process uses a copy that was named.
        AccessDenied: the cache folder is a link or another user's.
    """
    root = os.path.abspath(os.path.expanduser(request.cache_dir))
    refuse_unsafe_root(root)
    for flag, value in (("--older-than", request.older_than), ("--max-size", request.max_size)):
        if value is not None and not value >= 0:
            raise InvalidRequest(f"`{flag} {value}` is less than nothing", hint=f"give {flag} 0 or more")
    if request.paths:
        if (request.older_than, request.max_size, request.source) != (None, None, None):
            raise InvalidRequest(
                "a path and a condition both say what to remove", hint="give paths, or conditions without one"
            )
        copies = [copy for path in dict.fromkeys(request.paths) if (copy := _at(root, path))]
        return _planned(request, root, copies, ())
    chosen, kept = _chosen(request, list_copies(root))
    return _planned(request, root, chosen, tuple(kept))


def execute(planned: PrunePlan, progress: Progress = SILENT) -> PruneReport:
    """Removes what was planned, unless somebody uses it meanwhile, and finishes what killed runs began to remove.

    Raises:
        Busy: a live process uses a copy that was named. InvalidRequest: it holds a file of a user's.
        AccessDenied: as the file system says.
    """
    began, root, paths = time.monotonic(), planned.cache_dir, planned.request.paths
    if planned.copies or os.path.isdir(root):
        prepare_root(root)
    empty_trash(root)
    for path in paths:
        empty_trash(root, beside=settled(root, path))
    removed, kept = [], list(planned.kept)
    progress.phase("remove", total=planned.bytes)
    for copy in planned.copies:
        if paths:
            # Who names a copy gives up what he holds of it himself.
            let_go(copy.path)
        why = evict(root, copy.path, forgiven=ancestors() if paths else frozenset())
        if why and paths:
            raise _refusal(copy.path, why)
        if why:
            kept.append(Kept(copy.path, why.reason))
        else:
            removed.append(copy)
        progress.advance(copy.bytes)
    return PruneReport(
        status="done" if removed else "unchanged",
        cache_dir=root,
        removed=tuple(copy.path for copy in removed),
        bytes=sum(copy.bytes for copy in removed),
        kept=tuple(kept),
        seconds=time.monotonic() - began,
    )


def _planned(request: PruneRequest, root: str, copies: list[CachedCopy], kept: tuple[Kept, ...]) -> PrunePlan:
    return PrunePlan(request, root, tuple(copies), sum(copy.bytes for copy in copies), kept)


def _at(root: str, text: str) -> CachedCopy | None:
    """The copy that was named; None where a killed run had begun to remove it."""
    if not text.strip():
        raise InvalidRequest("COPY is empty", hint="name the path of a copy, as `uc-stage inspect` lists it")
    path = settled(root, text)
    if not os.path.lexists(path):
        if trash(root, path):
            return None
        raise NotFound(f"`{path}` is not there", hint=f"`uc-stage inspect --cache-dir {root}` lists the copies")
    if os.path.islink(path):
        raise InvalidRequest(f"`{path}` is a link", hint=f"name what it links to, `{os.path.realpath(path)}`")
    refuse_unmarked(path)
    copy = look_at_copy(root, path)
    mine = ancestors()
    if others := [holder for holder in copy.holders if holder.pid not in mine and holder.pid is not None]:
        raise _refusal(path, Stays(f"{named(others[0].pid)} uses it"))
    return copy


def _chosen(request: PruneRequest, copies: list[CachedCopy]) -> tuple[list[CachedCopy], list[Kept]]:
    """The copies that the conditions meet, and those of them that live processes use."""
    if request.source is not None:
        url = open_folder(request.source).url
        copies = [copy for copy in copies if copy.source == url]
    chosen: list[CachedCopy] = []
    kept: list[Kept] = []

    def choose(copy: CachedCopy) -> bool:
        if copy.holders:
            kept.append(Kept(copy.path, f"{named(copy.holders[0].pid)} uses it"))
            return False
        chosen.append(copy)
        return True

    if request.older_than is not None:
        rest = [copy for copy in copies if not (copy.idle_seconds >= request.older_than and choose(copy))]
    elif request.max_size is None:
        # Of one source all of it; of all sources only what nobody can use.
        rest = [copy for copy in copies if not ((request.source or copy.kind == "partial") and choose(copy))]
    else:
        rest = copies
    if request.max_size is not None:
        size = sum(copy.bytes for copy in rest)
        refused = {each.path for each in kept}
        for copy in rest:
            if size <= request.max_size:
                break
            if copy.path not in refused and choose(copy):
                size -= copy.bytes
    return chosen, kept


def _refusal(path: str, why: Stays) -> Busy | InvalidRequest:
    message = f"`{path}` stays: {why.reason}"
    if why.busy:
        return Busy(message, hint="end that process first, or wait for its end")
    return InvalidRequest(message, hint="move away what is yours, or remove that folder yourself")
