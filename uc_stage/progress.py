"""The seam between the work and whoever watches it. Nothing here prints."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told what happened; decides what to show. Safe to call from any thread, cheap to over-call."""

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        """Starts a phase such as `write` or `copy` of `total` amounts of `unit`: `bytes`, `rows` or `files`."""

    def advance(self, amount: int) -> None:
        """Adds `amount` of the phase's unit to what is done."""

    def note(self, message: str) -> None:
        """Says one thing that a person would want to know now, such as whom a lock is waited for."""


class Silent:
    """Shows nothing: the default of the Python API."""

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        """Ignores the phase."""

    def advance(self, amount: int) -> None:
        """Ignores the amount."""

    def note(self, message: str) -> None:
        """Ignores the message."""


SILENT = Silent()
