"""Says in Spark's SQL which rows are drawn, in which order, to which split, and in which types they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.engines.drawing import thresholds
from uc_stage.engines.selection import ordering, splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from uc_stage.engines.drawing import Purpose
    from uc_stage.model import Layout, Source

# Columns of ours beside those of a table, which may have any name but hardly one of these.
PATH, POSITION, SPLIT = "uc_stage_path", "uc_stage_position", "uc_stage_split"
_KEY = "uc_stage_key"
_INTEGERS = {"int8": ("TINYINT", 8), "int16": ("SMALLINT", 16), "int32": ("INT", 32), "int64": ("BIGINT", 64)}
_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "string": "STRING"}
_OF_TIMES = {
    "timestamp": "unix_micros({})",
    # The session's time zone is UTC.
    "timestamp_ntz": "unix_micros(CAST({} AS TIMESTAMP))",
    "date": "unix_date({})",
    "map": "map_entries({})",
}


def needs_identity(source: Source, layout: Layout) -> bool:
    """Whether it must be known of each row which one of its data file it is."""
    drawn_by_row = source.sample is not None or (bool(layout.splits) and layout.split_by is None)
    return drawn_by_row or layout.shuffle or bool(layout.order_by) or layout.equal_rows or source.limit is not None


def is_exact(layout: Layout) -> bool:
    """Whether it is decided for each row in which file it is, and where there."""
    return layout.equal_rows or layout.shuffle or bool(layout.order_by)


def drawn(frame: Any, source: Source) -> Any:
    """The rows of the predicate and of the sample."""
    if source.where is not None:
        frame = frame.where(source.where)
    if source.sample is not None and (end := thresholds([source.sample])[0]) < 2**63:
        frame = frame.where(f"{_row_hash('sample', source)} < {_bigint(end)}")
    return frame


def ordered(frame: Any, source: Source, layout: Layout, *before: str) -> Any:
    """The rows sorted as the layout asks, equal ones by their identity, after the columns `before`."""
    if layout.shuffle:
        frame = frame.drop(_KEY).selectExpr("*", f"{_row_hash('shuffle', source)} AS {_KEY}")
        keys = [frame[_KEY].asc()]
    else:
        terms = [ordering(term) for term in layout.order_by]
        columns = [(frame[tick(name)], descending) for name, descending in terms]
        keys = [column.desc_nulls_first() if down else column.asc_nulls_first() for column, down in columns]
    return frame.sort(*(frame[name].asc() for name in before), *keys, *(frame[name].asc() for name in _identity(frame)))


def with_identity_of_values(frame: Any) -> Any:
    """The rows of a query with what tells them apart as far as their values do."""
    hashed = [
        tick(field.name)
        for field in frame.schema.fields
        if not any(kind in field.dataType.simpleString() for kind in ("map<", "variant"))
    ]
    return frame.selectExpr("*", f"xxhash64({', '.join(hashed) or '0'}) AS {POSITION}")


def limited(frame: Any, source: Source, layout: Layout) -> Any:
    """The first rows of the order asked, or of their natural one, which is that of their identity."""
    if source.limit is None:
        return frame
    if layout.shuffle or layout.order_by:
        return ordered(frame, source, layout).limit(source.limit)
    return frame.where(_up_to(frame, source.limit))


def _up_to(frame: Any, rows: int) -> str:
    """The condition of being among the first rows by identity."""
    left = rows
    # A sort would take all columns of all rows; this reads no column but those of a predicate.
    counted = frame.groupBy(PATH).count().collect() if rows else []
    # Spark compares strings by their bytes.
    for path, count in sorted(((row[PATH], row["count"]) for row in counted), key=lambda file: file[0].encode()):
        if count >= left:
            last = f"{PATH} = {text(path)}"
            place = frame.where(last).select(POSITION).sort(POSITION).limit(left).agg({POSITION: "max"}).collect()[0][0]
            return f"{PATH} < {text(path)} OR ({last} AND {POSITION} <= {_bigint(place)})"
        left -= count
    return "true" if rows else "false"


def with_split(frame: Any, source: Source, layout: Layout) -> Any:
    """The rows with the number of their split as the column `SPLIT`; rows of no split are left out."""
    if not layout.splits:
        return frame.selectExpr("*", f"0 AS {SPLIT}")
    if layout.split_by is None:
        drawn_by = _row_hash("split", source)
    else:
        drawn_by = f"xxhash64({_base('split', source)}, {tick(layout.split_by)})"
    ends = thresholds([fraction for _, fraction in splits(layout)])
    cases = [f"WHEN {_KEY} < {_bigint(end)} THEN {index}" for index, end in enumerate(ends) if end < 2**63]
    last = f"ELSE {len(cases)} " if len(cases) < len(ends) else ""
    case = f"CASE {' '.join(cases)} {last}END" if cases else "0"
    frame = frame.drop(_KEY).selectExpr("*", f"{drawn_by} AS {_KEY}").selectExpr("*", f"{case} AS {SPLIT}")
    return frame.where(f"{SPLIT} IS NOT NULL")


def written(frame: Any, source: Source, names: Sequence[str], *more: str) -> Any:
    """The columns that are asked for, cast as asked, and `more`."""
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    casts = dict(term.rpartition("=")[::2] for term in source.casts)
    return frame.selectExpr(
        *(f"{_cast(name, kinds[name], casts.get(name))} AS {tick(name)}" for name in source.columns or names), *more
    )


def arrow_schema(schema: Any) -> tuple[pa.Schema, set[str]]:
    """A frame's columns in plain Arrow types, and the names of those that have none.

    Those come as structs, which is what others read of them, and which nothing can be done with but leaving them out.
    """
    import pyarrow as pa

    fields, foreign = [], set()
    for field in schema.fields:
        try:
            kind = _arrow_type(field.dataType)
        except KeyError:
            foreign.add(field.name)
            kind = pa.struct([])
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields), foreign


def with_plain_variants(kind: Any) -> Any:
    """A type of Spark with each variant as its two binaries, which is how readers see it that do not know of variants.

    All is nullable in it.
    """
    from pyspark.sql import types as of

    name = kind.typeName()
    if name == "variant":
        return of.StructType([of.StructField(part, of.BinaryType()) for part in ("metadata", "value")])
    if name == "array":
        return of.ArrayType(with_plain_variants(kind.elementType))
    if name == "map":
        return of.MapType(with_plain_variants(kind.keyType), with_plain_variants(kind.valueType))
    if name == "struct":
        return of.StructType([of.StructField(field.name, with_plain_variants(field.dataType)) for field in kind.fields])
    return kind


def holds_variant(kind: Any) -> bool:
    """Whether a type is a variant or has one inside."""
    # Unlike the types themselves, their text says nothing of what is nullable.
    return bool(with_plain_variants(kind).simpleString() != kind.simpleString())


def tick(name: str) -> str:
    """A name as an identifier of Spark's SQL."""
    return f"`{name.replace('`', '``')}`"


def text(value: str) -> str:
    """A string of Spark's SQL, which reads quotes and backslashes by a setting."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


def _identity(frame: Any) -> list[str]:
    return [name for name in (PATH, POSITION) if name in frame.columns]


def _bigint(value: int) -> str:
    return f"CAST({value} AS BIGINT)"


def _base(purpose: Purpose, source: Source) -> str:
    return f"'{purpose}', {_bigint(source.seed or 0)}"


def _row_hash(purpose: Purpose, source: Source) -> str:
    return f"xxhash64({_base(purpose, source)}, {PATH}, {POSITION})"


def _cast(name: str, kind: str, target: str | None) -> str:
    """A column in the type that a cast names, with the meaning of `casting`."""
    column = tick(name)
    if target is None:
        return column
    if kind in _OF_TIMES:
        return _OF_TIMES[kind].format(column)
    if target not in _INTEGERS:
        return f"CAST({column} AS {_TYPES[target]})"
    sql, bits = _INTEGERS[target]
    if kind == "boolean":
        return f"CAST({column} AS {sql})"
    most = 2 ** (bits - 1)
    # Whether a cast itself wraps around depends on a setting.
    words = f"concat({text(f'`--cast {name}={target}`: the value ')}, {column}, ' does not fit')"
    fits = f"{column} IS NULL OR {column} BETWEEN {_bigint(-most)} AND {_bigint(most - 1)}"
    return f"CASE WHEN {fits} THEN CAST({column} AS {sql}) ELSE raise_error({words}) END"


def _arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type of Spark.

    Raises:
        KeyError: there is none, as of an interval.
    """
    import pyarrow as pa

    name = kind.typeName()
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if name == "array":
        return pa.list_(pa.field("element", _arrow_type(kind.elementType)))
    if name == "map":
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    if name == "struct":
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType)) for field in kind.fields])
    plain = {
        "string": pa.string(), "char": pa.string(), "varchar": pa.string(), "binary": pa.binary(),
        "boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"), "void": pa.null(),
        "variant": pa.struct([("metadata", pa.binary()), ("value", pa.binary())]),
    }  # fmt: skip
    return plain[name]
