"""Step rules against torch.optim, and schedules by hand."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.methods.training import learning_rate
from grandrounds.models.optimizers import optimizer


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_steps_equal_torch(name):
    torch = pytest.importorskip("torch")
    rng = generator(0, purpose="test")
    theta, grads = rng.normal(size=(2, 5)), rng.normal(size=(7, 2, 5))
    ours = theta.copy()
    rule = optimizer(name, momentum=0.8, weight_decay=0.1, mask=np.ones(5))
    slots, t = [np.zeros_like(ours) for _ in range(rule.slots)], np.zeros((2, 1))
    p = torch.tensor(theta, requires_grad=True)
    make = {
        "sgd": lambda: torch.optim.SGD([p], lr=0.1),
        "momentum": lambda: torch.optim.SGD([p], lr=0.1, momentum=0.8),
        "adam": lambda: torch.optim.Adam([p], lr=0.1),
        "adamw": lambda: torch.optim.AdamW([p], lr=0.1, weight_decay=0.1),
    }[name]
    theirs = make()
    for g in grads:
        t += 1
        rule.step(ours, g.copy(), slots, t, 0.1)
        p.grad = torch.tensor(g)
        theirs.step()
    np.testing.assert_allclose(ours, p.detach().numpy(), rtol=1e-6)


def test_biases_are_never_decayed():
    rule = optimizer("adamw", weight_decay=0.5, mask=np.array([1.0, 0.0]))
    theta = np.ones((1, 2))
    rule.step(theta, np.zeros((1, 2)), [np.zeros((1, 2)), np.zeros((1, 2))], np.ones((1, 1)), 0.1)
    np.testing.assert_allclose(theta, [[0.95, 1.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [1, 1, 1, 1]),
        ("step", [1, 1, 0.5, 0.25]),
        ("cosine", [1, 0.853553, 0.5, 0.146447]),
        ("exponential", [1, 0.840896, 0.707107, 0.594604]),
    ],
)
def test_schedules_over_four_rounds(schedule, rates):
    got = [learning_rate(schedule, base=1.0, round=r, rounds=4) for r in (1, 2, 3, 4)]
    assert got == pytest.approx(rates, abs=1e-6)


def test_warm_up_grows_to_the_base():
    got = [learning_rate("constant", base=1.0, round=r, rounds=10, warmup=3) for r in (1, 2, 3, 4)]
    assert got == pytest.approx([0.25, 0.5, 0.75, 1.0])
