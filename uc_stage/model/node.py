"""What `inspect` without a target tells of the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FactState = Literal["ok", "bad", "absent", "unknown"]


@dataclass(frozen=True, slots=True)
class NodeFact:
    """One thing that a training on this machine needs or meets.

    Attributes:
        name: stable: `cache_folder`, `disk`, `locks` and so on.
        state: `absent` for what is not there and need not be; `unknown` for what could not be told.
        text: in words.
        hint: what mends it, where it is `bad`.
        facts: what the words are made from; sizes are bytes. No secret is among them.
    """

    name: str
    state: FactState
    text: str
    hint: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
