"""The one dialect of `--where` on every engine: Spark SQL, checked against a table's columns.

What `checked` gives stands in the manifest, and Spark runs it as it is; it must do so under the session time zone UTC
(`spark.sql.session.timeZone`), since that is how dates and times without a zone are read here.
"""

from __future__ import annotations

import datetime as dt
import difflib
import itertools
import re
from typing import TYPE_CHECKING, Any

from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlglot import exp

_MOMENT = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)(?:[ T](?P<time>\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(?: ?(?P<zone>Z|UTC|[+-]\d\d:\d\d))?)?"
)
# They give other rows from one run to the next, while one table version and one request are one export.
_UNSTABLE = {
    "current_catalog", "current_database", "current_date", "current_schema", "current_time", "current_timestamp",
    "current_timezone", "current_user", "curdate", "input_file_block_length", "input_file_block_start",
    "input_file_name", "java_method", "localtimestamp", "monotonically_increasing_id", "now", "rand", "randn", "random",
    "randstr", "reflect", "session_user", "shuffle", "spark_partition_id", "try_reflect", "uniform", "user", "uuid",
}  # fmt: skip
# Of a table's columns, in a hint.
_MOST_NAMED = 20


def match(name: str, columns: Iterable[str]) -> str | None:
    """The column that a name means: the one written so, else the one that is so in lower case, as in Spark."""
    columns = list(columns)
    if name in columns:
        return name
    alike = [column for column in columns if column.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def near(name: str, known: Iterable[str]) -> str:
    """The hint for a name that is not among the known ones: the nearest of them, or all."""
    known = list(known)
    by_lower = {other.lower(): other for other in known}
    if matches := difflib.get_close_matches(name.lower(), by_lower, n=1):
        return f"did you mean `{by_lower[matches[0]]}`?"
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"it has {', '.join(f'`{other}`' for other in known[:_MOST_NAMED])}{more}"


def chosen(asked: Sequence[str], columns: Sequence[str], flag: str = "--columns") -> tuple[str, ...]:
    """The asked columns in the order asked, each in the table's own case.

    Raises:
        InvalidRequest: one that the table does not have, one asked twice, or none at all.
    """
    found = []
    for name in asked:
        column = match(name, columns)
        if column is None:
            raise InvalidRequest(f"`{flag}` names `{name}`, which the table does not have", hint=near(name, columns))
        found.append(column)
    if not found or len(set(found)) < len(found):
        raise InvalidRequest(f"`{flag}` names a column twice, or none", hint="name each column once")
    return tuple(found)


def checked(where: str, columns: Sequence[str]) -> str:
    """Gives a predicate as canonical Spark SQL: names quoted and in the table's own case, timestamps in UTC.

    Raises:
        InvalidRequest: it does not parse, names an unknown column, holds a subquery, an aggregate, a window, a
            parameter or a function whose answer changes from run to run.
    """
    from sqlglot import exp

    tree = parsed(where)
    forbidden: tuple[tuple[Any, str], ...] = (
        ((exp.Query, exp.Subquery), "a subquery"),
        (exp.Window, "a window"),
        ((exp.AggFunc, exp.UDTF), "an aggregate or a generator"),
        ((exp.Placeholder, exp.Parameter, exp.SessionParameter), "a parameter"),
        (exp.Star, "`*`"),
        (exp.Command, "a command"),
    )
    for node in tree.walk():
        for kinds, words in forbidden:
            if isinstance(node, kinds):
                raise InvalidRequest(
                    f"`--where` holds {words}, and it decides on one row at a time: `{spark_sql(node)}`",
                    hint="select those rows in a view or a table of their own, and export that",
                )
        if is_unstable(node):
            raise InvalidRequest(
                f"`--where` holds `{spark_sql(node)}`, whose answer changes from run to run",
                hint="write the value itself, such as `TIMESTAMP '2026-01-31 00:00:00'`",
            )
        if isinstance(node, exp.Column):
            first = node.parts[0]
            column = match(first.name, columns)
            if column is None:
                raise InvalidRequest(
                    f"`--where` names the column `{first.name}`, which the table does not have",
                    hint=near(first.name, columns),
                )
            first.set("this", column)
        if isinstance(node, exp.Cast) and node.this.is_string and (kind := moment_kind(node)):
            node.this.set("this", _canonical_moment(node.this.this, kind))
    return tree.sql(dialect="spark", identify=True, comments=False)


def parsed(where: str) -> exp.Expr:
    """Parses one condition of Spark SQL and refuses what Spark's versions disagree about."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    try:
        tokens = sqlglot.tokenize(where, read="spark")
        tree = exp.condition(where, dialect="spark")
    except ParseError as error:
        where_it_breaks = error.errors[0] if error.errors else {}
        near_it = where_it_breaks.get("highlight") or where
        raise InvalidRequest(f"`--where` does not parse at `{near_it}`", hint=_SYNTAX_HINT) from None
    except SqlglotError:
        raise InvalidRequest(f"`--where` does not parse: `{where}` has an open quote", hint=_SYNTAX_HINT) from None
    except RecursionError:
        raise InvalidRequest("`--where` is nested too deeply", hint="use `IN (...)`, or export a view") from None
    for one, two in itertools.pairwise(tokens):
        if one.token_type.name == two.token_type.name == "STRING":
            raise InvalidRequest(
                f"`--where` has two strings in a row, `{one.text}` and `{two.text}`, which Spark 3 and 4 read apart",
                hint=r"write a quote inside a string as \'",
            )
    return tree


_SYNTAX_HINT = "write one condition of Spark SQL, such as --where \"split = 'train' AND length > 10\""


def is_unstable(node: exp.Expr) -> bool:
    """Whether an expression is a function whose answer changes from run to run."""
    from sqlglot import exp

    return isinstance(node, exp.Func) and function_name(node) in _UNSTABLE


def function_name(node: exp.Func) -> str:
    """A function's name in lower case."""
    from sqlglot import exp

    return node.name.lower() if isinstance(node, exp.Anonymous) else node.sql_name().lower()


def spark_sql(node: exp.Expr) -> str:
    """An expression as Spark's SQL, for a message."""
    return str(node.sql(dialect="spark", comments=False))


def moment_kind(cast: exp.Cast) -> str | None:
    """`date`, `timestamp` or `timestamp_ntz` where a cast goes to one of them: Spark's typed literals are casts."""
    kinds = {"date": ("DATE",), "timestamp": ("TIMESTAMPTZ", "TIMESTAMPLTZ"), "timestamp_ntz": ("TIMESTAMPNTZ",)}
    return next((kind for kind, names in kinds.items() if cast.to.is_type(*names)), None)


def moment_of(text: str) -> tuple[dt.datetime, bool, bool] | None:
    """A date or time as text, as a UTC moment, with whether it has a time of day and a zone; None if it is none."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    time, zone = found["time"] or "00:00", found["zone"] or "+00:00"
    fraction = time.partition(".")[2]
    time = time.partition(".")[0] + (f".{fraction:0<6}" if fraction else "")
    try:
        moment = dt.datetime.fromisoformat(f"{found['date']}T{time}{'+00:00' if zone in ('Z', 'UTC') else zone}")
        return moment.astimezone(dt.timezone.utc), found["time"] is not None, found["zone"] is not None
    except (ValueError, OverflowError):
        return None


def _canonical_moment(text: str, kind: str) -> str:
    """The text of a typed literal in the one form that every session reads alike."""
    read = moment_of(text)
    if read is None or (kind == "date" and read[1]) or (kind == "timestamp_ntz" and read[2]):
        forms = {
            "date": "`2026-01-31`",
            "timestamp": "`2026-01-31 12:00:00` (UTC) or `2026-01-31 12:00:00+02:00`",
            "timestamp_ntz": "`2026-01-31 12:00:00`",
        }
        raise InvalidRequest(f"`--where` has `{text}` as a {kind}, and that is none", hint=f"write it as {forms[kind]}")
    if kind == "date":
        return text
    return read[0].replace(tzinfo=None).isoformat() + ("Z" if kind == "timestamp" else "")
