"""Terms of a secure sum: which sum it is, its steps, what is refused, who masks with whom, how many are enough, and weights.

Every key, signature and sealed share is bound to a `Context`, so none fits another round.

Neither a refusal nor a halt ever names a value: values are patients'.

Everybody masks with everybody up to a hundred sites, beyond that each with `degree` others. The sparse graph is a ring of all
sites in an order that follows from the hash of their signed keys, each joined to the nearest ones on both sides (Bell et al.
2020, section 3): symmetric, regular, connected, and it stays connected unless `degree` / 2 sites next to one another are gone.
Nobody can choose it after the keys are known. Whoever announces last, or chooses who is on the roster, can try again for better
odds, which a degree of 100 leaves very small.

The weights of a weighted sum are public, the same list at every site, and part of what sites agree on. Were each site told its
own weight only, a server could tell all but one that theirs is zero, and the sum would be that one's values. So the whole table
is on the roster, and sites look at it before they share and again when they sign.
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
    """Parts as one byte string that can be cut up in one way only: each follows its length."""
    raw = [p if isinstance(p, bytes) else str(p).encode() for p in parts]
    return b"".join(len(p).to_bytes(8, "big") + p for p in raw)


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """SHA-256 of parts, for one purpose."""
    return hashlib.sha256(joined("grandrounds secagg", purpose, *parts)).digest()


@dataclass(frozen=True)
class Context:
    """A run, its round, and which of the round's sums."""

    run: str
    round: int
    tag: str

    def __str__(self) -> str:
        return f"{self.run}/{self.round}/{self.tag}"

    @property
    def bytes(self) -> bytes:
        return joined("grandrounds secagg", self.run, self.round, self.tag)


REASONS = {
    "beyond-bound": "a value is beyond the bound that was agreed for this sum",
    "malformed": "the server's message is not of the agreed form",
    "not-finite": "a value is no finite number",
    "out-of-order": "this step is asked before its time",
    "other-weights": "models are to be summed by other weights than this site went along with",
    "own-keys": "the roster does not hold this site's own keys as it announced them",
    "peer-signature": "the keys of another site are not signed by it",
    "replayed": "this step was answered already, to another question",
    "same-identity": "two names of the roster are one identity",
    "shares": "too few of the shares that came for this site can be read",
    "signatures": "too few of the sites have signed the list of survivors",
    "survivors": "the list of survivors cannot be true, or is too short",
    "threshold": "the threshold is lower than this site allows, or cannot be met",
    "too-few-sites": "a sum of so few sites would tell them apart",
    "unknown-site": "the roster names a site that this one does not know",
    "weak-key": "the roster holds a key that hides nothing",
    "weight": "the weights are no shares, or would make the sum that of too few",
    "withheld": "the site gave no values to this sum; its own log says why",
}
"""Every code of a refusal, and what it means."""

WITHHELD = "withheld"
"""All that a hospital says where it gives no values: a reason that follows from them would tell of them."""


class Refused(GrandRoundsError):
    """A site does not go along. `code` is one of `REASONS` and all that may be told to the server."""

    def __init__(self, code: str) -> None:
        super().__init__(f"refused ({code}): {REASONS[code]}")
        self.code = code


class Halted(RunFailed):
    """The sum cannot be had. `missing` says who gave nothing to it, `faults` who went wrong besides."""

    def __init__(self, reason: str, *, missing: Mapping[str, str], faults: Mapping[str, str] | None = None) -> None:
        self.reason, self.missing, self.faults = reason, dict(missing), dict(faults or {})
        reasons = sorted(self.missing.items()) + sorted(self.faults.items())
        who = ", ".join(f"{site} ({why})" for site, why in reasons[:20])
        more = f", and {len(reasons) - 20} more" if len(reasons) > 20 else ""
        super().__init__(f"secure sum halted: {reason}" + (f"; {who}{more}" if who else ""), code="secure-sum-halted")


STEPS = ("keys", "shares", "masked", "sign", "unmask")

Message = dict[str, Value]


class Steps:
    """What a site answered so far. A step asked again gives the same answer, asked otherwise it is refused."""

    def __init__(self) -> None:
        self._done: dict[str, tuple[bytes, Message]] = {}

    def take(self, step: str, content: bytes, work: Callable[[], Message]) -> Message:
        """The answer to a step whose question has this fingerprint. Where `work` refuses, nothing is answered or kept."""
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
"""A sum of two tells each of the two the other's value."""


def least(sites: int) -> int:
    """Two thirds, rounded up, and three at least: the lowest threshold that a site accepts among so many.

    Two lists that so many have signed share more than a third of the signers. So while fewer than a third of them
    collude with the server, an honest one is among those, and it signs one list only: no site's mask key and self-mask
    can both be asked for.
    """
    return max(FEWEST_SITES, -(-2 * sites // 3))


def fewest_honest(sites: int, *, threshold: int = 0, colluding: int = 0) -> int:
    """The least number of honest survivors that a sum among so many sites can end with; noise in shares is sized for it."""
    honest = max(least(sites), threshold) - colluding
    if honest < 1:
        raise BadInput(
            f"with {colluding} of {sites} sites colluding a sum may hold no honest site: assume fewer",
            code="too-few-sites",
        )
    return honest


DEGREE = 100


@dataclass(frozen=True)
class Graph:
    """`order`: the sites (by number) around the ring; `reach`: how many on each side a site is joined to."""

    order: tuple[int, ...]
    place: tuple[int, ...]
    reach: int

    @property
    def complete(self) -> bool:
        return 2 * self.reach + 1 >= len(self.order)

    @property
    def around(self) -> int:
        """How many a neighbourhood holds, the site itself among them."""
        return min(len(self.order), 2 * self.reach + 1)

    def neighbours(self, site: int) -> tuple[int, ...]:
        """Those this site masks with, and whose shares it holds, in the roster's order."""
        return self.within(site, 1)

    def within(self, site: int, hops: int) -> tuple[int, ...]:
        """All others that are at most so many hops away."""
        n, place, far = len(self.order), self.place[site], hops * self.reach
        if 2 * far + 1 >= n:
            return tuple(k for k in range(n) if k != site)
        return tuple(sorted(self.order[(place + d) % n] for d in range(-far, far + 1) if d))


@lru_cache(maxsize=8)
def build_graph(sites: int, seed: bytes, degree: int = DEGREE) -> Graph:
    """The graph of so many sites (numbered as on the roster) from the roster's hash; an odd degree counts as one more."""
    order = sorted(range(sites), key=lambda k: hashlib.sha256(seed + k.to_bytes(8, "big")).digest())
    place = [0] * sites
    for position, site in enumerate(order):
        place[site] = position
    return Graph(tuple(order), tuple(place), (degree + 1) // 2)


_ROUNDING = 2.0**-21
"""By how much weights that add up to one may be off; `Scale` has room for twice as much."""

LEAST_SHARE = 1e-3
"""Of a sum's weights: a site with less hides nobody."""


def table_of(weights: Mapping[str, Sequence[float]] | None, names: Sequence[str]) -> Array:
    """Weights (n, S) in the roster's order: S of them a site, one for each part of its vector; none for a plain sum."""
    if weights is None:
        return np.empty((len(names), 0), "<f8")
    rows = [list(weights[name]) for name in names]
    if len({len(row) for row in rows}) > 1:
        raise BadInput("every site of a weighted sum needs as many weights as every other", code="bad-weights")
    return np.array(rows, "<f8")


def are_shares(table: Array) -> bool:
    """Whether all are between zero and one and each part's add up to one at most."""
    inside = np.isfinite(table) & (table >= 0) & (table <= 1)
    return bool(inside.all() and (table.sum(axis=0) <= 1 + _ROUNDING).all())


def hide(table: Array, sites: Collection[int], *, largest: float) -> bool:
    """Whether a sum over these sites hides each: three count for something in every part, none for more than `largest`.

    A site counts for something with a thousandth of the whole: what weighs less is lost in the values of the others.
    """
    survivors = table[sorted(sites)]
    total = survivors.sum(axis=0)
    counted = ((survivors > 0) & (survivors >= LEAST_SHARE * total)).sum(axis=0) >= FEWEST_SITES
    return bool(counted.all() and (survivors.max(axis=0, initial=0) <= largest * total).all())
