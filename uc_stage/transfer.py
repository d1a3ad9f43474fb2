"""The copy of many files by many threads: ranges of large files and whole small ones from one queue.

Each file is hashed as its bytes pass, and checked before it is handed over for its name. Large
files are written past the page cache: its pages cost more time than their bytes, and push out what is read again.
Memory is bounded by `_BUFFERS` of `RANGE_BYTES`, and a small buffer a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from uc_stage.buffers import SMALL_BYTES, Buffers, pages
from uc_stage.crew import Crew
from uc_stage.errors import NotFound, Unavailable, VerificationFailed
from uc_stage.model import CopyFile
from uc_stage.pace import Pace
from uc_stage.storage import go_direct, sync, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from uc_stage.progress import Progress
    from uc_stage.storage import Entry, Folder, Ranges

_T = TypeVar("_T")

DEFAULT_JOBS = 96
RANGE_BYTES = 4 * 1024**2

# Ranges that are read, and those that came before their turn to be hashed, are in these.
_BUFFERS = 48
# So many threads write, hash and sync while as many as the pace allows read.
_AT_HOME = 32
# So many files are fetched in ranges at once: few, since a run that is killed loses those that are not whole yet.
_FILES_AT_ONCE = 8
# Smaller files are written through the page cache, as they come: the rest has costs of its own for each.
_DIRECT_BYTES = 1024**2
# Writes past the page cache are of whole blocks; no disk has larger ones.
_BLOCK_BYTES = 4096
# What one thread waits before each further try of a read that failed, give or take a half; the last one stays.
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)
# So soon a thread that waits for work looks up, whatever it was told.
_WAIT_SECONDS = 0.2
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


def copy_files(
    folder: Folder,
    files: Sequence[CopyFile],
    sink: Sink,
    jobs: int,
    progress: Progress,
    *,
    retries: int = 4,
    timeout: float = 60.0,
    takes: Callable[[CopyFile], bool] | None = None,
    durable: bool = True,
) -> list[CopyFile]:
    """Copies files of a folder into a sink and gives them with the time and the hash that each copy has.

    A file's own `mtime_ns` and `xxh3_128`, where it has them, are what the source must show. A read that fails, or
    takes longer than `timeout` seconds, is tried again up to `retries` times. `takes` is asked whether a file may be
    begun, until it may, and the files are begun in their order then; else the largest are first. A file that is not
    `durable` comes to the sink without a sync.

    Raises:
        VerificationFailed: a file that changed since it was listed or while it was read, or whose bytes are not what
            the manifest says, or no whole Parquet file, also when fetched again. NotFound: one that is gone.
        Unavailable: a read that failed, again and again. NoSpace, AccessDenied: at once.
    """
    return _Transfer(folder, sink, progress, retries, timeout, takes, durable).run(files, jobs)


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

    def __init__(self, asked: CopyFile, whole: str) -> None:
        self.asked, self.whole = asked, whole
        self.parts: deque[tuple[int, int]] = deque()
        self.hangs = 0
        self.lock = threading.Lock()
        self.temporary: str | None = None
        self.descriptor = -1
        self.direct = -1
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
        self.arrived: dict[int, tuple[int, memoryview]] = {}

    def create(self, temporary: str) -> None:
        """Makes the local file, a large one with room for all of it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(temporary, flags, 0o644)
        self.temporary = temporary
        if self.asked.bytes >= _DIRECT_BYTES:
            os.posix_fallocate(self.descriptor, 0, self.asked.bytes)
            direct = os.open(temporary, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if go_direct(direct, on=True):
                self.direct = direct
            else:
                os.close(direct)

    def write(self, view: memoryview, offset: int) -> None:
        """Writes a range: whole blocks past the page cache, and what is left, or refused so, through it."""
        done = 0
        if self.direct >= 0:
            whole = len(view) // _BLOCK_BYTES * _BLOCK_BYTES
            try:
                while done < whole:
                    done += os.pwrite(self.direct, view[done:whole], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        while done < len(view):
            done += os.pwrite(self.descriptor, view[done:], offset + done)

    def close(self) -> None:
        """Closes the local file."""
        for descriptor in (self.descriptor, self.direct):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self.direct = -1


class _Transfer:
    def __init__(
        self,
        folder: Folder,
        sink: Sink,
        progress: Progress,
        retries: int,
        timeout: float,
        takes: Callable[[CopyFile], bool] | None,
        durable: bool,
    ) -> None:
        self._folder, self._sink, self._progress = folder, sink, progress
        self._retries, self._timeout, self._takes, self._durable = retries, timeout, takes, durable
        self._crew = Crew()
        # Guards all that follows it, and tells of what came free.
        self._ready = threading.Condition()
        self._reading = 0
        self._readers: set[_Reader] = set()
        self._begun: deque[_File] = deque()
        self._under_way: set[_File] = set()
        self._copied: list[CopyFile] = []
        self._refused = False

    def run(self, files: Sequence[CopyFile], jobs: int) -> list[CopyFile]:
        # The largest first: what is left at the end should be small.
        ordered = list(files) if self._takes else sorted(files, key=lambda file: -file.bytes)
        self._files = deque(ordered)
        jobs = min(jobs, sum(-(-file.bytes // RANGE_BYTES) or 1 for file in ordered))
        self._pace = Pace(max(1, jobs), time.monotonic())
        self._buffers = Buffers(RANGE_BYTES, _BUFFERS)
        self._jobs, self._threads = jobs, min(jobs, self._pace.limit + _AT_HOME)
        try:
            self._crew.run(self._work, self._threads, self._hung)
        finally:
            for state in self._under_way:
                self._abandon(state)
        return self._copied

    def _work(self) -> None:
        reader = _Reader(self._folder, self._crew.stopped, self._retries)
        with self._ready:
            self._readers.add(reader)
        try:
            while task := self._next(reader):
                self._carry(reader, *task)
        except _HungError:
            # Another thread has its place and its range; nobody else knows of its buffer.
            return
        finally:
            reader.close()
            with self._ready:
                self._readers.discard(reader)
                self._ready.notify_all()

    def _next(self, reader: _Reader) -> tuple[_File, int, int, memoryview] | None:
        """The next range and a buffer for it, once the pace allows it; None where there is none any more."""
        with self._ready:
            while not self._crew.stopped.is_set() and (self._begun or self._files):
                if self._reading < self._pace.limit and (state := self._choose(reader.state)):
                    offset, length = state.parts[0]
                    # Ranges get their buffers in the order in which they are hashed: the first is never without.
                    buffer = reader.small if state.asked.bytes <= SMALL_BYTES else self._buffers.take()
                    if buffer is not None:
                        state.parts.popleft()
                        if not state.parts:
                            self._begun.remove(state)
                        self._reading += 1
                        reader.take_up(state, offset, length, buffer)
                        return state, offset, length, buffer
                self._ready.wait(_WAIT_SECONDS)
        return None

    def _choose(self, last: _File | None) -> _File | None:
        """The file that the thread has open, else a new one, else one that others are at."""
        if last is not None and last in self._begun:
            return last
        begins = self._files and len(self._begun) < _FILES_AT_ONCE
        if begins and (self._takes is None or self._takes(self._files[0])):
            file = self._files.popleft()
            state = _File(file, self._folder.locate(file.path))
            self._under_way.add(state)
            self._begun.append(state)
            return state
        self._refused = self._refused or bool(begins)
        if not self._begun:
            return None
        self._begun.rotate()
        return self._begun[0]

    def _carry(self, reader: _Reader, state: _File, offset: int, length: int, buffer: memoryview) -> None:
        """Brings one range to the local file, and the file to its end where this was what it lacked."""
        view = buffer[:length]
        began = time.monotonic()
        try:
            told = reader.told()
            with state.lock:
                self._begin(state, told)
            got = reader.read(view, offset)
        finally:
            self._count(reader, length, time.monotonic() - began)
        if got < length:
            raise VerificationFailed(
                f"`{state.whole}` is shorter than its listed {state.asked.bytes} bytes",
                hint="the source changed or is damaged: run `cache` again, or export the table again",
            )
        with translated(state.whole):
            state.write(view, offset)
        self._progress.advance(length)
        with state.lock:
            if state.hashing or state.hashed != offset:
                state.arrived[offset] = length, buffer
                return
            state.hashing = True
        if self._hash(state, buffer, length):
            self._finish(reader, state)

    def _count(self, reader: _Reader, length: int, seconds: float) -> None:
        """Ends the read that the pace knows of."""
        with self._ready:
            if reader.counted:
                reader.counted = False
                self._reading -= 1
                now, limit = time.monotonic(), self._pace.limit
                if reader.failed:
                    reader.failed = False
                    self._pace.failed(now)
                else:
                    self._pace.done(length, seconds, now)
                if (more := min(self._jobs, self._pace.limit + _AT_HOME) - self._threads) > 0:
                    self._threads += more
                    self._crew.grow(more)
                self._ready.notify(1 + max(0, self._pace.limit - limit))

    def _begin(self, state: _File, told: Entry | None) -> None:
        """Refuses a file that shows another size or time than it was listed with, and makes room for a good one."""
        if told is not None:
            when = "since it was listed" if state.temporary is None else "while it was read"
            self._refuse_change(state, told, when)
            state.mtime_ns = told.mtime_ns
        if state.temporary is None:
            with translated(state.whole):
                state.create(self._sink.temporary())

    def _hash(self, state: _File, buffer: memoryview, length: int) -> bool:
        """Hashes the range in the buffer, and those after it that came before it; says if that was the file's end.

        One thread at a time hashes a file.
        """
        while True:
            state.hasher.update(buffer[:length])
            if len(buffer) > SMALL_BYTES:
                with self._ready:
                    self._buffers.give(buffer)
                    self._ready.notify()
            with state.lock:
                state.hashed += length
                if state.hashed == state.asked.bytes:
                    return True
                if state.hashed not in state.arrived:
                    state.hashing = False
                    return False
                length, buffer = state.arrived.pop(state.hashed)

    def _finish(self, reader: _Reader, state: _File) -> None:
        """Checks a file that came whole, and hands it over for its name."""
        digest = state.hasher.hexdigest()
        # What hangs from here on is done again as if the file had one more range, of no bytes.
        reader.take_up(state, state.asked.bytes, 0, None)
        if problem := self._lack(state, digest):
            # Not for this run alone: what the kernel keeps would fail the next one, too.
            reader.forget()
            if state.again:
                raise VerificationFailed(
                    f"`{state.whole}` {problem}, also when fetched again",
                    hint="see `uc-stage inspect --verify` on the source; export the table again if it is damaged",
                )
            self._progress.note(f"`{state.whole}` {problem}: fetching it again")
            self._progress.advance(-state.asked.bytes)
            state.again = True
            state.restart()
            with self._ready:
                self._begun.append(state)
                self._ready.notify_all()
            return
        if state.asked.xxh3_128 is None:
            # Nothing else would tell that the source changed between two reads.
            self._refuse_change(state, reader.stat(), "while it was read")
        assert state.temporary is not None
        with translated(state.whole):
            if state.mtime_ns is not None:
                os.utime(state.descriptor, ns=(state.mtime_ns, state.mtime_ns))
            if self._durable:
                sync(state.descriptor)
            mtime_ns = os.fstat(state.descriptor).st_mtime_ns
            state.close()
        file = CopyFile(state.asked.path, state.asked.bytes, mtime_ns, digest)
        self._sink.accept(state.temporary, file)
        with self._ready:
            self._under_way.discard(state)
            self._copied.append(file)
            if self._refused:
                # Another may be taken now.
                self._refused = False
                self._ready.notify_all()

    def _hung(self) -> list[threading.Thread]:
        """The threads whose read has not come back in time; another thread is to do again what they were at.

        Raises:
            Unavailable: a file whose reads hang again and again.
        """
        found: list[threading.Thread] = []
        with self._ready:
            for reader in list(self._readers):
                if (task := reader.lose(self._timeout)) is None:
                    continue
                state, offset, length, buffer = task
                state.hangs += 1
                if state.hangs > self._retries:
                    raise Unavailable(
                        f"`{state.whole}` did not answer within {self._timeout:g} s, {state.hangs} times",
                        hint="check the mount or the connection, or give it more time with `--read-timeout`",
                    )
                self._readers.discard(reader)
                found.append(reader.thread)
                if buffer is not None and buffer is not reader.small:
                    self._buffers.replace()
                if reader.counted:
                    reader.counted = False
                    self._reading -= 1
                    self._pace.failed(time.monotonic())
                state.parts.appendleft((offset, length))
                if state not in self._begun:
                    self._begun.append(state)
            if found:
                self._ready.notify_all()
        return found

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
        raise VerificationFailed(f"`{state.whole}` {change}", hint="run `cache` again once nobody writes the source")

    def _abandon(self, state: _File) -> None:
        if state.temporary is None:
            return
        # A descriptor that a hung thread may still write to must not become another file's.
        if self._crew.ended:
            state.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state.temporary)


class _HungError(Exception):
    """A read came back after another thread was set at it."""


class _Reader:
    """One thread's way to the source: it holds the file that it read last open, and tries again what may pass."""

    def __init__(self, folder: Folder, stopped: threading.Event, retries: int) -> None:
        self._folder, self._stopped, self._retries = folder, stopped, retries
        self.thread = threading.current_thread()
        self.small = pages(SMALL_BYTES)
        self.state: _File | None = None
        self.counted = self.failed = False
        self._task: tuple[_File, int, int, memoryview | None] | None = None
        # When the call that is under way began. Who takes that out goes on with the task: the thread or, where that
        # hangs, another one.
        self._since: list[float] = []
        self._path = ""
        self._ranges: Ranges | None = None

    def take_up(self, state: _File, offset: int, length: int, buffer: memoryview | None) -> None:
        """Notes what the thread is at; a range that comes with a buffer is one that the pace counts."""
        self._task = state, offset, length, buffer
        self.state = state
        self.counted = buffer is not None

    def lose(self, timeout: float) -> tuple[_File, int, int, memoryview | None] | None:
        """What the thread is at and is never to go on with, where a call takes longer than `timeout` seconds."""
        with contextlib.suppress(IndexError):
            if time.monotonic() - self._since[-1] > timeout:
                self._since.pop()
                return self._task
        return None

    def stat(self) -> Entry:
        """Size and time of the file as they are now."""
        entry = self._persist(lambda: self._folder.stat(self._path))
        if entry is None:
            raise NotFound(
                f"`{self._folder.locate(self._path)}` went away while it was read",
                hint="run `cache` again once nobody writes the source",
            )
        return entry

    def told(self) -> Entry | None:
        """Size and time of the file as its opening told them, if it did."""
        return self._persist(lambda: self._open().told)

    def read(self, buffer: memoryview, offset: int) -> int:
        """Fills the buffer from the offset on, as far as the file goes, and gives the bytes read."""
        return self._persist(lambda: self._open().read_into(buffer, offset))

    def forget(self) -> None:
        """Makes the next read ask the storage."""
        self._persist(lambda: self._open().forget())
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        if self._ranges is not None:
            self._ranges.close()
            self._ranges = None

    def _open(self) -> Ranges:
        assert self.state is not None
        if self.state.asked.path != self._path:
            self.close()
            self._path = self.state.asked.path
        if self._ranges is None:
            self._ranges = self._folder.ranges(self._path, once=True)
            if self.state.hangs:
                # Else it would wait for the same pages.
                self._ranges.forget()
        return self._ranges

    def _persist(self, act: Callable[[], _T]) -> _T:
        """Does it, and again after a pause where the storage failed; a stop of the whole ends the pauses."""
        for count in range(self._retries):
            try:
                return self._ask(act)
            except Unavailable:  # noqa: PERF203 - a read costs a thousand times more
                self.failed = True
                # A handle may be what is broken (ESTALE, a lost connection).
                self.close()
                # Not all threads at the same moment again.
                seconds = _RETRY_SECONDS[min(count, len(_RETRY_SECONDS) - 1)] * random.uniform(0.5, 1.5)  # noqa: S311
                if self._stopped.wait(seconds):
                    raise
        return self._ask(act)

    def _ask(self, act: Callable[[], _T]) -> _T:
        """Does it, and notes that it is under way.

        Raises:
            _HungError: it took so long that another thread does it again.
        """
        self._since.append(time.monotonic())
        try:
            return act()
        finally:
            try:
                self._since.pop()
            except IndexError:
                raise _HungError from None


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
