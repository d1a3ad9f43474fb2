"""What types the libraries that train take: the library itself is asked where it is installed, else `--for`'s rules."""

from __future__ import annotations

import datetime as dt
import decimal
import importlib
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.engines.casting import why_unfit
from uc_stage.forms.arrow_schema import is_plain

if TYPE_CHECKING:
    import pyarrow as pa


def refused(schema: pa.Schema, loader: Literal["hf", "torch"], *, installed: bool) -> tuple[dict[str, str], str | None]:
    """The columns of a schema that a loader does not take, each with its reason; and the release that was asked.

    `datasets` is asked for the features of a column, torch's `default_collate` to make a batch of two rows of it. A
    type that every release takes is not asked for: to import either takes a second or more.
    """
    taken = is_plain if loader == "hf" else _is_tensor
    odd = [field for field in schema if not taken(field.type)]
    if not odd:
        return {}, None
    library = _imported(loader) if installed else None
    if library is None:
        reasons = {field.name: why_unfit(field.type, loader) for field in odd}
    else:
        ask = _ask_datasets if loader == "hf" else _ask_torch
        reasons = {field.name: ask(library, field) for field in odd}
    release = None if library is None else str(library.__version__).partition("+")[0]
    return {name: why for name, why in reasons.items() if why is not None}, release


def _imported(loader: Literal["hf", "torch"]) -> Any:
    """The library; None where it is broken, such as torch without its CUDA."""
    try:
        return importlib.import_module("datasets" if loader == "hf" else "torch")
    except Exception:  # noqa: BLE001 - what a broken installation raises depends on what is broken
        return None


def _ask_datasets(datasets: Any, field: pa.Field) -> str | None:
    import pyarrow as pa

    try:
        datasets.Features.from_arrow_schema(pa.schema([field]))
    except Exception as error:  # noqa: BLE001 - each release refuses in a way of its own
        return _first_sentence(error)
    return None


def _ask_torch(torch: Any, field: pa.Field) -> str | None:
    try:
        rows = [{field.name: _value(field.type, row)} for row in range(2)]
    except TypeError:  # a type that has no such value: what torch makes of it is not known
        return None
    try:
        torch.utils.data.default_collate(rows)
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
