"""Studies: plans that parse, verdicts that follow from the numbers, and a quick one from its plans to its report."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.command import rounds
from tests.report.test_page import Page

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.metrics import PairedTest, Summary
from grandrounds.recipes import load_recipe, recipes
from grandrounds_studies import charts, claims, load_study, studies
from grandrounds_studies.margins import home, margin_of, with_margin
from grandrounds_studies.measures import ACCURACY, DRIFT, MAJORITY, last_pairs
from grandrounds_studies.page import study_page
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.running import conduct_study
from grandrounds_studies.sse_agg.communication import FULL, NOISY_10, saves
from grandrounds_studies.sse_agg.setting import FEDAVG, OURS, PRINTED
from grandrounds_studies.sse_agg.skin import CLEAN_SAM, PATCHED_SAM
from grandrounds_studies.study import (
    FAILS,
    FOLDS,
    HOLDS,
    INCONCLUSIVE,
    MOST_SEEDS,
    Arm,
    Cell,
    Claim,
    Measure,
    Point,
    Quick,
    Study,
    Verdict,
)
from grandrounds_studies.tally import Tally, Told, answers
from grandrounds_studies.wording import VERDICTS, seeds_words, shown_claims

QUICK = "sse-agg/fig-3"


# What there is


@pytest.mark.parametrize("name", list(studies()))
@pytest.mark.parametrize("quick", [True, False])
def test_every_plan_of_every_study_resolves(name, quick):
    chosen = load_study(name, quick=quick)
    cells = list(chosen.cells(2))
    assert len({cell.name for cell in cells}) == len(cells)
    plans = [chosen.plan(cell) for cell in cells if cell.seed == 0]
    for plan in plans:
        if plan["explain"]["sketch"] not in ("none", "auto"):
            assert plan["explain"]["reference"] in plan["reference"], "drift is measured on rows that anchor nobody"
        assert plan["data"]["name"] and plan["seed"] == chosen.repeats.settings(0)["seed"]
    if quick:
        whole = load_study(name)
        every = [whole.plan(cell)["method"]["rounds"] for cell in whole.cells(1)]
        assert sum(p["method"]["rounds"] for p in plans) < sum(every) and max(every) >= plans[0]["method"]["rounds"]


@pytest.mark.parametrize("name", list(studies()))
def test_a_study_speaks_of_what_it_runs(name):
    held = studies()[name]
    arms, points, measures = (
        {x.label for x in held.arms},
        {p.label for p in held.points},
        [m.name for m in held.measures],
    )
    for claim in held.claims:
        assert set(claim.of) <= arms
    for (point, arm), figures in held.published.items():
        assert point in points and arm in arms and set(figures) <= set(measures)
    if "accuracy" in measures:
        beside = measures[measures.index("accuracy") + 1] == "majority"
        assert beside or any("majority class alone" in told for told in held.settled), (
            "no accuracy without the majority class"
        )
    assert set(held.quick.points) <= points and set(held.quick.arms) <= arms
    assert held.settled and (held.published or held.unpublished)


def test_a_repeat_is_another_seed_or_another_fold():
    seeds = Study(
        name="test/one", title="One", source="a paper", base={"data": {"name": "digits"}, "split": {"sites": 4}},
        points=(Point("here", {}, of={"b": {"train": {"lr": 0.3}}}),), arms=(Arm("a", {}), Arm("b", {"train": {"lr": 0.2}})),
        measures=FIGURES, claims=(), quick=Quick(),
    )  # fmt: skip
    folds = replace(seeds, repeats=FOLDS)
    for made, word in ((seeds, "seed"), (folds, "fold")):
        cells = list(made.cells(2))
        assert [c.name for c in cells] == [f"here-{arm}-{word}{i}" for arm in "ab" for i in (0, 1)]
        plans = [made.plan(c) for c in cells]
        assert [p["train"]["lr"] for p in plans] == [0.1, 0.1, 0.3, 0.3], (
            "what a point has for one arm lies over the arm"
        )
        assert all(p["split"]["sites"] == 4 for p in plans)
        assert [(p["seed"], p["split"]["fold"]) for p in plans[:2]] == [(0, 0), (1, 0) if word == "seed" else (0, 1)]
    assert Cell("here", "a", 1, "fold") == Cell("here", "a", 1), "what a repeat is called does not tell runs apart"


def test_the_published_figures_are_the_papers():
    one, two = studies()["sse-agg/table-1"], studies()["sse-agg/table-2"]
    row = one.published[one.points[0].label, PRINTED.label]
    assert row == {"accuracy": 0.523, "macro_f1": 0.511, "training_drift": 0.54, "training_jaccard": 0.61}
    row = two.published[two.points[0].label, FEDAVG.label]
    assert (row["accuracy"], row["auroc"], row["training_drift"]) == (0.8884, 0.4808, 1.7802)


def test_the_printed_form_and_ours_are_told_apart():
    held = studies()["sse-agg/table-1"]
    printed, ours = (held.plan(Cell(held.points[0].label, arm.label, 0))["method"] for arm in (PRINTED, OURS))
    assert (printed["weigh"]["form"], printed["weigh"]["explanation_weight"], printed["stability"]) == (
        "inverse",
        0.5,
        "none",
    )
    default = gr.Experiment.parse({"data": {"name": "digits"}, "method": {"name": "sse-agg"}}).plan()["method"]
    assert ours["weigh"] == default["weigh"] and ours["stability"] != "none"


def test_reliance_on_the_patch_is_read_on_patched_images():
    """Eq. 25 judges SSE-AGG where the patch is in the image; on clean images it is our own question."""
    for name, side in (("skin-lesions", "ham10000-six"), ("skin-lesions-128", "ham10000-large")):
        study = studies()[f"sse-agg/{name}"]
        assert {study.plan(cell)["data"]["name"] for cell in study.cells(1)} == {side}
        by_place = {claim.where: claim for claim in study.claims if "SAM" in claim.says}
        values = {"FedAvg": (0.3, 0.1), "SSE-AGG as printed": (0.2, 0.1)}
        readings = {
            Cell(study.points[0].label, arm, i): Reading({PATCHED_SAM.name: patched + i / 100, CLEAN_SAM.name: clean})
            for arm, (patched, clean) in values.items()
            for i in range(2)
        }
        results = Results(study, readings, 2)
        verdicts = {where: claim.test(results, "SSE-AGG as printed").word for where, claim in by_place.items()}
        assert verdicts["eq. 25"] == HOLDS and verdicts["our question"] == FAILS


def test_recipes_of_a_paper_are_in_its_folder():
    for name in ("sse-agg/digits", "sse-agg/diabetes", "sse-agg/skin-lesions"):
        assert recipes()[name].startswith("SSE-AGG")
        assert load_recipe(name).plan()["method"]["name"] == "sse-agg"
    with pytest.raises(BadInput, match="did you mean 'sse-agg/digits'"):
        load_recipe("sse-agg/digit")
    assert list(recipes()) == sorted(recipes())


# Verdicts on hand-made numbers

A, B = "alpha 0.05", "alpha 1"
FIGURES = (
    Measure("drift", "drift", lambda run: 0.0, lower=True),
    Measure("accuracy", "accuracy", lambda run: 0.0, lower=False),
)


def found(numbers, *, seeds=2, measures=FIGURES) -> Results:
    """Results of a study of these (point, arm) -> measure -> figures by seed; the first arm is what others are held against."""
    arms = tuple(dict.fromkeys(arm for _, arm in numbers))
    points = tuple(dict.fromkeys(point for point, _ in numbers))
    made = Study(
        name="test/one", title="One", source="a paper", base={}, points=tuple(Point(p, {}) for p in points),
        arms=tuple(Arm(a, {}) for a in arms), measures=measures, claims=(), quick=Quick(),
    )  # fmt: skip
    readings = {
        Cell(point, arm, seed): Reading({m: values[seed] for m, values in figures.items()})
        for (point, arm), figures in numbers.items()
        for seed in range(len(next(iter(figures.values()))))
    }
    return Results(made, readings, seeds)


def drifts(**arms) -> Results:
    return found({(A, arm): {"drift": values, "accuracy": [0.9, 0.9]} for arm, values in arms.items()})


def test_a_fall_is_the_mean_of_each_seeds_own_change():
    results = drifts(base=[1.0, 2.0], new=[0.7, 1.4])
    verdict = claims.falls("drift", A, by=0.2)(results, "new")
    assert str(verdict) == "reproduced: drift -30.0% (95% CI -30.0% to -30.0%) at alpha 0.05, 1.500 -> 1.050"
    verdict = claims.falls("drift", A, by=0.4)(results, "new")
    assert verdict.word == "refuted" and verdict.why.startswith("drift -30.0%")


def test_a_fall_that_seeds_do_not_agree_on_is_not_clear():
    results = drifts(base=[1.0, 1.0], new=[0.8, 0.6])
    verdict = claims.falls("drift", A, by=0.2)(results, "new")
    half = 12.7062047 * 0.1  # Student's t with one degree of freedom
    assert str(verdict) == (
        f"inconclusive: drift -30.0% (95% CI {-0.3 - half:+.1%} to {-0.3 + half:+.1%}) "
        "at alpha 0.05, 1.000 -> 0.700"
    )


def test_what_was_not_run_is_not_judged():
    results = drifts(base=[1.0, 2.0], new=[0.7, math.nan])
    one = Claim("it falls", "sec. 1", ("new", "other"), claims.falls("drift", A))
    two = Claim("it falls elsewhere", "sec. 2", ("new",), claims.falls("drift", B))
    judged = replace(results, study=replace(results.study, claims=(one, two))).claims
    assert [str(j.verdict) for j in judged] == [
        "cannot be tested: drift of new at alpha 0.05 is undefined in a run",
        "cannot be tested: other was not run at alpha 0.05",
        "cannot be tested: it was not run at alpha 1",
    ]
    alone = replace(drifts(base=[1.0], new=[0.5]), seeds=1)
    alone = replace(alone, study=replace(alone.study, claims=(one,)))
    assert str(alone.claims[0].verdict) == "cannot be tested: one seed has no interval; give --seeds 2 or more"


def test_less_elsewhere_alike_and_no_worse():
    numbers = {
        (A, "base"): {"drift": [1.0, 1.0], "accuracy": [0.90, 0.80]},
        (A, "new"): {"drift": [0.6, 0.6], "accuracy": [0.89, 0.79]},
        (B, "base"): {"drift": [1.0, 1.0], "accuracy": [0.90, 0.80]},
        (B, "new"): {"drift": [0.92, 0.92], "accuracy": [0.93, 0.83]},
    }
    results = found(numbers)
    assert claims.falls_less("drift", B, than=A)(results, "new").word == "reproduced"
    assert claims.falls_less("drift", A, than=B)(results, "new").word == "refuted"
    assert claims.alike("drift", B, within=0.1)(results, "new").word == "reproduced"
    assert claims.alike("drift", A, within=0.1)(results, "new").word == "refuted"
    close = claims.no_worse("accuracy", [A, B], by=0.02)(results, "new")
    assert close.word == "reproduced" and "-0.010" in close.why and "worst at alpha 0.05" in close.why
    assert claims.no_worse("accuracy", [A, B], by=0.005)(results, "new").word == "refuted"
    assert claims.falls("drift", A, B, by=0.2)(results, "new").why.endswith(
        "at alpha 1, 1.000 -> 0.920; in 1 of 2 settings reproduced"
    ), "the worst speaks"
    partly = claims.no_worse("accuracy", [A, "elsewhere"], by=0.02)(results, "new")
    assert partly.word == "reproduced" and partly.why.endswith("(not run at elsewhere)")
    assert claims.better("accuracy", B)(results, "new").word == "reproduced"
    assert claims.worse("accuracy", A)(results, "new").word == "reproduced"
    assert claims.worse("accuracy", B)(results, "new").word == "refuted"
    both = claims.all_of(claims.better("drift", A), claims.better("accuracy", A))(results, "new")
    assert both.word == "refuted" and both.why.startswith("accuracy 0.850 -> 0.840")


def test_the_best_beats_everyone_clearly():
    results = drifts(base=[1.0, 1.1], near=[0.6, 0.9], new=[0.5, 0.6])
    verdict = claims.best(["drift"], [A], ["base", "near"])(results, "new")
    assert verdict.word == "inconclusive" and "against near" in verdict.why
    clear = claims.best(["drift"], [A], ["base"])(results, "new")
    assert clear.word == "reproduced" and "each of 1 comparisons" in clear.why


def test_a_sweep_falls_step_by_step_while_the_other_stands():
    numbers = {
        (A, arm): {"drift": [d, d + 0.1], "accuracy": [a, a]}
        for arm, d, a in (("0", 0.5, 0.90), ("0.5", 0.4, 0.89), ("0.8", 0.3, 0.89))
    }
    test = claims.sweep("drift", "accuracy", A, ["0", "0.5", "0.8"], within=0.02)
    verdict = test(found(numbers), "0.8")
    assert verdict.word == "reproduced" and "drift 0.550 -> 0.450 -> 0.350" in verdict.why
    rises = numbers | {(A, "0.5"): {"drift": [0.6, 0.7], "accuracy": [0.89, 0.89]}}
    assert test(found(rises), "0.8").word == "refuted"
    costs = numbers | {(A, "0.8"): {"drift": [0.3, 0.4], "accuracy": [0.80, 0.80]}}
    assert test(found(costs), "0.8").word == "refuted"


def test_what_a_cut_sketch_saves_is_told_of_all_that_is_sent():
    measures = tuple(Measure(n, n, lambda run: 0.0) for n in ("sketch_entries", "parameters", "features"))
    numbers = {
        (A, FULL): {"sketch_entries": [30.0, 30.0], "parameters": [2000.0] * 2, "features": [40.0] * 2},
        (A, NOISY_10): {"sketch_entries": [10.0, 10.0], "parameters": [2000.0] * 2, "features": [40.0] * 2},
    }
    verdict = saves(2, A)(found(numbers, measures=measures), NOISY_10)
    assert str(verdict) == (
        "reproduced: 30.0 -> 10.0 entries at alpha 0.05, 3.0x (of all that a site sends, model and sketch, 1.01x)"
    ), "2040 numbers, then 2020"
    assert saves(4, A)(found(numbers, measures=measures), NOISY_10).word == "refuted"


def test_results_hold_published_beside_ours():
    results = found({(A, "base"): {"drift": [1.0, 3.0], "accuracy": [0.5, math.nan]}})
    results = replace(results, study=replace(results.study, published={(A, "base"): {"drift": 0.78}}))
    values = json.loads(json.dumps(results.to_dict()))
    drift, accuracy = values["figures"]
    assert (drift["published"], drift["mean"], drift["values"]) == (0.78, 2.0, {"0": 1.0, "1": 3.0})
    assert (accuracy["published"], accuracy["mean"]) == (None, None), (
        "a seed without a figure is not dropped in silence"
    )
    page = Page(study_page(values, ()))
    assert "published 0.78" in page.text and "undefined" in page.text


def test_heat_maps_beside_each_other_have_one_scale():
    results = drifts(base=[1.0, 1.0], new=[0.5, 0.5])
    kept = {
        arm: {"round": 4, "pairs": {"sites": ["a", "b"], "drift": [[0, d], [d, 0]]}}
        for arm, d in (("base", 1.2), ("new", 0.3))
    }
    held = {cell: replace(reading, kept=kept[cell.arm]) for cell, reading in results.readings.items()}
    one, two = charts.heat_maps(replace(results, readings=held), A, ["base", "new", "never run"])
    assert (one["data"][0]["zmax"], two["data"][0]["zmax"]) == (1.2, 1.2)
    assert two["data"][0]["z"] == [[0, 0.3], [0.3, 0]] and two.title == "Training drift, by pair of sites: new"


# A quick study, from its plans to its report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A quick study whose plans were run as on another machine, and one run of which was lost on the way back."""
    home = tmp_path_factory.mktemp("study")
    plans, out = home / "plans.json", home / "out"
    written = rounds("reproduce", QUICK, "--quick", "--plans", plans)
    assert written.returncode == 0 and "6 runs" in written.stderr, written.stderr
    there = home / "without-pydantic"
    there.mkdir()
    (there / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic'] = None\n")
    command = [sys.executable, "-m", "grandrounds_studies", "--from", str(plans), "--out", str(out), "--jobs", "2"]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(there)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    lost = sorted(p.name for p in (out / "runs").iterdir())[0]
    held = json.loads((out / "readings.json").read_text())
    (home / "whole.json").write_text(json.dumps(held))
    del held["runs"][lost]
    (out / "readings.json").write_text(json.dumps(held))
    shutil.rmtree(out / "runs")
    return home


def test_a_quick_version_lists_what_it_tested_and_counts_the_rest():
    def claim(says: str, arm: str, verdict: str, why: str = "") -> dict:
        return {"seeds_to_decide": None, "claim": says, "where": "sec. 1", "arm": arm, "verdict": verdict, "why": why}

    tested = [claim("a", "x", "reproduced"), claim("a", "y", "cannot be tested", "y was not run")]
    others = [claim("b", "x", "cannot be tested", "it was not run at p"), claim("c", "x", "cannot be tested", "nor at q")]
    claims = [others[0], *tested, others[1]]
    shown, left = shown_claims({"claims": claims, "quick": True})
    assert shown == tested and left.startswith("2 claims cannot be tested here: it was not run at p, and so on")
    assert shown_claims({"claims": claims, "quick": False}) == (claims, "")
    assert shown_claims({"claims": tested, "quick": True}) == (tested, "")
    assert shown_claims({"claims": others[:1], "quick": True})[1].startswith(
        "1 claim cannot be tested here: it was not run at p ("
    )


def test_a_quick_study_prints_published_ours_and_verdicts(folder):
    out = folder / "out"
    done = rounds("reproduce", QUICK, "--quick", "--out", out, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "1/1" in done.stderr, "what had come back is not run again"
    again = json.loads((out / "readings.json").read_text())
    assert again["runs"] == json.loads((folder / "whole.json").read_text())["runs"], "the lost run gives the same again"
    for words in ("QUICK VERSION", "published: a figure without numbers", "training drift", "majority class", "sec. VI.D",
                  "larger lambda shifts the operating point", "SSE-AGG as built here"):  # fmt: skip
        assert words in done.stdout
    assert "1 claim cannot be tested here: it was not run at diabetes-130-text, alpha 0.2" in done.stdout
    values = json.loads((out / "results.json").read_text())
    assert values["schema"] == 2 and values["quick"] is True and values["study"] == QUICK
    assert {c["verdict"] for c in values["claims"]} <= set(VERDICTS)
    first = next(f for f in values["figures"] if f["arm"] == "FedAvg" and f["measure"] == "training_drift")
    assert first["n"] == 2 and 0 < first["mean"] < 2
    assert first["high"] is None, "two runs have no interval"
    printed = f"{first['mean']:.3f}"
    assert printed in done.stdout
    page = Page((out / "report.html").read_text())
    assert page.addresses == [] and "QUICK VERSION" in page.text and printed in page.text
    assert "Accuracy against training drift" in page.titles()
    assert {"Claims and verdicts", "Published and ours"} <= set(page.headings)
    listed = rounds("reproduce", QUICK, "--quick", "--out", out, "--json")
    assert json.loads(listed.stdout) == values and listed.stderr == ""


def test_the_same_from_python(folder):
    heard: list[str] = []
    gr.reproduce(QUICK, quick=True, out=folder / "out")
    results = gr.reproduce(QUICK, quick=True, out=folder / "out", progress=lambda text, done, total: heard.append(text))
    assert heard == [], "all of it is there"
    assert results.to_dict() == json.loads((folder / "out" / "results.json").read_text())
    assert {f.arm for f in results.figures} == {FEDAVG.label, PRINTED.label, OURS.label}
    assert len(results.claims) == 2 and results.quick


def test_a_folder_of_another_experiment_is_refused(folder):
    refused = rounds("reproduce", QUICK, "--out", folder / "out")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "of another experiment" in refused.stderr and "choose another --out" in refused.stderr
    (folder / "held").mkdir()
    (folder / "held" / "results.json").write_text(json.dumps({"study": QUICK}))
    refused = rounds("reproduce", "sse-agg/outliers", "--quick", "--out", folder / "held")
    assert refused.returncode == 2 and f"holds the results of {QUICK}, not of sse-agg/outliers" in refused.stderr
    (folder / "broken").mkdir()
    (folder / "broken" / "readings.json").write_text('{"runs": [')
    refused = rounds("reproduce", QUICK, "--quick", "--out", folder / "broken")
    assert refused.returncode == 2 and "readings.json is damaged" in refused.stderr
    refused = rounds("reproduce", "--from", folder / "broken" / "readings.json", "--out", folder / "x")
    assert refused.returncode == 2 and "holds no plans of a study" in refused.stderr


def test_studies_are_listed_and_found():
    listed = rounds("reproduce")
    assert listed.returncode == 0 and listed.stdout == rounds("list", "studies").stdout
    for name in ("table-1", "table-2", "fig-1", "fig-2", "fig-3", "fig-4", "skin-lesions", "skin-lesions-128"):
        assert f"sse-agg/{name} " in listed.stdout
    unknown = rounds("reproduce", "sse-agg/table1")
    assert unknown.returncode == 2 and "did you mean 'sse-agg/table-1'" in unknown.stderr


# What goes wrong on the way


def small(points, arms) -> Study:
    claim = Claim("it falls", "sec. 1", (arms[-1].label,), claims.falls("training_drift", points[0].label))
    return Study(
        name="test/two",
        title="Two",
        source="a paper",
        base={
            "reference": {"rows": {"rows": 40}},
            "method": {"rounds": 2},
            "explain": {"every": 1, "reference": "rows"},
        },
        points=points,
        arms=arms,
        measures=(DRIFT, ACCURACY, MAJORITY),
        claims=(claim,),
        quick=Quick(),
        unpublished="nothing",
        keeps=last_pairs,
    )


@pytest.mark.slow
def test_a_run_that_fails_is_a_result_and_missing_data_leave_a_point_out(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("GRANDROUNDS_DATA", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty))
    here, away = Point("here", {"data": {"name": "breast-cancer"}}), Point("away", {"data": {"name": "diabetes-130"}})
    good = Arm("FedAvg", {"method": {"name": "fedavg"}})
    halts = Arm("halts", {"engine": {"min_sites": 9, "faults": {"drop": 0.9}}})
    results = conduct_study(small((here, away), (good, halts)), tmp_path / "s", seeds=2, jobs=2, quick=False)
    assert list(results.left_out) == ["away"] and "not on this machine" in results.left_out["away"]
    assert len(results.failed) == 2 and all("min_sites" in why for why in results.failed.values())
    assert all(0.5 < v <= 1 for v in results.values("here", "FedAvg", "accuracy"))
    assert all(math.isnan(v) for v in results.values("here", "halts", "accuracy"))
    assert results.claims[0].verdict.word == "cannot be tested"
    kept = results.readings[Cell("here", "FedAvg", 0)].kept
    assert kept["round"] == 2 and len(kept["pairs"]["drift"]) == len(kept["pairs"]["sites"]) == 10
    page = Page(study_page(results.to_dict(), ()))
    assert "Runs that failed" in page.headings and "Left out: away" in page.text
    with pytest.raises(BadInput, match=r"test/two: diabetes130.* is not on this machine"):
        conduct_study(small((away,), (good,)), tmp_path / "t", seeds=1, jobs=1, quick=False)


@pytest.mark.slow
def test_runs_that_two_studies_have_in_common_are_run_once(tmp_path):
    """A table and its figure name the same run differently; the second reads the first one's folder, what it lacks it runs."""
    here, other = Point("here", {"data": {"name": "breast-cancer"}}), Arm("FedProx", {"method": {"name": "fedprox"}})
    table = small((here,), (Arm("FedAvg", {}),))
    figure = replace(small((here,), (Arm("plain", {}), other)), name="test/fig-1")
    first = conduct_study(table, tmp_path / "table", seeds=1, jobs=1, quick=False)
    ended = []
    second = conduct_study(
        figure, tmp_path / "fig-1", seeds=1, jobs=1, quick=False, progress=lambda text, done, total: ended.append(text)
    )
    assert ended[0] == "1 at a time" and len(ended) == 2 and ended[1].startswith("here-fedprox-seed0")
    assert [p.name for p in (tmp_path / "fig-1" / "runs").iterdir()] == ["here-fedprox-seed0"]
    assert second.values("here", "plain", DRIFT.name) == first.values("here", "FedAvg", DRIFT.name)
    shutil.rmtree(tmp_path / "table" / "runs")
    again = conduct_study(replace(figure, name="test/fig-2"), tmp_path / "fig-2", seeds=1, jobs=1, quick=False)
    assert len(list((tmp_path / "fig-2" / "runs").iterdir())) == 1, "FedProx is still there, FedAvg has to be run"
    assert again.values("here", "plain", DRIFT.name) == first.values("here", "FedAvg", DRIFT.name)


@pytest.mark.slow
def test_a_run_beside_is_not_read_if_it_is_damaged_or_if_time_is_measured(tmp_path):
    """Another study may have made it with other runs at its side; and its damage is its own."""
    here = Point("here", {"data": {"name": "breast-cancer"}})
    table = small((here,), (Arm("FedAvg", {}),))
    conduct_study(table, tmp_path / "table", seeds=1, jobs=1, quick=False)
    timed = replace(table, name="test/cost", timed=True)
    conduct_study(timed, tmp_path / "cost", seeds=1, jobs=1, quick=False)
    assert (tmp_path / "cost" / "runs" / "here-fedavg-seed0").exists()
    shutil.rmtree(tmp_path / "cost")
    (tmp_path / "table" / "runs" / "here-fedavg-seed0" / "summary.json").write_text("{")
    conduct_study(replace(table, name="test/fig-1"), tmp_path / "fig-1", seeds=1, jobs=1, quick=False)
    assert (tmp_path / "fig-1" / "runs" / "here-fedavg-seed0").exists()


def _paired(low, high):
    mean = (low + high) / 2
    return PairedTest(difference=mean, low=low, high=high, t=0.0, p=0.5, n=5)


def _pair(low, high):
    """A difference with this interval, its mean in the middle."""
    return Summary(n=5, mean=(low + high) / 2, std=0.0, low=low, high=high, cv=0.0)


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (claims.up(_pair(0.01, 0.03), "w"), HOLDS),
        (claims.up(_pair(-0.01, 0.03), "w"), INCONCLUSIVE),
        (claims.up(_pair(-0.03, 0.01), "w"), INCONCLUSIVE),
        (claims.up(_pair(-0.03, -0.01), "w"), FAILS),
        (claims.up(_pair(0.0, 0.0), "w"), FAILS),  # a difference of exactly 0 is not the claimed way
        (claims.down(_pair(0.0, 0.0), "w"), FAILS),
        (claims.up(_pair(0.01, 0.03), "w", by=0.025), INCONCLUSIVE),
        (claims.up(_pair(0.01, 0.03), "w", by=0.04), FAILS),
        (claims.inside(_pair(-0.09, 0.09), "w", low=-0.1, high=0.1), HOLDS),
        (claims.inside(_pair(-0.117, 0.138), "w", low=-0.1, high=0.1), INCONCLUSIVE),
        (claims.inside(_pair(0.11, 0.138), "w", low=-0.1, high=0.1), FAILS),
        (claims.above(_pair(0.93, 0.96), "w", 0.94), INCONCLUSIVE),
        (claims.below(_pair(0.93, 0.96), "w", 0.97), HOLDS),
    ],
)
def test_the_interval_decides_a_verdict_and_not_the_mean(verdict, word):
    assert verdict.word == word
    assert (verdict.seeds is None) == (word != INCONCLUSIVE)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.001, 0.015, HOLDS),  # above zero, even though it may be too small to matter
        (-0.01, 0.015, FAILS),  # better by nothing that matters
        (-0.01, 0.025, INCONCLUSIVE),
        (-0.03, -0.01, FAILS),
    ],
)
def test_a_difference_too_small_to_matter_refutes_a_claim_to_be_better(low, high, word):
    pair = with_margin(_paired(low, high), 0.02)
    assert claims.up(pair, "w").word == word
    assert claims.down(with_margin(_paired(-high, -low), 0.02), "w").word == word
    small = "w; all of it short of 0.02, the smallest difference that matters"
    assert claims.up(pair, "w").why == (small if low < 0 < high < 0.02 else "w")


def test_the_seeds_that_would_decide_are_those_at_which_students_interval_leaves_zero_out():
    """Mean 1, standard deviation 2: t(0.975, 17) 2 / sqrt(18) = 0.9946 < 1 < t(0.975, 16) 2 / sqrt(17) = 1.0283."""
    half = 2.776445105 * 2 / 5**0.5  # Student's t with four degrees of freedom
    verdict = claims.up(Summary(5, 1.0, 2.0, 1 - half, 1 + half, 0.0), "w")
    assert (verdict.word, verdict.seeds) == (INCONCLUSIVE, 18)
    nowhere = claims.up(Summary(5, 0.0, 2.0, -half, half, 0.0), "w")
    assert nowhere.seeds == MOST_SEEDS + 1
    assert seeds_words(nowhere.seeds, "seed") == "more than 1,000 seeds would decide"
    assert seeds_words(18, "fold") == "18 folds would decide"


def test_every_measure_has_a_margin_of_its_own():
    """A failure means that a measure is new: name it in margins.py with the smallest difference that matters, before its runs."""
    assert [(s.name, m.name) for s in studies().values() for m in s.measures if home(m.name) is None] == []


def test_margins_are_in_the_unit_of_the_measure():
    share = Measure("accuracy", "accuracy", lambda run: 0.0)
    percent = Measure("accuracy", "accuracy (%)", lambda run: 0.0)
    drift = Measure("training_drift", "training drift", lambda run: 0.0)
    assert [margin_of(m, 0.5) for m in (share, percent, drift)] == [0.02, 2.0, 0.05]
    results = drifts(base=[1.0, 1.2], new=[0.9, 1.1])
    assert results.change(A, "new", "drift").margin == pytest.approx(0.1)
    assert results.difference(A, "new", "drift").margin == pytest.approx(0.11)


def test_a_claim_about_settings_is_reproduced_in_all_or_says_in_how_many():
    good, bad = Verdict(HOLDS, "good"), Verdict(FAILS, "bad")
    assert claims.in_settings([good, good]) == good
    assert claims.in_settings([good, bad]) == Verdict(FAILS, "bad; in 1 of 2 settings reproduced")
    unclear = [Verdict(INCONCLUSIVE, "a", 12), Verdict(INCONCLUSIVE, "b", 40)]
    assert claims.in_settings([good, *unclear]) == Verdict(INCONCLUSIVE, "a; in 1 of 3 settings reproduced", 40)


def test_a_reversal_within_its_interval_does_not_refute_a_fall():
    noise, fall = _paired(-0.01, 0.024), _paired(-0.06, -0.02)
    assert claims.steps([noise, fall], _paired(-0.05, -0.02), "w", falling=True).word == HOLDS
    back = claims.steps([_paired(0.01, 0.03), fall], _paired(-0.05, -0.02), "w", falling=True)
    assert back.word == FAILS
    small = with_margin(_paired(0.01, 0.03), 0.05)
    assert claims.steps([small, fall], _paired(-0.05, -0.02), "w", falling=True).word == HOLDS
    assert claims.steps([noise, noise], noise, "w", falling=True).word == INCONCLUSIVE


def test_a_claim_that_cannot_fail_cannot_be_tested():
    shown = claims.cannot_fail(lambda found, arm: Verdict(HOLDS, ".7181 + .2819 = 1"), "shares of one sum")(None, "a")
    told = Told("c", "w", "a", shown.word, shown.why)
    assert str(shown) == "cannot be tested: no run could fail it (shares of one sum); .7181 + .2819 = 1"
    assert Tally.of(answers([told, Told("d", "w", "a", HOLDS, "")])) == Tally(reproduced=1, untested=1)
