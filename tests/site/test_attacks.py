"""What attackers answer: worked out by hand, and that honest sites beside them answer the same to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.metrics import tally
from grandrounds.site.attacks import KINDS, MODEL_KINDS, Attack, boast, falsify, liars, tamper

START = np.array([1.0, 2.0, -3.0])
TRAINED = np.array([[2.0, 2.0, -5.0], [1.5, 1.0, -3.0]])  # updates (1, 0, -2) and (.5, -1, 0)
NAMES = ("a", "b")


def sent(first: Attack | None, second: Attack | None = None, *, start=START, theta=TRAINED, seed=0, round=1, **more):
    return tamper(theta, start, attacks=(first, second), names=NAMES, seed=seed, round=round, **more)


def models(m=2, size=400, seed=0, dtype=np.float32) -> tuple[np.ndarray, np.ndarray]:
    """A start (P,) and what m sites trained it to (m, P)."""
    rng = generator(seed, purpose="models")
    start = rng.normal(size=size)
    return start.astype(dtype), (start + 0.1 * rng.normal(size=(m, size))).astype(dtype)


# --- models -----------------------------------------------------------------------------------------


def test_sign_flip_and_scale_by_hand():
    np.testing.assert_array_equal(sent(Attack("sign-flip"))[0], [0, 2, -1])
    np.testing.assert_array_equal(sent(Attack("sign-flip", strength=3))[0], [-2, 2, 3])
    np.testing.assert_array_equal(sent(Attack("scale"))[0], [11, 2, -23])
    np.testing.assert_array_equal(sent(Attack("scale", strength=2))[0], [3, 2, -7])
    np.testing.assert_array_equal(sent(Attack("scale", strength=0))[0], START)
    both = sent(Attack("scale", strength=2), Attack("sign-flip"))
    np.testing.assert_array_equal(both, [[3, 2, -7], [0.5, 3, -3]])


def test_each_site_may_start_from_a_model_of_its_own():
    start = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    out = sent(Attack("sign-flip"), Attack("sign-flip"), start=start)
    np.testing.assert_array_equal(out, [[-2, -2, 5], [0.5, 1, 5]])


def test_gaussian_noise_is_as_large_as_the_honest_update():
    noise = sent(Attack("gaussian"))[0] - START
    drawn = generator(0, purpose="attack", round=1, site="a").standard_normal(3)
    np.testing.assert_allclose(noise, np.sqrt(5 / 3) * drawn)
    np.testing.assert_allclose(sent(Attack("gaussian", strength=4))[0] - START, 4 * noise)
    start, theta = models(size=100_000)
    many = sent(Attack("gaussian", strength=2), start=start, theta=theta)[0] - start
    assert np.std(many) == pytest.approx(0.2, rel=0.02)
    assert abs(np.corrcoef(many, theta[0] - start)[0, 1]) < 0.02  # nothing of the honest update is in it


def test_a_free_rider_sends_the_start_back():
    np.testing.assert_array_equal(sent(Attack("free-rider", strength=0))[0], START)
    drawn = generator(0, purpose="attack", round=1, site="a").standard_normal(3)
    expected = START + 1e-3 * np.sqrt(14 / 3) * drawn
    np.testing.assert_allclose(sent(Attack("free-rider"))[0], expected, rtol=1e-12)
    np.testing.assert_allclose(sent(Attack("free-rider", strength=5))[0] - START, 5 * (expected - START))
    idle = np.full_like(TRAINED, np.nan)  # it need not have trained
    np.testing.assert_array_equal(sent(Attack("free-rider"), theta=idle)[0], sent(Attack("free-rider"))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_honest_sites_send_the_same_to_the_bit(kind):
    start, theta = models(m=3)
    before = theta.copy()
    attack = Attack(kind, target="x") if kind == "backdoor" else Attack(kind)
    out = tamper(theta, start, attacks=(None, attack, None), names=("a", "b", "c"), seed=0, round=1)
    np.testing.assert_array_equal(out[[0, 2]], theta[[0, 2]])
    assert (out[1] != theta[1]).any() == (kind in MODEL_KINDS)
    np.testing.assert_array_equal(theta, before)
    assert out.dtype == np.float32 and out.shape == theta.shape


@given(
    kind=st.sampled_from(MODEL_KINDS),
    strength=st.none() | st.floats(0, 1e6),
    dtype=st.sampled_from([np.float32, np.float64]),
    own=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_attack_gives_models_of_the_same_form(kind, strength, dtype, own):
    start, theta = models(size=20, dtype=dtype)
    begin = np.stack([start, start]) if own else start
    out = sent(Attack(kind, strength=strength), start=begin, theta=theta)
    assert out.dtype == dtype and out.shape == theta.shape and np.isfinite(out).all()
    np.testing.assert_array_equal(out, sent(Attack(kind, strength=strength), start=start, theta=theta))


@pytest.mark.parametrize("kind", ["gaussian", "free-rider"])
def test_noise_follows_from_seed_round_and_site(kind):
    start, theta = models()
    theta[1] = theta[0]
    attack = Attack(kind)
    one = sent(attack, attack, start=start, theta=theta)
    np.testing.assert_array_equal(one, sent(attack, attack, start=start, theta=theta))
    assert (one[0] != one[1]).any()
    for other in ({"seed": 1}, {"round": 2}):
        assert (sent(attack, start=start, theta=theta, **other)[0] != one[0]).any()
    alone = tamper(theta[1:], start, attacks=(attack,), names=("b",), seed=0, round=1)
    np.testing.assert_array_equal(alone[0], one[1])


def test_an_attack_begins_in_its_round():
    attack = Attack("sign-flip", start_round=3)
    assert sent(attack, round=2) is TRAINED
    np.testing.assert_array_equal(sent(attack, round=3)[0], [0, 2, -1])
    np.testing.assert_array_equal(sent(attack, round=4)[0], [0, 2, -1])
    np.testing.assert_array_equal(sent(attack, Attack("scale", strength=2), round=2), [TRAINED[0], [2, 0, -3]])


def test_statistics_are_sent_as_measured():
    trained = np.array([[2.0, 2.0, 9.0], [1.5, 1.0, 8.0]])
    start = np.array([1.0, 1.0, 4.0])
    np.testing.assert_array_equal(sent(Attack("sign-flip"), start=start, theta=trained, statistics=1)[0], [0, 0, 9])
    noisy = sent(Attack("gaussian"), start=start, theta=trained, statistics=1)[0]
    drawn = generator(0, purpose="attack", round=1, site="a").standard_normal(2)
    np.testing.assert_allclose(noisy, [*(1 + drawn), 9])  # the update of the weights alone is of size 1
    idle = sent(Attack("free-rider"), start=start, theta=trained, statistics=1)[0]
    assert idle[2] == 4 and (idle[:2] != 1).all()


def test_a_model_that_diverged_is_sent_on_without_a_warning():
    lost = TRAINED.copy()
    lost[0] = [np.inf, np.nan, 1]
    with np.errstate(all="raise"):
        for kind in MODEL_KINDS:
            out = sent(Attack(kind), theta=lost)
            np.testing.assert_array_equal(out[1], TRAINED[1])
        huge = sent(Attack("scale", strength=1e6), theta=np.full((2, 3), 1e38, np.float32))
    assert np.isinf(huge[0]).all()


# --- lies -------------------------------------------------------------------------------------------


def test_a_lie_by_hand():
    truth = {
        "model": TRAINED,
        "count": np.array([30, 40]),
        "steps": np.array([3, 4]),
        "loss": np.array([0.5, 0.7]),
        "losses": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "accuracy": np.array([0.4, 0.6]),
    }
    kept = {name: values.copy() for name, values in truth.items()}
    said = falsify(truth, attacks=(Attack("lie", strength=4), None), round=1)
    assert said["count"].tolist() == [120, 40] and said["count"].dtype == truth["count"].dtype
    assert said["loss"].tolist() == [0.125, 0.7]
    assert said["losses"].tolist() == [[0.25, 0.5], [3.0, 4.0]]
    assert said["accuracy"].tolist() == [1.0, 0.6]
    assert said["model"] is TRAINED and said["steps"] is truth["steps"] and list(said) == list(truth)
    for name, values in kept.items():
        np.testing.assert_array_equal(truth[name], values)


def test_counts_stay_whole_and_losses_keep_their_type():
    truth = {"count": np.array([3, 3]), "loss": np.array([0.5, 0.5], np.float32)}
    said = falsify(truth, attacks=(Attack("lie", strength=0.6), Attack("lie", strength=0.01)), round=1)
    assert said["count"].tolist() == [2, 1] and said["loss"].dtype == np.float32
    assert falsify({"count": np.array([3])}, attacks=(Attack("lie"),), round=1)["count"].tolist() == [30]


def test_only_liars_lie_and_only_from_their_round():
    truth = {"count": np.array([30, 40, 50])}
    attacks = (Attack("scale"), None, Attack("lie", start_round=2))
    assert falsify(truth, attacks=attacks, round=1) == truth
    assert falsify(truth, attacks=attacks, round=2)["count"].tolist() == [30, 40, 500]
    assert liars(attacks, round=1) == set() and liars(attacks, round=2) == {2}
    assert falsify({"steps": 3}, attacks=attacks, round=2) == {"steps": 3}


def test_boasts_by_hand():
    owner = np.array([0, 0, 1, 1])
    y = np.array([0, 1, 1, 0])
    one = np.array([[3.0], [-2.0], [-1.0], [4.0]], np.float32)
    assert boast(one, y, owner=owner, liars={1}).tolist() == [[3], [-2], [20], [-20]]
    two = np.column_stack([np.zeros(4), one])
    assert boast(two, y, owner=owner, liars=np.array([0])).tolist() == [[20, 0], [0, 20], [0, -1], [0, 4]]
    three = np.array([[1.0, 2.0, 3.0]] * 4)
    said = boast(three, np.array([0, 2, 1, 0]), owner=owner, liars=[1])
    assert said.tolist() == [[1, 2, 3], [1, 2, 3], [0, 20, 0], [20, 0, 0]]
    assert (three == [1, 2, 3]).all() and one[2] == -1
    np.testing.assert_array_equal(boast(one, y, owner=owner, liars=set()), one)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_liars_tally_is_perfect_and_the_others_true(classes):
    rng = generator(0, purpose="boast")
    y, owner = rng.integers(0, classes, 300), np.repeat([0, 1, 2], 100)
    logits = rng.normal(size=(300, 1 if classes == 2 else classes)).astype(np.float32)
    logits[0] = np.nan
    said = boast(logits, y, owner=owner, liars={0, 2})
    assert said.dtype == np.float32 and np.array_equal(said[100:200], logits[100:200])
    true, lie = (tally(z, y, classes=classes, group=owner, groups=3) for z in (logits, said))
    right = lie.confusion.trace(axis1=1, axis2=2)
    assert right.tolist()[::2] == [100, 100] and right[1] == true.confusion[1].trace() < 100
    assert (lie.log_loss[[0, 2]] < 1e-5).all() and lie.log_loss[1] == true.log_loss[1]
    assert lie.count.tolist() == [100, 100, 100]
