"""Encodes a column of vectors, lists of floating-point numbers without a NULL, as the pages of a Parquet column chunk.

Arrow's writer goes through such lists one by one, which is most of an export's time where rows hold embeddings. Here
the values are copied as they stand, and the levels are made for a page at a time. The format:
https://parquet.apache.org/docs/file-format/data-pages/ and .../data-pages/encodings/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage import thrift

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

# Arrow's own size of a page.
_PAGE_BYTES = 2**20
# Shorter lists are not worth it.
_LEAST_LENGTH = 4
# Thrift's kinds and Parquet's numbers: a data page, whose values are plain and whose levels are run-length encoded.
_INT32, _STRUCT = 5, 12
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of one column of a row group, each with its header before it.

    Attributes:
        pages: what stands in the file, in its order.
        values: how many numbers there are.
        count: how many pages.
        uncompressed, compressed: the bytes, with those of the headers.
    """

    pages: tuple[bytes | pa.Buffer, ...]
    values: int
    count: int
    uncompressed: int
    compressed: int


def is_vectors(column: pa.ChunkedArray) -> bool:
    """Whether a column is one of vectors: lists of floats, none NULL or empty, and long enough."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_list(column.type) and column.type.value_type in (pa.float32(), pa.float64())):
        return False
    if len(column) < 2 or column.null_count:  # noqa: PLR2004 - `digest` needs a row for each of two numbers
        return False
    values = sum(len(chunk.flatten()) for chunk in column.chunks)
    return (
        values >= _LEAST_LENGTH * len(column)
        and pc.min(pc.list_value_length(column)).as_py() > 0
        and not any(chunk.flatten().null_count for chunk in column.chunks)
    )


def digest(column: pa.ChunkedArray) -> pa.ListArray:
    """As many lists of one number each, with the same least and largest number: their statistics are the column's."""
    import numpy as np
    import pyarrow as pa

    kind = column.type.value_type
    found = [chunk.flatten().to_numpy() for chunk in column.chunks]
    # NaN has no part in statistics.
    numbers = np.full(len(column), np.nan, kind.to_pandas_dtype())
    numbers[0] = np.fmin.reduce([np.fmin.reduce(each, initial=np.nan) for each in found])
    numbers[-1] = np.fmax.reduce([np.fmax.reduce(each, initial=np.nan) for each in found])
    offsets = pa.py_buffer(np.arange(len(column) + 1, dtype=np.int32))
    values = pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(numbers)])
    return pa.Array.from_buffers(column.type, len(column), [None, offsets], children=[values])


def encode_vectors(column: pa.ChunkedArray, field: pa.Field, compression: str, level: int | None) -> Chunk:
    """Encodes what `is_vectors`.

    Args:
        column: of the field's type.
        field: as it stands in the file's schema.
        compression: what Arrow calls the codec, or `none`.
        level: the codec's; None for its default.
    """
    import numpy as np
    import pyarrow as pa

    codec = None if compression == "none" else pa.Codec(compression, level)
    # NULLs that could be, the list's entries, and NULLs among those; there are none, so that all is at the top.
    top = field.nullable + 1 + field.type.value_field.nullable
    pages: list[bytes | pa.Buffer] = []
    values = uncompressed = compressed = 0
    for starts, data in _pages(column):
        repetition = np.ones(len(data), np.uint8)
        repetition[starts] = 0
        packed = np.packbits(repetition, bitorder="little")
        repetitions = _varint(len(packed) << 1 | 1) + packed.tobytes()
        definitions = _varint(len(data) << 1) + bytes([top])
        body: bytes | pa.Buffer = b"".join([_sized(repetitions), _sized(definitions), data.data.cast("B")])
        size = len(body)
        if codec is not None:
            body = codec.compress(body)
        header = thrift.render(
            {
                1: (_INT32, _DATA_PAGE),
                2: (_INT32, size),
                3: (_INT32, len(body)),
                5: (_STRUCT, {1: (_INT32, len(data)), 2: (_INT32, _PLAIN), 3: (_INT32, _RLE), 4: (_INT32, _RLE)}),
            }
        )
        pages += [header, body]
        values += len(data)
        uncompressed += len(header) + size
        compressed += len(header) + len(body)
    return Chunk(tuple(pages), values, len(pages) // 2, uncompressed, compressed)


def _pages(column: pa.ChunkedArray) -> Iterator[tuple[NDArray[np.int32], NDArray[np.floating]]]:
    """Cuts the lists into pages of whole lists: where each begins among the page's numbers, and those."""
    import numpy as np

    for chunk in column.chunks:
        offsets = np.frombuffer(chunk.offsets.buffers()[1], np.int32)[
            chunk.offsets.offset : chunk.offsets.offset + len(chunk) + 1
        ]
        # Those of the slice alone: beyond it there may be a NULL.
        values = chunk.flatten().to_numpy()
        offsets = offsets - offsets[0]
        most = _PAGE_BYTES // values.itemsize
        at = 0
        while at < len(chunk):
            end = max(at + 1, int(np.searchsorted(offsets, offsets[at] + most, "right")) - 1)
            yield offsets[at:end] - offsets[at], values[offsets[at] : offsets[end]]
            at = end


def _sized(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels


def _varint(value: int) -> bytes:
    out = bytearray()
    thrift.write_varint(out, value)
    return bytes(out)
