"""Fixed point: exact where it can be, never wrapped, and silent about values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg import Refused, Scale
from tests.support import refused

bits = st.sampled_from([32, 64])
bounds = st.floats(1e-6, 1e9) | st.sampled_from([1.0, 2.0, 3.0, 1024.0, 1e-300, 1e300])


def added(scale, *vectors):
    total = np.zeros(len(vectors[0]), scale.dtype)
    for vector in vectors:
        total += vector
    return total


def test_worked_by_hand():
    """Room 3 x 1 in 2**30 - 1.5: 2**28 a unit (3 x 2**28 fits, 3 x 2**29 does not)."""
    scale = Scale(32, 1.0, 3)
    assert scale.exponent == 28
    np.testing.assert_array_equal(scale.to_ring(np.array([1.0, -1.0, 0.5])), [2**28, 2**32 - 2**28, 2**27])
    np.testing.assert_array_equal(scale.from_ring(np.array([2**28, 2**32 - 1], np.uint32)), [1.0, -(2.0**-28)])


@given(bits, bounds, st.integers(1, 5000))
@settings(max_examples=200, deadline=None)
def test_all_sites_at_the_bound_do_not_wrap(width, bound, parties):
    scale = Scale(width, bound, parties)
    ring = scale.to_ring(np.array([bound, -bound]))
    one = [int(v) for v in scale.signed(ring)]
    most = 2 ** (width - 2)
    assert all(abs(v) * parties <= most for v in one)
    # the next finer scale would not do: no bit is given away but the guard
    finer = 2 * abs(one[0]) + 1
    assert finer * parties + parties > most * (1 - 2**-18) or abs(one[0]) < 2**20


@given(bits, bounds, st.lists(st.floats(0, 1), min_size=3, max_size=60).filter(lambda w: sum(w) > 0), st.integers(0, 1))
@settings(max_examples=200, deadline=None)
def test_weighted_sites_at_the_bound_do_not_wrap(width, bound, raw, sign):
    weights = [min(1.0, w / sum(raw)) for w in raw]
    scale = Scale(width, bound, len(weights), weighted=True)
    edge = np.array([bound if sign else -bound])
    exact = sum(int(scale.signed(scale.to_ring(edge, weight=w))[0]) for w in weights)
    assert abs(exact) <= 2 ** (width - 2)
    total = added(scale, *(scale.to_ring(edge, weight=w) for w in weights))
    assert scale.possible(total)
    np.testing.assert_allclose(scale.from_ring(total), edge * sum(weights), rtol=1e-9, atol=scale.error)


@given(bits, st.integers(3, 20), hnp.arrays(np.float64, (3, 5), elements=st.floats(-7.5, 7.5)))
@settings(max_examples=200, deadline=None)
def test_sum_is_off_by_no_more_than_rounding(width, parties, values):
    scale = Scale(width, 7.5, parties)
    total = scale.from_ring(added(scale, *(scale.to_ring(v) for v in values)))
    np.testing.assert_allclose(total, values.sum(axis=0), rtol=1e-14, atol=1.5 * scale.step + 1e-14)


def test_counts_are_exact():
    scale = Scale(64, 1e9, 1000)
    counts = np.array([0, 1, 17, 10**9])
    np.testing.assert_array_equal(scale.from_ring(added(scale, *[scale.to_ring(counts)] * 1000)), counts * 1000.0)


def test_number_of_sites_costs_weighted_sums_no_precision():
    assert Scale(32, 1.5, 1000, weighted=True).exponent == Scale(32, 1.5, 3, weighted=True).exponent
    assert Scale(32, 1.5, 1000).exponent < Scale(32, 1.5, 3).exponent - 7


def test_room_for_noise_makes_the_scale_coarser():
    assert Scale(32, 1.5, 10, weighted=True, spare=10.0).exponent == Scale(32, 1.5, 10, weighted=True).exponent - 3


@pytest.mark.parametrize(
    ("value", "code"),
    [(np.nan, "not-finite"), (np.inf, "not-finite"), (-np.inf, "not-finite"), (1.0000001, "beyond-bound")],
)
def test_refusals_name_no_value(value, code):
    values = np.zeros(100_000)
    values[70_001] = value
    with pytest.raises(Refused) as e:
        Scale(32, 1.0, 5).to_ring(values)
    assert e.value.code == code
    assert not any(c.isdigit() for c in str(e.value))


def test_values_outside_the_guard_are_told():
    scale = Scale(32, 1.0, 3)
    assert scale.possible(np.array([2**30, 2**32 - 2**30], np.uint32))
    assert not scale.possible(np.array([0, 2**30 + 1], np.uint32))
    assert not scale.possible(np.array([2**31], np.uint32))


@pytest.mark.parametrize(
    "said",
    [
        {"bits": 16},
        {"bound": 0.0},
        {"bound": np.inf},
        {"bound": np.nan},
        {"parties": 0},
        {"parties": 2**31},
        {"spare": -1},
    ],
)
def test_bad_scales_are_refused_in_words(said):
    with pytest.raises(BadInput):
        Scale(**{"bits": 32, "bound": 1.0, "parties": 3, **said})


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.array(["a"]), np.array([1j])])
def test_what_is_no_flat_array_of_numbers_is_refused(values):
    with refused("not-numeric"):
        Scale(32, 1.0, 3).to_ring(values)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_weights_are_shares(weight):
    with refused("bad-weights"):
        Scale(32, 1.0, 3, weighted=True).to_ring(np.zeros(2), weight=weight)
