"""Whether an export holds its table's newest version, and a copy its source's current generation."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from typing import TYPE_CHECKING, Any

from uc_stage import sources
from uc_stage.errors import StageError, Unavailable
from uc_stage.inspection.patience import Asked
from uc_stage.model import Freshness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from uc_stage.manifest import CopyRecord, Manifest
    from uc_stage.model import CachedCopy, Snapshot
    from uc_stage.sources import CopySource

# So long a list of copies waits for their sources: a plain folder is listed for that, and a mount may hang.
_SECONDS = 3.0
# A copy can be used without its export's table, whose catalog may be out of reach.
_CATALOG_SECONDS = 10.0
# `v42-1f3a9c`
_GENERATION = re.compile(r"v(\d+)-[0-9a-f]{6}")
# The words of a variant that tell the form of a copy, not a part of its source.
_FORMS = frozenset({"as", "pack", "pack-size"})


def of_source(manifest: Manifest, resolve: Callable[[str], Snapshot], seconds: float = _CATALOG_SECONDS) -> Freshness:
    """Compares the export that a copy was made from with its table, as `of_export` does, for a bounded time."""
    told = Asked({"": lambda: of_export(manifest, resolve)}).answers(seconds)
    return told.get("", Freshness("unknown", f"`{manifest.source.table}` did not answer in {seconds:g} s"))


def of_export(manifest: Manifest, resolve: Callable[[str], Snapshot]) -> Freshness:
    """Compares an export with the newest version of its table, which `resolve` finds by the table's text."""
    mine = manifest.source
    if mine.query is not None:
        return Freshness("unknown", "the export of a query is compared by exporting it again")
    try:
        newest = resolve(mine.table)
    except StageError as error:
        return Freshness("unknown", error.message)
    now = newest.source
    if now.table_id != mine.table_id:
        return Freshness("stale", f"`{mine.table}` is another table now: it was made anew")
    if now.version == mine.version:
        return Freshness("fresh", f"version {now.version} is the newest of `{mine.table}`", 0, 0)
    more = None
    if newest.rows is not None and mine.where is None and mine.limit is None and mine.sample is None:
        more = newest.rows - manifest.rows - manifest.dropped
    behind = now.version - mine.version
    said = f"`{mine.table}` is at version {now.version}: {_versions(behind)}{_rows(more)}"
    return Freshness("stale", said, behind, more)


def of_copy(record: CopyRecord, manifest: Manifest | None, rows: int | None) -> tuple[Freshness, Manifest | None]:
    """Compares a copy of so many rows with what its source has now, and gives the manifest of that."""
    now = _asked(record.source)
    version = manifest.source.version if manifest else _version_of(record.generation)
    fresh = _compared(record.source, record.generation, now, version, rows if is_whole(record.variant) else None)
    return fresh, None if isinstance(now, StageError) else now.manifest


def is_whole(variant: str) -> bool:
    """Whether a copy's record tells that it holds all of its source, in whatever form."""
    try:
        words = shlex.split(variant)
    except ValueError:  # somebody changed the record
        return False
    return all(word.partition("=")[0] in _FORMS for word in words)


def of_copies(copies: Sequence[CachedCopy], seconds: float = _SECONDS) -> list[CachedCopy]:
    """The copies with their freshness, as far as the sources tell it in so many seconds, all together."""
    asked = sorted({copy.source for copy in copies if copy.source is not None})
    found = Asked({source: functools.partial(_asked, source) for source in asked}).answers(seconds)
    silent = Unavailable(f"it did not answer in {seconds:g} s")
    told = []
    for copy in copies:
        if copy.source is None or not copy.generation:
            told.append(copy)
            continue
        rows = copy.rows if is_whole(copy.variant) else None
        fresh = _compared(
            copy.source,
            copy.generation,
            found.get(copy.source, silent),
            copy.version or _version_of(copy.generation),
            rows,
        )
        changed: dict[str, Any] = {"freshness": fresh.state, "freshness_detail": fresh.detail}
        changed |= {"versions_behind": fresh.versions_behind, "rows_behind": fresh.rows_behind}
        told.append(dataclasses.replace(copy, **changed))
    return told


def _asked(source: str) -> CopySource | StageError:
    try:
        return sources.open_source(source)
    except StageError as error:
        return error


def _compared(
    source: str, generation: str, now: CopySource | StageError, version: int | None, rows: int | None
) -> Freshness:
    if isinstance(now, StageError):
        return Freshness("unknown", now.message)
    if now.generation == generation:
        return Freshness("fresh", f"`{source}` has this generation", 0, 0)
    said = f"`{source}` has the generation {now.generation} now"
    if now.manifest is None or version is None:
        return Freshness("stale", said)
    behind = now.manifest.source.version - version
    more = None if rows is None else now.manifest.rows - rows
    told = _versions(behind) if behind else "of the same version, exported anew"
    return Freshness("stale", f"{said}: {told}{_rows(more)}", behind, more)


def _version_of(generation: str) -> int | None:
    """The table's version in the name of an export's generation, which a copy as Arrow keeps without a manifest."""
    found = _GENERATION.fullmatch(generation)
    return int(found[1]) if found else None


def _versions(behind: int) -> str:
    count = abs(behind)
    return f"{count:,} version{'' if count == 1 else 's'} {'behind' if behind > 0 else 'ahead'}"


def _rows(more: int | None) -> str:
    """What stands after the versions: how many more rows the origin has now."""
    if more is None:
        return ""
    if not more:
        return ", it has as many rows"
    count = abs(more)
    return f", it has {count:,} row{'' if count == 1 else 's'} {'more' if more > 0 else 'fewer'}"
