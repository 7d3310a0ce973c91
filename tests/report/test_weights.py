"""Why a site had its weight: exact sentences for decisions made by hand, for every part a method may have."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.core.names import site_named
from grandrounds.core.records import RoundRecord
from grandrounds.methods.sse_agg.summary import demotion_summary
from grandrounds.report.findings import make_findings
from grandrounds.report.weights import sentences
from grandrounds.report.weights.record import join_names, percent, percent_parts, whole_percent
from tests.support import refused

OWN_MODEL = "Its explanations are of the model that it trained in this round, not of the common model."
OUTLIER = "a site's weight is its share of the rows, lower if its explanations are outliers"
PLAN = {"method": {"cohorts": {"consensus": "cohort"}, "robust": {"rule": "none"}}}


def weight_sentences(values, site, **more):
    return sentences.weight_sentences(RoundRecord.from_dict(values), site, **more)


def record(weights, signals, *, why="by the rule", **more):
    decision = {"round": 7, "asked": list(weights), "missing": {}, "weights": weights, "signals": signals, "why": why}
    return {"round": 7, "decision": {**decision, **more}}


def stage(part, why, weights=None):
    return {"part": part, "why": why, "weights": weights or {}}


def fedavg(**more):
    weights, rows = {"site-01": 0.6, "site-02": 0.4}, {"site-01": 6000.0, "site-02": 4000.0}
    held = {"stages": [stage("weigh", "by rows", weights)], "why": "by rows"}
    return record(weights, {"data_size": rows}, **{**held, **more})


def outlier(**more):
    """Three sites alike and one, with half of the rows, whose reasons stand out: 0.1 of its 0.5 is 0.05 of 0.55."""
    rows = {"a": 100.0, "b": 100.0, "c": 100.0, "bad": 300.0}
    weights = {"a": 10 / 33, "b": 10 / 33, "c": 10 / 33, "bad": 1 / 11}
    signals = {
        "data_size": rows,
        "disagreement": {"a": 0.1, "b": 0.12, "c": 0.1, "bad": 0.9},
        "in_line": {"a": 1.0, "b": 1.0, "c": 1.0, "bad": 0.1},
        "standing": {"a": 0.5, "b": 0.5, "c": 0.5, "bad": 2.0},
    }
    held = {"shares": {"agreement": weights}, "stages": [stage("weigh", OUTLIER, weights)], "why": OUTLIER}
    return record(weights, signals, **{**held, **more})


def sketches(values, flat=()):
    block = {"sketches": values, "flat": list(flat), "to_consensus": dict.fromkeys(values, 0.25)}
    return {"features": ["age", "lactate", "ward"], "rounds": [{"round": 6}, {"round": 7, "training": block}]}


def test_sites_that_lost_weight_for_their_explanations_are_a_finding_with_the_round_since_when():
    def read(round, values):
        return RoundRecord.from_dict(values | {"round": round, "decision": values["decision"] | {"round": round}})

    rows = {"a": 1 / 6, "b": 1 / 6, "c": 1 / 6, "bad": 0.5}
    signals = {"data_size": outlier()["decision"]["signals"]["data_size"], "in_line": dict.fromkeys(rows, 1.0)}
    out, forgiven = outlier(), record(rows, signals)
    assert demotion_summary([read(1, out), read(2, forgiven)]) == {}
    assert demotion_summary([read(1, out), read(2, out)])["demoted"]["bad"]["since"] == 1
    demoted = demotion_summary([read(1, out), read(2, forgiven), read(3, out)])["demoted"]
    assert demoted == {"bad": {"since": 3, "by_rows": 0.5, "weight": pytest.approx(1 / 11)}}
    (line,) = make_findings({"final": {"count": 10.0}, "task": "regression", "demoted": demoted}).weights
    assert line.startswith("bad relies on other features than the consensus since round 3: its weight is 9.1%, not 50.0%")


def test_fedavg_is_the_share_of_rows():
    assert weight_sentences(fedavg(), "site-02") == [
        "round 7, site-02: weight 40.0%, number 2 of 2.",
        "That is its share of the training rows: 4,000 of 10,000.",
        "Weighting: by rows.",
    ]


def test_a_record_from_before_there_were_stages():
    old = record({"a": 0.25, "b": 0.75}, {"data_size": {"a": 1.0, "b": 3.0}}, why="a share of rows")
    assert weight_sentences(old, "a") == [
        "round 7, a: weight 25.0%, number 2 of 2.",
        "That is its share of the training rows: 1 of 4.",
        "Why: a share of rows.",
    ]


def test_reasons_that_stand_out():
    """Importances of (1, 0.8, 0.2) at three sites and so in the median; of (0.05, 0.25, 0.7) at the bad one."""
    alike, off = [0.5, 0.4, 0.1], [0.05, 0.25, 0.7]
    told = sketches({"a": alike, "b": alike, "c": alike, "bad": off})
    held = outlier()
    signals = held["decision"]["signals"]
    signals["importance"] = {"a": 2.0, "b": 2.0, "c": 2.0, "bad": 1.0}
    signals["disagreement"] = {"a": 0.0, "b": 0.0, "c": 0.0, "bad": (0.95 + 0.55 + 0.5) / 2}
    assert weight_sentences(held, "bad", explanations=told) == [
        "round 7, bad: weight 9.1%, number 4 of 4.",
        "By its rows alone (300 of 600) it would have had 50.0%.",
        "Its explanations lie 1.00 from the consensus of the sites (0 the same, 1 as far off as a model that uses no feature); "
        "the usual distance (their median) is 0.00. They are outliers: it keeps 10% of the weight by its rows (before "
        "normalisation).",
        "Over all rounds, its explanations lie 2 times as far off as the outlier limit.",
        "In total, its features are 50% as important as usual (the median).",
        "Features it relies on differently: ward 70.0% (consensus 10.0%), age 5.0% (consensus 50.0%), "
        "lactate 25.0% (consensus 40.0%).",
        "All of its weight comes from its rows x agreement of explanations.",
        f"Weighting: {OUTLIER}.",
        OWN_MODEL,
    ]
    signals["disagreement"]["bad"] = 0.9
    lines = weight_sentences(held, "bad", explanations=told)
    assert "(others 10.0%)" in lines[5], "a consensus that does not give the recorded distance is not named"
    assert not any("differently" in line for line in weight_sentences(held, "bad")), "without sketches nothing is said"


def remembered(distance, standing, kept):
    """The outlier's record with this distance of the bad site, where 0.2 passes unnoticed, and what the rounds made of it."""
    held = outlier()
    signals = held["decision"]["signals"]
    signals["disagreement"] = {"a": 0.1, "b": 0.1, "c": 0.1, "bad": distance}
    signals["standing"] = {"a": 0.5, "b": 0.5, "c": 0.5, "bad": standing}
    signals["in_line"]["bad"] = kept
    return held


WEIGHED = {"method": {"weigh": {"tolerance": 2.0}}}
TENTH = "it keeps 10% of the weight by its rows (before normalisation)."
ALL = "it keeps all that its rows give it."


@pytest.mark.parametrize(
    ("distance", "standing", "kept", "said", "over"),
    [
        (0.12, 1.8, 0.1, f"They are not outliers in this round, but were in earlier rounds: {TENTH}", "1.8"),
        (0.3, 0.9, 1.0, f"They are outliers in this round, but not over all rounds so far: {ALL}", "0.9"),
        (0.9, 2.725, 0.1, f"They are outliers: {TENTH}", "2.73"),
        (0.9, 4.5, 0.1, f"They are outliers: {TENTH}", ""),
        (0.12, 0.7, 1.0, f"They are not outliers: {ALL}", ""),
        (0.9, 2.725, 1.0, f"They are outliers: {ALL}", "2.73"),
    ],
    ids=["before", "only now", "both", "this round alone", "neither", "sharpness 0"],
)  # fmt: skip
def test_what_rounds_before_made_of_this_one(distance, standing, kept, said, over):
    lines = weight_sentences(remembered(distance, standing, kept), "bad", plan=WEIGHED)
    assert lines[2].endswith(f"the usual distance (their median) is 0.10. {said}")
    number = f"Over all rounds, its explanations lie {over} times as far off as the outlier limit."
    assert [line for line in lines if line.startswith("Over all rounds")] == ([number] if over else [])
    assert not any("standing" in line for line in lines), "it is said in words"


def test_where_this_round_alone_cannot_be_told_only_the_rounds_are_spoken_of():
    """Without the plan; and of a site alone in its cohort, which is compared with all by distances that are not kept."""
    held = remembered(0.12, 1.8, 0.1)
    over = "Over all rounds, its explanations lie 1.8 times as far off as the outlier limit."
    lines = weight_sentences(held, "bad")
    assert lines[2].endswith(f"They are outliers: {TENTH}") and lines[3] == over
    held["decision"]["cohorts"] = cohorts({"a": 1, "b": 1, "c": 1, "bad": 2})
    alone = weight_sentences(held, "bad", plan={"method": {**PLAN["method"], **WEIGHED["method"]}})
    assert alone[3].endswith(f"They are outliers: {TENTH}") and alone[4] == over


def test_this_round_is_told_by_those_a_site_was_compared_with():
    """Of all eight, six are within 0.1, so 0.2 passes unnoticed; within its cohort of three, one is at 0.24, so 0.48 does."""
    both = {"method": {**PLAN["method"], **WEIGHED["method"]}}
    held = remembered(0.35, 1.8, 0.1)
    held["decision"]["signals"]["disagreement"] |= {"d": 0.24, "e": 0.1, "f": 0.1, "g": 0.1}
    of = {**dict.fromkeys("abcfg", 1), "bad": 2, "d": 2, "e": 2}
    assert "They are outliers: " in weight_sentences(held, "bad", plan=WEIGHED)[2]
    within = {**held, "decision": {**held["decision"], "cohorts": cohorts(of)}}
    assert (
        "They are not outliers in this round, but were in earlier rounds: "
        in weight_sentences(within, "bad", plan=both)[3]
    )


def test_models_that_use_no_feature_do_not_make_it_usual_to_be_off():
    held = remembered(0.35, 1.8, 0.1)
    held["decision"]["signals"]["disagreement"] |= {"d": 0.9, "e": 0.9}
    assert "They are not outliers in this round" in weight_sentences(held, "bad", plan=WEIGHED)[2]
    held["decision"]["signals"]["flat"] = {"a": 0.0, "b": 0.0, "c": 0.0, "bad": 0.0, "d": 1.0, "e": 1.0}
    assert "They are outliers: " in weight_sentences(held, "bad", plan=WEIGHED)[2]


def too_far_apart(standing, kept, distance=0.9):
    """A round in which the usual distance is 0.4, and what was known of the bad site before."""
    held = remembered(distance, standing, kept)
    held["decision"]["signals"]["disagreement"] |= {"a": 0.4, "b": 0.4, "c": 0.3}
    return held


@pytest.mark.parametrize(
    ("standing", "kept", "said"),
    [
        (1.8, 0.1, f"Explanations differ too much in this round to identify outliers; in earlier rounds its own were: {TENTH}"),
        (
            0.7,
            1.0,
            f"Explanations differ too much in this round to identify outliers; in earlier rounds its own were not: {ALL}",
        ),
        (None, 1.0, f"Explanations differ too much to identify outliers: {ALL}"),
    ],
    ids=["bad before", "in line before", "never known"],
)  # fmt: skip
def test_where_reasons_lie_too_far_apart_only_the_rounds_before_speak(standing, kept, said):
    lines = weight_sentences(too_far_apart(standing, kept), "bad", plan=WEIGHED)
    assert lines[2].endswith(f"the usual distance (their median) is 0.40. {said}")
    over = "Over all rounds, its explanations lie 1.8 times as far off as the outlier limit."
    assert [line for line in lines if line.startswith("Over all rounds")] == ([over] if standing == 1.8 else [])
    assert not any("nan" in line.lower() or "none" in line.lower() for line in lines)


def test_what_is_out_of_all_proportion_stands_out_however_far_apart_reasons_lie():
    """12 is 2.4 times the 5 beyond which a model is broken."""
    lines = weight_sentences(too_far_apart(2.4, 0.1, distance=12.0), "bad", plan=WEIGHED)
    assert lines[2].endswith(f"They are outliers: {TENTH}")
    assert not any(line.startswith("Over all rounds") for line in lines), "this round alone says the same"


def test_nothing_known_of_a_site_needs_no_plan_and_holds_for_a_site_alone():
    said = f"Explanations differ too much to identify outliers: {ALL}"
    held = too_far_apart(None, 1.0)
    assert weight_sentences(held, "bad")[2].endswith(said)
    held["decision"]["cohorts"] = cohorts({"a": 1, "b": 1, "c": 1, "bad": 2})
    alone = weight_sentences(held, "bad", plan={"method": {**PLAN["method"], **WEIGHED["method"]}})
    assert alone[3].endswith(said)


def test_what_others_lose_is_said_of_those_who_gain():
    lines = weight_sentences(outlier(), "b")
    assert lines[:2] == [
        "round 7, b: weight 30.3%, number 1 of 4, tied with 2 others.",
        "By its rows alone (100 of 600) it would have had 16.7%.",
    ]
    assert "They are not outliers: it keeps all that its rows give it." in lines[2]
    assert "Others lost weight because of their explanations, so it has more than its rows alone would give." in lines
    assert weight_sentences(outlier(), "bad").count(lines[3]) == 0


def test_a_floor_is_said_of_whom_it_raised():
    """Three at 1 / 3 and one at nothing, of at least 0.2: 1.2 in all, so 0.2 / 1.2 for the one."""
    raised = {"a": 1 / 3.6, "b": 1 / 3.6, "c": 1 / 3.6, "bad": 0.2 / 1.2}
    held = outlier()
    held["decision"].update(weights=raised, stages=[{"part": "weigh", "why": OUTLIER, "weights": raised}])
    held["decision"]["shares"] = {"agreement": raised}
    plan = {"method": {"weigh": {"floor": 0.2}}}
    said = "It was raised to the minimum weight, 0.2, before normalisation."
    assert said in weight_sentences(held, "bad", plan=plan)
    assert said not in weight_sentences(held, "a", plan=plan)
    assert said not in weight_sentences(held, "bad", plan={"method": {"weigh": {"floor": 0.1}}}), "it had more anyway"


def test_what_a_site_counts_in_a_model_that_its_cohort_keeps():
    held = outlier(cohorts=cohorts({"a": 1, "b": 1, "c": 2, "bad": 2}))
    apart = {"method": {"cohorts": {"consensus": "cohort", "models": "separate"}}}
    share = held["decision"]["weights"]["bad"] / (held["decision"]["weights"]["bad"] + held["decision"]["weights"]["c"])
    said = f"Cohorts keep models of their own: in that of its cohort it counts {100 * share:.1f}%."
    assert said in weight_sentences(held, "bad", plan=apart)
    assert said not in weight_sentences(held, "bad", plan=PLAN)


def test_an_agreement_that_is_even_says_nothing_of_who_is_nearest():
    """tau = 0 or sharpness = 0: the farthest counts as much as the nearest."""
    held = outlier()
    signals = held["decision"]["signals"]
    signals["agreement"] = dict.fromkeys(signals.pop("in_line"), 1.0)
    assert weight_sentences(held, "bad")[2].endswith(" By agreement none counts more.")


def test_the_papers_form_counts_by_the_nearest():
    held = outlier()
    signals = held["decision"]["signals"]
    signals["agreement"] = {"a": 1.0, "b": 0.85, "c": 1.0, "bad": 0.12}
    del signals["in_line"], signals["standing"]
    held["decision"]["shares"] = {"data": {"bad": 0.03}, "agreement": {"bad": 0.06}}
    lines = weight_sentences(held, "bad")
    assert lines[2].endswith(
        "from the consensus of the sites (0 the same, 2 nothing in common); the usual distance (their median) is 0.11. By "
        "agreement it counts 12% of "
        "what the site nearest to the consensus counts."
    )
    assert lines[3] == "Of its weight, 33% comes from data size and 67% from agreement."
    assert "None lies nearer to the consensus, so by agreement none counts more." in weight_sentences(held, "a")[2]


def test_a_model_without_reasons():
    held = outlier(notes=["bad: its model uses no feature", "a: something of its own", "the device is small"])
    held["decision"]["signals"]["flat"] = {"a": 0.0, "b": 0.0, "c": 0.0, "bad": 1.0}
    lines = weight_sentences(held, "bad")
    assert lines[2] == (
        "Its model used no feature, so its explanations carry no information: it counts at most as the site that agrees least, "
        "and keeps 10% of the weight by its rows (before normalisation)."
    )
    assert [line for line in lines if "Note" in line] == ["Note: the device is small."]
    assert "Note: a: something of its own." in weight_sentences(held, "a")
    held["decision"]["signals"]["flat"] = dict.fromkeys("abc", 1.0) | {"bad": 1.0}
    assert "No site's model used any feature, so explanations carry no information." in weight_sentences(
        held, "a"
    )


def test_rounds_in_which_reasons_were_not_asked_for():
    held = outlier()
    del held["decision"]["signals"]["disagreement"]
    assert weight_sentences(held, "bad")[2] == (
        "Explanations were not requested in this round; its last known agreement with the others applies: 10%."
    )
    held["decision"]["signals"]["agreement"] = held["decision"]["signals"].pop("in_line")
    lines = weight_sentences(held, "bad")
    assert lines[2] == (
        "Explanations were not requested in this round; by the last known agreement it counts 10% of what the site nearest to "
        "the consensus did."
    )
    assert not any("its rows as far as" in line for line in lines), "the paper's forms do not go by rows"


def cohorts(of):
    return {"of": of, "count": max(of.values()), "silhouette": 0.4, "consistency": 1.0}


def test_a_cohort_is_compared_within():
    """The paper's form: the mean of the cohort is (0.8, 0.2, 0), whatever c goes by."""
    held = outlier(cohorts=cohorts({"a": 1, "b": 1, "c": 2, "bad": 1}))
    told = sketches({"a": [1, 0, 0], "b": [0.9, 0.1, 0], "c": [0, 0, 1], "bad": [0.5, 0.5, 0]})
    signals = held["decision"]["signals"]
    signals["disagreement"] = {"a": 0.4, "b": 0.2, "bad": 0.6, "c": 1.5}
    signals["agreement"] = signals.pop("in_line")
    del signals["standing"]
    lines = weight_sentences(held, "bad", explanations=told, plan=PLAN)
    assert lines[2:5] == [
        "It is in cohort 1 of 2 with a and b; its explanations were compared with theirs only.",
        "Its explanations lie 0.60 from the consensus of its cohort (0 the same, 2 nothing in common); the usual distance (their "
        "median) is 0.40. By agreement it counts 10% of what the site of its cohort nearest to the consensus counts.",
        "Features it relies on differently: age 50.0% (consensus 80.0%), lactate 50.0% (consensus 20.0%).",
    ]
    alone = weight_sentences(held, "c", explanations=told, plan=PLAN)
    assert alone[2:4] == [
        "It is alone in cohort 2 of 2, so its explanations were compared with all sites'.",
        "Its explanations lie 1.50 from the consensus of the sites (0 the same, 2 nothing in common). "
        "By agreement none counts more.",
    ]
    assert alone[4] == (
        "Features it relies on differently: ward 100.0% (consensus 25.0%), age 0% (consensus 60.0%), "
        "lactate 0% (consensus 15.0%)."
    ), "the consensus of all, which its distance is to"
    everywhere = {"method": {"cohorts": {"consensus": "global"}}}
    lines = weight_sentences(held, "c", plan=everywhere)
    assert lines[2] == "It is alone in cohort 2 of 2." and "the consensus of the sites" in lines[3]
    assert weight_sentences(held, "bad", plan=everywhere)[2] == "It is in cohort 1 of 2 with a and b."
    one = outlier(cohorts=cohorts(dict.fromkeys(("a", "b", "c", "bad"), 1)))
    assert "All sites that answered form one cohort." in weight_sentences(one, "a", plan=PLAN)


def test_losses_and_calibration():
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    signals = {"val_loss": {"a": 1.5, "b": 0.25, "c": None}, "ece": {"a": 0.1, "b": 0.3, "c": None}}
    held = record(weights, signals, shares={"worst_site": {"a": 0.4}, "calibration": {"a": 0.1}})
    assert weight_sentences(held, "a")[1:4] == [
        "Its validation loss is 1.500, number 1 of 2 (1 the highest); sites with a high loss count more.",
        "Its calibration error is 0.100, number 2 of 2 (1 the highest); poorly calibrated sites count more.",
        "Of its weight, 80% comes from its validation loss and 20% from its calibration error.",
    ]
    assert weight_sentences(held, "c")[1:3] == [
        "It has no validation rows, so its validation loss counts as the mean of the others'.",
        "It has no validation rows, so its calibration error counts as the mean of the others'.",
    ]


def judged(rule, after, **signals):
    before = {"a": 0.5, "b": 0.25, "c": 0.25}
    stages = [stage("weigh", "by rows", before), stage("robust", "as it judges", after)]
    held = {"data_size": {"a": 20.0, "b": 10.0, "c": 10.0}, "norm": {"a": 4.0, "b": 1.0, "c": 2.0}}
    held |= {name: dict(zip("abc", values, strict=True)) for name, values in signals.items()}
    made = record(after, held, stages=stages, why="as it judges; by rows")
    return weight_sentences(made, "a", plan={"method": {"robust": {"rule": rule}}})


LONG = "Its update is 4 long, number 1 of 3 (1 the longest); the usual length was 2."


@pytest.mark.parametrize(
    ("rule", "signals", "said"),
    [
        ("krum", {"krum_score": [9.0, 2.0, 3.0]},
         ["Its Krum score, how far its update lies from its neighbours', is 9, number 3 of 3 (1 the lowest)."]),
        ("fltrust", {"similarity": [-0.5, 0.9, 0.8], "trust": [0.0, 0.9, 0.8]},
         ["It points in the direction of the server's update on its reference rows by a cosine of -0.50, which gives it a "
          "trust of 0.00."]),
        ("foolsgold", {"similarity": [0.99, 0.99, 0.1], "trust": [0.1, 0.1, 1.0]},
         ["Its updates so far point in the direction of the most similar site's by a cosine of 0.99, which gives it a "
          "trust of 0.10."]),
        ("geometric-median", {"distance": [3.5, 1.0, 2.0]},
         ["Its update lies 3.5 from the geometric median, number 3 of 3 (1 the nearest); the further off, the less it "
          "counts."]),
        ("clip", {"clipped": [0.5, 0.0, 0.0]}, ["50% of its length was clipped."]),
        ("median", {}, []),
    ],
)  # fmt: skip
def test_robust_rules(rule, signals, said):
    assert judged(rule, {"a": 0.0, "b": 0.5, "c": 0.5}, **signals) == [
        "round 7, a: weight 0%, number 3 of 3.",
        "By its rows alone (20 of 40) it would have had 50.0%.",
        LONG,
        *said,
        "Its weight was 50.0% after weighting and 0% after the robust rule.",
        "Weighting: by rows.",
        "Robust aggregation: as it judges.",
    ]


def test_an_update_without_an_end_is_left_out():
    lines = judged("krum", {"a": 0.0, "b": 1.0, "c": 0.0}, left_out=[1.0, 0.0, 0.0], krum_score=[0.0, 1.0, 2.0])
    assert lines[0] == "round 7, a: weight 0%, number 2 of 3, tied with 1 other."
    assert lines[2] == "Its update had no finite length and was left out."
    assert "Krum score" not in " ".join(lines)


def test_the_other_ways_of_weighing():
    weights, far = {"a": 0.7, "b": 0.3}, {"a": 0.5, "b": 1.5}
    near = weight_sentences(record(weights, {"distance": far}), "b", plan=PLAN)
    assert near[1] == (
        "Its model lies 1.5 from the mean of all models, number 2 of 2 (1 the nearest); the nearer, the more it counts."
    )
    right = weight_sentences(record(weights, {"reference_accuracy": {"a": 0.875, "b": 0.375}}), "a")
    assert right[1] == "Its model is correct on 87.5% of the server's reference rows, number 1 of 2 (1 the most)."
    own = weight_sentences(record(weights, {"my_signal": far, "loss": far}), "a")
    assert own[1:3] == [
        "Its my signal is 0.5, number 2 of 2 (1 the highest).",
        "Its loss is 0.5, number 2 of 2 (1 the highest).",
    ]


def test_who_took_part_and_who_did_not():
    weights, drawn = {"a": 0.5, "b": 0.5}, "2 of 4 sites were drawn at random"
    held = record(weights, {}, stages=[stage("select", drawn)], why=drawn, missing={"c": "dropped out"})
    assert weight_sentences(held, "a") == [
        "round 7, a: weight 50.0%, as every site that answered.",
        "2 of 4 sites were drawn at random; it was one of them.",
    ]
    assert weight_sentences(held, "c") == [
        "round 7, c: no weight, because it dropped out.",
        "2 of 4 sites were drawn at random.",
    ]
    assert weight_sentences(held, "d") == [
        "round 7, d: no weight, because it was not asked to take part.",
        "2 of 4 sites were drawn at random; it was not one of them.",
    ]
    worst = "of 3 sites that reported their loss, the 2 with the highest take part"
    held = record(weights, {"loss": {"a": 3.0, "b": 2.0, "d": 1.0}}, stages=[stage("select", worst)], why=worst)
    assert weight_sentences(held, "d") == [
        "round 7, d: no weight, because it was asked for its loss only.",
        "Of 3 sites that reported their loss, the 2 with the highest take part; it was not one of them.",
        "Before training, the model's loss on its rows was 1.000, number 3 of 3 (1 the highest).",
    ]


def test_a_site_that_trained_and_was_not_chosen_is_told_its_place():
    held = trusted()
    held["decision"]["signals"] = {"place": {"a": 1.0, "b": 2.0, "bad": 3.0}, "data_size": {"a": 10.0, "b": 10.0}}
    held["decision"]["weights"] = {"a": 0.5, "b": 0.5}
    lines = weight_sentences(held, "bad")
    assert "trained and was ranked number 3, and was not asked for its model" in lines[0]


def test_what_holds_sites_together_and_answers_that_come_late():
    held = fedavg(stages=[stage("weigh", "by rows"), stage("stability", "variates")], why="by rows; 2 answers were in")
    held["decision"]["signals"]["staleness"] = {"site-01": 0.0, "site-02": 2.0}
    assert weight_sentences(held, "site-02")[2:] == [
        "Its answer started from the model of 2 rounds before.",
        "Weighting: by rows.",
        "Local regularisation: variates.",
        "Why: 2 answers were in.",
    ]
    assert "Its answer started from the newest model." in weight_sentences(held, "site-01")
    assert weight_sentences(held, "site-03") == ["round 7, site-03: no weight, because it had sent no answer by then."]


def test_weights_that_are_no_shares_of_one_model():
    rows = {"a": 10.0, "b": 30.0, "c": 40.0}
    local = record({"a": 1.0, "b": 1.0, "c": 1.0}, {"data_size": rows}, why="every site keeps its own")
    assert weight_sentences(local, "a") == [
        "round 7, a: weight 100.0%, as every site that answered.",
        "Why: every site keeps its own.",
    ]
    signals = {"data_size": rows, "cluster": {"a": 1.0, "b": 1.0, "c": 2.0}}
    clustered = record({"a": 0.25, "b": 0.75, "c": 1.0}, signals)
    assert weight_sentences(clustered, "a")[:2] == [
        "round 7, a: weight 25.0% in cluster 1, number 2 of 2.",
        "That is its share of the training rows: 10 of 40.",
    ]
    assert weight_sentences(clustered, "c")[0] == "round 7, c: weight 100.0% in cluster 2, the only answer there."
    mixed = record({"a": 0.6}, {"staleness": {"a": 0.0}, "data_size": {"a": 10.0}})
    assert weight_sentences(mixed, "a")[0] == "round 7, a: weight 60.0%, the only answer."


def test_joining_cohorts_changes_weights():
    before, after = {"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.5}
    held = record(before | after, {}, stages=[stage("weigh", "w", before), stage("cohorts", "c", after)], why="w; c")
    assert weight_sentences(held, "a")[1:] == [
        "Its weight was 25.0% after weighting and 50.0% after joining cohorts.",
        "Weighting: w.",
        "Cohorts: c.",
    ]


@given(
    st.dictionaries(st.sampled_from(["data", "agreement", "worst_site", "calibration"]), st.floats(0, 1), min_size=2)
)
def test_the_parts_said_add_up_to_all(held):
    shares = {name: {"a": value} for name, value in held.items()}
    weight = sum(held.values())
    lines = weight_sentences(record({"a": weight, "b": 1.0}, {}, shares=shares), "a")
    said = [line for line in lines if "comes from" in line]
    some = [name for name, value in held.items() if value]
    assert len(said) == (1 if some else 0)
    if len(some) == 1:
        assert said[0].startswith("All of its weight comes from")
    if len(some) > 1:
        numbers = [int(n) for n in re.findall(r"(\d+)%", said[0])]
        assert len(numbers) == len(some) and sum(numbers) == 100


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=9))
def test_parts_are_off_by_less_than_one(values):
    named = {str(k): v for k, v in enumerate(values)}
    found = percent_parts(named)
    assert sum(found.values()) == 100
    exact = np.array(values) / sum(values) * 100
    assert np.abs(np.array(list(found.values())) - exact).max() < 1


def test_numbers_and_names_as_sentences_have_them():
    said = {0: "0%", 3e-6: "under 0.001%", 0.00042: "0.042%", 0.041: "4.1%", 0.30154: "30.2%", 1: "100.0%"}
    assert {share: percent(share) for share in said} == said
    assert [whole_percent(v) for v in (0, 0.001, 0.14, 1)] == ["0%", "under 1%", "14%", "100%"]
    assert join_names(["a"]) == "a" and join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names([f"s{k}" for k in range(20)]) == "s0, s1, s2, s3, s4, s5, s6, s7 and 12 others"


def test_a_number_is_a_site():
    from_nought = ["site-00", "site-01", "site-03"]
    assert site_named(3, from_nought) == site_named("03", from_nought) == "site-03", "the name that ends in it"
    assert site_named("1", from_nought) == "site-01", "not the first"
    assert site_named("2", ["cleveland", "va"]) == "va", "or else the place"
    assert site_named("3", ["ward-3", "3"]) == "3", "a whole name comes first"
    for code, given_, sites, words in (
        ("ambiguous-site", "3", ["ward-3", "site-03"], "site 3 in run may be ward-3 or site-03: give the whole name"),
        ("unknown-site", "7", from_nought, "no site '7' in run; known: site-00, site-01, site-03"),
        ("unknown-site", "0", ["cleveland", "va"], "no site '0' in run; known: cleveland, va"),
        ("unknown-site", "vb", ["cleveland", "vab"], "no site 'vb' in run; did you mean 'vab'?"),
    ):
        with refused(code, match=re.escape(words)):
            site_named(given_, sites, where="run")


TRUST = {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "tau": 0.5, "kappa": 0.0, "form": "exponential", "signed": False}
TRUST |= {"accuracy_at": "reference", "window": 3, "reasons": False}
BY_TRUST = "a site's weight follows trust x exp(-0.5 NSDS)"


def trusted(**more):
    """Two good sites, and one with a trust of 0.5 x 0.2 + 0.3 x exp(-1) + 0.2 x 0.9 that keeps exp(-0.5) of its weight."""
    signals = {
        "data_size": {"a": 10.0, "b": 10.0, "bad": 20.0},
        "accuracy": {"a": 0.9, "b": 0.8, "bad": 0.2},
        "nsds": {"a": 0.1, "b": 0.2, "bad": 1.0},
        "steadiness": {"a": 0.95, "b": None, "bad": 0.8},
        "consistency": {"a": 0.97, "b": 1.0, "bad": 0.9},
        "trust": {"a": 0.9155, "b": 0.8456, "bad": 0.3904},
        "contribution": {"a": 0.01, "b": 0.02, "bad": -0.03},
        "reward": {"a": 0.0092, "b": 0.0169, "bad": -0.0117},
    }
    weights = {"a": 0.45, "b": 0.4, "bad": 0.15}
    held = {"stages": [stage("weigh", BY_TRUST, weights)], "why": BY_TRUST, "privacy": {"secure": False}}
    return record(weights, signals, **{**held, **more})


def by_trust(rule="trust", **changed):
    return {"method": {"weigh": {"rule": rule}, "trust": {**TRUST, **changed}}}


def test_trust_in_words_has_every_part_and_what_nsds_took():
    note = "bad: its attributions diverge from the consortium's, NSDS 1.000 above method.trust.alarm = 0.9"
    assert weight_sentences(trusted(notes=[note]), "bad", plan=by_trust()) == [
        "round 7, bad: weight 15.0%, number 3 of 3.",
        "By its rows alone (20 of 40) it would have had 50.0%.",
        "Its trust is 0.390 (scale 0 to 1), number 3 of 3 (1 the most): 0.100 for accuracy, 0.110 for agreement of its "
        "explanations, 0.180 for consistency.",
        "Accuracy: its model is correct on 20.0% of the reference rows, as the server measured; "
        "times alpha = 0.5 that is 0.100.",
        "Agreement: its SHAP values diverge from the consortium's by an NSDS of 1.000 (0 = identical), number 1 of 3 "
        "(1 the farthest); exp(-NSDS) = 0.368; times beta = 0.3 that is 0.110.",
        "Consistency: 0.900, by even accuracies over up to 3 rounds, and explanations that are 80.0% as they were; times "
        "gamma = 0.2 that is 0.180.",
        "For its NSDS, 39.3% is subtracted from its weight by trust alone (exp(-0.5 x 1.000) = 0.607), before "
        "normalisation.",
        "With it at the share of its rows, the log loss on the reference rows is 0.03 higher than without it: that is "
        "its contribution, which is negative. Its reward, contribution times trust, is -0.012, number 3 of 3 (1 the highest).",
        f"Weighting: {BY_TRUST}.",
        "Every site that answered was shown all numbers, recomputed the weights and accepted them.",
        f"Note: {note}.",
        OWN_MODEL,
    ]


def test_under_masks_a_site_speaks_for_itself():
    hidden = trusted(privacy={"secure": True})
    lines = weight_sentences(hidden, "a", plan=by_trust())
    assert sum("as it reported" in line for line in lines) == 3, "accuracy, NSDS and contribution"
    own = weight_sentences(trusted(), "a", plan=by_trust(accuracy_at="site"))
    assert "correct on 90.0% of its own validation rows, as it reported" in own[3]


def test_signs_that_point_the_other_way_are_said_to_be_no_agreement():
    held = trusted()
    held["decision"]["signals"]["alignment"] = {"a": 0.5, "b": 1.0, "bad": -0.7}
    bad = weight_sentences(held, "bad", plan=by_trust(signed=True))
    assert "0.000 for agreement" in bad[2] and "by a cosine of -0.70, so they do not agree at all" in bad[4]
    half = weight_sentences(held, "a", plan=by_trust(signed=True))
    assert "by a cosine of 0.50, which leaves 0.452; times beta = 0.3 that is 0.136" in half[4]
    assert any("agree by -0.70, so nothing is left of it" in line for line in bad)
    assert any("agree by 0.50, which leaves 50.0% of it" in line for line in half)


def test_the_printed_form_and_trust_alone():
    off = weight_sentences(trusted(), "bad", plan=by_trust(form="printed", tau=1.0))
    assert "100.0% is subtracted from its weight by trust alone (1 - 1 x 1.000, at least 0 = 0.000)" in off[6]
    none = weight_sentences(trusted(), "bad", plan=by_trust(form="printed", tau=10.0))
    assert none[6] == "NSDS would leave no site any weight, so trust alone decides."


def test_a_site_without_an_accuracy_counts_as_the_others_do():
    held = trusted()
    held["decision"]["signals"]["accuracy"]["b"] = None
    lines = weight_sentences(held, "b", plan=by_trust(accuracy_at="site"))
    assert lines[3] == "Accuracy: it has no validation rows of its own, so it counts as the mean of the others'."
    assert "0.400 for accuracy" in lines[2], "what the other two parts leave of its trust"
    assert "no earlier explanations to compare with" in lines[5] and not any("None" in line for line in lines)


def test_trust_that_is_watched_takes_nothing_off():
    lines = weight_sentences(trusted(), "bad", plan=by_trust("data_size"))
    assert not any("taken off" in line or "went along" in line for line in lines)


def test_who_refused_the_weights_is_named_with_the_meaning_of_its_code():
    held = trusted(missing={"x": "refused (weights-wrong)", "y": "dropped out"}, asked=["a", "b", "bad", "x", "y"])
    lines = weight_sentences(held, "a", plan=by_trust())
    assert "x refused: the weights do not follow from the sites' numbers." in lines
    assert not any("went along" in line for line in lines)
    assert weight_sentences(held, "x", plan=by_trust())[0] == (
        "round 7, x: no weight, because it refused the round's weights: the weights do not follow from the sites' numbers."
    )
    assert weight_sentences(held, "y", plan=by_trust())[0] == "round 7, y: no weight, because it dropped out."


def test_every_code_that_a_site_refuses_with_is_said_in_words():
    from inspect import getsource

    from grandrounds.explain.trust import DOUBTS
    from grandrounds.methods.fedxchain.site import SiteTrust

    assert set(re.findall(r'(?<!code=)"([a-z]+(?:-[a-z]+)+)"', getsource(SiteTrust))) == set(DOUBTS)


def test_trust_without_the_plan_still_has_its_numbers():
    lines = weight_sentences(trusted(), "bad")
    assert lines[2] == "Its trust is 0.390 (scale 0 to 1), number 3 of 3 (1 the most)."
    assert "times" not in lines[3] and "taken off" not in " ".join(lines)
