"""Whether files that are here are what they should be: by their hash, and by a Parquet file's ends."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING

from uc_stage.crew import Crew
from uc_stage.errors import Unavailable
from uc_stage.storage import translated
from uc_stage.transfer import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import CopyFile
    from uc_stage.progress import Progress

_MAGIC = b"PAR1"
# A footer's length, in four bytes, and the magic bytes.
_TAIL_BYTES = 8


def hash_files(folder: str, files: Sequence[CopyFile], jobs: int, progress: Progress) -> list[CopyFile]:
    """Reads files below a local folder and gives those whose bytes have the hash that they came with.

    One that the disk cannot read is none of them.
    """
    good: list[CopyFile] = []

    def check(file: CopyFile, buffer: memoryview) -> None:
        import xxhash

        hasher, whole = xxhash.xxh3_128(), os.path.join(folder, file.path)
        with (
            contextlib.suppress(Unavailable),
            translated(whole),
            contextlib.suppress(FileNotFoundError),
            open(whole, "rb", 0) as stream,
        ):
            # What is stored counts, not what the page cache remembers of it.
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while got := stream.readinto(buffer):
                hasher.update(buffer[:got])
                progress.advance(got)
            if hasher.hexdigest() == file.xxh3_128:
                good.append(file)

    crew = Crew()
    queue = deque(files)

    def work() -> None:
        buffer = memoryview(bytearray(ranges.RANGE_BYTES))
        while not crew.stopped.is_set():
            try:
                file = queue.popleft()
            except IndexError:
                return
            check(file, buffer)

    crew.run(work, min(jobs, len(files), 2 * (os.cpu_count() or 1)))
    return good


def is_parquet(descriptor: int, size: int) -> bool:
    """Whether an open file begins and ends as Parquet does, with a footer length that it has room for.

    The format: https://parquet.apache.org/docs/file-format/. `PARE` ends a file with an encrypted footer.
    """
    if size < len(_MAGIC) + _TAIL_BYTES:
        return False
    head = os.pread(descriptor, len(_MAGIC), 0)
    tail = os.pread(descriptor, _TAIL_BYTES, size - _TAIL_BYTES)
    footer = int.from_bytes(tail[:4], "little")
    return head == tail[4:] and head in (_MAGIC, b"PARE") and 0 < footer <= size - len(_MAGIC) - _TAIL_BYTES
