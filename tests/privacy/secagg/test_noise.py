"""Noise in shares: the distribution, its variance in the sum, and large variances that NumPy's Poisson cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from grandrounds.privacy.secagg import Context, Scale, Secret, Skellam, fewest_honest, least
from tests.privacy.secagg.rehearsal import rehearse
from tests.support import refused

CONTEXT = Context("run", 1, "shap")
SIZE = 200_000
SURELY = 1e-5


def share(noise: Skellam, scale: Scale, site: str = "a", size: int = SIZE) -> np.ndarray:
    drawn = noise.share(scale, size, secret=Secret.simulated(0, site), context=CONTEXT)
    assert drawn.dtype == scale.dtype
    return scale.signed(drawn).astype(np.float64)


def near(found: float, true: float, excess: float, n: int) -> bool:
    """Whether a sample variance is within six standard errors; `excess` is the distribution's excess kurtosis."""
    return abs(found / true - 1) < 6 * np.sqrt((2 + excess) / n)


def test_small_shares_are_skellam():
    """Three survivors of sigma 1.5 steps: shares of variance 0.75, chi-square against scipy."""
    scale = Scale(32, 1.0, 5)
    noise = Skellam(1.5 * scale.step, 3)
    assert noise.variance(scale) == pytest.approx(0.75)
    drawn = share(noise, scale)
    cells = np.arange(-5, 6)
    seen = np.array([(np.clip(drawn, -5, 5) == c).sum() for c in cells])
    chance = stats.skellam.pmf(cells, 0.375, 0.375)
    chance[[0, -1]] += (1 - chance.sum()) / 2
    assert stats.chisquare(seen, chance * SIZE).pvalue > SURELY


def test_sums_of_shares_are_skellam_too():
    scale = Scale(64, 1.0, 4)
    noise = Skellam(2.0 * scale.step, 4)
    total = sum(share(noise, scale, site) for site in "abcd")
    cells = np.arange(-8, 9)
    seen = np.array([(np.clip(total, -8, 8) == c).sum() for c in cells])
    chance = stats.skellam.pmf(cells, 2.0, 2.0)
    chance[[0, -1]] += (1 - chance.sum()) / 2
    assert stats.chisquare(seen, chance * SIZE).pvalue > SURELY


@pytest.mark.parametrize("variance", [0.5, 40.0, 2.0**20, 2.0**24.9, 2.0**25.1, 2.0**40, 2.0**60, 2.0**80])
def test_variance_and_mean_are_right_however_large(variance):
    """NumPy's own Poisson refuses means above 2**63 and is coarse long before."""
    scale = Scale(64, 1.0, 3)
    drawn = share(Skellam(float(np.sqrt(3 * variance)) * scale.step, 3), scale)
    assert near(float(drawn.var()), variance, 1 / variance, SIZE)
    assert abs(drawn.mean()) < 6 * np.sqrt(variance / SIZE)
    if variance > 100:
        assert stats.kstest(drawn / np.sqrt(variance), "norm").pvalue > SURELY


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_sum_of_the_fewest_survivors_holds_all_the_noise_asked_for(n):
    """Through the protocol: as many drop out as may; the noise in what comes out is never below sigma."""
    sigma, fewest = 0.01, fewest_honest(n)
    noise = Skellam(sigma, fewest)
    scale = Scale(32, 1.0, n, spare=noise.room(n))
    values = {f"s{k:02d}": np.full(20_000, 0.25) for k in range(n)}
    gone = list(values)[least(n) :]
    found = rehearse(values, scale=scale, noise=noise, drops={"masked": gone})
    assert len(found.sites) == fewest == least(n)
    spread = found.total - 0.25 * fewest
    assert near(float(spread.var()), sigma**2, 0, len(spread))
    assert abs(spread.mean()) < 6 * sigma / np.sqrt(len(spread))
    everybody = rehearse(values, scale=scale, noise=noise)
    assert near(float(everybody.total.var()), sigma**2 * n / fewest, 0, len(spread))


def test_colluding_sites_do_not_count_as_noise():
    assert (fewest_honest(10), fewest_honest(10, colluding=3), fewest_honest(10, threshold=9)) == (7, 4, 9)
    with refused("too-few-sites"):
        fewest_honest(3, colluding=3)


def test_noise_is_the_sites_own_and_of_this_sum():
    scale, noise = Scale(32, 1.0, 3), Skellam(0.1, 3)
    one = share(noise, scale, "a", 50)
    assert (share(noise, scale, "a", 50) == one).all()
    assert (share(noise, scale, "b", 50) != one).any()
    other = noise.share(scale, 50, secret=Secret.simulated(0, "a"), context=Context("run", 2, "shap"))
    assert (scale.signed(other) != one).any()
    own = [noise.share(scale, 50, secret=Secret.own(), context=CONTEXT) for _ in range(2)]
    assert (own[0] != own[1]).any()


@pytest.mark.parametrize(("sigma", "fewest"), [(0.0, 3), (-1.0, 3), (np.nan, 3), (np.inf, 3), (1.0, 0)])
def test_noise_that_is_none_is_refused(sigma, fewest):
    with refused("bad-privacy-parameter"):
        Skellam(sigma, fewest)


def test_noise_larger_than_the_ring_is_refused():
    with refused("bad-secure-range"):
        Skellam(1e10, 3).share(Scale(64, 1e-6, 3), 5, secret=Secret.own(), context=CONTEXT)
