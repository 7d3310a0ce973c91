"""Settings of a plan are read by attribute."""

from __future__ import annotations

from grandrounds.core.plan import Settings
from tests.support import refused


def test_a_setting_that_there_is_not_is_named():
    with refused("unknown-setting", match="no 'rouns'"):
        Settings({"rounds": 3}).rouns  # noqa: B018
    assert Settings({"method": {"rounds": 3}}).method.rounds == 3
