"""Puts a Parquet file together from row groups that were encoded apart, so that every core encodes one file.

pyarrow encodes one row group of a file at a time. Here each is encoded as a file of its own in memory; its pages are
appended as they are, and a footer is written that tells their new places. The format:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from uc_stage import thrift

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from uc_stage.model import Compression

MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_SLACK_BYTES = 2**20
# Level 1 is the fastest by far at sizes within a few percent of level 3's.
_ZSTD_LEVEL = 1

# Field numbers of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_OFFSET = 1, 5
_CHUNK_OFFSET, _META_DATA = 2, 3
_PAGE_OFFSETS = (9, 10, 11)  # of the data pages, the index page and the dictionary page


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row group's pages, as they stand behind the magic of a file, and the footer of that file."""

    pages: memoryview
    footer: thrift.Struct
    rows: int


def encode(rows: pa.Table, schema: pa.Schema, compression: Compression, dictionaries: Sequence[str]) -> Encoded:
    """Encodes a table as one row group; an empty one as none.

    Args:
        rows: of `schema`.
        schema: all files of an export have the same.
        compression: of the pages.
        dictionaries: the paths of the Parquet columns that are tried with a dictionary.
    """
    import pyarrow as pa

    # Room that is not used is never touched, while a stream that grows is copied as often as it doubles.
    room = pa.allocate_buffer(rows.nbytes + rows.nbytes // 8 + _SLACK_BYTES)
    sink = pa.FixedSizeBufferWriter(room)
    try:
        _write(rows, sink, schema, compression, dictionaries)
        data = memoryview(room)[: sink.tell()]
    except pa.ArrowInvalid:
        # Empty strings and NULLs take more in a file than in memory.
        stream = pa.BufferOutputStream()
        _write(rows, stream, schema, compression, dictionaries)
        data = memoryview(stream.getvalue())
    length = int.from_bytes(data[-len(MAGIC) - _LENGTH_BYTES : -len(MAGIC)], "little")
    end = len(data) - len(MAGIC) - _LENGTH_BYTES - length
    return Encoded(data[len(MAGIC) : end], thrift.parse(bytes(data[end : end + length])), rows.num_rows)


def _write(
    rows: pa.Table, sink: pa.NativeFile, schema: pa.Schema, compression: Compression, dictionaries: Sequence[str]
) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(
        sink,
        schema,
        compression=compression,
        compression_level=_ZSTD_LEVEL if compression == "zstd" else None,
        use_dictionary=list(dictionaries),
        # Readers then see Parquet's own types, which every engine writes alike.
        store_schema=False,
    ) as writer:
        if rows.num_rows:
            writer.write_table(rows, row_group_size=rows.num_rows)


class Assembly:
    """A Parquet file that row groups are appended to, in their order; `sink` is written from its first byte on."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._at = sink.write(MAGIC)
        self._rows = 0
        self._footer: thrift.Struct = {}
        self._groups: list[thrift.Struct] = []

    def append(self, encoded: Encoded) -> None:
        """Writes a row group's pages behind those that are there."""
        shift = self._at - len(MAGIC)
        self._footer = self._footer or encoded.footer
        for group in encoded.footer[_ROW_GROUPS][1].values:
            _move(group, shift)
            self._groups.append(group)
        self._sink.write(encoded.pages)
        self._at += len(encoded.pages)
        self._rows += encoded.rows

    def close(self) -> None:
        """Writes the footer and closes the sink."""
        kind, groups = self._footer[_ROW_GROUPS]
        footer = thrift.render(
            {
                **self._footer,
                _NUM_ROWS: (self._footer[_NUM_ROWS][0], self._rows),
                _ROW_GROUPS: (kind, thrift.Items(groups.kind, list(self._groups))),
            }
        )
        tail = io.BytesIO()
        tail.write(footer)
        tail.write(len(footer).to_bytes(_LENGTH_BYTES, "little"))
        tail.write(MAGIC)
        self._sink.write(tail.getvalue())
        self._sink.close()


def _move(group: thrift.Struct, shift: int) -> None:
    """Adds `shift` to all the places in a file that a row group tells of."""
    for chunk in group[_COLUMNS][1].values:
        _add(chunk, _CHUNK_OFFSET, shift)
        for field in _PAGE_OFFSETS:
            _add(chunk[_META_DATA][1], field, shift)
    _add(group, _GROUP_OFFSET, shift)


def _add(struct: thrift.Struct, field: int, shift: int) -> None:
    # An offset of 0 means that there is none.
    if field in struct and struct[field][1]:
        struct[field] = (struct[field][0], struct[field][1] + shift)
