"""The overview of a run: one set of facts for console, report and deck."""

from __future__ import annotations

import pytest

from grandrounds.core.ending import FAILED, INTERRUPTED, Ending, interrupted
from grandrounds.report.findings import describe_findings
from grandrounds.report.hospitals import compare_hospitals
from grandrounds.report.overview import (
    BAD,
    BETTER,
    FAIR,
    FINISHED,
    GOOD,
    MIXED,
    NO_USE,
    RUNNING,
    UNCLEAR,
    UNTESTED,
    WORSE,
    LedgerCheck,
    make_overview,
)
from tests.report.summaries import classification


def test_a_finished_run_has_verdict_headline_and_counts():
    summary = classification()
    view = make_overview(
        summary, use="triage", ledger=LedgerCheck("verifies", "The ledger verifies."), model_hash="ab" * 32
    )
    assert (view.state, view.verdict, view.outcome) == (FINISHED, BETTER, "died = 1")
    assert view.headline is not None and view.headline.text == "AUROC 0.850 (95% CI 0.800 to 0.900)"
    assert (view.test_rows, view.events, view.sites, view.use) == (400, 100, 3, "triage")
    assert view.threshold_text == "Flagged as died = 1 at a risk of 17% or more."
    assert view.findings.lines == describe_findings(summary)


def test_a_hospital_that_is_clearly_worse_off_is_named():
    per_site = {"b": {"accuracy": 0.40, "majority": 0.80, "sensitivity": 0.2, "specificity": 0.4}}
    view = make_overview(classification(per_site=per_site))
    assert view.verdict == MIXED and view.worse_sites == ("b",)
    assert view.verdict_title == "Better than no model overall, but clearly worse at b."
    assert any(line.startswith("At b the decisions are worse than treating everyone or nobody") for line in view.verdict_lines)


def test_overview_and_comparison_of_hospitals_judge_alike():
    few = {"c": {"count": 12.0, "events": 3.0}}
    summary = classification(per_site={"b": {"accuracy": 0.6}} | few)
    view, compared = make_overview(summary), compare_hospitals(summary)
    assert compared is not None
    assert view.unclear_sites == tuple(h.name for h in compared.tested if h.verdict == "unclear") == ("c",)
    assert view.verdict_title == "Better than no model overall; at c this is not clear."
    assert make_overview(classification()).verdict_title == "Better than no model overall and at every hospital."


def test_a_model_is_better_only_where_its_decisions_are():
    """A model that flags nobody ranks patients, which the sentence says; its decisions are those of no model."""
    nobody = {"sensitivity": 0.0, "specificity": 1.0, "accuracy": 0.75, "majority": 0.75}
    view = make_overview(classification(final=nobody, threshold=0.5))
    assert view.verdict == UNCLEAR and "it ranks patients better than chance" in view.verdict_title
    chance = nobody | {"auroc": 0.51, "auroc_low": 0.45, "auroc_high": 0.57}
    assert "ranks" not in make_overview(classification(final=chance, threshold=0.5)).verdict_title
    worse = {"sensitivity": 0.1, "specificity": 0.5, "accuracy": 0.4}
    assert make_overview(classification(final=nobody | worse, threshold=0.5)).verdict == WORSE


def test_decisions_at_a_low_threshold_are_judged_by_net_benefit():
    """At 17% the odds are 0.2048: 300 x 0.87 spared patients count 0.1336 each patient, 20 missed ones cost 0.05."""
    view = make_overview(classification())
    first = "At the run's threshold (17%) the decisions are better than treating everyone or nobody: net benefit +0.0836 "
    assert view.verdict_lines[0].startswith(first)
    assert not any("majority class" in line for line in view.verdict_lines)
    no_ranking = {"auroc": 0.51, "auroc_low": 0.45, "auroc_high": 0.57}
    near = classification(final=no_ranking | {"sensitivity": 0.72, "specificity": 0.34})
    assert make_overview(near).verdict == UNCLEAR
    far = classification(final=no_ranking | {"sensitivity": 0.2, "specificity": 0.4, "accuracy": 0.9})
    assert make_overview(far).verdict == WORSE


def test_scores_name_their_model_where_hospitals_deploy_others():
    assert make_overview(classification()).basis_line == ""
    common = classification()
    deployed = {"final": common.final | {"auroc": 0.88, "auroc_low": 0.83, "auroc_high": 0.93}, "per_site": common.per_site}
    rest = {"part": "intercept", "rows": "train", "spread": 0.5, "stays": False, "guard": False, "choices": {}}
    personal = {**deployed, **rest, "threshold": 0.2, "below_majority": []}
    view = make_overview(classification(personal=personal))
    assert view.headline is not None and view.headline.text == "AUROC 0.880 (95% CI 0.830 to 0.930)"
    common = make_overview(classification()).headline
    assert common is not None and view.basis_line == (
        f"Scores are of the models that hospitals deploy; common model: {common.text}."
    )
    assert view.threshold == 0.2
    compared = compare_hospitals(classification(personal=personal))
    assert compared is not None
    assert compared.threshold_text == (
        "Decisions are taken at the deployed models' threshold: a risk of 20% or more is called positive (common model: 17%)."
    )


def test_a_verdict_is_green_only_where_every_hospital_gains():
    assert make_overview(classification()).tone == GOOD
    assert make_overview(classification(per_site={"c": {"count": 12.0, "events": 3.0}})).tone == FAIR
    per_site = {"b": {"sensitivity": 0.2, "specificity": 0.4}}
    assert make_overview(classification(per_site=per_site)).tone == BAD


def test_outcomes_and_features_have_their_clinical_names():
    event = {"class": "yes", "other": "no", "label": "disease", "share": 0.5, "by": "catalog"}
    top = {"top": [{"feature": "st_depression", "share": 0.32}]}
    view = make_overview(classification(data="heart", event=event, explanation=top))
    assert view.prediction == "risk of coronary disease"
    assert view.threshold_text.startswith("Flagged as coronary disease at")
    assert view.relies_on == ("The model relies most on ST depression by exercise (32%).",)


def test_a_run_without_test_rows_is_not_judged():
    view = make_overview(classification(final={"count": 0}))
    assert view.verdict == UNTESTED and view.headline is None and view.use == NO_USE


def test_a_run_without_a_summary_has_its_state_cause_and_next_command():
    plan = {"data": {"name": None, "table": "a/b/icu.csv", "label": "died"}, "method": {"name": "fedavg", "rounds": 9}}
    ending = Ending(FAILED, "too-few-sites", "2 sites answered; 3 are needed.", "Ask again later.", round=4)
    view = make_overview(None, name="icu", ending=ending, plan=plan, rounds=4, folder="my runs/icu")
    assert view.state == FAILED and view.next_command == "rounds resume 'my runs/icu'"
    assert view.state_text == "Failed after 4 of 9 rounds. 2 sites answered; 3 are needed."
    assert (view.data, view.outcome) == ("icu.csv", "died")
    running = make_overview(None, name="icu", plan=plan, rounds=2)
    assert running.state == RUNNING and running.next_command == ""
    assert make_overview(None, name="icu", ending=interrupted(3), rounds=3).state == INTERRUPTED


def test_a_record_of_an_end_is_read_back_and_others_are_refused():
    ending = Ending(FAILED, "x", "a\x1b[31mb", round=2)
    assert Ending.from_dict(ending.to_dict()).sentence == "a\\x1b[31mb"
    for wrong in ({"state": "happy"}, {"state": FAILED, "round": -1}, {"state": FAILED, "sentence": 3}):
        with pytest.raises(ValueError):
            Ending.from_dict(wrong)
