"""Translates a `--where` for DataFusion, the SQL engine inside deltalake, so that it gives the rows that Spark gives.

It knows the types of the columns and translates what is sure to mean the same there; all else is refused, since
DataFusion runs much of Spark's SQL to another result.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from uc_stage.engines.predicate import moment_kind, moment_of, near, parsed, spark_sql
from uc_stage.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_LONG_BITS = 63
_INTEGER_BITS = {"byte": 7, "short": 15, "integer": 31, "long": _LONG_BITS}
_MAX_PRECISION = 38
# Up to here a FLOAT holds every integer.
_FLOAT_EXACT = 2**24


def to_datafusion(where: str, schema: Mapping[str, Any]) -> str:
    """Translates a `checked` predicate for DataFusion, whose results are the same, row for row.

    Args:
        where: what `checked` gave.
        schema: the table's schema as the Delta log holds it: `{"type": "struct", "fields": [...]}`.

    Raises:
        Unsupported: an expression that is not sure to mean the same there.
        InvalidRequest: not a condition, or a nested field that is not there.
    """
    from sqlglot import exp

    tree = parsed(where)
    try:
        term = _Translation(schema, exp).term(tree)
    except RecursionError:
        raise InvalidRequest("`--where` is nested too deeply", hint="use `IN (...)`, or export a view") from None
    if term.kind != "boolean":
        raise InvalidRequest(
            f"`--where` is no condition: `{where}` is {_named(term)}", hint="compare it with something"
        )
    return term.sql


@dataclass(frozen=True, slots=True)
class _Term:
    """An expression of DataFusion's SQL with its type.

    Attributes:
        kind: `boolean`, `string`, `binary`, `date`, `timestamp`, `timestamp_ntz`, `integer`, `decimal`, `float`,
            `double`, `null` or `nested`.
        bits: of an integer, so many at most its magnitude has.
        precision, scale: of a decimal.
        value: of a literal.
        fields: of a nested term, its Delta type.
    """

    sql: str
    kind: str
    bits: int = 0
    precision: int = 0
    scale: int = 0
    value: Any = None
    fields: Any = None


class _Translation:
    """One walk over a predicate's tree; `exp` is sqlglot's module, imported by whoever needs it."""

    def __init__(self, schema: Mapping[str, Any], exp: Any) -> None:
        self.schema = schema
        self.rules: dict[type[Any], Callable[[Any], _Term]] = {
            exp.Paren: lambda node: dataclasses.replace(inner := self.term(node.this), sql=f"({inner.sql})"),
            exp.Column: lambda node: self.column([part.name for part in node.parts]),
            exp.Dot: lambda node: self.column([part.name for part in node.parts]),
            exp.Literal: _literal,
            exp.RawString: lambda node: _text(str(node.this)),
            exp.Boolean: lambda node: _Term("true" if node.this else "false", "boolean"),
            exp.Null: lambda _: _Term("NULL", "null"),
            exp.HexString: lambda node: _Term(f"X'{node.this}'", "binary"),
            exp.Cast: self.cast,
            exp.TryCast: self.cast,
            exp.And: lambda node: self.logic(node, "AND"),
            exp.Or: lambda node: self.logic(node, "OR"),
            exp.Not: lambda node: _boolean(f"NOT {self.condition(node.this).sql}"),
            exp.EQ: lambda node: self.comparison(node, "="),
            exp.NEQ: lambda node: self.comparison(node, "<>"),
            exp.LT: lambda node: self.comparison(node, "<"),
            exp.LTE: lambda node: self.comparison(node, "<="),
            exp.GT: lambda node: self.comparison(node, ">"),
            exp.GTE: lambda node: self.comparison(node, ">="),
            exp.NullSafeEQ: lambda node: self.comparison(node, "IS NOT DISTINCT FROM"),
            exp.NullSafeNEQ: lambda node: self.comparison(node, "IS DISTINCT FROM"),
            exp.Between: self.between,
            exp.In: self.among,
            exp.Is: self.test,
            exp.Like: self.like,
            exp.Neg: self.negative,
            exp.Add: lambda node: self.arithmetic(node, "+"),
            exp.Sub: lambda node: self.arithmetic(node, "-"),
            exp.Mul: lambda node: self.arithmetic(node, "*"),
            exp.Mod: lambda node: self.division(node, "%"),
            exp.IntDiv: lambda node: self.division(node, "div"),
            exp.Div: lambda node: self.division(node, "/"),
            exp.IsNan: lambda node: _boolean(
                f"coalesce(isnan({self.number(node.this, 'float', 'double').sql}), false)"
            ),
            exp.Lower: lambda node: dataclasses.replace(
                self.string(node.this), sql=f"lower({self.string(node.this).sql})"
            ),
            exp.Upper: lambda node: dataclasses.replace(
                self.string(node.this), sql=f"upper({self.string(node.this).sql})"
            ),
            exp.Length: lambda node: _Term(f"character_length({self.string(node.this).sql})", "integer", bits=31),
            exp.StartsWith: lambda node: self.affix(node, "starts_with"),
            exp.EndsWith: lambda node: self.affix(node, "ends_with"),
            exp.Contains: lambda node: self.affix(node, "contains"),
        }

    def term(self, node: Any) -> _Term:
        """Translates one node, or refuses it."""
        rule = self.rules.get(type(node))
        if rule is None:
            raise _refused(spark_sql(node))
        return rule(node)

    def condition(self, node: Any) -> _Term:
        term = self.term(node)
        if term.kind != "boolean":
            raise InvalidRequest(f"`--where` has `{spark_sql(node)}` for a condition", hint="compare it with something")
        return dataclasses.replace(term, sql=f"({term.sql})")

    def logic(self, node: Any, word: str) -> _Term:
        return _boolean(f"{self.condition(node.this).sql} {word} {self.condition(node.expression).sql}")

    def string(self, node: Any) -> _Term:
        term = self.term(node)
        if term.kind != "string":
            raise _refused(spark_sql(node), f"it is {_named(term)}, not a string")
        return dataclasses.replace(term, value=None)

    def number(self, node: Any, *kinds: str) -> _Term:
        term = self.term(node)
        if term.kind not in kinds:
            raise _refused(spark_sql(node), f"it is {_named(term)}")
        return term

    def column(self, path: list[str]) -> _Term:
        """A column, or a field inside of it: names match in any case, as Spark has it."""
        sql, kind = "", dict(self.schema)
        for depth, name in enumerate(path):
            fields = kind["fields"] if isinstance(kind, dict) and kind.get("type") == "struct" else []
            found = next((field for field in fields if field["name"].casefold() == name.casefold()), None)
            if found is None:
                raise InvalidRequest(
                    f"`--where` names `{'.'.join(path[: depth + 1])}`, which the table does not have",
                    hint=near(name, [field["name"] for field in fields]) if fields else "name a column of the table",
                )
            sql = f"{sql}['{_doubled(found['name'], chr(39))}']" if sql else f'"{_doubled(found["name"], chr(34))}"'
            kind = found["type"]
        return _typed_column(sql, kind)

    def cast(self, node: Any) -> _Term:
        """Spark's typed literals, which parse as casts; of real casts, a timestamp's date and widening integers."""
        inner = self.term(node.this)
        kind = moment_kind(node)
        if kind and isinstance(inner.value, str):
            read = moment_of(inner.value)
            if read is None:
                raise _refused(spark_sql(node))
            return _moment_term(kind, read[0])
        if kind == "date" and inner.kind in ("timestamp", "timestamp_ntz") and inner.value is None:
            return _Term(f"CAST({inner.sql} AS DATE)", "date")
        if node.to.is_type("BIGINT") and inner.kind == "integer":
            return dataclasses.replace(inner, sql=f"CAST({inner.sql} AS BIGINT)")
        if node.to.is_type("DOUBLE") and inner.kind in ("integer", "float", "double"):
            return _as_double(inner)
        if node.to.is_type("DOUBLE") and inner.kind == "decimal" and inner.value is not None:
            return _as_double(inner)
        raise _refused(spark_sql(node))

    def comparison(self, node: Any, operator: str) -> _Term:
        left, right = self.term(node.this), self.term(node.expression)
        if right.kind == "null" and operator.endswith("DISTINCT FROM"):
            return _boolean(f"{left.sql} {'IS NULL' if operator == 'IS NOT DISTINCT FROM' else 'IS NOT NULL'}")
        left, right = _alike(left, right, spark_sql(node))
        return _boolean(f"{left.sql} {operator} {right.sql}")

    def between(self, node: Any) -> _Term:
        value, shown = self.term(node.this), spark_sql(node)
        low, bottom = _alike(value, self.term(node.args["low"]), shown)
        high, top = _alike(value, self.term(node.args["high"]), shown)
        return _boolean(f"{low.sql} >= {bottom.sql} AND {high.sql} <= {top.sql}")

    def among(self, node: Any) -> _Term:
        value, shown = self.term(node.this), spark_sql(node)
        pairs = [_alike(value, self.term(option), shown) for option in node.expressions]
        if not pairs:
            raise _refused(shown)
        if len({left.sql for left, _ in pairs}) == 1:
            return _boolean(f"{pairs[0][0].sql} IN ({', '.join(right.sql for _, right in pairs)})")
        return _boolean(" OR ".join(f"{left.sql} = {right.sql}" for left, right in pairs))

    def test(self, node: Any) -> _Term:
        """IS NULL of anything; IS TRUE and IS FALSE of a condition."""
        right = self.term(node.expression)
        if right.kind == "null":
            return _boolean(f"{self.term(node.this).sql} IS NULL")
        if right.sql in ("true", "false"):
            return _boolean(f"{self.condition(node.this).sql} IS {right.sql.upper()}")
        raise _refused(spark_sql(node))

    def like(self, node: Any) -> _Term:
        pattern = self.term(node.expression)
        if not isinstance(pattern.value, str) or re.search(r"\\(?![\\%_])", pattern.value.replace(r"\\", "")):
            raise _refused(spark_sql(node), "the pattern is no plain string, or has a stray backslash")
        word = "NOT LIKE" if node.args.get("negate") else "LIKE"
        return _boolean(f"{self.string(node.this).sql} {word} {pattern.sql}")

    def affix(self, node: Any, function: str) -> _Term:
        return _boolean(f"{function}({self.string(node.this).sql}, {self.string(node.expression).sql})")

    def negative(self, node: Any) -> _Term:
        inner = self.number(node.this, "integer", "decimal", "double")
        if inner.value is not None:
            return dataclasses.replace(
                inner, sql=inner.sql.replace("'", "'-", 1) if "'" in inner.sql else f"-{inner.sql}", value=-inner.value
            )
        if inner.kind == "decimal":
            raise _refused(spark_sql(node))
        if inner.kind == "integer" and inner.bits >= _LONG_BITS:
            raise _refused(spark_sql(node), "it may overflow")
        return dataclasses.replace(inner, sql=f"(- {_wide(inner).sql})")

    def numbers(self, node: Any) -> tuple[_Term, _Term]:
        """Two integers or doubles, or a double and a decimal of known value, which Spark takes for a double."""
        left, right = self.term(node.this), self.term(node.expression)
        for one, two in ((left, right), (right, left)):
            literal = one.kind == "decimal" and one.value is not None and two.kind == "double"
            if one.kind not in ("integer", "double") and not literal:
                raise _refused(spark_sql(node), f"it computes with {_named(one)}")
        return left, right

    def arithmetic(self, node: Any, operator: str) -> _Term:
        left, right = self.numbers(node)
        if "double" in (left.kind, right.kind):
            return _Term(f"({_as_double(left).sql} {operator} {_as_double(right).sql})", "double")
        bits = left.bits + right.bits if operator == "*" else max(left.bits, right.bits) + 1
        if bits > _LONG_BITS:
            raise _refused(spark_sql(node), "it may overflow")
        return _Term(f"({_wide(left).sql} {operator} {_wide(right).sql})", "integer", bits=bits)

    def division(self, node: Any, operator: str) -> _Term:
        """Only by a number that is written there: Spark and DataFusion divide by zero to different ends."""
        left, right = self.numbers(node)
        if not right.value:
            raise _refused(spark_sql(node), "only a number other than 0 divides here")
        if operator != "/" and "double" in (left.kind, right.kind):
            raise _refused(spark_sql(node))
        if operator == "/":
            return _Term(f"({_as_double(left).sql} / {_as_double(right).sql})", "double")
        if left.bits >= _LONG_BITS and right.value == -1:
            raise _refused(spark_sql(node), "it may overflow")
        sign = "/" if operator == "div" else "%"
        return _Term(f"({_wide(left).sql} {sign} {_wide(right).sql})", "integer", bits=left.bits)


def _typed_column(sql: str, kind: Any) -> _Term:
    if not isinstance(kind, str):
        return _Term(sql, "nested", fields=kind)
    if kind in _INTEGER_BITS:
        return _Term(sql, "integer", bits=_INTEGER_BITS[kind])
    if match := re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", kind):
        return _Term(sql, "decimal", precision=int(match[1]), scale=int(match[2]))
    if kind in ("boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", "float", "double"):
        return _Term(sql, kind)
    return _Term(sql, "nested", fields=kind)


def _literal(node: Any) -> _Term:
    text = str(node.this)
    if node.is_string:
        return _text(text)
    if re.fullmatch(r"\d+", text) and int(text).bit_length() <= _LONG_BITS:
        return _Term(text, "integer", bits=max(1, int(text).bit_length()), value=int(text))
    if re.fullmatch(r"\d*\.?\d*", text):
        number = Decimal(text)
        digits, scale = len(number.as_tuple().digits), -int(number.as_tuple().exponent)
        precision = max(digits, scale)
        if precision > _MAX_PRECISION:
            raise _refused(text)
        return _Term(
            f"CAST('{text}' AS DECIMAL({precision},{scale}))", "decimal", precision=precision, scale=scale, value=number
        )
    if re.fullmatch(r"(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text) and math.isfinite(float(text)):
        return _Term(f"CAST('{text}' AS DOUBLE)", "double", value=float(text))
    raise _refused(text)


def _text(text: str) -> _Term:
    return _Term(f"'{_doubled(text, chr(39))}'", "string", value=text)


def _boolean(sql: str) -> _Term:
    return _Term(f"({sql})", "boolean")


def _moment_term(kind: str, moment: dt.datetime) -> _Term:
    if kind == "date":
        return _Term(f"CAST('{moment.date().isoformat()}' AS DATE)", kind, value=moment)
    zone = 'Some("UTC")' if kind == "timestamp" else "None"
    micros = (moment - _EPOCH) // dt.timedelta(microseconds=1)
    return _Term(f"arrow_cast({micros}, 'Timestamp(Microsecond, {zone})')", kind, value=moment)


def _wide(term: _Term) -> _Term:
    """An integer in 64 bits, where the sums that were checked for overflow are done."""
    return term if term.kind != "integer" else dataclasses.replace(term, sql=f"CAST({term.sql} AS BIGINT)")


def _as_double(term: _Term) -> _Term:
    if term.value is not None:
        return _Term(f"CAST('{float(term.value)!r}' AS DOUBLE)", "double", value=float(term.value))
    return _Term(f"CAST({term.sql} AS DOUBLE)", "double")


def _ordered(term: _Term) -> _Term:
    """A double that compares as in Spark: all NaN are one, greater than all else, and -0.0 is 0.0.

    Arrow compares by IEEE 754's total order, and files are skipped by statistics that leave NaN out; a computed value
    has no statistics.
    """
    if term.value is not None:
        return dataclasses.replace(term, sql=f"CAST('{term.value + 0.0!r}' AS DOUBLE)")
    return dataclasses.replace(term, sql=f"(nanvl({term.sql}, CAST('NaN' AS DOUBLE)) + CAST('0.0' AS DOUBLE))")


def _alike(left: _Term, right: _Term, shown: str) -> tuple[_Term, _Term]:
    """Brings two sides of a comparison to one type by Spark's rules, or refuses them."""
    kinds = {left.kind, right.kind}
    if "nested" in kinds:
        raise _refused(shown, "it compares a nested value")
    if "null" in kinds:
        # DataFusion 54 gives rows for `NOT IN (1, NULL)` and `BETWEEN NULL AND 3`, where Spark gives none.
        raise _refused(shown, "it compares with NULL, which is never true; `IS NULL` asks for it")
    moments = ("date", "timestamp", "timestamp_ntz")
    for one, two, swapped in ((left, right, False), (right, left, True)):
        if one.kind in moments and one.value is None and two.value is not None and two.kind in ("string", *moments):
            moved = _moved(two, one.kind, shown)
            return (moved, one) if swapped else (one, moved)
    if len(kinds) == 1 and kinds <= {"boolean", "string", "binary", "integer", *moments}:
        return left, right
    if not kinds <= {"integer", "decimal", "float", "double"}:
        raise _refused(shown, f"it compares {_named(left)} with {_named(right)}")
    if kinds <= {"integer", "decimal"}:
        return _as_decimals(left, right, shown)
    for one, two in ((left, right), (right, left)):
        # Spark compares a FLOAT with an INT in either width, as its ANSI mode has it; exact values are safe in both.
        inexact = two.kind == "integer" and (two.value is None or abs(two.value) > _FLOAT_EXACT)
        if (one.kind == "float" and inexact) or (two.kind == "decimal" and two.value is None):
            raise _refused(shown, f"it compares {_named(one)} with {_named(two)}")
    return _ordered(_as_double(left)), _ordered(_as_double(right))


def _moved(literal: _Term, kind: str, shown: str) -> _Term:
    """A literal of a date or time, or a string of one, as the type of the column it is compared with."""
    if literal.kind != "string":
        if literal.kind != kind and kind == "date":
            raise _refused(shown, "it compares a date with a time")
        return _moment_term(kind, literal.value)
    read = moment_of(literal.value)
    if read is None or (kind == "date" and read[1]) or (kind == "timestamp_ntz" and read[2]):
        raise _refused(shown, f"`{literal.value}` is no {kind}")
    return _moment_term(kind, read[0])


def _as_decimals(left: _Term, right: _Term, shown: str) -> tuple[_Term, _Term]:
    """Two exact numbers at a precision and scale that hold both."""
    sides = [(20, 0) if term.kind == "integer" else (term.precision, term.scale) for term in (left, right)]
    scale = max(s for _, s in sides)
    precision = max(p - s for p, s in sides) + scale
    if precision > _MAX_PRECISION:
        raise _refused(shown, "its digits are more than 38")
    exact = [
        term if (term.kind, term.precision, term.scale) == ("decimal", precision, scale)
        else _Term(f"CAST({term.sql} AS DECIMAL({precision},{scale}))", "decimal", precision=precision, scale=scale)
        for term in (left, right)
    ]  # fmt: skip
    return exact[0], exact[1]


def _doubled(text: str, quote: str) -> str:
    return text.replace(quote, quote * 2)


def _named(term: _Term) -> str:
    """A term's type in words."""
    return f"the {term.kind} `{term.value}`" if term.value is not None else f"a {term.kind}"


def _refused(shown: str, why: str = "") -> Unsupported:
    reason = f": {why}" if why else ""
    return Unsupported(
        f"`--where` has `{shown}`, which the local engine cannot run as Spark does{reason}",
        hint="write it with comparisons, IN, BETWEEN, LIKE and IS NULL, or run it with `--engine spark`",
    )
