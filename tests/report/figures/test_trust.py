"""Figures of trust."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grandrounds.core.records import Decision
from grandrounds.report import figures
from tests.report import RULE, records, trusting, typed
from tests.report.figures import trace
from tests.support import refused


def test_the_parts_of_trust_add_up_to_it():
    decision = trusting()[-1]["decision"]
    drawn = figures.trust_parts(Decision.from_dict(decision), RULE)
    sites = drawn["data"][0]["x"]
    assert sites[0] == "c", "the least trusted comes first"
    total = np.sum([t["y"] for t in drawn["data"]], axis=0)
    assert total == pytest.approx([decision["signals"]["trust"][s] for s in sites], abs=1e-5)
    assert trace(drawn, "agreement")["y"][0] == pytest.approx(0.3 * math.exp(-1.2), abs=1e-6)
    decision["signals"]["alignment"] = {"a": 1.0, "b": 0.5, "c": -0.9}
    signed = figures.trust_parts(Decision.from_dict(decision), {**RULE, "signed": True})
    assert trace(signed, "agreement")["y"][0] == 0, "reasons that point the other way are no agreement"


def test_trust_and_divergence_have_the_numbers_and_the_alarm():
    rounds = trusting()
    trust = figures.trust_over_rounds(typed(rounds))
    known = rounds[0]["decision"]["signals"]["trust"]
    assert trace(trust, "c")["y"] == pytest.approx([known["c"]] * 3, rel=1e-4)
    assert trace(trust, "mean")["y"] == pytest.approx([sum(known.values()) / 3] * 3, rel=1e-4)
    rounds[1]["decision"]["signals"]["nsds"]["a"] = 0.0
    away = figures.nsds_over_rounds(typed(rounds), 1.0)
    assert trace(away, "alarm")["y"] == [1.0, 1.0] and trace(away, "c")["y"] == [1.2] * 3
    assert min(trace(away, "a")["y"]) > 0, "a logarithm has no zero"
    low, high = away["layout"]["yaxis"]["range"]
    assert low < math.log10(1e-4) and high > math.log10(1.2), "all values and the alarm lie within"


def test_rewards_are_summed_and_a_site_that_was_away_keeps_what_it_had():
    rounds = trusting()
    own = rounds[0]["decision"]["signals"]["reward"]["b"]
    rounds[1]["decision"]["signals"]["reward"].pop("b")
    drawn = figures.rewards_over_rounds(typed(rounds))
    assert trace(drawn, "b")["y"] == pytest.approx([own, own, 2 * own], rel=1e-4)


def test_of_many_sites_those_that_matter_are_drawn():
    sites = tuple(f"site-{k:03}" for k in range(150))
    rounds = trusting(sites)
    for drawn in (figures.trust_over_rounds(typed(rounds)), figures.nsds_over_rounds(typed(rounds), 1.0)):
        names = [t["name"] for t in drawn["data"]]
        assert len(names) == 31 and "site-149" in names
        assert sum(t.get("showlegend", True) for t in drawn["data"]) == 4
        assert "of 150 sites" in drawn["layout"]["title"]["text"]
    assert len(figures.rewards_over_rounds(typed(rounds))["data"]) == 30
    assert len(figures.trust_parts(Decision.from_dict(rounds[-1]["decision"]), RULE)["data"][0]["x"]) == 30


def test_a_run_without_trust_has_none_to_draw():
    robust = records()
    for record in robust:  # FLTrust has a number of that name, and no NSDS
        record["decision"]["signals"]["trust"] = {"a": 0.1, "b": 0.2, "c": 0.3}
    for drawn in (figures.trust_over_rounds, figures.rewards_over_rounds, lambda r: figures.nsds_over_rounds(r, 1.0)):
        with refused("nothing-to-draw"):
            drawn(typed(robust))
    with refused("nothing-to-draw"):
        figures.trust_parts(Decision.from_dict(robust[0]["decision"]), RULE)
