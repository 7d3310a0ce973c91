from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grandrounds.core import arrays as wire
from grandrounds.core.rng import generator
from grandrounds.explain.explainer import Importances
from grandrounds.explain.sketch import Sketch, Sketches, add_noise, keep_top, simplex, simplex_error
from tests.support import refused

pytestmark = pytest.mark.filterwarnings("error")

shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6)
importances = hnp.arrays(float, shapes, elements=st.floats(-1e6, 1e6))
anything = hnp.arrays(float, shapes, elements=st.floats(allow_nan=True, allow_infinity=True))


def on_simplex(sketches: np.ndarray) -> bool:
    return bool((sketches >= 0).all() and np.allclose(sketches.sum(axis=-1), 1, rtol=0, atol=1e-12))


def test_negative_importances_count_for_nothing():
    shares, flat = simplex(np.array([[3.0, -5.0, 1.0], [0.0, 0.5, 0.0]]))
    assert shares.tolist() == [[0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]
    assert flat.tolist() == [False, False]


def test_a_model_that_uses_no_feature_is_uniform_and_flagged():
    shares, flat = simplex(
        np.array([[0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, 0.0, -3.0], [np.nan, 1, 1, 1], [np.inf, 1, 1, 1]])
    )
    assert (shares == 0.25).all()
    assert flat.all()


def test_the_unused_model_is_not_the_one_nearest_to_the_consensus():
    """As printed (eps in the denominator) its sketch is zero, and nearer to the mean than sites that know something."""
    known = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    raw = np.concatenate([known, np.zeros((1, 4))])
    printed = raw / (raw.sum(axis=1, keepdims=True) + 1e-8)
    assert np.abs(printed - printed.mean(axis=0)).sum(axis=1).argmin() == 3
    found = Sketches.from_importances("abcd", "wxyz", Importances(raw, np.zeros((4, 4))))
    assert found.flat.tolist() == [False, False, False, True]
    assert found.consensus == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


@settings(max_examples=150, deadline=None)
@given(anything)
def test_every_sketch_lies_on_the_simplex(raw):
    shares, flat = simplex(raw)
    assert on_simplex(shares)
    assert flat.shape == raw.shape[:-1]
    assert (shares[flat] == 1 / raw.shape[-1]).all()


@settings(max_examples=100, deadline=None)
@given(importances, st.floats(1e-3, 1e3))
def test_a_sharper_model_has_the_same_sketch(raw, factor):
    shares, flat = simplex(raw)
    again, flat_again = simplex(raw * factor)
    known = np.maximum(raw, 0).sum(axis=-1) > 1e-290
    assert shares[known] == pytest.approx(again[known], abs=1e-12)
    assert (flat[known] == flat_again[known]).all()


def test_a_site_has_the_same_bits_alone_and_in_a_crowd():
    raw = generator(0, purpose="test").normal(0.3, 1, (50, 37))
    error = np.abs(raw) / 7
    crowd, spread = simplex(raw)[0], simplex_error(raw, error)
    assert all((simplex(raw[k])[0] == crowd[k]).all() for k in range(50))
    assert all((simplex_error(raw[k], error[k]) == spread[k]).all() for k in range(50))
    assert (simplex(np.asfortranarray(raw))[0] == crowd).all()


def test_errors_by_hand():
    """E = (1/4, 3/4); Var E_1 = ((3/4)^2 0.04 + (1/4)^2 0.16) / 16 = 0.00203125, and with two features Var E_2 is equal."""
    found = simplex_error(np.array([1.0, 3.0]), np.array([0.2, 0.4]))
    assert found == pytest.approx([np.sqrt(0.00203125)] * 2, rel=1e-12)


def test_errors_are_the_spread_of_sketches_measured_again_and_again():
    truth, error = np.array([4.0, 2.0, 1.0, 0.5, 2.5]), np.array([0.1, 0.2, 0.05, 0.1, 0.15])
    draws = generator(1, purpose="test").normal(truth, error, (40_000, 5))
    assert simplex_error(truth, error) == pytest.approx(simplex(draws)[0].std(axis=0), rel=0.03)


def test_the_error_of_a_share_is_bounded_and_a_flat_sketch_has_none():
    raw = np.array([[1e-9, 0.0, 0.0], [0.0, -1.0, 0.0], [1.0, 1.0, 1.0]])
    error = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [np.inf, 0.0, 0.0]])
    found = simplex_error(raw, error)
    assert found.tolist() == [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]


@settings(max_examples=100, deadline=None)
@given(anything, st.floats(0, allow_infinity=True))
def test_errors_are_finite_whatever_the_importances(raw, error):
    found = simplex_error(raw, np.full(raw.shape, error))
    assert (found >= 0).all()
    assert (found <= 0.5).all()


def test_top_keeps_the_largest_and_of_equal_ones_the_first():
    sketches = np.array([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    assert keep_top(sketches, 2) == pytest.approx(np.array([[0, 4 / 7, 0, 3 / 7], [0.5, 0.5, 0, 0]]), abs=1e-15)
    assert (keep_top(sketches, 0) == sketches).all()
    assert (keep_top(sketches, 9) == sketches).all()
    with refused("bad-top-count", match="-1"):
        keep_top(sketches, -1)


@settings(max_examples=80, deadline=None)
@given(importances, st.integers(1, 6))
def test_top_q_is_a_sketch_of_at_most_q_features_in_the_same_order(raw, q):
    shares = simplex(raw)[0]
    found = keep_top(shares, q)
    assert on_simplex(found)
    assert (np.count_nonzero(found, axis=-1) <= q).all()
    assert (found >= shares * (found > 0) - 1e-15).all()
    assert keep_top(found, q) == pytest.approx(found, abs=1e-15)


def test_noise_is_that_of_the_generator_clipped_and_renormalised():
    sketches = simplex(generator(2, purpose="test").random((40, 6)))[0]
    drawn = np.maximum(sketches + generator(3, purpose="noise").normal(0, 0.2, (40, 6)), 0)
    found = add_noise(sketches, 0.2, generator(3, purpose="noise"))
    assert found == pytest.approx(drawn / drawn.sum(axis=1, keepdims=True), abs=1e-15)
    assert on_simplex(found)
    assert (add_noise(sketches, 0.0, generator(3, purpose="noise")) == sketches).all()
    for sigma in (-0.1, float("nan"), float("inf")):
        with refused("bad-noise"):
            add_noise(sketches, sigma, generator(3, purpose="noise"))


def test_noise_that_leaves_nothing_leaves_the_uniform_sketch():
    found = add_noise(np.tile([0.5, 0.5], (200, 1)), 50.0, generator(4, purpose="noise"))
    uniform = (found == 0.5).all(axis=1)
    assert 20 < uniform.sum() < 80  # both shares fall below zero in a quarter of draws
    assert on_simplex(found)


def a_sketch() -> Sketch:
    return Sketch(
        np.array([0.125, 0.0, 0.5, 0.375]), ("age", "sex", "lactate", "pulse"), np.array([0.01, 0.0, 0.1, 0.05]),
        top_count=3, noise=0.05, flags=("noisy",), explainer="permutation", rows=200,
    )  # fmt: skip


def test_ranked_and_density():
    sketch = a_sketch()
    assert sketch.ranked(2) == [("lactate", 0.5, 0.1), ("pulse", 0.375, 0.05)]
    assert [name for name, _, _ in sketch.ranked()] == ["lactate", "pulse", "age", "sex"]
    assert sketch.density == 0.75


def test_a_sketch_survives_json_and_the_wire():
    sketch = a_sketch()
    again = Sketch.from_dict(json.loads(json.dumps(sketch.to_dict())))
    assert again.to_dict() == sketch.to_dict()
    arrays, about = wire.decode(wire.encode(sketch.arrays(), sketch.metadata()))
    back = Sketch.from_arrays(arrays, about)
    assert back.to_dict() == sketch.to_dict()
    assert isinstance(back.flags, tuple)
    assert isinstance(back.names, tuple)


def test_a_sketch_sent_in_32_bits_is_still_one():
    values = np.array([0.1, 0.2, 0.7, 0.0], np.float32)
    assert values.sum(dtype=float) == pytest.approx(0.99999999255, abs=1e-11)
    found = Sketch.from_arrays({"sketch": values, "sketch_error": values}, a_sketch().metadata())
    assert (found.values == values).all()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"values": [0.5, 0.5]}, "mismatched-shapes"),
        ({"error": [[0.0] * 4]}, "mismatched-shapes"),
        ({"values": [0.5, 0.5, 0.5, -0.5]}, "bad-shares"),
        ({"values": [float("nan"), 0.5, 0.5, 0.0]}, "bad-shares"),
        ({"error": [0.0, 0.0, float("inf"), 0.0]}, "bad-shares"),
        ({"values": [0.5, 0.5, 0.5, 0.0]}, "bad-shares"),
        ({"values": ["a", 0.5, 0.5, 0.0]}, "damaged-sketch"),
        ({"values": None}, "mismatched-shapes"),
        ({"names": "abcd"}, "damaged-sketch"),
        ({"names": []}, "mismatched-shapes"),
        ({"flags": [1]}, "damaged-sketch"),
        ({"kept": -1}, "damaged-sketch"),
        ({"rows": "many"}, "damaged-sketch"),
        ({"noise": float("nan")}, "damaged-sketch"),
    ],
)
def test_what_is_not_a_sketch_is_refused(change, code):
    with refused(code):
        Sketch.from_dict({**a_sketch().to_dict(), **change})


def test_a_sketch_with_a_part_missing_is_refused():
    whole = a_sketch().to_dict()
    for name in whole:
        with refused("mismatched-shapes" if name in ("values", "error") else "damaged-sketch"):
            Sketch.from_dict({key: value for key, value in whole.items() if key != name})
    with refused("damaged-sketch", match="list"):
        Sketch.from_dict([1, 2])  # type: ignore[arg-type]
    with refused("no-features"):
        simplex(np.empty((3, 0)))


def test_sketches_of_sites_with_the_largest_kept():
    raw = np.array([[4.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    error = np.full((2, 4), 0.3)
    found = Sketches.from_importances(["north", "south"], list("abcd"), Importances(raw, error), q=2)
    assert found.values.tolist() == [[2 / 3, 1 / 3, 0, 0], [0.25] * 4]  # the flat one is not made to prefer a and b
    assert found.error[0, :2] == pytest.approx(simplex_error(np.array([4.0, 2.0]), np.array([0.3, 0.3])))
    assert found.error[0, 2:].tolist() == [0, 0]
    assert found.error[1].tolist() == [0, 0, 0, 0]
    assert found.density == 6 / 8
    assert found.for_site("north").ranked(1) == [("a", 2 / 3, pytest.approx(found.error[0, 0]))]
    assert (found.for_site("north").flags, found.for_site("south").flags) == ((), ("flat",))
    assert found.for_site("north").top_count == 2


def test_the_consensus_leaves_flat_sites_out_unless_all_are():
    raw = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    of = lambda rows: Sketches.from_importances(rows_named(rows), "ab", Importances(rows, np.zeros_like(rows)))  # noqa: E731
    assert of(raw).consensus.tolist() == [0.75, 0.25]
    assert of(raw[1:2]).consensus.tolist() == [0.5, 0.5]
    assert of(raw[:0]).consensus.tolist() == [0.5, 0.5]


def rows_named(rows: np.ndarray) -> list[str]:
    return [f"site {k}" for k in range(len(rows))]


def test_sketches_refuse_what_does_not_fit():
    ones = np.ones((2, 3))
    with refused("mismatched-shapes", match="2 sites"):
        Sketches.from_importances("ab", "xy", Importances(ones, ones))
    found = Sketches.from_importances(["north", "south"], "xyz", Importances(ones, ones))
    with refused("unknown-site", match="did you mean 'north'"):
        found.for_site("nort")
