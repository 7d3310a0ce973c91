"""Figures of weights: signals, disagreement and cohorts."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.records import Decision
from grandrounds.report import figures
from tests.report import records, typed
from tests.report.figures import trace, weighed
from tests.support import refused


def test_weights_need_weights():
    with refused("nothing-to-draw"):
        figures.weights(typed([{"round": 1, "decision": {"weights": {}}}]))


def test_signals_of_both_signs_are_shown_as_they_are_and_no_two_in_one_colour():
    sites = ("a", "b", "c")
    signals = {f"signal_{k}": dict.fromkeys(sites, float(k)) for k in range(8)}
    signals["reward"] = {"a": 0.02, "b": -0.021, "c": 0.0012}
    decision = {"round": 1, "weights": dict.fromkeys(sites, 1 / 3), "signals": signals}
    figure = figures.weights_by_signal(Decision.from_dict(decision))
    assert trace(figure, "reward")["y"] == [0.02, -0.021, 0.0012]
    assert len({t["marker"]["color"] for t in figure["data"]}) == len(figure["data"]) == 10


def test_signals_with_shares_stack_up_to_the_weight():
    decision = {
        "round": 2,
        "weights": {"a": 0.44, "b": 0.56},
        "signals": {"data_size": {"a": 60, "b": 40}, "agreement": {"a": 0.2, "b": 0.8}},
    }
    apart = figures.weights_by_signal(Decision.from_dict(decision))
    assert apart["data"][0]["x"] == ["b", "a"]
    assert [t["y"] for t in apart["data"]] == [[0.56, 0.44], [40, 60], [0.8, 0.2]], "as they were told"
    assert len({t["yaxis"] for t in apart["data"]}) == 3, "each on a scale of its own"
    signals = {
        "data_size": {"a": 60, "b": 40, "late": 9},
        "disagreement": {"a": 0.5, "b": 0.125},
        "val_loss": {"a": 2, "b": None},
    }
    parts = {"data": {"a": 0.3, "b": 0.2}, "agreement": {"a": 0.04, "b": 0.16}, "worst_site": {"a": 0.1, "b": 0.2}}
    stacked = figures.weights_by_signal(Decision.from_dict({**decision, "signals": signals, "shares": parts}))
    assert stacked["layout"]["barmode"] == "stack"
    *bars, rows, marks = stacked["data"]
    assert [t["name"] for t in bars] == ["data size", "agreement of explanations", "worst site"]
    assert np.sum([t["y"] for t in bars], axis=0) == pytest.approx(marks["y"]) and marks["y"] == [0.56, 0.44]
    assert bars[0]["customdata"] == ["data size 40", "data size 60"], "the numbers behind each part"
    assert bars[1]["customdata"] == ["disagreement 0.125", "disagreement 0.5"]
    assert bars[2]["customdata"] == ["val loss unknown", "val loss 2"]
    assert (rows["name"], rows["y"]) == ("by number of rows alone", [0.4, 0.6]), "of the sites that have a weight"
    signals["in_line"] = {"a": 0.1, "b": 1.0}
    outlier = figures.weights_by_signal(
        Decision.from_dict({**decision, "signals": signals, "shares": {"agreement": decision["weights"]}})
    )
    assert outlier["data"][0]["name"] == "rows x agreement of explanations"
    assert outlier["data"][0]["customdata"][1] == "disagreement 0.5, in line 0.1"
    signals["standing"] = {"a": 1.78, "b": 0.5}
    minded = figures.weights_by_signal(
        Decision.from_dict({**decision, "signals": signals, "shares": {"agreement": decision["weights"]}})
    )
    assert minded["data"][0]["customdata"][1] == "disagreement 0.5, standing 1.78, in line 0.1"
    assert minded["data"][0]["y"] == outlier["data"][0]["y"]
    signals["standing"] = {"a": None, "b": 0.5}
    told = figures.weights_by_signal(
        Decision.from_dict({**decision, "signals": signals, "shares": {"agreement": decision["weights"]}})
    )
    assert told["data"][0]["customdata"][1] == "disagreement 0.5, standing unknown, in line 0.1"
    beside = figures.weights_by_signal(Decision.from_dict({**decision, "signals": {"standing": signals["standing"]}}))
    assert (beside["data"][1]["y"], beside["data"][1]["customdata"]) == ([0.5, None], ["0.5", "unknown"])


def test_disagreement_is_drawn_for_the_rounds_that_looked_at_it():
    figure = figures.disagreement_over_rounds(typed(weighed()))
    heat = figure["data"][0]
    assert (heat["x"], heat["y"]) == (["1", "3"], ["c", "a", "b"]), "the farthest first"
    assert heat["z"] == [[0.9, None], [0.1, 0.3], [0.2, 0.0]], "nobody was there to compare c with in round 3"
    assert heat["customdata"][0] == [0.1, 0.1] and (heat["zmin"], heat["zmax"]) == (0, 0.9)
    assert "blank: alone in its cohort" in figure["layout"]["title"]["text"]
    with refused("nothing-to-draw"):
        figures.disagreement_over_rounds(typed(records()))


def test_cohorts_have_a_colour_each_and_their_consistency():
    figure = figures.cohorts_over_rounds(typed(weighed()))
    heat = figure["data"][0]
    assert (heat["x"], heat["y"]) == (["1", "2", "3"], ["a", "b", "c"])
    assert heat["z"] == [[1, 1, 1], [1, 2, 1], [1, 2, 2]]
    scale = [[0, "#0072B2"], [0.5, "#0072B2"], [0.5, "#D55E00"], [1, "#D55E00"]]
    assert (heat["zmin"], heat["zmax"], heat["colorscale"]) == (0.5, 2.5, scale)
    assert (
        "consistency (adjusted Rand index to the round before) -0.25, at least -0.50"
        in figure["layout"]["title"]["text"]
    )
    with refused("nothing-to-draw"):
        figures.cohorts_over_rounds(typed(records()))


def test_of_many_sites_those_that_change_cohorts_are_shown():
    sites = [f"s{k:02d}" for k in range(40)]
    made = weighed()
    for r, record in enumerate(made):
        record["decision"]["cohorts"]["of"] = {s: 1 + (s == "s39" and r == 1) for s in sites}
        record["decision"]["signals"] = {"disagreement": {s: 0.01 * k for k, s in enumerate(sites)}}
    drawn, away = figures.cohorts_over_rounds(typed(made)), figures.disagreement_over_rounds(typed(made))
    assert len(drawn["data"][0]["y"]) == 30 and drawn["data"][0]["y"][-1] == "s39"
    assert away["data"][0]["y"][:2] == ["s39", "s38"]
    for figure in (drawn, away):
        assert "30 of 40 sites" in figure["layout"]["title"]["text"]
