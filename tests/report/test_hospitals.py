"""Hospitals compared: gains and intervals, orders, hospitals that only trained, and the summary for an unseen hospital."""

import numpy as np
import pytest

from grandrounds.core.records import Decision, RoundRecord
from grandrounds.metrics import ScoredRows, scores
from grandrounds.report.hospitals import BY_GAIN, BY_NAME, BY_ROWS, ORDERS, compare_hospitals


def site_scores(shift, *, rows=200, share=0.3, seed=0, threshold=0.5, base=-1.0):
    """Scores of a site whose patients with the event have log-odds that are higher by `shift`."""
    rng = np.random.default_rng(seed)
    y = (np.arange(rows) < share * rows).astype(int)
    z = rng.normal(size=rows) + shift * y + base
    exact = ScoredRows.from_logits(z[:, None], y, classes=2).exact_tally(np.zeros(rows, int), (1,))
    return {k: None if np.isnan(v[0]) else float(v[0]) for k, v in scores(exact, threshold=threshold).items()}


def summary(**more):
    per_site = {
        "strong": site_scores(2.5, seed=1),
        "weak": site_scores(0.3, seed=2),
        "middle": site_scores(1.2, seed=3),
        "tiny": site_scores(2.0, rows=8, seed=4),
        "rare": site_scores(1.5, rows=400, share=0.03, seed=5, base=-3.0),
    }
    rows = {site: {"train": 50, "val": 10, "test": int(m["count"])} for site, m in per_site.items()}
    rows["trainer"] = {"train": 120, "val": 0, "test": 0}
    return {"final": site_scores(1.3, rows=900), "per_site": per_site, "rows": rows, "threshold": 0.5, **more}


def rounds():
    weights = ({"strong": 0.5, "trainer": 0.5}, {"strong": 0.3, "trainer": 0.7})
    return [RoundRecord(k + 1, Decision(weights=w)) for k, w in enumerate(weights)]


def test_order_is_by_auroc_or_gain_and_never_by_accuracy():
    found = compare_hospitals(summary())
    assert "accuracy" not in ORDERS
    by_auroc = [h.name for h in found.order()]
    assert by_auroc[-1] == "trainer"
    ranked = [h.score.value for h in found.order() if h.ranked]
    assert ranked == sorted(ranked)
    gains = [h.gain.value for h in found.order(BY_GAIN) if h.ranked]
    assert gains == sorted(gains)
    assert found.find("rare").accuracy.value > found.find("strong").accuracy.value  # few events, nothing else
    assert by_auroc.index("rare") < by_auroc.index("strong")
    assert [h.name for h in found.order(BY_NAME)][:-1] == ["middle", "rare", "strong", "tiny", "weak"]
    assert found.order(BY_ROWS)[0].name == "rare"


def test_a_hospital_with_few_rows_is_shown_after_those_that_are_ranked():
    found = compare_hospitals(summary())
    tiny = found.find("tiny")
    assert not tiny.ranked and "too few rows to rank" in tiny.notes
    assert [h.name for h in found.order()][-2:] == ["tiny", "trainer"]


def test_few_patients_prove_nothing():
    """All 12 patients are healthy and get an alert: the interval excludes no difference, and the verdict waits for more."""
    worse = {"count": 12.0, "events": 0.0, "specificity": 0.0, "sensitivity": None, "majority": 1.0, "decision_accuracy": 0.0}
    found = compare_hospitals(summary(per_site={"few": worse, "many": {**worse, "count": 60.0}}))
    assert found.find("few").gain.high < 0 and found.find("few").verdict == "unclear"
    assert found.find("many").verdict == "worse"


def test_a_hospital_that_only_trained_has_its_rows_and_its_weight_and_says_why_it_has_no_figures():
    found = compare_hospitals(summary(), rounds())
    trainer = found.find("trainer")
    assert (trainer.train_rows, trainer.test_rows, trainer.score, trainer.gain) == (120, 0, None, None)
    assert trainer.weight == pytest.approx(0.6)
    assert "trained only" in trainer.notes[0]
    assert found.trained_only == (trainer,)
    assert any("1 hospital has no test patients" in s for s in found.sentences())


def test_the_gain_is_that_of_decisions_at_the_threshold_of_the_run():
    low = summary(per_site={"a": site_scores(1.5, threshold=0.2)}, threshold=0.2)
    hospital = compare_hospitals(low).find("a")
    figures = low["per_site"]["a"]
    assert figures["decision_accuracy"] != figures["accuracy"]
    assert hospital.gain.value == pytest.approx(figures["decision_accuracy"] - figures["majority"])
    assert hospital.accuracy.value == pytest.approx(figures["decision_accuracy"])
    assert "at the run's threshold: a risk of 20% or more" in compare_hospitals(low).threshold_text


def test_an_unseen_hospital_has_a_wider_interval_than_the_mean_of_hospitals():
    per_site = summary()["per_site"] | {"fifth": site_scores(1.0, seed=6)}
    found = compare_hospitals(summary(per_site=per_site)).unseen
    assert len(found.sites) == 5 and found.prediction_low < found.low < found.estimate < found.high < found.prediction_high
    two = {site: m for site, m in summary()["per_site"].items() if site in ("strong", "weak")}
    assert compare_hospitals(summary(per_site=two)).unseen.estimate is None


def test_figures_are_of_the_models_that_hospitals_deploy():
    deployed = {"threshold": 0.3, "final": site_scores(2), "per_site": {"strong": site_scores(2, threshold=0.3)}}
    found = compare_hospitals(summary(personal=deployed))
    assert found.deployed and found.threshold == 0.3
    assert found.find("strong").decisions.threshold == 0.3
    assert compare_hospitals(summary(personal=deployed), deployed=False).threshold == 0.5


def test_expected_events_give_the_calibration_of_each_hospital():
    counts = {"all": {"expected": 300.0}, "sites": {"strong": {"expected": 50.0}}}
    found = compare_hospitals(summary(score_counts=counts))
    assert found.find("strong").calibration.value == pytest.approx(60 / 50)
    assert found.find("weak").calibration is None
    assert found.overall.calibration.value == pytest.approx(270 / 300)


def test_a_run_of_another_task_is_ranked_by_its_headline_metric():
    per_site = {s: {"count": 40.0, "r2": v} for s, v in (("a", 0.4), ("b", 0.1))}
    found = compare_hospitals({"task": "regression", "final": {"count": 80.0, "r2": 0.3}, "per_site": per_site})
    assert [h.name for h in found.order()] == ["b", "a"]
    assert found.unseen is None and found.find("a").gain is None and found.threshold is None


def test_a_run_without_scores_has_no_comparison():
    assert compare_hospitals({"final": {}, "per_site": {}, "rows": {"a": {"train": 5}}}) is None
