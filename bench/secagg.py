"""What secure aggregation costs: seconds at a site and at the server, bytes against plain float32.

    python bench/secagg.py [--sites 10,100,1000] [--sizes 1000,10000,100000,1000000,10000000] [--bar]

One core. A row is played "in full" (every site, every step, through bytes) where the masks of all sites are at most
4 GB; elsewhere it is put together "by parts": the protocol of all sites with a vector of one entry, and to it one site's
whole work on its vector, and the server's additions and masks, streamed (beyond 4 GB of masks, timed on 4 GB and scaled).
The site shown is the first: in one process it is the one that checks all signatures, as each site does at home.

Traffic is what a site sends and gets for one sum, and the model of the round that it gets, against float32 both ways.
`--bar` runs the two bars alone: 10 sites of a million parameters under a second in all, traffic at most 1.3 times plain.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.privacy.secagg import Scale
from grandrounds.privacy.secagg.keys import apply_masks
from grandrounds.privacy.secagg.terms import DEGREE

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.privacy.secagg.rehearsal import Rehearsal, rehearse

from smoke import SMOKE, pick

MASKS_IN_FULL = 4e9
SECONDS, TRAFFIC = 1.0, 1.3


@dataclass(frozen=True)
class Cost:
    """Of one sum: seconds at one site and at the server, bytes that a site sends and gets."""

    how: str
    site: float
    server: float
    everybody: float  # seconds of all sites and the server together
    up: float
    down: float

    def traffic(self, size: int) -> float:
        return (self.up + self.down + 4 * size) / (8 * size)


def made(sites: int, size: int) -> dict[str, Array]:
    vector = generator(0, purpose="bench").uniform(-1, 1, size).astype(np.float32)
    return {f"site{k:05d}": vector for k in range(sites)}


def scale(sites: int) -> Scale:
    return Scale(32, 1.0, sites, weighted=True)


def played(sites: int, size: int) -> Rehearsal:
    values = made(sites, size)
    found = rehearse(values, scale=scale(sites), weights=dict.fromkeys(values, 1 / sites), seed=None)
    mean = np.asarray(next(iter(values.values())), np.float64)
    assert np.abs(found.total - mean).max() <= scale(sites).error + 1e-12, "the secure sum is not the plain one"
    return found


def in_full(sites: int, size: int) -> Cost:
    found = played(sites, size)
    everybody = sum(found.site_seconds.values()) + found.server_seconds
    first = found.site_seconds["site00000"]
    up, down = (sum(by.values()) / sites for by in (found.up, found.down))
    return Cost("in full", first, found.server_seconds, everybody, up, down)


def by_parts(protocol: Cost, sites: int, size: int) -> Cost:
    """The protocol's fixed cost, and what one vector costs at a site and all of them at the server."""
    around = min(sites - 1, DEGREE)
    vector = next(iter(made(1, size).values()))
    began = time.perf_counter()
    ring = scale(sites).to_ring(vector, weight=1 / sites)
    hashlib.sha256(ring.data).digest()
    out = ring.copy()
    apply_masks(out, add=keys(around // 2 + 1), take=keys(around - around // 2))
    site = time.perf_counter() - began
    timed = max(1, min(sites, int(MASKS_IN_FULL / (4 * size))))
    began = time.perf_counter()
    for _ in range(timed):
        out += ring
    apply_masks(out, take=keys(timed))
    server = (time.perf_counter() - began) * sites / timed
    began = time.perf_counter()
    scale(sites).possible(out)
    scale(sites).from_ring(out)
    server += time.perf_counter() - began
    how = "by parts" if timed == sites else "by parts, server scaled"
    everybody = protocol.everybody + sites * site + server
    return Cost(how, protocol.site + site, protocol.server + server, everybody, protocol.up + 4 * size, protocol.down)


def keys(count: int) -> list[bytes]:
    return [k.to_bytes(32, "big") for k in range(count)]


def line(sites: int, size: int, cost: Cost) -> str:
    ratio = cost.traffic(size)
    return (
        f"| {sites:,} | {size:,} | {cost.site:.3f} | {cost.server:.3f} | {cost.everybody:.2f} | {cost.up / 1e3:,.1f} "
        f"| {cost.down / 1e3:,.1f} | {4 * size / 1e3:,.0f} | {ratio:.2f} | {cost.how} |"
    )


def table(sites: list[int], sizes: list[int]) -> None:
    print("| sites | parameters | site s | server s | all s | up kB | down kB | plain kB | traffic | measured |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for n in sites:
        fixed = in_full(n, 1)
        for size in sizes:
            masks = 4.0 * size * n * min(n, DEGREE + 1)
            cost = in_full(n, size) if masks <= MASKS_IN_FULL and n <= DEGREE else by_parts(fixed, n, size)
            print(line(n, size, cost), flush=True)


def bar() -> None:
    cost = in_full(10, 1_000_000)
    print(f"10 sites, 1,000,000 parameters: {cost.everybody:.2f} s in all (bar {SECONDS} s)")
    print(f"traffic {cost.traffic(1_000_000):.3f} times plain float32 (bar {TRAFFIC})")
    if (cost.everybody > SECONDS and not SMOKE) or cost.traffic(1_000_000) > TRAFFIC:
        raise SystemExit("a bar is missed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default=pick("10,100,1000", "5"))
    parser.add_argument("--sizes", default=pick("1000,10000,100000,1000000,10000000", "1000"))
    parser.add_argument("--bar", action="store_true", help="the two bars alone")
    args = parser.parse_args()
    if not args.bar:
        table([int(n) for n in args.sites.split(",")], [int(n) for n in args.sizes.split(",")])
    bar()


if __name__ == "__main__":
    main()
