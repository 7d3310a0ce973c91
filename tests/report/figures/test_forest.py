"""The forest plot."""

from __future__ import annotations

import math

import pytest

from grandrounds.capabilities.statistics.estimates import Coefficient
from grandrounds.capabilities.statistics.meta import MetaAnalysis, SiteEstimate
from grandrounds.metrics.meta_analysis import MetaCoefficient
from grandrounds.report import figures
from tests.report.figures import trace
from tests.support import refused


def analysis(name="age", site="a", *, model="logistic", sites=3) -> MetaAnalysis:
    """Three hospitals with the estimates 0, 1 and 2; of more the rest have 1 and little weight."""
    own = {site: (0.0, 0.5), "b": (1.0, 0.7), "c": (2.0, 0.5)} | {f"more {k}": (1.0, 5.0 + k) for k in range(sites - 3)}
    by_site = {s: {name: SiteEstimate(b, e, b - 1.96 * e, b + 1.96 * e)} for s, (b, e) in own.items()}
    done = MetaCoefficient(
        name, sites, 1.0, 0.32, 0.4, 1.6, 1.1, 0.6, -0.1, 2.3, 0.07, 8.0, 0.018, 0.75, 0.94, -13.0, 15.0
    )
    return MetaAnalysis(model, (done, MetaCoefficient("rare", 2)), {**by_site, "d": {}})


def test_hospitals_and_summaries_are_ratios():
    figure = figures.forest(analysis(), "age", Coefficient("age", 0.9, 0.3, 3.0, 0.003, 0.3, 1.5))
    own = trace(figure, "hospitals")
    assert own["y"] == ["a", "b", "c"] and own["x"] == pytest.approx([1, math.e, math.e**2])
    assert own["error_x"]["array"][0] == pytest.approx(math.exp(1.96 * 0.5) - 1)
    assert own["marker"]["size"][0] > own["marker"]["size"][1], "a larger weight is a larger square"
    assert trace(figure, "all rows")["x"] == pytest.approx([math.exp(0.9)])
    assert trace(figure, "meta-analysis, random effects")["x"] == pytest.approx([math.exp(1.1)])
    new = trace(figure, "a new hospital")
    assert new["error_x"]["arrayminus"] == pytest.approx([math.exp(1.1) - math.exp(-13)])
    assert new["x"][0] + new["error_x"]["array"][0] == pytest.approx(1e6), "e^15 is cut off"
    assert figure["layout"]["xaxis"]["type"] == "log"
    caption = figure["layout"]["title"]["text"]
    assert "I-squared 75%; Cochran's Q 8.00, p = 0.018 (3 hospitals): differs between hospitals" in caption


def test_a_linear_model_has_coefficients():
    figure = figures.forest(analysis(model="linear"), "age")
    assert trace(figure, "hospitals")["x"] == [0, 1, 2]
    assert "all rows (common fit)" not in figure["layout"]["yaxis"]["categoryarray"]


def test_of_many_hospitals_the_heaviest_are_drawn():
    figure = figures.forest(analysis(sites=40), "age")
    assert len(trace(figure, "hospitals")["y"]) == 30 and "more 36" not in trace(figure, "hospitals")["y"]
    assert "the 30 heaviest of 40 hospitals" in figure["layout"]["title"]["text"]


def test_nothing_to_draw():
    with refused("nothing-to-draw"):
        figures.forest(analysis(), "rare")
    with refused("unknown-column"):
        figures.forest(analysis(), "agee")
