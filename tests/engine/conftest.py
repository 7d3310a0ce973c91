"""Keepers in this process behind a transport that things happen to."""

from __future__ import annotations

import pytest

from grandrounds.engine import dispatcher
from tests.engine.disturbed import Clock, Disturbed


@pytest.fixture
def quick(monkeypatch):
    """A clock that moves only while nothing arrives."""
    clock = Clock()
    monkeypatch.setattr(dispatcher, "time", clock)
    return clock


@pytest.fixture
def disturbed(tmp_path, quick):
    """`disturbed(hospitals)` gives the transport; its waits take no time."""
    return lambda held, **hooks: Disturbed.of(held.keepers(tmp_path / "state"), quick, **hooks)
