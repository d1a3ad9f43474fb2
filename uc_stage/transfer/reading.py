"""How one thread reads its source: it tries again what may pass, and another thread what hangs."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from uc_stage.buffers import SMALL_BYTES, pages
from uc_stage.errors import NotFound, Unavailable
from uc_stage.storage import ApartRanges
from uc_stage.transfer import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from uc_stage.storage import Apart, Connection, Entry, Folder, Ranges
    from uc_stage.transfer.arriving import ArrivingFile

_T = TypeVar("_T")

# What one thread waits before each further try of a read that failed, give or take a half; the last one stays.
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)


class HungError(Exception):
    """A read came back after another thread was set at it."""


class Reader:
    """One thread's way to the source: it holds the file that it read last open, and tries again what may pass."""

    def __init__(self, folder: Folder, stopped: threading.Event, retries: int, apart: Apart | None) -> None:
        self._folder, self._stopped, self._retries, self._apart = folder, stopped, retries, apart
        self._connection: Connection | None = None
        self.thread = threading.current_thread()
        self.small = apart.pages(SMALL_BYTES) if apart else pages(SMALL_BYTES)
        self.state: ArrivingFile | None = None
        self.counted = self.failed = False
        self._task: tuple[ArrivingFile, int, int, memoryview | None] | None = None
        # When the call that is under way began. Who takes that out goes on with the task: the thread or, where that
        # hangs, another one.
        self._since: list[float] = []
        self._path = ""
        self._ranges: Ranges | None = None

    def take_up(self, state: ArrivingFile, offset: int, length: int, buffer: memoryview | None) -> None:
        """Notes what the thread is at; a range that comes with a buffer is one that the pace counts."""
        self._task = state, offset, length, buffer
        self.state = state
        self.counted = buffer is not None

    def lose(self, timeout: float) -> tuple[ArrivingFile, int, int, memoryview | None] | None:
        """What the thread is at and is never to go on with, where a call takes longer than `timeout` seconds."""
        with contextlib.suppress(IndexError):
            if time.monotonic() - self._since[-1] > timeout:
                self._since.pop()
                return self._task
        return None

    def waits(self, seconds: float) -> bool:
        """Whether the call that is under way takes longer."""
        with contextlib.suppress(IndexError):
            return time.monotonic() - self._since[-1] > seconds
        return False

    def stat(self) -> Entry:
        """Size and time of the file as they are now that it was read."""
        after = self._ranges.after if isinstance(self._ranges, ApartRanges) else None
        entry = after or self._persist(lambda: self._folder.stat(self._path))
        if entry is None:
            raise NotFound(
                f"`{self._folder.locate(self._path)}` went away while it was read",
                hint="run `cache` again once nobody writes the source",
            )
        return entry

    @property
    def told(self) -> Entry | None:
        """Size and time of the file that was read last as its opening told them, if it did."""
        return self._ranges.told if self._ranges else None

    def read(self, buffer: memoryview, offset: int) -> int:
        """Fills the buffer from the offset on, as far as the file goes, and gives the bytes read."""
        return self._persist(lambda: self._open().read_into(buffer, offset))

    def forget(self) -> None:
        """Makes the next read ask the storage."""
        self._persist(lambda: self._open().forget())
        self.close()

    def end(self) -> None:
        """Lets go of the file, and of the process that reads it."""
        self.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
            if connection := self._connect():
                asked = self.state.asked
                # One look for all of a file that is read at once; the trip is left out where the hash tells.
                look = asked.xxh3_128 is None and asked.bytes <= ranges.RANGE_BYTES
                self._ranges = connection.ranges(self._path, look=look)
                return self._ranges
            self._ranges = self._folder.ranges(self._path, once=True)
            if self.state.hangs:
                # Else it would wait for the same pages.
                self._ranges.forget()
        return self._ranges

    def _connect(self) -> Connection | None:
        """The way to a process that reads, where there is to be one and can be."""
        if self._connection is None and self._apart:
            try:
                self._connection = self._apart.connect()
            except OSError:
                self._apart = None
        return self._connection

    def _persist(self, act: Callable[[], _T]) -> _T:
        """Does it, and again after a pause where the storage failed; a stop of the whole ends the pauses."""
        for count in range(self._retries):
            try:
                return self._ask(act)
            except Unavailable:  # noqa: PERF203 - a read costs a thousand times more
                self.failed = True
                # A handle may be what is broken (ESTALE, a lost connection).
                self.end()
                # Not all threads at the same moment again.
                seconds = _RETRY_SECONDS[min(count, len(_RETRY_SECONDS) - 1)] * random.uniform(0.5, 1.5)  # noqa: S311
                if self._stopped.wait(seconds):
                    raise
        return self._ask(act)

    def _ask(self, act: Callable[[], _T]) -> _T:
        """Does it, and notes that it is under way.

        Raises:
            HungError: it took so long that another thread does it again.
        """
        self._since.append(time.monotonic())
        try:
            return act()
        finally:
            try:
                self._since.pop()
            except IndexError:
                raise HungError from None
