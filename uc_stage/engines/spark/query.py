"""Reads the SQL of `--query`: one SELECT, the tables that it reads, and the versions that these are pinned to."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.engines.predicate import function_name, is_unstable, spark_sql
from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot import exp

    from uc_stage.model import ExportRequest

_SELECT_HINT = 'write one SELECT, such as --query "SELECT a.*, b.label FROM a JOIN b USING (id)"'
# Functions in place of a table that read nothing.
_MADE = {"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack"}


@dataclass(frozen=True, slots=True)
class TableName:
    """One table as a query names it.

    Attributes:
        name: as an identifier of Spark's SQL, or a function's name.
        end: the place in the query right after the name; None where no version can be put there.
        version: that the query itself pins.
        called: whether it is a function, which reads nobody knows what.
    """

    name: str
    end: int | None = None
    version: int | None = None
    called: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT that was read.

    Attributes:
        sql: its text.
        tables: each mention of a table that it reads, in the order of the text.
    """

    sql: str
    tables: tuple[TableName, ...]

    @classmethod
    def parse(cls, text: str) -> Query:
        """Reads the text.

        Raises:
            InvalidRequest: it does not parse, is no single SELECT, has a column without a name or a function whose
                answer changes from run to run, or draws rows by chance.
        """
        from sqlglot import exp

        sql = text.strip().rstrip(";").rstrip()
        tree = _parsed(sql)
        for node in tree.walk():
            if isinstance(node, (exp.Command, exp.DDL, exp.DML, exp.Into)) and not isinstance(node, exp.Query):
                raise InvalidRequest(f"`--query` holds `{spark_sql(node)}`, which changes tables", hint=_SELECT_HINT)
            if isinstance(node, exp.TableSample):
                raise InvalidRequest(
                    f"`--query` holds `{spark_sql(node).strip()}`, which draws other rows in each run",
                    hint="write the query's result to a table, and export that with `--sample` and `--seed`",
                )
            if is_unstable(node):
                raise InvalidRequest(
                    f"`--query` holds `{spark_sql(node)}`, whose answer changes from run to run",
                    hint="write the value itself, such as `TIMESTAMP '2026-01-31 00:00:00'`",
                )
        for column in tree.selects:
            if not (column.is_star or column.output_name or isinstance(column, exp.Aliases)):
                raise InvalidRequest(
                    f"`--query` gives a column without a name: `{spark_sql(column)}`",
                    hint=f"name it: `{spark_sql(column)} AS x`",
                )
        tables = [_table(table) for table in tree.find_all(exp.Table) if not _is_common(table)]
        found = [table for table in tables if not (table.called and table.name in _MADE)]
        return cls(sql, tuple(sorted(found, key=lambda table: table.end or 0)))

    def pinned(self, version: Callable[[str], int | None]) -> tuple[str, tuple[str, ...]]:
        """The query over fixed versions, and the tables with these: `NAME@vN`, or `NAME` where none is told.

        Args:
            version: tells the version of a table by its name.
        """
        sql, told = self.sql, set()
        for table in reversed(self.tables):
            number = table.version
            if table.end is not None and (number := version(table.name)) is not None:
                sql = f"{sql[: table.end]} VERSION AS OF {number}{sql[table.end :]}"
            told.add(table.name if number is None else f"{table.name}@v{number}")
        # Nothing but a query can stand in parentheses, whatever another parser makes of the text.
        return f"SELECT * FROM (\n{sql}\n)", tuple(sorted(told))  # noqa: S608 - the user's own query, for no other user

    def relations(self, version: Callable[[str], int | None]) -> dict[str, bool]:
        """The tables as a FROM clause names them, each with whether it is of a fixed version; without functions."""
        found = {}
        for table in self.tables:
            number = version(table.name) if table.end is not None else table.version
            if not table.called:
                found[table.name if number is None else f"{table.name} VERSION AS OF {number}"] = number is not None
        return found


def refuse_unfit_flags(request: ExportRequest) -> None:
    """Refuses what needs to know of each row which one it is, since the rows of a query come from no file.

    Raises:
        InvalidRequest: naming the flag.
    """
    store = "write the query's result to a table and export that"
    ordered = bool(request.order_by)
    unfit = (
        ("--sample", request.sample is not None, store),
        ("--shuffle", request.shuffle, store),
        ("--split", bool(request.splits) and request.split_by is None, f"add `--split-by COLUMN`, or {store}"),
        ("--limit", request.limit is not None and not ordered, f"add `--order-by COLUMN`, or {store}"),
        (
            "--equal-rows" if request.equal_rows else "--drop-remainder",
            (request.equal_rows or request.drop_remainder) and not ordered,
            f"add `--order-by COLUMN`, or {store}",
        ),
    )
    for flag, given, hint in unfit:
        if given:
            raise InvalidRequest(
                f"`{flag}` goes by a row's place in its table, and a query's rows have none", hint=hint
            )


def refuse_equal_names(columns: list[str]) -> None:
    """Refuses columns whose names differ at most in case.

    Raises:
        InvalidRequest: naming one.
    """
    seen: set[str] = set()
    for name in columns:
        if name.lower() in seen:
            raise InvalidRequest(
                f"`--query` gives two columns named `{name}`", hint=f"name each: `SELECT a.{name} AS a_{name}, …`"
            )
        seen.add(name.lower())


def _parsed(sql: str) -> Any:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    logger = logging.getLogger("sqlglot")
    silent = logger.disabled
    logger.disabled = True  # it warns of statements that it does not know, on stderr
    try:
        trees = sqlglot.parse(sql, read="spark")
    except ParseError as error:
        where = (error.errors[0] if error.errors else {}).get("highlight") or sql
        raise InvalidRequest(f"`--query` does not parse at `{where}`", hint=_SELECT_HINT) from None
    except SqlglotError:
        raise InvalidRequest("`--query` does not parse: it has an open quote", hint=_SELECT_HINT) from None
    except RecursionError:
        raise InvalidRequest("`--query` is nested too deeply", hint="make a view of its inner part") from None
    finally:
        logger.disabled = silent
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise InvalidRequest(f"`--query` is not one SELECT: `{sql}`", hint=_SELECT_HINT)
    return trees[0]


def _table(table: exp.Table) -> TableName:
    from sqlglot import exp

    parts = table.parts
    if not all(isinstance(part, exp.Identifier) for part in parts):
        made = table.this
        return TableName(function_name(made) if isinstance(made, exp.Func) else spark_sql(made), called=True)
    name = ".".join(spark_sql(part) for part in parts)
    asked = table.args.get("version")
    if asked is None:
        return TableName(name, parts[-1].meta["end"] + 1)
    if asked.this != "VERSION" or not asked.expression.is_int:
        raise InvalidRequest(
            f"`--query` reads `{name}` as of `{spark_sql(asked.expression)}`, which is no version",
            hint=f"write the version: `{name} VERSION AS OF 12`",
        )
    return TableName(name, version=int(asked.expression.name))


def _is_common(table: exp.Table) -> bool:
    """Whether the name is that of a common table expression which is known at this place."""
    from sqlglot import exp

    if len(table.parts) > 1 or isinstance(table.this, exp.Func):
        return False
    name = table.name.lower()
    inside: Any = table
    above: Any = table.parent
    while above is not None:
        known: list[Any] = []
        if isinstance(above, exp.With):
            # One sees those before it, and itself where it may recur.
            seen = next(index for index, one in enumerate(above.expressions) if one is inside)
            known = above.expressions[: seen + bool(above.recursive)]
        elif (clause := above.args.get("with_")) is not None and clause is not inside:
            known = clause.expressions
        if any(one.alias.lower() == name for one in known):
            return True
        inside, above = above, above.parent
    return False
