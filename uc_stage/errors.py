"""Typed errors: what went wrong, the hint that mends it, and the exit code a script can rely on.

Every error that a user can cause or meet is a `StageError`. Anything else that reaches the top is a bug.
"""

from __future__ import annotations

import errno
import os
from typing import ClassVar


class StageError(Exception):
    """The base of every expected failure: one line that says what is wrong and where, and a hint that mends it."""

    code: ClassVar[str] = "bug"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are rebuilt from `args` alone, which would lose the hint on the way out of a worker process.
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(kind: type[StageError], message: str, hint: str | None) -> StageError:
    return kind(message, hint=hint)


class InvalidRequest(StageError):
    """A flag or an argument that cannot be right, alone or together with the others."""

    code = "usage"
    exit_code = 2


class NotFound(StageError):
    """A table, an export, a copy, a folder or a version that is not there."""

    code = "not_found"
    exit_code = 10


class Busy(StageError):
    """Another process holds what this one needs, and the wait ran out."""

    code = "busy"
    exit_code = 11


class VerificationFailed(StageError):
    """Bytes, rows or a schema that are not what the manifest, the log or the source says."""

    code = "verification_failed"
    exit_code = 12


class AccessDenied(StageError):
    """The operating system, the volume or the catalog refuses this user."""

    code = "access_denied"
    exit_code = 13


class NoSpace(StageError):
    """Not enough room for the bytes, found before the first one wherever that is possible."""

    code = "no_space"
    exit_code = 14


class Unavailable(StageError):
    """A source or an engine that does not answer now: trying again, or installing it, can help."""

    code = "unavailable"
    exit_code = 15


class Unsupported(StageError):
    """A table feature, a type or a file that cannot be read or written rightly, and is therefore refused."""

    code = "unsupported"
    exit_code = 16


_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS}
_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NAMES = {errno.ENAMETOOLONG, errno.ELOOP}
_MISSING = {errno.ENOENT, errno.ENOTDIR}


def from_os_error(error: OSError, path: str | os.PathLike[str] | None = None) -> StageError:
    """Gives the typed form of an operating system's refusal, naming the path.

    An errno that is neither a path's form, access, space nor absence is read as a source that failed (EIO, ETIMEDOUT,
    ESTALE, ENOTCONN, a closed connection), since only the next try can tell.
    """
    where = os.fspath(path) if path is not None else error.filename or "the file system"
    why = error.strerror or str(error) or type(error).__name__
    message = f"`{where}`: {why}"
    if error.errno in _NAMES:
        return InvalidRequest(message, hint="choose another path")
    if error.errno in _ACCESS or isinstance(error, PermissionError):
        return AccessDenied(message, hint="check the owner and mode of the path, or the grants on the volume")
    if error.errno in _SPACE:
        return NoSpace(message, hint="free some space there, or choose another place")
    if error.errno in _MISSING or isinstance(error, FileNotFoundError):
        return NotFound(message, hint="check the path for a typing error, and that the volume is mounted here")
    return Unavailable(message, hint="try again; if it stays, check the mount or the connection")
