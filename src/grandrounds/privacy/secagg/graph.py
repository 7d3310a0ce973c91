"""Who masks with whom: everybody with everybody up to a hundred sites, beyond that each with `degree` others.

The sparse graph is a ring of all sites in an order that follows from the hash of their signed keys, each joined to the
nearest ones on both sides (Bell et al. 2020, section 3): symmetric, regular, connected, and it stays connected unless
`degree` / 2 sites next to one another are gone. Nobody can choose it after the keys are known. Whoever announces last,
or chooses who is on the roster, can try again for better odds, which a degree of 100 leaves very small.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

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
        n, at, far = len(self.order), self.place[site], hops * self.reach
        if 2 * far + 1 >= n:
            return tuple(k for k in range(n) if k != site)
        return tuple(sorted(self.order[(at + d) % n] for d in range(-far, far + 1) if d))


@lru_cache(maxsize=8)
def build_graph(sites: int, seed: bytes, degree: int = DEGREE) -> Graph:
    """The graph of so many sites (numbered as on the roster) from the roster's hash; an odd degree counts as one more."""
    order = sorted(range(sites), key=lambda k: hashlib.sha256(seed + k.to_bytes(8, "big")).digest())
    place = [0] * sites
    for at, site in enumerate(order):
        place[site] = at
    return Graph(tuple(order), tuple(place), (degree + 1) // 2)
