"""How much `ParquetBatches` reads, mixes and holds at once: what it goes by, and what `inspect` tells beforehand."""

from __future__ import annotations

# Uncompressed bytes of row groups that are read at once where nothing is shuffled.
WINDOW_BYTES = 32 * 1024**2
# What waits between the threads that decode and the one that converts.
AHEAD_BYTES = 64 * 1024**2
# Those that decode, where no worker does it; a worker has one.
THREADS = 2
DEFAULT_BUFFER = 128 * 1024**2
# At most this part of all rows is shuffled together, unless that is less than a moment's work.
_MIXED_PARTS = 16
_LEAST_MIXED_BYTES = 16 * 1024**2


def mixed_bytes(total: int, buffer: int = DEFAULT_BUFFER) -> int:
    """The uncompressed bytes that are shuffled together, of so many in all; one row group at least is."""
    # Where a worker's run begins or ends within a window, it decodes all of it: small windows for few rows.
    return min(buffer, max(_LEAST_MIXED_BYTES, total // _MIXED_PARTS))
