"""Weights worked out again from recorded signals: right ones follow, a single wrong one is named, the blind ones are said."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.analysis.audit.weights import recompute_weights
from grandrounds.core.plan import Settings
from tests.store import finished
from tests.support import thinned

BASE = {
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 6},
    "method": {"rounds": 3},
    "train": {"epochs": 1},
    "reference": {"rows": {"rows": 60, "labelled": True}},
    "explain": {"every": 0},
}
BLEND = {"data": 0.3, "agreement": 0.4, "worst_site": 0.2, "calibration": 0.1}
RULES = {
    "rows": {},
    "uniform": {"weigh": "uniform"},
    "distance": {"weigh": "distance"},
    "reference accuracy": {"weigh": "reference_accuracy"},
    "outlier": {"name": "sse-agg"},
    "outlier in cohorts": {"name": "sse-agg", "cohorts": {"count": 2}},
    "inverse": {"name": "sse-agg", "weigh": {"rule": "explanations", "form": "inverse"}},
    "exponential": {"name": "sse-agg", "weigh": {"rule": "explanations", "form": "exponential"}},
    "blend": {"name": "sse-agg", "weigh": {"rule": "explanations", "lambdas": BLEND, "floor": 0.1}},
    "seldom": {"name": "sse-agg", "weigh": {"rule": "explanations", "every": 2, "between_rounds": "last"}},
    "cohorts by rows": {"cohorts": {"count": 2, "weight": "rows"}},
    "cohorts by sites": {"cohorts": {"count": 2, "weight": "sites"}},
    "krum": {"robust": "krum"},
    "multi-krum": {"robust": "multi-krum"},
    "fltrust": {"robust": "fltrust"},
    "foolsgold": {"robust": "foolsgold"},
    "clip": {"robust": "clip"},
    "fedasync": {"name": "fedasync", "staleness": "polynomial"},
    "fedbuff": {"name": "fedbuff", "buffer": 3},
    "clustered": {"name": "clustered"},
    "local": {"name": "local"},
}


@pytest.fixture(scope="module")
def runs():
    made: dict[str, tuple] = {}

    def run(rule: str):
        if rule not in made:
            held = gr.Experiment.parse({**BASE, "method": {**BASE["method"], **RULES[rule]}})
            run_folder = gr.load_run(finished(held))
            made[rule] = Settings(run_folder.plan).method, [r["decision"] for r in run_folder.rounds]
        return made[rule]

    return run


@pytest.mark.parametrize("rule", thinned(RULES, 2))
def test_recorded_weights_follow_from_recorded_signals(runs, rule):
    method, decisions = runs(rule)
    for at, decision in enumerate(decisions):
        assert recompute_weights(method, decision, decisions[:at]).wrong == []


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", RULES)
def test_a_weight_given_for_nothing_is_named(runs, rule):
    """A thousandth of weight goes from one site to another in every place where the Decision says it."""
    method, decisions = runs(rule)
    *before, last = decisions
    sites = list(last["weights"])
    changed = {**last, "weights": _moved(last["weights"], sites)}
    changed["stages"] = [{**s, "weights": _moved(s["weights"], sites)} for s in last["stages"]]
    wrong = recompute_weights(method, changed, before).wrong
    assert any(sites[0] in said for said in wrong)


def _moved(weights: dict, sites: list[str]) -> dict:
    if not weights:
        return weights
    out = {**weights, sites[0]: weights[sites[0]] + 1e-3}
    return out if len(sites) == 1 else {**out, sites[-1]: out[sites[-1]] - 1e-3}


@pytest.mark.parametrize(
    ("rule", "signal"),
    [
        ("rows", "data_size"),
        ("distance", "distance"),
        ("reference accuracy", "reference_accuracy"),
        ("outlier", "in_line"),
        ("outlier", "disagreement"),
        ("outlier", "standing"),
        ("inverse", "disagreement"),
        ("inverse", "agreement"),
        ("exponential", "disagreement"),
        ("blend", "val_loss"),
        ("blend", "ece"),
        ("fltrust", "similarity"),
        ("foolsgold", "trust"),
        ("multi-krum", "krum_score"),
        ("fedasync", "staleness"),
        ("clustered", "data_size"),
    ],
)
def test_a_signal_that_was_bent_is_noticed(runs, rule, signal):
    method, decisions = runs(rule)
    *before, last = decisions
    values = last["signals"][signal]
    site = max(last["weights"], key=last["weights"].get)
    bent = {**values, site: (values[site] or 0.0) * 40 + 1}
    assert recompute_weights(method, {**last, "signals": {**last["signals"], signal: bent}}, before).wrong


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "geometric-median"])
def test_rules_whose_weights_follow_from_whole_models_are_said_to_be_unchecked(tmp_path, rule):
    run = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 1, "robust": rule}}), out=tmp_path / "run")
    found = recompute_weights(Settings(run.plan).method, run.rounds[0]["decision"], [])
    assert found.wrong == []
    assert len(found.unchecked) == 1 and f"robust rule '{rule}'" in found.unchecked[0]


def test_a_method_of_the_users_own_is_said_to_be_unchecked():
    method = Settings({"name": "mine.methods:Mine"})
    found = recompute_weights(method, {"weights": {"a": 1.0}, "signals": {}, "stages": [], "cohorts": {}}, [])
    assert found.unchecked == ["weights: the method is a plug-in"]


def test_hand_computed_weights(runs):
    """10, 20 and 70 rows are 0.1, 0.2 and 0.7; distances 1, 2, 3 are exp(-1/2), exp(-1), exp(-3/2) as shares."""
    rows = {"a": 10.0, "b": 20.0, "c": 70.0}
    by_rows = {"a": 0.1, "b": 0.2, "c": 0.7}
    method, _ = runs("rows")
    assert not recompute_weights(method, _decision(by_rows, {"data_size": rows}), []).wrong
    assert len(recompute_weights(method, _decision({"a": 0.2, "b": 0.1, "c": 0.7}, {"data_size": rows}), []).wrong) == 2
    near = np.exp([-0.5, -1.0, -1.5])
    shares = dict(zip("abc", (near / near.sum()).tolist(), strict=True))
    method, _ = runs("distance")
    signals = {"data_size": rows, "distance": {"a": 1.0, "b": 2.0, "c": 3.0}}
    assert not recompute_weights(method, _decision(shares, signals), []).wrong
    assert recompute_weights(method, _decision(by_rows, signals), []).wrong


def test_weights_of_other_sites_than_the_signals_are_named(runs):
    method, _ = runs("rows")
    decision = _decision({"a": 1.0}, {"data_size": {"a": 1.0}})
    decision["stages"][0]["weights"] = {"b": 1.0}
    assert recompute_weights(method, decision, []).wrong


def _decision(weights: dict, signals: dict) -> dict:
    stage = {"part": "weigh", "why": "", "weights": weights}
    return {"weights": weights, "signals": signals, "stages": [stage], "cohorts": {}}


@pytest.mark.parametrize("release", ["listed", "gone", "another"])
def test_releases_outside_rounds_are_compared_with_the_ledger(release, tmp_path):
    gr.run("veil/heart", out=tmp_path / "veil", method="veil", rounds=2)
    charges = tmp_path / "veil" / "checkpoint" / "charges.json"
    if release == "gone":
        charges.unlink()
    elif release == "another":
        charges.write_text(charges.read_text().replace('"epsilon": ', '"epsilon": 1'))
    found = audit(tmp_path / "veil", deep=True)
    if release == "listed":
        assert not found.findings
        assert "privacy budget in the checkpoint: as rounds and ledger have it" in found.checked
    else:
        assert [f for f in found.findings if "budget" in str(f)], found.findings
