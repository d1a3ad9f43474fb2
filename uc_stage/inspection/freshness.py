"""Whether an export holds its table's newest version, and a copy its source's current generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from uc_stage import sources
from uc_stage.errors import StageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from uc_stage.manifest import CopyRecord, Manifest
    from uc_stage.model import Snapshot


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


def of_copy(record: CopyRecord) -> Freshness:
    """Compares a copy with the generation that its source has now."""
    try:
        now = sources.open_source(record.source).generation
    except StageError as error:
        return Freshness("unknown", error.message)
    if now == record.generation:
        return Freshness("fresh", f"`{record.source}` has this generation")
    return Freshness("stale", f"`{record.source}` has the generation {now} now")
