"""Folders of this machine's file system, a FUSE mount of a volume among them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from uc_stage.errors import StageError, Unsupported, VerificationFailed
from uc_stage.storage.durable import sync, sync_folder
from uc_stage.storage.folder import Entry, translated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from typing_extensions import Self

    from uc_stage.storage.folder import Ranges

    # What a thread of a listing is to do next: a method and its arguments.
    _Task = tuple[Any, ...]

# A stat or a listing on a volume is a round trip; so many are in flight at once.
_LISTERS = 128

# In one of many folders a thread takes so many looks or more.
_LOOKS = 16

# A look that takes longer was a round trip: the next ones in that folder go many at once.
_QUICK_SECONDS = 0.002

# The kernel reads so far ahead by itself.
_AHEAD_BYTES = 128 * 1024

# So much may wait in the page cache before the system is asked to begin with it.
_WRITEBACK_BYTES = 32 * 1024**2

# So often a new file's folders are made, where somebody removes them, and a file is opened that others replace.
_ATTEMPTS = 5

# What a run that was killed inside of `put` leaves has this at its end.
TEMPORARY_SUFFIX = ".tmp"


class _Below(NamedTuple):
    """A folder in a folder: its relative path with a final `/`, and the real paths from the root to it."""

    prefix: str
    above: tuple[str, ...]


class _Found(NamedTuple):
    """What a listing has found: files, folders, and what in a folder is yet to be looked at."""

    entries: list[Entry]
    folders: list[_Below]
    left: tuple[_Below, list[os.DirEntry[str]]]


class LocalFolder:
    """A folder of this machine's file system, which may be a FUSE mount."""

    def __init__(self, path: str) -> None:
        self.url = os.path.abspath(os.path.expanduser(path))
        self._above = os.path.join(self.url, "")

    def exists(self) -> bool:
        """Whether the folder is there."""
        return os.path.isdir(self.url)

    def entries(self, *, hidden: bool = True) -> Iterator[Entry]:
        """All files below the folder, in no order; links are followed inside the folder."""
        with translated(self.url):
            root = os.path.realpath(self.url)
        results: SimpleQueue[Future[_Found]] = SimpleQueue()
        with ThreadPoolExecutor(_LISTERS, "uc-stage-list") as pool:
            tasks: list[_Task] = [(self._scan, _Below("", (root,)), hidden)]
            under_way = 0
            try:
                while tasks or under_way:
                    for act, *given in tasks:
                        pool.submit(act, *given).add_done_callback(results.put)
                    under_way += len(tasks) - 1
                    entries, folders, (above, left) = results.get().result()
                    yield from entries
                    tasks = [(self._scan, folder, hidden) for folder in folders]
                    # A mount may take the names of one folder one after the other: then all threads would wait there.
                    size = max(-(-len(left) // _LISTERS), _LOOKS if under_way or folders else 1)
                    tasks += [(self._look, above, left[at : at + size]) for at in range(0, len(left), size)]
            finally:
                pool.shutdown(cancel_futures=True)

    def _scan(self, folder: _Below, hidden: bool) -> _Found:
        """Names what is in one folder; looks at it at once as long as that is quick, and gives the looks yet to take.

        A mount may tell of files as it names them, so that a look costs nothing before the next ones are named.
        """
        entries: list[Entry] = []
        folders: list[_Below] = []
        left: list[os.DirEntry[str]] = []
        quick = True
        with translated(self.locate(folder.prefix)):
            try:
                with os.scandir(self.locate(folder.prefix)) as found:
                    for item in found:
                        if not hidden and item.name.startswith("."):
                            continue
                        if quick:
                            began = time.monotonic()
                            seen, below, _ = self._look(folder, [item])
                            entries += seen
                            folders += below
                            quick = time.monotonic() - began < _QUICK_SECONDS
                        else:
                            left.append(item)
            except FileNotFoundError:
                if folder.prefix:
                    return _Found([], [], (folder, []))
                raise
        return _Found(entries, folders, (folder, left))

    def _look(self, folder: _Below, items: list[os.DirEntry[str]]) -> _Found:
        """Tells files from folders, which on a volume costs a round trip each; what went away meanwhile is neither."""
        entries: list[Entry] = []
        folders: list[_Below] = []
        for item in items:
            with translated(item.path):
                if item.is_symlink():
                    real = os.path.realpath(item.path, strict=True)
                    refuse_way_out(item.path, real, folder.above[0])
                else:
                    real = os.path.join(folder.above[-1], item.name)
                if item.is_file():
                    with contextlib.suppress(FileNotFoundError):
                        found = item.stat()
                        entries.append(Entry(folder.prefix + item.name, found.st_size, found.st_mtime_ns))
                elif item.is_dir():
                    if real in folder.above:
                        raise VerificationFailed(
                            f"`{item.path}` links to a folder that it lies in", hint="remove that link: it has no end"
                        )
                    folders.append(_Below(f"{folder.prefix}{item.name}/", (*folder.above, real)))
                elif os.path.lexists(item.path):
                    raise Unsupported(
                        f"`{item.path}` is neither a file nor a folder", hint="move that pipe, socket or device away"
                    )
        return _Found(entries, folders, (folder, []))

    def stat(self, path: str) -> Entry | None:
        """One file, or None where there is none."""
        with translated(self.locate(path)):
            try:
                found = os.stat(self.locate(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Entry(path, found.st_size, found.st_mtime_ns)

    def locate(self, path: str) -> str:
        """The file's absolute path."""
        return f"{self._above}{path}"

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, refusing a link that leads out of the folder."""
        with translated(self.locate(path)):
            return open(self._descriptor(path)[0], "rb")

    def ranges(self, path: str, *, once: bool = False) -> Ranges:
        """Opens a file for reading ranges of it, refusing a link that leads out of the folder."""
        with translated(self.locate(path)):
            return _LocalRanges(path, self.locate(path), *self._descriptor(path), once=once)

    def _descriptor(self, path: str) -> tuple[int, os.stat_result]:
        """A descriptor for reading, and what the file looked like just before."""
        whole = self.locate(path)
        # What the name leads to is found in one step, and looked at before it is opened: a pipe would wait for its
        # writer, and another user may change a link at any time.
        found = os.open(whole, os.O_PATH | os.O_CLOEXEC)
        try:
            refuse_way_out(whole, os.readlink(f"/proc/self/fd/{found}"), self.root)
            shown = os.fstat(found)
            if not stat.S_ISREG(shown.st_mode):
                raise Unsupported(f"`{whole}` is not a file", hint="move it away")
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC), shown
        finally:
            os.close(found)

    @functools.cached_property
    def root(self) -> str:
        """Where the folder really is; asked once, since each part of a path on a mount costs a round trip."""
        return os.path.realpath(self.url)

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""
        with translated(self.locate(path)):
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._read(path)
                except OSError as error:  # noqa: PERF203 - a read costs a thousand times more
                    # Another run put one in its place between the look and the open.
                    if error.errno != errno.ESTALE:
                        raise
            return self._read(path)

    def _read(self, path: str) -> bytes:
        with open(self._descriptor(path)[0], "rb") as file:
            return file.read()

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write, making its parents."""
        with translated(self.locate(path)):
            return cast("BinaryIO", _new_file(self.locate(path)))

    def put(self, path: str, data: bytes, mark: str = "", *, durable: bool = True) -> None:
        """Puts a small file there by a rename, whole or not at all; if not `durable`, it is synced later."""
        whole = self.locate(path)
        temporary = f"{path}.{mark}{'-' if mark else ''}{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        with translated(whole):
            try:
                with _new_file(self.locate(temporary), durable=durable) as file:
                    file.write(data)
                os.replace(self.locate(temporary), whole)
            except BaseException:
                # What stopped the write may well stop this too, and is what has to be told.
                with contextlib.suppress(StageError):
                    self.remove(temporary)
                raise
            if durable:
                sync_folder(os.path.dirname(whole))

    def rename(self, path: str, to: str) -> None:
        """Gives one file another name."""
        with translated(self.locate(path)):
            os.rename(self.locate(path), self.locate(to))

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""
        with translated(self.locate(path)):
            try:
                os.unlink(self.locate(path))
            except FileNotFoundError:
                return

    def prune(self, path: str, *, deep: bool = True) -> None:
        """Removes a folder below this one, if it is empty; `deep`: with the folders in it, as far as they are."""
        whole = self.locate(path)
        for folder in [found for found, _, _ in os.walk(whole, topdown=False)] if deep else [whole]:
            try:
                os.rmdir(folder)
            except OSError:  # noqa: PERF203 - each folder that is not empty stays, and its parents with it
                continue


def _new_file(path: str, *, durable: bool = True) -> _NewFile:
    """Makes a file and the folders above it, which another run may find empty and remove between the two."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return _NewFile(path, durable=durable)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return _NewFile(path, durable=durable)


class _NewFile:
    """A file that is written once, from the first byte to the last, and fsynced when it is closed if it is `durable`.

    A class of its own because a writer such as pyarrow's closes what it is given, and that is where the sync belongs.
    """

    def __init__(self, path: str, *, durable: bool) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 - `close` is this class's purpose
        self._durable = durable
        self._waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        """Writes, and has the system begin with its own writing now and then, or all of it would wait for the sync."""
        count = self._file.write(data)
        self._waiting += count
        if self._waiting >= _WRITEBACK_BYTES:
            self._waiting = 0
            with contextlib.suppress(OSError):  # it is advice, which a file system may refuse
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return count

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._file.flush()
            if self._durable:
                sync(self._file.fileno())
        finally:
            self._file.close()


class _LocalRanges:
    """A descriptor for ranges; reads may come from any thread."""

    def __init__(self, path: str, whole: str, descriptor: int, found: os.stat_result, *, once: bool) -> None:
        self._whole, self._descriptor = whole, descriptor
        self.told: Entry | None = Entry(path, found.st_size, found.st_mtime_ns)
        if once and found.st_size > _AHEAD_BYTES:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        # A mount has no block device; of a disk's pages, some may have been there before. Reads go through the page
        # cache at first: one that passes it cannot even be killed while a mount does not answer.
        self._drops = once and os.major(found.st_dev) == 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        with translated(self._whole):
            if self._drops and len(buffer) > _AHEAD_BYTES:
                # All requests go out at once.
                os.posix_fadvise(self._descriptor, offset, len(buffer), os.POSIX_FADV_WILLNEED)
            while done < len(buffer) and (got := os.preadv(self._descriptor, [buffer[done:]], offset + done)):
                done += got
            if self._drops:
                os.posix_fadvise(self._descriptor, offset, len(buffer), os.POSIX_FADV_DONTNEED)
        return done

    def forget(self) -> None:
        with translated(self._whole):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if self._drops:
            # Pages that a hung read holds are not forgotten.
            self._drops = not go_direct(self._descriptor, on=True)

    def close(self) -> None:
        os.close(self._descriptor)


def go_direct(descriptor: int, *, on: bool) -> bool:
    """Lets reads and writes of a descriptor pass by the page cache, or through it; False where they cannot."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True


def refuse_way_out(path: str, real: str, root: str) -> None:
    """Refuses a path that really leads to `real`, where that is not below the real path `root`."""
    if real != root and not real.startswith(os.path.join(root, "")):
        raise VerificationFailed(f"`{path}` is a link out of the folder", hint="put what it links to in its place")
