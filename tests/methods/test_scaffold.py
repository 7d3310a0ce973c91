"""SCAFFOLD against loops anyone would write, and what it is for: sites that pull apart still find the optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.rng import generator
from grandrounds.data.split import Rows
from grandrounds.engine.faults import Faults
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.scaffold import correction, update_variates
from grandrounds.protocol.messages import Answers
from grandrounds.site.batches import batch_rows, batch_width
from grandrounds.site.stack import Stack
from tests.support import dataset, patients, ready, refused, rounds, sections, stack

SIZES = [40, 22, 61, 9, 33]
SCAFFOLD = {"name": "scaffold"}


def double(held: Stack, **settings):
    """An engine in double precision, the training rows of its sites, and a start that is not the origin."""
    engine, _ = ready(held, precision="float64", **settings)
    host = engine.hosts[0]
    first = generator(3, purpose="start").normal(size=host.model.layout.size) / 5
    return engine, host.stack.parts["train"], first


def slope(theta, x, y, *, l2: float):
    """The gradient of the mean log loss plus l2 / 2 * ||w||^2 of a logistic model, its bias last."""
    p = 1 / (1 + np.exp(-(x @ theta[:-1] + theta[-1])))
    return np.append(x.T @ (p - y) / len(y) + l2 * theta[:-1], (p - y).mean())


class Reference:
    """Karimireddy et al. 2020, Algorithm 1 with option II, site by site and step by step.

    Two departures, as in the package: models and the server's variate are weighed by rows.
    """

    def __init__(self, part, names, theta, *, lr=0.1, l2=0.0, epochs=2, steps=0, batch=8, corrected=True) -> None:
        self.part, self.names, self.x = part, names, theta.copy()
        self.lr, self.l2, self.epochs, self.fixed, self.batch = lr, l2, epochs, steps, batch
        self.corrected = corrected
        self.c = np.zeros_like(theta)
        self.own = {name: np.zeros_like(theta) for name in names}

    def round(self, number: int, taking_part) -> None:
        part, total = self.part, self.part.counts.sum()
        width = batch_width(part, self.batch)
        models, changes, rows = [], [], []
        for k, name in enumerate(self.names):
            if name not in taking_part:
                continue
            n, a = int(part.counts[k]), part.offsets[k]
            steps = self.fixed or self.epochs * -(-n // width)
            rng = generator(0, purpose="order", round=number, site=name)
            y = self.x.copy()
            for mine in batch_rows(n, width=width, steps=steps, rng=rng):
                mine = mine[mine >= 0] + a
                g = slope(y, part.x[mine], part.y[mine], l2=self.l2)
                y = y - self.lr * (g - self.own[name] + self.c if self.corrected else g)
            fresh = self.own[name] - self.c + (self.x - y) / (steps * self.lr)
            models.append(y)
            changes.append(fresh - self.own[name])
            rows.append(n)
            self.own[name] = fresh
        self.x = sum(n * y for n, y in zip(rows, models, strict=True)) / sum(rows)
        self.c = self.c + sum(n / total * d for n, d in zip(rows, changes, strict=True))


CASES = {
    "all sites, small batches": ({}, {}, {}),
    "all rows a step": ({}, {"batch": 0, "epochs": 4}, {}),
    "steps and l2": ({}, {"steps": 7, "l2": 0.05}, {}),
    "half of the sites": ({"select": {"rule": "random", "fraction": 0.5}}, {}, {}),
    "dropouts": ({}, {}, {"faults": Faults(drop=0.4)}),
    "over the wire": ({"select": {"rule": "random", "fraction": 0.5}}, {}, {"wire": True}),
    "in chunks": ({}, {}, {"chunk": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_models_and_variates_are_those_of_the_algorithm_box(case):
    method, train, settings = CASES[case]
    _, part, first = double(stack(SIZES))  # over a wire each host holds its own rows only
    engine, _, _ = double(stack(SIZES), **settings)
    expected = Reference(part, engine.sites, first, **{"batch": 8, **train})
    theta, state, seen = first, {}, set()
    for r in range(1, 6):
        theta, (decision,) = rounds(
            engine, count=1, start=r - 1, theta=theta, state=state, method={**SCAFFOLD, **method}, **train
        )
        expected.round(r, decision.weights)
        seen.add(tuple(decision.weights))
        np.testing.assert_allclose(theta, expected.x, atol=1e-8, rtol=0)
        np.testing.assert_allclose(state["state"]["variate"], expected.c, atol=1e-8, rtol=0)
        np.testing.assert_allclose(variates(engine), list(expected.own.values()), atol=1e-8, rtol=0)
        shares = part.counts / part.counts.sum()
        np.testing.assert_allclose(shares @ variates(engine), state["state"]["variate"], atol=1e-12)
    assert np.abs(expected.c).max() > 1e-3
    assert (len(seen) > 1) == (case in ("half of the sites", "dropouts", "over the wire"))


def variates(engine) -> np.ndarray:
    """What each site will correct its next steps by: (K, P)."""
    size, accepted = engine.hosts[0].model.layout.size, engine.state()["accepted"]
    out = []
    for host in engine.hosts:
        members = np.arange(len(host.stack.names))
        committed = [accepted.get(name, 0) for name in host.stack.names]
        host.states.settle(members, np.array(committed))
        held = host.states.read("variate", members)
        out.append(np.zeros((len(members), size)) if held is None else held)
    return np.concatenate(out)


def test_the_reference_without_variates_is_fedavg():
    """So that the reference is known to be one: the same loops, uncorrected."""
    engine, part, first = double(stack(SIZES))
    plain = Reference(part, engine.sites, first, corrected=False)
    for r in (1, 2):
        plain.round(r, engine.sites)
    theta, _ = rounds(engine, count=2, theta=first)
    np.testing.assert_allclose(theta, plain.x, atol=1e-8)


def test_the_first_round_is_fedavgs():
    """All variates are zero still."""
    held = stack(SIZES)
    np.testing.assert_array_equal(*(rounds(ready(held)[0], count=1, method=m)[0] for m in ({}, SCAFFOLD)))


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("classes", [2, 3])
def test_both_kernels_agree(model, classes):
    method = {**SCAFFOLD, "select": {"rule": "random", "fraction": 0.6}}
    got = {}
    for kernel in ("numpy", "torch"):
        engine, _, first = double(stack(SIZES, classes=classes), model=model, kernel=kernel, device="cpu")
        state = {}
        theta, _ = rounds(engine, count=4, theta=first, state=state, method=method, l2=0.01)
        got[kernel] = theta, state["state"]["variate"], variates(engine)
    for mine, theirs in zip(got["numpy"], got["torch"], strict=True):
        assert np.abs(mine).max() > 1e-3
        np.testing.assert_allclose(theirs, mine, atol=1e-5)


# What it is for


class Quadratics:
    """Sites whose losses are 1/2 (x - b_k)' A_k (x - b_k): the weighted mean has its minimum at a known point."""

    def __init__(self) -> None:
        rng = generator(5, purpose="quadratics")
        self.sites, self.rows, self.steps = tuple("abcde"), np.array([10, 30, 20, 25, 15]), np.array([3, 12, 7, 5, 9])
        self.a = rng.uniform(0.2, 3.0, size=(5, 4))  # diagonals
        self.b = rng.normal(size=(5, 4)) * 4
        p = (self.rows / self.rows.sum())[:, None]
        self.best = (p * self.a * self.b).sum(axis=0) / (p * self.a).sum(axis=0)

    def distance(self, method: dict, *, count: int) -> float:
        """How far from the optimum the method ends, its own generator being driven; sites step by lr = 0.1."""
        made = build_method(*sections(method))
        model, state = np.zeros(4), {}
        own = np.zeros((5, 4))
        for r in range(1, count + 1):
            server = Server(r, model, self.sites, 0, state, rows=dict(zip(self.sites, self.rows.tolist(), strict=True)))
            talk = made.round(server)
            ask = next(talk)
            k = np.array([self.sites.index(s) for s in ask.to])
            shared = ask.shared.get("variate")
            drift = 0 if shared is None else correction(shared, own[k])
            y = np.repeat(ask.shared["model"][None], len(k), axis=0)
            for s in range(self.steps.max()):
                y = np.where((s < self.steps[k])[:, None], y - 0.1 * (self.a[k] * (y - self.b[k]) + drift), y)
            columns = {"model": y, "count": self.rows[k], "steps": self.steps[k]}
            if shared is not None:
                fresh = update_variates(own[k], shared, start=ask.shared["model"], theta=y, steps=self.steps[k], lr=0.1)
                columns["variate"], own[k] = fresh - own[k], fresh
            with pytest.raises(StopIteration) as end:
                talk.send(Answers(ask.to, columns))
            model, state = end.value.value.model, end.value.value.state
        return float(np.linalg.norm(model - self.best))


@pytest.mark.parametrize("select", [{"rule": "all"}, {"rule": "random", "fraction": 0.6}])
def test_quadratics_that_pull_apart_meet_at_the_known_optimum(select):
    problem = Quadratics()
    averaged = problem.distance({"name": "fedavg", "select": select}, count=400)
    corrected = problem.distance({**SCAFFOLD, "select": select}, count=400)
    assert averaged > 0.1
    assert corrected < averaged / 100
    assert corrected < 1e-6


def test_label_skew_does_not_keep_it_from_the_pooled_optimum():
    """Sites sorted by label, all rows a step: FedAvg stops where drifts balance, SCAFFOLD at the pooled fit."""
    sizes, l2 = [60, 90, 40], 0.02
    data = dataset(patients(sizes, gaps=0.0))
    died = data.label.astype(float)
    order = np.argsort(died + 0.3 * generator(0, purpose="skew").normal(size=len(died)), kind="stable")
    cuts = np.split(order, np.cumsum(sizes)[:-1])
    held = Stack(("a", "b", "c"), data, tuple(Rows(train=c[2:], val=c[:1], test=c[1:2]) for c in cuts))
    engine, part, first = double(held)
    shares = [part.y[part.offsets[k] : part.offsets[k + 1]].mean() for k in range(3)]
    assert shares[0] < 0.05
    assert shares[-1] > 0.95
    best = first.copy()
    for _ in range(60):  # Newton's method on the pooled rows
        p = 1 / (1 + np.exp(-(part.x @ best[:-1] + best[-1])))
        x = np.column_stack([part.x, np.ones(len(p))])
        curve = (x * (p * (1 - p))[:, None]).T @ x / len(p) + l2 * np.diag([*np.ones(x.shape[1] - 1), 0])
        best = best - np.linalg.solve(curve, slope(best, part.x, part.y, l2=l2))
    assert np.abs(slope(best, part.x, part.y, l2=l2)).max() < 1e-14
    far = {}
    for name in ("fedavg", "scaffold"):
        engine, _, _ = double(held)
        theta, _ = rounds(engine, count=120, theta=first, method={"name": name}, batch=0, steps=20, l2=l2, lr=0.5)
        far[name] = np.linalg.norm(theta - best)
    assert far["fedavg"] > 0.1
    assert far["scaffold"] < far["fedavg"] / 1000


# Memory


def test_a_site_whose_answer_did_not_count_keeps_its_variate():
    engine, part, first = double(stack(SIZES))
    expected = Reference(part, engine.sites, first)
    theta, state = first, {}
    for r, spoilt in enumerate([(), (), ("c",), ("c",), (), ("a", "e"), ()], start=1):
        engine.settings = replace(engine.settings, faults=Faults(nan=spoilt))
        before = variates(engine)
        theta, (decision,) = rounds(engine, count=1, start=r - 1, theta=theta, state=state, method=SCAFFOLD)
        assert set(engine.sites) - set(decision.weights) == set(spoilt)
        expected.round(r, decision.weights)
        after = variates(engine)
        for k, name in enumerate(engine.sites):
            assert np.array_equal(before[k], after[k]) == (name in spoilt)
        np.testing.assert_allclose(theta, expected.x, atol=1e-8)
        np.testing.assert_allclose(state["state"]["variate"], expected.c, atol=1e-8)


def test_a_site_without_rows_keeps_its_variate_too():
    own, shared = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([0.5, 0.5])
    start, theta = np.array([3.0, 3.0]), np.array([[2.0, 5.0], [3.0, 3.0]])
    got = update_variates(own, shared, start=start, theta=theta, steps=np.array([4, 0]), lr=0.5)
    np.testing.assert_allclose(got, [[1 - 0.5 + 0.5, 2 - 0.5 - 1.0], [1, 2]])
    np.testing.assert_allclose(correction(shared, own), [[-0.5, -1.5], [-0.5, -1.5]])


def test_variates_survive_a_resume():
    held, method = stack(SIZES), {**SCAFFOLD, "select": {"rule": "random", "fraction": 0.6}}
    straight, _ = rounds(ready(held)[0], count=5, method=method)
    before, state = ready(held)[0], {}
    halfway, _ = rounds(before, count=3, method=method, state=state)
    arrays, facts = {n: a.copy() for n, a in before.arrays().items()}, before.state()
    after, _ = ready(held)
    after.restore(arrays, facts)
    resumed, _ = rounds(after, count=2, start=3, theta=halfway, method=method, state=state)
    np.testing.assert_array_equal(resumed, straight)
    forgetful, _ = ready(held)
    forgot, _ = rounds(forgetful, count=2, start=3, theta=halfway, method=method, state=state)
    assert not np.array_equal(forgot, straight)


def frame(sizes):
    import pandas as pd

    return pd.DataFrame({name: list(column) for name, column in patients(sizes).columns.items()})


def experiment(**changes) -> gr.Experiment:
    base = {"data": {"label": "died", "site": "hospital"}, "method": {**SCAFFOLD, "rounds": 4}}
    return gr.Experiment.parse(base | changes)


def test_a_resumed_run_folder_holds_the_same_model(tmp_path):
    table = frame([40, 30, 50])
    whole = gr.run(experiment(), table=table, out=tmp_path / "whole")
    short = gr.run(experiment(method={**SCAFFOLD, "rounds": 2}), table=table, out=tmp_path / "short")
    gone_on = gr.resume(short.folder, settings=["method.rounds=4"], table=table)
    np.testing.assert_array_equal(gone_on.model.theta, whole.model.theta)
    plain = gr.run(experiment(method={"rounds": 4}), table=table, out=tmp_path / "plain")
    assert not np.array_equal(plain.model.theta, whole.model.theta)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
@pytest.mark.parametrize("method", [SCAFFOLD, {"name": "fedavg", "stability": "scaffold"}])
def test_other_optimisers_than_sgd_are_refused_in_words(method, optimizer, tmp_path):
    asked = experiment(method={**method, "rounds": 2}, train={"optimizer": optimizer})
    with refused("method-does-not-fit", match=rf"train\.optimizer.*'{optimizer}'"):
        gr.run(asked, table=frame([30, 30]), out=tmp_path / "r")
    assert not (tmp_path / "r").exists()
