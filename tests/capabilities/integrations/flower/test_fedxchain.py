"""FedXChain as a Flower strategy: the package's trust, weights and model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.capabilities.integrations.flower import FedXChain
from grandrounds.capabilities.integrations.flower.client import fedxchain_report
from grandrounds.core.plan import Settings
from grandrounds.explain.trust import steadiness
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.fedxchain.options import TrustOptions
from grandrounds.protocol.messages import Answers
from grandrounds.protocol.tasks import WEIGHTS
from tests import support
from tests.capabilities.integrations.flower.nodes import played, says, vector
from tests.support import refused

F = 3


def said(rng, k, signed):
    """What k nodes say in a round: rows, SHAP values with what they are told against, accuracies, models."""
    shap = rng.normal(size=(k, 6, F))
    x = rng.normal(size=(k, 6, F)) if signed else None
    accuracy = [None if rng.random() < 0.2 else float(a) for a in rng.uniform(0.4, 1, k)]
    return rng.integers(5, 400, k), shap, x, accuracy


def apps(rows, shap, x, accuracy, models):
    out = {}
    for k in range(len(models)):
        against = None if x is None else (x[k], np.zeros((1, F)))
        report = fedxchain_report(shap[k], accuracy=accuracy[k], against=against)
        out[11 + k] = says(models[k], **{"num-examples": int(rows[k])}, **report)
    return out


def by_package(trust, rounds, start):
    """Models and decisions of the package's own method, whose sites work their steadiness out themselves."""
    method, train = support.sections({"name": "fedxchain", "stability": "none", "weigh": {"rule": "trust"}})
    said_of = TrustOptions(**{"accuracy_at": "site", "explained": "own", **trust}).resolved()
    method = Settings({**method.plain(), "trust": said_of.model_dump(mode="json")})
    theta, state, decisions, before = start, {}, [], None
    for number, ((rows, shap, x, accuracy), models) in enumerate(rounds, 1):
        sites = tuple(str(11 + k) for k in range(len(models)))
        importance = np.abs(shap).mean(axis=1) + 1e-10
        shares = importance / importance.sum(axis=1, keepdims=True)
        columns = {
            "model": models,
            "count": rows.astype(float),
            "shap.shares": shares,
            "trust.accuracy": np.array([np.nan if a is None else a for a in accuracy]),
            "trust.steadiness": np.full(len(sites), np.nan) if before is None else steadiness(shares, before),
        }
        if x is not None:
            points = (shap * np.sign(x)).mean(axis=1)
            columns["shap.direction"] = points / np.linalg.norm(points, axis=1, keepdims=True)
        server = Server(number, theta, sites, 0, state, background=np.zeros((1, F)), features=("a", "b", "c"))

        def answer(ask, columns=columns, sites=sites):
            return Answers(sites, {"agreed": np.ones(len(sites))} if ask.task == WEIGHTS else columns)

        outcome, _ = support.played(build_method(method, train).round(server), answer)
        theta, state, before = outcome.model, outcome.state, shares
        decisions.append(outcome.decision)
    return theta, decisions


@settings(max_examples=20, deadline=None)
@given(
    k=st.integers(2, 6),
    p=st.integers(2, 30),
    seed=st.integers(0, 10**6),
    trust=st.sampled_from([{}, {"kappa": 1.0, "tau": 2.0}, {"preset": "printed"}, {"preset": "robust"}]),
)
def test_same_replies_give_the_package_s_trust_weights_and_model(k, p, seed, trust):
    rng = np.random.default_rng(seed)
    signed = trust.get("preset") == "robust"
    rounds = [(said(rng, k, signed), rng.normal(size=(k, p))) for _ in range(3)]
    strategy = FedXChain(trust, features=("a", "b", "c"), min_train_nodes=k)
    start = theta = rng.normal(size=p)
    for number, (told, models) in enumerate(rounds, 1):
        arrays, _ = played(strategy, apps(*told, models), theta, round=number)
        theta = vector(arrays)
    expected, decisions = by_package(trust, rounds, start)
    assert np.allclose(theta, expected, rtol=0, atol=1e-9)
    for own, theirs in zip(strategy.decisions, decisions, strict=True):
        assert own["weights"] == pytest.approx(dict(theirs.weights), abs=1e-9)
        assert own["signals"]["trust"] == pytest.approx(dict(theirs.signals["trust"]), abs=1e-9)
        assert own["reasons"] == pytest.approx(dict(theirs.reasons), abs=1e-9)


def test_equations_4_7_and_8_by_hand():
    """Shares (.8, .2) and (.2, .8), pooled (.5, .5): NSDS is .8 ln 1.6 + .2 ln .4 at both, so accuracy alone decides."""
    values = {11: ([[0.8, -0.2]], 1.0), 12: ([[0.2, 0.8]], 0.5)}
    nodes = {
        n: says(np.full(2, float(n)), **{"num-examples": 9}, **fedxchain_report(np.array(v), accuracy=a))
        for n, (v, a) in values.items()
    }
    strategy = FedXChain()
    played(strategy, nodes, np.zeros(2))
    decision = strategy.decisions[0]
    nsds = 0.8 * np.log(1.6) + 0.2 * np.log(0.4)
    trust = {n: 0.5 * a + 0.3 * np.exp(-nsds) + 0.2 for n, a in (("11", 1.0), ("12", 0.5))}
    assert decision["signals"]["nsds"] == pytest.approx({"11": nsds, "12": nsds})
    assert decision["signals"]["trust"] == pytest.approx(trust)
    assert decision["weights"] == pytest.approx({n: t / sum(trust.values()) for n, t in trust.items()})
    assert decision["reasons"] == pytest.approx({"feature 1": 0.5, "feature 2": 0.5})
    assert "nodes of a Flower app were not shown the weights and did not check them" in decision["notes"]


def test_steadiness_is_against_the_node_s_own_last_reasons():
    strategy = FedXChain()
    for number, shap in ((1, [[0.8, 0.2]]), (2, [[0.5, 0.5]])):
        nodes = {
            11: says(np.ones(2), **{"num-examples": 9}, **fedxchain_report(np.array(shap), accuracy=0.9)),
            12: says(np.ones(2), **{"num-examples": 9}, **fedxchain_report(np.array([[0.6, 0.4]]), accuracy=0.9)),
        }
        played(strategy, nodes, np.zeros(2), round=number)
    assert strategy.decisions[0]["signals"]["steadiness"] == {"11": None, "12": None}
    assert strategy.decisions[1]["signals"]["steadiness"] == pytest.approx({"11": 0.7, "12": 1.0})


def test_an_impossible_accuracy_is_left_out():
    nodes = {
        n: says(np.ones(2), **{"num-examples": 9}, **fedxchain_report(np.ones((1, 2)), accuracy=a))
        for n, a in {11: 0.9, 12: 0.8, 13: 40.0}.items()
    }
    strategy = FedXChain(min_train_nodes=3)
    played(strategy, nodes, np.zeros(2))
    assert strategy.decisions[0]["missing"] == {"13": "reported impossible figures"}
    assert set(strategy.decisions[0]["weights"]) == {"11", "12"}


def test_signs_must_be_told_where_they_count():
    nodes = {
        n: says(np.ones(2), **{"num-examples": 9}, **fedxchain_report(np.ones((1, 2)), accuracy=0.9)) for n in (11, 12)
    }
    with refused("missing-report", match="sent no 'grandrounds.shap.direction' .*client.fedxchain_report"):
        played(FedXChain({"preset": "robust"}), nodes, np.zeros(2))


@pytest.mark.parametrize("trust", [{"accuracy_at": "reference"}, {"explained": "reference"}, {"top": 2}])
def test_what_a_flower_app_cannot_do_is_refused_at_once(trust):
    with refused("unsupported-setting"):
        FedXChain(trust)


def test_names_that_do_not_fit_are_refused():
    nodes = {
        n: says(np.ones(2), **{"num-examples": 9}, **fedxchain_report(np.ones((1, 2)), accuracy=0.9)) for n in (11, 12)
    }
    with refused("length-mismatch", match="3 names, but nodes send 2 SHAP shares"):
        played(FedXChain(features=("a", "b", "c")), nodes, np.zeros(2))
