"""The Thrift compact bytes of a Parquet footer: walks to some values, and the whole of it as a tree and back.

The walks are for what pyarrow tells slowly, or at the price of the process: pyarrow 26 ends it (`std::terminate`) when
`ColumnChunkMetaData.compression` meets a codec that it does not know, which one flipped bit in a footer is enough for.
The tree is for footers that are put together from those of several files. The encoding is Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
# A list of so many elements or more has its length in a number of its own.
_LONG = 15
_DEEPEST = 64
# What of a struct is wanted, by field number: None for a value as it is, else what of the struct or the list of some.
Shape = dict[int, "Shape | None"]
_UNWANTED: Shape = {}
_INTEGERS = frozenset({4, 5, 6})
# In a struct a boolean's value is its kind, in a list it takes a byte.
_WIDTHS = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}
_IN_A_LIST = {_TRUE: _BYTE, _FALSE: _BYTE}

# Field numbers of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData in Parquet's parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META_DATA, _CODEC = 4, 1, 3, 4


def codecs(footer: bytes) -> set[int]:
    """The codec numbers of the first row group's columns; none for a file without a row group.

    Raises:
        ValueError: the bytes are no footer.
    """
    found: set[int] = set()
    try:
        walk = _Walk(footer)
        if walk.enter(_ROW_GROUPS) and walk.elements() and walk.enter(_COLUMNS):
            for _ in range(walk.elements()):
                if walk.enter(_META_DATA):
                    if walk.enter(_CODEC):
                        found.add(walk.integer())
                        walk.leave()
                    walk.leave()
    except IndexError:
        raise ValueError("the footer ends too early") from None
    return found


def row_groups(footer: bytes, wanted: Shape) -> list[dict[int, Any]]:
    """What is wanted of each row group, by field numbers; a field that is not there has no key.

    Raises:
        ValueError: the bytes are no footer.
    """
    try:
        found: list[dict[int, Any]] = _Walk(footer).picked({_ROW_GROUPS: wanted}).get(_ROW_GROUPS, [])
    except IndexError:
        raise ValueError("the footer ends too early") from None
    return found


def picked(data: bytes, wanted: Shape) -> dict[int, Any]:
    """What is wanted of the struct that the bytes begin with, as `row_groups` gives it.

    Raises:
        ValueError: the bytes begin with none.
    """
    try:
        return _Walk(data).picked(wanted)
    except IndexError:
        raise ValueError("the struct ends too early") from None


def headed(data: bytes, wanted: Shape) -> tuple[dict[int, Any], int]:
    """What is wanted of the struct that the bytes begin with, as `picked` has it, and the bytes that it takes.

    Raises:
        ValueError: the bytes begin with none.
    """
    walk = _Walk(data)
    try:
        return walk.picked(wanted), walk.at
    except IndexError:
        raise ValueError("the struct ends too early") from None


@dataclass(frozen=True, slots=True)
class Items:
    """A list of a tree: the kind of its elements, as Thrift numbers it, and their values."""

    kind: int
    values: list[Any]


# A struct of a tree: by field number the kind and the value, which is a number, bytes, a struct or `Items`.
Struct = dict[int, tuple[int, Any]]


def parse(data: bytes) -> Struct:
    """The tree of a struct's bytes.

    Raises:
        ValueError: the bytes are none.
    """
    try:
        return _Walk(data).struct()
    except IndexError:
        raise ValueError("the footer ends too early") from None


def render(struct: Struct) -> bytes:
    """The bytes of a struct: what `parse` read, byte for byte, where its fields stood in the order of their numbers."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for field, (kind, value) in struct.items():
        if 0 < field - last < _LONG + 1:
            out.append((field - last) << 4 | kind)
        else:
            out.append(kind)
            write_varint(out, _zigzag(field))
        if kind not in (_TRUE, _FALSE):
            _write_value(out, kind, value)
        last = field
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_TRUE, _FALSE, _BYTE):
        out.append(value)
    elif kind == _DOUBLE:
        out += value
    elif kind == _BINARY:
        write_varint(out, len(value))
        out += value
    elif kind in (_LIST, _SET):
        count = len(value.values)
        out.append(min(count, _LONG) << 4 | value.kind)
        if count >= _LONG:
            write_varint(out, count)
        for item in value.values:
            _write_value(out, value.kind, item)
    elif kind == _STRUCT:
        _write_struct(out, value)
    else:
        write_varint(out, _zigzag(value))


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def write_varint(out: bytearray, value: int) -> None:
    """Appends a number of no sign, seven bits a byte, the lowest first."""
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


class _Walk:
    """A position in compact bytes. `enter` goes into the current struct's field, `leave` past that struct's end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        """The position."""
        return self._at

    def enter(self, wanted: int) -> bool:
        """Moves to the value of a field of the struct that begins here; past the struct where it has none."""
        field = 0
        while head := self._byte():
            # The number is the difference to the last one, or stands by itself where that does not fit.
            field = field + (head >> 4) if head >> 4 else self.integer()
            if field == wanted:
                return True
            self._skip(head & 15)
        return False

    def leave(self) -> None:
        """Moves past the end of the struct that the last value read is in."""
        self._skip(_STRUCT)

    def elements(self) -> int:
        """Reads the header of a list and gives its length."""
        length = self._byte() >> 4
        return length if length < _LONG else self._varint()

    def integer(self) -> int:
        """Reads a signed integer (zigzag)."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> Struct:
        """Reads the struct that begins here."""
        if depth > _DEEPEST:
            raise ValueError("the footer is nested too deeply")
        found: Struct = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self.integer()
            kind = head & 15
            found[field] = (kind, kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth))
        return found

    def picked(self, wanted: Shape) -> dict[int, Any]:
        """Reads what is wanted of the struct that begins here, and passes over the rest of it."""
        # The loop of all that is read of many footers: numbers are most of it, and are read on the spot.
        data, field = self._data, 0
        found: dict[int, Any] = {}
        while head := data[self._at]:
            self._at += 1
            field = field + (head >> 4) if head >> 4 else self.integer()
            kind = head & 15
            inner = wanted.get(field, _UNWANTED)
            if kind in _INTEGERS and (inner is _UNWANTED or inner is None):
                byte = data[self._at]
                self._at += 1
                value, shift = byte & 127, 7
                while byte > 127:  # noqa: PLR2004 - seven bits a byte
                    byte = data[self._at]
                    self._at += 1
                    value |= (byte & 127) << shift
                    shift += 7
                if inner is None:
                    found[field] = (value >> 1) ^ -(value & 1)
            elif inner is _UNWANTED:
                self._skip(kind)
            elif inner is None:
                found[field] = self._value(kind, 0)
            elif kind == _STRUCT:
                found[field] = self.picked(inner)
            elif kind == _LIST and data[self._at] & 15 == _STRUCT:
                found[field] = [self.picked(inner) for _ in range(self.elements())]
            else:
                raise ValueError("the footer has a value of another kind")
        self._at += 1
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (_LIST, _SET):
            inner = self._data[self._at] & 15
            return Items(inner, [self._value(inner, depth + 1) for _ in range(self.elements())])
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _MAP:
            raise ValueError("no footer has a map")
        return self.integer()

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise IndexError
        self._at += count
        return found

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if not byte & 128:
                return value
            shift += 7

    def _skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ValueError("the footer is nested too deeply")
        data = self._data
        if kind in _INTEGERS:
            at = self._at
            while data[at] > 127:  # noqa: PLR2004 - seven bits a byte
                at += 1
            self._at = at + 1
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind == _STRUCT:
            while head := data[self._at]:
                self._at += 1
                if not head >> 4:
                    self._varint()
                self._skip(head & 15, depth + 1)
            self._at += 1
        elif kind in (_LIST, _SET):
            inner = _IN_A_LIST.get(data[self._at] & 15, data[self._at] & 15)
            for _ in range(self.elements()):
                self._skip(inner, depth + 1)
        elif kind in _WIDTHS:
            self._at += _WIDTHS[kind]
        elif kind == _MAP:
            raise ValueError("no footer has a map")
        else:
            self._varint()
        if self._at > len(data):  # or a list that claims a billion elements would be walked to its end
            raise IndexError
