"""The band of a patient's risk: whether it says more than its rows can carry."""

from __future__ import annotations

import pytest

from grandrounds.capabilities.cases.near_misses import is_near
from grandrounds.capabilities.console.views.case import band


@pytest.mark.parametrize(("rows", "few"), [(3, True), (29, True), (30, False)])
def test_a_band_of_few_rows_is_too_few_to_tell(rows, few):
    shares = {"confidence": [None, 0.6], "outcome": [None, 0.6]}
    held = {"of": "positive class", "edges": [0.0, 0.5, 1.0], "count": [0, rows], **shares}
    found = band(held, 0.7, event="died")
    assert found is not None and found.rows == rows
    assert ("too few to judge" in found.verdict) == few and ("well calibrated" in found.verdict) != few


def test_half_of_the_threshold_is_not_near_it():
    assert is_near(0.448, 0.5) and is_near(0.07, 0.087)
    assert not is_near(0.27, 0.5) and not is_near(0.5, 0.5)
