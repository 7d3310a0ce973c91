"""Figures of feature importances."""

from __future__ import annotations

import pytest

from grandrounds.report import figures
from tests.report import explanations, many
from tests.support import refused


def test_the_heat_map_has_the_consensus_on_top_and_the_farthest_site_next():
    figure = figures.importance_heatmap(explanations(), round=1)
    heat = figure["data"][0]
    assert heat["y"] == ["consensus", "c", "a", "b"]
    assert heat["x"] == ["age", "ward", "lactate"], "by their share in the consensus: 0.4, 1/3, 0.8/3"
    assert heat["z"] == [pytest.approx([0.4, 0.3333, 0.2667]), [0.0, 0.8, 0.2], [0.6, 0.1, 0.3], [0.6, 0.1, 0.3]]
    assert figures.importance_heatmap(explanations(), "deployed")["data"][0]["y"][-1] == "b (flat)"
    few = figures.importance_heatmap(explanations(), round=1, top=1)
    assert few["data"][0]["x"] == ["age"] and "2 less important" in few["layout"]["title"]["text"]
    with refused("unknown-round", match="round 2 has no sketches of kind 'training'; rounds that have: 1, 3"):
        figures.importance_heatmap(explanations(), round=2)
    with refused("unknown-kind", match="kind is 'both'"):
        figures.importance_heatmap(explanations(), "both")


def test_sketches_that_were_not_kept_leave_the_consensus():
    told = many(40, pairs=False)
    told["rounds"][0]["training"] |= {"sketches": {}, "error": {}}
    figure = figures.importance_heatmap(told)
    assert figure["data"][0]["y"] == ["consensus"]
    assert "not kept" in figure["layout"]["title"]["text"]


def test_importances_are_ordered_and_cut():
    figure = figures.importances(["a", "b", "c"], [0.1, -0.7, 0.3], [0.01, 0.02, 0.03], top=2)
    bars = figure["data"][0]
    assert (bars["y"], bars["x"], bars["error_x"]["array"]) == (["b", "c"], [-0.7, 0.3], [0.02, 0.03])
    assert "1 less important" in figure["layout"]["title"]["text"]
    with refused("length-mismatch", match="2 names, 3 importances"):
        figures.importances(["a", "b"], [1, 2, 3])


def test_spurious_mass_is_drawn_beside_chance_for_the_sites_that_have_most():
    deployed = {f"s{k}": k / 100 for k in range(40)}
    figure = figures.spurious_masses({"training": {"s39": 0.9}, "deployed": deployed}, 0.0625)
    own, used = figure["data"]
    assert used["x"] == own["x"] == [f"s{k}" for k in range(10, 40)]
    assert used["y"] == [k / 100 for k in range(10, 40)] and own["y"] == [None] * 29 + [0.9]
    assert figure["layout"]["shapes"][0]["y0"] == 0.0625
    assert "the 30 largest of 40 sites" in figure["layout"]["title"]["text"]
    with refused("nothing-to-draw"):
        figures.spurious_masses({"training": {}}, 0.0625)
