"""Checks what a request says of columns against a table's schema, once for every engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.engines.casting import cast_schema, family, planned_casts, refuse_unfit
from uc_stage.engines.drawing import check_group
from uc_stage.engines.predicate import checked, chosen, match
from uc_stage.errors import InvalidRequest
from uc_stage.model import DEFAULT_COMPRESSION, DEFAULT_ROW_GROUP_BYTES, Layout, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from uc_stage.model import ExportRequest

_DIRECTION = re.compile(r"(?P<name>.+?)\s+(?P<direction>asc|desc)", re.IGNORECASE | re.DOTALL)
# Of rows that are read and not written: no splits, and no order but their own.
NATURAL = Layout(None, None, DEFAULT_ROW_GROUP_BYTES, DEFAULT_COMPRESSION)
_UNORDERED = {"struct", "list", "map", "void", "variant"}


@dataclass(frozen=True, slots=True)
class Selection:
    """What a request asks of a table's columns, in the table's own case.

    Attributes:
        columns: those that are written, in order; None for all.
        where: canonical Spark SQL.
        casts: the target type of each column that changes, as `casting` names it.
        schema: what is written, casts done.
        order_by: terms of the form `NAME ASC` or `NAME DESC`.
        split_by: the column whose equal values stay together.
    """

    columns: tuple[str, ...] | None
    where: str | None
    casts: dict[str, str]
    schema: pa.Schema
    order_by: tuple[str, ...]
    split_by: str | None

    @classmethod
    def of(cls, request: ExportRequest, table: pa.Schema) -> Selection:
        """Reads the request against the table's columns, in their plain types.

        Raises:
            InvalidRequest: a column that is not there, a predicate that is none, a cast that is not offered.
            Unsupported: a column that the loader of `--for` does not take.
        """
        import pyarrow as pa

        columns = _columns(request, table.names)
        written = pa.schema([table.field(name) for name in columns or table.names])
        casts = planned_casts(written, request.casts)
        schema = cast_schema(written, casts)
        refuse_unfit(schema, request.loader)
        split_by = None
        if request.split_by is not None:
            split_by = chosen([request.split_by], table.names, "--split-by")[0]
            check_group(split_by, table.field(split_by).type)
        return cls(
            columns=columns,
            where=None if request.where is None else checked(request.where, table.names),
            casts=casts,
            schema=schema,
            order_by=_order(request.order_by, table),
            split_by=split_by,
        )

    def source(
        self, request: ExportRequest, table: str, table_id: str, version: int, timestamp: str | None = None
    ) -> Source:
        """The source of an export of one version of the table with this selection."""
        draws = request.sample is not None or request.shuffle or bool(request.splits)
        return Source(
            table=table,
            table_id=table_id,
            version=version,
            timestamp=timestamp,
            columns=self.columns,
            where=self.where,
            limit=request.limit,
            casts=tuple(f"{name}={target}" for name, target in self.casts.items()),
            sample=request.sample,
            seed=request.seed if draws else None,
        )


def splits(layout: Layout) -> list[tuple[str, float]]:
    """The splits of a layout by name and fraction of the rows."""
    terms = [term.rpartition("=") for term in layout.splits]
    return [(name, float(fraction)) for name, _, fraction in terms] or [("train", 1.0)]


def ordering(order_by: str) -> tuple[str, bool]:
    """A canonical term of `order_by` as its column and whether it is descending."""
    name, _, direction = order_by.rpartition(" ")
    return name, direction == "DESC"


def _columns(request: ExportRequest, names: list[str]) -> tuple[str, ...] | None:
    if request.exclude is None:
        return None if request.columns is None else chosen(request.columns, names)
    if request.columns is not None:
        raise InvalidRequest("`--columns` and `--exclude-columns` exclude each other", hint="give one of the two")
    excluded = chosen(request.exclude, names, "--exclude-columns")
    left = tuple(name for name in names if name not in excluded)
    if not left:
        raise InvalidRequest("`--exclude-columns` leaves no column", hint="name fewer columns")
    return left


def _order(asked: tuple[str, ...], table: pa.Schema) -> tuple[str, ...]:
    """The terms in canonical form: `NAME ASC` or `NAME DESC`."""
    terms = []
    for text in asked:
        directed = _DIRECTION.fullmatch(text)
        # A column's whole name goes first: it may end in a word of SQL.
        whole = match(text, table.names) is not None
        name = text if whole or directed is None else directed["name"]
        direction = "ASC" if whole or directed is None else directed["direction"].upper()
        (column,) = chosen([name], table.names, "--order-by")
        if family(table.field(column).type) in _UNORDERED:
            raise InvalidRequest(
                f"`--order-by {column}`: a column of type `{table.field(column).type}` has no order",
                hint="take a column of numbers, strings or times",
            )
        terms.append(f"{column} {direction}")
    names = [term.rpartition(" ")[0] for term in terms]
    if len(set(names)) < len(names):
        raise InvalidRequest("`--order-by` names a column twice", hint="name each column once")
    return tuple(terms)
