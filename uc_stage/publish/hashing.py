"""Files that are hashed as their bytes pass."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from uc_stage.errors import StageError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What passed into a file that this process wrote: its bytes and their hash."""

    bytes: int
    xxh3_128: str


class HashedFile:
    """A file that is hashed as its bytes pass; what was written is told once it is closed."""

    def __init__(self, file: BinaryIO, name: str, told: dict[str, Written]) -> None:
        import xxhash

        self._file, self._name, self._told = file, name, told
        self._hasher = xxhash.xxh3_128()
        self._bytes = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        """Writes bytes, and gives their number."""
        with self._lock:
            self._hasher.update(data)
            count = self._file.write(data)
            self._bytes += count
            return count

    def close(self) -> None:
        """Closes the file, whose bytes are durable then, and tells what was written."""
        with self._lock:
            self._file.close()
            self._told[self._name] = Written(self._bytes, self._hasher.hexdigest())

    def abandon(self, deadline: float) -> bool:
        """Closes the file for good, whatever a thread is at with it; False where that thread does not let go of it."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            # It is about to be removed.
            with contextlib.suppress(OSError, StageError):
                self._file.close()
        finally:
            self._lock.release()
        return True
