"""Sites and subgroups held against each other: who is ranked, who is the worst, who is flagged and in which words."""

from __future__ import annotations

import pytest

from grandrounds.metrics.fairness import (
    accuracy_without_model,
    below_majority,
    clearly_worse,
    describe_without_model,
    group_lines,
    intervals,
    lowest_accuracy,
    majority_lines,
    rank_sites,
    site_flags,
    worst_site,
)


def site(count: float, events: float, auroc: float | None, right: float, **more: object) -> dict:
    half = {} if auroc is None else {"auroc_low": auroc - 0.05, "auroc_high": min(1.0, auroc + 0.05)}
    majority = max(events, count - events) / count
    figures = {"count": count, "events": events, "auroc": auroc, **half, "majority": majority, "log_loss": 0.4}
    return {**figures, "accuracy": right, "decision_accuracy": right, **more}


SITES = {
    "many events": site(100, 40, 0.83, 0.75),
    "badly told apart": site(100, 9, 0.70, 0.90),
    "tiny": site(3, 1, 0.0, 0.0),
    "one event": site(60, 1, 0.20, 0.98),
    "untested": {"count": 0.0, "accuracy": None, "majority": None, "auroc": None},
}


def test_sites_are_ranked_by_auroc_and_not_by_how_common_the_event_is():
    assert rank_sites(SITES) == ["badly told apart", "many events", "one event", "tiny"]


def test_the_worst_site_has_enough_rows_of_either_kind():
    found = worst_site(SITES)
    assert found["site"] == "badly told apart" and found["auroc"] == 0.70 and found["events"] == 9
    assert worst_site({"tiny": SITES["tiny"], "one event": SITES["one event"]}) == {}
    assert lowest_accuracy(SITES) == 0.75 and lowest_accuracy({"tiny": SITES["tiny"]}) is None


def test_a_site_below_its_majority_class_is_flagged_with_the_answer_that_would_do_better():
    swiss = {"switzerland": site(25, 24, 0.9, 0.80), "va": site(40, 30, 0.75, 0.775)}
    assert [str(b) for b in below_majority(swiss, classes=("no", "yes"))] == [
        "switzerland: accuracy 0.80 (25 test rows), always answering 'yes' gives 0.96"
    ]
    assert site_flags(swiss["switzerland"]) == ["below its majority class", "too few rows to rank"]
    assert site_flags(swiss["va"]) == []
    assert site_flags(swiss["switzerland"], threshold=0.1) == ["too few rows to rank"], "it trades accuracy for sensitivity"


def summary(per_site: dict, *, final: dict, threshold: float = 0.5, subgroups: dict | None = None) -> dict:
    below = [vars(b) for b in below_majority(per_site, classes=("no", "yes"))]
    return {"final": final, "per_site": per_site, "threshold": threshold, "below_majority": below, "subgroups": subgroups or {}}


def test_a_threshold_that_costs_accuracy_everywhere_is_told_once():
    sites = {f"h{k}": site(100, 9, 0.8, 0.70, accuracy=0.91) for k in range(20)}
    sites["h3"] = site(100, 9, 0.6, 0.70, accuracy=0.85)
    lines = majority_lines(summary(sites, final=site(2000, 180, 0.8, 0.70), threshold=0.087))
    assert len(lines) == 2 and "threshold of 0.087" in lines[0] and "20 of 20 sites" in lines[0]
    assert lines[1].startswith("h3: accuracy 0.85 at 0.5")


def test_two_test_rows_are_no_warning():
    sites = {"tiny": site(2, 2, None, 0.5), "large": site(200, 100, 0.9, 0.9)}
    assert majority_lines(summary(sites, final=site(202, 102, 0.9, 0.9))) == []
    assert "below its majority class" in site_flags(sites["tiny"]), "the table's remark stays"


def test_many_sites_below_their_majority_are_counted():
    sites = {f"h{k}": site(100, 40, 0.8, 0.5) for k in range(9)} | {"good": site(1000, 500, 0.9, 0.9)}
    lines = majority_lines(summary(sites, final=site(1900, 860, 0.9, 0.7)))
    assert len(lines) == 7 and lines[-1].startswith("and 3 more sites")


def test_runs_of_the_first_version_are_flagged_without_the_answers_name():
    old = {"va": {"count": 40.0, "accuracy": 0.64, "majority": 0.75, "auroc": 0.7}}
    (line,) = majority_lines({"final": {"accuracy": 0.8, "majority": 0.6}, "per_site": old, "threshold": 0.5})
    assert "always answering its most common class gives 0.75" in line


def test_intervals_are_of_the_rows_that_each_share_is_taken_of():
    from scipy.stats import binomtest

    women = site(43, 11, 0.93, 36 / 43, sensitivity=8 / 11, specificity=28 / 32, ppv=8 / 12)
    ends = intervals(women)
    for metric, hits, rows in (("sensitivity", 8, 11), ("specificity", 28, 32), ("ppv", 8, 12), ("decision_accuracy", 36, 43)):
        expected = binomtest(hits, rows).proportion_ci(0.95, "wilson")
        assert ends[metric] == pytest.approx((expected.low, expected.high)), metric


def test_a_subgroup_is_flagged_where_its_interval_lies_below_all_rows():
    overall = site(1000, 400, 0.85, 0.8, sensitivity=0.85, specificity=0.8)
    few = site(43, 11, 0.84, 0.8, sensitivity=8 / 11, specificity=0.8)
    many = site(400, 110, 0.84, 0.8, sensitivity=80 / 110, specificity=0.8)
    none = site(12, 0, None, 1.0, sensitivity=None, specificity=1.0)
    assert clearly_worse(few, overall) == [] and clearly_worse(many, overall) == ["sensitivity"]
    lines = group_lines(summary({}, final=overall, subgroups={"few": few, "women": many, "none": none}))
    assert lines == [
        "women: sensitivity 0.73 (95% CI 0.64 to 0.80), all rows 0.85",
        "none: 0 events among 12 test rows, too few to judge",
    ]


def test_accuracy_without_a_model_is_that_of_each_hospitals_most_common_class():
    total = {"count": 100.0, "majority": 0.5}
    sites = {"a": {"count": 40.0, "majority": 0.75}, "b": {"count": 60.0, "majority": 0.6}, "c": {"count": 0.0, "majority": None}}
    assert accuracy_without_model(sites, total) == pytest.approx((30 + 36) / 100)
    assert describe_without_model(sites, total) == "always answering each hospital's most common class"
    part = {"a": sites["a"]}  # rows of other hospitals are not known
    assert accuracy_without_model(part, total) == 0.5
    assert describe_without_model(part, total | {"events": 30.0}, ("no", "yes")) == "always answering 'no'"
