"""A folder in the cache folder that one process has to itself while it lives, for files that come and go."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, NoSpace, StageError
from uc_stage.locks import Lock, read_holder, reserved
from uc_stage.publish.copies import CopyPublication, remove_copy
from uc_stage.publish.roots import PARTIAL, empty_trash, evict, lock_path, locks_folder, prepare_root, space_lock_path
from uc_stage.sizes import format_size
from uc_stage.storage import space_at

if TYPE_CHECKING:
    from uc_stage.manifest import CopyRecord

# The names of copies end in twelve digits of a digest.
_NAME = re.compile(r"window-\d{1,6}")
# To count the room takes a moment; to make some, as `cache` does, as long as a copy takes to be removed.
_WAIT_SECONDS = 600.0


class OwnFolder:
    """The folder `partial/window-N` with the lowest free N, marked as uc-stage's; its lock dies with its holder.

    To `prune` and to those who make room it is an unfinished copy: theirs to remove once its holder has ended. Whoever
    opens one removes all of them that are left.
    """

    def __init__(self, root: str, record: CopyRecord, size: int) -> None:
        """Opens a folder for files of `size` bytes, which others that count the room know of.

        Raises:
            NoSpace: there is no room for them. AccessDenied: the cache folder is not this user's alone.
            Busy: another process counts the room all the time.
        """
        self._pid = os.getpid()
        prepare_root(root)
        sweep(root)
        self._lock, path = _free(root)
        try:
            self._reserve(root, path, size)
            self._publication = CopyPublication(f"{root}/copies/{os.path.basename(path)}", path)
            self._publication.open(record)
        except BaseException:
            self._lock.close()
            raise

    def _reserve(self, root: str, path: str, size: int) -> None:
        with Lock(space_lock_path(root)) as counting:
            counting.acquire(_WAIT_SECONDS, lambda _: None)
            space = space_at(path)
            room = space.free - reserved(locks_folder(root), space.device)
            if room < size:
                raise NoSpace(
                    f"`{root}` has room for {format_size(room)}, and this reader's part of the window needs "
                    f"{format_size(size)}",
                    hint="free some there with `uc-stage prune`, choose another disk with `cache_dir`, or give a "
                    "smaller `window`",
                )
            self._lock.reserve(size, space.device)

    def temporary(self) -> str:
        """A path for a new file."""
        return self._publication.temporary()

    def tell(self, done: int) -> None:
        """Lets others know how many bytes lie here; cheap to over-call."""
        self._lock.tell(done=done)

    def close(self) -> None:
        """Removes the folder with all that is in it; not where this is a child of the process that opened it."""
        if self._pid != os.getpid():
            return
        # A thread that a mount holds may still write to it: then the next one removes it.
        with contextlib.suppress(StageError):
            remove_copy(self._publication.partial)
        self._lock.close()


def sweep(root: str) -> None:
    """Removes what processes that have ended left of such folders, also of those whose removal had begun."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(f"{root}/{PARTIAL}"):
            if _NAME.fullmatch(name):
                # One that was killed before it marked its folder left nothing in it, and the next one takes it over.
                with contextlib.suppress(InvalidRequest):
                    evict(root, f"{root}/{PARTIAL}/{name}")
    empty_trash(root)


def _free(root: str) -> tuple[Lock, str]:
    """The lock and the path of the first folder that nobody has."""
    number = 0
    while True:
        name = f"window-{number}"
        path = lock_path(root, f"{root}/copies/{name}")
        # Where a disk has no locks, everybody gets each.
        if not read_holder(path):
            lock = Lock(path)
            if lock.try_acquire():
                return lock, f"{root}/{PARTIAL}/{name}"
            lock.close()
        number += 1
