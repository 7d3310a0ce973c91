"""FedXChain's server on answers made by hand: whose reasons count for what, what is remembered, who is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan import Settings
from grandrounds.explain.trust import SMOOTHING, distribution
from grandrounds.methods import build_method
from grandrounds.methods.base import Outcome, Server
from grandrounds.protocol.messages import Answers, Ask, AskId
from grandrounds.protocol.tasks import WEIGHTS
from tests import support
from tests.support import refused

SITES = ("a", "b", "c", "d")
FEATURES = ("age", "lactate", "pressure")
ALIKE = np.array([[0.5, 0.3, 0.2]] * 3)
ODD = np.vstack([ALIKE, [[0.0, 0.1, 0.9]]])
MODELS = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 4.0], [4.0, 8.0]])


def method(**settings):
    values = {"data": {"name": "breast-cancer"}, "method": {"name": "fedxchain", **settings}}
    plan = gr.Experiment.parse(values).plan()
    return build_method(Settings(plan["method"]), Settings(plan["train"]))


def server(round=1, *, state=None, model=None) -> Server:
    held = np.zeros(2) if model is None else model
    return Server(round, held, SITES, 0, state or {}, background=np.zeros((1, 3)), features=FEATURES)


def answers(shares=ODD, accuracy=(0.9, 0.8, 0.7, 0.9), *, sites=SITES, steady=np.nan) -> Answers:
    """What sites say with their models."""
    here = [SITES.index(s) for s in sites]
    columns = {
        "model": MODELS[here],
        "count": np.array([40, 30, 20, 90])[here],
        "steps": np.ones(len(here)),
        "shap.shares": distribution(np.asarray(shares)[here]) if len(shares) == 4 else shares,
        "trust.steadiness": np.full(len(here), steady),
        "trust.accuracy": np.asarray(accuracy, float)[here],
    }
    return Answers(tuple(sites), columns, id=AskId("r", 1, 0))


def played(made, at: Server, heard: Answers, *, refuse=()) -> tuple[Outcome, list[Ask]]:
    """A round in which sites answer training with this, and go along with weights unless they refuse."""

    def answer(ask: Ask) -> Answers:
        if ask.task == "train":
            return heard
        assert ask.task == WEIGHTS
        along = tuple(s for s in ask.to if s not in refuse)
        columns = {"agreed": np.ones(len(along), bool), "error": [""] * len(along)}
        return Answers(along, columns, missing=dict.fromkeys(refuse, "refused (weights-wrong)"))

    return support.played(made.round(at), answer)


def shares_of(values) -> np.ndarray:
    return np.asarray(values, float) / np.sum(values)


def by_hand(shares, before, accuracy, *, tau=0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NSDS, trust and weights of steady sites by eq. 3-8, written out."""
    p = (np.abs(shares) + SMOOTHING) / (np.abs(shares) + SMOOTHING).sum(axis=1, keepdims=True)
    consortium = (np.asarray(before)[:, None] * p).sum(axis=0) / np.sum(before)
    nsds = (p * np.log(p / consortium)).sum(axis=1)
    trust = 0.5 * np.asarray(accuracy) + 0.3 * np.exp(-nsds) + 0.2
    return nsds, trust, shares_of(trust * np.exp(-tau * nsds))


def test_the_first_round_by_hand():
    """All are trusted fully before it; the mean of models is by trust and divergence, and rows have no say."""
    outcome, asked = played(method(), server(), answers())
    nsds, trust, weights = by_hand(ODD, np.ones(4), [0.9, 0.8, 0.7, 0.9])
    decision = outcome.decision
    assert [a.task for a in asked] == ["train", WEIGHTS]
    assert list(decision.weights.values()) == pytest.approx(weights)
    assert list(decision.signals["nsds"].values()) == pytest.approx(nsds)
    assert list(decision.signals["trust"].values()) == pytest.approx(trust)
    np.testing.assert_allclose(outcome.model, weights @ MODELS)
    np.testing.assert_allclose(list(decision.reasons.values()), ODD.mean(axis=0), atol=1e-9)
    assert tuple(decision.reasons) == FEATURES
    assert "trust x exp(-0.5 NSDS); trust = 0.5 accuracy + 0.3 exp(-NSDS) + 0.2 consistency" in decision.why


def test_the_consortiums_reasons_are_pooled_by_the_trust_of_the_round_before():
    """Eq. 6 and 7 are circular as printed: this round's reasons need last round's trust."""
    first, _ = played(method(), server(), answers())
    second, _ = played(method(), server(2, state=first.state), answers(accuracy=(0.9, 0.8, 0.7, 0.1), steady=1.0))
    before = np.array(list(first.decision.signals["trust"].values()))
    nsds, _, _ = by_hand(ODD, before, [0.9, 0.8, 0.7, 0.1])
    assert list(second.decision.signals["nsds"].values()) == pytest.approx(nsds)
    assert nsds[3] > by_hand(ODD, np.ones(4), [1] * 4)[0][3], "who is trusted less has less say in what it is held to"
    jumped = second.decision.signals["consistency"]
    assert jumped["a"] == 1 and jumped["d"] == pytest.approx((1 - 0.4 / 0.5 + 1) / 2), ".9 and .1 deviate by .4"


def test_who_was_away_is_trusted_as_before_and_who_is_new_fully():
    first, _ = played(method(), server(), answers(sites=("a", "b", "c")))
    assert np.isnan(first.state["trust"][3])
    second, _ = played(method(), server(2, state=first.state), answers(sites=("b", "c", "d"), steady=1.0))
    assert second.state["trust"][0] == first.state["trust"][0] == first.decision.signals["trust"]["a"]
    known = first.decision.signals["trust"]
    nsds, *_ = by_hand(ODD[1:], [known["b"], known["c"], 1.0], [1] * 3)
    assert list(second.decision.signals["nsds"].values()) == pytest.approx(nsds)
    assert sum(second.decision.weights.values()) == pytest.approx(1)
    np.testing.assert_array_equal(second.state["accuracies"][0], first.state["accuracies"][0])


def test_only_the_last_accuracies_of_the_window_count():
    state: dict = {}
    for r, accuracy in enumerate((0.1, 0.9, 0.9, 0.9), start=1):
        outcome, _ = played(
            method(trust={"window": 3}), server(r, state=state), answers(accuracy=[accuracy] * 4, steady=1.0)
        )
        state = outcome.state
    assert outcome.decision.signals["consistency"]["a"] == pytest.approx(1), "the first is forgotten"
    assert state["accuracies"][0].tolist() == [0.9] * 3


def test_a_site_that_refuses_has_no_weight_and_its_trust_stays_what_it_was():
    """The others' weights are made to sum to 1 in their proportions; its numbers, which they were made with, are kept."""
    first, _ = played(method(), server(), answers())
    whole, _ = played(method(), server(2, state=first.state), answers(accuracy=(0.5,) * 4))
    left, _ = played(method(), server(2, state=first.state), answers(accuracy=(0.5,) * 4), refuse=("b",))
    assert set(left.decision.weights) == {"a", "c", "d"}
    kept = shares_of([whole.decision.weights[s] for s in "acd"])
    assert list(left.decision.weights.values()) == pytest.approx(kept)
    np.testing.assert_allclose(left.model, kept @ MODELS[[0, 2, 3]])
    assert left.state["trust"][1] == first.state["trust"][1] != whole.state["trust"][1]
    assert left.decision.signals["nsds"]["b"] == whole.decision.signals["nsds"]["b"]


def test_where_no_site_goes_along_the_round_fails_in_one_sentence():
    with refused("weights-rejected", match=r"round 1.*\(weights-wrong\)", kind=RunFailed):
        played(method(), server(), answers(), refuse=SITES)


def test_where_the_printed_form_leaves_nothing_trust_alone_decides_and_the_decision_says_so():
    outcome, _ = played(
        method(trust={"form": "printed", "tau": 1e6}), server(), answers(np.eye(4)[:, :3] + np.eye(3)[[1, 2, 0, 1]])
    )
    trust = outcome.decision.signals["trust"]
    assert list(outcome.decision.weights.values()) == pytest.approx(shares_of(list(trust.values())))
    assert outcome.decision.why.startswith(
        "all weights were 0 after the penalty for NSDS, so a site's weight is its share"
    )


def test_sites_that_diverge_beyond_the_alarm_are_named_with_the_number():
    outcome, _ = played(method(trust={"alarm": 0.3}), server(), answers())
    far = outcome.decision.signals["nsds"]["d"]
    assert outcome.decision.notes == (
        f"d: its attributions diverge from the consortium's, NSDS {far:.3f} above method.trust.alarm = 0.3",
    )
    assert not played(method(trust={"alarm": far + 0.01}), server(), answers())[0].decision.notes


@pytest.mark.parametrize(("rule", "weights"), [("data_size", [40, 30, 20, 90]), ("uniform", [1, 1, 1, 1])])
def test_with_another_rule_trust_is_watched_and_no_site_is_asked_about_weights(rule, weights):
    outcome, asked = played(method(weigh=rule), server(), answers())
    assert [a.task for a in asked] == ["train"]
    assert list(outcome.decision.weights.values()) == pytest.approx(shares_of(weights))
    assert outcome.decision.signals["trust"].keys() == set(SITES)
    assert "trust is recorded but not used" in outcome.decision.why


def test_after_the_first_round_the_strongest_features_are_told_apart_and_all_others_as_one():
    """Sites are told which; the rest is dealt out again as it was, so that a feature that grows can come back."""
    made = method(trust={"top": 1})
    first, asked = played(made, server(), answers())
    assert "attribute_kept" not in asked[0].shared
    pooled = first.state["pooled"]
    assert pooled == pytest.approx(ODD.mean(axis=0), abs=1e-9)
    work = made.round(server(2, state=first.state))
    kept = next(work).shared["attribute_kept"]
    assert kept.tolist() == [int(np.argmax(pooled))]
    few = np.array([[0.4, 0.6], [0.4, 0.6], [0.4, 0.6], [0.2, 0.8]])
    heard = answers()
    heard.columns["shap.shares"] = few
    second, _ = played(made, server(2, state=first.state), heard)
    assert tuple(second.decision.reasons) == (FEATURES[kept[0]], "all others")
    now = second.state["pooled"]
    assert now.sum() == pytest.approx(1)
    rest = np.delete(np.arange(3), kept)
    assert now[rest] / now[rest].sum() == pytest.approx(pooled[rest] / pooled[rest].sum())


def test_what_sites_are_shown_is_all_that_weights_follow_from():
    _, asked = played(method(trust={"kappa": 0.5}), server(), answers())
    shown = asked[1].shared
    assert json.loads(shown["names"]) == list(SITES)
    assert set(shown) == {"names", "rule", "weights", "rows", "accuracies", "steadiness", "nsds"}
    assert asked[1].to == SITES
