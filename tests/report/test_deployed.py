"""Models that hospitals deploy, on the report's page: harmed ones first, by the numbers of summary.json alone."""

from __future__ import annotations

import pytest

from grandrounds.report import figures
from grandrounds.report.deployed import (
    deployed_table,
    deployed_tile,
    describe_deployed,
    describe_harm,
    describe_rule,
    read_deployed,
)
from grandrounds.report.document import Charts
from grandrounds.report.findings import describe_findings
from grandrounds.report.sections.personal import deployed_section
from tests.report import EVIL, summary


def scores(log_loss, accuracy, *, count=50.0, majority=0.8, auroc=0.7):
    return {"count": count, "accuracy": accuracy, "majority": majority, "auroc": auroc, "log_loss": log_loss}


COMMON = {"a": scores(0.40, 0.80), "b": scores(0.60, 0.70), EVIL: scores(0.50, 0.75), "empty": scores(None, None, count=0.0)}
DEPLOYED = {"a": scores(0.35, 0.84), "b": scores(0.65, 0.68), EVIL: scores(0.30, 0.90), "empty": scores(None, None, count=0.0)}
PERSONAL = {
    "part": "intercept", "guard": True, "rows": "train", "spread": 0.5, "stays": False,
    "choices": {"a": "intercept", "b": "common", EVIL: "own"}, "harmed": ["b"], "tested": ["a", "b"],
    "final": scores(0.42, 0.81), "per_site": DEPLOYED,
}  # fmt: skip


def told(**changes):
    return summary(final=scores(0.50, 0.75), per_site=COMMON, personal={**PERSONAL, **changes})


def test_hospitals_that_trained_without_test_patients_are_the_reason_for_no_test_of_harm():
    rows = {"trainer": {"train": 50, "val": 5, "test": 0}, "tested": {"train": 0, "val": 0, "test": 40}}
    found = read_deployed(summary(final=scores(0.5, 0.75), per_site=COMMON, rows=rows, personal={**PERSONAL, "tested": []}))
    assert found is not None
    assert describe_harm(found) == ["Harm to hospitals was not tested: the hospitals that trained have no test patients."]


def test_a_harmed_hospital_is_first_and_has_its_figures():
    found = read_deployed(told())
    assert found is not None
    assert [(s.site, s.harmed) for s in found.sites] == [("b", True), ("a", False), (EVIL, None)]
    assert describe_harm(found) == [
        "1 hospital is clearly worse off: the deployed model is clearly worse than a model of the hospital's own rows alone or "
        "its most common class at 1 of 2 hospitals (log loss), and its decisions are clearly worse than no model at 0 of 3 "
        "(95% intervals).",
        "b deploys the common model: accuracy 68% (common model 70%), log loss 0.650 (common model 0.600); always its most "
        "common class: 80%.",
        "1 more has too few test rows of each outcome to tell.",
    ]
    table = deployed_table(found)
    assert table.rows[0] == ("b", "the common model", "50", "0.600 → 0.650", "0.700 → 0.700", "0.700 → 0.680", "0.800", "yes")
    assert [row[-1] for row in table.rows] == ["yes", "no", "not tested"]


def test_without_harm_the_first_sentence_says_so():
    found = read_deployed(told(harmed=[]))
    assert found is not None
    assert describe_harm(found)[0].startswith("No hospital that can be tested is clearly worse off: ")
    everyone = read_deployed(told(harmed=[], tested=list(PERSONAL["choices"])))
    assert everyone is not None and describe_harm(everyone)[0].startswith("No hospital is clearly worse off: ")
    assert deployed_tile(told(harmed=[])) == [("harmed hospitals", "0 of 2", "deployed log loss 0.420")]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"guard": False, "harmed": None, "tested": []}, "Harm to hospitals was not tested: the run has no guard"),
        ({"harmed": None, "tested": []}, "Harm to hospitals was not tested: none had enough test patients"),
    ],
)
def test_harm_that_was_not_tested_is_not_called_none(changes, sentence):
    found = read_deployed(told(**changes))
    assert found is not None and describe_harm(found)[0].startswith(sentence)
    assert deployed_tile(told(**changes)) == []


def test_under_a_budget_the_page_has_a_sentence_and_no_figure():
    private = {k: PERSONAL[k] for k in ("part", "guard", "rows", "spread")} | {"stays": True}
    page = "".join(deployed_section(summary(final=scores(0.5, 0.75), per_site=COMMON, personal=private), Charts(None)))
    assert "its choice, its figures and its test of harm stay there" in page and "<table" not in page
    assert "The server received a yes from each that it fitted one" in page


def test_the_rule_names_the_rows_and_the_spread():
    found, zero = read_deployed(told(rows="validation")), read_deployed(told(spread=0.0))
    assert found is not None and zero is not None
    assert "on its own validation rows" in describe_rule(found)[0] and "0.50" in describe_rule(found)[1]
    assert "do not differ beyond chance" in describe_rule(zero)[1]


def test_names_from_data_are_escaped_and_runs_without_personal_models_have_no_section():
    page = "".join(deployed_section(told(), Charts(None)))
    assert EVIL not in page and "&lt;script&gt;" in page
    assert deployed_section(summary(), Charts(None)) == []


def test_the_figure_has_a_line_from_the_common_to_the_deployed_loss():
    found = read_deployed(told())
    assert found is not None
    drawn = figures.deployed_losses(found)
    assert drawn is not None
    line, common, deployed, harmed = drawn["data"]
    assert [line["x"][:3], line["x"][-3:]] == [[0.5, 0.3, None], [0.6, 0.65, None]], "the largest gain first"
    assert common["x"] == [0.5, 0.4, 0.6] and deployed["x"] == [0.3, 0.35]
    assert harmed["y"] == ["b"] and harmed["name"] == "deployed, harmed"


def test_accuracies_at_two_thresholds_say_so():
    personal = {**PERSONAL, "threshold": 0.485}
    found = read_deployed({"final": scores(0.5, 0.75), "per_site": COMMON, "personal": personal, "threshold": 0.52})
    assert "at a threshold of 48.5% (common model 75% at 52%)" in describe_deployed(found)[0]


def test_the_summary_of_a_report_mentions_harmed_hospitals_once():
    lines = describe_findings({"final": scores(0.5, 0.75), "per_site": COMMON, "personal": PERSONAL, "classes": ["0", "1"]})
    assert sum("clearly worse off" in line for line in lines) == 1
    assert any(line.startswith("Deployed: ") and "accuracy 81% (common model 75%)" in line for line in lines)
