"""Noise in shares: each site adds a little of its own, and the sum holds as much as one draw for the whole consortium.

Skellam noise (the difference of two Poisson draws of one mean) is discrete and closed under sums, so it is the same
distribution whoever survives (Agarwal et al. 2021); only its variance grows with the survivors. Shares are sized for the
fewest honest survivors that the threshold allows, so the variance of the sum is never below what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg.context import Context
from grandrounds.privacy.secagg.ring import Scale
from grandrounds.privacy.secagg.secret import Secret

_EXACT = 2.0**24
_LARGEST = 2.0**90
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Skellam:
    """Noise of standard deviation `sigma` (in units of the values) in a sum that `fewest` honest sites survive.

    Above a variance of 2**25 a share is a normal draw rounded to the ring: NumPy's Poisson draws are decided by
    differences of logarithms that lose their digits there (at a mean of 2**50 they are worthless). A Skellam of that
    variance differs from it, at z standard deviations, by a relative z**4 / (24 * variance): 2e-6 at six.

    Draws come from a Philox generator keyed by 128 bits of the site's secret. It is no cipher; what is ever seen of its
    stream is the sum of the noise of several sites and their values.
    """

    sigma: float
    fewest: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma) and self.sigma > 0 and self.fewest >= 1):
            raise BadInput("noise in shares needs a standard deviation above zero and one honest survivor at least")

    def variance(self, scale: Scale) -> float:
        """Of one site's share, in steps of the ring."""
        found = (self.sigma / scale.step) ** 2 / self.fewest
        if found > _LARGEST:
            raise BadInput("the noise is larger than the ring can hold: ask for less, or for a larger bound")
        return found

    def room(self, parties: int) -> float:
        """What to give `Scale.spare`: ten standard deviations of the noise of all `parties`, which none will pass."""
        return 10 * self.sigma * float(np.sqrt(max(1.0, parties / self.fewest)))

    def share(self, scale: Scale, size: int, *, secret: Secret, context: Context) -> Array:
        """One site's noise as ring elements (size,), to be added to its values before they are masked."""
        variance = self.variance(scale)
        key = np.frombuffer(secret.bytes(f"{context}: noise", 16), "<u8")
        rng = np.random.Generator(np.random.Philox(key=key))
        out = np.empty(size, scale.dtype)
        for at in range(0, size, _BLOCK):
            n = min(_BLOCK, size - at)
            if variance <= 2 * _EXACT:
                drawn = rng.poisson(variance / 2, n) - rng.poisson(variance / 2, n)
            else:
                drawn = np.rint(rng.normal(0.0, np.sqrt(variance), n)).astype(np.int64)
            out[at : at + n] = drawn.astype(scale.dtype)
        return out
