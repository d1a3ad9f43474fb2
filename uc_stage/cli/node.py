"""Shows what this machine can do, one line a fact, with what mends those that are not well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uc_stage.model import NodeFact

_WORDS = {"ok": "ok", "bad": "not well", "absent": "-", "unknown": "?"}


def render(facts: Sequence[NodeFact]) -> None:
    """Prints the facts in their order."""
    width = max(len(fact.name) for fact in facts)
    print("\nthis machine")
    for fact in facts:
        print(printable(f"  {_WORDS[fact.state]:<8}  {fact.name.replace('_', ' '):<{width}}  {fact.text}"))
        if fact.hint:
            print(printable(f"  {'':<8}  {'':<{width}}  hint: {fact.hint}"))
