"""Figures of survival."""

from __future__ import annotations

import pytest

from grandrounds.capabilities.statistics.concordance import Concordance
from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, SurvivalCurve
from grandrounds.capabilities.statistics.survival_scores import SurvivalScores
from grandrounds.report import figures
from grandrounds.report.figures.survival import choose_ticks, describe_log_rank
from tests.report.survival import BY_DAY, LOG_RANK, ON_BINS, SCORES
from tests.support import refused


def trace(figure, name):
    """The one trace of this name."""
    (found,) = (t for t in figure["data"] if t["name"] == name)
    return found


def test_curves_by_day_are_steps_with_a_band_and_numbers_at_risk():
    figure = figures.survival_curves(KaplanMeier(BY_DAY, (BY_DAY, ON_BINS), LOG_RANK), unit="days")
    line = trace(figure, "a &lt;b&gt;")
    assert line["line"]["shape"] == "hv"
    assert line["x"] == [0, 5, 10]
    assert line["y"] == pytest.approx([1, 0.8, 0.8 * 4 / 6])
    assert trace(figure, "a &lt;b&gt;, upper end")["fill"] == "tonexty"
    table = trace(figure, "a &lt;b&gt;, at risk")
    assert dict(zip(table["x"], table["text"], strict=True))[0] == "10"
    assert dict(zip(table["x"], table["text"], strict=True))[6] == "6"
    assert "p = 0.4348" in figure["layout"]["title"]["text"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "time (days)"
    figure.plotly()


def test_curves_on_intervals_are_points_joined_by_lines():
    figure = figures.survival_curves(KaplanMeier(ON_BINS))
    line = trace(figure, "all patients")
    assert line["mode"] == "lines+markers" and line["line"]["shape"] == "linear"
    assert "at least 2 events" in figure["layout"]["title"]["text"]
    table = trace(figure, "all patients, at risk")
    assert table["text"][0] == "10" and table["text"][-1] == "4"


def test_groups_without_a_curve_are_left_out():
    empty = SurvivalCurve("rare", "bins", None, None)
    figure = figures.survival_curves(KaplanMeier(ON_BINS, (ON_BINS, empty)))
    assert not [t for t in figure["data"] if "rare" in t["name"]]
    with refused("nothing-to-draw"):
        figures.survival_curves(KaplanMeier(empty))


def test_calibration_at_a_horizon_has_intervals():
    figure = figures.survival_calibration(SCORES, unit="years")
    points = trace(figure, "the model")
    assert points["x"] == [0.1, 0.4] and points["y"] == [0.12, 0.35]
    assert points["error_y"]["array"] == pytest.approx([0.18, 0.25])
    assert figure.title == "Calibration at 2 years"
    figure.plotly()
    with refused("nothing-to-draw"):
        figures.survival_calibration(SurvivalScores(40, Concordance(5, 1, 8)))


def test_brier_score_is_drawn_beside_that_of_one_curve():
    figure = figures.brier_over_time(SCORES)
    assert trace(figure, "the model")["y"] == [0.1, 0.15]
    assert trace(figure, "one curve for all patients")["y"] == [0.12, 0.2]
    assert "integrated 0.1250" in figure["layout"]["title"]["text"]
    figure.plotly()
    with refused("nothing-to-draw"):
        figures.brier_over_time(SurvivalScores(40, Concordance(5, 1, 8)))


@pytest.mark.parametrize(("end", "ticks"), [(10, 6), (1022, 6), (2659, 6), (8605, 5), (0.7, 8), (3, 7)])
def test_ticks_are_round_and_few(end, ticks):
    chosen = choose_ticks(end)
    assert len(chosen) == ticks <= 8
    assert chosen[0] == 0 and chosen[-1] <= end < chosen[-1] + chosen[1]


def test_log_rank_in_one_clause():
    assert describe_log_rank(LOG_RANK) == "log-rank test stratified by site: chi-squared 0.61 with 1 df, p = 0.4348"
