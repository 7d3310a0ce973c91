"""Shamir's secret sharing of 32-byte secrets: any `threshold` shares give the secret, fewer say nothing about it.

`cryptography` does not offer it, so it is here, in a few lines over Python's integers modulo the prime 2**256 + 297, the
first that every 32-byte secret is smaller than. Python's integers take time that depends on their values; an attacker
would have to measure it inside a site.

`recover` reads a secret from shares of which some may be false: subsets are tried until one proves right.
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
"""Of entropy for each coefficient: 16 more than needed, so that the remainder is uniform to 2**-127."""


def split(secret: bytes, points: Sequence[int], *, threshold: int, entropy: bytes) -> list[bytes]:
    """A share for each point (distinct, none zero): the polynomial of degree threshold - 1 through the secret at zero."""
    if len(secret) != SECRET_BYTES or len(entropy) != COEFFICIENT_BYTES * (threshold - 1):
        raise ValueError("a secret of 32 bytes and 48 bytes of entropy for each coefficient are needed")
    cuts = range(0, len(entropy), COEFFICIENT_BYTES)
    coefficients = [int.from_bytes(entropy[c : c + COEFFICIENT_BYTES], "big") % PRIME for c in cuts]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for x in points:
        y = 0
        for c in coefficients:
            y = y * x + c  # reduced once at the end: points are small
        shares.append((y % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret that these shares, taken as exactly as many as the threshold, have in common; None where it is none."""
    value = value_at(0, shares)
    return value.to_bytes(SECRET_BYTES, "big") if value < 2 ** (8 * SECRET_BYTES) else None


def fits(shares: Mapping[int, bytes], point: int, share: bytes) -> bool:
    """Whether a further share lies on the polynomial of these."""
    return value_at(point, shares) == int.from_bytes(share, "big")


def value_at(x: int, shares: Mapping[int, bytes]) -> int:
    """The value at x of the polynomial through these shares."""
    points = tuple(sorted(shares))
    values = (int.from_bytes(shares[p], "big") for p in points)
    return sum(w * y for w, y in zip(_lagrange(points, x), values, strict=True)) % PRIME


@lru_cache(maxsize=256)
def _lagrange(points: tuple[int, ...], x: int) -> tuple[int, ...]:
    """What each point's value counts for in the polynomial's value at x."""
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
"""Subsets at most. With a third of 100 shares to spare, five false ones are found in some 250."""


@dataclass(frozen=True)
class Recovered:
    """A secret that proved right, and the holders (by point) whose shares do not fit it."""

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
    """The secret, from shares by point; None where no subset within `TRIES` gives one that `proves` accepts.

    Suspects are used last. Where the first subset is right the others are not looked at: nobody was harmed.
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
    """Subsets to try, the first ones first: all of them where they are few, else drawn."""
    yield tuple(points[:size])
    if math.comb(len(points), size) <= TRIES:
        yield from combinations(points, size)
        return
    rng = np.random.Generator(np.random.Philox(key=0))
    for _ in range(TRIES):
        yield tuple(points[k] for k in sorted(rng.choice(len(points), size, replace=False)))
