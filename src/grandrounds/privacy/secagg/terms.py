"""Terms of a secure sum: identity of the sum, steps, refusals, the graph of neighbours, thresholds and weights.

Every key, signature and sealed share is bound to a `Context`, so none fits another round. Neither a refusal nor a halt
names a value, because values come from patients.

Up to 101 sites every site masks with every other, beyond that with `degree` others. The sparse graph is a ring of all sites
in an order that follows from the hash of their signed keys, each joined to the nearest ones on both sides (Bell et al.
2020, section 3). It is symmetric, regular and connected, and stays connected unless `degree` / 2 adjacent sites drop out.
Nobody can choose it after the keys are known. The party that announces last, or that chooses the roster, can try again for
better odds, which a degree of 100 leaves very small.

The weights of a weighted sum are public and equal at every site. If each site knew only its own weight, a server could give
all but one site a weight of zero, and the sum would be that site's values. So the whole table is on the roster, and sites
check it before they share and again when they sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.protocol.messages import Value


def joined(*parts: bytes | str | int) -> bytes:
    """Concatenate parts unambiguously: each follows its length."""
    raw = [p if isinstance(p, bytes) else str(p).encode() for p in parts]
    return b"".join(len(p).to_bytes(8, "big") + p for p in raw)


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """Compute the SHA-256 of parts, for one purpose."""
    return hashlib.sha256(joined("grandrounds secagg", purpose, *parts)).digest()


@dataclass(frozen=True)
class Context:
    """Identifies a sum by run, round and tag."""

    run: str
    round: int
    tag: str

    def __str__(self) -> str:
        return f"{self.run}/{self.round}/{self.tag}"

    @property
    def bytes(self) -> bytes:
        return joined("grandrounds secagg", self.run, self.round, self.tag)


REASONS = {
    "beyond-bound": "a value is beyond the bound agreed for this sum",
    "malformed": "the server's message has another form than agreed",
    "not-finite": "a value is not finite",
    "out-of-order": "this step was requested out of order",
    "other-weights": "the models would be summed with weights that this site did not accept",
    "own-keys": "the roster does not contain this site's keys as announced",
    "peer-signature": "the keys of another site are not signed by it",
    "replayed": "this step was already answered, to another request",
    "same-identity": "two names on the roster have one identity",
    "shares": "too few of the shares for this site can be read",
    "signatures": "too few sites signed the list of survivors",
    "survivors": "the list of survivors is impossible or too short",
    "threshold": "the threshold is lower than this site allows, or cannot be met",
    "too-few-sites": "a sum over so few sites would reveal single values",
    "unknown-site": "the roster names a site that this one does not know",
    "weak-key": "the roster contains a weak key",
    "weight": "the weights are not shares, or concentrate the sum on too few sites",
    "withheld": "the site gave no values to this sum; the cause is in its own log",
}
"""Every refusal code and its meaning."""

WITHHELD = "withheld"
"""The only code for a site that gives no values: a more specific cause could disclose something about them."""


class Refused(GrandRoundsError):
    """A site refuses a step. `code` is one of `REASONS`, and the only part that may leave the site."""

    def __init__(self, code: str) -> None:
        super().__init__(f"refused ({code}): {REASONS[code]}")
        self.code = code


class Halted(RunFailed):
    """The sum cannot be computed. `missing` lists sites without values in it, `faults` other failures, each with its cause.
    """

    def __init__(self, reason: str, *, missing: Mapping[str, str], faults: Mapping[str, str] | None = None) -> None:
        self.reason, self.missing, self.faults = reason, dict(missing), dict(faults or {})
        reasons = sorted(self.missing.items()) + sorted(self.faults.items())
        who = ", ".join(f"{site} ({why})" for site, why in reasons[:20])
        more = f", and {len(reasons) - 20} more" if len(reasons) > 20 else ""
        super().__init__(f"secure sum halted: {reason}" + (f"; {who}{more}" if who else ""), code="secure-sum-halted")


STEPS = ("keys", "shares", "masked", "sign", "unmask")

Message = dict[str, Value]


class Steps:
    """A site's answers so far. A repeated request gets the same answer; a different one for the same step is refused."""

    def __init__(self) -> None:
        self._done: dict[str, tuple[bytes, Message]] = {}

    def take(self, step: str, content: bytes, work: Callable[[], Message]) -> Message:
        """Return the answer to a step whose request has this fingerprint. If `work` refuses, nothing is answered or stored.
        """
        if step in self._done:
            before, answer = self._done[step]
            if before != content:
                raise Refused("replayed")
            return answer
        if STEPS[len(self._done)] != step:
            raise Refused("out-of-order")
        answer = work()
        self._done[step] = (content, answer)
        return answer


FEWEST_SITES = 3
"""Smallest sum: in a sum of two, each site learns the other's values."""


def least(sites: int) -> int:
    """Compute the lowest threshold that a site accepts: two thirds, rounded up, and at least three.

    Two lists that so many sites signed share more than a third of the signers. While fewer than a third collude with the
    server, an honest site is among those, and it signs one list only. So the server cannot obtain both the mask key and the
    self-mask of any site.
    """
    return max(FEWEST_SITES, -(-2 * sites // 3))


def fewest_honest(sites: int, *, threshold: int = 0, colluding: int = 0) -> int:
    """Compute the smallest number of honest survivors of a sum; noise in shares is sized for it.

    Args:
        sites: Number of sites.
        threshold: Threshold of the sum, if above the lowest.
        colluding: Number of sites assumed to collude with the server.

    Returns:
        The number of honest survivors.

    Raises:
        BadInput: There may be none.
    """
    honest = max(least(sites), threshold) - colluding
    if honest < 1:
        raise BadInput(
            f"with {colluding} of {sites} sites colluding, a sum may contain no honest site: assume fewer colluding sites",
            code="too-few-sites",
        )
    return honest


DEGREE = 100


@dataclass(frozen=True)
class Graph:
    """Ring of sites. `order`: sites (by number) around the ring; `reach`: neighbours on each side."""

    order: tuple[int, ...]
    place: tuple[int, ...]
    reach: int

    @property
    def complete(self) -> bool:
        return 2 * self.reach + 1 >= len(self.order)

    @property
    def around(self) -> int:
        """Size of a neighbourhood, the site itself included."""
        return min(len(self.order), 2 * self.reach + 1)

    def neighbours(self, site: int) -> tuple[int, ...]:
        """Return the sites that this one masks with, and whose shares it holds, in the roster's order."""
        return self.within(site, 1)

    def within(self, site: int, hops: int) -> tuple[int, ...]:
        """Return all other sites that are at most so many hops away."""
        n, place, far = len(self.order), self.place[site], hops * self.reach
        if 2 * far + 1 >= n:
            return tuple(k for k in range(n) if k != site)
        return tuple(sorted(self.order[(place + d) % n] for d in range(-far, far + 1) if d))


@lru_cache(maxsize=8)
def build_graph(sites: int, seed: bytes, degree: int = DEGREE) -> Graph:
    """Build the graph of sites (numbered as on the roster) from the roster's hash; an odd degree is rounded up."""
    order = sorted(range(sites), key=lambda k: hashlib.sha256(seed + k.to_bytes(8, "big")).digest())
    place = [0] * sites
    for position, site in enumerate(order):
        place[site] = position
    return Graph(tuple(order), tuple(place), (degree + 1) // 2)


_ROUNDING = 2.0**-21
"""Rounding tolerance of weights that add up to one; `Scale` has room for twice as much."""

LEAST_SHARE = 1e-3
"""Smallest share of a sum's weights with which a site counts."""


def table_of(weights: Mapping[str, Sequence[float]] | None, names: Sequence[str]) -> Array:
    """Arrange weights (n, S) in the roster's order, one for each part of a site's vector; S = 0 for a plain sum."""
    if weights is None:
        return np.empty((len(names), 0), "<f8")
    rows = [list(weights[name]) for name in names]
    if len({len(row) for row in rows}) > 1:
        raise BadInput("every site of a weighted sum needs the same number of weights", code="bad-weights")
    return np.array(rows, "<f8")


def are_shares(table: Array) -> bool:
    """Tell whether all weights are between zero and one, and each part's weights add up to at most one."""
    inside = np.isfinite(table) & (table >= 0) & (table <= 1)
    return bool(inside.all() and (table.sum(axis=0) <= 1 + _ROUNDING).all())


def hide(table: Array, sites: Collection[int], *, largest: float) -> bool:
    """Tell whether a sum over these sites hides each: in every part three count, and none has more than `largest`.

    A site counts with at least a thousandth of the total: smaller weights are lost in the values of the others.
    """
    survivors = table[sorted(sites)]
    total = survivors.sum(axis=0)
    counted = ((survivors > 0) & (survivors >= LEAST_SHARE * total)).sum(axis=0) >= FEWEST_SITES
    return bool(counted.all() and (survivors.max(axis=0, initial=0) <= largest * total).all())
