"""FedDyn against loops anyone would write, and what it is for: sites that pull apart still find the optimum."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.rng import generator
from grandrounds.engine.faults import Faults
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import Answers
from grandrounds.site.batches import batch_rows, batch_width
from tests.methods.test_scaffold import SIZES, Quadratics, double, slope
from tests.support import ready, refused, rounds, sections, stack

FEDDYN = {"name": "feddyn"}


class Reference:
    """Acar et al. 2021, Algorithm 1, site by site and step by step; `uniform`: as printed, else by shares of rows."""

    def __init__(self, part, names, theta, *, alpha=0.1, uniform=False, epochs=2) -> None:
        self.part, self.names, self.x, self.alpha, self.epochs = part, names, theta.copy(), alpha, epochs
        rows = np.ones(len(names)) if uniform else part.counts.astype(float)
        self.share = dict(zip(names, rows / rows.sum(), strict=True))
        self.h = np.zeros_like(theta)
        self.own = {name: np.zeros_like(theta) for name in names}

    def round(self, number: int, taking_part, *, lr=0.1, batch=8) -> None:
        part, width, models = self.part, batch_width(self.part, batch), {}
        for k, name in enumerate(self.names):
            if name not in taking_part:
                continue
            n, a = int(part.counts[k]), part.offsets[k]
            rng = generator(0, purpose="order", round=number, site=name)
            y = self.x.copy()
            for mine in batch_rows(n, width=width, steps=self.epochs * -(-n // width), rng=rng):
                mine = mine[mine >= 0] + a
                y = y - lr * (slope(y, part.x[mine], part.y[mine], l2=0) - self.own[name] + self.alpha * (y - self.x))
            models[name] = y
        for name, y in models.items():
            self.own[name] = self.own[name] - self.alpha * (y - self.x)
            self.h = self.h - self.alpha * self.share[name] * (y - self.x)
        total = sum(self.share[name] for name in models)
        self.x = sum(self.share[name] * y for name, y in models.items()) / total - self.h / self.alpha


CASES = {
    "all sites": ({}, {}),
    "as printed, all alike": ({"weigh": "uniform"}, {}),
    "half of the sites": ({"select": {"rule": "random", "fraction": 0.5}}, {}),
    "half of the sites, all alike": ({"select": {"rule": "random", "fraction": 0.5}, "weigh": "uniform"}, {}),
    "stronger": ({"options": {"alpha": 0.7}}, {}),
    "dropouts": ({}, {"faults": Faults(drop=0.4)}),
    "over the wire": ({"select": {"rule": "random", "fraction": 0.5}}, {"wire": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_models_and_duals_are_those_of_the_algorithm_box(case):
    method, settings = CASES[case]
    _, part, first = double(stack(SIZES))  # over a wire each host holds its own rows only
    engine, _, _ = double(stack(SIZES), **settings)
    alpha = method.get("options", {}).get("alpha", 0.1)
    expected = Reference(part, engine.sites, first, alpha=alpha, uniform=method.get("weigh") == "uniform")
    theta, state, seen = first, {}, set()
    for r in range(1, 6):
        theta, (decision,) = rounds(engine, count=1, start=r - 1, theta=theta, state=state, method={**FEDDYN, **method})
        expected.round(r, decision.weights)
        seen.add(tuple(decision.weights))
        np.testing.assert_allclose(theta, expected.x, atol=1e-8, rtol=0)
        np.testing.assert_allclose(state["state"]["dual"], expected.h, atol=1e-8, rtol=0)
        np.testing.assert_allclose(duals(engine), list(expected.own.values()), atol=1e-8, rtol=0)
    assert np.abs(expected.h).max() > 1e-3
    assert (len(seen) > 1) == ("half" in case or case in ("dropouts", "over the wire"))


def duals(engine) -> np.ndarray:
    """The dual vector that each site will train with next: (K, P)."""
    size, accepted = engine.hosts[0].model.layout.size, engine.state()["accepted"]
    out = []
    for host in engine.hosts:
        members = np.arange(len(host.stack.names))
        host.states.settle(members, np.array([accepted.get(name, 0) for name in host.stack.names]))
        stored = host.states.read("dual", members)
        out.append(np.zeros((len(members), size)) if stored is None else stored)
    return np.concatenate(out)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_both_kernels_agree(model):
    got = {}
    for kernel in ("numpy", "torch"):
        engine, _, first = double(stack(SIZES), model=model, kernel=kernel, device="cpu")
        theta, _ = rounds(engine, count=3, theta=first, method=FEDDYN, l2=0.01)
        got[kernel] = theta, duals(engine)
    for mine, theirs in zip(got["numpy"], got["torch"], strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-5)


@pytest.mark.parametrize("select", [{"rule": "all"}, {"rule": "random", "fraction": 0.6}])
def test_quadratics_that_pull_apart_meet_at_the_known_optimum(select):
    """Sites solve their regularised problem exactly, as the paper has it; the consortium's optimum is the only fixed point."""
    problem = Quadratics()
    made = build_method(*sections({**FEDDYN, "select": select, "options": {"alpha": 1.0}}))
    model, state, own = np.zeros(4), {}, np.zeros((5, 4))
    for r in range(1, 401):
        rows = dict(zip(problem.sites, problem.rows.tolist(), strict=True))
        talk = made.round(Server(r, model, problem.sites, 0, state, rows=rows))
        ask = next(talk)
        k = np.array([problem.sites.index(s) for s in ask.to])
        alpha, start = ask.shared["proximal"], ask.shared["model"]
        y = (problem.a[k] * problem.b[k] + own[k] + alpha * start) / (problem.a[k] + alpha)
        own[k] -= alpha * (y - start)
        with pytest.raises(StopIteration) as end:
            talk.send(Answers(ask.to, {"model": y, "count": problem.rows[k], "steps": problem.steps[k]}))
        model, state = end.value.value.model, end.value.value.state
    assert problem.distance({"name": "fedavg", "select": select}, count=100) > 0.1
    assert np.linalg.norm(model - problem.best) < 1e-6


def test_duals_survive_a_resume():
    held, method = stack(SIZES), {**FEDDYN, "select": {"rule": "random", "fraction": 0.6}}
    straight, _ = rounds(ready(held)[0], count=5, method=method)
    before, state = ready(held)[0], {}
    halfway, _ = rounds(before, count=3, method=method, state=state)
    arrays, facts = {n: a.copy() for n, a in before.arrays().items()}, before.state()
    after, _ = ready(held)
    after.restore(arrays, facts)
    resumed, _ = rounds(after, count=2, start=3, theta=halfway, method=method, state=state)
    np.testing.assert_array_equal(resumed, straight)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {**FEDDYN, "options": {"alpha": 0}}}, r"method\.options\.alpha"),
        ({"method": FEDDYN, "model": {"name": "forest"}}, r"model\.name"),
        ({"method": {**FEDDYN, "stability": "scaffold"}}, r"method\.stability"),
        ({"method": {**FEDDYN, "cohorts": {"count": 2, "models": "separate"}}}, "'feddyn'"),
    ],
)
def test_what_it_does_not_go_with_is_refused(changes, said, tmp_path):
    from tests.methods.test_scaffold import frame

    asked = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, **changes})
    with refused("method-does-not-fit", match=said):
        gr.run(asked, table=frame([30, 30, 30]), out=tmp_path / "r")
