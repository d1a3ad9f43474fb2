"""Folders behind a URL, by fsspec."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from uc_stage.errors import NotFound, StageError, Unavailable
from uc_stage.storage.folder import Entry, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.storage.folder import Ranges


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

    def ranges(self, path: str, *, once: bool = False) -> Ranges:  # noqa: ARG002 - no kernel stands between
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

    def put(self, path: str, data: bytes, mark: str = "") -> None:  # noqa: ARG002 - an object needs no other name first
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

    def prune(self, path: str, *, deep: bool = True) -> None:
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


def _mtime_ns(info: dict[str, Any]) -> int | None:
    """The modification time in what an fsspec file system tells of a file; each has a key and a type of its own."""
    keys = ("mtime", "LastModified", "last_modified", "updated", "created")
    value = next((info[key] for key in keys if info.get(key)), None)
    if isinstance(value, dt.datetime):
        value = value.timestamp()
    return int(value * 1_000_000_000) if isinstance(value, (int, float)) else None


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
