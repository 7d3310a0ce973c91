"""Figures of drift between sites."""

from __future__ import annotations

import pytest

from grandrounds.report import figures
from tests.report import explanations, many
from tests.report.figures import trace
from tests.support import refused


def test_training_and_deployed_are_lines_of_their_own():
    figure = figures.drift_over_rounds(explanations())
    training, deployed = trace(figure, "training drift (own"), trace(figure, "deployed divergence (one")
    # round 1: a and b agree, c is |.6| + |.1| + |.7| = 1.4 from either; round 3: |.4| + 0 + |.4|
    assert (training["x"], training["y"]) == ([1, 3], pytest.approx([2.8 / 3, 0.8]))
    assert (deployed["x"], deployed["y"]) == ([3], pytest.approx([(0.2 + 0.4 + 0.2) / 3]))
    assert trace(figure, "consensus drift (training")["y"] == [None, pytest.approx(0.1 + 1 / 30 + 1 / 15)]
    chance = trace(figure, "deployed divergence expected by chance")
    assert (chance["y"], chance["line"]) == ([0.05], {"color": "#D55E00", "dash": "dot", "width": 2})
    assert not any(line["name"].startswith("training drift by sampling") for line in figure["data"]), "rows are shared"


def test_overlap_is_drawn_for_the_top_k_that_was_measured():
    line = trace(figures.jaccard_over_rounds(explanations()), "Jaccard of the top 2, training")
    # round 1: c's top two share one of three with a's and b's, a and b share both; round 3: {age, lactate}, {ward, lactate}
    assert line["y"] == pytest.approx([(1 + 1 / 3 + 1 / 3) / 3, 1 / 3])


def test_pairs_are_shown_round_by_round():
    figure = figures.pairwise_drift(explanations())
    heat = figure["data"][0]
    assert heat["x"] == heat["y"] == ["a", "b", "c"]
    assert heat["z"] == [[0.0, None, 0.8], [None, None, None], [0.8, None, 0.0]], "b was not there in round 3"
    steps = figure["layout"]["sliders"][0]["steps"]
    assert [s["label"] for s in steps] == ["1", "3"]
    assert steps[0]["args"] == [{"z": [[[0.0, 0.0, 1.4], [0.0, 0.0, 1.4], [1.4, 1.4, 0.0]]]}, [0]]
    assert (heat["zmin"], heat["zmax"]) == (0, 1.4), "one scale for all rounds"
    assert figures.pairwise_drift(explanations(), "deployed")["layout"]["sliders"] == []


def test_of_many_sites_the_farthest_are_shown_and_it_is_said():
    told = many(40, rounds=100, pairs=True)
    figure = figures.pairwise_drift(told)
    assert len(figure["data"][0]["z"]) == 30
    assert "site-1" in figure["data"][0]["x"]
    assert "site-20" not in figure["data"][0]["x"], "the one nearest to the consensus"
    assert "30 of 40 sites" in figure["layout"]["title"]["text"]
    labels = [s["label"] for s in figure["layout"]["sliders"][0]["steps"]]
    assert (len(labels), labels[0], labels[-1]) == (60, "1", "100")
    with refused("nothing-to-draw"):
        figures.pairwise_drift(many(40, pairs=False))
    heat = figures.distance_to_consensus(many(1000, pairs=False))["data"][0]
    assert (heat["y"][0], len(heat["z"])) == ("site-1", 30)
    assert heat["z"][0][0] == pytest.approx(2 - 2 / 1000, abs=1e-4)
