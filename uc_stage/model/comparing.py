"""What `inspect --diff` finds: how one target differs from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uc_stage.model.inspecting import TargetKind
    from uc_stage.model.tables import Field


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two that are compared; what it has no word for is None."""

    target: str
    kind: TargetKind
    version: int | None
    generation: str | None
    rows: int | None
    files: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column that both have, with its type in each."""

    name: str
    type: str
    other: str


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """The columns that OTHER has alone, those that it lacks, and those of another type; NOT NULL does not count."""

    added: tuple[Field, ...] = ()
    removed: tuple[Field, ...] = ()
    retyped: tuple[Retyped, ...] = ()
    reordered: bool = False


@dataclass(frozen=True, slots=True)
class RowsDiff:
    """The rows of both; None where it has none, or nothing tells. `difference` is how many more OTHER has."""

    rows: int | None
    other: int | None
    difference: int | None


@dataclass(frozen=True, slots=True)
class FilesDiff:
    """The files that OTHER has alone, those that it lacks, and those with other bytes; and how many are the same.

    Attributes:
        by: `hash`, `size`, `hash and size` where some have no recorded hash, or `name`, for a table's data files, which
            nobody changes; None where files cannot be compared.
        reason: why they cannot; None where they were.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    same: int = 0
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Differing:
    """One fact about the origin that differs: `version`, or `options.where`."""

    name: str
    value: Any
    other: Any


@dataclass(frozen=True, slots=True)
class DiffReport:
    """How OTHER differs from the target.

    Attributes:
        same: the same version, options, schema, rows and files, as far as both tell of them. Another generation, or
            another text for the same table, is listed, and is no difference.
        rows: of all splits together.
        splits: of each split, where both tell of splits.
        origin: what differs in table, version, generation and options, where both have a record of them.
    """

    target: DiffSide
    other: DiffSide
    same: bool
    schema: SchemaDiff
    rows: RowsDiff
    files: FilesDiff
    splits: dict[str, RowsDiff] = field(default_factory=dict)
    origin: tuple[Differing, ...] = ()
