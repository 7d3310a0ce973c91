"""Findings in plain language: verdicts against the majority class, between sites, and what may be chance."""

from __future__ import annotations

from grandrounds.report.findings import describe_findings


def figures(count, events, accuracy, *, auroc=None, half=None):
    majority = max(events, count - events) / count
    ends = {} if auroc is None else {"auroc": auroc, "auroc_low": auroc - half, "auroc_high": min(1.0, auroc + half)}
    return {"count": count, "events": events, "accuracy": accuracy, "majority": majority, **ends}


def summary(final, per_site=None, **more):
    event = {"class": "died", "other": "survived", "label": "outcome", "share": 0.3, "by": "rule"}
    return {"final": final, "per_site": per_site or {}, "event": event, "classes": ["died", "survived"], **more}


def test_a_model_that_beats_the_majority_class():
    lines = describe_findings(summary(figures(200, 60, 0.85, auroc=0.9, half=0.05)))
    assert lines[0] == "The event is died: 60 of 200 test rows have it (30%)."
    assert lines[1].startswith("The model is better than no model: its accuracy is 85%")
    assert lines[1].endswith("always answering 'survived' gives 70% (difference +15 points, 95% CI +7 to +23).")
    assert lines[2].startswith("AUROC 0.900 (95% CI 0.850 to 0.950): in 90% of pairs")


def test_the_model_is_compared_with_the_most_common_class_of_each_hospital():
    """85% beats the most common class of all rows (50%) by far, and says nothing where each hospital has 85% of one class."""
    sites = {"a": figures(100, 85, 0.85), "b": figures(100, 15, 0.85)}
    final = figures(200, 100, 0.85) | {"majority": 0.85, "sensitivity": 0.85, "specificity": 0.85}
    for site, right in (("a", {"sensitivity": 1.0, "specificity": 0.0}), ("b", {"sensitivity": 0.0, "specificity": 1.0})):
        sites[site] |= right
    lines = describe_findings(summary(final, sites))
    assert lines[1].startswith("The model is not clearly better than no model: its accuracy is 85%, always answering each")
    assert "hospital's most common class gives 85% (difference 0 points" in lines[1]
    at_threshold = describe_findings(summary(final, sites, threshold=0.2))
    assert "not clearly better than treating everyone or nobody at each hospital" in at_threshold[1]


def test_a_model_that_ranks_hospitals_is_not_praised_for_its_pooled_auroc():
    sites = {"a": figures(200, 60, 0.85, auroc=0.52, half=0.08), "b": figures(200, 60, 0.85, auroc=0.5, half=0.08)}
    within = {"auroc_within": 0.51, "auroc_within_low": 0.45, "auroc_within_high": 0.57, "auroc_within_hospitals": 2.0}
    gap = {"auroc_gap": 0.19, "auroc_gap_low": 0.12, "auroc_gap_high": 0.26}
    final = figures(400, 120, 0.85, auroc=0.7, half=0.04)
    lines = describe_findings(summary(final | within | gap, sites))
    assert lines[2].startswith("The model does not clearly rank patients of the same hospital better than chance: AUROC within")
    assert "all patients pooled 0.700" in lines[2]
    assert lines[3].startswith("The model ranks hospitals, not patients:")
    near = describe_findings(summary(final | within | gap | {"auroc_gap_low": -0.01}, sites))
    assert not any("ranks hospitals" in line for line in near)


def test_a_model_that_may_be_no_better_and_one_that_is_worse():
    unclear = describe_findings(summary(figures(200, 60, 0.72, auroc=0.8, half=0.05)))
    assert unclear[1].startswith("The model is not clearly better than no model")
    assert unclear[2].startswith("It does rank patients better than chance, AUROC 0.800")
    worse = describe_findings(summary(figures(200, 60, 0.5, auroc=0.52, half=0.1)))
    assert worse[1].startswith("The model is worse than no model")
    assert worse[2].startswith("The model does not clearly rank patients better than chance")


def test_risks_that_are_too_close_to_the_middle_are_a_finding_with_a_remedy():
    final = figures(200, 60, 0.85, auroc=0.9, half=0.05)
    slope = {"calibration_slope": 1.8, "calibration_slope_low": 1.3, "calibration_slope_high": 2.3}
    lines = describe_findings(summary(final | slope))
    assert lines[3].startswith("Risks are too close to the middle: calibration slope 1.80 (95% CI 1.30 to 2.30), 1 is ideal.")
    assert "rounds recalibrate" in lines[3]
    unclear = describe_findings(summary(final | slope | {"calibration_slope_low": 0.9}))
    assert not any("calibration" in line for line in unclear)
    extreme = describe_findings(summary(final | {k: v - 1.4 for k, v in slope.items()}))
    assert extreme[3].startswith("Risks are too extreme")


def test_few_events_are_flagged():
    lines = describe_findings(summary(figures(121, 1, 0.99)))
    assert lines[1] == "Only 1 test row with the event: the scores below are not reliable."


def test_the_worst_site_and_chance():
    final = figures(200, 60, 0.85)
    near = {"a": figures(100, 30, 0.84, auroc=0.85, half=0.1), "b": figures(100, 30, 0.86, auroc=0.9, half=0.1)}
    lines = describe_findings(summary(final, near))
    assert "No clear difference between sites: a is worst with AUROC 0.850, b has 0.900." in lines
    assert any(line.startswith("The difference of 0.050 may be chance (95% CI -0.1") for line in lines)
    steep = {"a": figures(100, 30, 0.84, auroc=0.7, half=0.5), "b": figures(100, 30, 0.86, auroc=0.9, half=0.1)}
    assert any("(95% CI -0.100 to" in line for line in describe_findings(summary(final, steep))), "an AUROC is 1 at most"
    same = {"a": figures(100, 30, 0.9, auroc=1.0, half=0.0), "b": figures(100, 30, 0.9, auroc=1.0, half=0.0)}
    lines = describe_findings(summary(final, {**same, "c": figures(5, 2, 0.5)}))
    assert "No difference between the 2 sites that can be compared: AUROC 1.000." in lines
    assert "1 of 3 sites has too few test rows to be compared." in lines
    assert not any("worst" in line or "0.000" in line for line in lines), "no site is worst among equals"
    far = {**near, "a": figures(100, 30, 0.84, auroc=0.6, half=0.1)}
    lines = describe_findings(summary(final, far))
    assert any(line.startswith("The model is not equally good at every site: a is worst") for line in lines)
    assert any("is larger than chance explains" in line for line in lines)


def test_a_site_below_its_own_majority_class():
    sites = {"a": figures(100, 30, 0.9), "b": figures(100, 10, 0.7), "c": figures(40, 10, 0.72), "d": figures(2, 2, 0.5)}
    lines = describe_findings(summary(figures(242, 52, 0.8), sites))
    assert any(line.startswith("At b the model is worse than the majority class: accuracy 70%") for line in lines)
    assert any(line.startswith("At c the model is below the majority class, which may be chance") for line in lines)
    assert not any("At d" in line for line in lines)


def test_the_worst_of_many_sites_may_be_chance():
    """Of 200 sites one is low by chance: the interval is adjusted for their number."""
    sites = {f"s{k}": figures(50, 25, 0.8) for k in range(199)} | {"low": figures(50, 8, 0.58)}
    lines = describe_findings(summary(figures(10_000, 5000, 0.8), sites))
    assert any(line.startswith("At low the model is below the majority class, which may be chance") for line in lines)
    alone = {"s": figures(50, 25, 0.8), "low": figures(50, 8, 0.58)}
    assert any(line.startswith("At low the model is worse") for line in describe_findings(summary(figures(100, 35, 0.8), alone)))


def test_sites_with_few_rows_are_not_compared():
    sites = {"a": figures(5, 2, 0.8), "b": figures(8, 3, 0.9)}
    lines = describe_findings(summary(figures(13, 5, 0.8), sites))
    assert any(line.startswith("Sites cannot be compared: no site has enough test rows") for line in lines)


def test_three_classes_have_no_event():
    final = {"count": 90.0, "accuracy": 0.8, "majority": 0.4}
    lines = describe_findings({"final": final, "per_site": {}, "classes": ["a", "b", "c"], "event": None})
    assert lines[0] == "The model predicts one of 3 classes; there are 90 test rows."
    assert "always answering the most common class gives 40%" in lines[1]


def test_features_and_subgroups():
    top = [{"feature": f, "share": s} for f, s in (("age", 0.5), ("bmi", 0.2), ("sex", 0.1), ("x", 0.1))]
    groups = {"female": {**figures(100, 30, 0.5, auroc=0.6, half=0.05), "decision_accuracy": 0.5}}
    final = {**figures(200, 60, 0.85, auroc=0.9, half=0.05), "decision_accuracy": 0.85}
    lines = describe_findings(summary(final, subgroups=groups, explanation={"top": top}))
    assert lines[-1] == "The model relies most on age (50%), bmi (20%) and sex (10%)."
    assert lines[-2].startswith("Subgroup female: AUROC 0.60 (95% CI")


def test_a_run_without_test_rows_has_no_findings():
    assert describe_findings({"final": {"count": None}}) == []
    assert describe_findings({"final": {"count": 0.0}}) == []
