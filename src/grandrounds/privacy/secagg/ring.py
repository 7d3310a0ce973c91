"""Fixed-point arithmetic in a ring: real values as integers modulo 2**32 (models) or 2**64 (statistics), where masks cancel
exactly.

Noise is added in shares: each site adds a part, and the sum has as much noise as one draw for the whole consortium. Skellam
noise (the difference of two Poisson draws of one mean) is discrete and closed under sums, so it has the same distribution
whichever sites survive (Agarwal et al. 2021); only its variance grows with the survivors. Shares are sized for the fewest
honest survivors that the threshold allows, so the variance of the sum is never below the requested one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg.keys import Secret
from grandrounds.privacy.secagg.terms import Context, Refused

_BLOCK = 1 << 16
_SLACK = Fraction(1, 2**20)
"""Weights that add up to one do so up to rounding, and so do their products with values."""


@dataclass(frozen=True)
class Scale:
    """Conversion of values to ring elements, such that a sum over `parties` sites cannot wrap around.

    `bound` limits any one value of any one site. Plain sums have room for `parties * bound`. `weighted` sums, where site i
    multiplies by a public weight w_i before rounding and the weights add up to at most one, need room for `bound` only:
    there the number of sites costs no bits. `spare` is room for noise, in units of the values.

    `whole` sums add whole numbers as they are (exponent 0). The sites' values are counts or rounded contributions of rows whose
    sum over all rows is known to be within `bound`, however the rows are divided: the room does not depend on the sites either,
    and `bound` is at most 2**(bits - 2).

    A value v becomes rint(v * 2**exponent) with the largest exponent for which

        room * 2**exponent + parties / 2  <=  2**(bits - 2).

    Proof that nothing wraps: |sum v_i| <= room, and each of the `parties` roundings is off by at most 1/2. By this
    inequality the integer sum is within +-2**(bits - 2), half of the ring. Honest sums cannot reach the other half, but
    each entry of a vector of noise in place of a masked one falls into it with probability one half. A power of two keeps
    integers and halves exact.
    """

    bits: int
    bound: float
    parties: int
    weighted: bool = False
    spare: float = 0.0
    whole: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise BadInput(
                f"bits = {self.bits} is not supported for a secure sum: use 32 (models) or 64 (statistics)",
                code="bad-secure-range",
            )
        if not (math.isfinite(self.bound) and self.bound > 0 and math.isfinite(self.spare) and self.spare >= 0):
            raise BadInput(
                "the bound of a secure sum must be above zero, and the room for noise zero or more",
                code="bad-secure-range",
            )
        if self.parties < 1 or self.parties >= 2 ** (self.bits - 2):
            raise BadInput(f"{self.parties} sites do not fit a ring of {self.bits} bits", code="too-many-sites")
        if self.whole and (self.weighted or self.bound + self.spare > 2 ** (self.bits - 2)):
            raise BadInput(
                f"a sum of whole numbers has no weights, and room for {self.bits - 2} bits: lower its bound or its noise",
                code="bad-secure-range",
            )

    @cached_property
    def exponent(self) -> int:
        """Number of fractional bits; below zero if the bound is so large that integers are too fine."""
        if self.whole:
            return 0
        room = Fraction(self.bound) * (1 if self.weighted else self.parties) * (1 + _SLACK) + Fraction(self.spare)
        free = (1 << (self.bits - 2)) - Fraction(self.parties, 2)
        ratio = free / room
        guess = ratio.numerator.bit_length() - ratio.denominator.bit_length()  # exact, or one too many
        power = Fraction(1 << guess) if guess >= 0 else Fraction(1, 1 << -guess)
        return guess if power <= ratio else guess - 1

    @property
    def step(self) -> float:
        """Distance between neighbouring values."""
        return math.ldexp(1.0, -self.exponent)

    @property
    def error(self) -> float:
        """Largest rounding error of one entry of a sum."""
        return self.parties * self.step / 2

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint32 if self.bits == 32 else np.uint64)

    def to_ring(self, values: Array, *, weight: float = 1.0) -> Array:
        """Convert a site's values, times its weight, to ring elements (P,).

        Raises:
            Refused: A value is not finite, beyond the bound, or not a whole number in a sum of whole numbers.
            BadInput: The values are not a flat array of real numbers, or the weight is not between 0 and 1.
        """
        flat = np.asarray(values)
        if flat.ndim != 1 or flat.dtype.kind not in "fiub":
            raise BadInput("a secure sum needs a flat array of real numbers", code="not-numeric")
        if not 0 <= weight <= 1:
            raise BadInput(f"weight = {weight} in a secure sum must be between 0 and 1", code="bad-weights")
        out = np.empty(len(flat), self.dtype)
        for start in range(0, len(flat), _BLOCK):
            block = flat[start : start + _BLOCK].astype(np.float64)
            if not np.isfinite(block).all():
                raise Refused("not-finite")
            if np.abs(block).max() > self.bound:
                raise Refused("beyond-bound")
            if self.whole and (np.rint(block) != block).any():
                raise Refused("malformed")
            if weight != 1.0:
                block *= weight
            out[start : start + _BLOCK] = np.rint(np.ldexp(block, self.exponent)).astype(np.int64).astype(self.dtype)
        return out

    def from_ring(self, total: Array) -> Array:
        """Convert ring elements to real values in float64."""
        return np.ldexp(self.signed(total).astype(np.float64), -self.exponent)

    def possible(self, total: Array) -> bool:
        """Tell whether honest sites can have this sum; False if a vector was not masked as agreed."""
        signed, most = self.signed(total), 2 ** (self.bits - 2)
        return not len(signed) or (int(signed.min()) >= -most and int(signed.max()) <= most)

    def signed(self, total: Array) -> Array:
        """Interpret ring elements as integers around zero."""
        return total.astype(self.dtype, copy=False).view(np.int32 if self.bits == 32 else np.int64)


_EXACT = 2.0**24
_LARGEST = 2.0**90


@dataclass(frozen=True)
class Skellam:
    """Noise of standard deviation `sigma` (in units of the values) in a sum with at least `fewest` honest survivors.

    If a share has a variance above 2**25, it is a normal draw rounded to the ring: NumPy's Poisson draws lose precision
    there (at a mean of 2**50 they are useless). At z standard deviations a Skellam of that variance differs from it by a
    relative z**4 / (24 * variance): 2e-6 at six.

    Draws come from a Philox generator keyed by 128 bits of the site's secret. It is no cipher; only the sum of the noise of
    several sites and their values is ever visible.
    """

    sigma: float
    fewest: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma) and self.sigma > 0 and self.fewest >= 1):
            raise BadInput(
                "noise in shares needs a standard deviation above zero and at least one honest survivor",
                code="bad-privacy-parameter",
            )

    def variance(self, scale: Scale) -> float:
        """Variance of one site's share, in steps of the ring."""
        variance = (self.sigma / scale.step) ** 2 / self.fewest
        if variance > _LARGEST:
            raise BadInput(
                "the noise is too large for the ring: use less noise or a larger bound",
                code="bad-secure-range",
            )
        return variance

    def room(self, parties: int) -> float:
        """Return the room for `Scale.spare`: ten standard deviations of the noise of all `parties`."""
        return 10 * self.sigma * float(np.sqrt(max(1.0, parties / self.fewest)))

    def share(self, scale: Scale, size: int, *, secret: Secret, context: Context) -> Array:
        """Draw one site's noise as ring elements (size,), to be added to its values before masking."""
        variance = self.variance(scale)
        key = np.frombuffer(secret.bytes(f"{context}: noise", 16), "<u8")
        rng = np.random.Generator(np.random.Philox(key=key))
        out = np.empty(size, scale.dtype)
        for start in range(0, size, _BLOCK):
            n = min(_BLOCK, size - start)
            if variance <= 2 * _EXACT:
                drawn = rng.poisson(variance / 2, n) - rng.poisson(variance / 2, n)
            else:
                drawn = np.rint(rng.normal(0.0, np.sqrt(variance), n)).astype(np.int64)
            out[start : start + n] = drawn.astype(scale.dtype)
        return out
