"""What a site's part in a secure sum costs: the noise that is in the sum for certain, as far as enough sites are honest.

A site knows the noise of its own share. That others add theirs it cannot see: the promise holds where as many sites are
honest as `Terms.honest` says, or as the protocol's threshold lets survive. How many take part it reads from the roster that it
shared its masks with, never from the number that comes with the question (`parties`), which its share is sized by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.keeper.charges_told import Told, raw, within
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Value
from grandrounds.protocol.packing import length, narrowed, reports

TRUST = "secure aggregation"

_NORMAL = 2.0**25
"""Variance of a share, in steps of the ring, above which it is a rounded normal draw (privacy/secagg/ring.py)."""


@dataclass(frozen=True)
class Held:
    """What the site holds of one answer: by report what it would tell (nothing where it is private already), and its layout."""

    told: Mapping[str, Told]
    layout: str
    digest: str


@dataclass(frozen=True)
class Joined:
    """A sum that the site shared its masks for: how many sites are on the roster, and its own weights, one a report."""

    sites: int
    weights: tuple[float, ...]

    @classmethod
    def of(cls, told: Mapping[str, Value], site: str) -> Joined:
        names = list(json.loads(str(told["names"])))
        return cls(len(names), tuple(np.asarray(told["weights"], float)[names.index(site)].tolist()))


def summed(
    asked: Mapping[str, Value], held: Held | None, joined: Joined | None, honest: int | None
) -> tuple[Event, ...]:
    """The events of a `secagg.masked` Ask. `held`: what is summed; None where that is not known for certain."""
    if held is None:
        return raw("a secure sum of what this account does not know", ("training", "validation", "test"), trust=TRUST)
    wanted = [r for r in str(asked.get("reports", "")).split(",") if r]
    shape = narrowed(held.layout, wanted) if wanted else held.layout
    parts = sorted(reports(shape))
    told = {name: held.told[name] for name in parts if name in held.told}
    if not any(t.rows for t in told.values()):
        return ()
    noised = None if joined is None else _noised(asked, told, parts, shape, joined, honest)
    if noised is not None:
        return (noised,)
    return tuple(
        e for t in told.values() for e in raw(f"a secure sum without enough noise: {t.what}", t.rows, trust=TRUST)
    )


def _noised(
    asked: Mapping[str, Value],
    told: Mapping[str, Told],
    parts: list[str],
    shape: str,
    joined: Joined,
    honest: int | None,
) -> Event | None:
    """The sum's event; None where no bound holds.

    A bound on entries below what they can be makes the site refuse by its patients' values: that would tell of them too.
    """
    from grandrounds.privacy.accounting import skellam_rho
    from grandrounds.privacy.secagg import Scale, Skellam, fewest_honest

    sigma, bound, parties, bits = (float(asked.get(n, 0.0)) for n in ("noise", "bound", "parties", "bits"))
    weights = dict(zip(parts, joined.weights, strict=True)) if len(joined.weights) == len(parts) else {}
    whose = {(t.unit, t.rows) for t in told.values()}
    reach = math.hypot(*(t.reach * weights.get(name, 1.0) for name, t in told.items()))
    largest = max(t.largest for t in told.values())
    if bool(joined.weights) != bool(weights) or len(whose) > 1 or not largest <= bound:
        return None
    if not (within(sigma, 1e-12, 1e12) and within(bound, 1e-6, 2.0**40) and within(reach, 1e-12, 1e12)):
        return None
    if bits not in (32, 64) or not 1 <= parties < 2**24:
        return None
    fewest = fewest_honest(int(parties))
    noise = Skellam(sigma, fewest)
    scale = Scale(int(bits), bound, int(parties), weighted=bool(weights), spare=noise.room(int(parties)))
    surely = fewest_honest(joined.sites) if honest is None else max(1, min(honest, fewest_honest(joined.sites)))
    enough = sigma * math.sqrt(surely / fewest)
    (unit, rows), what = next(iter(whose)), " and ".join(dict.fromkeys(t.what for t in told.values()))
    if not within(enough / reach, 1e-6, 1e9):
        return None
    kept: dict[str, Any] = {"unit": unit, "of": rows[0] if unit == "patient" else "training", "trust": TRUST}
    if _whole(shape) and not weights and scale.step <= 1 and noise.variance(scale) > _NORMAL:
        # whole numbers lie on the ring: nothing is rounded
        return Event("gaussian", what, sigma=enough / reach, **kept)
    rho = skellam_rho(enough, sensitivity=reach, step=scale.step, dimension=length(shape))
    return Event("skellam", what, rho=rho, **kept)


def _whole(shape: str) -> bool:
    return all(whole for _, _, whole in json.loads(shape))
