"""How answers are weighed: by hand, as properties, and with reference rows through a whole run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.consortium import assemble
from grandrounds.data.table import Table
from grandrounds.errors import BadInput
from grandrounds.messages import Answers
from grandrounds.methods.base import Server
from grandrounds.methods.weigh import RULES, distances, nearness, weigh
from grandrounds.settings import Settings
from grandrounds.trained import TrainedModel
from tests.support import patients, ready, rounds, stack

THREE = Answers(
    ("a", "b", "c"), {"model": np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]]), "count": np.array([10, 30, 60])}
)


class Judge:
    """Reference rows that find what they are told to."""

    def __init__(self, *right: float) -> None:
        self.right = np.array(right)
        self.asked: list[np.ndarray] = []

    def accuracy(self, models):
        self.asked.append(models)
        return self.right

    def train(self, model, work):
        raise AssertionError("weighing trains nothing")


def weighed(rule: str, answers=THREE, *, reference=None):
    return weigh(rule, Server(1, np.zeros(2), answers.sites, 0, reference=reference), answers)


# --- by hand ----------------------------------------------------------------------------------------


def test_data_size_by_hand():
    assert weighed("data_size").weights == pytest.approx([0.1, 0.3, 0.6])


def test_uniform_by_hand():
    got = weighed("uniform")
    assert got.weights == pytest.approx([1 / 3, 1 / 3, 1 / 3]) and got.signals == {}


def test_distance_by_hand():
    """The mean is (1, 2), so the distances are the roots of 5, 8 and 17."""
    d = np.sqrt([5.0, 8.0, 17.0])
    close = np.exp(-d / d.mean())
    got = weighed("distance")
    assert got.signals["distance"] == pytest.approx(d)
    assert got.weights == pytest.approx(close / close.sum())
    assert got.weights[0] > got.weights[1] > got.weights[2]


def test_distance_of_models_at_one_place_is_uniform():
    alike = Answers(("a", "b"), {"model": np.ones((2, 3)), "count": np.array([1, 9])})
    assert weighed("distance", alike).weights.tolist() == [0.5, 0.5]
    alone = Answers(("a",), {"model": np.ones((1, 3)), "count": np.array([7])})
    assert [weighed(rule, alone, reference=Judge(0.3)).weights.tolist() for rule in RULES] == [[1.0]] * 4


def test_reference_accuracy_by_hand():
    judge = Judge(0.9, 0.6, 0.0)
    got = weighed("reference_accuracy", reference=judge)
    assert got.weights == pytest.approx([0.6, 0.4, 0.0])
    assert got.signals["reference_accuracy"].tolist() == [0.9, 0.6, 0.0]
    np.testing.assert_array_equal(judge.asked[0], THREE["model"])


def test_where_no_model_is_ever_right_all_weigh_alike():
    assert weighed("reference_accuracy", reference=Judge(0, 0, 0)).weights == pytest.approx([1 / 3] * 3)


# --- properties -------------------------------------------------------------------------------------


@st.composite
def models(draw):
    """Models (K, P) of whole numbers, so that shifting them is exact, not all at one place."""
    sites, size = draw(st.integers(2, 7)), draw(st.integers(1, 4))
    cells = st.lists(st.integers(-9, 9), min_size=size, max_size=size)
    found = np.array(draw(st.lists(cells, min_size=sites, max_size=sites)), float)
    assume((found != found[0]).any())
    return found


@given(theta=models(), shift=st.integers(-50, 50), seed=st.integers(0, 99))
@examples(max_examples=80, deadline=None)
def test_distance_weights_follow_the_sites_and_not_the_place(theta, shift, seed):
    weights = nearness(distances(theta))
    assert weights.sum() == pytest.approx(1) and (weights > 0).all()
    np.testing.assert_allclose(nearness(distances(theta + shift)), weights, atol=1e-9)
    np.testing.assert_allclose(nearness(distances(3 * theta)), weights, atol=1e-9)
    order = np.random.default_rng(seed).permutation(len(theta))
    np.testing.assert_allclose(nearness(distances(theta[order])), weights[order], atol=1e-12)


@given(theta=models())
@examples(max_examples=80, deadline=None)
def test_the_further_from_the_mean_the_less_weight(theta):
    far = np.linalg.norm(theta - theta.mean(axis=0), axis=1)
    weights = nearness(distances(theta))
    for i in range(len(far)):
        for j in range(len(far)):
            if far[i] > far[j] + 1e-9:
                assert weights[i] < weights[j]


@given(
    counts=st.lists(st.integers(1, 10_000), min_size=1, max_size=9),
    right=st.lists(st.floats(0, 1), min_size=9, max_size=9),
    seed=st.integers(0, 99),
)
@examples(max_examples=60, deadline=None)
def test_every_rule_gives_shares_that_move_with_the_sites(counts, right, seed):
    sites = tuple("abcdefghi"[: len(counts)])
    theta = np.random.default_rng(seed).normal(size=(len(counts), 3))
    order = np.random.default_rng(seed).permutation(len(counts))
    for rule in RULES:
        one, other = (
            weighed(
                rule,
                Answers(tuple(np.array(sites)[i]), {"model": theta[i], "count": np.array(counts)[i]}),
                reference=Judge(*np.array(right)[i]),
            ).weights
            for i in (np.arange(len(counts)), order)
        )
        assert one.sum() == pytest.approx(1) and (one >= 0).all() and np.isfinite(one).all()
        np.testing.assert_allclose(other, one[order], atol=1e-12)


# --- through the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("weigh", ["data_size", "uniform", "distance"])
def test_the_model_is_the_mean_by_these_weights(weigh):
    """One round's model against the mean of what the same sites train alone."""
    held = stack([12, 32, 52])
    theta, (decision,) = rounds(ready(held)[0], count=1, method={"weigh": weigh})
    state: dict = {}
    rounds(ready(held)[0], count=1, method={"name": "local"}, state=state)
    own = np.asarray(state["served"].models, float)
    if weigh == "distance":
        d = np.linalg.norm(own - own.mean(axis=0), axis=1)
        expected = np.exp(-d / d.mean()) / np.exp(-d / d.mean()).sum()
        assert decision.signals["distance"] == pytest.approx(dict(zip("abc", d, strict=True)), rel=1e-4)
    else:
        expected = np.array([10, 30, 50]) / 90 if weigh == "data_size" else np.full(3, 1 / 3)
    assert list(decision.weights.values()) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(theta, expected @ own, atol=1e-6)
    assert decision.signals["data_size"] == {"a": 10, "b": 30, "c": 50}


# --- reference rows ---------------------------------------------------------------------------------


def one_turned(sizes=(90, 80, 150)) -> Table:
    """Three hospitals of one clear rule; the last and largest has all its labels turned round."""
    rng = np.random.default_rng(4)
    n = sum(sizes)
    x = rng.normal(size=(n, 3))
    y = x[:, 0] + 0.3 * rng.normal(size=n) > 0
    site = np.repeat(["a", "b", "c"], sizes)
    y = np.where(site == "c", ~y, y)
    return Table.from_mapping(
        {**{f"x{i}": x[:, i] for i in range(3)}, "hospital": site, "died": y.astype(float)}, source="turned.csv"
    )


def run(out, table, **method) -> gr.Run:
    plan = {
        "data": {"label": "died", "site": "hospital"},
        "method": {"rounds": 1, **method},
        "reference": {"root": {"rows": 60}},
    }
    return gr.run(gr.Experiment.parse(plan), table=table, out=out)


def test_a_site_with_turned_labels_weighs_less_by_reference_rows_than_by_size(tmp_path):
    table = one_turned()
    sized = run(tmp_path / "sized", table).rounds[0]["decision"]
    judged = run(tmp_path / "judged", table, weigh="reference_accuracy").rounds[0]["decision"]
    right = judged["signals"]["reference_accuracy"]
    total = sum(right.values())
    assert judged["weights"] == pytest.approx({s: r / total for s, r in right.items()})
    assert sized["weights"]["c"] > 0.4
    assert judged["weights"]["c"] < 0.75 * sized["weights"]["c"]
    assert judged["weights"]["c"] < min(judged["weights"]["a"], judged["weights"]["b"])


def test_reference_accuracy_is_that_of_each_sites_own_model_on_the_servers_rows(tmp_path):
    """Method 'local' leaves the very models on disk that the first round weighs: they are scored here by hand."""
    table = one_turned()
    judged = run(tmp_path / "judged", table, weigh="reference_accuracy")
    alone = run(tmp_path / "alone", table, name="local")
    plan = Settings({**judged.plan, "data": {**judged.plan["data"], "sha256": None}})
    rows = assemble(plan, table).reference["root"].rows
    truth = table.take(rows).columns["died"]
    for site, file in alone.summary["models"].items():
        said = TrainedModel.load(alone.folder / file).predict(table.take(rows)).decisions.astype(float)
        found = judged.rounds[0]["decision"]["signals"]["reference_accuracy"][site]
        assert found == pytest.approx(np.mean(said == truth))


@pytest.mark.parametrize("method", [{"weigh": "reference_accuracy"}, {"robust": "fltrust"}])
def test_reference_rows_are_nobodys_rows(method, tmp_path):
    table = one_turned()
    done = run(tmp_path / "r", table, **method)
    plan = Settings({**done.plan, "data": {**done.plan["data"], "sha256": None}})
    held = assemble(plan, table)
    mine = np.concatenate([part for r in held.stack.rows for part in (r.train, r.val, r.test)])
    root = held.reference["root"].rows
    assert len(root) == 60 and not set(root.tolist()) & set(mine.tolist())
    assert sorted([*mine.tolist(), *root.tolist()]) == list(range(len(table)))
    assert sum(sum(r.values()) for r in done.summary["rows"].values()) == len(table) - 60
    assert done.summary["reference"]["root"]


def test_which_reference_is_meant_must_be_said_and_be_there(tmp_path):
    two = {"root": {"rows": 20}, "other": {"rows": 20}}
    base = {"data": {"label": "died", "site": "hospital"}}

    def tried(sets, **method):
        plan = {**base, "reference": sets, "method": {"rounds": 1, **method}}
        return gr.run(gr.Experiment.parse(plan), table=patients([60, 50]), out=tmp_path / "r")

    with pytest.raises(BadInput, match="needs reference rows at the server: add \\[reference.root\\]"):
        tried({}, weigh="reference_accuracy")
    with pytest.raises(BadInput, match="which reference rows are meant: set method.reference"):
        tried(two, weigh="reference_accuracy")
    with pytest.raises(BadInput, match="method.reference is 'rot'; did you mean 'root'"):
        tried(two, weigh="reference_accuracy", reference="rot")
    with pytest.raises(BadInput, match="method.reference is 'root'; there is no \\[reference\\]"):
        tried({}, weigh="reference_accuracy", reference="root")
    assert not (tmp_path / "r").exists()
    named = tried(two, weigh="reference_accuracy", reference="other")
    assert named.rounds[0]["decision"]["signals"]["reference_accuracy"]
