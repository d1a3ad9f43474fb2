"""What a Parquet footer tells of each column in each row group: types, encodings, codecs, bytes, NULLs.

The names and numbers are those of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage import thrift

if TYPE_CHECKING:
    from collections.abc import Iterator

# By the numbers of `CompressionCodec`.
CODECS = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
# By those of `Encoding`; the second is no longer in use.
_ENCODINGS = (
    "PLAIN", "GROUP_VAR_INT", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT",
)  # fmt: skip
_LEVELS = {"RLE", "BIT_PACKED"}
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3

# The fields of RowGroup, ColumnChunk, ColumnMetaData, Statistics, PageEncodingStats and PageHeader by their numbers.
_COLUMNS, _ROWS = 1, 3
_META_DATA, _CRYPTO, _ENCRYPTED = 3, 8, 9
_USED, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_AT, _DICTIONARY_AT = 2, 4, 5, 6, 7, 9, 11
_STATISTICS, _PAGES = 12, 13
_NULLS, _DISTINCT = 3, 4
_PAGE_TYPE, _PAGE_ENCODING = 1, 2
_HEADER_TYPE, _DICTIONARY_HEADER, _HEADER_VALUES = 1, 7, 1
# Of PageHeader and DataPageHeaderV2.
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED, _HEADER_V2, _DEFINITION_BYTES, _REPETITION_BYTES = 2, 3, 8, 5, 6

_NUMBERS: thrift.Shape = dict.fromkeys((_USED, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_AT, _DICTIONARY_AT))
_STATISTIC: thrift.Shape = {_NULLS: None, _DISTINCT: None}
_PAGE: thrift.Shape = {_PAGE_TYPE: None, _PAGE_ENCODING: None}
_CHUNK: thrift.Shape = {
    _META_DATA: {**_NUMBERS, _STATISTICS: _STATISTIC, _PAGES: _PAGE},
    _CRYPTO: {},
    _ENCRYPTED: None,
}
_WANTED: thrift.Shape = {_COLUMNS: _CHUNK, _ROWS: None}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the Parquet schema: see `model.Column`."""

    path: str
    column: str
    physical: str
    logical: str | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One leaf's bytes in one row group: see `model.Column`.

    Attributes:
        start, bytes: where its pages lie in the file.
        distinct: the values that differ, where the writer counted them.
        dictionary: the offset of the page that holds each value once; None where values stand outside of one too.
        encrypted: nothing else is known then.
    """

    start: int
    bytes: int
    uncompressed: int
    values: int
    nulls: int | None
    encodings: frozenset[str]
    codec: str
    distinct: int | None
    dictionary: int | None
    encrypted: bool = False


_HIDDEN = Chunk(0, 0, 0, 0, None, frozenset(), "none", None, None, encrypted=True)


def read_chunks(footer: bytes) -> list[tuple[Chunk, ...]]:
    """The chunks of each row group, in the order of the schema's leaves.

    Raises:
        ValueError: the bytes are no footer, or it contradicts the format; the message says how.
    """
    return [tuple(_chunk(one) for one in group.get(_COLUMNS, ())) for group in thrift.row_groups(footer, _WANTED)]


def read_leaves(schema: Any, columns: list[str]) -> tuple[Leaf, ...]:
    """The leaves of a `pyarrow.parquet.ParquetSchema`, whose columns have these names."""
    known = set(columns)
    return tuple(_leaf(schema.column(number), known) for number in range(len(schema)))


def read_distinct(page: bytes) -> int | None:
    """How many values the dictionary page holds whose first bytes these are; None where they are of another page."""
    try:
        header = thrift.picked(page, {_HEADER_TYPE: None, _DICTIONARY_HEADER: {_HEADER_VALUES: None}})
    except ValueError:
        return None
    count = header.get(_DICTIONARY_HEADER, {}).get(_HEADER_VALUES)
    return count if header.get(_HEADER_TYPE) == _DICTIONARY_PAGE and isinstance(count, int) and count >= 0 else None


def read_pages(data: Any) -> Iterator[tuple[Any, int]]:
    """What a codec has compressed in each page of a chunk's bytes, and how many bytes it is before compression.

    Raises:
        ValueError: the bytes are no pages.
    """
    levels_shape: thrift.Shape = {_DEFINITION_BYTES: None, _REPETITION_BYTES: None}
    wanted: thrift.Shape = {_PAGE_UNCOMPRESSED: None, _PAGE_COMPRESSED: None, _HEADER_V2: levels_shape}
    at = 0
    while at < len(data):
        header, length = thrift.headed(data[at:], wanted)
        # The levels of a page of the second kind stand before the values, as they are.
        told = header.get(_HEADER_V2, {})
        levels = _number(told, _DEFINITION_BYTES) + _number(told, _REPETITION_BYTES)
        start, at = at + length + levels, at + length + _number(header, _PAGE_COMPRESSED)
        yield data[start:at], _number(header, _PAGE_UNCOMPRESSED) - levels


def _chunk(told: dict[int, Any]) -> Chunk:
    if _CRYPTO in told or _ENCRYPTED in told:
        return _HIDDEN
    if _META_DATA not in told:
        raise ValueError("it tells of a column without saying where it lies")
    data = told[_META_DATA]
    statistics = data.get(_STATISTICS, {})
    dictionary = _number(data, _DICTIONARY_AT, None)
    first = _number(data, _DATA_AT)
    encodings, pages = _encodings(data)
    return Chunk(
        # Some writers put 0 for a dictionary page that is not there.
        start=min(first, dictionary) if dictionary else first,
        bytes=_number(data, _COMPRESSED),
        uncompressed=_number(data, _UNCOMPRESSED),
        values=_number(data, _VALUES),
        nulls=_number(statistics, _NULLS, None),
        encodings=encodings,
        codec=_named(CODECS, _number(data, _CODEC), "compression codec"),
        distinct=_number(statistics, _DISTINCT, None),
        dictionary=dictionary if dictionary and pages and encodings <= _DICTIONARIES else None,
    )


def _encodings(data: dict[int, Any]) -> tuple[frozenset[str], bool]:
    """The encodings of the values, and whether the footer tells them page by page."""
    pages = tuple(
        page.get(_PAGE_ENCODING, 0)
        for page in data.get(_PAGES, ())
        if page.get(_PAGE_TYPE, 0) in (_DATA_PAGE, _DATA_PAGE_V2)
    )
    if pages:
        return _known(pages), True
    used = data.get(_USED)
    # The list holds those of the levels too, and with a dictionary that of its page.
    every = _known(tuple(used.values) if isinstance(used, thrift.Items) else ())
    return every - _LEVELS or every, False


@functools.lru_cache
def _known(numbers: tuple[Any, ...]) -> frozenset[str]:
    return frozenset(_named(_ENCODINGS, number, "encoding") for number in numbers)


def _number(told: dict[int, Any], field: int, missing: Any = 0) -> Any:
    value = told.get(field, missing)
    if value is not missing and (not isinstance(value, int) or value < 0):
        raise ValueError("a count or a size in it is none")
    return value


def _named(names: tuple[str, ...], number: Any, what: str) -> str:
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise ValueError(f"it names the unknown {what} {number}")
    return names[number]


def _leaf(leaf: Any, columns: set[str]) -> Leaf:
    column = leaf.path
    while column not in columns and "." in column:
        column = column.rpartition(".")[0]
    return Leaf(leaf.path, column, leaf.physical_type, _logical(json.loads(leaf.logical_type.to_json())))


def _logical(told: dict[str, Any]) -> str | None:
    name = told["Type"].lower()
    if name == "none":
        return None
    if name == "decimal":
        return f"decimal({told['precision']}, {told['scale']})"
    if name == "int":
        return f"{'' if told['isSigned'] else 'u'}int{told['bitWidth']}"
    if "timeUnit" in told:
        unit = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}.get(told["timeUnit"], "?")
        return f"{name}({unit}, UTC)" if told["isAdjustedToUTC"] else f"{name}({unit})"
    return str(name)
