"""Where the files of one Delta table are, on this machine or in an object store, and what their failures mean.

pyarrow and the object stores below it raise few and general exceptions; what happened often stands in the text alone.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from uc_stage.errors import (
    AccessDenied,
    InvalidRequest,
    NotFound,
    StageError,
    Unavailable,
    Unsupported,
    VerificationFailed,
    from_os_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow.fs

OTHER_ENGINE = "run it where a Spark session reads the table: `--engine spark`"
_DAMAGED = "the log or a data file is damaged, or newer than this reader: try another version, or `--engine spark`"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)", re.DOTALL)
_MISSING = re.compile(r"Object at location .+? not found|No such file")
_DENIED = re.compile(
    r"\b40[13]\b|Access ?Denied|Forbidden|Permission ?denied|PermissionDenied|Unauthori[sz]ed|loading credentials"
    r"|InvalidAccessKeyId|SignatureDoesNotMatch",
    re.IGNORECASE,
)
_AWAY = re.compile(
    r"timed? ?out|sending request|connect|dns|unreachable|retries|\b50[0234]\b|Service ?Unavailable|Generic \w+ error",
    re.IGNORECASE,
)


class TableFiles:
    """The files below a table's location, and those elsewhere that its log names by a URL."""

    def __init__(self, location: str, options: Mapping[str, str], table: str) -> None:
        """Connects to a location.

        Args:
            location: an absolute path, or the URL of a folder here or in an object store.
            options: what deltalake's object stores take, such as credentials.
            table: how the user names the table, for messages.
        """
        self.location, self.table = location.removeprefix("file://"), table
        self.local = os.path.isabs(self.location)
        self._options = dict(options)
        self._stores: dict[str, Any] = {}

    def list(self, folder: str) -> list[pyarrow.fs.FileInfo]:
        """The files right in a folder of the table; none where it is not there."""
        import pyarrow.fs

        with self.named(folder):
            store, place = self._place(folder)
            found = self._store(store).get_file_info(pyarrow.fs.FileSelector(place, allow_not_found=True))
        return [info for info in found if info.type == pyarrow.fs.FileType.File]

    def open(self, path: str) -> Any:
        """Opens a file for reading at any offset.

        Args:
            path: decoded, below the table or an absolute URL.

        Raises:
            NotFound, AccessDenied, Unavailable: as the storage says.
        """
        with self.named(path):
            store, place = self._place(path)
            return self._store(store).open_input_file(place)

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        with self.named(path), self.open(path) as file:
            content: bytes = file.read()
        return content

    def decoded(self, path: str) -> str:
        """A path as the log has it, percent-decoded: below the table, or an absolute URL.

        Writers name one file of the table's own file system as `/a`, `file:/a` and `file:///a` alike.
        """
        url = _URL.fullmatch(path)
        if path.startswith("/"):
            return f"file:{unquote(path)}" if self.local else _root(self.location) + unquote(path)
        if url is not None and url[1] == "file":
            return f"file:{unquote(url[3])}"
        return unquote(path)

    def _place(self, path: str) -> tuple[str, str]:
        """The store of a file, none for this machine's disk, and its path there."""
        url = _URL.fullmatch(path)
        if url is None:
            return ("", os.path.join(self.location, path)) if self.local else (self.location, path)
        if url[1] != "file":
            return _root(path), url[3].lstrip("/")
        if not self.local:
            raise VerificationFailed(
                f"`{self.table}` lies in an object store, and its log names `{path}`, a file of some machine",
                hint="copy the table with its files, or export a version that names only its own",
            )
        return "", url[3]

    def _store(self, url: str) -> Any:
        if url not in self._stores:
            import pyarrow.fs

            if url:
                from deltalake.fs import DeltaStorageHandler

                self._stores[url] = pyarrow.fs.PyFileSystem(DeltaStorageHandler(url, self._options))
            else:
                self._stores[url] = pyarrow.fs.LocalFileSystem()
        return self._stores[url]

    @contextmanager
    def named(self, path: str) -> Iterator[None]:
        """Lets nothing but `StageError`s out of a call into pyarrow or an object store; `path` is the file's."""
        try:
            yield
        except (StageError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            # pyo3 derives its PanicException from BaseException, and deltalake raises bare Exceptions too.
            raise self._typed(error, path) from error

    def _typed(self, error: BaseException, path: str) -> StageError:
        text, table = str(error), self.table
        if type(error).__name__ == "PanicException":
            return Unsupported(f"the storage of `{table}` gave up on `{path}`: {_line(text)}", hint=OTHER_ENGINE)
        whole = path if path.startswith("/") else f"{self.location}/{path}"
        # pyarrow keeps the reason to itself where a file goes away between its opening and the look at its size.
        gone = _MISSING.search(text) or ("error stat()ing" in text and not os.path.exists(whole))
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and gone):
            return NotFound(
                f"`{path}`, a file of this version of `{table}`, is gone",
                hint="VACUUM or a person removed it: export a newer version with `@vN`, or restore the file",
            )
        if isinstance(error, OSError) and error.errno is not None:
            return from_os_error(error, whole)
        if "Unknown scheme" in text:
            return InvalidRequest(
                f"`{table}` is a URL of no storage that the local engine knows",
                hint="use a path, `s3://`, `abfss://`, `gs://` or a name of the catalog",
            )
        if _DENIED.search(text):
            return AccessDenied(
                f"`{table}`: {_line(text)}", hint="check the credentials in the environment, and the grants"
            )
        if _AWAY.search(text):
            return Unavailable(
                f"`{table}`: {_line(text)}", hint="try again; if it stays, check the address and the network"
            )
        return VerificationFailed(f"`{path}` of `{table}` cannot be read rightly: {_line(text)}", hint=_DAMAGED)


def damaged(table: str, what: str) -> VerificationFailed:
    """The error for a log or a data file that contradicts itself."""
    return VerificationFailed(f"`{table}` cannot be read rightly: {what}", hint=_DAMAGED)


def no_table(text: str) -> NotFound:
    """The error for a place that holds no Delta table."""
    return NotFound(f"`{text}` is no Delta table", hint="check the path; a table's folder holds `_delta_log`")


def _root(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _line(text: str) -> str:
    """The first line without colours, the reader's layers of prefixes and its stack of frames."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    first = re.split(r"\n|\s{2,}\d+: ", plain.strip())[0]
    first = re.sub(r"^(?:(?:External|Parquet|Kernel|Generic delta kernel)(?: error)?(?::| ->) ?)+", "", first)
    return first.rstrip(". ")[:300] or "no reason given"
