"""Folders, here or behind a URL: listing, reading, and the raw write operations that `publish` alone calls.

A local path, a FUSE mount of a volume and `file://` are `LocalFolder`; any other URL is fsspec's (`RemoteFolder`).
Every failure leaves as a `StageError` that names the path.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from uc_stage.errors import NotFound, StageError, Unavailable, Unsupported, VerificationFailed, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from typing_extensions import Self

    # What a thread of a listing is to do next: a method and its arguments.
    _Task = tuple[Any, ...]


# A stat or a listing on a volume is a round trip; so many are in flight at once.
_LISTERS = 32


# What a run that was killed inside of `put` leaves has this at its end.
TEMPORARY_SUFFIX = ".tmp"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a folder: `path` is relative, with `/`; `mtime_ns` is None where the storage tells none."""

    path: str
    bytes: int
    mtime_ns: int | None


class _Below(NamedTuple):
    """A folder in a folder: its relative path with a final `/`, and the real paths from the root to it."""

    prefix: str
    above: tuple[str, ...]


class Folder(Protocol):
    """A folder of files. Relative paths have `/`; a folder that does not exist holds no files."""

    url: str

    def exists(self) -> bool:
        """Whether the folder is there."""

    def entries(self, *, hidden: bool = True) -> Iterator[Entry]:
        """All files below the folder, in no order; without `hidden` none whose path has a name that begins with a dot.

        Raises:
            NotFound: no folder there, or a link to nothing in it. VerificationFailed: a link out of the folder, or to
            a folder above itself. Unsupported: a pipe, a socket or a device.
        """

    def stat(self, path: str) -> Entry | None:
        """One file, or None where there is none."""

    def locate(self, path: str) -> str:
        """The file's whole path or URL, for a message or a reader."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading at any offset."""

    def ranges(self, path: str) -> Ranges:
        """Opens a file for reading ranges of it, as `open` does, with no buffer and no read-ahead of its own."""

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write, making its parents; the bytes are durable once it is closed."""

    def put(self, path: str, data: bytes) -> None:
        """Puts a small file there, whole or not at all, in place of what was there."""

    def rename(self, path: str, to: str) -> None:
        """Gives one file another name, without its bytes passing through here."""

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""

    def prune(self, path: str) -> None:
        """Removes a folder below this one with the folders in it, as far as they are empty."""


class Ranges(Protocol):
    """A file that is open for reading ranges of it."""

    told: Entry | None
    """Size and time, where opening the file told them."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fills the buffer from the offset on, and gives the bytes read: fewer than its length at the file's end."""

    def forget(self) -> None:
        """Makes the next read ask the storage, whatever the kernel remembers of the file."""

    def close(self) -> None:
        """Lets go of the file."""


def open_folder(url: str) -> Folder:
    """Gives the folder at a path or URL, whether it exists or not.

    Raises:
        Unavailable: the URL's protocol needs a package that is not installed.
    """
    if url.startswith("dbfs:/Volumes/"):
        url = url.removeprefix("dbfs:")
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    return RemoteFolder(url) if "://" in url else LocalFolder(url)


def table_around(folder: Folder) -> str | None:
    """The Delta table that a folder is, or whose files it holds, as the folder of a partition does; None for others.

    Above a URL's folder nothing is looked for: each look costs a round trip, and a bucket has no parents to speak of.
    """
    if not isinstance(folder, LocalFolder):
        return folder.url if open_folder(folder.locate("_delta_log")).exists() else None
    above = os.path.realpath(folder.url)
    while True:
        if os.path.isdir(os.path.join(above, "_delta_log")):
            return above
        if above == os.path.dirname(above):
            return None
        above = os.path.dirname(above)


class LocalFolder:
    """A folder of this machine's file system, which may be a FUSE mount."""

    def __init__(self, path: str) -> None:
        self.url = os.path.abspath(os.path.expanduser(path))

    def exists(self) -> bool:
        """Whether the folder is there."""
        return os.path.isdir(self.url)

    def entries(self, *, hidden: bool = True) -> Iterator[Entry]:
        """All files below the folder, in no order; links are followed inside the folder."""
        with translated(self.url):
            root = os.path.realpath(self.url)
        results: SimpleQueue[Future[tuple[list[Entry], list[_Task]]]] = SimpleQueue()
        with ThreadPoolExecutor(_LISTERS, "uc-stage-list") as pool:
            tasks: list[_Task] = [(self._scan, _Below("", (root,)), hidden)]
            under_way = 0
            try:
                while tasks or under_way:
                    for act, *given in tasks:
                        pool.submit(act, *given).add_done_callback(results.put)
                    under_way += len(tasks) - 1
                    entries, tasks = results.get().result()
                    yield from entries
            finally:
                pool.shutdown(cancel_futures=True)

    def _scan(self, folder: _Below, hidden: bool) -> tuple[list[Entry], list[_Task]]:
        """Names what is in one folder, and gives the looks to take at that."""
        with translated(self.locate(folder.prefix)):
            try:
                with os.scandir(self.locate(folder.prefix)) as found:
                    items = [item for item in found if hidden or not item.name.startswith(".")]
            except FileNotFoundError:
                if folder.prefix:
                    return [], []
                raise
        size = -(-len(items) // _LISTERS) or 1
        return [], [(self._look, folder, items[at : at + size], hidden) for at in range(0, len(items), size)]

    def _look(self, folder: _Below, items: list[os.DirEntry[str]], hidden: bool) -> tuple[list[Entry], list[_Task]]:
        """Tells files from folders, which on a volume costs a round trip each; what went away meanwhile is neither."""
        entries: list[Entry] = []
        scans: list[_Task] = []
        for item in items:
            with translated(item.path):
                if item.is_symlink():
                    real = os.path.realpath(item.path, strict=True)
                    _refuse_way_out(item.path, real, folder.above[0])
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
                    scans.append((self._scan, _Below(f"{folder.prefix}{item.name}/", (*folder.above, real)), hidden))
                elif os.path.lexists(item.path):
                    raise Unsupported(
                        f"`{item.path}` is neither a file nor a folder", hint="move that pipe, socket or device away"
                    )
        return entries, scans

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
        return os.path.join(self.url, path)

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, refusing a link that leads out of the folder."""
        with translated(self.locate(path)):
            return open(self._descriptor(path), "rb")

    def ranges(self, path: str) -> Ranges:
        """Opens a file for reading ranges of it, refusing a link that leads out of the folder."""
        with translated(self.locate(path)):
            return _LocalRanges(path, self.locate(path), self._descriptor(path))

    def _descriptor(self, path: str) -> int:
        whole = self.locate(path)
        root = os.path.realpath(self.url)
        _refuse_way_out(whole, os.path.realpath(whole), root)
        # Without O_NONBLOCK a pipe of that name would wait for its writer.
        descriptor = os.open(whole, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise Unsupported(f"`{whole}` is not a file", hint="move it away")

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""
        with translated(self.locate(path)), self.open(path) as file:
            return file.read()

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write, making its parents."""
        whole = self.locate(path)
        with translated(whole):
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            return cast("BinaryIO", _Durable(whole))

    def put(self, path: str, data: bytes) -> None:
        """Puts a small file there by a rename, whole or not at all."""
        whole = self.locate(path)
        temporary = f"{path}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        with translated(whole):
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            try:
                with _Durable(self.locate(temporary)) as file:
                    file.write(data)
                os.replace(self.locate(temporary), whole)
            except BaseException:
                self.remove(temporary)
                raise
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

    def prune(self, path: str) -> None:
        """Removes a folder below this one with the folders in it, as far as they are empty."""
        for folder, _, _ in os.walk(self.locate(path), topdown=False):
            try:
                os.rmdir(folder)
            except OSError:  # noqa: PERF203 - each folder that is not empty stays, and its parents with it
                continue


class _Durable:
    """A file that is written once, from the first byte to the last, and fsynced when it is closed.

    A class of its own because a writer such as pyarrow's closes what it is given, and that is where the sync belongs.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 - `close` is this class's purpose

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._file.flush()
            sync(self._file.fileno())
        finally:
            self._file.close()


class _LocalRanges:
    """A descriptor for ranges; reads may come from any thread."""

    def __init__(self, path: str, whole: str, descriptor: int) -> None:
        self._whole, self._descriptor = whole, descriptor
        found = os.fstat(descriptor)
        self.told: Entry | None = Entry(path, found.st_size, found.st_mtime_ns)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        with translated(self._whole):
            while done < len(buffer) and (got := os.preadv(self._descriptor, [buffer[done:]], offset + done)):
                done += got
        return done

    def forget(self) -> None:
        with translated(self._whole):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)


class RemoteFolder:
    """A folder behind a URL that fsspec understands: `s3://`, `abfss://`, `gs://`, `https://`, `memory://`."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        with _foreign(url):
            try:
                self.fs, root = fsspec.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise Unavailable(f"`{url}`: {error}", hint="install that protocol's package, such as s3fs") from error
        self.root: str = root.rstrip("/")

    def exists(self) -> bool:
        """Whether anything is there."""
        with _foreign(self.url):
            return bool(self.fs.exists(self.root))

    def entries(self, *, hidden: bool = True) -> Iterator[Entry]:
        """All files below the folder, in no order."""
        with _foreign(self.url):
            self.fs.invalidate_cache()
            found: dict[str, dict[str, Any]] = self.fs.find(self.root, detail=True)
        if not found and not self.exists():
            raise NotFound(f"`{self.url}` is not there", hint="check the URL for a typing error")
        for whole, info in found.items():
            path = whole.removeprefix(self.root).removeprefix("/")
            if hidden or not any(part.startswith(".") for part in path.split("/")):
                yield Entry(path, int(info["size"] or 0), _mtime_ns(info))

    def stat(self, path: str) -> Entry | None:
        """One file, or None where there is none."""
        with _foreign(self.locate(path)):
            # fsspec remembers listings, and file systems for the life of a process.
            self.fs.invalidate_cache(f"{self.root}/{path}")
            try:
                info = self.fs.info(f"{self.root}/{path}")
            except FileNotFoundError:
                return None
        return Entry(path, int(info["size"] or 0), _mtime_ns(info))

    def locate(self, path: str) -> str:
        """The file's URL."""
        return f"{self.url}/{path}"

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading at any offset."""
        with _foreign(self.locate(path)):
            return cast("BinaryIO", self.fs.open(f"{self.root}/{path}", "rb"))

    def ranges(self, path: str) -> Ranges:
        """Gives ranges of a file, each by a request of its own."""
        return _RemoteRanges(self, path)

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""
        with _foreign(self.locate(path)):
            return cast("bytes", self.fs.cat_file(f"{self.root}/{path}"))

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write."""
        with _foreign(self.locate(path)):
            return cast("BinaryIO", self.fs.open(f"{self.root}/{path}", "wb"))

    def put(self, path: str, data: bytes) -> None:
        """Puts a small file there: an object store replaces an object whole."""
        with _foreign(self.locate(path)):
            self.fs.pipe_file(f"{self.root}/{path}", data)

    def rename(self, path: str, to: str) -> None:
        """Gives one file another name: a copy inside the store, then a removal."""
        with _foreign(self.locate(path)):
            self.fs.mv(f"{self.root}/{path}", f"{self.root}/{to}")

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""
        with _foreign(self.locate(path)):
            try:
                self.fs.rm_file(f"{self.root}/{path}")
            except FileNotFoundError:
                return

    def prune(self, path: str) -> None:
        """Does nothing: an object store has no empty folders."""


class _RemoteRanges:
    """Ranges of an object; there is nothing to open."""

    def __init__(self, folder: RemoteFolder, path: str) -> None:
        self._folder, self._path = folder, path
        self.told: Entry | None = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if not buffer:
            # A store refuses a range of no bytes.
            return 0
        whole, end = f"{self._folder.root}/{self._path}", offset + len(buffer)
        with _foreign(self._folder.locate(self._path)):
            # By name: s3fs puts another parameter before `start`.
            data = self._folder.fs.cat_file(whole, start=offset, end=end)
        if len(data) > len(buffer):
            raise Unavailable(
                f"`{self._folder.locate(self._path)}`: its server gives whole files alone, and no ranges of them",
                hint="download it, and cache the local folder",
            )
        buffer[: len(data)] = data
        return len(data)

    def forget(self) -> None:
        """Does nothing: no kernel stands between."""

    def close(self) -> None:
        """Does nothing."""


def sync(descriptor: int) -> None:
    """Syncs a descriptor; a mount that has no fsync (a volume may not) makes bytes durable when they are closed."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_way_out(path: str, real: str, root: str) -> None:
    if os.path.commonpath([root, real]) != root:
        raise VerificationFailed(f"`{path}` is a link out of the folder", hint="put what it links to in its place")


def _mtime_ns(info: dict[str, Any]) -> int | None:
    """The modification time in what an fsspec file system tells of a file; each has a key and a type of its own."""
    keys = ("mtime", "LastModified", "last_modified", "updated", "created")
    value = next((info[key] for key in keys if info.get(key)), None)
    if isinstance(value, dt.datetime):
        value = value.timestamp()
    return int(value * 1_000_000_000) if isinstance(value, (int, float)) else None


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """Turns what an operating system raises into a `StageError` that names `where`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, where) from error


@contextlib.contextmanager
def _foreign(where: str) -> Iterator[None]:
    """Turns whatever a storage library raises into a `StageError` that names `where`."""
    try:
        with translated(where):
            yield
    except StageError:
        raise
    except Exception as error:
        # fsspec's implementations let the errors of the libraries below them through.
        message = f"`{where}`: {type(error).__name__}: {error}"
        raise Unavailable(message, hint="check the address and the credentials") from error
