"""FedXChain at a site: its shares against SHAP's own, what it refuses and by which code, and what no question draws out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.engine.local import LocalEngine
from grandrounds.explain.explainers.shapley import scores, shap_deep
from grandrounds.explain.features import build_features
from grandrounds.explain.trust import DOUBTS, TrustInputs, TrustRule, compute_trust, distribution, divergence
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import share_reference
from grandrounds.methods.secure import SecureRule, exchange_identities, secure_sum
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.protocol.tasks import CONTRIBUTE, DIVERGE, WEIGHTS
from tests.support import ready, refused, stack

SIZES = [30, 40, 50, 35]


class Round:
    """A round of FedXChain that can be stopped at any question, to be put to the sites in other words."""

    def __init__(self, engine: LocalEngine, encoding, *, secure=False, theta=None, **trust) -> None:
        values = {
            "data": {"name": "breast-cancer"},  # for the sake of the form: the rows are the engine's
            "method": {"name": "fedxchain", "trust": trust},
            "train": {"steps": 8, "batch": 8, "lr": 0.2},
        }
        plan = gr.Experiment.parse(values).plan()
        self.engine, host = engine, engine.hosts[0]
        counts = host.stack.parts["train"].counts
        self.server = Server(
            round=1,
            model=host.model.init(0) if theta is None else theta,
            sites=engine.sites,
            seed=0,
            rows=dict(zip(engine.sites, counts.tolist(), strict=True)),
            background=np.zeros((1, *encoding.inputs)),
            features=build_features(encoding, grid=0).names,
            secure=SecureRule(engine.drive(exchange_identities(engine.sites), round=0)) if secure else None,
        )
        self._work = build_method(Settings(plan["method"]), Settings(plan["train"])).round(self.server)
        self._reply = None
        self.engine._round = 1

    def until(self, task: str) -> Ask:
        """The first question of this name, not yet put to any site."""
        while True:
            ask = self._work.send(self._reply)
            if ask.task == task:
                return self.engine._number(ask)
            self._reply = self.engine._ask(ask)

    def put(self, ask: Ask) -> dict:
        """The sites' answers to this question."""
        return self.engine.hosts[0].answer(ask, np.arange(len(self.engine.sites)))

    def goes_on(self, ask: Ask) -> None:
        """With what the sites answer to this question."""
        self._reply = self.engine._ask(replace(ask, id=None))


def begun(*, model="logistic", sizes=SIZES, largest_weight=1.0, **settings) -> Round:
    engine, encoding = ready(stack(sizes), model=model, largest_weight=largest_weight)
    return Round(engine, encoding, **settings)


# What a site says of its model


@pytest.mark.parametrize("model", ["logistic", "forest", "mlp"])
def test_shares_are_those_of_the_shap_library(model):
    """Each site's own model on its own training rows, from the agreed background: by KernelExplainer on all coalitions.

    An MLP is explained by path gradients, which DeepExplainer's rule is for one hidden layer, but for ten steps a path.
    """
    import shap

    work = begun(model=model, sizes=[14, 16, 18])
    told = work.put(work.until("train"))
    host, features = work.engine.hosts[0], build_features(work.engine.hosts[0].encoding, grid=0)
    part = host.stack.parts["train"]
    for k, theta in enumerate(told["model"]):
        x = part.x[part.offsets[k] : part.offsets[k + 1]].astype(float)
        f, background = scores(host.model, theta), np.zeros((1, x.shape[1]))
        if model == "mlp":
            found = shap_deep(host.model, theta, x, background)[:, 0]
        else:
            explainer = shap.KernelExplainer(lambda rows, f=f: np.asarray(f(rows), float)[:, -1], background)
            found = np.asarray(explainer.shap_values(x, nsamples=2 ** x.shape[1], l1_reg=False, silent=True))
        by_feature = np.stack([found[:, features.feature_index == j].sum(axis=1) for j in range(len(features))], axis=1)
        theirs = distribution(np.abs(by_feature).mean(axis=0))
        np.testing.assert_allclose(told["shap.shares"][k], theirs, atol=0.02 if model == "mlp" else 1e-5)


def test_accuracy_is_that_on_own_validation_rows_and_nothing_is_known_where_there_are_none():
    work = begun()
    host = work.engine.hosts[0]
    told = work.put(work.until("train"))
    part = host.stack.parts["val"]
    for k in range(len(SIZES)):
        own = slice(part.offsets[k], part.offsets[k + 1])
        right = (host.model.logits(told["model"][k], part.x[own])[:, 0] > 0) == part.y[own]
        assert told["trust.accuracy"][k] == right.mean()
    assert np.isnan(told["trust.steadiness"]).all(), "a first round has nothing to be steady against"


def test_divergence_is_worked_out_from_what_the_site_holds_back():
    work = begun(secure=True)
    ask = work.until(DIVERGE)
    host = work.engine.hosts[0]
    said = work.put(ask)["trust.nsds"]
    held = [host.withheld_reports.look(str(ask.shared["of"]), k)["shap.shares"] for k in range(len(SIZES))]
    np.testing.assert_allclose(said, [divergence(h, np.asarray(ask.shared["shares"])) for h in held])
    assert set(work.put(ask)) == {"trust.nsds"}, "one number, and no shares"


# What a site refuses


def changed(ask: Ask, **values) -> Ask:
    return replace(ask, shared={**ask.shared, **values}, id=AskId("test", 1, 99))


def moved(values, k, by) -> np.ndarray:
    out = np.array(values, float)
    out[k] += by
    return out


TAMPERED = {
    "one weight by a millionth": (lambda s: {"weights": moved(s["weights"], 2, 1e-6)}, "weights-wrong"),
    "two weights exchanged": (lambda s: {"weights": np.asarray(s["weights"])[[1, 0, 2, 3]]}, "weights-wrong"),
    "one site everything": (lambda s: {"weights": np.eye(4)[0]}, "weights-wrong"),
    "fewer weights": (lambda s: {"weights": np.asarray(s["weights"])[:3]}, "weights-wrong"),
    "more weights": (lambda s: {"weights": np.append(s["weights"], 0.0)}, "weights-wrong"),
    "no numbers": (lambda s: {"weights": np.full(4, np.nan)}, "weights-wrong"),
    "one weight that is no number": (lambda s: {"weights": moved(s["weights"], 0, np.nan)}, "weights-wrong"),
    "rows left out": (lambda s: {"nsds": np.asarray(s["nsds"])[:3]}, "not-as-told"),
    "a name twice": (lambda s: {"names": json.dumps(["a", "b", "c", "c"])}, "not-as-told"),
    "a divergence below 0": (lambda s: {"nsds": moved(s["nsds"], 1, -50)}, "not-as-told"),
    "an accuracy beyond 1": (lambda s: {"accuracies": np.asarray(s["accuracies"]) + 7}, "not-as-told"),
    "a gentler rule": (lambda s: {"rule": TrustRule(tau=0.1).to_json()}, "rule-changed"),
}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("how", TAMPERED)
def test_weights_that_do_not_follow_are_refused_by_every_site(how, secure):
    """A code, which is explained elsewhere, and nothing of the site."""
    work = begun(secure=secure)
    ask = work.until(WEIGHTS)
    first = work.put(ask)
    assert first["error"] == [""] * 4 and first["agreed"].all(), "as they are, all go along"
    change, code = TAMPERED[how]
    answer = work.put(changed(ask, **change(ask.shared)))
    assert answer["error"] == [code] * 4 and not answer["agreed"].any()
    assert set(answer) == {"agreed", "error"} and code in DOUBTS


@pytest.mark.parametrize(
    ("what", "by"), [("nsds", 0.01), ("nsds", 1e-6), ("steadiness", 0.5), ("rows", 1.0), ("accuracies", -0.25)]
)
def test_a_number_that_a_site_did_not_say_is_refused_by_that_site(what, by):
    """The weights follow from what is shown, so the others have nothing to find: the one whose number it is has."""
    work = begun(secure=True, kappa=0.5)
    ask = work.until(WEIGHTS)
    shown = {n: np.array(v, float) for n, v in TrustInputs.from_values(ask.shared).to_values().items()}
    if what == "accuracies":
        shown[what][1, -1] = abs(shown[what][1, -1] + by)
    else:
        shown[what][1] = np.nan_to_num(shown[what][1]) + by
    rule = TrustRule.from_json(ask.shared["rule"])
    answer = work.put(changed(ask, **shown, weights=compute_trust(rule, TrustInputs.from_values(shown)).weights))
    assert answer["error"] == ["", "not-as-told", "", ""]


def test_a_site_that_is_not_on_the_list_does_not_go_along():
    work = begun()
    ask = work.until(WEIGHTS)
    rule = TrustRule.from_json(ask.shared["rule"])
    left = {n: np.asarray(v)[:3] for n, v in TrustInputs.from_values(ask.shared).to_values().items()}
    weights = compute_trust(rule, TrustInputs.from_values(left)).weights
    answer = work.put(changed(ask, names=json.dumps(["a", "b", "c"]), weights=weights, **left))
    assert answer["error"] == ["", "", "", "not-as-told"]


def test_a_weight_beyond_the_largest_is_refused_by_all_whoever_has_it():
    work = begun(secure=True, largest_weight=0.27, alpha=1.0, beta=0.0, gamma=0.0)
    ask = work.until(WEIGHTS)
    assert max(ask.shared["weights"]) > 0.27, "some are right on their one validation row"
    assert work.put(ask)["error"] == ["weight-too-large"] * 4


def test_the_rule_is_the_one_first_told_also_in_later_rounds():
    engine, encoding = ready(stack(SIZES))
    first = Round(engine, encoding)
    assert first.put(first.until(WEIGHTS))["agreed"].all()
    later = Round(engine, encoding, tau=0.6)
    assert later.put(later.until(WEIGHTS))["error"] == ["rule-changed"] * 4


@pytest.mark.parametrize("rule", ["not json", json.dumps({"alpha": 3, "beta": -2, "gamma": 0})])
def test_what_is_no_rule_is_refused_and_not_remembered(rule):
    work = begun()
    ask = work.until(WEIGHTS)
    with pytest.raises(BadInput, match="trust rule"):
        work.put(changed(ask, rule=rule))
    assert work.put(ask)["agreed"].all()


# The sum that follows


@pytest.mark.parametrize("how", ["others", "plain", "half"])
def test_models_are_summed_by_the_weights_that_were_shown_or_not_at_all(how):
    """A server that shows the right weights and then sums by others would have passed every check before."""
    work = begun(secure=True)
    ask = work.until(WEIGHTS)
    work.goes_on(ask)
    true = dict(zip("abcd", np.asarray(ask.shared["weights"]).tolist(), strict=True))
    told = {
        "others": {**true, "a": true["a"] + 0.1, "b": true["b"] - 0.1},
        "half": {**true, "a": true["a"] / 2},
        "plain": None,
    }[how]
    ask = work.until("secagg.shares")
    assert ask.shared["tag"].startswith("models")
    roster = json.loads(ask.shared["names"])
    table = np.empty((4, 0)) if told is None else np.array([[told[name]] for name in roster])
    work.goes_on(replace(ask, shared={**ask.shared, "weights": table}))
    masked = work.until("secagg.masked")
    answer = work.put(masked)
    assert answer["error"] == ["other-weights"] * 4
    assert not any(np.asarray(m).size for m in answer["masked"]), "nothing leaves, not under masks either"


def test_a_site_that_refused_the_weights_is_in_no_sum_by_them():
    work = begun(secure=True)
    ask = work.until(WEIGHTS)
    wrong = changed(ask, weights=moved(ask.shared["weights"], 0, 0.01))
    assert not work.put(wrong)["agreed"].any()
    answers = work.engine._ask(replace(ask, id=None))
    work.put(wrong)  # and again after it went along
    work._reply = answers
    work.goes_on(work.until("secagg.shares"))
    assert work.put(work.until("secagg.masked"))["error"] == ["other-weights"] * 4


# Questions that would tell what is held


def test_how_far_reasons_diverge_is_said_once_and_not_from_everything_a_server_likes():
    """F questions would tell F shares: ln q is the server's to choose."""
    work = begun(secure=True)
    ask = work.until(DIVERGE)
    first = work.put(ask)["trust.nsds"]
    np.testing.assert_array_equal(work.put(replace(ask, id=AskId("test", 1, 98)))["trust.nsds"], first)
    other = np.asarray(ask.shared["shares"]) + np.eye(len(ask.shared["shares"]))[0]
    with refused("repeated-release", match="'trust.diverge'"):
        work.put(changed(ask, shares=other / other.sum()))
    with refused("answer-not-held"):
        work.put(changed(ask, of="test/1/77"))


@pytest.mark.parametrize("how", ["no shares", "twice", "next to nothing", "fewer", "no number"])
def test_reasons_that_no_consortium_has_are_not_answered(how):
    """KL(p || q) is p . ln p - p . ln q: with ln q = -1, -30, -700 one number would tell several shares."""
    work = begun(secure=True)
    ask = work.until(DIVERGE)
    true = np.asarray(ask.shared["shares"], float)
    least = np.where(np.arange(len(true)) == 1, 1e-30, true)
    told = {
        "no shares": np.zeros_like(true),
        "twice": 2 * true,
        "next to nothing": least / least.sum(),
        "fewer": true[1:] / true[1:].sum(),
        "no number": np.full_like(true, np.nan),
    }[how]
    with refused("bad-request-values" if how == "no number" else "implausible-consensus"):
        work.put(changed(ask, shares=told))
    assert work.put(ask)["trust.nsds"].shape == (4,), "and the question that was meant is still open"


def test_which_way_reasons_point_is_a_direction_and_no_longer_one():
    work = begun(secure=True, signed=True)
    ask = work.until(DIVERGE)
    with refused("implausible-consensus"):
        work.put(changed(ask, direction=1e6 * np.asarray(ask.shared["direction"])))
    assert (np.abs(work.put(ask)["trust.alignment"]) <= 1 + 1e-9).all()


def test_what_a_part_was_worth_is_not_said_of_other_rows_by_the_same_name():
    """A set of one row after the other would tell a site's own model, score by score."""
    work = begun(secure=True)
    trained = work.until(DIVERGE)
    host, part = work.engine.hosts[0], work.engine.hosts[0].stack.parts["train"]
    shared = {"model": np.asarray(work.server.model, float), "of": trained.shared["of"], "total": 1.0, "on": "root"}
    ask = Ask(CONTRIBUTE, shared=shared, each={s: {"weight": 0.25, "share": 0.25} for s in "abcd"}, report=("trust",))
    for step, rows in enumerate([slice(0, 20), slice(20, 40)]):
        lending = share_reference("root", part.x[rows], build_features(host.encoding, grid=0), part.target[rows], tuple("abcd"))
        work.engine.drive(lending, round=1)
        question = ask.numbered(AskId("t", 1, 60 + step), tuple("abcd"))
        if not step:
            assert np.isfinite(host.answer(question, np.arange(4))["trust.contribution"]).all()
        else:
            with refused("repeated-release", match="'trust.contribute'"):
                host.answer(question, np.arange(4))


def test_a_sum_that_a_site_has_forgotten_is_not_begun_again_without_a_peer():
    """The difference of the two would be that peer's model."""
    work = begun(secure=True)
    answers = work.engine._ask(work.until("train"))
    rule, engine = work.server.secure, work.engine

    def summed(sites: str):
        own = {s: 1 / len(sites) for s in sites}
        some = answers.only([k for k, s in enumerate(answers.sites) if s in own], {})
        return engine.drive(secure_sum(rule, some, weights={"model": own}, only_reports=("model",)), round=1)

    assert summed("abcd").sites == tuple("abcd")
    for other in range(8):
        keys = Ask("secagg.keys", shared={"tag": f"other {other}"}, report=("keys", "error"))
        work.put(keys.numbered(AskId(answers.id.run, 1, 200 + other), tuple("abcd")))
    with refused("repeated-release"):
        summed("abc")


def test_what_a_part_was_worth_is_said_once_and_of_no_share_beyond_the_largest():
    work = begun(secure=True, largest_weight=0.9)
    trained = work.until(DIVERGE)
    host, members = work.engine.hosts[0], np.arange(4)
    part = host.stack.parts["train"]
    lending = share_reference("root", part.x[:20], build_features(host.encoding, grid=0), part.target[:20], work.engine.sites)
    work.engine.drive(lending, round=1)

    def asked(weight: float, model: np.ndarray) -> Ask:
        shared = {"model": model, "of": trained.shared["of"], "total": 1.0, "on": "root"}
        return Ask(CONTRIBUTE, shared=shared, each={s: {"weight": weight, "share": weight} for s in "abcd"}, report=("trust",))

    theta = np.asarray(work.server.model, float) + 0.1
    said = host.answer(asked(0.25, theta).numbered(AskId("t", 1, 50), tuple("abcd")), members)["trust.contribution"]
    again = host.answer(asked(0.25, theta).numbered(AskId("t", 1, 51), tuple("abcd")), members)["trust.contribution"]
    np.testing.assert_array_equal(said, again)
    with refused("repeated-release", match="'trust.contribute'"):
        host.answer(asked(0.25, theta + 1).numbered(AskId("t", 1, 52), tuple("abcd")), members)
    for share in (0.95, -1.0, float("nan"), 1e9):
        with refused("bad-request-values" if np.isnan(share) else "weight-too-large"):
            host.answer(asked(share, theta).numbered(AskId("t", 1, 53), tuple("abcd")), members)
