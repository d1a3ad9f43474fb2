"""Fixtures live in `tests/fixtures`, one module a real part."""

from __future__ import annotations

pytest_plugins = [
    "tests.fixtures.delta",
    "tests.fixtures.s3",
    "tests.fixtures.shell",
    "tests.fixtures.spark",
    "tests.fixtures.volume",
]
