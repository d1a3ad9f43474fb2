"""Which packages of the extras are here, without importing them."""

from __future__ import annotations

import importlib.util


def installed(package: str) -> bool:
    """Whether a package can be imported; a folder that happens to have its name is found, too, without an origin."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
