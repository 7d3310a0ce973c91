"""FedXChain's studies: one split for all arms, verdicts on hand-made numbers, and quick ones from their plans to their report."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.test_page import Page

import grandrounds as gr
from grandrounds_studies import studies
from grandrounds_studies.fedxchain import claims, readings
from grandrounds_studies.fedxchain.measures import COST, COURSE, RUN, TOLD_APART, arrived, pearson, rises, signal
from grandrounds_studies.fedxchain.robust import AS_WRITTEN
from grandrounds_studies.fedxchain.setting import (
    FASTER,
    FEDAVG,
    FEDPROX,
    FOREST,
    FORESTS,
    LOGISTIC,
    MADE_UP,
    MLP,
    OURS,
    PLAIN,
    PRINTED,
    ROBUST,
    SECURE,
    UNIFORM,
)
from grandrounds_studies.results import NotRun, Reading, Results
from grandrounds_studies.study import HOLDS, Arm, Cell, Measure, Point, Quick, Study

OF_THE_PAPER = [f"fedxchain/{n}" for n in ("table-1", "table-2", *(f"fig-{k}" for k in range(1, 9)))]


def plan(study: str, point: str, arm: Arm, seed: int = 3) -> dict:
    return studies()[f"fedxchain/{study}"].plan(Cell(point, arm.label, seed))


# What there is


def test_every_table_and_figure_is_there():
    found = [name for name in studies() if name.startswith("fedxchain/")]
    assert found[:12] == [*OF_THE_PAPER, "fedxchain/readings", "fedxchain/robust"]


def test_the_published_figures_are_the_papers():
    one, two, four = (studies()[f"fedxchain/{n}"].published for n in ("table-1", "table-2", "fig-4"))
    assert [one[p.label, PRINTED.label]["accuracy"] for p in (LOGISTIC, MLP, FOREST, MADE_UP)] == [
        0.9650, 0.9550, 0.9433, 0.7740,
    ]  # fmt: skip
    assert [one[p.label, PRINTED.label]["nsds"] for p in (LOGISTIC, MLP, FOREST, MADE_UP)] == [
        0.5768, 0.3748, 0.1926, 1.2345,
    ]  # fmt: skip
    assert [two[LOGISTIC.label, a.label]["accuracy"] for a in (PRINTED, FEDAVG, FEDPROX)] == [0.9650, 0.9230, 0.9380]
    assert sorted(v["accuracy"] for v in four.values()) == [0.895, 0.960, 0.965]


@pytest.mark.parametrize("name", [*OF_THE_PAPER, "fedxchain/robust"])
def test_within_a_seed_every_arm_has_the_same_rows(name):
    """But where a figure is drawn as the paper did, with a split for each."""
    study = studies()[name]
    for point in study.points:
        plans = [study.plan(Cell(point.label, arm.label, 1)) for arm in study.arms_at(point.label)]
        dealt = [(p["seed"], p["data"]["name"], p["split"], p["reference"]["root"]["rows"]) for p in plans]
        assert all(d == dealt[0] for d in dealt) != point.label.startswith("a split for each")
        assert all(len({json.dumps(p[part]) for p in plans}) == 1 for part in ("train", "model", "evaluation"))


def test_the_papers_own_splits():
    point = "a split for each, as in the paper"
    assert plan("fig-4", point, FEDAVG)["split"]["partition"] == "equal"
    assert [plan("fig-4", point, arm)["split"]["alpha"] for arm in (FEDPROX, OURS, PRINTED)] == [0.5, 0.3, 0.3]


def test_arms_are_what_they_are_called():
    stated = LOGISTIC.label
    for arm, rule, held in (
        (FEDAVG, "data_size", "none"),
        (FEDPROX, "data_size", "proximal"),
        (UNIFORM, "uniform", "none"),
    ):
        method = plan("table-1", stated, arm)["method"]
        assert (method["name"], method["weigh"]["rule"], method["stability"]) == ("fedxchain", rule, held)
    ours, printed, robust = (plan("table-1", stated, a)["method"]["trust"] for a in (OURS, PRINTED, ROBUST))
    assert (ours["form"], ours["accuracy_at"], ours["signed"]) == ("exponential", "reference", False)
    assert (printed["form"], printed["accuracy_at"]) == ("printed", "site")
    assert (robust["alpha"], robust["signed"], robust["accuracy_at"]) == (0.89, True, "reference")
    assert plan("robust", "3 largest of 10 flip labels", AS_WRITTEN)["method"]["trust"]["accuracy_at"] == "site"
    assert plan("table-2", FASTER.label, PLAIN)["method"]["name"] == "fedavg"
    assert plan("table-2", FASTER.label, SECURE)["privacy"]["secure"]


def test_the_set_up_is_the_papers():
    made = plan("table-1", LOGISTIC.label, PRINTED)
    assert (made["split"]["sites"], made["split"]["alpha"], made["split"]["test"]) == (10, 0.5, 0.2)
    assert (made["method"]["rounds"], made["train"]["epochs"], made["train"]["batch"]) == (10, 5, 32)
    assert made["train"]["lr"] == 0.01 and studies()["fedxchain/table-1"].seeds == 5
    assert plan("table-1", MLP.label, OURS)["model"]["hidden"] == [64, 32]
    trees = plan("table-1", FOREST.label, OURS)
    assert (trees["model"]["trees"], trees["model"]["depth"], trees["method"]["rounds"]) == (50, 10, 1)
    assert plan("table-1", FORESTS.label, OURS)["method"]["rounds"] == 10
    attack = plan("robust", "3 largest of 10 flip labels", ROBUST)["attacks"]
    assert [(a["kind"], a["count"], a["validation"]) for a in attack] == [("label-flip", 3, True)]


# Courses


def test_a_course_has_arrived_where_it_stays():
    assert arrived([0.90, 0.96, 0.93, 0.965, 0.97], within=0.01) == 4, "round 2 was close, round 3 was not"
    assert arrived([0.97, 0.97], within=0.01) == 1
    assert arrived([0.5, 0.6, 0.9], within=0.01) == 3, "the last is always there"
    assert np.isnan(arrived([0.9], within=0.01)) and np.isnan(arrived([0.9, float("nan")], within=0.01))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0, 0.5))
@settings(max_examples=100, deadline=None)
def test_from_there_on_it_is_close_and_just_before_it_is_not(course, within):
    at = int(arrived(course, within=within))
    assert all(abs(v - course[-1]) <= within for v in course[at - 1 :])
    assert at == 1 or abs(course[at - 2] - course[-1]) > within


def test_trust_that_falls_once_is_not_monotone():
    assert rises([0.9, 0.9, 0.95]) == 1 and rises([0.9, 0.95, 0.949]) == 0 and np.isnan(rises([0.9]))


def test_trust_is_fedxchains_and_not_that_of_another_rule():
    ours = {"decision": {"signals": {"trust": {"a": 0.9, "b": None}, "nsds": {"a": 0.1}}}}
    assert (
        signal(ours, "trust") == {"a": 0.9} and signal({"decision": {"signals": {"trust": {"a": 0.2}}}}, "trust") == {}
    )


def test_pearson_by_hand():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert pearson([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    assert np.isnan(pearson([1, 1, 1], [1, 2, 3]))


# Verdicts on hand-made numbers


def found(numbers, kept=None, seeds=2) -> Results:
    """(point, arm) -> measure -> figures by seed."""
    known = {m.name: m for m in (*RUN, *COURSE, *COST, TOLD_APART)}
    measures = tuple(Measure(m.name, m.words, lambda run: 0.0, m.lower, m.digits, m.shown) for m in known.values())
    points, arms = (dict.fromkeys(key[k] for key in numbers) for k in (0, 1))
    of = {p: tuple(a for q, a in numbers if q == p) for p in points}
    made = Study(
        name="test/one", title="One", source="a paper", base={}, points=tuple(Point(p, {}, arms=of[p]) for p in points),
        arms=tuple(Arm(a, {}) for a in arms), measures=measures, claims=(), quick=Quick(),
    )  # fmt: skip
    readings = {
        Cell(point, arm, i): Reading({m: v[i] for m, v in figures.items()}, (kept or {}).get((point, arm, i), {}))
        for (point, arm), figures in numbers.items()
        for i in range(seeds)
    }
    return Results(made, readings, seeds)


def test_a_margin_must_be_reached_and_be_clear():
    numbers = {("lr", "fx"): {"accuracy": [0.96, 0.97]}, ("lr", "avg"): {"accuracy": [0.91, 0.92]}}
    assert str(claims.ahead("lr", "avg", by=0.042)(found(numbers), "fx")) == (
        "reproduced: accuracy 0.915 -> 0.965 against avg, +0.050, 95% CI +0.050 to +0.050, at lr"
    )
    assert claims.ahead("lr", "avg", by=0.06)(found(numbers), "fx").word == "refuted"
    wide = {**numbers, ("lr", "avg"): {"accuracy": [0.96, 0.87]}}
    assert claims.ahead("lr", "avg", by=0.042)(found(wide), "fx").word == "inconclusive"
    with pytest.raises(NotRun, match="one seed has no interval"):
        claims.ahead("lr", "avg", by=0.042)(replace(found(numbers), seeds=1), "fx")


def test_the_papers_logistic_row_has_the_spread_it_prints_and_not_the_interval():
    """Five accuracies with mean 96.50 and deviation 1.70: CV 1.76 as in Table I, an interval of 4.22 points."""
    raw = np.array([-1.5, -0.5, 0.0, 0.5, 1.5])
    values = (0.965 + 0.017 * raw / raw.std(ddof=1)).tolist()
    held = found({("LR", "fx"): {"accuracy": values, "macro_f1": values}}, seeds=5)
    spread = claims.little_spread(["LR"], percent=2)(held, "fx")
    assert spread.word == "reproduced" and "96.50% ± 1.70% (std), CV 1.76%" in spread.why
    narrow = claims.narrow(["LR"], width=0.035)(held, "fx")
    assert narrow.word == "refuted" and narrow.why.startswith("LR 4.22% ")
    assert claims.f1_is_accuracy(["LR"])(held, "fx").word == "reproduced"


def test_a_mean_above_a_bar_whose_interval_is_not_is_not_clear():
    held = found({("flip", "fx"): {"accuracy": [0.94, 0.97]}})
    assert str(claims.over("accuracy", "flip", 0.95)(held, "fx")) == (
        "inconclusive: accuracy 0.9550 (95% CI 0.764 to 1.146), 0.940 to 0.970 by seed"
    )
    assert claims.under("accuracy", "flip", 0.95)(held, "fx").word == "inconclusive"
    sure = found({("flip", "fx"): {"accuracy": [0.96, 0.96]}})
    assert claims.over("accuracy", "flip", 0.95)(sure, "fx").why.endswith("by seed")


def test_macro_f1_a_little_off_is_not_accuracy():
    held = found({("LR", "fx"): {"accuracy": [0.96, 0.96], "macro_f1": [0.957, 0.957]}})
    assert str(claims.f1_is_accuracy(["LR", "RF"])(held, "fx")) == (
        "refuted: macro F1 less accuracy in points: LR -0.30 (not run at RF)"
    )


def test_every_seed_must_be_there_in_time():
    held = found({("LR", "fx"): {"converged": [5.0, 8.0]}, ("RF", "fx"): {"converged": [float("nan"), 1.0]}})
    assert claims.by_then("converged", ["LR"], most=8)(held, "fx").word == "reproduced"
    late = claims.by_then("converged", ["LR"], most=7)(held, "fx")
    assert str(late) == "refuted: round of convergence by seed, LR: 5, 8"
    with pytest.raises(NotRun, match="undefined in a run"):
        claims.by_then("converged", ["RF"], most=7)(held, "fx")


@pytest.mark.parametrize(("times", "word"), [(10, "reproduced"), (9, "reproduced"), (8, "refuted")])
def test_nine_of_ten_seeds(times, word):
    held = found({("flip", "fx"): {"told_apart": [1.0] * times + [0.0] * (10 - times)}}, seeds=10)
    verdict = claims.in_seeds("told_apart", ["flip"], share=0.9)(held, "fx")
    assert verdict.word == word and f"in {times} of 10 seeds" in verdict.why


def test_the_order_of_models():
    held = found({(p, "fx"): {"nsds": [v, v]} for p, v in (("RF", 0.4), ("MLP", 0.1), ("LR", 0.03))})
    assert str(claims.ordered("nsds", ["RF", "MLP", "LR"])(held, "fx")) == (
        "refuted: NSDS: RF 0.4000, MLP 0.1000, LR 0.0300"
    )
    assert claims.ordered("nsds", ["LR", "MLP", "RF"])(held, "fx").word == "reproduced"


def test_rewards_are_pooled_over_seeds_and_the_contribution_is_told():
    trust = {"a": 0.5, "b": 0.8}
    kept = {
        ("p", "fx", i): {"trust": trust, "reward": {"a": 0.1 + i, "b": 0.4 + i}, "contribution": {"a": 2.0, "b": 1.0}}
        for i in range(2)
    }
    held = found({("p", "fx"): {"accuracy": [0.9, 0.9]}}, kept)
    verdict = claims.correlated("p", least=0.9)(held, "fx")
    r = np.corrcoef([0.5, 0.8, 0.5, 0.8], [0.1, 0.4, 1.1, 1.4])[0, 1]
    assert verdict.word == "refuted" and f"r = {r:.3f} over 4 sites of 2 seeds" in verdict.why
    assert verdict.why.endswith("r = -1.000")
    with pytest.raises(NotRun, match="no site of fx"):
        claims.correlated("p", least=0.9)(found({("p", "fx"): {"accuracy": [0.9, 0.9]}}), "fx")


def test_the_cost_is_told_by_payload_bytes_and_seconds():
    numbers = {
        ("p", "plain"): {"payload": [10.0, 10.0], "megabytes": [1.0, 1.0], "seconds": [0.5, 0.5]},
        ("p", "fx"): {"payload": [25.0, 25.0], "megabytes": [1.2, 1.2], "seconds": [1.0, 1.0]},
    }
    verdict = claims.light("p", "plain", share=1.0)(found(numbers), "fx")
    assert verdict.word == "refuted" and "10.0 -> 25.0 (+150%)" in verdict.why and "(+20%)" in verdict.why
    assert claims.light("p", "plain", share=1.5)(found(numbers), "fx").word == "reproduced"


# Quick ones, from their plans to their report


@pytest.mark.slow
def test_a_quick_attack_is_seen_by_reference_rows_and_not_by_a_sites_own(tmp_path):
    command = [sys.executable, "-c", "from grandrounds.cli import main; main()", "reproduce", "fedxchain/robust"]
    done = subprocess.run(
        [*command, "--quick", "--seeds", "2", "--out", str(tmp_path), "--jobs", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "QUICK VERSION" in done.stdout
    values = json.loads((tmp_path / "results.json").read_text())
    assert not values["failed"]
    by = {(f["arm"], f["measure"]): f for f in values["figures"]}
    assert by[ROBUST.label, "flipped_trust"]["mean"] < 0.3 < 0.8 < by[ROBUST.label, "honest_trust"]["mean"]
    blind = [by[AS_WRITTEN.label, m]["mean"] for m in ("flipped_trust", "honest_trust")]
    assert abs(blind[0] - blind[1]) < 0.1, "by its own flipped rows a site looks right"
    assert by[UNIFORM.label, "bad_weight"]["mean"] == pytest.approx(0.3)
    assert by[ROBUST.label, "bad_weight"]["mean"] < 0.1 and by[FEDAVG.label, "bad_weight"]["mean"] > 0.4
    rows = [by[arm, "tested"]["values"] for arm in dict.fromkeys(a for a, _ in by)]
    assert all(r == rows[0] for r in rows), "a seed has one split for all"
    page = Page((tmp_path / "report.html").read_text())
    assert "Accuracy against weight" in page.headings and page.addresses == []


@pytest.mark.slow
def test_quick_rewards_are_drawn_and_correlated(tmp_path):
    results = gr.reproduce("fedxchain/fig-7", quick=True, seeds=1, out=tmp_path)
    assert all("over 10 sites" in j.verdict.why for j in results.claims if j.arm in (OURS.label, ROBUST.label))
    flipped = results.readings[Cell("3 largest of 10 flip labels", OURS.label, 0)].kept
    assert len(flipped["bad"]) == 3 and max(flipped["contribution"][s] for s in flipped["bad"]) < 0
    page = Page((tmp_path / "report.html").read_text())
    assert sum(h.startswith("Fig. 7") for h in page.headings) == 4


# Readings of SHAP


def test_readings_of_nsds_by_hand():
    """Two sites whose vectors point opposite ways: shares are equal, and pooled vectors cancel."""
    one, other = np.array([[0.2, -0.6], [0.4, -0.6]]), np.array([[-0.3, 0.6]])
    sizes, means = (np.stack([f(v) for v in (one, other)]) for f in (readings.mean_size, readings.signed_mean))
    assert sizes == pytest.approx(np.array([[0.3, 0.6], [0.3, 0.6]]))
    assert means == pytest.approx(np.array([[0.3, -0.6], [-0.3, 0.6]]))
    even = np.ones(2)
    assert readings.nsds_of_shares(means, even) == pytest.approx(0) and readings.nsds_of_vectors(sizes, even) == pytest.approx(0)
    third = np.array([[0.3, -0.6], [0.1, 0.6]])  # pooled: 0.2 and 0, so a share of 1e-10 / 0.2 on the second
    p = np.array([[1 / 3, 2 / 3], [1 / 7, 6 / 7]])
    q = np.array([0.2, 1e-10]) / 0.2
    expected = (p * np.log(p / q)).sum(axis=1).mean()
    assert readings.nsds_of_vectors(third, even) == pytest.approx(expected, rel=1e-6)
    assert (readings.positive_mean(one) == [pytest.approx(0.3), 0]).all()


def test_the_order_and_the_values_of_the_paper_are_looked_for_among_all_readings():
    assert readings.in_order(readings.PRINTED_NSDS) and readings.as_printed(readings.PRINTED_NSDS)
    assert not readings.in_order((0.02, 0.05, 0.4)) and not readings.as_printed((0.8, 0.37, 0.19))
    study = readings.READINGS_STUDY
    right, wrong = readings.PRINTED_NSDS, (0.02, 0.05, 0.4)
    figures = {
        (p.label, m.name): (right if m is readings.MEASURES["common_vectors"] and scale == "standard" else wrong)[k]
        for scale, points in readings.POINTS.items()
        for k, p in enumerate(points)
        for m in readings.MEASURES.values()
    }
    held = {
        Cell(p.label, PRINTED.label, i): Reading({m.name: figures[p.label, m.name] for m in readings.MEASURES.values()})
        for p in study.points
        for i in range(2)
    }
    for claim in study.claims:
        told = claim.test(Results(study, held, 2), PRINTED.label)
        count = 2 * len(readings.READINGS)
        assert told.word == HOLDS and told.why.startswith(f"1 of {count} readings: |mean SHAP| of the common model")
