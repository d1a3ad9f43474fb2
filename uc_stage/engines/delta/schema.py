"""Reads the schema that a Delta log holds: each column's Arrow type, and how its data files name it.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#schema-serialization-format
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uc_stage.engines.delta.table_files import OTHER_ENGINE, damaged
from uc_stage.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_CHAR = re.compile(r"\bchar\(")
_MODE = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a part of a nested one.

    Attributes:
        name: the table's; empty for what lists and maps hold.
        physical: the name in data files and in the log.
        id: what the data files number it; None where they go by name.
        type: the Arrow type in which it is given.
        parts: a struct's fields, a list's element, a map's key and value.
        variant: whether it is a variant, which is given as a struct of `metadata` and `value`.
        own_order: whether its text is compared by rules of its own, a collation's or those of CHAR.
    """

    name: str
    physical: str
    id: int | None
    type: pa.DataType
    parts: tuple[Column, ...] = ()
    variant: bool = False
    own_order: bool = False


def mapping_mode(configuration: Mapping[str, str | None], features: frozenset[str], table: str) -> str:
    """How the table's columns are found in its data files: `none`, `name` or `id`.

    Raises:
        Unsupported: another mode. VerificationFailed: a mode that the table's protocol does not know of.
    """
    mode = configuration.get(_MODE) or "none"
    if mode not in {"none", "name", "id"}:
        raise Unsupported(
            f"`{table}` maps its columns by `{mode}`, which the local engine does not know", hint=OTHER_ENGINE
        )
    if mode != "none" and "columnMapping" not in features:
        raise damaged(table, f"it maps columns by {mode}, and its protocol knows of no column mapping")
    return mode


def columns_of(schema: Any, mode: str, table: str) -> tuple[Column, ...]:
    """The columns of a table.

    Args:
        schema: as the log has it: `{"type": "struct", "fields": [...]}`.
        mode: what `mapping_mode` gave.
        table: for messages.

    Raises:
        Unsupported: a type that is not read. VerificationFailed: no schema, or a mapped column without its mapping.
    """
    try:
        return _Reader(mode, table).fields(schema)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(table, f"its schema is none: {error}") from error


class _Reader:
    def __init__(self, mode: str, table: str) -> None:
        import pyarrow as pa

        self.mode, self.table = mode, table
        self.primitives = {
            "string": pa.string(),
            "long": pa.int64(),
            "integer": pa.int32(),
            "short": pa.int16(),
            "byte": pa.int8(),
            "float": pa.float32(),
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "binary": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", "UTC"),
            "timestamp_ntz": pa.timestamp("us"),
            "decimal": pa.decimal128(10, 0),
            "void": pa.null(),
        }

    def fields(self, schema: Mapping[str, Any]) -> tuple[Column, ...]:
        return tuple(self._field(field) for field in schema["fields"])

    def _field(self, field: Mapping[str, Any]) -> Column:
        name, metadata = field["name"], field.get("metadata") or {}
        physical, number = name, None
        if self.mode != "none":
            physical = metadata["delta.columnMapping.physicalName"]
        if self.mode == "id":
            number = int(metadata["delta.columnMapping.id"])
        column = self._column(field["type"], name, physical, number)
        char = _CHAR.search(str(metadata.get("__CHAR_VARCHAR_TYPE_STRING", "")))
        own_order = "__COLLATIONS" in metadata or char is not None
        return replace(column, own_order=own_order)

    def _column(self, kind: Any, name: str = "", physical: str = "", number: int | None = None) -> Column:
        import pyarrow as pa

        if isinstance(kind, str):
            if kind == "variant":
                plain = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
                return Column(name, physical, number, plain, variant=True)
            return Column(name, physical, number, self._primitive(kind, name))
        if kind["type"] == "struct":
            parts = self.fields(kind)
            if not parts:
                raise self._unknown("struct<>", name)
            return Column(name, physical, number, pa.struct([(part.name, part.type) for part in parts]), parts)
        if kind["type"] == "array":
            element = self._column(kind["elementType"])
            return Column(name, physical, number, pa.list_(pa.field("element", element.type)), (element,))
        if kind["type"] == "map":
            key, value = self._column(kind["keyType"]), self._column(kind["valueType"])
            return Column(name, physical, number, pa.map_(key.type, value.type), (key, value))
        raise self._unknown(str(kind["type"]), name)

    def _primitive(self, kind: str, name: str) -> pa.DataType:
        import pyarrow as pa

        if decimal := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if kind not in self.primitives:
            raise self._unknown(kind, name)
        return self.primitives[kind]

    def _unknown(self, kind: str, name: str) -> Unsupported:
        where = f"column `{name}`" if name else "a nested column"
        return Unsupported(
            f"`{self.table}` has {where} of the type `{kind}`, which the local engine does not read", hint=OTHER_ENGINE
        )
