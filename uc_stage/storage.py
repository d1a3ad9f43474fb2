"""Folders, here or behind a URL: listing, reading, and the raw write operations that `publish` alone calls.

A local path, a FUSE mount of a volume and `file://` are `LocalFolder`; any other URL is fsspec's (`RemoteFolder`).
Every failure leaves as a `StageError` that names the path.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from uc_stage.errors import NotFound, StageError, Unavailable, VerificationFailed, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a folder: `path` is relative, with `/`; `mtime_ns` is None where the storage tells none."""

    path: str
    bytes: int
    mtime_ns: int | None


class Folder(Protocol):
    """A folder of files. Relative paths have `/`; a folder that does not exist holds no files."""

    url: str

    def exists(self) -> bool:
        """Whether the folder is there."""

    def entries(self) -> Iterator[Entry]:
        """All files below the folder, hidden ones too, in no order. Raises NotFound where there is no folder."""

    def stat(self, path: str) -> Entry | None:
        """One file, or None where there is none."""

    def locate(self, path: str) -> str:
        """The file's whole path or URL, for a message or a reader."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading at any offset."""

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


class LocalFolder:
    """A folder of this machine's file system, which may be a FUSE mount."""

    def __init__(self, path: str) -> None:
        self.url = os.path.abspath(os.path.expanduser(path))

    def exists(self) -> bool:
        """Whether the folder is there."""
        return os.path.isdir(self.url)

    def entries(self) -> Iterator[Entry]:
        """All files below the folder, hidden ones too, in no order."""
        pending = [""]
        while pending:
            prefix = pending.pop()
            with _translated(self.locate(prefix)), os.scandir(self.locate(prefix)) as found:
                for item in found:
                    if item.is_dir():
                        pending.append(f"{prefix}{item.name}/")
                    else:
                        stat = item.stat()
                        yield Entry(prefix + item.name, stat.st_size, stat.st_mtime_ns)

    def stat(self, path: str) -> Entry | None:
        """One file, or None where there is none."""
        with _translated(self.locate(path)):
            try:
                stat = os.stat(self.locate(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Entry(path, stat.st_size, stat.st_mtime_ns)

    def locate(self, path: str) -> str:
        """The file's absolute path."""
        return os.path.join(self.url, path)

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, refusing a link that leads out of the folder."""
        whole = self.locate(path)
        with _translated(whole):
            root, real = os.path.realpath(self.url), os.path.realpath(whole)
            if os.path.commonpath([root, real]) != root:
                raise VerificationFailed(f"`{whole}` is a link out of the folder", hint="put the file in its place")
            return open(whole, "rb")

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""
        with _translated(self.locate(path)), self.open(path) as file:
            return file.read()

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write, making its parents."""
        whole = self.locate(path)
        with _translated(whole):
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            return cast("BinaryIO", _Durable(whole))

    def put(self, path: str, data: bytes) -> None:
        """Puts a small file there by a rename, whole or not at all."""
        whole = self.locate(path)
        temporary = f"{whole}.{os.getpid()}.tmp"
        with _translated(whole):
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            try:
                with _Durable(temporary) as file:
                    file.write(data)
                os.replace(temporary, whole)
            except BaseException:
                self.remove(f"{path}.{os.getpid()}.tmp")
                raise
            sync_folder(os.path.dirname(whole))

    def rename(self, path: str, to: str) -> None:
        """Gives one file another name."""
        with _translated(self.locate(path)):
            os.rename(self.locate(path), self.locate(to))

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""
        with _translated(self.locate(path)):
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


class RemoteFolder:
    """A folder behind a URL that fsspec understands: `s3://`, `abfss://`, `gs://`, `https://`, `memory://`."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        with _translated(url):
            try:
                self.fs, root = fsspec.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise Unavailable(f"`{url}`: {error}", hint="install that protocol's package, such as s3fs") from error
        self.root: str = root.rstrip("/")

    def exists(self) -> bool:
        """Whether anything is there."""
        with _translated(self.url):
            return bool(self.fs.exists(self.root))

    def entries(self) -> Iterator[Entry]:
        """All files below the folder, hidden ones too, in no order."""
        with _translated(self.url):
            found: dict[str, dict[str, Any]] = self.fs.find(self.root, detail=True)
        if not found and not self.exists():
            raise NotFound(f"`{self.url}` is not there", hint="check the URL for a typing error")
        for whole, info in found.items():
            yield Entry(whole.removeprefix(self.root).lstrip("/"), int(info["size"] or 0), _mtime_ns(info))

    def stat(self, path: str) -> Entry | None:
        """One file, or None where there is none."""
        with _translated(self.locate(path)):
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
        with _translated(self.locate(path)):
            return cast("BinaryIO", self.fs.open(f"{self.root}/{path}", "rb"))

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""
        with _translated(self.locate(path)):
            return cast("bytes", self.fs.cat_file(f"{self.root}/{path}"))

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write."""
        with _translated(self.locate(path)):
            return cast("BinaryIO", self.fs.open(f"{self.root}/{path}", "wb"))

    def put(self, path: str, data: bytes) -> None:
        """Puts a small file there: an object store replaces an object whole."""
        with _translated(self.locate(path)):
            self.fs.pipe_file(f"{self.root}/{path}", data)

    def rename(self, path: str, to: str) -> None:
        """Gives one file another name: a copy inside the store, then a removal."""
        with _translated(self.locate(path)):
            self.fs.mv(f"{self.root}/{path}", f"{self.root}/{to}")

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""
        with _translated(self.locate(path)):
            try:
                self.fs.rm_file(f"{self.root}/{path}")
            except FileNotFoundError:
                return

    def prune(self, path: str) -> None:
        """Does nothing: an object store has no empty folders."""


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


def _mtime_ns(info: dict[str, Any]) -> int | None:
    """The modification time in what an fsspec file system tells of a file; each has a key and a type of its own."""
    keys = ("mtime", "LastModified", "last_modified", "updated", "created")
    value = next((info[key] for key in keys if info.get(key)), None)
    if isinstance(value, dt.datetime):
        value = value.timestamp()
    return int(value * 1_000_000_000) if isinstance(value, (int, float)) else None


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Turns what an operating system or a storage library raises into a `StageError` that names `where`."""
    try:
        yield
    except (StageError, GeneratorExit):
        raise
    except OSError as error:
        raise from_os_error(error, where) from error
    except Exception as error:
        # fsspec's implementations let the errors of the libraries below them through.
        message = f"`{where}`: {type(error).__name__}: {error}"
        raise Unavailable(message, hint="check the address and the credentials") from error
