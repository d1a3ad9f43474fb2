"""The values of a condition: literals, and Spark's types and conversions in those of Arrow."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from uc_stage.engines.conditions import kernels
from uc_stage.engines.predicate import moment_of
from uc_stage.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
MAX_PRECISION = 38
# Up to here a FLOAT holds every integer.
_FLOAT_EXACT = 2**24
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Term:
    """An expression with its type.

    Attributes:
        type: Arrow's; `pa.null()` of a bare NULL.
        run: gives its values for a batch, an array or a scalar. Its second argument marks the rows that count: the
            others come from a branch that Spark does not evaluate, and must not fail. None marks all.
        risky: whether a row can make it fail.
        scalar: the value, where it is the same for all rows.
    """

    type: pa.DataType
    run: Callable[[Any, Any], Any]
    risky: bool = False
    scalar: Any = None

    @property
    def kind(self) -> str:
        """The type's kind in words."""
        import pyarrow.types as is_a

        tests = {
            "null": is_a.is_null, "boolean": is_a.is_boolean, "integer": is_a.is_signed_integer,
            "float": is_a.is_float32, "double": is_a.is_float64, "decimal": is_a.is_decimal128,
            "string": is_a.is_string, "binary": is_a.is_binary, "date": is_a.is_date32,
        }  # fmt: skip
        if is_a.is_timestamp(self.type):
            return "timestamp" if self.type.tz else "timestamp_ntz"
        return next((kind for kind, test in tests.items() if test(self.type)), "nested")

    @property
    def number(self) -> Any:
        """The value of a literal number, or None."""
        return self.scalar.as_py() if self.scalar is not None and self.kind in _NUMBERS else None

    @property
    def text(self) -> str | None:
        """The value of a literal string, or None."""
        return self.scalar.as_py() if self.scalar is not None and self.kind == "string" else None

    def __str__(self) -> str:
        if self.scalar is None:
            return f"{'an' if self.kind == 'integer' else 'a'} {self.kind}"
        return f"the {self.kind} `{self.scalar}`" if self.scalar.is_valid else "NULL"


_NUMBERS = ("integer", "decimal", "float", "double")
_MOMENTS = ("date", "timestamp", "timestamp_ntz")


def refused(shown: str, why: str = "") -> Unsupported:
    """The refusal of an expression that is not sure to mean the same here as in Spark."""
    reason = f": {why}" if why else ""
    return Unsupported(
        f"`--where` has `{shown}`, which the local engine cannot run as Spark does{reason}",
        hint="write it with comparisons, IN, BETWEEN, LIKE and IS NULL, or run it with `--engine spark`",
    )


def constant(scalar: Any) -> Term:
    """A term of one value for all rows."""
    return Term(scalar.type, lambda _batch, _live: scalar, scalar=scalar)


def null(kind: pa.DataType | None = None) -> Term:
    """NULL, of a type or of none yet."""
    import pyarrow as pa

    return constant(pa.scalar(None, kind or pa.null()))


def derived(
    kind: pa.DataType, kernel: Callable[..., Any], parts: Sequence[Term], fails: str = "", *, strict: bool = True
) -> Term:
    """A kernel over the values of some terms.

    Args:
        kind: the type of what the kernel gives.
        kernel: takes their values, and gives theirs.
        parts: evaluated from left to right; as in Spark, a part is not where one before it is NULL.
        fails: the expression's text, of a kernel that fails on some values.
        strict: whether the result is NULL where a part is; if not, every part is evaluated on each row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rest_fails = [any(part.risky for part in parts[index:]) for index in range(1, len(parts) + 1)]

    def run(batch: Any, live: Any) -> Any:
        values = []
        rows = live
        for part, more in zip(parts, rest_fails, strict=True):
            values.append(part.run(batch, rows))
            if more and strict:
                rows = both(rows, pc.is_valid(values[-1]))
        if not fails:
            return kernel(*values)
        values[0] = only(values[0], live)
        try:
            return kernel(*values)
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                f"`--where` fails on a row: `{fails}`: {str(error).splitlines()[0]}",
                hint="leave such rows out first: `x <> 0 AND 10 / x > 1`, or with CASE WHEN",
            ) from None

    if all(part.scalar is not None for part in parts):
        return constant(run(None, None))
    return Term(kind, run, risky=bool(fails) or any(part.risky for part in parts))


def together(kind: pa.DataType, run: Callable[[Any, Any], Any], parts: Sequence[Term]) -> Term:
    """A term of some others, whose `run` evaluates each where Spark does."""
    if all(part.scalar is not None for part in parts):
        return constant(run(None, None))
    return Term(kind, run, risky=any(part.risky for part in parts))


def mapped(name: str, *parts: Term, strict: bool = True) -> Term:
    """A function of Arrow's that gives true or false."""
    import pyarrow.compute as pc

    return derived(boolean_type(), getattr(pc, name), parts, strict=strict)


def compared(pair: Sequence[Term], operator: str) -> Term:
    """A comparison of two terms of one type."""
    left, right = pair
    plain = right.number is not None and right.number == right.number
    kernel = kernels.compare(operator, floats=left.kind in ("float", "double"), plain=plain)
    return derived(boolean_type(), kernel, [left, right])


def both(rows: Any, more: Any) -> Any:
    """The rows that two marks agree on; None marks all."""
    import pyarrow.compute as pc

    return more if rows is None else pc.and_(rows, more)


def only(values: Any, rows: Any) -> Any:
    """Values with NULL in the rows that do not count."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return values if rows is None else pc.if_else(rows, values, pa.scalar(None, values.type))


# Literals.


def number(text: str) -> Term:
    """A number as it is written: INT, BIGINT or DECIMAL by its size, DOUBLE with an exponent."""
    if re.fullmatch(r"-?\d+", text) and -(2**63) <= int(text) < 2**63:
        return integer(int(text))
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", text):
        return decimal(text)
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text) and math.isfinite(float(text)):
        return double(float(text))
    raise refused(text)


def integer(value: int, bits: int | None = None) -> Term:
    """An integer of so many bits; without them, of 32 if they hold it."""
    import pyarrow as pa

    bits = bits or (32 if -(2**31) <= value < 2**31 else 64)
    return constant(pa.scalar(value, _signed(bits)))


def decimal(text: str) -> Term:
    """A decimal with the precision and scale that its digits need."""
    import pyarrow as pa

    value = Decimal(text)
    scale = -int(value.as_tuple().exponent)
    precision = max(len(value.as_tuple().digits), scale)
    if precision > MAX_PRECISION:
        raise refused(text)
    return constant(pa.scalar(value, pa.decimal128(precision, scale)))


def double(value: float) -> Term:
    """A 64-bit number."""
    import pyarrow as pa

    return constant(pa.scalar(value, pa.float64()))


def string(value: str) -> Term:
    """A text."""
    import pyarrow as pa

    return constant(pa.scalar(value, pa.string()))


def binary(value: bytes) -> Term:
    """Bytes."""
    import pyarrow as pa

    return constant(pa.scalar(value, pa.binary()))


def boolean(value: bool) -> Term:
    """TRUE or FALSE."""
    import pyarrow as pa

    return constant(pa.scalar(value, pa.bool_()))


def boolean_type() -> pa.DataType:
    """That of a condition."""
    import pyarrow as pa

    return pa.bool_()


def moment(kind: str, at: dt.datetime) -> Term:
    """A date, or a time with or without a zone, of a moment in UTC."""
    import pyarrow as pa

    if kind == "date":
        return constant(pa.scalar(at.date(), pa.date32()))
    micros = (at - _EPOCH) // dt.timedelta(microseconds=1)
    return constant(pa.scalar(micros, pa.timestamp("us", "UTC" if kind == "timestamp" else None)))


def _signed(bits: int) -> pa.DataType:
    import pyarrow as pa

    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]


# Conversions.


def converted(term: Term, kind: pa.DataType, shown: str) -> Term:
    """A term as another type, where every value has one exact or one rightly rounded form there.

    Raises:
        Unsupported: a conversion that Spark and Arrow do differently, or that is not known here.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_a

    if term.type == kind:
        return term
    target = Term(kind, term.run).kind
    pair = (term.kind, target)
    if pair == ("null", target):
        return null(kind)
    if pair == ("integer", "integer"):
        fails = shown if kind.bit_width < term.type.bit_width else ""
        return derived(kind, lambda values: pc.cast(values, kind), [term], fails)
    if pair == ("integer", "decimal") and kind.precision - kind.scale >= _DIGITS[term.type.bit_width]:
        return derived(kind, lambda values: pc.cast(values, kind), [term])
    if pair == ("integer", "decimal"):
        # Arrow asks for the digits of the whole type first.
        wide = pa.decimal256(_DIGITS[64] + kind.scale, kind.scale)
        return derived(kind, lambda values: pc.cast(pc.cast(values, wide), kind), [term], shown)
    if pair == ("decimal", "decimal") and kind.scale >= term.type.scale:
        fails = shown if kind.precision - kind.scale < term.type.precision - term.type.scale else ""
        return derived(kind, lambda values: pc.cast(values, kind), [term], fails)
    if pair in {("integer", "double"), ("integer", "float"), ("float", "double"), ("double", "float")}:
        return derived(kind, lambda values: pc.cast(values, kind, safe=False), [term])
    if term.kind == "decimal" and is_a.is_floating(kind) and (value := term.number) is not None:
        return constant(pa.scalar(float(value) if target == "double" else _float(value, shown), kind))
    if pair in {("boolean", "integer"), ("integer", "string"), ("boolean", "string")}:
        return derived(kind, lambda values: pc.cast(values, kind), [term])
    if pair in {("timestamp", "date"), ("timestamp_ntz", "date")}:
        return derived(kind, lambda values: pc.cast(values, kind), [term])
    if pair in {("timestamp", "timestamp_ntz"), ("timestamp_ntz", "timestamp")}:
        return derived(kind, lambda values: pc.cast(values, kind), [term])
    if term.kind == "date" and is_a.is_timestamp(kind):
        return derived(kind, lambda values: _midnight(values, kind), [term], shown)
    raise refused(shown, f"it makes {term} a {target}")


def _midnight(values: Any, kind: pa.DataType) -> Any:
    """Dates as times, since Arrow's own cast overflows in silence."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.cast(pc.cast(values, pa.int32()), pa.int64())
    return pc.cast(pc.multiply_checked(days, pa.scalar(_DAY_MICROS, pa.int64())), kind)


def _float(value: Decimal, shown: str) -> float:
    """The nearest FLOAT; by way of the nearest DOUBLE, which is right unless that is halfway between two of them."""
    wide = float(value)
    (bits,) = struct.unpack("<q", struct.pack("<d", wide))
    # A FLOAT lacks 29 of the bits, and its least numbers more.
    if bits % 2**29 == 2**28 or not 2**-120 < abs(wide) < 2**120:
        raise refused(shown)
    (narrow,) = struct.unpack("<f", struct.pack("<f", wide))
    return float(narrow)


def unified(terms: Sequence[Term], shown: str, *, compared: bool = True) -> list[Term]:
    """Terms as one type, by Spark's rules for what is compared, or for the branches that make one value.

    Raises:
        Unsupported: types that Spark brings together in a way that is not sure to be done alike here.
    """
    import pyarrow as pa

    known = [term for term in terms if term.kind != "null"]
    kinds = {term.kind for term in known}
    if "nested" in kinds:
        raise refused(shown, "it compares a nested value")
    if len({term.type for term in known}) <= 1:
        kind = known[0].type if known else pa.bool_()
    elif compared and kinds & {*_MOMENTS} and kinds <= {"string", *_MOMENTS}:
        kind, known = _moments(known, shown)
    elif compared and kinds == {"string", "integer"} and all(t.text is not None for t in known if t.kind == "string"):
        kind, known = pa.int64(), [_integral(term, shown) for term in known]
    elif kinds <= {*_NUMBERS}:
        kind = _numeric(known, shown)
    else:
        raise refused(shown, f"it compares {known[0]} with {next(t for t in known if t.kind != known[0].kind)}")
    found = iter(known)
    return [null(kind) if term.kind == "null" else converted(next(found), kind, shown) for term in terms]


def _moments(terms: list[Term], shown: str) -> tuple[pa.DataType, list[Term]]:
    """Dates, times and literal strings of them: the widest of their types, in which strings are read."""
    import pyarrow as pa

    kinds = {term.kind for term in terms} - {"string"}
    if len(kinds) > 1 and len(terms) > 2 and any(term.kind == "string" for term in terms):  # noqa: PLR2004 - a pair
        raise refused(shown, "it compares a string with dates and times")
    kind = next(kind for kind in ("timestamp", "timestamp_ntz", "date") if kind in kinds)
    found = []
    for term in terms:
        if term.kind == "string":
            read = moment_of(term.text) if term.text is not None else None
            if read is None or (kind == "date" and read[1]) or (kind == "timestamp_ntz" and read[2]):
                raise refused(shown, f"{term} is no {kind}")
            found.append(moment(kind, read[0]))
        else:
            found.append(term)
    types = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "date": pa.date32()}
    return types[kind], found


def _integral(term: Term, shown: str) -> Term:
    """A literal string of an integer, which Spark reads as one beside an integer."""
    if term.kind != "string":
        return term
    text = term.text or ""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise refused(shown, f"{term} is no integer as a literal")
    return integer(int(text), 64)


def _numeric(terms: list[Term], shown: str) -> pa.DataType:
    """The type in which Spark brings numbers together."""
    import pyarrow as pa

    kinds = {term.kind for term in terms}
    if kinds == {"integer"}:
        return _signed(max(term.type.bit_width for term in terms))
    if kinds <= {"integer", "decimal"}:
        sides = [digits(term) for term in terms]
        scale = max(side[1] for side in sides)
        precision = max(precision - scale for precision, scale in sides) + scale
        if precision > MAX_PRECISION:
            raise refused(shown, "its digits are more than 38")
        return pa.decimal128(precision, scale)
    for term in terms:
        # Spark compares a FLOAT with an INT in either width, as its ANSI mode has it; exact values are safe in both.
        inexact = term.kind == "integer" and (term.number is None or abs(term.number) > _FLOAT_EXACT)
        if (inexact and "float" in kinds) or (term.kind == "decimal" and term.number is None):
            raise refused(shown, f"it compares {term} with a {'float' if inexact else 'double'}")
    return pa.float64()


def digits(term: Term) -> tuple[int, int]:
    """The precision and scale at which Spark takes an integer or a decimal among decimals."""
    if term.kind == "decimal":
        return term.type.precision, term.type.scale
    if term.number is not None:
        return len(str(abs(term.number))), 0
    return _DIGITS[term.type.bit_width], 0
