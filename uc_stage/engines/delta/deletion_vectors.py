"""Reads deletion vectors: which rows of a data file are deleted.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from typing import TYPE_CHECKING

from uc_stage.engines.delta.table_files import OTHER_ENGINE, damaged
from uc_stage.errors import Unsupported

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from uc_stage.engines.delta.replay import DataFile, DeletionVector
    from uc_stage.engines.delta.table_files import TableFiles

_MAGIC = 1681511377
_VERSION = 1
_UUID_CHARS = 20
_INT = 4
# Both write four bytes as five digits to the base 85, the greatest first, each with an alphabet of its own.
_Z85 = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)


def deleted_rows(files: TableFiles, file: DataFile) -> npt.NDArray[np.int64] | None:
    """The positions of a data file's deleted rows, sorted; None where it has no deletion vector.

    Raises:
        NotFound: the deletion vector's file is gone.
        VerificationFailed: it is damaged, or holds another number of rows than the log says.
        Unsupported: a form that is not known here.
    """
    vector = file.deletion_vector
    if vector is None:
        return None
    try:
        return _positions(_inline(vector) if vector.storage == "i" else _stored(files, vector), vector, file)
    except (ValueError, struct.error) as error:
        raise damaged(files.table, f"the deletion vector of `{file.path}` is damaged: {error}") from error


def _positions(data: bytes, vector: DeletionVector, file: DataFile) -> npt.NDArray[np.int64]:
    import numpy as np
    from pyroaring import BitMap64

    (magic,) = struct.unpack_from("<i", data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}, not with {_MAGIC}")
    rows = np.frombuffer(BitMap64.deserialize(data[_INT:]).to_array(), dtype=np.uint64).astype(np.int64)
    if len(rows) != vector.cardinality:
        raise ValueError(f"it deletes {len(rows)} rows, and the log says {vector.cardinality}")
    if len(rows) and (rows[0] < 0 or (file.num_records is not None and rows[-1] >= file.num_records)):
        raise ValueError(f"it deletes row {rows[-1]}, and the file has {file.num_records} rows")
    return rows


def _inline(vector: DeletionVector) -> bytes:
    return _z85(vector.path_or_inline)[: vector.size]


def _stored(files: TableFiles, vector: DeletionVector) -> bytes:
    """The bytes of a deletion vector that stands in a file, perhaps among others, with their length and checksum."""
    if vector.storage == "u":
        prefix, name = vector.path_or_inline[:-_UUID_CHARS], vector.path_or_inline[-_UUID_CHARS:]
        folder = f"{prefix}/" if prefix else ""
        path = f"{folder}deletion_vector_{uuid.UUID(bytes=_z85(name))}.bin"
    elif vector.storage == "p":
        path = files.decoded(vector.path_or_inline)
    else:
        raise Unsupported(
            f"`{files.table}` has a deletion vector stored as `{vector.storage}`, which the local engine does not read",
            hint=OTHER_ENGINE,
        )
    with files.named(path), files.open(path) as source:
        version = source.read_at(1, 0)
        block = source.read_at(vector.size + 2 * _INT, vector.offset or 1)
    if version != bytes([_VERSION]):
        raise Unsupported(f"`{path}` of `{files.table}` has deletion vectors of another format", hint=OTHER_ENGINE)
    data: bytes = block[_INT:-_INT]
    if len(data) != vector.size or struct.unpack(">i", block[:_INT])[0] != vector.size:
        raise ValueError(f"`{path}` has another length than the log says")
    if struct.unpack(">I", block[-_INT:])[0] != zlib.crc32(data):
        raise ValueError(f"the checksum in `{path}` differs")
    return data


def _z85(text: str) -> bytes:
    """Decodes https://rfc.zeromq.org/spec/32/."""
    encoded = text.encode("ascii")
    if len(encoded) % 5:
        raise ValueError(f"`{text[:40]}` is no whole number of five digits")
    return base64.b85decode(encoded.translate(_Z85))
