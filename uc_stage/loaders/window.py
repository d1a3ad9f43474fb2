"""A rolling window: files of a dataset lie on the local disk just as long as an epoch's order needs them.

They are fetched ahead in the order in which they are needed, each checked against its size and hash before it is
read, and removed once the last rows of them are decoded.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.crew import join
from uc_stage.errors import InvalidRequest, NotFound, VerificationFailed
from uc_stage.manifest import CopyRecord
from uc_stage.publish import OwnFolder, now
from uc_stage.sizes import format_size
from uc_stage.storage import open_folder
from uc_stage.transfer import DEFAULT_JOBS, copy_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from uc_stage.loaders.files import Files
    from uc_stage.loaders.order import Window
    from uc_stage.model import CopyFile

_LEAST_JOBS = 4
_KEEP = "an export that is written again meanwhile leaves its files with `--keep 1`; what is damaged tells"


class _StoppedError(Exception):
    """Ends the fetching threads: nobody reads any more."""


@dataclass(slots=True)
class _Stay:
    """One stay of a file in the window, from its fetch until so many windows of the order have read it."""

    path: str
    file: CopyFile
    readers: int = 0
    local: str | None = None


class RollingWindow:
    """The files that one reader needs, in its own part of the window; `close` ends it."""

    def __init__(self, files: Files, order: Sequence[Window], size: int, readers: int, root: str) -> None:
        """Begins to fetch.

        Args:
            files: the dataset.
            order: the windows that will be read, in their order.
            size: bytes of the whole window.
            readers: how many processes of this node share it, each with an equal part of its own.
            root: the cache folder.

        Raises:
            InvalidRequest: the part is too small for what is read at once. NoSpace: the disk has no room for it.
        """
        self._share = size // readers
        known = {path: file for (path, _), file in zip(files.held, files.listed, strict=True)}
        self._stays, self._needed = _stays(order, known)
        refuse_small(size, readers, self._stays, _largest_run(order, known))
        self._changed = threading.Condition()
        self._coming: dict[str, deque[_Stay]] = {}
        for stay in self._stays:
            self._coming.setdefault(stay.file.path, deque()).append(stay)
        self._used = self._there = 0
        self._stopped = False
        self._failure: BaseException | None = None
        whole = sum(stay.file.bytes for stay in self._stays)
        record = CopyRecord(files.folder, "", None, now(), (), "window")
        self._own = OwnFolder(root, record, min(self._share, whole))
        self._folder = open_folder(files.folder)
        self._jobs = max(_LEAST_JOBS, DEFAULT_JOBS // readers)
        self._thread = threading.Thread(target=self._fetch, name="uc-stage-window", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[dict[str, str]]:
        """The local paths of the files that the `number`-th window of the order needs, once they are there.

        Afterwards those go that no later one needs; an error inside stops all.

        Raises:
            StageError: a file could not be fetched, or is not what the manifest says.
        """
        needed = self._needed[number]
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or all(stay.local for stay in needed))
                self._refuse_stopped()
                here = {stay.path: stay.local for stay in needed if stay.local}
            yield here
        except BaseException as error:
            self.stop(error)
            raise
        with self._changed:
            if not self._stopped:
                self._release(needed)

    def stop(self, error: BaseException | None = None) -> None:
        """Ends the fetches, and all that waits for them, which the first error is raised in."""
        with self._changed:
            if not self._stopped:
                self._stopped, self._failure = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Stops, and removes what there is."""
        self.stop()
        join([self._thread])
        self._own.close()

    def _release(self, needed: Iterable[_Stay]) -> None:
        for stay in needed:
            stay.readers -= 1
            if not stay.readers and stay.local is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(stay.local)
                self._used -= stay.file.bytes
                self._there -= stay.file.bytes
        self._own.tell(self._there)

    def _refuse_stopped(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise _StoppedError

    def temporary(self) -> str:
        """A path for a file that comes; called by the fetching threads, as what follows is."""
        return self._own.temporary()

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Takes a file that is whole and checked; it keeps its name, which nobody else knows."""
        with self._changed:
            self._refuse_stopped()
            self._coming[file.path].popleft().local = temporary
            self._there += file.bytes
            self._own.tell(self._there)
            self._changed.notify_all()

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        """Shows nothing."""

    def note(self, message: str) -> None:
        """Shows nothing."""

    def advance(self, amount: int) -> None:  # noqa: ARG002 - the protocol's
        """Ends a fetch between two ranges of a file, where nobody reads any more."""
        if self._stopped:
            raise _StoppedError

    def _takes(self, file: CopyFile) -> bool:
        """Whether there is room for the file that is next; then it is taken."""
        with self._changed:
            self._refuse_stopped()
            if self._used + file.bytes > self._share:
                return False
            self._used += file.bytes
            return True

    def _fetch(self) -> None:
        wanted = [stay.file for stay in self._stays]
        try:
            copy_files(self._folder, wanted, self, self._jobs, self, takes=self._takes, durable=False)
        except (NotFound, VerificationFailed) as error:
            self.stop(type(error)(error.message, hint=f"{_KEEP} uc-stage inspect {self._folder.url} --verify"))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self.stop(error)


def refuse_small(size: int, readers: int, files: Iterable[_Stay | CopyFile], at_once: int = 0) -> None:
    """Refuses a window whose parts are too small.

    Args:
        size: bytes of the window.
        readers: how many share it.
        files: those that will be in it, one at a time at least.
        at_once: bytes of those that are shuffled together.

    Raises:
        InvalidRequest: naming the largest file.
    """
    listed = [file.file if isinstance(file, _Stay) else file for file in files]
    largest = max(listed, key=lambda file: file.bytes, default=None)
    if largest is None or size // readers >= max(at_once, largest.bytes):
        return
    least = max(at_once, largest.bytes)
    together = f", and {format_size(at_once)} are shuffled together" if at_once > largest.bytes else ""
    raise InvalidRequest(
        f"`window` of {format_size(size)} leaves each of {readers} readers here {format_size(size // readers)}, "
        f"the largest file, `{largest.path}`, has {format_size(largest.bytes)}{together}",
        hint=f"give {least * readers * 2} bytes or more, so that the next files come while one is read; or take fewer "
        "workers, or export smaller files",
    )


def _stays(order: Sequence[Window], known: Mapping[str, CopyFile]) -> tuple[list[_Stay], list[list[_Stay]]]:
    """The files in the order in which they are needed, and of each window of the order those that it needs.

    A file comes again where the order comes back to it: where an epoch goes on that was left at several places.
    """
    found: list[_Stay] = []
    needed: list[list[_Stay]] = []
    here: dict[str, _Stay] = {}
    block = None
    for window in order:
        if window.block != block:
            block, here = window.block, {}
        needed.append([])
        for path in dict.fromkeys(part.path for part in window.parts):
            if path not in here:
                here[path] = _Stay(path, known[path])
                found.append(here[path])
            here[path].readers += 1
            needed[-1].append(here[path])
    return found, needed


def _largest_run(order: Sequence[Window], known: Mapping[str, CopyFile]) -> int:
    """The most bytes of files that one block has, all of which may be there at once."""
    most: dict[int, set[str]] = {}
    for window in order:
        most.setdefault(window.block, set()).update(part.path for part in window.parts)
    return max((sum(known[path].bytes for path in paths) for paths in most.values()), default=0)
