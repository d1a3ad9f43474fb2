"""Puts a Parquet file together from row groups that were encoded apart, so that every core encodes one file.

pyarrow encodes one row group of a file at a time. Here each is encoded as a file of its own in memory; its pages are
appended as they are, and a footer is written that tells their new places. The format:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from uc_stage import thrift
from uc_stage.engines.local.encoding import LENGTH_BYTES, MAGIC

if TYPE_CHECKING:
    from uc_stage.engines.local.encoding import Encoded


# Field numbers of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_OFFSET = 1, 5
_CHUNK_OFFSET, _META_DATA = 2, 3
_PAGE_OFFSETS = (9, 10, 11)  # of the data pages, the index page and the dictionary page


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
        for piece in encoded.pieces:
            self._at += self._sink.write(piece)
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
        tail.write(len(footer).to_bytes(LENGTH_BYTES, "little"))
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
