"""Reads of a mount's files by processes of their own, past the page cache.

A read through FUSE that passes the page cache takes a third of the processor's time, and cannot be interrupted while
the mount does not answer, not even by SIGKILL: the process that waits so keeps what it holds. So it is another process,
which holds nothing but the source's files, and which this one can leave behind. It has an interpreter of its own, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from uc_stage.errors import Unsupported
from uc_stage.storage import aside
from uc_stage.storage.folder import Entry, translated
from uc_stage.storage.local import LocalFolder, refuse_way_out
from uc_stage.storage.space import kind_of

if TYPE_CHECKING:
    from uc_stage.storage.folder import Folder

# So many processes share the work; each has the threads of its connections.
_PROCESSES = 2
# What a process that was told to end gets, before somebody else waits for it.
_END_SECONDS = 0.5


class _Pages(mmap.mmap):
    """Memory that the other processes have, too, from `place` on in what they share."""

    place: int


def reading_apart(folder: Folder) -> Apart | None:
    """What reads a folder that is on a FUSE mount; None for any other one."""
    if not isinstance(folder, LocalFolder):
        return None
    with translated(folder.url):
        return Apart(folder) if kind_of(os.stat(folder.root).st_dev).startswith("fuse") else None


class Apart:
    """Processes that read one folder, the memory that they fill, and the connections to them.

    All methods may be called from any thread.
    """

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder
        self._memory = os.memfd_create("uc-stage", os.MFD_CLOEXEC)
        self._lock = threading.Lock()
        self._end = 0
        self._turn = 0
        self._processes: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        with suppress(OSError):  # without them, connections are refused
            self._processes.extend(self._start() for _ in range(_PROCESSES))

    def pages(self, size: int) -> memoryview:
        """Memory that reads can fill; `size` is a multiple of a page's."""
        with self._lock:
            place, self._end = self._end, self._end + size
            os.ftruncate(self._memory, self._end)
        pages = _Pages(self._memory, size, offset=place)
        pages.place = place
        return memoryview(pages)

    def connect(self) -> Connection:
        """A connection of the calling thread's own.

        Raises:
            OSError: there can be no process, or no connection to it.
        """
        with self._lock:
            if not self._processes:
                raise OSError(errno.ECHILD, "no process that reads")
            self._turn += 1
            _, control = self._processes[self._turn % len(self._processes)]
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    socket.send_fds(control, [b"c"], [theirs.fileno()])
                except OSError:
                    ours.close()
                    raise
        return Connection(ours, self._folder)

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603 - this interpreter and this package's own words
                    [sys.executable, "-I", "-S", aside.__file__, str(self._memory)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(self._memory,),
                    # What a terminal sends is for this process, which ends the other one.
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return process, ours

    def close(self) -> None:
        """Lets the processes end, and does not wait for one that hangs."""
        with self._lock:
            processes, self._processes = self._processes, []
            for _, control in processes:
                control.close()
            for process, _ in processes:
                try:
                    process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:  # noqa: PERF203 - there are two
                    process.kill()
                    threading.Thread(target=process.wait, daemon=True).start()
            os.close(self._memory)


class Connection:
    """One thread's connection to a process that reads."""

    def __init__(self, line: socket.socket, folder: LocalFolder) -> None:
        self._line, self._folder = line, folder

    def ranges(self, path: str, *, look: bool) -> ApartRanges:
        """A file for reading ranges of it into memory of `Apart.pages`; the first read opens it.

        `look`: what it is like after each read is to be told, too.
        """
        return ApartRanges(self._line, path, self._folder, look)

    def close(self) -> None:
        """Ends it."""
        self._line.close()


class ApartRanges:
    """A file that another process has open for reading ranges of it."""

    def __init__(self, line: socket.socket, path: str, folder: LocalFolder, look: bool) -> None:
        self._line, self._path, self._look = line, path, look
        self._whole, self._root = folder.locate(path), folder.root
        self._anew = True
        self.told: Entry | None = None
        self.after: Entry | None = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fills memory of `Apart.pages` from the offset on, and gives the bytes read."""
        pages = buffer.obj
        assert isinstance(pages, _Pages)
        return self._ask(pages.place, len(pages), offset, len(buffer))

    def forget(self) -> None:
        """Drops what the page cache has of the file, which others read through, and lets the next read open it anew."""
        self._ask(0, 0, 0, 0, drop=True)
        self._anew = True

    def close(self) -> None:
        """Leaves the file: the other process lets go of it when it is asked for another one."""

    def _ask(self, place: int, size: int, offset: int, length: int, *, drop: bool = False) -> int:
        request = aside.REQUEST.pack(place, size, offset, length, self._anew, drop, self._look)
        with translated(self._whole):
            self._line.send(request + os.fsencode(self._whole))
            if not (answer := self._line.recv(aside.MESSAGE_BYTES)):
                raise OSError(errno.EIO, "the process that reads it has ended")
            failure, got, size_told, mtime_ns, size_after, mtime_after = aside.ANSWER.unpack_from(answer)
            if real := answer[aside.ANSWER.size :]:
                refuse_way_out(self._whole, os.fsdecode(real), self._root)
            if failure == errno.EBADFD:
                raise Unsupported(f"`{self._whole}` is not a file", hint="move it away")
            if failure:
                raise OSError(failure, os.strerror(failure))
        self._anew = False
        self.told = Entry(self._path, size_told, mtime_ns)
        self.after = Entry(self._path, size_after, mtime_after) if self._look else None
        return int(got)
