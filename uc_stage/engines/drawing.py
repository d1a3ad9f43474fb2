"""Draws rows by hash, so that a sample, the splits and a shuffle are the same on every engine and in every run.

A row's hash is XXH64 over the purpose, the seed, the path of its data file as the log has it, and its position there,
each chained as the seed of the next, beginning with 42: what Spark's `xxhash64(purpose, seed, path, position)` gives.
https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

Purpose = Literal["sample", "split", "shuffle"]

_SPARK_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def row_hashes(purpose: Purpose, seed: int, path: str, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The hashes of some rows of one data file, signed as Spark has them; `positions` and the result are of shape (n,).

    `path` is relative to the table, decoded; an absolute URL where the log has one.
    """
    import xxhash

    return _hash_longs(positions, xxhash.xxh64_intdigest(path.encode(), _base(purpose, seed)))


def value_hashes(purpose: Purpose, seed: int, values: pa.Array) -> NDArray[np.int64]:
    """The hashes of a column's values, so that equal values are drawn alike; the result is of shape (n,).

    NULL leaves the chain as it is. Dates hash as four bytes and timestamps as eight, as in Spark.

    Raises:
        InvalidRequest: a type whose values Spark hashes otherwise, or that has several forms of one value.
    """
    import numpy as np
    import pyarrow as pa
    import xxhash

    base = _base(purpose, seed)
    encoded = values.dictionary_encode()
    pack = _packing(encoded.type.value_type)
    digests = [xxhash.xxh64_intdigest(pack(value), base) for value in _plain_values(encoded.dictionary)]
    table = np.array([*digests, base], dtype=np.uint64).view(np.int64)
    indices = encoded.indices.cast(pa.int64()).fill_null(len(digests))
    chosen: NDArray[np.int64] = table[indices.to_numpy(zero_copy_only=False)]
    return chosen


def check_group(name: str, kind: pa.DataType) -> None:
    """Refuses a column of a type that rows cannot be grouped by.

    Raises:
        InvalidRequest: naming the column and the types that can be.
    """
    try:
        _packing(kind)
    except InvalidRequest as error:
        raise InvalidRequest(f"`--split-by {name}`: {error.message}", hint=error.hint) from None


def thresholds(fractions: Sequence[float]) -> list[int]:
    """The signed hashes at which shares of these sizes end: a row belongs to the first that is above its hash.

    The last is 2**63, above all, where the fractions add up to one.
    """
    ends, total = [], 0.0
    for fraction in fractions:
        total += fraction
        # The sum of 0.9 and 0.1 may miss 1 by a rounding.
        ends.append(2**63 if abs(total - 1) < 1e-9 else round(total * 2**64) - 2**63)  # noqa: PLR2004 - rounding
    return ends


def shares(hashes: NDArray[np.int64], fractions: Sequence[float]) -> NDArray[np.int64]:
    """The index of the share that each hash falls in; `len(fractions)` where it is beyond all."""
    import numpy as np

    ends = [end for end in thresholds(fractions) if end < 2**63]
    found: NDArray[np.int64] = np.searchsorted(np.array(ends, dtype=np.int64), hashes, side="right")
    return found


def _base(purpose: str, seed: int) -> int:
    import xxhash

    named = xxhash.xxh64_intdigest(purpose.encode(), _SPARK_SEED)
    return int(xxhash.xxh64_intdigest(struct.pack("<q", seed), named))


def _hash_longs(values: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """XXH64 of each value's eight little-endian bytes: the algorithm's short form for one such lane."""
    import numpy as np

    p1, p2, p3, p4 = (np.uint64(prime) for prime in (_P1, _P2, _P3, _P4))

    def rotate(lanes: Any, bits: int) -> Any:
        return (lanes << np.uint64(bits)) | (lanes >> np.uint64(64 - bits))

    lanes = values.astype(np.int64, copy=False).view(np.uint64)
    state = np.uint64((seed + _P5 + 8) % 2**64) ^ (rotate(lanes * p2, 31) * p1)
    state = rotate(state, 27) * p1 + p4
    state ^= state >> np.uint64(33)
    state *= p2
    state ^= state >> np.uint64(29)
    state *= p3
    state ^= state >> np.uint64(32)
    signed: NDArray[np.int64] = state.view(np.int64)
    return signed


def _packing(kind: pa.DataType) -> Any:
    """How Spark lays out one value of a type for XXH64."""
    import pyarrow.types as is_a

    if is_a.is_string(kind):
        return lambda value: value.encode()
    if is_a.is_binary(kind):
        return lambda value: value
    if is_a.is_int64(kind) or is_a.is_timestamp(kind):
        return lambda value: struct.pack("<q", value)
    if is_a.is_integer(kind) or is_a.is_date32(kind):
        return lambda value: struct.pack("<i", value)
    raise InvalidRequest(
        f"values of type `{kind}` do not group rows", hint="take a column of strings, integers, dates or timestamps"
    )


def _plain_values(values: pa.Array) -> list[Any]:
    """Python values: those of times as the integers that they are stored as."""
    import pyarrow as pa
    import pyarrow.types as is_a

    if is_a.is_timestamp(values.type):
        values = values.view(pa.int64())
    if is_a.is_date32(values.type):
        values = values.view(pa.int32())
    found: list[Any] = values.to_pylist()
    return found
