"""Whole runs under a promise: what is spent, what is refused, who is left out, and that nothing is charged twice."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.arrays import load
from grandrounds.core.errors import RunFailed
from grandrounds.engine.local import LocalEngine
from grandrounds.privacy.accounting import Event, epsilon_of
from grandrounds.privacy.secagg import Secret
from grandrounds.runs.rounds import Rounds
from tests.support import patients, refused

SIZES = [160, 130, 190, 120, 30]


def plan(**changes) -> gr.Experiment:
    values = {
        "name": "private",
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.2, "test": 0.2},
        "method": {"name": "fedavg", "rounds": 3},
        "train": {"steps": 5, "lr": 0.1},
        "explain": {"sketch": "none"},
        "privacy": {"mechanism": "dp-sgd", "epsilon": 2.0},
    }
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    return gr.Experiment.parse(values)


def run(out, *, sizes=SIZES, **changes):
    return gr.run(plan(**changes), table=patients(sizes), out=out)


def model(run) -> np.ndarray:
    arrays, _ = load(run.folder / "model.safetensors")
    return np.concatenate([a.ravel() for a in arrays.values()])


def test_a_run_spends_its_budget_and_says_so(tmp_path):
    done = run(tmp_path / "run")
    told = done.summary["privacy"]
    assert told["mechanism"] == "dp-sgd" and told["unit"] == "row" and told["trust"] == "local"
    assert 1.97 < told["epsilon"] <= 2.0 and told["budget"] == 2.0 and told["delta"] == 1e-5
    again = [Event("sampled_gaussian", "x", count=15, sigma=told["noise"], rate=0.1)]
    assert told["epsilon"] == pytest.approx(epsilon_of(again, 1e-5))
    said = told["statement"]
    for words in ("Epsilon = 2", "for each row, add/remove, noise at the sites, 3 rounds", "follows from the seed"):
        assert words in said
    for words in ("test rows", "number of rows of each site", "data.encoding = 'public'"):
        assert words in said and any(words in line for line in told["not_covered"])
    spent = [r["decision"]["privacy"]["epsilon_spent"] for r in done.rounds]
    assert spent == sorted(spent) and spent[0] < spent[-1] == told["epsilon"]
    one = done.rounds[0]["decision"]["privacy"]
    assert one["events"][0]["count"] == 5 and one["events"][0]["sigma"] == told["noise"]


def test_sites_with_few_rows_are_left_out_and_named(tmp_path):
    done = run(tmp_path / "run")
    assert "e (13)" in next(w for w in done.summary["warnings"] if "privacy.min_rows = 50" in w)
    assert all(set(r["decision"]["asked"]) == set("abcd") for r in done.rounds)
    assert done.summary["per_site"]["e"]["count"] > 0, "it is still tested"
    with refused("too-few-rows", match=r"privacy\.min_rows"):
        run(tmp_path / "none", privacy={"min_rows": 1000})
    with refused("secure-aggregation-does-not-fit", match=r"privacy\.secure"):
        run(tmp_path / "two", privacy={"min_rows": 90, "secure": True})


def test_a_site_that_is_asked_all_the_same_refuses(tmp_path, monkeypatch):
    """The server's word is not needed for it."""
    monkeypatch.setattr("grandrounds.runs.runner.enough_rows", lambda plan, rows: (tuple(rows), ()))
    done = run(tmp_path / "run")
    assert done.rounds[0]["decision"]["missing"] == {"e": "refused (too-few-rows)"}
    assert set(done.rounds[0]["decision"]["weights"]) == set("abcd")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "scaffold"}, {"name": "fedadam"}], ids=str)
def test_through_bytes_and_in_chunks_it_is_the_same_to_the_bit(method, tmp_path):
    method = {"rounds": 3, **method}
    here = run(tmp_path / "here", method=method)
    there = run(tmp_path / "there", method=method, engine={"wire": True})
    chunks = run(tmp_path / "chunks", method=method, engine={"chunk": 2})
    assert model(here).tobytes() == model(there).tobytes() == model(chunks).tobytes()
    plain = run(tmp_path / "plain", method=method, privacy={"mechanism": "none", "epsilon": None})
    assert not np.isclose(model(plain), model(here)).any()


def test_secure_sums_of_private_models(tmp_path):
    secure, plain = (run(tmp_path / str(s), privacy={"secure": s}) for s in (True, False))
    np.testing.assert_allclose(model(secure), model(plain), atol=5e-6)


def test_noise_is_the_sites_own(tmp_path, monkeypatch):
    one = run(tmp_path / "one")
    assert model(one).tobytes() == model(run(tmp_path / "again")).tobytes(), "a simulation repeats"
    monkeypatch.setattr("grandrounds.engine.local._secret", lambda seed, site: Secret.own())
    two, three = model(run(tmp_path / "two")), model(run(tmp_path / "three"))
    assert not np.isclose(two, three).any() and not np.isclose(two, model(one)).any()


def test_nothing_of_training_and_validation_rows_is_told(tmp_path, monkeypatch):
    """All that reaches the server's side is looked at: no loss, no tally, no sketch but of test rows."""
    seen: list[tuple[str, dict]] = []
    ask = LocalEngine._ask

    def watched(self, question):
        answers = ask(self, question)
        seen.append((question.task, {**answers.columns, **answers.totals}))
        return answers

    monkeypatch.setattr(LocalEngine, "_ask", watched)
    done = run(tmp_path / "run", explain={"sketch": "permutation"}, reference={"rows": {"rows": 30}})
    assert {task for task, _ in seen} == {"summarise", "prepare", "train", "evaluate", "witness"}
    for task, told in seen:
        if task == "train":
            assert set(told) == {"model", "count", "steps", "error"}
        if task == "evaluate":
            hidden = {n: np.asarray(v) for n, v in told.items() if n.split(".")[0] in ("train", "val")}
            assert hidden and all(not v.any() for v in hidden.values())
    assert done.summary["validation"]["count"] == 0 and done.summary["final"]["count"] > 0
    assert done.summary["explanation"]["training"]["drift"] > 0, "private models may be compared on reference rows"
    assert "deployed" not in done.summary["explanation"]


def test_a_budget_is_never_overspent(tmp_path):
    """Noise that is too little for the rounds: the run ends before, with the model it has, and fails."""
    with refused("budget-spent", kind=RunFailed):
        run(tmp_path / "run", method={"rounds": 6}, privacy={"noise": _noise(2.0, rounds=2)})
    held = gr.load_run(tmp_path / "run")
    assert held.finished and len(held.rounds) == 2 and held.summary["rounds"] == 2
    assert "the budget does not allow round 3" in held.summary["stopped"]
    assert held.summary["privacy"]["epsilon"] <= 2.0
    short = run(tmp_path / "short", method={"rounds": 2}, privacy={"noise": _noise(2.0, rounds=2)})
    assert model(held).tobytes() == model(short).tobytes()
    with refused("budget-overspent", kind=RunFailed):
        run(tmp_path / "never", privacy={"noise": 0.3})
    assert not gr.load_run(tmp_path / "never").finished


def _noise(epsilon: float, *, rounds: int) -> float:
    from grandrounds.privacy.accounting import noise_for

    return noise_for(epsilon, 1e-5, steps=5 * rounds, rate=0.1)


@pytest.mark.parametrize("privacy", [{}, {"mechanism": "client", "min_rows": 1}], ids=["dp-sgd", "client"])
def test_a_resumed_run_is_charged_once(privacy, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", privacy=privacy)
    after = Rounds._judge_round

    def broken(self, r, served):
        if r == 2:
            raise RunFailed("pulled the plug")
        return after(self, r, served)

    with monkeypatch.context() as m:
        m.setattr(Rounds, "_judge_round", broken)
        with pytest.raises(RunFailed, match="plug"):
            run(tmp_path / "broken", privacy=privacy)
    done = gr.resume(tmp_path / "broken", table=patients(SIZES))
    assert model(done).tobytes() == model(whole).tobytes()
    assert done.summary["privacy"] == whole.summary["privacy"]
    assert [r["decision"]["privacy"] for r in done.rounds] == [r["decision"]["privacy"] for r in whole.rounds]


def test_going_on_for_longer_does_not_thin_the_noise(tmp_path):
    first = run(tmp_path / "run")
    noise = first.summary["privacy"]["noise"]
    with refused("budget-spent", kind=RunFailed):
        gr.resume(tmp_path / "run", settings=["method.rounds=6"], table=patients(SIZES))
    held = gr.load_run(tmp_path / "run")
    assert held.summary["privacy"]["noise"] == noise and held.summary["rounds"] == 3


def test_sites_that_sit_out_spend_nothing(tmp_path):
    """What counts is the site that took part most often, and a random draw of sites earns nothing more."""
    some = run(
        tmp_path / "run",
        method={"rounds": 8, "select": {"rule": "random", "fraction": 0.5}},
        privacy={"epsilon": None, "noise": 2.0},
    )
    asked = [set(r["decision"]["asked"]) for r in some.rounds]
    spent = [r["decision"]["privacy"]["epsilon_spent"] for r in some.rounds]
    assert all(len(a) == 2 for a in asked)
    for r in range(8):
        before = max((sum(s in a for a in asked[:r]) for s in "abcd"), default=0)
        steps = 5 * (before + 1)  # a round is charged before it is known who is drawn
        expected = epsilon_of([Event("sampled_gaussian", "x", count=steps, sigma=2.0, rate=0.1)], 1e-5)
        assert spent[r] == pytest.approx(expected)
    assert spent[-1] < epsilon_of([Event("sampled_gaussian", "x", count=40, sigma=2.0, rate=0.1)], 1e-5)


def test_without_a_budget_it_is_only_counted(tmp_path):
    done = run(tmp_path / "run", privacy={"epsilon": None, "noise": 1.0}, train={"early_stop": 3})
    told = done.summary["privacy"]
    assert told["budget"] is None and told["epsilon"] > 0
    assert "test, validation and training rows" in told["statement"]
    assert done.summary["validation"]["count"] > 0


def test_calibration_is_paid_for_by_validation_patients(tmp_path):
    done = run(tmp_path / "run", evaluation={"calibrate": "platt"})
    told = done.summary["privacy"]
    assert told["spent"]["validation"] == pytest.approx(2.0, rel=1e-3) and told["epsilon"] <= 2.0
    assert "3 mechanisms" in told["statement"]


REFUSED = {
    "nothing is noised": ({"privacy": {"mechanism": "none"}}, r"privacy\.epsilon"),
    "no amount": ({"privacy": {"epsilon": None}}, r"privacy\.epsilon"),
    "moon": ({"method": {"name": "moon"}, "model": {"name": "mlp"}}, "'moon'"),
    "alignment": (
        {"method": {"stability": "alignment"}, "reference": {"anchor": {"rows": 20, "sent": True}}},
        "'alignment'",
    ),
    "trees": ({"model": {"name": "forest"}}, "'forest'"),
    "async": ({"method": {"name": "fedasync"}}, "'fedasync'"),
    "clustered": ({"method": {"name": "clustered"}}, "'clustered'"),
    "finetune": ({"train": {"finetune": 1}}, r"train\.finetune"),
    "loss": ({"method": {"select": "loss"}}, r"method\.select"),
    "lambdas": (
        {
            "method": {"name": "sse-agg", "weigh": {"lambdas": {"data": 0.5, "worst_site": 0.5}}},
            "reference": {"rows": {"rows": 20}},
        },
        r"method\.weigh\.lambdas",
    ),
    "early stop": ({"train": {"early_stop": 2}}, r"train\.early_stop"),
    "threshold": ({"evaluation": {"threshold": "youden"}}, r"evaluation\.threshold"),
    "temperature": ({"evaluation": {"calibrate": "temperature"}}, r"evaluation\.calibrate"),
    "balanced": ({"train": {"class_weights": "balanced"}}, "'balanced'"),
    "at site": (
        {"explain": {"sketch": "permutation", "at": "site"}, "reference": {"rows": {"rows": 20, "sent": True}}},
        r"explain\.at",
    ),
    "background": ({"explain": {"sketch": "shap"}}, r"explain\.sketch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_noise_covers_is_refused_by_name(name, tmp_path):
    changes, words = REFUSED[name]
    with refused("privacy-does-not-fit", match=words):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


CLIENT = {
    "rows": ({"method": {"weigh": "data_size"}}, r"method\.weigh"),
    "reasons": (
        {"method": {"name": "sse-agg", "stability": "none"}, "reference": {"rows": {"rows": 20}}},
        "'explanations'",
    ),
    "robust": ({"method": {"robust": "median"}}, "'median'"),
    "cohorts": ({"method": {"cohorts": 2}}, r"method\.cohorts"),
    "scaffold": ({"method": {"name": "scaffold"}}, "'scaffold'"),
    "platt": ({"evaluation": {"calibrate": "platt"}}, r"evaluation\.calibrate"),
    "sketches": (
        {"explain": {"sketch": "permutation"}, "reference": {"rows": {"rows": 20}}},
        r"explain\.sketch",
    ),
}


@pytest.mark.parametrize("name", CLIENT)
def test_what_breaks_the_promise_to_sites_is_refused_by_name(name, tmp_path):
    changes, words = CLIENT[name]
    with refused("privacy-does-not-fit", match=words):
        run(tmp_path / "run", **changes, privacy={"mechanism": "client"})


@pytest.mark.parametrize("secure", [False, True])
def test_a_promise_to_sites(secure, tmp_path):
    done = run(tmp_path / "run", privacy={"mechanism": "client", "epsilon": 5.0, "secure": secure})
    told = done.summary["privacy"]
    assert told["unit"] == "site" and told["trust"] == ("secure aggregation" if secure else "trusted server")
    assert 4.8 < told["epsilon"] <= 5.0
    assert "for each site, add/remove" in told["statement"]
    assert set(done.rounds[0]["decision"]["weights"].values()) == {0.2}
    assert len(done.rounds[0]["decision"]["weights"]) == 5, "no site is too small for it"


def test_sites_weighed_by_rows_that_are_no_secret(tmp_path):
    public = {"mechanism": "client", "public_counts": True, "epsilon": 5.0}
    done = run(tmp_path / "run", privacy=public)
    weights = done.rounds[0]["decision"]["weights"]
    assert weights["c"] > weights["e"] and sum(weights.values()) == pytest.approx(1)


def test_the_decision_is_in_the_ledger_and_the_logs(tmp_path):
    done = run(tmp_path / "run")
    logs = json.loads((done.folder / "round_logs.json").read_text())
    assert "epsilon_spent" in json.dumps(logs)
    assert not done.ledger.verify()


def test_what_a_server_does_with_private_models_is_free(tmp_path):
    """Robust rules, reference rows and reasons at the server cost no more than the models did (post-processing)."""
    plain = run(tmp_path / "plain").summary["privacy"]["epsilon"]
    rows = {"reference": {"rows": {"rows": 30}}}
    trusted = run(tmp_path / "trusted", method={"robust": "fltrust"}, **rows)
    weighed = run(tmp_path / "weighed", method={"name": "sse-agg"}, explain={"sketch": "permutation"}, **rows)
    assert trusted.summary["privacy"]["epsilon"] == weighed.summary["privacy"]["epsilon"] == plain
    assert "in_line" in weighed.rounds[-1]["decision"]["signals"]
    assert "rows of reference set 'rows'" in weighed.summary["privacy"]["not_covered"]


@pytest.mark.slow
def test_either_kernel_gives_the_same_run(tmp_path):
    pytest.importorskip("torch")
    net = {"model": {"name": "mlp", "hidden": [5]}, "method": {"name": "scaffold"}}
    one = run(tmp_path / "numpy", **net, engine={"kernel": "numpy", "precision": "float64"})
    two = run(tmp_path / "torch", **net, engine={"kernel": "torch", "precision": "float64", "device": "cpu"})
    np.testing.assert_allclose(model(two), model(one), rtol=1e-5, atol=1e-5)
    assert one.summary["privacy"] == two.summary["privacy"]


def test_the_client_level_divides_by_the_number_that_its_plan_states(tmp_path):
    """A site that is really removed from a run with the same plan leaves its weight and its noise behind."""
    client = {"mechanism": "client", "epsilon": 5.0, "sites": 5}
    whole = run(tmp_path / "whole", privacy={**client, "sites": 0})
    assert whole.plan["privacy"]["sites"] == 5, "as many as train is written to the plan"
    told = whole.summary["privacy"]
    assert told["sites"] == 5 and told["sensitivity"] == pytest.approx(1 / 5)
    assert any("number of sites by which sums are divided" in said for said in told["not_covered"])
    same = run(tmp_path / "same", privacy=client)
    assert model(same).tobytes() == model(whole).tobytes()
    fewer = run(tmp_path / "fewer", privacy=client, sizes=SIZES[:4])
    assert all(w == 0.2 for r in fewer.rounds for w in r["decision"]["weights"].values())
    assert fewer.summary["privacy"]["noise"] == told["noise"]
    assert gr.load_run(fewer.folder).ledger is not None
    with refused("bad-setting", match=r"privacy\.sites"):
        run(tmp_path / "more", privacy={**client, "sites": 4})
