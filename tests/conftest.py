"""What holds for all tests: no property test is held to a clock, since two cores may be busy with something else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings

from grandrounds.data.pictures import xfed_masks
from grandrounds.engine.local import LocalEngine
from grandrounds.errors import BadInput
from grandrounds.messages import Ask
from tests.support import SHARED_DATA

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
def heard(monkeypatch):
    """Every question that sites are asked, with their answers as the server hears them."""
    out: list[tuple[Ask, object]] = []
    ask = LocalEngine._ask

    def asking(self, question):
        answers = ask(self, question)
        out.append((replace(question, id=answers.id), answers))
        return answers

    monkeypatch.setattr(LocalEngine, "_ask", asking)
    return out


@pytest.fixture
def published(monkeypatch):
    """XFed's own pictures and MNIST, if this machine has them."""
    if SHARED_DATA.exists():
        monkeypatch.setenv("GRANDROUNDS_DATA", str(SHARED_DATA))
    try:
        return xfed_masks("mnist")
    except BadInput as e:
        pytest.skip(str(e))
