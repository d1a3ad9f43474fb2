"""The copy of many files by many threads: ranges of large files and whole small ones from one queue.

Each file is hashed as its bytes pass, and checked before it is handed over for its name. Large
files are written past the page cache: its pages cost more time than their bytes, and push out what is read again.
Memory is bounded by `_BUFFERS` of `RANGE_BYTES`, and a small buffer a thread.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from uc_stage.buffers import SMALL_BYTES, Buffers, pages
from uc_stage.crew import Crew
from uc_stage.errors import Unavailable, VerificationFailed
from uc_stage.model import CopyFile
from uc_stage.pace import Pace
from uc_stage.storage import reading_apart, sync, translated
from uc_stage.transfer import ranges
from uc_stage.transfer.arriving import ArrivingFile
from uc_stage.transfer.checking import is_parquet
from uc_stage.transfer.reading import HungError, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from uc_stage.progress import Progress
    from uc_stage.storage import Entry, Folder

DEFAULT_JOBS = 96

# Ranges that are read, and those that came before their turn to be hashed, are in these.
_BUFFERS = 48
# So many threads write, hash and sync while as many as the pace allows read.
_AT_HOME = 32
# A source whose first reads, so many at once, take no longer than this is near: more of them are tried in time.
_PROBES, _NEAR_SECONDS = 8, 0.003
# So many files are fetched in ranges at once: few, since a run that is killed loses those that are not whole yet.
_FILES_AT_ONCE = 8
# So soon a thread that waits for work looks up, whatever it was told.
_WAIT_SECONDS = 0.2


class Sink(Protocol):
    """Where copied files go. Called from many threads at once."""

    def temporary(self) -> str:
        """A path of this process's own for a file that has no name yet."""

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Names a file that is whole and checked; its bytes may be on no disk yet."""


def copy_files(
    folder: Folder,
    files: Sequence[CopyFile] | Generator[CopyFile],
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
    takes longer than `timeout` seconds, is tried again up to `retries` times. A generator is read by one of the
    threads while the others copy what it gave: a listing that goes on, and may raise errors of its own.

    `takes` is asked whether a file may be begun, until it may, and the files are begun in their order then; else the
    largest are first. Where they are not to be `durable`, large ones come to the sink without a sync, too.

    Raises:
        VerificationFailed: a file that changed since it was listed or while it was read, or whose bytes are not what
            the manifest says, or no whole Parquet file, also when fetched again. NotFound: one that is gone.
        Unavailable: a read that failed, again and again. NoSpace, AccessDenied: at once.
    """
    return _Transfer(folder, sink, progress, retries, timeout, takes, durable).run(files, jobs)


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
        self._readers: set[Reader] = set()
        # Files that nobody has begun, by size and turn; whether there are more to come; and those of which some ranges
        # are left.
        self._waiting: list[tuple[int, int, CopyFile]] = []
        self._turn = 0
        self._more = False
        self._begun: deque[ArrivingFile] = deque()
        self._under_way: set[ArrivingFile] = set()
        self._copied: list[CopyFile] = []
        self._refused = False

    def run(self, files: Sequence[CopyFile] | Generator[CopyFile], jobs: int) -> list[CopyFile]:
        self._feed: Generator[CopyFile] | None = None
        if isinstance(files, Sequence):
            self._offer(files)
            jobs = min(jobs, sum(-(-file.bytes // ranges.RANGE_BYTES) or 1 for file in files))
        else:
            self._feed, self._more = files, True
            # Another one reads what is to come.
            jobs += 1
        self._pace = Pace(max(1, jobs), time.monotonic(), _PROBES)
        self._probing = True
        self._apart = reading_apart(self._folder) if files else None
        self._buffers = Buffers(ranges.RANGE_BYTES, _BUFFERS, self._apart.pages if self._apart else pages)
        self._jobs, self._threads = jobs, min(jobs, _PROBES)
        try:
            self._crew.run(self._work, self._threads, self._hung)
        finally:
            for state in self._under_way:
                self._abandon(state)
            if self._apart:
                self._apart.close()
        if len(self._copied) != self._turn:
            raise Unavailable(
                f"`{self._folder.url}` gave {len(self._copied)} of {self._turn} files", hint="run `cache` again"
            )
        return self._copied

    def _work(self) -> None:
        self._read_feed()
        reader = Reader(self._folder, self._crew.stopped, self._retries, self._apart)
        with self._ready:
            self._readers.add(reader)
        try:
            while task := self._next(reader):
                self._carry(reader, *task)
        except HungError:
            # Another thread has its place and its range; nobody else knows of its buffer.
            return
        finally:
            reader.end()
            with self._ready:
                self._readers.discard(reader)
                self._ready.notify_all()

    def _read_feed(self) -> None:
        """Offers what is to come, as it comes; the first thread does."""
        with self._ready:
            feed, self._feed = self._feed, None
        if feed is None:
            return
        with contextlib.closing(feed):
            for file in feed:
                if self._crew.stopped.is_set():
                    return
                self._offer([file])
        with self._ready:
            self._more = False
            self._ready.notify_all()

    def _offer(self, files: Iterable[CopyFile]) -> None:
        """Lets files be copied, the largest first, where their order is not given: what is left at the end is small."""
        with self._ready:
            for file in files:
                self._turn += 1
                heapq.heappush(self._waiting, (0 if self._takes else -file.bytes, self._turn, file))
                self._ready.notify()

    def _next(self, reader: Reader) -> tuple[ArrivingFile, int, int, memoryview] | None:
        """The next range and a buffer for it, once the pace allows it; None where there is none any more."""
        with self._ready:
            while not self._crew.stopped.is_set() and (self._begun or self._waiting or self._more):
                if self._reading < self._pace.limit and (state := self._choose(reader.state)):
                    offset, length = state.parts[0]
                    # Ranges get their buffers in the order in which they are hashed: the first is never without.
                    is_small = length == state.asked.bytes <= SMALL_BYTES
                    buffer = reader.small if is_small else self._buffers.take()
                    if buffer is not None:
                        state.parts.popleft()
                        if not state.parts:
                            self._begun.remove(state)
                        self._reading += 1
                        reader.take_up(state, offset, length, buffer)
                        return state, offset, length, buffer
                self._ready.wait(_WAIT_SECONDS)
        return None

    def _choose(self, last: ArrivingFile | None) -> ArrivingFile | None:
        """The file that the thread has open, else a new one, else one that others are at."""
        if last is not None and last in self._begun:
            return last
        begins = self._waiting and len(self._begun) < _FILES_AT_ONCE
        if begins and (self._takes is None or self._takes(self._waiting[0][2])):
            file = heapq.heappop(self._waiting)[2]
            state = ArrivingFile(file, self._folder.locate(file.path))
            self._under_way.add(state)
            self._begun.append(state)
            return state
        self._refused = self._refused or bool(begins)
        if not self._begun:
            return None
        self._begun.rotate()
        return self._begun[0]

    def _carry(self, reader: Reader, state: ArrivingFile, offset: int, length: int, buffer: memoryview) -> None:
        """Brings one range to the local file, and the file to its end where this was what it lacked."""
        view = buffer[:length]
        began = time.monotonic()
        try:
            got = reader.read(view, offset)
        finally:
            self._count(reader, length, time.monotonic() - began)
        with state.lock:
            self._begin(state, reader.told)
        if got < length:
            raise VerificationFailed(
                f"`{state.whole}` is shorter than its listed {state.asked.bytes} bytes",
                hint="the source changed or is damaged: run `cache` again, or write the source again",
            )
        with state.lock:
            if state.temporary is None:
                temporary = self._sink.temporary()
                with translated(temporary):
                    state.create(temporary)
            assert state.temporary is not None
        with translated(state.temporary):
            state.write(view, offset)
        self._progress.advance(length)
        with state.lock:
            if state.hashing or state.hashed != offset:
                state.arrived[offset] = length, buffer
                return
            state.hashing = True
        if self._hash(reader, state, buffer, length):
            self._finish(reader, state)

    def _count(self, reader: Reader, length: int, seconds: float) -> None:
        """Ends the read that the pace knows of."""
        with self._ready:
            if reader.counted:
                reader.counted = False
                self._reading -= 1
                now, limit = time.monotonic(), self._pace.limit
                if reader.failed:
                    reader.failed = False
                    self._pace.failed(now)
                elif not self._probe(seconds):
                    self._pace.done(length, seconds, now)
                self._grow(limit)

    def _probe(self, seconds: float) -> bool:
        """Judges by one of the first reads, which has taken so long, whether the source is far; says if it is."""
        far = self._probing and seconds > _NEAR_SECONDS
        if far:
            self._probing = False
            self._pace.leap(time.monotonic())
        return far

    def _grow(self, limit: int) -> None:
        """Wakes and starts threads for what the pace allows now, and did not when it was `limit`."""
        if (more := min(self._jobs, self._pace.limit + _AT_HOME) - self._threads) > 0 and self._pace.limit > limit:
            self._threads += more
            self._crew.grow(more)
        self._ready.notify(1 + max(0, self._pace.limit - limit))

    def _begin(self, state: ArrivingFile, told: Entry | None) -> None:
        """Refuses a file that shows another size or time than it was listed with."""
        if told is not None:
            self._refuse_change(state, told, "while it was read" if state.seen else "since it was listed")
            state.mtime_ns, state.seen = told.mtime_ns, True

    def _hash(self, reader: Reader, state: ArrivingFile, buffer: memoryview, length: int) -> bool:
        """Hashes the range in the buffer, and those after it that came before it; says if that was the file's end.

        One thread at a time hashes a file.
        """
        while True:
            state.hasher.update(buffer[:length])
            if buffer is not reader.small:
                with self._ready:
                    self._buffers.give(buffer)
                    self._ready.notify()
            with state.lock:
                state.hashed += length
                if state.hashed == state.asked.bytes:
                    # Whoever takes over what hangs from here on comes this way again.
                    state.hashing = False
                    return True
                if state.hashed not in state.arrived:
                    state.hashing = False
                    return False
                length, buffer = state.arrived.pop(state.hashed)

    def _finish(self, reader: Reader, state: ArrivingFile) -> None:
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
                    hint="read the source's file with another tool; an export that is damaged is to be exported again",
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
        with translated(state.temporary):
            if state.mtime_ns is not None:
                os.utime(state.descriptor, ns=(state.mtime_ns, state.mtime_ns))
            if self._durable and state.direct >= 0:
                # It has little to write yet; the small ones cost less all at once.
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
            limit = self._pace.limit
            if self._probing and any(reader.waits(_NEAR_SECONDS) for reader in self._readers):
                self._probe(2 * _NEAR_SECONDS)
                self._grow(limit)
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

    def _lack(self, state: ArrivingFile, digest: str) -> str | None:
        """What is wrong with the bytes that came, for a message; None where they are good."""
        if state.asked.xxh3_128 not in (None, digest):
            return "came with other bytes than the manifest's hash tells"
        if state.asked.path.endswith(".parquet") and not is_parquet(state.descriptor, state.asked.bytes):
            return "came as no whole Parquet file"
        return None

    def _refuse_change(self, state: ArrivingFile, shown: Entry, when: str) -> None:
        asked = state.asked
        if shown.bytes != asked.bytes:
            change = f"has {shown.bytes} bytes and not {asked.bytes}: it changed {when}"
        elif state.mtime_ns is not None and shown.mtime_ns != state.mtime_ns:
            change = f"was written again {when}"
        else:
            return
        raise VerificationFailed(f"`{state.whole}` {change}", hint="run `cache` again once nobody writes the source")

    def _abandon(self, state: ArrivingFile) -> None:
        if state.temporary is None:
            return
        # A descriptor that a hung thread may still write to must not become another file's.
        if self._crew.ended:
            state.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state.temporary)
