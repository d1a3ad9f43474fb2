"""Rules about columns of types that a loader does not take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from uc_stage.engines.casting import mends
from uc_stage.inspection.facts import Finding
from uc_stage.loaders.fitting import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from uc_stage.inspection.facts import Facts

_SHOWN = 3
_WIDTH = 40
# Types that every loader takes, as Arrow prints them. A footer is read for the others alone.
_TAKEN = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "halffloat", "float", "double",
    "string", "large_string", "binary", "large_binary", "list", "large_list", "struct",
}  # fmt: skip
# `struct<a: list<element: int64>>` without the names.
_NAME = re.compile(r"(?<=[<,])\s*[^<>,]*?: ")


def datasets_types(facts: Facts) -> Iterator[Finding]:
    """Columns that `datasets` does not take."""
    yield from _found(facts, "hf", "datasets", "`load_dataset` fails on {}: `datasets`{} has no feature for it")


def torch_types(facts: Facts) -> Iterator[Finding]:
    """Columns of whose values torch makes no batch; only asked where something tells of a training."""
    if facts.is_trained:
        yield from _found(facts, "torch", "torch", "`default_collate` fails on {}: torch{} makes no batch of it")


def _found(facts: Facts, loader: Literal["hf", "torch"], package: str, words: str) -> Iterator[Finding]:
    if all(_is_taken(field.type) for field in facts.report.schema) or (schema := facts.schema()) is None:
        return
    unfit, release = refused(schema, loader, installed=facts.machine.installed(package))
    if unfit:
        told = {name: str(schema.field(name).type) for name in unfit}
        shown = ", ".join(f"`{name}` ({_short(kind)})" for name, kind in list(told.items())[:_SHOWN])
        more = f" and {len(unfit) - _SHOWN} more" if len(unfit) > _SHOWN else ""
        casts, excluded = mends(schema, unfit, loader)
        flags = [word for cast in casts for word in ("--cast", cast)]
        yield Finding(
            words.format(shown + more, f" {release}" if release else ""),
            {"columns": told, "reasons": unfit, "asked": release and f"{package} {release}"},
            facts.export(*flags, without=excluded),
        )


def _short(kind: str) -> str:
    return kind if len(kind) <= _WIDTH else f"{kind[: _WIDTH - 1]}…"


def _is_taken(kind: str) -> bool:
    words = re.split(r"[<>,]", _NAME.sub("", kind.replace(" not null", "")))
    return all(word.strip() in _TAKEN or not word.strip() for word in words)
