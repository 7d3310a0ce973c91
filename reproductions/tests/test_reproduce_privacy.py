"""privacy/sse-agg and privacy/trust: arms that differ in nothing but what they should, verdicts, and quick studies."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.support import refused

import grandrounds as gr
from grandrounds.engine.local import LocalEngine
from grandrounds.privacy.accounting import Event, epsilon_of
from grandrounds.recipes import load_recipe
from grandrounds_studies import studies
from grandrounds_studies.fedxchain.setting import ROBUST
from grandrounds_studies.measures import AUROC
from grandrounds_studies.privacy.claims import charged_as, costs
from grandrounds_studies.privacy.measures import EPSILON
from grandrounds_studies.privacy.setting import DELTA, FEDAVG, HEART, POINTS, PRIVATE, SSE_AGG
from grandrounds_studies.privacy.trust import FLIPPED, HONEST
from grandrounds_studies.privacy.trust import PRIVATE as TRUSTING
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import Arm, Cell, Measure, Point, Quick, Study

NAME, TRUST = "privacy/sse-agg", "privacy/trust"


def plan(point: Point, arm: Arm, *, of: str = NAME) -> dict:
    return studies()[of].plan(Cell(point.label, arm.label, 2))


# What is run


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.label)
@pytest.mark.parametrize("epsilon", PRIVATE)
def test_private_arms_differ_in_their_method_alone(point, epsilon):
    theirs, ours = (plan(point, arm) for arm in PRIVATE[epsilon])
    assert (ours["privacy"]["mechanism"], ours["privacy"]["epsilon"], ours["privacy"]["delta"]) == (
        "dp-sgd",
        epsilon,
        DELTA,
    )
    apart = {section for section in ours if ours[section] != theirs[section]}
    assert apart == {"name", "method"}
    assert {k for k in ours["method"] if ours["method"][k] != theirs["method"][k]} == {"name", "preset", "weigh", "stability"}
    assert ours["method"]["stability"] == "permuted_anchor" and ours["explain"]["at"] == "server"


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.label)
def test_without_a_promise_the_rows_are_the_same(point):
    free, bound = plan(point, SSE_AGG), plan(point, PRIVATE[3.0][1])
    assert free["privacy"]["mechanism"] == "none" and free["method"]["stability"] == "anchored_scaffold"
    for section in ("data", "split", "reference", "model", "explain", "evaluation", "seed"):
        assert free[section] == bound[section] == plan(point, FEDAVG)[section]


def test_the_recipe_is_an_arm_of_the_study():
    made, arm = load_recipe("sse-agg/private").plan(), plan(POINTS[1], PRIVATE[3.0][1])
    assert (made["privacy"].pop("unit"), arm["privacy"].pop("unit")) == ("patient", "row")  # readings of 0.1 are of rows
    for section in ("data", "split", "reference", "model", "privacy", "method"):
        assert made[section] == arm[section], section
    assert (made["train"]["lr"], made["train"]["epochs"]) == (arm["train"]["lr"], arm["train"]["epochs"])


@pytest.mark.parametrize("point", [*HONEST, *FLIPPED], ids=lambda p: p.label)
@pytest.mark.parametrize("epsilon", TRUSTING)
def test_trust_under_a_promise_is_the_servers_to_tell(point, epsilon):
    theirs, ours = (plan(point, arm, of=TRUST) for arm in TRUSTING[epsilon])
    assert {section for section in ours if ours[section] != theirs[section]} == {"name", "method"}
    assert {k for k in ours["method"] if ours["method"][k] != theirs["method"][k]} == {"name", "weigh", "trust"}
    trust = ours["method"]["trust"]
    assert (trust["preset"], trust["accuracy_at"], trust["explained"]) == ("robust", "reference", "reference")
    assert not ours["reference"]["root"]["sent"] and len(ours["attacks"]) == (point in FLIPPED)
    free = plan(point, ROBUST, of=TRUST)
    assert free["privacy"]["mechanism"] == "none" and free["method"]["trust"]["explained"] == "own"
    for section in ("data", "split", "reference", "model", "attacks", "evaluation", "seed"):
        assert free[section] == ours[section]


def test_both_studies_ask_for_as_many_private_steps():
    ours, theirs = plan(HONEST[1], TRUSTING[3.0][0], of=TRUST), plan(HEART, PRIVATE[3.0][0])
    assert ours["privacy"] == theirs["privacy"] and ours["train"]["lr"] == theirs["train"]["lr"]
    taken = [p["method"]["rounds"] * p["train"]["epochs"] for p in (ours, theirs)]
    assert taken == [30, 30]


# What a user gets who sets a budget and nothing else

BUDGET = ["privacy.mechanism=dp-sgd", "privacy.epsilon=3"]


def test_a_budget_alone_chooses_the_form_that_costs_nothing_more():
    made = load_recipe("sse-agg/drift").with_settings(BUDGET).plan()
    assert made["method"]["stability"] == "permuted_anchor" and made["explain"]["at"] == "server"
    alone = load_recipe("sse-agg/drift").with_settings([*BUDGET, "reference.anchor.sent=false"]).plan()
    assert alone["method"]["stability"] == "none", "variates would add the noise of the round before"


def test_sites_that_are_too_small_are_said_to_be_the_reason(tmp_path):
    few = load_recipe("sse-agg/drift").with_settings(BUDGET)
    with refused("method-does-not-fit", match="privacy.min_rows = 50"):
        gr.run(few, out=tmp_path / "run")


@pytest.mark.parametrize("told", ["worst_site", "calibration"])
def test_signals_of_the_sites_own_rows_are_refused(told, tmp_path):
    asked = f"method.weigh.lambdas={{data=0.5, {told}=0.5}}"
    large = load_recipe("sse-agg/drift").with_settings([*BUDGET, "split.partition=equal", "split.sites=4", asked])
    with refused("privacy-does-not-fit", match=rf"method\.weigh\.lambdas.*{told}"):
        gr.run(large, out=tmp_path / "run")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stability", ["auto", "anchor", "anchored_scaffold"])
def test_nothing_but_private_models_leaves_a_site(stability, tmp_path, monkeypatch):
    """All that reaches the server is looked at; what it weighs by is worked out from models alone, and costs nothing."""
    seen: list[tuple[str, dict]] = []
    ask = LocalEngine._ask

    def watched(self, question):
        answers = ask(self, question)
        seen.append((question.task, {**answers.columns, **answers.totals}))
        return answers

    monkeypatch.setattr(LocalEngine, "_ask", watched)
    small = ["split.partition=equal", "split.sites=4", "method.rounds=4", f"method.stability={stability}"]
    done = gr.run(load_recipe("sse-agg/drift").with_settings([*BUDGET, *small]), out=tmp_path / "run")
    assert {task for task, _ in seen} == {"summarise", "prepare", "lend", "train", "evaluate", "witness"}
    variates = {"variate"} if stability == "anchored_scaffold" else set()  # they come of private steps
    for task, told in seen:
        if task == "train":
            assert set(told) == {"model", "count", "steps", "error"} | variates
        if task == "lend":
            assert set(told) == {"held"}, "how many rows it now holds"
        if task == "evaluate":
            hidden = {n: np.asarray(v) for n, v in told.items() if n.split(".")[0] in ("train", "val")}
            assert hidden and not any(v.any() for v in hidden.values())
    promise = done.summary["privacy"]
    assert [event["what"] for event in promise["events"]] == ["models of the sites"]
    one = Event("sampled_gaussian", "x", count=promise["steps"], sigma=promise["noise"], rate=promise["rate"])
    assert promise["epsilon"] == pytest.approx(epsilon_of([one] * 4, DELTA), abs=1e-9), "four rounds of training alone"
    assert "40 rows of reference set 'anchor', which were sent to every site" in promise["not_covered"]
    assert "in_line" in done.rounds[-1]["decision"]["signals"]


# Verdicts on hand-made numbers


def found(numbers: dict[str, list[float]], *, measure: str = "epsilon", charged=None) -> Results:
    """Arm -> figures by seed, at one point."""
    how = {"epsilon": EPSILON, "auroc": AUROC}[measure]
    made = Study(
        name="test/one", title="One", source="us", base={}, points=(Point("here", {}),),
        arms=tuple(Arm(a, {}) for a in numbers), claims=(), quick=Quick(),
        measures=(Measure(how.name, how.words, lambda run: 0.0, how.lower, how.digits),),
    )  # fmt: skip
    kept = {a: {"charged": (charged or {}).get(a, ["models of the sites"])} for a in numbers}
    readings = {
        Cell("here", a, i): Reading({measure: v}, kept[a]) for a, held in numbers.items() for i, v in enumerate(held)
    }
    return Results(made, readings, 3)


def test_an_epsilon_that_differs_is_no_free_signal():
    test = charged_as("plain", ["here"])
    same = found({"plain": [2.9, 2.9, 2.9], "ours": [2.9, 2.9, 2.9 + 1e-10]})
    assert test(same, "ours").word == "reproduced"
    more = test(found({"plain": [2.9, 2.9, 2.9], "ours": [2.9, 2.9, 2.9 + 1e-6]}), "ours")
    assert more.word == "refuted" and "1.0e-06 apart" in more.why
    besides = found(
        {"plain": [2.9] * 3, "ours": [2.9] * 3}, charged={"ours": ["models of the sites", "validation losses"]}
    )
    assert test(besides, "ours").word == "refuted", "the same epsilon, but something else was released too"


def test_a_cost_is_held_against_the_same_without_a_promise():
    figures = {"FedAvg": [0.5, 0.5, 0.5], "open": [0.80, 0.82, 0.81], "bound": [0.78, 0.80, 0.79]}
    held = found(figures, measure="auroc")
    assert costs("auroc", ["here"], to="open", by=0.021)(held, "bound").word == "reproduced"
    over = costs("auroc", ["here"], to="open", by=0.019)(held, "bound")
    assert over.word == "refuted" and "-0.020" in over.why


# The quick study, whole


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("privacy")
    return gr.reproduce(NAME, quick=True, out=out), out


@pytest.mark.slow
def test_a_quick_study_from_its_runs_to_its_report(quick):
    _, out = quick
    held = json.loads((out / "results.json").read_text())
    assert held["quick"] and not held["failed"] and held["study"] == NAME
    spent = {f["arm"]: f["values"] for f in held["figures"] if f["measure"] == "epsilon"}
    theirs, ours = (arm.label for arm in PRIVATE[3.0])
    assert spent[FEDAVG.label] == spent[SSE_AGG.label] == dict.fromkeys(spent[ours]), "nothing is promised"
    assert 2.99 < spent[ours]["0"] <= 3 and spent[ours] == spent[theirs]
    assert "AUROC over epsilon" in (out / "report.html").read_text()


@pytest.mark.slow
def test_nothing_more_is_charged_than_for_training(quick):
    results, _ = quick
    verdict = next(
        j.verdict
        for j in results.claims
        if j.claim.says.startswith("nothing more is charged") and j.arm == PRIVATE[3.0][1].label
    )
    assert verdict.word == "reproduced" and "charged: models of the sites, against models of the sites" in verdict.why
    statement = results.readings[Cell(HEART.label, PRIVATE[3.0][1].label, 0)].kept["statement"]
    assert statement.startswith(
        "Epsilon = 3, delta = 1e-5, for each row, add/remove, noise at the sites, 12 rounds, 1 mechanism"
    )


@pytest.fixture(scope="module")
def quick_trust(tmp_path_factory):
    return gr.reproduce(TRUST, quick=True, out=tmp_path_factory.mktemp("trust"))


@pytest.mark.slow
def test_trust_costs_no_epsilon_and_still_tells_who_flips_labels(quick_trust):
    point, (theirs, ours) = FLIPPED[1].label, TRUSTING[3.0]
    charged = next(j.verdict for j in quick_trust.claims if j.claim.says.startswith("nothing") and j.arm == ours.label)
    assert charged.word == "reproduced" and "charged: models of the sites, against models of the sites" in charged.why
    seeds = {cell.seed for cell in quick_trust.readings}
    for seed in seeds:
        bound, plain = (quick_trust.readings[Cell(point, arm.label, seed)] for arm in (ours, theirs))
        assert bound.figures["epsilon"] == pytest.approx(plain.figures["epsilon"], abs=1e-9)
        assert len(bound.kept["bad"]) == 1 and len(bound.kept["honest"]) == 3
        assert bound.figures["detected"] == 1 and bound.kept["bad"][0] < min(bound.kept["honest"])
        assert bound.figures["bad_weight"] < plain.figures["bad_weight"]
        assert not plain.kept["bad"], "FedAvg keeps no trust"
