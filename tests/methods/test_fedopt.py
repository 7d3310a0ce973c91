"""Server optimisers: steps worked out on paper, Reddi's defaults, and what a tiny tau without a start does."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.methods import build_method
from grandrounds.methods.base import Outcome, Server
from grandrounds.protocol.messages import Answers
from tests.support import sections

START = (1.0, -2.0)


def one_round(method: dict, server: Server, change) -> Outcome:
    """A round in which the mean update is `change`: site a, with a quarter of the rows, sends four times it, b nothing."""
    talk = build_method(*sections(method)).round(server)
    sent = np.asarray(next(talk).shared["model"])
    models = np.stack([sent + 4 * np.asarray(change, sent.dtype), sent])
    with pytest.raises(StopIteration) as end:
        talk.send(Answers(("a", "b"), {"model": models, "count": np.array([10, 30]), "steps": np.array([1, 3])}))
    return end.value.value


def steps(method: dict, *changes, start=START) -> list[np.ndarray]:
    """What each round adds to the model."""
    model, state, out = np.array(start, float), {}, []
    for r, change in enumerate(changes, start=1):
        outcome = one_round(method, Server(r, model, ("a", "b"), 0, state), change)
        out.append(outcome.model - model)
        model, state = outcome.model, outcome.state
    return out


# On paper. eta = 12 in all; where nothing else is said v starts at tau^2.


def test_adam_on_paper():
    """beta1 = beta2 = 1/2, tau = 1.

    Round 1, D = (7, -1):  m = (7/2, -1/2), v = (1/2 + 49/2, 1/2 + 1/2) = (25, 1), step = 12 m / (5 + 1, 1 + 1).
    Round 2, D = (35, 7):  m = (77/4, 13/4), v = (25/2 + 1225/2, 1/2 + 49/2) = (625, 25), step = 12 m / (26, 6).
    """
    server = {"rule": "adam", "lr": 12.0, "beta1": 0.5, "beta2": 0.5, "tau": 1.0}
    first, second = steps({"name": "fedopt", "server": server}, (7, -1), (35, 7))
    np.testing.assert_allclose(first, [7, -3])
    np.testing.assert_allclose(second, [12 * 77 / 4 / 26, 6.5])


def test_adam_with_flowers_bias_correction_on_paper():
    """The same, with eta times sqrt(1 - (1/2)^t) / (1 - (1/2)^t) for t = 2, then t = 3; v starts at 1 still."""
    server = {"lr": 12.0, "beta1": 0.5, "beta2": 0.5, "tau": 1.0, "bias_correction": True}
    first, second = steps({"name": "fedadam", "server": server}, (7, -1), (35, 7))
    np.testing.assert_allclose(first, np.array([7, -3]) / sqrt(3 / 4))
    np.testing.assert_allclose(second, np.array([12 * 77 / 4 / 26, 6.5]) / sqrt(7 / 8))


def test_yogi_on_paper():
    """beta1 = 1/2, beta2 = 1/4, tau = 1. v grows where D^2 > v, shrinks where D^2 < v, and rests where they are equal.

    Round 1, D = (2, 8/13):   v = (1 + 3/4 * 4, 1 - 3/4 * 64/169) = (4, (11/13)^2), m = (1, 4/13).
    Round 2, D = (-2, 22/13): v = (4, 121/169 + 3/4 * 484/169) = (4, (22/13)^2), m = (-1/2, 1).
    """
    server = {"rule": "yogi", "lr": 12.0, "beta1": 0.5, "beta2": 0.25, "tau": 1.0}
    first, second = steps({"name": "fedopt", "server": server}, (2, 8 / 13), (-2, 22 / 13))
    np.testing.assert_allclose(first, [12 * 1 / 3, 12 * (4 / 13) / (24 / 13)])
    np.testing.assert_allclose(second, [-12 * 0.5 / 3, 12 * 1 / (35 / 13)])


def test_adagrad_on_paper():
    """tau = 4, no first moment: D = (3, 0) gives v = (25, 16), D = (12, -3) gives v = (169, 25)."""
    server = {"rule": "adagrad", "lr": 12.0, "tau": 4.0}
    first, second = steps({"name": "fedopt", "server": server}, (3, 0), (12, -3))
    np.testing.assert_allclose(first, [12 * 3 / 9, 0])
    np.testing.assert_allclose(second, [12 * 12 / 17, -12 * 3 / 9])


def test_rmsprop_on_paper():
    """Adam's v of above, and D itself for m: (7, -1) over (6, 2), then (35, 7) over (26, 6)."""
    server = {"rule": "rmsprop", "lr": 12.0, "beta2": 0.5, "tau": 1.0}
    first, second = steps({"name": "fedopt", "server": server}, (7, -1), (35, 7))
    np.testing.assert_allclose(first, [14, -6])
    np.testing.assert_allclose(second, [12 * 35 / 26, 14])


def test_momentum_at_the_server_on_paper():
    """momentum = 1/2, eta = 3: velocities (2, -4), then (1, -2) + (1, 1) = (2, -1)."""
    first, second = steps({"name": "fedavgm", "server": {"lr": 3.0, "momentum": 0.5}}, (2, -4), (1, 1))
    np.testing.assert_allclose(first, [6, -12])
    np.testing.assert_allclose(second, [6, -3])


def test_momentum_at_the_server_by_default_steps_the_whole_way():
    """eta = 1, momentum = 0.9."""
    first, second = steps({"name": "fedavgm"}, (2, -4), (1, 1))
    np.testing.assert_allclose(first, [2, -4])
    np.testing.assert_allclose(second, [2.8, -2.6])


# Defaults


@pytest.mark.parametrize(
    ("rule", "m", "v"),
    [
        ("adam", 0.1 * 0.2, 0.99e-6 + 0.01 * 0.04),
        ("yogi", 0.1 * 0.2, 1e-6 + 0.01 * 0.04),
        ("adagrad", 0.2, 1e-6 + 0.04),
        ("rmsprop", 0.2, 0.99e-6 + 0.01 * 0.04),
    ],
)
def test_defaults_are_reddis(rule, m, v):
    """tau = 1e-3 outside the root, v from tau^2, beta1 = 0.9 (adagrad and rmsprop none), beta2 = 0.99, eta = 0.01."""
    (first,) = steps({"name": "fedopt", "server": {"rule": rule}}, (0.2, -0.2))
    np.testing.assert_allclose(first, np.array([1, -1]) * 0.01 * m / (sqrt(v) + 1e-3), rtol=1e-9)


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "rmsprop"])
def test_each_name_is_fedopt_with_its_rule(rule):
    changes = [(0.3, -0.01), (-2.0, 0.5), (0.002, 0.0)]
    family = steps({"name": "fedopt", "server": {"rule": rule}}, *changes)
    np.testing.assert_array_equal(steps({"name": f"fed{rule}"}, *changes), family)
    other = "yogi" if rule == "adam" else "adam"
    np.testing.assert_array_equal(steps({"name": f"fed{rule}", "server": {"rule": other}}, *changes), family)
    if rule != "adam":
        assert not np.allclose(steps({"name": "fedopt"}, *changes), family), "fedopt's own rule is adam"


def test_rmsprop_is_adam_without_a_first_moment():
    changes = [(0.3, -0.01), (-2.0, 0.5), (0.002, 0.0)]
    adam = steps({"name": "fedadam", "server": {"beta1": 0.0}}, *changes)
    np.testing.assert_array_equal(steps({"name": "fedrmsprop"}, *changes), adam)
    np.testing.assert_array_equal(steps({"name": "fedrmsprop", "server": {"beta1": 0.9}}, *changes), steps(
        {"name": "fedadam"}, *changes))  # fmt: skip


def test_a_float32_model_stays_one_and_its_moments_are_kept_in_double():
    model = np.array(START, np.float32)
    outcome = one_round({"name": "fedadam"}, Server(1, model, ("a", "b"), 0), (0.5, 0.5))
    assert outcome.model.dtype == np.float32
    assert {name: a.dtype for name, a in outcome.state.items()} == {"m": np.float64, "v": np.float64}


# The thesis's strategies: a tiny tau and a second moment that starts at zero

size = st.floats(1e-4, 1e4)
sign = st.sampled_from([-1.0, 1.0])


@given(st.tuples(size, size), st.tuples(sign, sign))
@settings(max_examples=30, deadline=None)
def test_without_a_start_the_first_step_does_not_depend_on_the_updates_size(sizes, signs):
    """v0 = 0, tau = 1e-9: m / sqrt(v) = (1 - beta1) / sqrt(1 - beta2) * sign(D), which beta1 = 0.9, beta2 = 0.99 make 1.

    RMSProp has no (1 - beta1), so it steps ten times as far; Flower's correction makes it 0.742 of eta in round 1.
    """
    change = np.array(sizes) * signs
    legacy = {"v0": 0.0, "tau": 1e-9, "lr": 0.1}
    for rule, far in {"adam": 0.1, "yogi": 0.1, "adagrad": 0.1, "rmsprop": 1.0}.items():
        (first,) = steps({"name": f"fed{rule}", "server": legacy}, change)
        np.testing.assert_allclose(first, far * np.array(signs), rtol=2e-4)
    (first,) = steps({"name": "fedadam", "server": {**legacy, "bias_correction": True}}, change)
    np.testing.assert_allclose(first, 0.1 * sqrt(1 - 0.99**2) / (1 - 0.9**2) * np.array(signs), rtol=2e-4)


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "rmsprop"])
def test_with_reddis_start_a_small_update_is_a_small_step(rule):
    """Far below tau a step is proportional to the update: m / (2 tau), with adam's root sqrt(beta2) tau."""
    first, small = (steps({"name": f"fed{rule}"}, (d, d))[0] for d in (1e-5, 1e-6))
    np.testing.assert_allclose(first / small, 10, rtol=1e-3)
    share = 0.1 if rule in ("adam", "yogi") else 1.0
    root = sqrt(0.99) if rule in ("adam", "rmsprop") else 1.0
    np.testing.assert_allclose(small, 0.01 * share * 1e-6 / (1e-3 * (root + 1)), rtol=1e-3)


LEGACY = {"v0": 0.0, "tau": 1e-9, "lr": 0.1, "beta1": 0.9, "beta2": 0.99}
"""Flower's legacy FedAdam, which the thesis ran."""


def test_flowers_legacy_fedadam_on_paper():
    """Round 1: 0.1 * 0.1 D / sqrt(0.01 D^2) = 0.1 sign(D), for updates that differ a million times in size.

    Round 2 with the same D: m = 0.19 D, v = 0.0199 D^2, so 0.1 * 0.19 / sqrt(0.0199) = 0.13469, whatever D.
    With tau = 1e-3 and v from tau^2, as by default, an update of 1e-7 is a step of 0.1 * 1e-8 / 2e-3 = 5e-7.
    """
    first, second = steps({"name": "fedadam", "server": LEGACY}, (1e-3, -1e3), (1e-3, -1e3))
    np.testing.assert_allclose(first, [0.1, -0.1], rtol=2e-5)
    np.testing.assert_allclose(second, np.array([1, -1]) * 0.1 * 0.19 / sqrt(0.0199), rtol=2e-5)
    (ours,) = steps({"name": "fedadam", "server": {"lr": 0.1}}, (1e-7, -1e3))
    np.testing.assert_allclose(ours, [5e-7, -0.1], rtol=3e-3)


def four_sites(method: dict) -> float:
    """The step of a round from 0 in which sites of 10, 10 and 10 rows answer +1 and one of 1,000 answers -1."""
    talk = build_method(*sections(method)).round(Server(1, np.zeros(1), tuple("abcd"), 0))
    next(talk)
    columns = {"model": np.array([[1.0], [1], [1], [-1]]), "count": np.array([10, 10, 10, 1000])}
    with pytest.raises(StopIteration) as end:
        talk.send(Answers(tuple("abcd"), {**columns, "steps": np.ones(4, int)}))
    return float(end.value.value.model[0])


def test_weighing_sites_alike_can_turn_the_step_round():
    """The thesis's mean (3.8) is (1 + 1 + 1 - 1) / 4 = +0.5, that by rows (30 - 1000) / 1030 = -0.94.

    Adam's first step from v0 = tau^2 is eta 0.1 D / (sqrt(0.99 tau^2 + 0.01 D^2) + tau).
    """
    mean = {"uniform": 0.5, "data_size": -970 / 1030}
    assert round(mean["data_size"], 2) == -0.94
    for weigh, change in mean.items():
        np.testing.assert_allclose(four_sites({"name": "fedavg", "weigh": weigh}), change, rtol=1e-12)
        step = 0.01 * 0.1 * change / (sqrt(0.99e-6 + 0.01 * change**2) + 1e-3)
        for name in ("fedadam", "fedopt"):
            np.testing.assert_allclose(four_sites({"name": name, "weigh": weigh}), step, rtol=1e-9)
        legacy = four_sites({"name": "fedadam", "weigh": weigh, "server": LEGACY})
        np.testing.assert_allclose(legacy, 0.1 * np.sign(change), rtol=1e-6)
