"""Figures of calibration."""

from __future__ import annotations

import pytest

from grandrounds.report import figures
from tests.report.figures import BINS, CURVE, trace
from tests.support import refused


def test_reliability_has_wilsons_interval_and_the_rows_of_each_bin():
    from scipy.stats import binomtest

    figure = figures.reliability(BINS)
    points = trace(figure, "the model")
    assert points["x"] == [0.1, 0.6, 0.9] and points["y"] == [0.05, 0.7, 1.0], "an empty bin has no point"
    for (rows, low, high), hits in zip(points["customdata"], (2, 7, 3), strict=True):
        ci = binomtest(hits, rows).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((ci.low, ci.high), abs=1e-6)
    assert figure["data"][-1]["y"] == [40, 0, 10, 3]
    assert figure["layout"]["xaxis"]["title"]["text"] == "predicted risk of the event"
    assert figures.reliability({**BINS, "of": "top class"})["layout"]["yaxis"]["title"]["text"] == "share right"
    with refused("nothing-to-draw"):
        figures.reliability({**BINS, "count": [0, 0, 0, 0]})


def test_treating_everyone_leaves_the_chart_where_it_does_harm():
    figure = figures.decision_curve(CURVE)
    assert trace(figure, "treat everyone")["y"] == [0.28, 0.04, None]
    assert trace(figure, "the model")["y"] == [0.3, 0.2, 0.1]
