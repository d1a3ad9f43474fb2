"""Reads the partition values that a Delta log holds as text.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|infinity|nan)[dDfF]?", re.IGNORECASE
)
_MOMENT = re.compile(
    r"([+-]?\d{4,6}-\d\d?-\d\d?)(?:[ T](\d\d?:\d\d?(?::\d\d?)?)(?:\.(\d+))?)? ?(Z|UTC|[+-]\d\d:?\d\d)?", re.IGNORECASE
)
_DAY_MICROS = 86_400_000_000


def scalar_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """A partition value as a scalar of its column's type; no text and an empty one are NULL, whatever the type.

    A time without a zone is UTC.

    Raises:
        ValueError: the text is no value of that type.
    """
    import pyarrow as pa
    import pyarrow.types as is_a

    if not text or is_a.is_null(kind):
        return pa.scalar(None, kind)
    if is_a.is_string(kind):
        return pa.scalar(text, kind)
    if is_a.is_binary(kind):
        return pa.scalar(text.encode(), kind)
    plain = text.strip()
    if is_a.is_boolean(kind) and plain.lower() in {"true", "false"}:
        return pa.scalar(plain.lower() == "true", kind)
    if is_a.is_integer(kind) and _INTEGER.fullmatch(plain):
        return pa.scalar(int(plain), pa.int64()).cast(kind)
    if is_a.is_floating(kind) and _FLOAT.fullmatch(plain):
        # A `d` or `f` may end a number in Java.
        return pa.scalar(float(plain if plain.lower().endswith("inf") else plain.rstrip("dDfF")), kind)
    if is_a.is_decimal(kind):
        try:
            return pa.scalar(Decimal(plain), kind)
        except InvalidOperation:
            raise ValueError(text) from None
    if is_a.is_date(kind) and (moment := _MOMENT.fullmatch(plain)):
        return pa.scalar(_days(moment[1]), pa.int32()).cast(kind)
    if is_a.is_timestamp(kind) and (moment := _MOMENT.fullmatch(plain)):
        return pa.scalar(_micros(moment, zoned=kind.tz is not None), pa.int64()).cast(kind)
    raise ValueError(text)


def _days(date: str) -> int:
    """Days since the epoch; Python's own dates end at year 9999."""
    import numpy as np

    sign = "-" if date.startswith("-") else ""
    year, month, day = (int(part) for part in date.lstrip("+-").split("-"))
    return int(np.datetime64(f"{sign}{year:04}-{month:02}-{day:02}", "D").astype("int64"))


def _micros(moment: re.Match[str], *, zoned: bool) -> int:
    clock = [int(part) for part in (moment[2] or "0:0:0").split(":")] + [0]
    hours, minutes, seconds = clock[:3]
    if hours > 23 or minutes > 59 or seconds > 59:  # noqa: PLR2004 - a clock's
        raise ValueError(moment[0])
    micros = _days(moment[1]) * _DAY_MICROS + (hours * 3600 + minutes * 60 + seconds) * 1_000_000
    micros += int(f"{moment[3] or '':0<6}"[:6])
    zone = moment[4] or "Z"
    if zone.upper() in {"Z", "UTC"}:
        return micros
    if not zoned:
        raise ValueError(moment[0])
    offset = (int(zone[1:3]) * 60 + int(zone[-2:])) * 60_000_000
    return micros - offset if zone.startswith("+") else micros + offset


def text_of(value: Any) -> str | None:
    """A value that a checkpoint holds typed, as the text that `scalar_of` reads."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (dt.date, Decimal)):
        return str(value)
    return repr(value)
