"""Arrow's memory: arrays over NumPy's, and the pool that it comes from.

`pyarrow.array` would import pandas, where it is installed: a second or two.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


@contextlib.contextmanager
def reusing_memory() -> Iterator[None]:
    """Has Arrow take its memory from jemalloc, where it has that and nobody chose another pool.

    Its default gives large pieces back to the system at once; to touch them anew takes a fifth of an
    export's time where page faults are slow.
    """
    import pyarrow as pa

    before = pa.default_memory_pool()
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        with contextlib.suppress(NotImplementedError):  # not every build of pyarrow holds it
            pa.set_memory_pool(pa.jemalloc_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def int64_array(values: NDArray[np.int64]) -> pa.Int64Array:
    """The values of shape (n,) without a copy."""
    import numpy as np
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def boolean_array(values: NDArray[np.bool_]) -> pa.BooleanArray:
    """The values of shape (n,), packed into bits as Arrow has them."""
    import numpy as np
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
