"""Packages that may be missing: those that a ledger needs."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED_PACKAGES = ("cryptography", "rfc8785")
"""Packages without which a run has no ledger, and none can be read."""


def is_installed(name: str) -> bool:
    """Tell whether a package can be imported."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
