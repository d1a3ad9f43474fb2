"""The operators and functions of a `--where` that compute a value: numbers, texts, dates, lists and maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from uc_stage.engines.conditions import kernels, terms
from uc_stage.engines.conditions.terms import Term, compared, converted, derived, mapped, refused, unified
from uc_stage.engines.predicate import spark_sql

if TYPE_CHECKING:
    from collections.abc import Callable

_FLOATS = ("float", "double")
# Spark turns the sign of a decimal in IEEE's decimal128 arithmetic, which rounds to so many digits.
_SIGNED_PRECISION = 34
_TIMES = ("timestamp", "timestamp_ntz")


class Functions(ABC):
    """The rules for them; a subclass knows the rest of the language."""

    @abstractmethod
    def term(self, node: Any) -> Term:
        """Gives the meaning of one node, or refuses it."""

    def functions(self, exp: Any) -> dict[type[Any], Callable[[Any], Term]]:
        """The rule for each kind of node; `exp` is sqlglot's module."""
        return {
            exp.Neg: self.negative,
            exp.Abs: self.abs,
            exp.Add: lambda node: self.arithmetic(node, "add"),
            exp.Sub: lambda node: self.arithmetic(node, "subtract"),
            exp.Mul: lambda node: self.arithmetic(node, "multiply"),
            exp.Div: self.divide,
            exp.IntDiv: lambda node: self.divide_integers(node, whole=True),
            exp.Mod: lambda node: self.divide_integers(node, whole=False),
            exp.IsNan: self.is_nan,
            exp.Lower: lambda node: self.cased(node, upper=False),
            exp.Upper: lambda node: self.cased(node, upper=True),
            exp.Length: self.length,
            exp.Trim: self.trim,
            exp.Substring: lambda node: self.substring(node.this, node.args.get("start"), node.args.get("length")),
            exp.Left: lambda node: self.substring(node.this, exp.Literal.number(1), node.expression),
            exp.Concat: lambda node: self.concat(node.expressions),
            exp.DPipe: lambda node: self.concat([node.this, node.expression]),
            exp.StartsWith: lambda node: self.affix(node, "starts_with"),
            exp.EndsWith: lambda node: self.affix(node, "ends_with"),
            exp.Contains: lambda node: self.affix(node, "match_substring"),
            exp.TsOrDsToDate: self.to_date,
            exp.Year: lambda node: self.date_part(node, "year"),
            exp.Quarter: lambda node: self.date_part(node, "quarter"),
            exp.Month: lambda node: self.date_part(node, "month"),
            exp.Day: lambda node: self.date_part(node, "day"),
            exp.DayOfMonth: lambda node: self.date_part(node, "day"),
            exp.DayOfYear: lambda node: self.date_part(node, "day_of_year"),
            exp.Hour: lambda node: self.date_part(node, "hour"),
            exp.Minute: lambda node: self.date_part(node, "minute"),
            exp.Second: lambda node: self.date_part(node, "second"),
            exp.ArraySize: lambda node: self.size(node.this),
            exp.ArrayContains: self.array_contains,
            exp.Bracket: self.element,
            exp.Anonymous: self.by_name,
        }

    def of_kind(self, node: Any, *kinds: str) -> Term:
        """A term of one of these kinds: what Spark would convert first is refused."""
        term = self.term(node)
        if term.kind not in kinds:
            raise refused(spark_sql(node), f"it is {term}, not a {kinds[0]}")
        return term

    def written(self, node: Any, kind: str) -> Any:
        """The value of an argument that has to be a literal."""
        term = self.term(node)
        value = term.text if kind == "string" else term.number
        if value is None or term.kind != kind:
            raise refused(spark_sql(node), f"it is {term}, not a literal {kind}")
        return value

    def negative(self, node: Any) -> Term:
        """A number with its sign turned; a literal with its sign is one number."""
        import pyarrow.compute as pc
        from sqlglot import exp

        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return terms.number(f"-{node.this.this}")
        return self.signed(node, pc.negate_checked, pc.negate)

    def abs(self, node: Any) -> Term:
        """ABS, which fails on the least integer."""
        import pyarrow.compute as pc

        return self.signed(node, pc.abs_checked, pc.abs)

    def signed(self, node: Any, of_integers: Callable[[Any], Any], of_others: Callable[[Any], Any]) -> Term:
        """A number with another sign."""
        inner = self.of_kind(node.this, "integer", "decimal", *_FLOATS)
        if inner.kind == "integer":
            return derived(inner.type, of_integers, [inner], spark_sql(node))
        if inner.kind == "decimal" and inner.type.precision > _SIGNED_PRECISION:
            raise refused(spark_sql(node), "its digits are more than 34")
        return derived(inner.type, of_others, [inner])

    def numbers(self, node: Any) -> list[Term]:
        """The two sides of a computation, as one type if it is one of integers or doubles."""
        shown = spark_sql(node)
        pair = [self.term(node.this), self.term(node.expression)]
        kinds = {term.kind for term in pair}
        for term in pair:
            if term.kind not in ("integer", "decimal", *_FLOATS):
                raise refused(shown, f"it computes with {term}")
        if "float" in kinds and not kinds <= {*_FLOATS}:
            raise refused(shown, "it computes with a float")
        return pair if "decimal" in kinds and not kinds & {*_FLOATS} else unified(pair, shown)

    def arithmetic(self, node: Any, name: str) -> Term:
        """`+`, `-` and `*`: integers fail where they overflow, and decimals are exact or refused."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pair, shown = self.numbers(node), spark_sql(node)
        if pair[0].kind in _FLOATS:
            return derived(pair[0].type, getattr(pc, name), pair)
        if {term.kind for term in pair} == {"integer"}:
            return derived(pair[0].type, getattr(pc, f"{name}_checked"), pair, shown)
        (p, s), (q, t) = (terms.digits(term) for term in pair)
        scale = s + t if name == "multiply" else max(s, t)
        precision = p + q + 1 if name == "multiply" else max(p - s, q - t) + scale + 1
        if precision > terms.MAX_PRECISION:
            raise refused(shown, "its digits are more than 38")
        sides = [converted(term, pa.decimal128(*terms.digits(term)), shown) for term in pair]
        return derived(pa.decimal128(precision, scale), getattr(pc, name), sides)

    def divide(self, node: Any) -> Term:
        """`/` of what Spark divides as doubles."""
        import pyarrow as pa

        pair, shown = self.numbers(node), spark_sql(node)
        if "decimal" in {term.kind for term in pair}:
            raise refused(shown, "it divides a decimal")
        left, right = (converted(term, pa.float64(), shown) for term in pair)
        # Spark looks at the divisor first.
        return derived(left.type, lambda by, values: kernels.quotient(values, by), [right, left], shown)

    def divide_integers(self, node: Any, *, whole: bool) -> Term:
        """`DIV`, a BIGINT, and `%`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pair, shown = self.numbers(node), spark_sql(node)
        if {term.kind for term in pair} != {"integer"}:
            raise refused(shown, "it divides what are not integers")
        left, right = (converted(term, pa.int64(), shown) for term in pair) if whole else pair
        kernel = pc.divide_checked if whole else kernels.remainder
        return derived(left.type, lambda by, values: kernel(values, by), [right, left], shown)

    def is_nan(self, node: Any) -> Term:
        """ISNAN, which is false of NULL."""
        import pyarrow.compute as pc

        inner = self.of_kind(node.this, *_FLOATS)
        return derived(
            terms.boolean_type(), lambda values: pc.fill_null(pc.is_nan(values), False), [inner], strict=False
        )

    def cased(self, node: Any, *, upper: bool) -> Term:
        """UPPER and LOWER."""
        inner = self.of_kind(node.this, "string")
        return derived(inner.type, kernels.cased(upper=upper), [inner], spark_sql(node))

    def length(self, node: Any) -> Term:
        """Characters of a text, bytes of a binary."""
        return _counted(self.of_kind(node.this, "string", "binary"))

    def trim(self, node: Any) -> Term:
        """TRIM, LTRIM and RTRIM of spaces, or of the characters given."""
        import pyarrow.compute as pc

        inner = self.of_kind(node.this, "string")
        characters = self.written(node.expression, "string") if node.expression else " "
        names = {"LEADING": "utf8_ltrim", "TRAILING": "utf8_rtrim"}
        kernel = getattr(pc, names.get(node.args.get("position") or "", "utf8_trim"))
        return derived(inner.type, lambda values: kernel(values, characters), [inner])

    def substring(self, text: Any, start: Any, length: Any) -> Term:
        """SUBSTRING, by a position and a length that are written there."""
        inner = self.of_kind(text, "string")
        count = None if length is None else self.written(length, "integer")
        return derived(inner.type, kernels.substring(self.written(start, "integer"), count), [inner])

    def concat(self, nodes: list[Any]) -> Term:
        """Texts joined; NULL where one is."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = [self.of_kind(node, "string") for node in nodes]
        return derived(pa.string(), lambda *values: pc.binary_join_element_wise(*values, ""), parts)

    def affix(self, node: Any, name: str) -> Term:
        """Whether a text starts with, ends with or holds another, which is written there."""
        import pyarrow.compute as pc

        inner, part = self.of_kind(node.this, "string"), self.written(node.expression, "string")
        return derived(terms.boolean_type(), lambda values: getattr(pc, name)(values, part), [inner])

    def to_date(self, node: Any) -> Term:
        """TO_DATE of a date or a time."""
        import pyarrow as pa

        inner = self.of_kind(node.this, "date", *_TIMES)
        return converted(inner, pa.date32(), spark_sql(node))

    def date_part(self, node: Any, name: str) -> Term:
        """YEAR, MONTH, HOUR and the like."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from sqlglot import exp

        # sqlglot puts a conversion around the argument of some of them, which is not in the text.
        inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
        days = () if name in {"hour", "minute", "second"} else ("date",)
        kernel = kernels.part_of(getattr(pc, name))
        return derived(pa.int32(), kernel, [self.of_kind(inner, *days, *_TIMES)], spark_sql(node))

    def size(self, node: Any) -> Term:
        """SIZE of a list or a map; NULL of NULL."""
        import pyarrow as pa

        inner = self.term(node)
        if not (pa.types.is_list(inner.type) or pa.types.is_map(inner.type)):
            raise refused(spark_sql(node), f"it is {inner}")
        return derived(pa.int32(), kernels.size, [inner])

    def array_contains(self, node: Any) -> Term:
        """ARRAY_CONTAINS of a literal."""
        import pyarrow as pa

        inner, wanted, shown = self.term(node.this), self.term(node.expression), spark_sql(node)
        if not pa.types.is_list(inner.type) or wanted.scalar is None or not wanted.scalar.is_valid:
            raise refused(shown)
        element = Term(inner.type.value_type, lambda values, _live: values)
        equal = compared(unified([element, wanted], shown), "=")
        kernel = kernels.array_contains(lambda values: equal.run(values, None))
        return derived(terms.boolean_type(), kernel, [inner])

    def element(self, node: Any) -> Term:
        """`list[0]`, `element_at(list, 1)`, which fail beyond the end, and `map['key']`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        inner, shown = self.term(node.this), spark_sql(node)
        if pa.types.is_list(inner.type):
            index = self.written(node.expressions[0], "integer") - (node.args.get("offset") or 0)
            if index < 0:
                raise refused(shown, "it counts from the end")
            return derived(inner.type.value_type, lambda values: pc.list_element(values, index), [inner], shown)
        if pa.types.is_map(inner.type):
            key = self.term(node.expressions[0])
            if key.scalar is None or key.type != inner.type.key_type or key.kind not in ("string", "integer"):
                raise refused(shown, f"{key} is no literal of the keys' type")
            return derived(inner.type.item_type, lambda values: pc.map_lookup(values, key.scalar, "first"), [inner])
        raise refused(shown)

    def by_name(self, node: Any) -> Term:
        """Functions that sqlglot knows by their names alone."""
        name, arguments = node.name.upper(), node.expressions
        if len(arguments) == 1:
            if name == "ISNULL":
                return mapped("is_null", self.term(arguments[0]), strict=False)
            if name == "ISNOTNULL":
                return mapped("is_valid", self.term(arguments[0]), strict=False)
            if name == "CARDINALITY":
                return self.size(arguments[0])
        raise refused(spark_sql(node))


def _counted(term: Term) -> Term:
    import pyarrow as pa
    import pyarrow.compute as pc

    kernel = pc.binary_length if term.kind == "binary" else pc.utf8_length
    return derived(pa.int32(), lambda values: pc.cast(kernel(values), pa.int32()), [term])
