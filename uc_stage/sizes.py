"""Sizes, rates and spans as a person writes and reads them: `512MB`, `64MiB`, `500MB/s`, `200krows/s`, `7d`, `1.8x`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from uc_stage.errors import InvalidRequest

_BYTES = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_SECONDS = {
    **dict.fromkeys(("S", "SEC"), 1),
    **dict.fromkeys(("M", "MIN"), 60),
    "H": 3600,
    "D": 24 * 3600,
    "W": 7 * 24 * 3600,
}
_ROWS = {"ROWS": 1, **{f"{letter}ROWS": 1000**power for power, letter in enumerate("KMG", start=1)}}
_STALL = re.compile(r"stall\s*<\s*(?P<percent>\d{1,3}(?:\.\d{1,30})?)\s*%", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"(?P<number>\d{1,30}(?:\.\d{1,30})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rate:
    """A throughput: `value` a second, in bytes or in rows; or a share of a time, 0 to 1."""

    value: float
    unit: Literal["bytes/s", "rows/s", "share"]


def format_size(count: float) -> str:
    """Bytes in decimal units: `56.2 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":  # noqa: PLR2004 - the step of the decimal units
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def parse_size(text: str, flag: str) -> int:
    """Reads a size in bytes: `1048576`, `512MB` (powers of 1000), `64MiB` (powers of 1024), in any case of letters.

    A fraction of a byte is dropped. `flag` names in an error where the text came from: `--file-size`.

    Raises:
        InvalidRequest: not a size; a bare `M` is none, since half the tools read it as MB and half as MiB.
    """
    number = _read(text, _BYTES)
    if number is None:
        raise InvalidRequest(
            f"`{flag} {text}` is not a size", hint="write bytes as a plain number, or with a unit: `512MB`, `64MiB`"
        )
    return int(number)


def parse_rate(text: str, flag: str) -> Rate:
    """Reads a throughput: `500MB/s`, `1.5GiB/s`, `200krows/s`, `900 rows/s`, in any case of letters; or `stall<5%`.

    Raises:
        InvalidRequest: none of these, or one of nothing; `flag` names in the error where the text came from.
    """
    if stall := _STALL.fullmatch(text.strip()):
        share = float(stall["percent"]) / 100
        if 0 < share <= 1:
            return Rate(share, "share")
        raise InvalidRequest(f"`{flag} {text}` is no share of a time", hint="give more than 0 %, at most 100 %")
    amount, slash, per = text.strip().rpartition("/")
    if slash and per.strip().lower() == "s":
        for unit, scale in (("rows/s", _ROWS), ("bytes/s", _BYTES)):
            # A rate without a unit could be either.
            number = None if amount[-1:].isdigit() else _read(amount, scale)
            if number:
                return Rate(float(number), "rows/s" if unit == "rows/s" else "bytes/s")
    raise InvalidRequest(
        f"`{flag} {text}` is not a throughput",
        hint="write bytes or rows a second: `500MB/s`, `200krows/s`; or `stall<5%`",
    )


def parse_age(text: str, flag: str) -> float:
    """Reads a time span in seconds: `90s`, `30min`, `12h`, `7d`, `2w`.

    Raises:
        InvalidRequest: not a time span; a bare number is none, since it could be of days as well as of seconds.
    """
    number = _read(text, _SECONDS)
    if number is None:
        raise InvalidRequest(f"`{flag} {text}` is not a time span", hint=f"such as {flag} 12h, 7d or 2w")
    return float(number)


def parse_headroom(text: str, flag: str) -> tuple[int, float]:
    """Reads a size in bytes, or a multiple of another one as `1.8x`: one of the two it gives is 0.

    Raises:
        InvalidRequest: neither.
    """
    if (times := _read(text, {"X": 1})) is not None:
        return 0, float(times)
    return parse_size(text, flag), 0.0


def _read(text: str, scale: dict[str, int]) -> Fraction | None:
    matched = _NUMBER.fullmatch(text.strip())
    factor = scale.get(matched["unit"].upper()) if matched else None
    return Fraction(matched["number"]) * factor if matched and factor else None
