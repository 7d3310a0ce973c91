"""VEIL's studies: budgets that are what the arms say, verdicts across points, and a quick one from its plans to its report."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.command import rounds
from tests.report.test_page import Page

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.privacy.accounting import noise_for
from grandrounds.protocol.messages import Answers
from grandrounds.recipes import load_recipe, recipes
from grandrounds.runs.federation import assemble
from grandrounds_studies import load_study, studies
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import FOLDS, Arm, Cell, Measure, Point, Quick, Study
from grandrounds_studies.veil import claims, tuned
from grandrounds_studies.veil.client_scaffold import SPLIT
from grandrounds_studies.veil.measures import ALL, from_uniform, most_from_uniform, most_odds
from grandrounds_studies.veil.setting import (
    CLIENT,
    CLIENT_NOISE,
    CLIENT_ROUNDS,
    CLIENT_SCAFFOLD,
    EPSILONS,
    FEDAVG,
    MOON,
    NO_DP,
    NO_EPSILON,
    ONE_SHOT,
    PRINTED,
    SCORE,
    SECURE_MOMENTS,
    label,
)
from grandrounds_studies.veil.table import TABLE_1
from grandrounds_studies.veil.tuned import nested
from grandrounds_studies.veil.tuning import held_out_hospitals, search, study_of, trial_settings

TABLE = "veil/table-1"


def plan(point: str, arm: Arm) -> dict:
    return studies()[TABLE].plan(Cell(point, arm.label, 3))


# What there is


def test_the_published_figures_are_the_papers():
    held = studies()[TABLE].published
    assert held[label(5), PRINTED.label] == {
        "auroc": 0.835, "auprc": 0.382, "recall_at_90_specificity": 0.544, "ece": 0.010, "megabytes": 0.07,
    }  # fmt: skip
    assert held[label(1), CLIENT.label]["auroc"] == 0.799 and held[NO_EPSILON, MOON.label]["ece"] == 0.014


def test_every_arm_has_the_budget_of_its_point_in_its_own_way():
    printed, score, client = (plan(label(5), arm) for arm in (PRINTED, SCORE, CLIENT))
    assert (printed["privacy"]["epsilon"], printed["method"]["veil"]["claimed_epsilon"]) == (None, 5.0), (
        "it claims, and keeps none"
    )
    assert (score["privacy"]["epsilon"], score["method"]["veil"]["claimed_epsilon"]) == (5.0, None)
    assert (client["privacy"]["epsilon"], client["privacy"]["noise"]) == (None, CLIENT_NOISE[5])
    assert plan(NO_EPSILON, NO_DP)["method"]["veil"]["claimed_epsilon"] is None
    assert plan(label(1), SECURE_MOMENTS)["privacy"]["secure"] and plan(label(1), ONE_SHOT)["method"]["rounds"] == 1
    for made in (printed, score, client, plan(NO_EPSILON, FEDAVG)):
        assert (made["seed"], made["split"]["fold"], made["split"]["scheme"]) == (0, 3, "group-kfold")
        assert (made["data"]["encoding"], made["evaluation"]["calibrate"]) == ("public", "platt")


@pytest.mark.parametrize("epsilon", CLIENT_NOISE)
def test_the_noise_of_dp_fedavg_is_the_least_that_its_epsilon_allows(epsilon):
    least = noise_for(epsilon, 1e-3, steps=CLIENT_ROUNDS)
    assert least <= CLIENT_NOISE[epsilon] <= 1.01 * least


def test_recipes_of_veil():
    for name in ("veil", "veil/secure", "veil/heart", "veil/eicu-demo", "veil/printed"):
        assert "VEIL" in recipes()[name]
        made = load_recipe(name).plan()
        assert made["method"]["name"] == "veil" and made["data"]["encoding"] == "public"
        assert (made["privacy"]["epsilon"] is None) == (name == "veil/printed")


# The printed draw


def test_the_distance_from_uniform_of_two_features():
    far = from_uniform(np.array([0.0, -0.5]), 0.1)  # exponents 0 and 0.025
    assert far == pytest.approx(1 / (1 + math.exp(-0.025)) - 0.5, rel=1e-9)
    assert from_uniform(np.full(7, 0.3), 5.0) == pytest.approx(0, abs=1e-12)
    assert most_odds(0.1) == pytest.approx(1.0253, abs=1e-4), "epsilon 5, T = 10, k = 5"
    assert most_from_uniform(0.1) == pytest.approx(0.00625, rel=1e-4)


@given(arrays(float, st.integers(2, 12), elements=st.floats(-0.5, 0.5)), st.floats(0.001, 20))
@settings(max_examples=80, deadline=None)
def test_no_data_take_the_printed_draw_further_from_uniform(weights, draw):
    assert from_uniform(weights, draw) <= most_from_uniform(draw) + 1e-12


# Verdicts on hand-made numbers

ONE, FIVE = label(1), label(5)


def found(numbers, kept=None) -> Results:
    """(point, arm) -> measure -> figures by fold."""
    measures = tuple(Measure(m.name, m.words, lambda run: 0.0, m.lower, m.digits, m.shown) for m in ALL)
    points, arms = (dict.fromkeys(key[k] for key in numbers) for k in (0, 1))
    of = {p: tuple(a for q, a in numbers if q == p) for p in points}
    made = Study(
        name="test/one", title="One", source="a paper", base={}, points=tuple(Point(p, {}, arms=of[p]) for p in points),
        arms=tuple(Arm(a, {}) for a in arms), measures=measures, claims=(), quick=Quick(), repeats=FOLDS,
    )  # fmt: skip
    readings = {
        Cell(point, arm, i): Reading({m: v[i] for m, v in figures.items()}, (kept or {}).get((point, arm), {}))
        for (point, arm), figures in numbers.items()
        for i in range(2)
    }
    return Results(made, readings, 2)


def test_a_difference_across_points_is_paired_by_fold():
    numbers = {(FIVE, "veil"): {"auroc": [0.80, 0.82]}, (NO_EPSILON, "moon"): {"auroc": [0.81, 0.83]}}
    test = claims.within(FIVE, (NO_EPSILON, "moon"), by=0.02)
    assert str(test(found(numbers), "veil")) == (
        "reproduced: AUROC 0.810 against 0.820 of moon (no epsilon), -0.010, 95% CI -0.010 to -0.010"
    )
    assert claims.within(FIVE, (NO_EPSILON, "moon"), by=0.005)(found(numbers), "veil").word == "refuted"
    wide = {**numbers, (FIVE, "veil"): {"auroc": [0.79, 0.83]}}
    assert test(found(wide), "veil").word == "inconclusive", "the interval goes beyond the margin"
    assert claims.above(FIVE, (NO_EPSILON, "moon"))(found(numbers), "veil").word == "refuted"
    assert str(claims.above(NO_EPSILON, (FIVE, "veil"))(found(wide), "moon")).startswith("inconclusive"), (
        "ten points in one fold and none in the other"
    )
    with pytest.raises(Exception, match="one fold has no interval"):
        test(replace(found(numbers), seeds=1), "veil")


def test_traffic_counts_both_ways():
    numbers = {
        (FIVE, "veil"): {"payload": [5.0, 5.0], "megabytes": [1.0, 1.0]},
        (FIVE, "fedavg"): {"payload": [100.0, 100.0], "megabytes": [1.25, 1.25]},
    }
    verdict = claims.lighter(FIVE, (FIVE, "fedavg"), by=0.9)(found(numbers), "veil")
    assert verdict.word == "reproduced" and "100.0 kB -> 5.0 kB (-95.0%)" in verdict.why and "(-20.0%)" in verdict.why
    assert claims.lighter(FIVE, (FIVE, "fedavg"), by=0.96)(found(numbers), "veil").word == "refuted"
    assert claims.under(FIVE, 5.1)(found(numbers), "veil").word == "reproduced"
    assert claims.under(FIVE, 5.0)(found(numbers), "veil").word == "refuted"


def test_the_best_calibrated_is_not_held_against_itself_and_auroc_is_told():
    numbers = {
        (FIVE, "veil"): {"ece": [0.02, 0.02], "auroc": [0.8, 0.8]},
        (FIVE, "noise"): {"ece": [0.01, 0.01], "auroc": [0.5, 0.5]},
    }
    among = [(FIVE, "veil"), (FIVE, "noise"), (FIVE, "never run")]
    verdict = claims.best_calibrated(FIVE, among)(found(numbers), "veil")
    assert str(verdict) == (
        "refuted: ECE 0.0200 (AUROC 0.800), the least of the others 0.0100 (AUROC 0.500): noise; "
        "+0.0100, 95% CI +0.0100 to +0.0100"
    )
    assert claims.best_calibrated(FIVE, among)(found(numbers), "noise").word == "reproduced"


def test_a_promise_is_what_the_accountant_says_of_every_run():
    numbers = {(FIVE, arm): {"auroc": [0.8, 0.8]} for arm in ("raw", "kept", "over", "none")}
    kept = {
        (FIVE, "raw"): {"raw": ["signs"], "epsilon": None, "statement": ""},
        (FIVE, "kept"): {"raw": [], "epsilon": 4.99, "statement": "Epsilon = 5, per patient."},
        (FIVE, "over"): {"raw": [], "epsilon": 5.01, "statement": ""},
        (FIVE, "none"): {"raw": [], "epsilon": None, "statement": ""},
    }
    test, results = claims.formal(FIVE, 5.0), found(numbers, kept)
    assert str(test(results, "raw")) == "refuted: epsilon = infinity: signs"
    assert str(test(results, "kept")) == "reproduced: epsilon = 4.990 at most. Epsilon = 5, per patient."
    assert [test(results, arm).word for arm in ("over", "none")] == ["refuted"] * 2


def test_utility_that_no_budget_moves():
    numbers = {
        (ONE, PRINTED.label): {"auroc": [0.80, 0.81], "from_uniform": [0.0001, 0.0002]},
        (FIVE, PRINTED.label): {"auroc": [0.80, 0.81], "from_uniform": [0.0006, 0.0007]},
    }
    verdict = claims.follows_epsilon([ONE, FIVE], [1, 5], draws=50)(found(numbers), PRINTED.label)
    assert verdict.word == "refuted"
    assert "0.8050 / 0.8050" in verdict.why and "0.00070 (total variation)" in verdict.why and "0.00625" in verdict.why


def test_sparse_counts_the_fullest_model():
    numbers = {(FIVE, "veil"): {"nonzero": [20.0, 57.0], "inputs": [114.0, 114.0]}}
    assert str(claims.sparse(NO_EPSILON, FIVE, share=0.5)(found(numbers), "veil")) == (
        "reproduced: 57 of 114 weights are not zero, at most"
    )
    assert claims.sparse(FIVE, share=0.49)(found(numbers), "veil").word == "refuted"
    assert [claims.few(FIVE, most)(found(numbers), "veil").word for most in (57, 56)] == ["reproduced", "refuted"]


# Quick ones, from their plans to their report


@pytest.mark.slow
def test_a_quick_table_prints_folds_and_what_is_kept_of_each_promise(tmp_path):
    done = rounds("reproduce", TABLE, "--quick", "--out", tmp_path, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert "mean ± 95% interval over 2 folds" in done.stdout
    values = json.loads((tmp_path / "results.json").read_text())
    assert values["repeats"] == "fold" and not values["failed"]
    formal = {c["arm"]: c for c in values["claims"] if "formally guaranteed" in c["claim"]}
    assert formal[PRINTED.label]["verdict"] == "refuted" and "epsilon = infinity" in formal[PRINTED.label]["why"]
    assert formal[SCORE.label]["verdict"] == "reproduced" and "for each row" in formal[SCORE.label]["why"]
    assert "for each site" in formal[CLIENT.label]["why"]
    by = {(f["point"], f["arm"], f["measure"]): f for f in values["figures"]}
    assert by[FIVE, PRINTED.label, "payload_down"]["mean"] == 0, "as printed no site is ever sent the model"
    assert 0 < by[FIVE, PRINTED.label, "from_uniform"]["mean"] < most_from_uniform(5 / 30)
    page = Page((tmp_path / "report.html").read_text())
    assert "2 folds" in page.text and "paired by fold" in page.text and page.addresses == []
    assert "Fig. 1 with the epsilon that holds" in page.headings


@pytest.mark.slow
def test_a_quick_patient_adds_up(tmp_path):
    results = gr.reproduce("veil/fig-3", quick=True, seeds=2, out=tmp_path)
    adds = [j.verdict for j in results.claims if "add up" in j.claim.says]
    shown = sum("no run could fail it" in v.why for v in adds)  # an arm whose few patients have no near miss has no numbers
    assert len(adds) == 2 and shown >= 1 and all(v.word == "cannot be tested" for v in adds)
    page = Page((tmp_path / "report.html").read_text())
    assert sum("risk" in h and "baseline" in h for h in page.headings) == shown


# Client-level DP-SCAFFOLD


def scaffold_round(options, models, variates):
    """One round of three planned sites, two of which answer; returns the model, the variate, and the deviations of noise."""
    made = TABLE_1.plan(Cell(label(5), CLIENT_SCAFFOLD.label, 0, FOLDS.word))
    made["method"]["options"] = options
    method = build_method(Settings(made["method"]), Settings(made["train"]))
    state = {"variate": np.full(models.shape[1], 0.5)}
    server = Server(1, np.zeros(models.shape[1]), ("a", "b", "c"), 0, state, rows={"a": 10, "b": 900, "c": 10})
    work = method.round(server)
    next(work)
    columns = {"model": models, "variate": variates, "count": np.array([10, 900]), "steps": np.array([1, 1])}
    with pytest.raises(StopIteration) as end:
        work.send(Answers(("a", "b"), columns))
    return end.value.value.model, end.value.value.state["variate"]


def test_updates_and_variates_are_clipped_and_averaged_over_the_planned_sites():
    """(3, 4) has length 5 and is clipped to 1, (0, 0.5) is not: the sum (0.6, 1.3) over three sites, whatever their rows."""
    models, variates = np.array([[3.0, 4.0], [0.0, 0.5]]), np.array([[0.0, 8.0], [0.2, 0.0]])
    model, variate = scaffold_round({"clip": 1.0, "variate_clip": 2.0, "noise": 0.0}, models, variates)
    assert model == pytest.approx([0.2, 1.3 / 3], rel=1e-5)
    assert variate == pytest.approx([0.5 + 0.2 / 3, 0.5 + 2 / 3], rel=1e-5)


def test_either_release_has_the_noise_of_half_of_the_budget():
    """Two Gaussian mechanisms with sqrt(2) z cost what one with z costs; a sensitivity is the clip over the sites."""
    still = np.zeros((2, 40_000))
    model, variate = scaffold_round({"clip": 1.5, "variate_clip": 6.0, "noise": 2.0}, still, still)
    assert model.std() == pytest.approx(np.sqrt(2) * 2.0 * 1.5 / 3, rel=0.02)
    assert variate.std() == pytest.approx(np.sqrt(2) * 2.0 * 6.0 / 3, rel=0.02)
    assert abs(np.corrcoef(model, variate)[0, 1]) < 0.02, "noise is drawn anew for either"
    assert pytest.approx(np.sqrt(2)) == SPLIT and pytest.approx(1) == 2 / SPLIT**2
    noise = [TABLE_1.plan(Cell(label(e), CLIENT_SCAFFOLD.label, 0, FOLDS.word))["method"]["options"]["noise"] for e in EPSILONS]
    assert noise == [CLIENT_NOISE[e] for e in EPSILONS]


# Tuning


def test_a_trial_knows_nothing_of_the_hospitals_that_its_fold_tests_on():
    study = study_of(quick=True)
    tested = [held_out_hospitals(study, fold) for fold in range(3)]
    assert sorted(name for names in tested for name in names) == [f"site-{k:02}" for k in range(1, 7)]
    cell = Cell(label(5), CLIENT.label, 0, FOLDS.word)
    for names in tested:
        trial = study.plan_with(cell, trial_settings(nested({"train.lr": 0.7}), names))
        assert trial["train"]["lr"] == 0.7
        stack = assemble(Settings(trial)).stack
        assert not set(stack.names) & set(names) and len(stack.names) == 4
        assert sum(bool(len(rows.test)) for rows in stack.rows) == 1 and not any(
            len(rows.test) and len(rows.train) for rows in stack.rows
        )


def test_a_search_goes_on_with_the_trials_that_it_has(tmp_path):
    """The value in the file is taken for the first trial; the second is run, and the best of both is given."""
    pytest.importorskip("optuna")
    study, cell, file = study_of(quick=True), Cell(label(5), SCORE.label, 0, FOLDS.word), tmp_path / "one.json"
    without = held_out_hospitals(study, 0)
    first = search(study, cell, without, file, trials=1)
    stored = json.loads(file.read_text())
    assert first["auroc"] == first["own"] == stored[0]["auroc"] and len(stored) == 1
    file.write_text(json.dumps([{**stored[0], "auroc": 0.999}]))
    second = search(study, cell, without, file, trials=2)
    assert (second["own"], second["auroc"], second["trials"]) == (0.999, 0.999, 2)
    assert second["settings"] == stored[0]["settings"] and len(json.loads(file.read_text())) == 2


def test_the_tuned_table_takes_each_folds_settings(tmp_path, monkeypatch):
    study = load_study("veil/table-1-tuned")
    cells = [Cell(label(5), CLIENT.label, fold, FOLDS.word) for fold in (0, 1)]
    entry = {label(5): {CLIENT.label: {"1": {"settings": {"train.lr": 0.123, "privacy.clip": 2.5}, "trials": 50}}}}
    (tmp_path / "tuned.json").write_text(json.dumps({"settings": entry}))
    monkeypatch.setattr(tuned, "FILE", tmp_path / "tuned.json")
    own, other = (study.plan(cell) for cell in cells)
    assert own["train"]["lr"] == plan(label(5), CLIENT)["train"]["lr"] and other["train"]["lr"] == 0.123
    assert other["privacy"]["clip"] == 2.5 and other["privacy"]["noise"] == CLIENT_NOISE[5]
    assert other["split"]["fold"] == 1


@pytest.mark.data("eicu_demo")
def test_the_demo_is_tested_on_unseen_regions_and_on_unseen_hospitals():
    study = studies()["veil/eicu-demo"]
    for point, sites in (("5 regions, epsilon 5", 5), ("117 hospitals, epsilon 5", 117)):
        seen: list[str] = []
        for fold in range(5):
            stack = assemble(Settings(study.plan(Cell(point, SCORE.label, fold, FOLDS.word)))).stack
            seen += [name for name, rows in zip(stack.names, stack.rows, strict=True) if len(rows.test)]
        assert len(seen) == len(set(seen)) == sites, "every site is tested on once"
