"""Shamir's secret sharing of 32-byte secrets: any `threshold` shares give the secret, fewer reveal nothing about it.

`cryptography` does not offer it. This implementation uses Python's integers modulo the prime 2**256 + 297, the first that
is larger than every 32-byte secret. The running time of Python's integers depends on their values; an attacker would have
to measure it inside a site.

`recover` reconstructs a secret from shares of which some may be false: it tries subsets until one is correct.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33
COEFFICIENT_BYTES = 48
"""Bytes of entropy for each coefficient: 16 more than needed, so that the remainder is uniform to 2**-127."""


def split(secret: bytes, points: Sequence[int], *, threshold: int, entropy: bytes) -> list[bytes]:
    """Compute a share for each point (distinct, not zero) of the polynomial of degree threshold - 1 through the secret at
    zero.
    """
    if len(secret) != SECRET_BYTES or len(entropy) != COEFFICIENT_BYTES * (threshold - 1):
        raise ValueError("sharing needs a secret of 32 bytes and 48 bytes of entropy for each coefficient")
    cuts = range(0, len(entropy), COEFFICIENT_BYTES)
    coefficients = [int.from_bytes(entropy[c : c + COEFFICIENT_BYTES], "big") % PRIME for c in cuts]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for x in points:
        y = 0
        for c in coefficients:
            y = y * x + c  # reduced once at the end, because points are small
        shares.append((y % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """Compute the secret of exactly `threshold` shares; None if the result is no 32-byte secret."""
    value = value_at(0, shares)
    return value.to_bytes(SECRET_BYTES, "big") if value < 2 ** (8 * SECRET_BYTES) else None


def fits(shares: Mapping[int, bytes], point: int, share: bytes) -> bool:
    """Tell whether a further share lies on the polynomial of these."""
    return value_at(point, shares) == int.from_bytes(share, "big")


def value_at(x: int, shares: Mapping[int, bytes]) -> int:
    """Evaluate the polynomial through these shares at x."""
    points = tuple(sorted(shares))
    values = (int.from_bytes(shares[p], "big") for p in points)
    return sum(w * y for w, y in zip(_lagrange(points, x), values, strict=True)) % PRIME


@lru_cache(maxsize=256)
def _lagrange(points: tuple[int, ...], x: int) -> tuple[int, ...]:
    """Compute the Lagrange coefficients of the points at x."""
    weights = []
    for p in points:
        over = under = 1
        for q in points:
            if q != p:
                over = over * (x - q) % PRIME
                under = under * (p - q) % PRIME
        weights.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(weights)


TRIES = 500
"""Largest number of subsets. With a third of 100 shares to spare, five false ones are found in about 250."""


@dataclass(frozen=True)
class Recovered:
    """A verified secret, and the holders (by point) whose shares do not fit it."""

    secret: bytes
    false: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"Recovered(false={sorted(self.false)})"


def recover(
    shares: Mapping[int, bytes],
    *,
    threshold: int,
    proves: Callable[[bytes], bool],
    suspects: frozenset[int] = frozenset(),
) -> Recovered | None:
    """Reconstruct a secret from shares of which some may be false.

    If the first subset is correct, the other shares are not checked: no harm was done.

    Args:
        shares: Shares by point.
        threshold: Number of shares that give the secret.
        proves: Tells whether a candidate is the secret.
        suspects: Points that are used last.

    Returns:
        The secret and the false shares; None if no subset within `TRIES` gives a verified secret.
    """
    points = sorted(shares, key=lambda p: (p in suspects, p))
    if len(points) < threshold:
        return None
    for tried, subset in enumerate(_subsets(points, threshold)):
        chosen = {p: shares[p] for p in subset}
        secret = combine(chosen)
        if secret is not None and proves(secret):
            more = () if not tried else (p for p in points if p not in chosen)
            return Recovered(secret, frozenset(p for p in more if not fits(chosen, p, shares[p])))
    return None


def _subsets(points: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Generate subsets to try, the first points first: all of them if they are few, else drawn."""
    yield tuple(points[:size])
    if math.comb(len(points), size) <= TRIES:
        yield from combinations(points, size)
        return
    rng = np.random.Generator(np.random.Philox(key=0))
    for _ in range(TRIES):
        yield tuple(points[k] for k in sorted(rng.choice(len(points), size, replace=False)))
