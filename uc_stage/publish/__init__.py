"""The only package that puts bytes under a final name: generations of exports, and copies of a cache."""

from __future__ import annotations

from uc_stage.publish.copies import (
    CopyPublication,
    foreign_file,
    is_derived,
    is_marked,
    is_same,
    read_copy,
    read_journal,
    read_partial,
    refuse_unmarked,
    remove_copy,
)
from uc_stage.publish.exports import Publication, now, read_manifest, running, strays, sweep
from uc_stage.publish.hashing import HashedFile, Written
from uc_stage.publish.roots import (
    Stays,
    empty_trash,
    evict,
    is_root,
    list_copies,
    lock_path,
    locks_folder,
    look_at_copy,
    prepare_root,
    refuse_unsafe_root,
    settled,
    space_lock_path,
    trash,
)
from uc_stage.publish.windows import OwnFolder

__all__ = [
    "CopyPublication",
    "HashedFile",
    "OwnFolder",
    "Publication",
    "Stays",
    "Written",
    "empty_trash",
    "evict",
    "foreign_file",
    "is_derived",
    "is_marked",
    "is_root",
    "is_same",
    "list_copies",
    "lock_path",
    "locks_folder",
    "look_at_copy",
    "now",
    "prepare_root",
    "read_copy",
    "read_journal",
    "read_manifest",
    "read_partial",
    "refuse_unmarked",
    "refuse_unsafe_root",
    "remove_copy",
    "running",
    "settled",
    "space_lock_path",
    "strays",
    "sweep",
    "trash",
]
