"""Evaluates a `--where` on Arrow batches in this process, so that it keeps the rows that Spark keeps.

It knows the types of the columns and takes what is sure to mean the same as Spark SQL in ANSI mode and the time zone
UTC; all else is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.engines.conditions import kernels, patterns, terms
from uc_stage.engines.conditions.functions import Functions
from uc_stage.engines.conditions.terms import Term, compared, converted, derived, mapped, refused, together, unified
from uc_stage.engines.predicate import match, moment_kind, moment_of, near, parsed, spark_sql
from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

_MOST_DEPTH = 150


@dataclass(frozen=True, slots=True)
class Condition:
    """A `--where` that is ready to run.

    Attributes:
        columns: the table's columns that it reads, in the table's case.
        term: the whole of it.
    """

    columns: tuple[str, ...]
    term: Term

    def __call__(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Marks the rows of a batch that are kept: true or false for each, never NULL.

        Args:
            batch: holds at least `columns`, by their names.

        Raises:
            InvalidRequest: it fails on a row, as it does in Spark: a division by zero, or an overflow.
            Unsupported: it meets a value that is not sure to be treated as Spark treats it.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        kept = pc.fill_null(self.term.run(batch, None), False)
        return pa.repeat(kept, batch.num_rows) if isinstance(kept, pa.Scalar) else kept


def condition(where: str, schema: pa.Schema) -> Condition:
    """Makes a `checked` predicate ready to run on batches.

    Args:
        where: what `checked` gave.
        schema: the table's, in our plain form.

    Raises:
        Unsupported: an expression that is not sure to mean the same here as in Spark.
        InvalidRequest: not a condition, or a nested field that is not there.
    """
    from sqlglot import exp

    walk = _Walk(schema, exp)
    try:
        term = walk.term(parsed(where))
    except RecursionError:
        raise _too_deep() from None
    if term.kind != "boolean":
        raise InvalidRequest(f"`--where` is no condition: `{where}` is {term}", hint="compare it with something")
    return Condition(tuple(walk.columns), term)


class _Walk(Functions):
    """One walk over a predicate's tree; `exp` is sqlglot's module, imported by whoever needs it."""

    def __init__(self, schema: pa.Schema, exp: Any) -> None:
        self.schema = schema
        self.columns: dict[str, None] = {}
        self.depth = 0
        self.rules: dict[type[Any], Callable[[Any], Term]] = {
            exp.Paren: lambda node: self.term(node.this),
            exp.Column: lambda node: self.column([part.name for part in node.parts]),
            exp.Dot: self.dot,
            exp.Literal: lambda node: terms.string(node.this) if node.is_string else terms.number(node.this),
            exp.RawString: lambda node: terms.string(str(node.this)),
            exp.Boolean: lambda node: terms.boolean(node.this),
            exp.Null: lambda _: terms.null(),
            exp.HexString: lambda node: terms.binary(
                bytes.fromhex(node.this.zfill(len(node.this) + len(node.this) % 2))
            ),
            exp.Cast: self.cast,
            exp.TryCast: self.cast,
            exp.And: lambda node: self.logic(node, "and_kleene"),
            exp.Or: lambda node: self.logic(node, "or_kleene"),
            exp.Not: lambda node: mapped("invert", self.condition(node.this)),
            exp.EQ: lambda node: self.comparison(node, "="),
            exp.NEQ: lambda node: self.comparison(node, "<>"),
            exp.LT: lambda node: self.comparison(node, "<"),
            exp.LTE: lambda node: self.comparison(node, "<="),
            exp.GT: lambda node: self.comparison(node, ">"),
            exp.GTE: lambda node: self.comparison(node, ">="),
            exp.NullSafeEQ: self.null_safe,
            exp.EqualNull: self.null_safe,
            exp.NullSafeNEQ: lambda node: mapped("invert", self.null_safe(node)),
            exp.Between: self.between,
            exp.In: self.among,
            exp.Is: self.test,
            exp.Like: self.like,
            exp.ILike: self.like,
            exp.Escape: self.like,
            exp.RegexpLike: self.rlike,
            exp.Case: self.case,
            exp.If: self.case,
            exp.Coalesce: self.coalesce,
            exp.Nullif: self.nullif,
            **self.functions(exp),
        }

    def term(self, node: Any) -> Term:
        """Gives the meaning of one node, or refuses it."""
        rule = self.rules.get(type(node))
        if rule is None:
            raise refused(spark_sql(node))
        if self.depth >= _MOST_DEPTH:
            # To run it takes as many frames again, in a thread whose stack is not known here.
            raise _too_deep()
        self.depth += 1
        try:
            return rule(node)
        finally:
            self.depth -= 1

    def condition(self, node: Any) -> Term:
        term = self.term(node)
        if term.kind == "null":
            return terms.null(terms.boolean_type())
        if term.kind != "boolean":
            raise InvalidRequest(f"`--where` has `{spark_sql(node)}` for a condition", hint="compare it with something")
        return term

    def column(self, path: list[str]) -> Term:
        """A column, or a field inside of it: names match in any case, as Spark has it."""
        name, kind = _found(path[:1], list(self.schema))
        self.columns[name] = None

        def run(batch: Any, _live: Any) -> Any:
            values = batch.column(name)
            # A file's own type, of another width or unit, would be computed with otherwise.
            return values if values.type == kind else values.cast(kind)

        term = Term(kind, run)
        for depth in range(2, len(path) + 1):
            term = _field(term, path[:depth])
        return term

    def dot(self, node: Any) -> Term:
        """A field deep inside of a column, or of an element of one."""
        return _field(self.term(node.this), spark_sql(node).replace("`", "").split("."))

    def cast(self, node: Any) -> Term:
        """Spark's typed literals, which parse as casts, and the casts that are exact or rightly rounded."""
        import pyarrow as pa

        if node.args.get("safe") or node.args.get("format"):
            raise refused(spark_sql(node))
        inner, shown = self.term(node.this), spark_sql(node)
        kind = moment_kind(node)
        if kind and inner.text is not None and (read := moment_of(inner.text)):
            return terms.moment(kind, read[0])
        names = {
            "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
            "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "TEXT": pa.string(), "BOOLEAN": pa.bool_(),
            "DATE": pa.date32(), "TIMESTAMPTZ": pa.timestamp("us", "UTC"), "TIMESTAMPNTZ": pa.timestamp("us"),
        }  # fmt: skip
        target = names.get(node.to.this.value)
        if node.to.is_type("DECIMAL") and len(node.to.expressions) == 2:  # noqa: PLR2004 - a precision and a scale
            precision, scale = (int(part.name) for part in node.to.expressions)
            if inner.text is not None:
                # As sqlglot writes `1.5BD`.
                inner = terms.decimal(inner.text) if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", inner.text) else inner
            if 0 <= scale <= precision <= 38:  # noqa: PLR2004 - digits of a decimal
                target = pa.decimal128(precision, scale)
        if target is None:
            raise refused(shown)
        if inner.kind in ("float", "double") and pa.types.is_integer(target):
            return derived(target, kernels.truncated(target), [inner], shown)
        return converted(inner, target, shown)

    def logic(self, node: Any, name: str) -> Term:
        """AND or OR by Kleene; as in Spark, a side is not evaluated where the one before it decides."""
        import pyarrow.compute as pc

        kernel = getattr(pc, name)
        parts = [self.condition(part) for part in node.flatten(unnest=False)]

        def open_rows(result: Any) -> Any:
            return pc.fill_null(result, True) if name == "and_kleene" else pc.invert(pc.fill_null(result, False))

        def run(batch: Any, live: Any) -> Any:
            result = parts[0].run(batch, live)
            for part in parts[1:]:
                rows = terms.both(live, open_rows(result)) if part.risky else live
                result = kernel(result, part.run(batch, rows))
            return result

        return together(parts[0].type, run, parts)

    def comparison(self, node: Any, operator: str) -> Term:
        return _ordered(self.term(node.this), self.term(node.expression), operator, spark_sql(node))

    def null_safe(self, node: Any) -> Term:
        left, right = self.term(node.this), self.term(node.expression)
        for one, two in ((left, right), (right, left)):
            if two.kind == "null":
                return mapped("is_null", one, strict=False)
        left, right = unified([left, right], spark_sql(node))
        equal = kernels.compare("=", floats=left.kind in ("float", "double"), plain=False)
        return derived(terms.boolean_type(), kernels.null_safe(equal), [left, right], strict=False)

    def between(self, node: Any) -> Term:
        value, shown = self.term(node.this), spark_sql(node)
        low = _ordered(value, self.term(node.args["low"]), ">=", shown)
        high = _ordered(value, self.term(node.args["high"]), "<=", shown)
        return mapped("and_kleene", low, high, strict=False)

    def among(self, node: Any) -> Term:
        if not node.expressions:
            raise refused(spark_sql(node))
        value, *options = unified(
            [self.term(node.this), *(self.term(option) for option in node.expressions)], spark_sql(node)
        )
        if all(option.scalar is not None for option in options):
            test = kernels.is_in([option.scalar for option in options], floats=value.kind in ("float", "double"))
            return derived(terms.boolean_type(), test, [value])
        found = compared([value, options[0]], "=")
        for option in options[1:]:
            found = mapped("or_kleene", found, compared([value, option], "="), strict=False)
        return found

    def test(self, node: Any) -> Term:
        """IS NULL of anything; IS TRUE and IS FALSE of a condition."""
        import pyarrow.compute as pc

        right = self.term(node.expression)
        if right.kind == "null":
            return mapped("is_null", self.term(node.this), strict=False)
        if right.kind != "boolean" or right.scalar is None:
            raise refused(spark_sql(node))
        inner = self.condition(node.this)
        wanted = inner if right.scalar.as_py() else mapped("invert", inner)
        return derived(wanted.type, lambda values: pc.fill_null(values, False), [wanted], strict=False)

    def like(self, node: Any) -> Term:
        """LIKE and ILIKE, with or without an ESCAPE around them."""
        from sqlglot import exp

        shown, escape = spark_sql(node), "\\"
        if isinstance(node, exp.Escape):
            escape = self.written(node.expression, "string")
            node = node.this
        pattern = self.term(node.expression)
        if pattern.text is None or len(escape) != 1:
            raise refused(shown, "the pattern is no plain string")
        value = self.of_kind(node.this, "string")
        if isinstance(node, exp.ILike):
            lower = kernels.cased(upper=False)
            value, pattern = (derived(term.type, lower, [term], shown) for term in (value, pattern))
        finds = patterns.like(pattern.text or "", escape)
        if finds is None:
            raise refused(shown, "the pattern has a stray escape")
        found = self.found(value, finds, shown)
        return mapped("invert", found) if node.args.get("negate") else found

    def rlike(self, node: Any) -> Term:
        """RLIKE by a pattern that means the same in Java and in RE2."""
        shown, value = spark_sql(node), self.of_kind(node.this, "string")
        regex = patterns.rlike(self.written(node.expression, "string"))
        if regex is None or node.args.get("flag"):
            raise refused(shown, "the pattern is not sure to find the same")
        return self.found(value, ("match_substring_regex", regex), shown)

    def found(self, value: Term, finds: tuple[str, str], shown: str) -> Term:
        """Whether a text is, or holds, what a function of Arrow's finds by a pattern."""
        test = kernels.found(*finds)
        if test is None:
            raise refused(shown, "the pattern is too large or none")
        return derived(terms.boolean_type(), test, [value])

    def case(self, node: Any) -> Term:
        """CASE and IF: a branch is evaluated only where its condition holds."""
        import pyarrow.compute as pc
        from sqlglot import exp

        shown = spark_sql(node)
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        if isinstance(node, exp.Case) and node.this:
            value = self.term(node.this)
            tests = [compared(unified([value, self.term(branch.this)], shown), "=") for branch in branches]
        else:
            tests = [self.of_kind(branch.this, "boolean") for branch in branches]
        other = node.args.get("default" if isinstance(node, exp.Case) else "false")
        ends = [self.term(branch.args["true"]) for branch in branches]
        *ends, default = unified([*ends, self.term(other) if other else terms.null()], shown, compared=False)
        risky = any(part.risky for part in (*tests, *ends, default))

        def run(batch: Any, live: Any) -> Any:
            rows, chosen = live, []
            for test, end in zip(tests, ends, strict=True):
                hit = pc.fill_null(test.run(batch, rows), False)
                chosen.append((hit, end.run(batch, terms.both(rows, hit) if risky else None)))
                rows = terms.both(rows, pc.invert(hit)) if risky else None
            result = default.run(batch, rows)
            for hit, values in reversed(chosen):
                result = pc.if_else(hit, values, result)
            return result

        return together(default.type, run, [*tests, *ends, default])

    def coalesce(self, node: Any) -> Term:
        import pyarrow.compute as pc

        parts = [self.term(part) for part in (node.this, *node.expressions)]
        parts = unified(parts, spark_sql(node), compared=False)

        def run(batch: Any, live: Any) -> Any:
            result = parts[0].run(batch, live)
            for part in parts[1:]:
                rows = terms.both(live, pc.is_null(result)) if part.risky else live
                result = pc.coalesce(result, part.run(batch, rows))
            return result

        return together(parts[0].type, run, parts)

    def nullif(self, node: Any) -> Term:
        import pyarrow as pa
        import pyarrow.compute as pc

        value = self.term(node.this)
        equal = compared(unified([value, self.term(node.expression)], spark_sql(node)), "=")

        def kernel(same: Any, values: Any) -> Any:
            return pc.if_else(pc.fill_null(same, False), pa.scalar(None, values.type), values)

        return derived(value.type, kernel, [equal, value], strict=False)


def _ordered(left: Term, right: Term, operator: str, shown: str) -> Term:
    """A comparison, of what Spark compares by its common rules."""
    for one, two in ((left, right), (right, left)):
        beyond = two.kind == "decimal" and two.number is not None and not -(2**63) <= two.number < 2**63
        if beyond and one.kind == "integer" and operator not in {"=", "<>"}:
            # Spark decides it at once, and keeps rows with NULL (4.1, `DecimalPrecision.integralAndDecimalLiteral`).
            raise refused(shown, f"`{two.scalar}` is out of the range of integers")
    return compared(unified([left, right], shown), operator)


def _found(path: Sequence[str], fields: list[pa.Field]) -> tuple[str, pa.DataType]:
    """The name and type of the field that a path ends with, among those of what it leads to."""
    name = match(path[-1], [field.name for field in fields])
    if name is None:
        raise InvalidRequest(
            f"`--where` names `{'.'.join(path)}`, which the table does not have",
            hint=near(path[-1], [field.name for field in fields]) if fields else "name a column of the table",
        )
    return name, next(field.type for field in fields if field.name == name)


def _field(term: Term, path: Sequence[str]) -> Term:
    """A field of a struct."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = list(term.type) if pa.types.is_struct(term.type) else []
    if [(field.name, field.type) for field in fields] == [("metadata", pa.binary()), ("value", pa.binary())]:
        raise refused(".".join(path), "it may be a variant")
    name, kind = _found(path, fields)
    index = [field.name for field in fields].index(name)
    return derived(kind, lambda values: pc.struct_field(values, index), [term])


def _too_deep() -> InvalidRequest:
    return InvalidRequest("`--where` is nested too deeply", hint="use `IN (...)`, or export a view")
