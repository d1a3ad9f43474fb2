"""The copies of this node: what each is of, who uses it, and what room they leave."""

from __future__ import annotations

import os

from uc_stage.inspection.freshness import of_copies
from uc_stage.model import CopiesReport
from uc_stage.publish import is_root, list_copies, refuse_unsafe_root
from uc_stage.storage import space_at


def is_cache(target: str) -> bool:
    """Whether a target is a cache folder: then its copies are what is asked for."""
    return "://" not in target and is_root(os.path.expanduser(target))


def run(cache_dir: str) -> CopiesReport:
    """Lists a cache folder, and asks the copies' sources for a moment what they hold now.

    A folder that is not there holds no copies.

    Raises:
        AccessDenied: the cache folder is a link or another user's.
    """
    root = os.path.abspath(os.path.expanduser(cache_dir))
    refuse_unsafe_root(root)
    copies, space = of_copies(list_copies(root)), space_at(root)
    return CopiesReport(root, tuple(copies), sum(copy.bytes for copy in copies), space.free, space.in_memory)
