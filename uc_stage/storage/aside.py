"""The program of a process that reads files for another one, into memory that both have.

It is run as a script, with the standard library alone: it has to be there in a few hundredths of a second.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import sys
import threading

# Where in the memory, and how large that part is; the first byte and how many; whether the file is to be opened anew,
# to be dropped from the page cache, and to be looked at again once it is read. The path follows.
REQUEST = struct.Struct("=QQQQ???")
# What failed (errno, or 0), the bytes read; size and time (in ns) before the open and after the read, or -1. The path
# that the file really has follows.
ANSWER = struct.Struct("=iqqqqq")
MESSAGE_BYTES = 16 * 1024

_BLOCK_BYTES = 4096


class _Reader:
    """One connection: it holds the file that it read last open."""

    def __init__(self, connection: socket.socket, memory: int, parts: dict[int, memoryview]) -> None:
        self._connection, self._memory, self._parts = connection, memory, parts
        self._path = b""
        self._descriptor = -1
        self._direct = False
        self._told = (-1, -1)
        self._real = b""

    def serve(self) -> None:
        """Answers requests until nobody is there to ask."""
        try:
            while message := self._connection.recv(MESSAGE_BYTES):
                self._connection.send(self._answer(message))
        except OSError:
            return
        finally:
            self._close()
            self._connection.close()

    def _answer(self, message: bytes) -> bytes:
        place, size, offset, length, anew, drop, look = REQUEST.unpack_from(message)
        path = message[REQUEST.size :]
        try:
            if anew or path != self._path:
                self._open(path)
            if drop:
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            got = self._read(self._part(place, size), offset, length) if length else 0
            after = _shown(os.stat(path)) if look else (-1, -1)
        except OSError as error:
            self._close()
            return ANSWER.pack(error.errno or errno.EIO, 0, *self._told, -1, -1) + self._real
        return ANSWER.pack(0, got, *self._told, *after) + self._real

    def _open(self, path: bytes) -> None:
        self._close()
        # What the name leads to is looked at before it is opened: a pipe would wait for its writer.
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            shown = os.fstat(found)
            self._told = _shown(shown)
            self._real = os.readlink(b"/proc/self/fd/%d" % found)
            if not stat.S_ISREG(shown.st_mode):
                raise OSError(errno.EBADFD, "")
            again = b"/proc/self/fd/%d" % found
            try:
                self._descriptor = os.open(again, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                self._direct = True
            except OSError:
                # A file system refuses what it does not know by errors of several kinds; any other one comes again.
                self._descriptor = os.open(again, os.O_RDONLY | os.O_CLOEXEC)
                self._direct = False
        finally:
            os.close(found)
        self._path = path

    def _read(self, part: memoryview, offset: int, length: int) -> int:
        done, end = 0, min(len(part), -(-length // _BLOCK_BYTES) * _BLOCK_BYTES)
        while done < length:
            try:
                got = os.preadv(self._descriptor, [part[done:end]], offset + done)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP) or not self._direct:
                    raise
                # There are file systems that open a file so, and file ends where the rest is no whole block.
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                self._direct = False
                continue
            if not got:
                break
            done += got
        return min(done, length)

    def _part(self, place: int, size: int) -> memoryview:
        if place not in self._parts:
            self._parts[place] = memoryview(mmap.mmap(self._memory, size, offset=place))
        return self._parts[place]

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._path, self._told, self._real = -1, b"", (-1, -1), b""


def _shown(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def serve(control: socket.socket, memory: int) -> None:
    """Serves each connection that comes, in a thread of its own, until nobody is there to send one."""
    parts: dict[int, memoryview] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        reader = _Reader(socket.socket(fileno=descriptors[0]), memory, parts)
        threading.Thread(target=reader.serve, daemon=True).start()


if __name__ == "__main__":
    serve(socket.socket(fileno=0), int(sys.argv[1]))
    # Its threads may wait for a mount that does not answer.
    os._exit(0)
