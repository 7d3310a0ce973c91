"""A run over a consortium of Flower's processes, finished whatever a test did with it."""

from __future__ import annotations

import pytest


@pytest.fixture
def run(consortium):
    held = consortium.run()
    try:
        yield held
    finally:
        held.finish()
