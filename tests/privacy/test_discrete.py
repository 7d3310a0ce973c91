"""Exact samplers against the chances that define them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from grandrounds.privacy.discrete import discrete_gaussian, discrete_laplace
from tests.support import refused

SURELY = 1e-4
SIZE = 40_000


def fits(drawn, weight) -> float:
    """p-value of a chi-square test over the cells that hold five or more, tails joined."""
    reach = 1
    while weight(reach) * SIZE > 1e-12:
        reach *= 2
    cells = np.arange(-reach, reach + 1)
    chance = weight(cells)
    chance = chance / chance.sum()
    held = cells[chance * SIZE >= 5]
    inside = np.clip(drawn, held[0], held[-1])
    chance = np.array([*chance[np.isin(cells, held)]])
    total = weight(cells).sum()
    chance[0] += weight(cells[cells < held[0]]).sum() / total
    chance[-1] += weight(cells[cells > held[-1]]).sum() / total
    seen = np.array([(inside == c).sum() for c in held])
    return float(stats.chisquare(seen, chance * SIZE).pvalue)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("sigma", [0.4, 1, Fraction(7, 3), 3.14159, 25.0])
def test_discrete_gaussian_has_its_chances(sigma):
    drawn = discrete_gaussian(sigma, SIZE, rng=np.random.default_rng(5))
    assert drawn.dtype == np.int64 and len(drawn) == SIZE
    assert fits(drawn, lambda x: np.exp(-(np.asarray(x, float) ** 2) / (2 * float(sigma) ** 2))) > SURELY


@pytest.mark.parametrize("scale", [0.3, 1, Fraction(5, 3), 2.71828, 20.0])
def test_discrete_laplace_has_its_chances(scale):
    drawn = discrete_laplace(scale, SIZE, rng=np.random.default_rng(6))
    assert fits(drawn, lambda x: np.exp(-np.abs(np.asarray(x, float)) / float(scale))) > SURELY


def test_a_scale_a_tenth_off_is_told_apart():
    drawn = discrete_laplace(2.2, SIZE, rng=np.random.default_rng(6))
    assert fits(drawn, lambda x: np.exp(-np.abs(np.asarray(x, float)) / 2.0)) < SURELY


def test_large_scales_approach_their_continuous_forms():
    drawn = discrete_gaussian(1e6 / 3, 20_000, rng=np.random.default_rng(7))
    assert stats.kstest(drawn / (1e6 / 3), stats.norm.cdf).pvalue > SURELY
    drawn = discrete_laplace(1e6 / 3, 20_000, rng=np.random.default_rng(7))
    assert stats.kstest(drawn / (1e6 / 3), stats.laplace.cdf).pvalue > SURELY


def test_draws_repeat_with_their_generator():
    a, b = (discrete_gaussian(2.5, 100, rng=np.random.default_rng(1)) for _ in range(2))
    assert (a == b).all()
    assert len(discrete_laplace(1, 0, rng=np.random.default_rng(1))) == 0


def test_hardly_any_noise_is_hardly_ever_drawn():
    assert not discrete_gaussian(0.01, 1000, rng=np.random.default_rng(1)).any()


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), 2.0**41])
def test_scales_that_make_no_sense_are_refused(scale):
    with refused("bad-noise-scale"):
        discrete_gaussian(scale, 1, rng=np.random.default_rng(0))
    with refused("bad-noise-scale"):
        discrete_laplace(scale, 1, rng=np.random.default_rng(0))
    with refused("bad-count"):
        discrete_laplace(1, -1, rng=np.random.default_rng(0))
