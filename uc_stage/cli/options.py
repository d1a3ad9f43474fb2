"""The options that several commands share, each with its environment variable."""

from __future__ import annotations

import csv
import re
from typing import Annotated

import typer

from uc_stage.errors import InvalidRequest
from uc_stage.sizes import parse_size

_FRACTION = re.compile(r"(?P<number>(\d+\.?\d*|\.\d+)(e-?\d+)?)(?P<percent>%?)", re.ASCII | re.IGNORECASE)

Json = Annotated[bool, typer.Option("--json", envvar="UC_STAGE_JSON", help="Print one JSON object on stdout.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", envvar="UC_STAGE_QUIET", help="Print nothing but the answer and errors."),
]
Debug = Annotated[bool, typer.Option("--debug", envvar="UC_STAGE_DEBUG", help="Show tracebacks.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", "-n", envvar="UC_STAGE_DRY_RUN", help="Print what would be done, and do nothing."),
]
Force = Annotated[
    bool,
    typer.Option("--force", envvar="UC_STAGE_FORCE", help="Do it again where it is done already."),
]
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        envvar=["UC_STAGE_REMOTE", "SPARK_REMOTE"],
        metavar="URL",
        help="Spark Connect server, such as sc://host:15002.",
    ),
]
CacheDir = Annotated[
    str,
    typer.Option("--cache-dir", envvar="UC_STAGE_CACHE_DIR", metavar="DIR", help="Cache folder of this node."),
]
Version = Annotated[
    int | None,
    typer.Option(
        "--version", envvar="UC_STAGE_VERSION", metavar="N", min=0, help="Version of the table; also TABLE@vN."
    ),
]
Timestamp = Annotated[
    str | None,
    typer.Option(
        "--timestamp",
        envvar="UC_STAGE_TIMESTAMP",
        metavar="T",
        help="The table's newest version at that time, in ISO 8601.",
    ),
]


def names(text: str | None, flag: str, such: str = "id,label") -> tuple[str, ...] | None:
    """Reads a list separated by commas, `such` as this one; a name with a comma in it stands in double quotes.

    Raises:
        InvalidRequest: a name is empty or stands twice.
    """
    if text is None:
        return None
    try:
        found = tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), []))
    except csv.Error as error:
        raise InvalidRequest(f"`{flag}` is no list of names: {error}", hint=f"such as {flag} {such}") from None
    if not found or "" in found:
        raise InvalidRequest(f"`{flag} {text}` holds an empty one", hint=f"separate them by commas: {flag} {such}")
    if len(set(found)) != len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise InvalidRequest(f"`{flag}` names `{twice}` twice", hint="name each one once")
    return found


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """Reads whole numbers separated by commas: `0,2,4`.

    Raises:
        InvalidRequest: one is no number, or stands twice.
    """
    found = names(text, flag, "1,2,4") or ()
    for one in found:
        if not one.isascii() or not one.isdigit():
            raise InvalidRequest(f"`{flag}` has `{one}` for a number", hint=f"such as {flag} 1,2,4")
    return tuple(map(int, found))


def pairs(texts: list[str] | None, flag: str, example: str) -> tuple[tuple[str, str], ...]:
    """Reads `NAME=VALUE` for each; the name goes up to the last `=`.

    Raises:
        InvalidRequest: one that is not of that form.
    """
    found = []
    for text in texts or ():
        name, equals, value = text.rpartition("=")
        if not (name.strip() and equals and value.strip()):
            raise InvalidRequest(f"`{flag} {text}` is not of the form NAME=VALUE", hint=f"such as {flag} {example}")
        found.append((name.strip(), value.strip()))
    return tuple(found)


def fraction(text: str, flag: str) -> float:
    """Reads a fraction, such as 0.9 or 90%.

    Raises:
        InvalidRequest: it is no number.
    """
    number = _FRACTION.fullmatch(text)
    if number is None:
        raise InvalidRequest(f"`{flag}` has `{text}` for a fraction", hint="such as 0.9 or 90%")
    return float(number["number"]) / (100 if number["percent"] else 1)


def positive_size(text: str, flag: str) -> int:
    """Reads a size of one byte or more.

    Raises:
        InvalidRequest: it is none, or nothing.
    """
    size = parse_size(text, flag)
    if size < 1:
        raise InvalidRequest(f"`{flag} {text}` is less than a byte", hint=f"such as {flag} 64MiB")
    return size
