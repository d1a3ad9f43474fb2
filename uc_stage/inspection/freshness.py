"""Whether an export holds its table's newest version, and a copy its source's current generation."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from uc_stage import sources
from uc_stage.crew import join
from uc_stage.errors import StageError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from uc_stage.manifest import Manifest
    from uc_stage.model import CachedCopy, Snapshot

# So long a list of copies waits for their sources: a plain folder is listed for that, and a mount may hang.
_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Freshness:
    """The state and, in words, what it was compared with or why it is unknown."""

    state: Literal["fresh", "stale", "unknown"]
    detail: str


def of_export(manifest: Manifest, resolve: Callable[[str], Snapshot]) -> Freshness:
    """Compares an export with the newest version of its table, which `resolve` finds by the table's text."""
    mine = manifest.source
    if mine.query is not None:
        return Freshness("unknown", "the export of a query is compared by exporting it again")
    try:
        now = resolve(mine.table).source
    except StageError as error:
        return Freshness("unknown", error.message)
    if now.table_id != mine.table_id:
        return Freshness("stale", f"`{mine.table}` is another table now: it was made anew")
    if now.version == mine.version:
        return Freshness("fresh", f"version {now.version} is the newest of `{mine.table}`")
    behind = now.version - mine.version
    count = f"{abs(behind)} version{'' if abs(behind) == 1 else 's'} {'behind' if behind > 0 else 'ahead'}"
    return Freshness("stale", f"`{mine.table}` is at version {now.version}: {count}")


def of_copy(source: str, generation: str) -> Freshness:
    """Compares a copy with the generation that its source has now."""
    return _compared(source, generation, _generation_of(source))


def of_copies(copies: Sequence[CachedCopy], seconds: float = _SECONDS) -> list[CachedCopy]:
    """The copies with their freshness, as far as the sources tell it in so many seconds, all together."""
    asked = sorted({copy.source for copy in copies if copy.source is not None})
    found: dict[str, str | StageError] = {}

    def ask(source: str) -> None:
        # Whatever ends this thread, the source did not tell.
        found[source] = _generation_of(source)

    # A thread that hangs on a mount is left behind: it ends with the process.
    threads = [threading.Thread(target=ask, args=(source,), name="uc-stage-ask", daemon=True) for source in asked]
    for thread in threads:
        thread.start()
    join(threads, time.monotonic() + seconds)
    silent = Unavailable(f"it did not answer in {seconds:g} s")
    told = []
    for copy in copies:
        if copy.source is None or not copy.generation:
            told.append(copy)
            continue
        fresh = _compared(copy.source, copy.generation, found.get(copy.source, silent))
        told.append(dataclasses.replace(copy, freshness=fresh.state, freshness_detail=fresh.detail))
    return told


def _generation_of(source: str) -> str | StageError:
    try:
        return sources.open_source(source).generation
    except StageError as error:
        return error


def _compared(source: str, generation: str, now: str | StageError) -> Freshness:
    if isinstance(now, StageError):
        return Freshness("unknown", now.message)
    if now == generation:
        return Freshness("fresh", f"`{source}` has this generation")
    return Freshness("stale", f"`{source}` has the generation {now} now")
