"""XFed's server on answers made by hand: the score, who is kept, two steps, weights by rank, and who is named."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.methods import build_method
from grandrounds.methods.base import Outcome, Server
from grandrounds.methods.xfed.ranking import fuse_scores, rank_sites, rank_weights
from grandrounds.protocol.messages import KEEP, UPLOAD, Answers, Ask, AskId
from tests import support

SITES = ("a", "b", "c", "d")
MODELS = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 4.0], [4.0, 8.0]])
COUNTS = np.array([40, 30, 20, 90])
ID = AskId("r", 1, 0)


def method(*, name="xfed", xfed=None, **settings):
    values = {"data": {"name": "breast-cancer"}, "method": {"name": name, "xfed": xfed or {}, **settings}}
    plan = gr.Experiment.parse(values).plan()
    return build_method(Settings(plan["method"]), Settings(plan["train"]))


class Pictures:
    """The server's own pictures, on which it finds these numbers."""

    def __init__(self, **found):
        self.found = found

    def rationale(self, models, rule):
        return {f"rationale.{n}": np.asarray(self.found[n], float) for n in ("accuracy", "loss", "xai", "grid")}


def server(round=1, *, reference=None) -> Server:
    return Server(round, np.zeros(2), SITES, 0, shared_reference="scoring", reference=reference)


def answers(accuracy, xai, *, grid=np.nan, loss=1.0, sites=SITES) -> Answers:
    """What sites say of themselves: no model."""
    here = [SITES.index(s) for s in sites]
    said = {"accuracy": accuracy, "loss": loss, "xai": xai, "grid": grid}
    columns = {f"rationale.{n}": np.broadcast_to(np.asarray(v, float), len(SITES))[here] for n, v in said.items()}
    return Answers(tuple(sites), {"count": COUNTS[here], "steps": np.ones(len(here)), **columns}, id=ID)


def played(made, heard: Answers, *, at=None, absent=()) -> tuple[Outcome, list[Ask]]:
    """A round in which sites answer training with this, and send their models unless they drop out then."""

    def answer(ask: Ask) -> Answers:
        if ask.task == "train":
            return heard
        assert ask.task == UPLOAD
        here = tuple(s for s in ask.to if s not in absent)
        gone = {s: "dropped out" for s in ask.to if s in absent}
        return Answers(here, {"model": MODELS[[SITES.index(s) for s in here]]}, missing=gone)

    return support.played(made.round(at or server()), answer)


def test_the_score_by_hand():
    accuracy, reasons = np.array([0.5, 1.0, 0.25]), np.array([1.0, 0.5, np.nan])
    np.testing.assert_allclose(fuse_scores(accuracy, reasons, 0.2), [0.6, 0.9, 0.2])
    np.testing.assert_array_equal(fuse_scores(accuracy, reasons, 0.0), accuracy)
    np.testing.assert_array_equal(fuse_scores(accuracy, reasons, 1.0), [1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("keep", "count", "kept"),
    [
        (0.9, 10, 9),
        (0.9, 16, 15),
        (0.95, 16, 15),
        (0.9, 20, 18),
        (0.5, 5, 3),
        (1, 5, 4),
        (1, 2, 1),
        (0.01, 9, 1),
        (0.9, 1, 1),
    ],
)
def test_so_many_are_kept(keep, count, kept):
    """ceil(keep K); XFed's 16 sites keep 15 by either share; of more than one at least one is left out."""
    score = np.linspace(0, 1, count)
    found = rank_sites(score, score, tuple(f"s{k:02}" for k in range(count)), keep=keep)
    assert found.selected.sum() == kept
    assert found.selected[-kept:].all(), "the best are kept"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.floats(0.01, 1),
)
def test_the_kept_are_never_worse_than_those_left_out(said, keep):
    score, accuracy = np.array(said, float).T / 3
    sites = tuple(f"s{k:02}" for k in range(len(said)))
    found = rank_sites(score, accuracy, sites, keep=keep)
    assert sorted(found.place) == list(range(1, len(said) + 1))
    assert found.selected.sum() == max(1, min(ceil(keep * len(said) - 1e-9), len(said) - 1))
    worth = [(-score[k], -accuracy[k], sites[k]) for k in range(len(said))]
    assert [worth[k] for k in np.argsort(found.place)] == sorted(worth)
    assert (found.place[found.selected] <= found.selected.sum()).all()


def test_ties_are_broken_by_accuracy_then_by_name_whatever_the_order():
    score, accuracy = np.full(4, 0.5), np.array([0.4, 0.6, 0.4, 0.6])
    assert rank_sites(score, accuracy, ("d", "c", "b", "a"), keep=0.5).place.tolist() == [4, 2, 3, 1]


def test_a_round_in_two_steps_by_hand():
    """0.2 XAI accuracy + 0.8 accuracy: .6, .68, .56, .42; three of four are kept, and averaged by their rows."""
    heard = answers([0.5, 0.6, 0.7, 0.4], [1.0, 1.0, 0.0, 0.5])
    outcome, (first, second) = played(method(xfed={"keep": 0.75}), heard)
    assert first.task == "train" and first.shared[KEEP] is True and first.to == SITES
    assert "model" not in first.report and "rationale" in first.report
    assert (second.task, second.to, second.report) == (UPLOAD, ("a", "b", "c"), ("model",))
    assert second.shared == {"of": "r/1/0"}
    decision = outcome.decision
    assert list(decision.signals["score"].values()) == pytest.approx([0.6, 0.68, 0.56, 0.42])
    assert decision.signals["place"] == {"a": 2, "b": 1, "c": 3, "d": 4}
    assert list(decision.signals["xai"].values()) == [1.0, 1.0, 0.0, 0.5]
    assert "grid" not in decision.signals, "there are no scenes"
    assert decision.weights == pytest.approx({"a": 4 / 9, "b": 3 / 9, "c": 2 / 9})
    np.testing.assert_allclose(outcome.model, np.array([4, 3, 2]) / 9 @ MODELS[:3])
    assert "3 of 4 sites send their models, by 0.2 x XAI accuracy + 0.8 x accuracy; not asked: d" in decision.why
    assert "saves the upload of 2 numbers" in decision.why


@pytest.mark.parametrize(
    ("xfed", "last"),
    [
        ({"xai_share": 0}, "c"),
        ({"xai_share": 1}, "b"),
        ({"xai_share": 1, "score": "grid"}, "a"),
        ({"xai_share": 0, "measure": "cross-entropy"}, "d"),
    ],
    ids=["accuracy alone", "masks alone", "grid alone", "cross-entropy alone"],
)
def test_what_the_score_is_made_of_decides_who_is_left_out(xfed, last):
    heard = answers([0.9, 0.8, 0.1, 0.7], [0.9, 0.1, 0.8, 0.7], grid=[0.1, 0.8, 0.9, 0.7], loss=[0.5, 0.6, 0.7, 3.0])
    outcome, _ = played(method(xfed=xfed), heard)
    assert set(SITES) - set(outcome.decision.weights) == {last}
    assert outcome.decision.signals["place"][last] == 4


def test_cross_entropy_counts_as_the_chance_given_to_the_truth():
    heard = answers(0.5, [0.5, 0.5, 0.5, 1.0], loss=np.log([2.0, 4.0, 8.0, 1.0]))
    outcome, _ = played(method(xfed={"measure": "cross-entropy", "xai_share": 0.5}), heard)
    assert list(outcome.decision.signals["score"].values()) == pytest.approx([0.5, 0.375, 0.3125, 1.0])
    assert outcome.decision.signals["cross_entropy"]["c"] == pytest.approx(np.log(8))


def test_weights_by_rank_by_hand():
    np.testing.assert_allclose(rank_weights(np.array([2.0, 1.0, 3.0])), [2 / 6, 3 / 6, 1 / 6])
    heard = answers([0.5, 0.6, 0.4, 0.3], 0.5)
    outcome, _ = played(method(xfed={"weights": "rank"}), heard)
    assert outcome.decision.weights == pytest.approx({"a": 2 / 6, "b": 3 / 6, "c": 1 / 6})
    np.testing.assert_allclose(outcome.model, np.array([2, 3, 1]) / 6 @ MODELS[:3])


@pytest.mark.parametrize("settings", [{}, {"stability": "proximal", "mu": 0.3}], ids=["fedavg", "fedprox"])
def test_with_equal_scores_it_is_fedavg_of_the_first_by_name(settings):
    outcome, asked = played(method(**settings), answers(0.5, 0.5))
    assert tuple(outcome.decision.weights) == ("a", "b", "c")
    plain = method(name="fedavg", **settings)
    work = plain.round(server())
    ask = work.send(None)
    assert set(asked[0].shared) - {"rationale", "rationale_on", KEEP} == set(ask.shared)
    assert asked[0].shared.get("proximal") == ask.shared.get("proximal")
    with pytest.raises(StopIteration) as end:
        work.send(Answers(SITES[:3], {"model": MODELS[:3], "count": COUNTS[:3], "steps": np.ones(3)}))
    assert outcome.model.tobytes() == end.value.value.model.tobytes()


def test_a_site_that_answers_alone_is_kept():
    outcome, asked = played(method(), answers(0.0, 0.0, sites=("c",)))
    assert asked[1].to == ("c",) and outcome.decision.weights == {"c": 1.0}
    assert outcome.decision.why.startswith("c is the only site that answered")


def test_after_until_a_round_is_one_of_fedavg():
    made = method(xfed={"until": 1})
    _, asked = played(made, answers(0.5, 0.5))
    assert [a.task for a in asked] == ["train", UPLOAD]
    work = made.round(server(2))
    ask = work.send(None)
    assert "model" in ask.report and "rationale" not in ask.report and KEEP not in ask.shared


def test_a_chosen_site_that_is_gone_when_it_is_asked_for_its_model_is_left_out():
    heard = answers([0.5, 0.6, 0.7, 0.4], 1.0)
    outcome, asked = played(method(), heard, absent=("b",))
    assert asked[1].to == ("a", "b", "c")
    assert outcome.decision.weights == pytest.approx({"a": 4 / 6, "c": 2 / 6})
    np.testing.assert_allclose(outcome.model, np.array([4, 2]) / 6 @ MODELS[[0, 2]])
    assert "b" in outcome.decision.signals["score"]


def test_a_server_that_looks_names_who_said_something_else():
    """It has the models of a, b, c; b's accuracy and c's loss are not as they said; a is within tolerance."""
    looking = Pictures(accuracy=[0.93, 0.5, 0.9], loss=[1.0, 1.0, 3.0], xai=[1.0, 1.0, 1.0], grid=[np.nan] * 3)
    heard = answers([0.9, 0.9, 0.9, 0.1], 1.0)
    outcome, _ = played(method(xfed={"score_at": "server"}), heard, at=server(reference=looking))
    assert outcome.decision.notes == (
        "b: says accuracy 0.900, but the server computes 0.500",
        "c: says cross entropy 1.000, but the server computes 3.000",
    )
    assert outcome.decision.signals["seen_accuracy"] == {"a": 0.93, "b": 0.5, "c": 0.9}
    assert "seen_grid" not in outcome.decision.signals
    assert not played(method(), heard)[0].decision.notes, "it does not look unless it is told to"
