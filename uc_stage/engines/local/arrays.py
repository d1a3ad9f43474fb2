"""Arrow arrays over NumPy's memory. `pyarrow.array` would import pandas, where it is installed: a second or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


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
