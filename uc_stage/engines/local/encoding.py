"""Encodes row groups, each as it will stand in a file of its own: what Arrow writes, but for columns of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage import thrift
from uc_stage.engines.local.vectors import Chunk, digest, encode_vectors, is_vectors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from uc_stage.model import Compression

MAGIC = b"PAR1"
LENGTH_BYTES = 4
_SLACK_BYTES = 2**20
# Level 1 is the fastest by far at sizes within a few percent of level 3's.
_ZSTD_LEVEL = 1

# Field numbers of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and PageEncodingStats.
_ROW_GROUPS = 4
_COLUMNS, _GROUP_UNCOMPRESSED, _GROUP_COMPRESSED = 1, 2, 6
_META_DATA = 3
_PATH, _VALUES, _UNCOMPRESSED, _COMPRESSED = 3, 5, 6, 7
_DATA_OFFSET, _DICTIONARY_OFFSET, _ENCODING_STATS, _SIZE_STATISTICS = 9, 11, 13, 16
_COUNT = 3


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row group's pages, as they stand behind the magic of a file, and the footer of that file."""

    pieces: tuple[bytes | memoryview | pa.Buffer, ...]
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
    level = _ZSTD_LEVEL if compression == "zstd" else None
    chunks: dict[bytes, Chunk] = {}
    for index, field in enumerate(schema):
        column = rows.column(index)
        if is_vectors(column):
            chunks[field.name.encode()] = encode_vectors(column, field, compression, level)
            rows = rows.set_column(index, field, digest(column))
    data = _written(rows, schema, compression, level, dictionaries)
    length = int.from_bytes(data[-len(MAGIC) - LENGTH_BYTES : -len(MAGIC)], "little")
    end = len(data) - len(MAGIC) - LENGTH_BYTES - length
    footer = thrift.parse(bytes(data[end : end + length]))
    pieces = _exchanged(footer, data, chunks) if chunks else (data[len(MAGIC) : end],)
    return Encoded(pieces, footer, rows.num_rows)


def _written(
    rows: pa.Table, schema: pa.Schema, compression: Compression, level: int | None, dictionaries: Sequence[str]
) -> memoryview:
    """A file of one row group, as Arrow writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(sink: pa.NativeFile) -> None:
        with pq.ParquetWriter(
            sink,
            schema,
            compression=compression,
            compression_level=level,
            use_dictionary=list(dictionaries),
            # Readers then see Parquet's own types, which every engine writes alike.
            store_schema=False,
        ) as writer:
            if rows.num_rows:
                writer.write_table(rows, row_group_size=rows.num_rows)

    # Room that is not used is never touched, while a stream that grows is copied as often as it doubles.
    room = pa.allocate_buffer(rows.nbytes + rows.nbytes // 8 + _SLACK_BYTES)
    sink = pa.FixedSizeBufferWriter(room)
    try:
        write(sink)
        return memoryview(room)[: sink.tell()]
    except pa.ArrowInvalid:
        # Empty strings and NULLs take more in a file than in memory.
        stream = pa.BufferOutputStream()
        write(stream)
        return memoryview(stream.getvalue())


def _exchanged(
    footer: thrift.Struct, data: memoryview, chunks: Mapping[bytes, Chunk]
) -> tuple[bytes | memoryview | pa.Buffer, ...]:
    """Puts chunks in the place of those of their columns, in the order of the schema; the footer tells of them then.

    Readers that split a file find a row group by the place of its first column.
    """
    (group,) = footer[_ROW_GROUPS][1].values
    pieces: list[bytes | memoryview | pa.Buffer] = []
    at, total = len(MAGIC), 0
    for column in group[_COLUMNS][1].values:
        told = column[_META_DATA][1]
        chunk = chunks.get(told[_PATH][1].values[0])
        if chunk is None:
            begin = min(told[field][1] for field in (_DATA_OFFSET, _DICTIONARY_OFFSET) if field in told)
            pieces.append(data[begin : begin + told[_COMPRESSED][1]])
        else:
            begin = told[_DATA_OFFSET][1]
            pieces += chunk.pages
            _set(told, {_VALUES: chunk.values, _UNCOMPRESSED: chunk.uncompressed, _COMPRESSED: chunk.compressed})
            for stats in told[_ENCODING_STATS][1].values:
                _set(stats, {_COUNT: chunk.count})
            told.pop(_SIZE_STATISTICS, None)
        for field in (_DATA_OFFSET, _DICTIONARY_OFFSET):
            if field in told:
                _set(told, {field: told[field][1] - begin + at})
        at += told[_COMPRESSED][1]
        total += told[_UNCOMPRESSED][1]
    _set(group, {_GROUP_UNCOMPRESSED: total, _GROUP_COMPRESSED: at - len(MAGIC)})
    return tuple(pieces)


def _set(struct: thrift.Struct, numbers: Mapping[int, int]) -> None:
    for field, number in numbers.items():
        struct[field] = (struct[field][0], number)
