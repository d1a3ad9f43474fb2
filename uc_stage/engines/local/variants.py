"""Puts shredded variants together again, into the binary form that others have from the start.

https://github.com/apache/parquet-format/blob/master/VariantShredding.md, and VariantEncoding.md beside it. It goes
value by value: shredding is rare in what is trained on.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

_NULL = b"\x00"
_OBJECT, _ARRAY = 2, 3
_TRUE, _FALSE, _DOUBLE, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT, _BINARY, _STRING, _TIME = (
    1,
    2,
    7,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
)
_NANOS, _NANOS_NTZ, _UUID = 18, 19, 20
_INTEGERS = ((3, 1), (4, 2), (5, 4), (6, 8))
_DECIMALS = ((8, 4), (9, 8), (10, 16))
_SHORT, _SMALL = 64, 256
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Names:
    """The dictionary of one variant's metadata: its field names, and the number of each."""

    names: tuple[str, ...]
    ids: Mapping[str, int]


def unshredded(array: pa.StructArray) -> pa.Array:
    """Gives a column of structs of `metadata`, `value` and `typed_value` as one of `metadata` and `value`.

    Raises:
        ValueError: a value that contradicts the specification.
    """
    import pyarrow as pa

    metadata = array.field("metadata").cast(pa.binary())
    valid = array.is_valid().to_pylist()
    names = [
        _names(text) if ok and text is not None else None for ok, text in zip(valid, metadata.to_pylist(), strict=True)
    ]
    rebuilt = _values(array, names)
    # Both parts missing is a NULL of the variant itself, where an object's field would not be there.
    values = [(value or _NULL) if ok else None for ok, value in zip(valid, rebuilt, strict=True)]
    return pa.StructArray.from_arrays(
        [metadata, pa.array(values, pa.binary())],
        fields=[pa.field("metadata", pa.binary()), pa.field("value", pa.binary())],
        mask=array.is_null(),
    )


def _values(array: pa.StructArray, names: Sequence[_Names | None]) -> list[bytes | None]:
    """The variants of an array of structs of `value` and `typed_value`; None where both are missing."""
    import pyarrow.types as is_a

    # What stands below a NULL is nothing, whatever is there: `flatten` says so of the parts.
    parts = dict(zip(_field_names(array.type), array.flatten(), strict=True))
    rests: list[bytes | None] = parts["value"].to_pylist() if "value" in parts else [None] * len(array)
    if "typed_value" not in parts:
        return rests
    typed = parts["typed_value"]
    if is_a.is_struct(typed.type):
        return _objects(typed, rests, names)
    if is_a.is_list(typed.type) or is_a.is_large_list(typed.type):
        found = _arrays(typed, names)
    else:
        encode, plain = _encoder(typed)
        found = [None if value is None else encode(value) for value in plain.to_pylist()]
    if any(value is not None and rest is not None for value, rest in zip(found, rests, strict=True)):
        raise ValueError("a variant that is no object has two values")
    return [rest if value is None else value for value, rest in zip(found, rests, strict=True)]


def _field_names(kind: pa.DataType) -> list[str]:
    return [kind.field(index).name for index in range(kind.num_fields)]


def _objects(
    typed: pa.StructArray, rests: Sequence[bytes | None], names: Sequence[_Names | None]
) -> list[bytes | None]:
    """Objects of shredded fields, joined with the fields that were not."""
    fields = _field_names(typed.type)
    columns = [_values(part, names) for part in typed.flatten()]
    found: list[bytes | None] = []
    for row, valid in enumerate(typed.is_valid().to_pylist()):
        known, rest = names[row], rests[row]
        if not valid or known is None:
            found.append(rest)
            continue
        parts = {} if rest is None else _parts(rest, known)
        for name, column in zip(fields, columns, strict=True):
            if (value := column[row]) is not None:
                if name in parts:
                    raise ValueError(f"a variant has its field `{name}` twice")
                parts[name] = value
        found.append(_object(parts, known))
    return found


def _arrays(typed: pa.Array, names: Sequence[_Names | None]) -> list[bytes | None]:
    offsets: list[int] = typed.offsets.to_pylist()
    spans = list(itertools.pairwise(offsets))
    owners: list[_Names | None] = [None] * len(typed.values)
    for (start, end), owner in zip(spans, names, strict=True):
        owners[start:end] = [owner] * (end - start)
    elements = _values(typed.values, owners)
    return [
        _array([element or _NULL for element in elements[start:end]]) if valid else None
        for (start, end), valid in zip(spans, typed.is_valid().to_pylist(), strict=True)
    ]


@functools.lru_cache(maxsize=1024)
def _names(metadata: bytes) -> _Names:
    width = (metadata[0] >> 6) + 1
    if metadata[0] & 0x0F != 1:
        raise ValueError("a variant is of another version")
    count = int.from_bytes(metadata[1 : 1 + width], "little")
    offsets = _integers(metadata, 1 + width, width, count + 1)
    start = 1 + width * (count + 2)
    names = tuple(metadata[start + one : start + two].decode() for one, two in itertools.pairwise(offsets))
    return _Names(names, {name: number for number, name in enumerate(names)})


def _integers(data: bytes, start: int, width: int, count: int) -> list[int]:
    if len(data) < start + width * count:
        raise ValueError("a variant is cut short")
    return [int.from_bytes(data[at : at + width], "little") for at in range(start, start + width * count, width)]


def _parts(value: bytes, known: _Names) -> dict[str, bytes]:
    """The fields of an encoded object."""
    kind, header = value[0] & 3, value[0] >> 2
    if kind != _OBJECT:
        raise ValueError("a variant has shredded fields and is no object")
    offset_width, id_width, count_width = (header & 3) + 1, (header >> 2 & 3) + 1, 4 if header >> 4 & 1 else 1
    (count,) = _integers(value, 1, count_width, 1)
    at = 1 + count_width
    ids = _integers(value, at, id_width, count)
    offsets = _integers(value, at + id_width * count, offset_width, count + 1)
    start = at + id_width * count + offset_width * (count + 1)
    # Fields are sorted by name, their values may stand in any order.
    ends = dict(itertools.pairwise(sorted(offsets)))
    return {
        known.names[number]: value[start + offset : start + ends[offset]]
        for number, offset in zip(ids, offsets, strict=False)
    }


def _object(parts: Mapping[str, bytes], known: _Names) -> bytes:
    names = sorted(parts)
    if missing := [name for name in names if name not in known.ids]:
        raise ValueError(f"a variant's metadata lacks the name `{missing[0]}`")
    ids = [known.ids[name] for name in names]
    offsets, body = _joined([parts[name] for name in names])
    offset_width, id_width = _width(offsets[-1]), _width(max(ids, default=0))
    large = len(names) >= _SMALL
    header = (offset_width - 1) | (id_width - 1) << 2 | large << 4
    return b"".join(
        [
            bytes([header << 2 | _OBJECT]),
            len(names).to_bytes(4 if large else 1, "little"),
            *(number.to_bytes(id_width, "little") for number in ids),
            *(offset.to_bytes(offset_width, "little") for offset in offsets),
            body,
        ]
    )


def _array(elements: Sequence[bytes]) -> bytes:
    offsets, body = _joined(elements)
    width, large = _width(offsets[-1]), len(elements) >= _SMALL
    header = (width - 1) | large << 2
    count = len(elements).to_bytes(4 if large else 1, "little")
    places = b"".join(offset.to_bytes(width, "little") for offset in offsets)
    return bytes([header << 2 | _ARRAY]) + count + places + body


def _joined(values: Sequence[bytes]) -> tuple[list[int], bytes]:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return offsets, b"".join(values)


def _width(largest: int) -> int:
    return max(1, -(-largest.bit_length() // 8))


def _encoder(typed: pa.Array) -> tuple[Callable[[Any], bytes], pa.Array]:
    """What encodes the values of a shredded column, and the column as the plain values that it takes."""
    import pyarrow as pa
    import pyarrow.types as is_a

    kind = typed.type
    if isinstance(kind, pa.BaseExtensionType):
        return _encoder(typed.storage)
    if is_a.is_boolean(kind):
        return lambda value: _primitive(_TRUE if value else _FALSE), typed
    if is_a.is_integer(kind):
        return _integer, typed
    if is_a.is_float64(kind):
        return lambda value: _primitive(_DOUBLE, struct.pack("<d", value)), typed
    if is_a.is_float32(kind):
        return lambda value: _primitive(_FLOAT, struct.pack("<f", value)), typed
    if is_a.is_decimal(kind):
        return lambda value: _decimal(value, kind.scale), typed
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return _string, typed
    if is_a.is_fixed_size_binary(kind) and kind.byte_width == _UUID_BYTES:
        return lambda value: _primitive(_UUID, value), typed
    if is_a.is_binary(kind) or is_a.is_large_binary(kind):
        return lambda value: _primitive(_BINARY, len(value).to_bytes(4, "little") + value), typed
    if is_a.is_date32(kind):
        return lambda value: _primitive(_DATE, struct.pack("<i", value)), typed.cast(pa.int32())
    longs = {
        pa.timestamp("us", "UTC"): _TIMESTAMP,
        pa.timestamp("us"): _TIMESTAMP_NTZ,
        pa.timestamp("ns", "UTC"): _NANOS,
        pa.timestamp("ns"): _NANOS_NTZ,
        pa.time64("us"): _TIME,
    }
    if kind in longs:
        number = longs[kind]
        return lambda value: _primitive(number, struct.pack("<q", value)), typed.cast(pa.int64())
    raise ValueError(f"a variant is shredded into {kind}")


def _primitive(number: int, content: bytes = b"") -> bytes:
    return bytes([number << 2]) + content


def _integer(value: int) -> bytes:
    number, width = next(
        (number, width) for number, width in _INTEGERS if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1
    )
    return _primitive(number, value.to_bytes(width, "little", signed=True))


def _decimal(value: Any, scale: int) -> bytes:
    unscaled = int(value.scaleb(scale, _EXACT))
    number, width = next((number, width) for number, width in _DECIMALS if abs(unscaled) < 10 ** _DIGITS[width])
    return _primitive(number, bytes([scale]) + unscaled.to_bytes(width, "little", signed=True))


# Python's own rounds to 28 digits.
_EXACT = decimal.Context(prec=80)
# What so many bytes are sure to hold.
_DIGITS = {4: 9, 8: 18, 16: 38}


def _string(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) < _SHORT:
        return bytes([len(encoded) << 2 | 1]) + encoded
    return _primitive(_STRING, len(encoded).to_bytes(4, "little") + encoded)
