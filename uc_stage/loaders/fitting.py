"""What types the libraries that train take: the library itself is asked where it is installed, else `--for`'s rules."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.engines.casting import why_unfit
from uc_stage.forms.arrow_schema import is_plain

if TYPE_CHECKING:
    import pyarrow as pa


def refused(schema: pa.Schema, loader: Literal["hf", "torch"], *, installed: bool) -> dict[str, str]:
    """The columns of a schema that a loader does not take, each with its reason.

    `datasets` is asked for the features of a column, torch's `default_collate` to make a batch of two rows of it. A
    type that every release takes is not asked for: to import either takes a second or more.
    """
    found = {}
    for field in schema:
        if loader == "hf":
            if is_plain(field.type):
                continue
            why = _refused_by_datasets(field) if installed else why_unfit(field.type, "hf")
        else:
            if _is_tensor(field.type):
                continue
            why = _refused_by_torch(field) if installed else why_unfit(field.type, "torch")
        if why is not None:
            found[field.name] = why
    return found


def _refused_by_datasets(field: pa.Field) -> str | None:
    import datasets
    import pyarrow as pa

    try:
        datasets.Features.from_arrow_schema(pa.schema([field]))
    except Exception as error:  # noqa: BLE001 - each release refuses in a way of its own
        return _first_sentence(error)
    return None


def _refused_by_torch(field: pa.Field) -> str | None:
    try:
        rows = [{field.name: _value(field.type, row)} for row in range(2)]
    except TypeError:  # a type that has no such value: what torch makes of it is not known
        return None
    from torch.utils.data import default_collate

    try:
        default_collate(rows)
    except Exception as error:  # noqa: BLE001 - each release refuses in a way of its own
        return _first_sentence(error)
    return None


def _first_sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:160]


def _is_tensor(kind: pa.DataType) -> bool:
    """Whether the values of a type, or those that it is made of, are such as every release of torch collates."""
    import pyarrow.types as is_a

    if is_a.is_struct(kind):
        return all(_is_tensor(field.type) for field in kind)
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        return _is_tensor(kind.value_type)
    flat = (
        is_a.is_boolean, is_a.is_integer, is_a.is_floating, is_a.is_string, is_a.is_large_string, is_a.is_binary,
        is_a.is_large_binary,
    )  # fmt: skip
    return any(fits(kind) for fits in flat)


def _value(kind: pa.DataType, row: int) -> Any:
    """A value of a type as pyarrow gives it to Python. A map has as many entries as it likes: one more in each row.

    Raises:
        TypeError: none is known.
    """
    import pyarrow as pa
    import pyarrow.types as is_a

    if isinstance(kind, pa.BaseExtensionType):
        return _value(kind.storage_type, row)
    if is_a.is_dictionary(kind):
        return _value(kind.value_type, row)
    if is_a.is_struct(kind):
        return {field.name: _value(field.type, row) for field in kind}
    if is_a.is_map(kind):
        return [(_value(kind.key_type, row), _value(kind.item_type, row))] * (row + 1)
    if is_a.is_list(kind) or is_a.is_large_list(kind):
        return [_value(kind.value_type, row)]
    if is_a.is_fixed_size_list(kind):
        return [_value(kind.value_type, row)] * kind.list_size
    values = (
        (is_a.is_boolean, True), (is_a.is_integer, 1), (is_a.is_floating, 1.0), (is_a.is_decimal, decimal.Decimal(1)),
        (is_a.is_string, "a"), (is_a.is_large_string, "a"), (is_a.is_binary, b"a"), (is_a.is_large_binary, b"a"),
        (is_a.is_fixed_size_binary, b"a"), (is_a.is_null, None), (is_a.is_date, dt.date(1970, 1, 1)),
        (is_a.is_timestamp, dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)), (is_a.is_time, dt.time()),
        (is_a.is_duration, dt.timedelta()),
    )  # fmt: skip
    for fits, value in values:
        if fits(kind):
            return value
    raise TypeError(str(kind))
