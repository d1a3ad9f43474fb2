"""The copies of this node: what each is of, who uses it, and what room they leave."""

from __future__ import annotations

import os

from uc_stage.model import CopiesReport
from uc_stage.publish import list_copies, refuse_unsafe_root
from uc_stage.storage import space_at


def run(cache_dir: str) -> CopiesReport:
    """Lists a cache folder; one that is not there holds no copies.

    Raises:
        AccessDenied: the cache folder is a link or another user's.
    """
    root = os.path.abspath(os.path.expanduser(cache_dir))
    refuse_unsafe_root(root)
    copies, space = list_copies(root), space_at(root)
    return CopiesReport(root, tuple(copies), sum(copy.bytes for copy in copies), space.free, space.in_memory)
