"""What a folder is, here or behind a URL: listing, reading, and the raw write operations that `publish` alone calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from uc_stage.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator


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

    def ranges(self, path: str, *, once: bool = False) -> Ranges:
        """Opens a file for reading ranges of it, as `open` does, with no buffer and no read-ahead of its own.

        `once`: nobody reads it again soon, so that the kernel need not keep it either.
        """

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for one sequential write, making its parents; the bytes are durable once it is closed."""

    def put(self, path: str, data: bytes, mark: str = "") -> None:
        """Puts a small file there, whole or not at all, in place of what was there.

        What a run that is killed meanwhile leaves has `mark` in its name, and `TEMPORARY_SUFFIX` at its end.
        """

    def rename(self, path: str, to: str) -> None:
        """Gives one file another name, without its bytes passing through here."""

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""

    def prune(self, path: str, *, deep: bool = True) -> None:
        """Removes a folder below this one, if it is empty; `deep`: with the folders in it, as far as they are."""


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


class translated:  # noqa: N801 - it is used as a function; as a generator it would cost more than what it guards
    """Turns what an operating system raises into a `StageError` that names `where`."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise from_os_error(error, self._where) from error
