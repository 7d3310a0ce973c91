"""The clock of the engine's tests: waits of a server take no time."""

from __future__ import annotations

from tests.engine.conftest import quick

__all__ = ["quick"]
