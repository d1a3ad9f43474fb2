"""What the kernel's page cache holds of files: told, and dropped where that can be done."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from uc_stage.benchmark.sampling import opened
from uc_stage.errors import StageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# So much of all files together is asked about: the kernel goes through every page of it.
_LOOKED_BYTES = 8 * 1024**3
_STEP_BYTES = 1024**3


def is_local(path: str) -> bool:
    """Whether a file is read through this machine's page cache: a disk's or a mount's, and no URL's."""
    return "://" not in path


def drop(paths: Sequence[str]) -> None:
    """Asks the kernel to forget the pages of files, after writing those that were changed; what it cannot, it keeps.

    Pages that another process maps stay, and those of a file system in memory; a mount may not know how.
    """
    for path in filter(is_local, paths):
        with suppress(StageError, OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                # posix_fadvise(2): pages that were not written yet are not dropped.
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        with suppress(StageError):
            file = opened(path)
            try:
                file.forget()
            finally:
                file.close()


def share_present(paths: Sequence[str]) -> float | None:
    """The share of the files' pages that is in memory, from 0 to 1; None where the kernel does not say.

    It says all pages of a file are there to whoever neither owns nor may write it (mincore(2), since Linux 5.2). Of
    files that are large together, the beginnings count.
    """
    there = looked = 0
    most = max(_STEP_BYTES // 64, _LOOKED_BYTES // max(1, len(paths)))
    for path in paths:
        if not is_local(path):
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # whoever reads it tells of that
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if not (found.st_uid == os.geteuid() or os.access(path, os.W_OK)):
                return None
            for at in range(0, min(found.st_size, most), _STEP_BYTES):
                size = min(_STEP_BYTES, min(found.st_size, most) - at)
                count = _present(descriptor, at, size)
                looked += -(-size // mmap.PAGESIZE)
                there += count
        except OSError:
            return None  # a mount that maps no files, or a system without the call
        finally:
            os.close(descriptor)
    return there / looked if looked else None


def _present(descriptor: int, offset: int, size: int) -> int:
    """The pages of a range that are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    # Writable and private, since an address is given of nothing else; no page is touched.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, offset=offset) as mapped:
        held = ctypes.c_char.from_buffer(mapped)
        try:
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(held)), ctypes.c_size_t(size), pages)
        finally:
            del held
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    # The other bits of each are reserved.
    return sum(bytes(pages).translate(_LOWEST_BIT))


_LOWEST_BIT = bytes(value & 1 for value in range(256))
