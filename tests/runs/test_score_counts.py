"""Score counts in summary.json: those of the pooled test rows of a simulation, and of single hospitals only in the clear."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.core.plan import Settings
from grandrounds.metrics.score_counts import ScoreCounts
from grandrounds.runs.federation import assemble
from tests.capabilities.hospital.keeper.test_small_cells import trimming
from tests.support import patients

SETTINGS = {"data": {"label": "died", "site": "hospital"}, "method": {"name": "fedavg", "rounds": 2}}
SIZES = [300, 240, 90]


def made(out, **changes) -> gr.Run:
    return gr.run(gr.Experiment.parse({**SETTINGS, **changes}), table=patients(SIZES), out=out)


def test_decisions_at_every_edge_equal_those_of_the_pooled_test_rows(tmp_path):
    """On the recipe breast-cancer, whose rows a simulation can pool."""
    run = gr.run("breast-cancer", rounds=3, settings=["evaluation.threshold=youden"], out=tmp_path / "run")
    consortium = assemble(Settings(run.plan))
    record = run.summary["score_counts"]
    assert record["threshold"] == run.summary.threshold and set(record["sites"]) == set(run.summary.per_site)
    every = {site: r.test for site, r in zip(consortium.stack.names, consortium.stack.rows, strict=True)}
    places = {"all": np.concatenate(list(every.values())), **every}
    for place, rows in places.items():
        risk = run.model.predict(consortium.data.table.take(rows)).probabilities[:, 1]
        event = run.model.encoding.labels(consortium.data.take(rows)) == 1
        counts = ScoreCounts.from_dict(record["all"] if place == "all" else record["sites"][place])
        assert (counts.rows, sum(counts.events)) == (len(rows), event.sum())
        assert counts.expected == pytest.approx(risk.sum(), rel=1e-5)
        for k, edge in enumerate(counts.edges):
            found = counts.decide(k)
            called = risk >= edge
            assert (found.caught, found.false_alarms) == ((called & event).sum(), (called & ~event).sum()), (place, edge)


def test_counts_at_the_threshold_are_those_of_the_scores_of_each_hospital(tmp_path):
    run = made(tmp_path / "run", evaluation={"threshold": "youden"})
    record = run.summary["score_counts"]
    for site, figures in run.summary.per_site.items():
        counts = ScoreCounts.from_dict(record["sites"][site])
        below, above = counts.find_edges(record["threshold"])
        assert below == above
        assert counts.decide(below).sensitivity.value == pytest.approx(figures["sensitivity"])
        assert counts.decide(below).accuracy.value == pytest.approx(figures["decision_accuracy"])


def test_messages_give_the_same_counts(tmp_path):
    plain = made(tmp_path / "a").summary["score_counts"]
    wire = made(tmp_path / "b", engine={"wire": True}).summary["score_counts"]
    assert {s: c["events"] for s, c in plain["sites"].items()} == {s: c["events"] for s, c in wire["sites"].items()}
    assert plain["all"]["edges"] == wire["all"]["edges"]


@pytest.mark.parametrize(
    ("privacy", "cause"),
    [({"secure": True}, "secure"), ({"mechanism": "dp-sgd", "epsilon": 8.0, "min_rows": 5}, "budget")],
)
def test_under_secure_sums_or_a_budget_no_hospital_has_counts_of_its_own(tmp_path, privacy, cause):
    run = made(tmp_path / "run", privacy=privacy)
    record = run.summary["score_counts"]
    assert (record["sites"], record["hidden"]) == ({}, cause)
    assert ScoreCounts.from_dict(record["all"]).rows == run.summary.final["count"]


def test_secure_sums_give_the_counts_of_all_hospitals(tmp_path):
    plain = made(tmp_path / "a").summary["score_counts"]["all"]
    secure = made(tmp_path / "b", privacy={"secure": True}).summary["score_counts"]["all"]
    assert sum(plain["events"]) == sum(secure["events"]) and sum(plain["others"]) == sum(secure["others"])


def test_a_hospital_whose_metrics_stay_there_has_no_counts(tmp_path, monkeypatch):
    trimming(monkeypatch, Policy.parse("[reports]\nmetrics = false\n"))
    record = made(tmp_path / "run", engine={"wire": True}).summary["score_counts"]
    assert record["sites"] == {} and record["all"]["events"]


def test_three_classes_have_no_counts(tmp_path):
    run = gr.run(gr.Experiment.parse(SETTINGS), table=patients(SIZES, classes=3), out=tmp_path / "run")
    assert "score_counts" not in run.summary
