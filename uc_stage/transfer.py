"""The copy of many files by many threads: ranges of large files and whole small ones from one queue.

Each file is hashed as its bytes pass, and checked before it is handed over for its name. Memory is bounded by one
buffer of `RANGE_BYTES` a thread, and `_SPARE_BUFFERS` more.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from uc_stage.crew import Crew
from uc_stage.errors import NotFound, Unavailable, VerificationFailed
from uc_stage.model import CopyFile
from uc_stage.storage import sync, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from uc_stage.progress import Progress
    from uc_stage.storage import Entry, Folder, Ranges

_T = TypeVar("_T")

DEFAULT_JOBS = 48
RANGE_BYTES = 4 * 1024**2

# Ranges that came before their turn to be hashed wait in these; what finds none is read back from the local file.
_SPARE_BUFFERS = 16
# So many files are fetched in ranges at once: few, since a run that is killed loses those that are not whole yet.
_FILES_AT_ONCE = 8
# What one thread waits before each further try of a read that failed; more than that is an outage.
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)
_MAGIC = b"PAR1"
# A footer's length, in four bytes, and the magic bytes.
_TAIL_BYTES = 8


class Sink(Protocol):
    """Where copied files go. Called from many threads at once."""

    def temporary(self) -> str:
        """A path of this process's own for a file that has no name yet."""

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Names a file that is whole, checked and durable."""


def split(size: int, step: int) -> Iterator[tuple[int, int]]:
    """The ranges (offset, length) of a file, in order, of `step` bytes each but the last; an empty file has one."""
    yield 0, min(size, step)
    for offset in range(step, size, step):
        yield offset, min(step, size - offset)


def copy_files(folder: Folder, files: Sequence[CopyFile], sink: Sink, jobs: int, progress: Progress) -> list[CopyFile]:
    """Copies files of a folder into a sink and gives them with the time and the hash that each copy has.

    A file's own `mtime_ns` and `xxh3_128`, where it has them, are what the source must show.

    Raises:
        VerificationFailed: a file that changed since it was listed or while it was read, or whose bytes are not what
            the manifest says, or no whole Parquet file, also when fetched again. NotFound: one that is gone.
        Unavailable: a read that failed, again and again. NoSpace, AccessDenied: at once.
    """
    return _Transfer(folder, sink, progress).run(files, jobs)


def hash_files(folder: str, files: Sequence[CopyFile], jobs: int, progress: Progress) -> list[CopyFile]:
    """Reads files below a local folder and gives those whose bytes have the hash that they came with.

    Raises:
        Unavailable: a disk that cannot read.
    """
    good: list[CopyFile] = []

    def check(file: CopyFile, buffer: memoryview) -> None:
        import xxhash

        hasher, whole = xxhash.xxh3_128(), os.path.join(folder, file.path)
        with translated(whole), contextlib.suppress(FileNotFoundError), open(whole, "rb", 0) as stream:
            while got := stream.readinto(buffer):
                hasher.update(buffer[:got])
                progress.advance(got)
            if hasher.hexdigest() == file.xxh3_128:
                good.append(file)

    crew = Crew()
    queue = deque(files)

    def work() -> None:
        buffer = memoryview(bytearray(RANGE_BYTES))
        while not crew.stopped.is_set():
            try:
                file = queue.popleft()
            except IndexError:
                return
            check(file, buffer)

    crew.run(work, min(jobs, len(files), 2 * (os.cpu_count() or 1)))
    return good


class _File:
    """One file on its way. The lock guards what follows it."""

    def __init__(self, asked: CopyFile) -> None:
        self.asked = asked
        self.parts: deque[tuple[int, int]] = deque()
        self.lock = threading.Lock()
        self.temporary: str | None = None
        self.descriptor = -1
        self.mtime_ns = asked.mtime_ns
        self.again = False
        self.restart()

    def restart(self) -> None:
        """Asks for all of it, and forgets what came."""
        import xxhash

        self.parts.extend(split(self.asked.bytes, RANGE_BYTES))
        self.hasher: Any = xxhash.xxh3_128()
        self.hashed = 0
        self.hashing = False
        # By offset, the length of a range that came, and the buffer that holds it.
        self.arrived: dict[int, tuple[int, memoryview | None]] = {}


class _Buffers:
    """At most `limit` buffers of one size; their pages cost memory once they are written to."""

    def __init__(self, size: int, limit: int) -> None:
        self._size, self._left = size, limit
        self._idle: list[memoryview] = []
        self._lock = threading.Lock()

    def take(self) -> memoryview | None:
        """A buffer, or None where all are in use."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._left == 0:
                return None
            self._left -= 1
        return memoryview(bytearray(self._size))

    def give(self, buffer: memoryview) -> None:
        """Takes a buffer back."""
        with self._lock:
            self._idle.append(buffer)


class _Transfer:
    def __init__(self, folder: Folder, sink: Sink, progress: Progress) -> None:
        self._folder, self._sink, self._progress = folder, sink, progress
        self._crew = Crew()
        self._lock = threading.Lock()
        self._begun: deque[_File] = deque()
        self._under_way: set[_File] = set()
        self._copied: list[CopyFile] = []

    def run(self, files: Sequence[CopyFile], jobs: int) -> list[CopyFile]:
        # The largest first: what is left at the end should be small.
        ordered = sorted(files, key=lambda file: -file.bytes)
        self._files = map(_File, ordered)
        ranges = sum(-(-file.bytes // RANGE_BYTES) or 1 for file in ordered)
        jobs = min(jobs, ranges)
        largest = ordered[0].bytes if ordered else 0
        self._buffers = _Buffers(min(RANGE_BYTES, largest), jobs + _SPARE_BUFFERS)
        try:
            self._crew.run(self._work, jobs)
        finally:
            for state in self._under_way:
                self._abandon(state)
        return self._copied

    def _work(self) -> None:
        reader = _Reader(self._folder, self._crew.stopped)
        buffer = self._buffers.take()
        assert buffer is not None
        state: _File | None = None
        try:
            while not self._crew.stopped.is_set() and (task := self._next(state)):
                state = task[0]
                buffer = self._carry(reader, buffer, *task)
        finally:
            reader.close()

    def _next(self, last: _File | None) -> tuple[_File, int, int] | None:
        """The next range: of the file that the thread has open, else of a new one, else of those that others are at."""
        with self._lock:
            state = last
            if state is None or state not in self._begun:
                state = next(self._files, None) if len(self._begun) < _FILES_AT_ONCE else None
                if state is not None:
                    self._under_way.add(state)
                    self._begun.append(state)
                elif self._begun:
                    self._begun.rotate()
                    state = self._begun[0]
                else:
                    return None
            offset, length = state.parts.popleft()
            if not state.parts:
                self._begun.remove(state)
            return state, offset, length

    def _carry(self, reader: _Reader, buffer: memoryview, state: _File, offset: int, length: int) -> memoryview:
        """Brings one range to the local file, and the file to its end where this was what it lacked.

        Gives the buffer for the next range: another one, where this one's bytes wait for their turn to be hashed.
        """
        reader.turn_to(state.asked.path)
        with state.lock:
            if state.temporary is None:
                self._begin(reader, state)
        view = buffer[:length]
        if reader.read(view, offset) < length:
            raise VerificationFailed(
                f"`{self._whole(state)}` is shorter than its listed {state.asked.bytes} bytes",
                hint="the source changed or is damaged: run `cache` again, or export the table again",
            )
        with translated(self._whole(state)):
            done = 0
            while done < length:
                done += os.pwrite(state.descriptor, view[done:], offset + done)
        self._progress.advance(length)
        with state.lock:
            if state.hashing or state.hashed != offset:
                spare = self._buffers.take()
                state.arrived[offset] = length, buffer if spare else None
                return spare or buffer
            state.hashing = True
        if self._hash(state, buffer, length):
            self._finish(reader, state)
        return buffer

    def _begin(self, reader: _Reader, state: _File) -> None:
        """Makes room for the file, once the source shows the size and the time that it was listed with."""
        if (told := reader.told()) is not None:
            self._refuse_change(state, told, "since it was listed")
            state.mtime_ns = told.mtime_ns
        temporary = self._sink.temporary()
        with translated(self._whole(state)):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            state.descriptor = os.open(temporary, flags, 0o644)
            state.temporary = temporary
            if state.asked.bytes:
                os.posix_fallocate(state.descriptor, 0, state.asked.bytes)

    def _hash(self, state: _File, buffer: memoryview, length: int) -> bool:
        """Hashes the range in the buffer, and those after it that came before it; says if that was the file's end.

        One thread at a time hashes a file.
        """
        parked: memoryview | None = buffer
        while True:
            if parked is None:
                with translated(self._whole(state)):
                    os.preadv(state.descriptor, [buffer[:length]], state.hashed)
            state.hasher.update((parked or buffer)[:length])
            if parked is not None and parked is not buffer:
                self._buffers.give(parked)
            with state.lock:
                state.hashed += length
                if state.hashed == state.asked.bytes:
                    return True
                if state.hashed not in state.arrived:
                    state.hashing = False
                    return False
                length, parked = state.arrived.pop(state.hashed)

    def _finish(self, reader: _Reader, state: _File) -> None:
        """Checks a file that came whole, and hands it over for its name."""
        digest = state.hasher.hexdigest()
        whole = self._whole(state)
        if problem := self._lack(state, digest):
            # Not for this run alone: what the kernel keeps would fail the next one, too.
            reader.forget()
            if state.again:
                raise VerificationFailed(
                    f"`{whole}` {problem}, also when fetched again",
                    hint="see `uc-stage inspect --verify` on the source; export the table again if it is damaged",
                )
            self._progress.note(f"`{whole}` {problem}: fetching it again")
            self._progress.advance(-state.asked.bytes)
            state.again = True
            state.restart()
            with self._lock:
                self._begun.append(state)
            return
        if state.asked.xxh3_128 is None:
            # Nothing else would tell that the source changed between two reads.
            self._refuse_change(state, reader.stat(), "while it was read")
        assert state.temporary is not None
        with translated(whole):
            if state.mtime_ns is not None:
                os.utime(state.descriptor, ns=(state.mtime_ns, state.mtime_ns))
            sync(state.descriptor)
            mtime_ns = os.fstat(state.descriptor).st_mtime_ns
            os.close(state.descriptor)
        state.descriptor = -1
        file = CopyFile(state.asked.path, state.asked.bytes, mtime_ns, digest)
        self._sink.accept(state.temporary, file)
        with self._lock:
            self._under_way.discard(state)
            self._copied.append(file)

    def _lack(self, state: _File, digest: str) -> str | None:
        """What is wrong with the bytes that came, for a message; None where they are good."""
        if state.asked.xxh3_128 not in (None, digest):
            return "came with other bytes than the manifest's hash tells"
        if state.asked.path.endswith(".parquet") and not is_parquet(state.descriptor, state.asked.bytes):
            return "came as no whole Parquet file"
        return None

    def _refuse_change(self, state: _File, shown: Entry, when: str) -> None:
        asked = state.asked
        if shown.bytes != asked.bytes:
            change = f"has {shown.bytes} bytes and not {asked.bytes}: it changed {when}"
        elif state.mtime_ns is not None and shown.mtime_ns != state.mtime_ns:
            change = f"was written again {when}"
        else:
            return
        raise VerificationFailed(
            f"`{self._whole(state)}` {change}", hint="run `cache` again once nobody writes the source"
        )

    def _abandon(self, state: _File) -> None:
        if state.temporary is None:
            return
        # A descriptor that a hung thread may still write to must not become another file's.
        if self._crew.ended and state.descriptor >= 0:
            os.close(state.descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state.temporary)

    def _whole(self, state: _File) -> str:
        return self._folder.locate(state.asked.path)


class _Reader:
    """One thread's way to the source: it holds the file that it read last open, and tries again what may pass."""

    def __init__(self, folder: Folder, stopped: threading.Event) -> None:
        self._folder, self._stopped = folder, stopped
        self._path = ""
        self._ranges: Ranges | None = None

    def turn_to(self, path: str) -> None:
        """Makes `path` the file that is read."""
        if path != self._path:
            self.close()
            self._path = path

    def told(self) -> Entry | None:
        """Size and time of the file as its opening told them, if it did."""
        return self._persist(lambda: self._open().told)

    def stat(self) -> Entry:
        """Size and time of the file as they are now."""
        entry = self._persist(lambda: self._folder.stat(self._path))
        if entry is None:
            raise NotFound(
                f"`{self._folder.locate(self._path)}` went away while it was read",
                hint="run `cache` again once nobody writes the source",
            )
        return entry

    def read(self, buffer: memoryview, offset: int) -> int:
        """Fills the buffer from the offset on, as far as the file goes, and gives the bytes read."""
        return self._persist(lambda: self._open().read_into(buffer, offset))

    def forget(self) -> None:
        """Makes the next read ask the storage."""
        self._open().forget()
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        if self._ranges is not None:
            self._ranges.close()
            self._ranges = None

    def _open(self) -> Ranges:
        if self._ranges is None:
            self._ranges = self._folder.ranges(self._path)
        return self._ranges

    def _persist(self, act: Callable[[], _T]) -> _T:
        """Does it, and again after a pause where the storage failed; a stop of the whole ends the pauses."""
        for seconds in _RETRY_SECONDS:
            try:
                return act()
            except Unavailable:  # noqa: PERF203 - a read costs a thousand times more
                # A handle may be what is broken (ESTALE, a lost connection).
                self.close()
                if self._stopped.wait(seconds):
                    raise
        return act()


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
