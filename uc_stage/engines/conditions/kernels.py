"""Functions over Arrow arrays, or scalars, that give what Spark's functions of the same name give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

# Texts of these characters have one upper and one lower case in every version of Unicode that engines are built with,
# by character: the other letters have cases of several characters, or by context (a final sigma), or are too new.
_PLAIN_CASES = (
    r"[^\x{0}-\x{DE}\x{E0}-\x{12F}\x{131}-\x{148}\x{14A}-\x{1EF}\x{1F1}-\x{276}\x{278}-\x{27B}\x{27D}-\x{38F}"
    r"\x{391}-\x{3A2}\x{3A4}-\x{3AF}\x{3B1}-\x{586}\x{590}-\x{109F}\x{1100}-\x{139F}\x{1E00}-\x{1E95}"
    r"\x{1EA0}-\x{1EFF}\x{2000}-\x{2BFF}\x{2E80}-\x{A63F}\x{AC00}-\x{D7FF}\x{F900}-\x{FAFF}\x{FE00}-\x{FFFF}"
    r"\x{1F000}-\x{1FAFF}\x{20000}-\x{3FFFF}]"
)
# Arrow's years have 16 bits; these are 30 000 years from 1970.
_MOST_DAYS = 30_000 * 365
_MOST_MICROS = _MOST_DAYS * 86_400_000_000


def compare(operator: str, *, floats: bool, plain: bool) -> Callable[[Any, Any], Any]:
    """A comparison by `=`, `<>`, `<`, `<=`, `>` or `>=`.

    Args:
        operator: as in SQL.
        floats: whether NaN may occur, which in Spark equals itself and is greater than all else.
        plain: whether the right side is a number and no NaN.
    """
    import pyarrow.compute as pc

    kernels: dict[str, Callable[[Any, Any], Any]] = {
        "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    }  # fmt: skip
    kernel = kernels[operator]
    if not floats or (plain and operator in {"=", "<>", "<", "<="}):
        return kernel
    if plain:
        return lambda left, right: pc.or_(kernel(left, right), pc.is_nan(left))

    def equal(left: Any, right: Any) -> Any:
        return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))

    def greater(left: Any, right: Any) -> Any:
        return pc.or_(pc.greater(left, right), pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))

    ordered: dict[str, Callable[[Any, Any], Any]] = {
        "=": equal,
        "<>": lambda left, right: pc.invert(equal(left, right)),
        ">": greater,
        "<=": lambda left, right: pc.invert(greater(left, right)),
        "<": lambda left, right: greater(right, left),
        ">=": lambda left, right: pc.invert(greater(right, left)),
    }
    return ordered[operator]


def null_safe(equal: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`<=>` from an equality: two NULL are equal, and one is not."""
    import pyarrow.compute as pc

    def kernel(left: Any, right: Any) -> Any:
        return pc.or_(pc.fill_null(equal(left, right), False), pc.and_(_is_null(left), _is_null(right)))

    return kernel


def is_in(options: list[Any], *, floats: bool) -> Callable[[Any], Any]:
    """IN over scalars of the values' own type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = options[0].type
    known = [option for option in options if option.is_valid]
    found = pa.array([option.as_py() for option in known] if known else [], kind)
    zero = pa.scalar(0.0, kind) if floats else None
    if floats:
        # It goes by the hash, where -0.0 and 0.0 differ.
        found = pc.add(found, zero)
    no = pa.scalar(None if len(known) < len(options) else False, pa.bool_())

    def kernel(values: Any) -> Any:
        hit = pc.is_in(pc.add(values, zero) if floats else values, found)
        return pc.if_else(_is_null(values), pa.scalar(None, pa.bool_()), pc.if_else(hit, True, no))

    return kernel


def _is_null(values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.is_null(values)


def found(function: str, pattern: str) -> Callable[[Any], Any] | None:
    """Whether a text is, or holds, what one of Arrow's functions finds by a pattern; None for one that RE2 refuses."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kernel = getattr(pc, function)
    try:
        kernel(pa.scalar(""), pattern)
    except pa.ArrowInvalid:
        return None
    return lambda values: kernel(values, pattern)


def cased(upper: bool) -> Callable[[Any], Any]:
    """Upper or lower case.

    Raises, when it runs:
        Unsupported: a text whose case depends on more than its single characters.
    """
    import pyarrow.compute as pc

    change = pc.utf8_upper if upper else pc.utf8_lower
    change_ascii = pc.ascii_upper if upper else pc.ascii_lower

    def kernel(values: Any) -> Any:
        if pc.all(pc.string_is_ascii(values)).as_py() is not False:
            return change_ascii(values)
        odd = pc.match_substring_regex(values, _PLAIN_CASES)
        if pc.any(odd).as_py():
            raise Unsupported(
                "`--where` asks for the upper or lower case of a text with letters that the local engine does not know",
                hint="run it with `--engine spark`",
            )
        return change(values)

    return kernel


def part_of(kernel: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A part of dates or times, such as the year.

    Raises, when it runs:
        Unsupported: a date that Arrow cannot take apart.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_a

    def checked(values: Any) -> Any:
        days = is_a.is_date32(values.type)
        most, whole = (_MOST_DAYS, pa.int32()) if days else (_MOST_MICROS, pa.int64())
        ends = pc.min_max(pc.cast(values, whole)).as_py()
        if ends["min"] is not None and not -most <= ends["min"] <= ends["max"] <= most:
            raise Unsupported(
                "`--where` takes apart a date beyond the year 30000, which the local engine cannot",
                hint="run it with `--engine spark`",
            )
        return pc.cast(kernel(values), pa.int32())

    return checked


def remainder(values: Any, divisor: Any) -> Any:
    """`%` of integers: the sign is that of the dividend; fails on a divisor of zero."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # The least integer divided by -1 overflows, while its remainder is 0 as that by 1.
    safe = pc.if_else(pc.equal(divisor, pa.scalar(-1, divisor.type)), pa.scalar(1, divisor.type), divisor)
    return pc.subtract(values, pc.multiply(pc.divide_checked(values, safe), safe))


def quotient(values: Any, divisor: Any) -> Any:
    """`/` of doubles, which fails on a divisor of zero as ANSI SQL has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zero = pc.and_(pc.equal(divisor, pa.scalar(0.0)), pc.is_valid(values))
    if pc.any(zero).as_py():
        raise pa.ArrowInvalid("divide by zero")
    return pc.divide(values, divisor)


def truncated(kind: Any) -> Callable[[Any], Any]:
    """Doubles as integers of a type, toward zero; fails on what is out of its range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    most = float(2 ** (kind.bit_width - 1))

    def kernel(values: Any) -> Any:
        whole = pc.trunc(values)
        inside = pc.and_(pc.greater_equal(whole, -most), pc.less(whole, most))
        if pc.all(inside).as_py() is False:
            raise pa.ArrowInvalid("a number is out of the range of an integer")
        return pc.cast(whole, kind)

    return kernel


def substring(start: int, length: int | None) -> Callable[[Any], Any]:
    """SUBSTRING from a position that counts from 1, or from the end where it is negative, in characters."""
    import pyarrow.compute as pc

    begin = start - 1 if start > 0 else start
    end = None if length is None else begin + max(0, length)
    if start < 0 and end is not None and end >= 0:
        end = None
    return lambda values: pc.utf8_slice_codeunits(values, begin, end)


def size(values: Any) -> Any:
    """The number of elements of lists, or of entries of maps."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_a

    if is_a.is_map(values.type):
        entry = pa.struct([pa.field("key", values.type.key_type), pa.field("value", values.type.item_type)])
        values = pc.cast(values, pa.list_(entry))
    return pc.cast(pc.list_value_length(values), pa.int32())


def array_contains(equal: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Whether a list holds an element for which `equal` is true; NULL where it holds none, but a NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def kernel(lists: Any) -> Any:
        hits = equal(pc.list_flatten(lists))
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        ends = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
        starts = pc.subtract(ends, lengths)

        def any_of(marks: Any) -> Any:
            sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(pc.cast(marks, pa.int64()))])
            return pc.greater(pc.take(sums, ends), pc.take(sums, starts))

        unknown = pc.if_else(any_of(pc.is_null(hits)), pa.scalar(None, pa.bool_()), False)
        found = pc.if_else(any_of(pc.fill_null(hits, False)), True, unknown)
        return pc.if_else(pc.is_null(lists), pa.scalar(None, pa.bool_()), found)

    return kernel
