"""How outputs get their names: each is written, once all of its parts are here, by the thread that brought the last."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from uc_stage.model import CopyFile
from uc_stage.publish import HashedFile, Written
from uc_stage.storage import LocalFolder, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from uc_stage.forms import Outputs
    from uc_stage.progress import Progress
    from uc_stage.publish import CopyPublication

# So many bytes of the source wait to be written at most, or one output's, where that has more.
WAITING_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the source as it came: `here` is its local path, for as long as its output is written."""

    file: CopyFile
    here: str


class OutputSink:
    """A `FormSink` whose outputs are each written in one go, by `write`, from first byte to last.

    Each file of the source is a part of one output alone. An output has the latest time of its parts.
    """

    def __init__(
        self,
        publication: CopyPublication,
        outputs: Outputs,
        write: Callable[[str, Sequence[Part], BinaryIO], None],
        at_once: int,
        sizes: Mapping[str, int],
        progress: Progress,
    ) -> None:
        self._publication, self._outputs, self._write = publication, outputs, write
        self._sizes, self._progress = sizes, progress
        self._output_of = {file.path: path for path, files in outputs.items() for file in files}
        self._turn = threading.BoundedSemaphore(at_once)
        # Guards all that follows it.
        self._lock = threading.Lock()
        self._waiting = 0
        self._begun: set[str] = set()
        self._here: dict[str, Part] = {}
        self._closed = threading.Event()
        self.written: list[CopyFile] = []

    def temporary(self) -> str:
        """A path of this process's own for a file that has no name yet."""
        return self._publication.temporary()

    def takes(self, file: CopyFile) -> bool:
        """Whether there is room for the file's output among those that wait to be written."""
        output = self._output_of[file.path]
        with self._lock:
            if output not in self._begun:
                size = self._size(output)
                if self._waiting and self._waiting + size > WAITING_BYTES:
                    return False
                self._begun.add(output)
                self._waiting += size
        return True

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Takes a part, and writes its output where that has all of them now.

        Raises what `write` raises; the output has no name then.
        """
        output = self._output_of[file.path]
        with self._lock:
            self._here[file.path] = Part(file, temporary)
            if not all(part.path in self._here for part in self._outputs[output]):
                return
            parts = [self._here.pop(part.path) for part in self._outputs[output]]
        try:
            with self._turn:
                made = self._make(output, parts)
        finally:
            for part in parts:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part.here)
        with self._lock:
            self.written.append(made)
            self._waiting -= self._size(output)

    def close(self) -> None:
        """Removes the parts that wait, and has the writes of outputs that are under way fail."""
        self._closed.set()
        with self._lock:
            for part in self._here.values():
                with contextlib.suppress(OSError):
                    os.unlink(part.here)

    def _make(self, output: str, parts: Sequence[Part]) -> CopyFile:
        temporary = self._publication.temporary()
        above, name = os.path.split(temporary)
        told: dict[str, Written] = {}
        mtime_ns = max(part.file.mtime_ns or 0 for part in parts)
        try:
            with translated(temporary):
                with HashedFile(LocalFolder(above).create(name), output, told) as file:
                    shown = _Shown(file, self._closed, self._progress, self._sizes[output])
                    self._write(output, parts, cast("BinaryIO", shown))
                    # Before the file is synced, and after its last byte.
                    file.flush()
                    os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
                mtime_ns = os.stat(temporary).st_mtime_ns
            made = CopyFile(output, told[output].bytes, mtime_ns, told[output].xxh3_128)
            self._publication.accept(temporary, made)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._progress.advance(shown.left)
        return made

    def _size(self, output: str) -> int:
        return sum(file.bytes for file in self._outputs[output])


class _ClosedError(Exception):
    """The run that an output was written for has ended."""


class _Shown:
    """A file whose bytes the progress is told of as they pass, but of no more than it was told to expect.

    Who writes it cannot close it: pyarrow would, and the file has yet to get its time.
    """

    closed = False

    def __init__(self, file: HashedFile, stopped: threading.Event, progress: Progress, total: int) -> None:
        self._file, self._stopped, self._progress, self.left = file, stopped, progress, total

    def write(self, data: Any) -> int:
        """Writes bytes, and gives their number."""
        if self._stopped.is_set():
            raise _ClosedError
        count = self._file.write(data)
        amount = min(count, self.left)
        self.left -= amount
        self._progress.advance(amount)
        return count

    def flush(self) -> None:
        """Does nothing, like `close`: the sink does both."""

    def close(self) -> None:
        """See `flush`."""


def waiting(outputs: Outputs) -> int:
    """The most bytes of parts that an `OutputSink` for these outputs has lie there at once."""
    sizes = [sum(file.bytes for file in files) for files in outputs.values()]
    return min(sum(sizes), max(WAITING_BYTES, *sizes, 0))
