"""Finds dates and times that an old writer told by the calendar of its day, and that would be read as other ones.

Spark marks such files; it moves their values when it reads them, from the Julian calendar and from local mean times.
https://spark.apache.org/docs/latest/sql-data-sources-parquet.html (`datetimeRebaseModeInRead`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
# 1582-10-15, the first day of the Gregorian calendar, in days; 1900-01-01, since when all zones keep standard time.
_FIRST_DAY = -141_427
_FIRST_MICRO = -2_208_988_800_000_000


def is_marked(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Whether a Parquet file's footer says that its writer kept the old calendar."""
    return any(mark in (metadata or {}) for mark in _MARKS)


def has_times(kind: pa.DataType) -> bool:
    """Whether a plain type holds dates or times, at any depth."""
    import pyarrow.types as is_a

    if is_a.is_date(kind) or is_a.is_timestamp(kind):
        return True
    return any(has_times(kind.field(index).type) for index in range(kind.num_fields))


def is_ambiguous(array: pa.Array) -> bool:
    """Whether an array of a plain type holds a date or time so early that the old calendar told it otherwise."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_a

    kind = array.type
    if is_a.is_date(kind):
        return _least(pc.min(array.cast(pa.int32()))) < _FIRST_DAY
    if is_a.is_timestamp(kind):
        return _least(pc.min(array.cast(pa.int64()))) < _FIRST_MICRO
    if is_a.is_map(kind):
        return is_ambiguous(array.keys) or is_ambiguous(array.items)
    if is_a.is_list(kind):
        return is_ambiguous(array.values)
    return any(is_ambiguous(part) for part in array.flatten()) if is_a.is_struct(kind) else False


def _least(found: pa.Scalar) -> int:
    return int(found.as_py()) if found.is_valid else 0
