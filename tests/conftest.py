"""Fixtures live in `tests/fixtures`, one module a real part."""

from __future__ import annotations

pytest_plugins: list[str] = []
