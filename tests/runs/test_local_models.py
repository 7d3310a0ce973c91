"""evaluation.local_models: accuracy of local models on their own rows and on those of other sites; training is the same."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.core.plan import Settings
from grandrounds.core.records import Decision
from grandrounds.data.corruption.attacks import Attack
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Outcome
from grandrounds.metrics.local_models import local_means, local_summary
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.runs.federation import assemble
from grandrounds.runs.local_models import LocalScores
from grandrounds.runs.setup import set_up_run
from tests.cli.test_commands import refused, write_csv
from tests.command import rounds
from tests.support import patients, played, ready, stack

SIZES = [60, 48, 72, 54]
OWN = {"train_accuracy", "train_loss", "test_accuracy"}
CROSSED = {"others_train", "external"}
BASE = {
    "data": {"label": "died", "site": "hospital"},
    "method": {"name": "fedavg", "rounds": 3},
    "train": {"steps": 6, "batch": 16, "lr": 0.3},
    "explain": {"sketch": "none"},
}


def experiment(local: str = "none", **changes) -> gr.Experiment:
    values = {key: {**section} for key, section in BASE.items()}
    for key, section in {**changes, "evaluation": {"local_models": local, **changes.get("evaluation", {})}}.items():
        values[key] = {**values.get(key, {}), **section} if isinstance(section, dict) else section
    return gr.Experiment.parse(values)


def run(out, local: str = "none", **changes) -> gr.Run:
    return gr.run(experiment(local, **changes), table=patients(SIZES), out=out)


def told(done: gr.Run) -> list[dict | None]:
    return [r.get("local") for r in done.rounds]


def without_seconds(done: gr.Run) -> list[dict]:
    out = json.loads(json.dumps(done.rounds))
    for r in out:
        r["decision"]["cost"].pop("seconds")
    return out


# What scores are


def test_lent_scores_are_weighed_by_rows_and_a_model_is_no_stranger_to_its_own_site():
    """Three sites of 10, 30 and 60 training rows; c has no test rows, and says what cannot be of one model."""
    rows = {"a": {"train": 10, "test": 4}, "b": {"train": 30, "test": 12}, "c": {"train": 60, "test": 0}}
    watching = LocalScores(True, 1, 1, rows)
    nan = np.nan
    lent = {
        "lent.train": np.array([[1.0, 0.4, 0.2], [0.5, 1.0, 0.6], [0.9, 1.7, 1.0]]),
        "lent.test": np.array([[0.5, 0.0, 1.0], [0.75, 0.25, 0.5], [nan, nan, nan]]),
    }
    trained = {
        "model": np.eye(3),
        "local.train_accuracy": np.array([0.9, 0.8, 0.7]),
        "local.train_loss": np.array([0.1, nan, 0.3]),
        "local.test_accuracy": np.array([0.5, 0.25, nan]),
    }

    def method():
        answers = yield Ask("train", to=("a", "b", "c"), report=("model",))
        assert set(answers.columns) == {"model"}, "the method hears what it asked for"
        return Outcome(ModelAssignment(np.zeros(3)), Decision())

    def answer(ask: Ask) -> Answers:
        return Answers(("a", "b", "c"), dict(trained if ask.task == "train" else lent))

    _, asked = played(watching.watched(method(), 1), answer)
    assert asked[0].report == ("model", "local")
    found, asked = played(watching.after(), answer)
    (ask,) = asked
    assert ask.task == "score" and ask.to == ("a", "b", "c") and ask.report == ("lent",)
    np.testing.assert_array_equal(ask.shared["models"], np.eye(3))
    local = found["local"]
    assert local["others_train"] == pytest.approx(
        {"a": (30 * 0.5 + 60 * 0.9) / 90, "b": 0.4, "c": (10 * 0.2 + 30 * 0.6) / 40}
    )
    assert local["external"] == pytest.approx({"a": 11 / 16, "b": 3 / 16, "c": 10 / 16})
    means = local_means(local, rows)
    assert means["train_accuracy"] == pytest.approx((9 + 24 + 42) / 100)
    assert means["train_loss"] == pytest.approx((1 + 18) / 70), "who has none does not count"
    assert means["test_accuracy"] == pytest.approx((4 * 0.5 + 12 * 0.25) / 16)
    assert means["external"] == pytest.approx((10 * 11 + 30 * 3 + 60 * 10) / 1600)


def test_a_model_that_always_says_yes_is_right_as_often_as_yes_is_true():
    """Site c has no test rows; a lies: about training rows only, since a study measures by test rows."""
    held = stack([20, 14, 9], seed=3)
    rows = (*held.rows[:2], replace(held.rows[2], test=held.rows[2].test[:0]))
    held = replace(held, rows=rows, attacks={"a": Attack("lie", 1, 10.0)})
    engine, _ = ready(held)
    parts = engine.hosts[0].stack.parts
    yes = np.zeros(engine.hosts[0].model.layout.size)
    yes[-1] = 5.0

    def asked():
        shared = {"models": np.stack([yes, -yes]), "parts": "train,test"}
        return (yield Ask("score", shared=shared, report=("lent",)))

    answers = engine.drive(asked(), round=1)
    for part in ("train", "test"):
        y, at = parts[part].y, parts[part].offsets
        share = [y[i:j].mean() if j > i else np.nan for i, j in pairwise(at)]
        by_hand = np.array([[s, 1 - s] for s in share])
        assert part == "test" or 0 < by_hand[0, 0] < 1
        if part == "train":
            by_hand[0] = 1.0  # as the liar says
        np.testing.assert_allclose(answers[f"lent.{part}"], by_hand)
    assert np.isnan(answers["lent.test"][2]).all() and len(answers) == 3, "a site without rows still lends the rest"


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """A crossed run, the local models of its last round, and every site's prepared rows."""
    folder = tmp_path_factory.mktemp("local")
    models: dict[str, np.ndarray] = {}

    class Watched(LocalScores):
        def after(self):
            models.update(self.models)
            return super().after()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grandrounds.runs.runner.LocalScores", Watched)
        done = run(folder / "r", "crossed")
    plan = Settings(done.plan)
    engine = set_up_run(plan, assemble(plan, patients(SIZES)), None).engine
    return done, models, engine.hosts[0]


def logits(host, theta, part: str, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Chances of yes and outcomes of one site's rows."""
    k, held = host.stack.names.index(site), host.stack.parts[part]
    rows = slice(held.offsets[k], held.offsets[k + 1])
    return 1 / (1 + np.exp(-host.model.logits(theta, held.x[rows])[:, 0].astype(float))), held.y[rows]


def test_own_figures_are_scikit_learns_on_the_same_predictions(by_hand):
    done, models, host = by_hand
    local = told(done)[-1]
    assert set(local) == OWN | CROSSED and list(models) == ["a", "b", "c", "d"]
    for site, theta in models.items():
        p, y = logits(host, theta, "train", site)
        assert local["train_accuracy"][site] == pytest.approx(accuracy_score(y, p >= 0.5), abs=1e-12)
        assert local["train_loss"][site] == pytest.approx(log_loss(y, p), rel=1e-6)
        p, y = logits(host, theta, "test", site)
        assert local["test_accuracy"][site] == pytest.approx(accuracy_score(y, p >= 0.5), abs=1e-12)
    assert len(set(local["train_accuracy"].values())) > 1


def test_crossed_is_each_model_on_each_sites_rows_put_together(by_hand):
    done, models, host = by_hand
    local = told(done)[-1]
    for site, theta in models.items():
        others = [logits(host, theta, "train", s) for s in models if s != site]
        p, y = (np.concatenate(columns) for columns in zip(*others, strict=True))
        assert local["others_train"][site] == pytest.approx(accuracy_score(y, p >= 0.5), abs=1e-12)
        p, y = (np.concatenate(c) for c in zip(*(logits(host, theta, "test", s) for s in models), strict=True))
        assert local["external"][site] == pytest.approx(accuracy_score(y, p >= 0.5), abs=1e-12)
    rows = done.summary["rows"]
    train = {s: n["train"] for s, n in rows.items()}
    mean = sum(local["others_train"][s] * train[s] for s in train) / sum(train.values())
    said = done.summary["local"]
    assert said["others_train"] == pytest.approx(mean) and said["round"] == said["crossed_rounds"] == 3


# A run that is watched


def test_nothing_that_is_trained_changes_and_the_cost_is_evaluation(by_hand, tmp_path):
    crossed, none, own = by_hand[0], run(tmp_path / "none"), run(tmp_path / "own", "own")
    for other in (own, crossed):
        assert other.model.theta.tobytes() == none.model.theta.tobytes()
        assert other.summary["final"] == none.summary["final"] and other.summary["per_site"] == none.summary["per_site"]
    assert told(none) == [None] * 3 and "local" not in none.summary
    assert all(set(r) == OWN for r in told(own))
    assert [{n: r[n] for n in OWN} for r in told(crossed)] == told(own)
    cost, more = own.summary["cost"], crossed.summary["cost"]
    extra = sum(more[way] - cost[way] for way in ("bytes_up", "bytes_down"))
    assert more["evaluation_bytes"] - cost["evaluation_bytes"] == extra > 0
    assert more["messages"] - cost["messages"] == 3 * 4 * 2, "a question to every site in every round"
    assert (more["payload_down"], more["payload_up"]) == (cost["payload_down"], cost["payload_up"])
    assert own.summary["cost"]["messages"] == none.summary["cost"]["messages"]
    assert audit(crossed.folder, deep=True).findings == ()


def test_through_bytes_and_back_it_is_the_same(by_hand, tmp_path):
    wired = run(tmp_path / "r", "crossed", engine={"wire": True})
    assert told(wired) == told(by_hand[0])
    assert wired.model.theta.tobytes() == by_hand[0].model.theta.tobytes()
    for way in ("bytes_up", "bytes_down", "evaluation_bytes"):
        assert wired.summary["cost"][way] == by_hand[0].summary["cost"][way]


def test_only_evaluated_rounds_are_told_and_only_then_are_sites_asked(heard, tmp_path):
    done = run(tmp_path / "r", "crossed", method={"rounds": 5}, evaluation={"every": 2})
    assert [t is not None for t in told(done)] == [False, True, False, True, True]
    assert [a.id.round for a, _ in heard if a.task == "train" and "local" in a.report] == [2, 4, 5]
    assert [a.id.round for a, _ in heard if a.task == "score"] == [2, 4, 5]
    assert done.summary["local"]["round"] == 5


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "fedadam"}},
        {"method": {"name": "scaffold"}},
        {"method": {"select": {"rule": "loss", "fraction": 0.5}}},
        {"method": {"name": "sse-agg"}, "reference": {"rows": {"rows": 30}}, "explain": {"sketch": "auto"}},
        {"method": {"name": "fedxchain"}, "reference": {"rows": {"rows": 30, "sent": True}}},
        {"method": {"name": "local"}},
        {"method": {"name": "clustered"}},
        {"method": {"cohorts": {"count": 2, "models": "separate"}}},
        {"method": {"name": "fedavg"}, "engine": {"faults": {"drop": 0.3}}},
        {"model": {"name": "forest", "trees": 4, "depth": 3}},
    ],
    ids=["fedopt", "scaffold", "chosen", "sse-agg", "fedxchain", "local", "clustered", "cohorts", "faults", "forest"],
)
def test_local_models_of_any_method_are_scored(changes, tmp_path):
    done, plain = run(tmp_path / "r", "crossed", **changes), run(tmp_path / "none", **changes)
    assert done.model.theta.tobytes() == plain.model.theta.tobytes()
    for r, other in zip(done.rounds, plain.rounds, strict=True):
        assert r["decision"]["weights"] == other["decision"]["weights"]
        trained = set(r["decision"]["asked"]) - set(r["decision"]["missing"])
        assert trained and all(set(values) == trained for values in r["local"].values())
        assert set(r["local"]) == OWN | CROSSED


@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_of_asynchronous_methods_those_that_arrived_are_told(name, tmp_path):
    method, engine = {"name": name, "rounds": 6, "buffer": 2}, {"speed_spread": 0.7}
    done = run(tmp_path / "r", "own", method=method, engine=engine, evaluation={"every": 2})
    plain = run(tmp_path / "none", method=method, engine=engine)
    assert done.model.theta.tobytes() == plain.model.theta.tobytes()
    assert [t is not None for t in told(done)] == [False, True] * 3
    for r in (r for r in done.rounds if "local" in r):
        assert set(r["local"]["train_accuracy"]) == set(r["decision"]["signals"]["staleness"])


def test_the_pool_has_one_local_model_and_no_test_rows_of_its_own(tmp_path):
    done = run(tmp_path / "r", "own", method={"name": "pooled"})
    (site,) = told(done)[-1]["train_accuracy"]
    assert told(done)[-1]["test_accuracy"] == {site: None} and done.summary["local"]["test_accuracy"] is None
    assert "- on their own test rows" in rounds("show", done.folder).stdout


def test_under_secure_aggregation_and_without_a_budget_sites_may_speak_of_themselves(tmp_path):
    done = run(tmp_path / "secure", "own", privacy={"secure": True})
    assert all(set(t) == OWN and len(t["train_loss"]) == 4 for t in told(done))
    noised = run(tmp_path / "noise", "own", privacy={"mechanism": "dp-sgd", "noise": 1.0, "min_rows": 10})
    assert all(set(t) == OWN for t in told(noised))
    assert "training rows, which have no noise" in noised.summary["privacy"]["not_covered"][0]


@pytest.mark.parametrize(("name", "local"), [("scaffold", "crossed"), ("fedbuff", "own")])
def test_an_interrupted_run_goes_on_to_the_same_record(name, local, tmp_path):
    changes = {"method": {"name": name, "rounds": 5, "buffer": 2}, "engine": {"speed_spread": 0.7}}
    whole = run(tmp_path / "whole", local, **changes)

    def stop(event):
        if event["event"] == "round" and event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gr.run(experiment(local, **changes), table=patients(SIZES), out=tmp_path / "r", progress=stop)
    resumed = gr.resume(tmp_path / "r", table=patients(SIZES))
    assert without_seconds(resumed) == without_seconds(whole)
    assert resumed.summary["local"] == whole.summary["local"]
    assert resumed.model.theta.tobytes() == whole.model.theta.tobytes()


def test_a_resumed_run_that_crosses_no_more_still_says_that_it_did(tmp_path):
    short = run(tmp_path / "r", "crossed", method={"rounds": 2})
    done = gr.resume(short.folder, settings=["method.rounds=3", "evaluation.local_models=none"], table=patients(SIZES))
    assert told(done)[2] is None and done.summary["privacy"]["crossed_rounds"] == 2
    assert local_summary([], {}) == {}


# What is refused, and what is said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["evaluation.local_models=own", "method.name=veil"], ["method 'veil' trains no local models"]),
        (["evaluation.local_models=crossed", "method.name=fedbuff"], ["is asynchronous", "'own'"]),
        (["evaluation.local_models=crossed", "method.name=fedasync"], ["is asynchronous", "'own'"]),
        (["evaluation.local_models=crossed", "method.name=pooled"], ["one site trains", "'own'"]),
        (["evaluation.local_models=crossed", "privacy.secure=true"], ["privacy.secure hides single models", "'own'"]),
        (
            ["evaluation.local_models=crossed", "privacy.mechanism=dp-sgd", "privacy.noise=1", "privacy.min_rows=10"],
            ["sends local models to all sites", "use 'own'"],
        ),
        (
            ["evaluation.local_models=own", "privacy.mechanism=dp-sgd", "privacy.epsilon=3", "privacy.min_rows=10"],
            ["evaluation.local_models is 'own'", "privacy.epsilon", "'none'"],
        ),
        (["evaluation.local_models=others"], ["evaluation.local_models"]),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, list) else None,
)
def test_what_cannot_be_is_refused_in_one_sentence(settings, words, tmp_path):
    write_csv(patients(SIZES), tmp_path / "p.csv")
    given = [word for s in ("method.rounds=2", "explain.sketch=none", *settings) for word in ("--set", s)]
    done = rounds(
        "run", "--table", "p.csv", "--label", "died", "--site", "hospital", *given, "--out", "r", cwd=tmp_path
    )
    refused(done, *words)
    assert not (tmp_path / "r").exists()


def test_what_went_to_other_sites_is_said(by_hand, tmp_path):
    crossed, own = by_hand[0], run(tmp_path / "own", "own")
    said = "In 3 rounds every local model was sent to every other site without protection"
    assert said in crossed.summary["privacy"]["statement"] and said not in own.summary["privacy"]["statement"]
    lists = [json.loads(rounds("privacy", r.folder, "--json").stdout)["disclosed"] for r in (own, crossed)]
    assert ["to every other site: its unprotected model" in " ".join(lines) for lines in lists] == [False, True]
    assert all("the accuracy of its local model on its training" in " ".join(lines) for lines in lists)


def test_it_is_shown_and_drawn(by_hand, tmp_path):
    done = by_hand[0]
    said, local = rounds("show", done.folder).stdout, done.summary["local"]
    assert "local models in round 3, accuracy, mean over sites: " in said
    for name in ("train_accuracy", "test_accuracy", "others_train", "external"):
        assert f"{local[name]:.3f} on " in said
    assert rounds("report", done.folder).returncode == 0
    page = (done.folder / "report.html").read_text()
    assert page.count("<h3>Local models</h3>") == 1 and "Local models on own, other sites' and test rows" in page
    without = run(tmp_path / "none")
    assert "local models" not in rounds("show", without.folder).stdout
