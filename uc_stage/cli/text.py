"""Numbers as a person reads them."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

_SECONDS_PER_MINUTE = 60
_SECONDS_PER_HOUR = 3600
_HOURS_PER_DAY = 24


def printable(text: str) -> str:
    """One line of text, in which what a terminal would obey, or could not show, is written out as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def amount(count: int, unit: str) -> str:
    """An amount of `bytes`, `rows` or `files`: `1,234 rows`."""
    return format_size(count) if unit == "bytes" else f"{count:,} {unit if count != 1 else unit.removesuffix('s')}"


def duration(seconds: float) -> str:
    """A time span: `0.42 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:  # noqa: PLR2004 - below it hundredths still say something
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < _SECONDS_PER_MINUTE:
        return f"{whole} s"
    if whole < _SECONDS_PER_HOUR:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def age(seconds: float) -> str:
    """How long ago something was: as a duration, in whole days from two on."""
    days = int(seconds // (_HOURS_PER_DAY * _SECONDS_PER_HOUR))
    return f"{days:,} days ago" if days > 1 else f"{duration(seconds)} ago"


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Prints names and values below one another."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(printable(f"{name:<{width}}  {value}".rstrip()))


def show_table(table: Table, width: int | None) -> None:
    """Prints a table as wide as the terminal, or as `width`: where Rich cannot ask, it would fold it to 80 columns.

    By `print`: Rich itself ends the process where the reader of stdout has gone.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as captured:
        console.print(table, overflow="ellipsis")
    for line in captured.get().splitlines():
        print(line.rstrip())


def say(message: str, *, quiet: bool) -> None:
    """Tells a person something that is no answer: on stderr, unless it is to be quiet."""
    if not quiet:
        with contextlib.suppress(OSError):
            print(printable(message), file=sys.stderr)
