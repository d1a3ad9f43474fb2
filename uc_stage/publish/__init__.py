"""The only package that puts bytes under a final name: generations of exports, and copies of a cache."""

from __future__ import annotations

from uc_stage.publish.copies import CopyPublication, is_marked, read_copy, read_journal, remove_copy, tag_cache
from uc_stage.publish.exports import Publication, now, read_manifest, running, strays, sweep
from uc_stage.publish.hashing import Written

__all__ = [
    "CopyPublication",
    "Publication",
    "Written",
    "is_marked",
    "now",
    "read_copy",
    "read_journal",
    "read_manifest",
    "remove_copy",
    "running",
    "strays",
    "sweep",
    "tag_cache",
]
