"""The heart data, for the tests that run on it."""

from __future__ import annotations

import pytest

from grandrounds.data.heart import load
from grandrounds.errors import BadInput
from tests.support import SHARED_DATA


@pytest.fixture(scope="module")
def heart():
    """The four hospitals' files, if this machine has them."""
    with pytest.MonkeyPatch.context() as patch:
        if SHARED_DATA.exists():
            patch.setenv("GRANDROUNDS_DATA", str(SHARED_DATA))
        try:
            load()
        except BadInput as e:
            pytest.skip(str(e))
        yield
