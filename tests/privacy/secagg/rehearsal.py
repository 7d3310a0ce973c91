"""A whole sum in one process: sites and server exchange bytes, and some sites drop out or send what they like."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, decode, encode
from grandrounds.core.errors import BadInput, nearest
from grandrounds.privacy.secagg.keys import Secret
from grandrounds.privacy.secagg.ring import Scale, Skellam
from grandrounds.privacy.secagg.server import SecureSum
from grandrounds.privacy.secagg.site import SecureSite
from grandrounds.privacy.secagg.terms import DEGREE, STEPS, Context, Message, Refused
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Payload

Tamper = Callable[[str, str, Message], Any]
"""What a site sends in place of its answer: (step, site, answer) -> anything."""
_CONTEXT = Context("rehearsal", 1, "sum")


@dataclass
class Rehearsal:
    """What came of it, and what it cost: bytes by step, seconds by site."""

    total: Array = field(default_factory=lambda: np.empty(0))
    sites: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    up: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    site_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: float = 0.0


def rehearse(
    values: Mapping[str, Array],
    *,
    scale: Scale,
    weights: Mapping[str, float] | None = None,
    noise: Skellam | None = None,
    drops: Mapping[str, Collection[str]] | None = None,
    tamper: Tamper | None = None,
    threshold: int | None = None,
    degree: int = DEGREE,
    seed: int | None = 0,
    context: Context = _CONTEXT,
) -> Rehearsal:
    """Add up the sites' values securely; `Halted` where the sum halts.

    `drops`: for a step, the sites that answer neither it nor any later one. Without a seed keys do not repeat.
    """
    _check(values, drops or {})
    who = {name: Identity.new() if seed is None else Identity.simulated(seed, name) for name in values}
    secrets = {name: Secret.own() if seed is None else Secret.simulated(seed, name) for name in values}
    peers = {name: identity.public for name, identity in who.items()}
    found, sites, gone = Rehearsal(), dict[str, SecureSite](), set[str]()

    def contribution(name: str) -> Array:
        ring = scale.to_ring(values[name], weight=sites[name].weights[0] if weights else 1.0)
        if noise is not None:
            ring += noise.share(scale, len(ring), secret=secrets[name], context=context)
        return ring

    size = len(next(iter(values.values())))
    server = SecureSum(
        context,
        peers=peers,
        scale=scale,
        size=size,
        weights={name: (w,) for name, w in weights.items()} if weights else None,
        threshold=threshold,
        degree=degree,
    )
    for name in values:
        with _timed(found, name):
            sites[name] = SecureSite(
                name, context, identity=who[name], peers=peers, secret=secrets[name], degree=degree
            )
    for step in STEPS:
        with _timed(found):
            question = server.ask()
        gone |= set((drops or {}).get(step, ()))
        for name in question.to:
            told, sent = _through_bytes({**question.shared, **question.each.get(name, {})})
            found.down[step] += sent
            if name in gone:
                continue
            try:
                with _timed(found, name):
                    said: Any = _answered(sites[name], step, told, contribution)
            except Refused as e:
                server.lost(name, f"refused ({e.code})")
                continue
            said, sent = _through_bytes(said)
            found.up[step] += sent
            if tamper is not None:
                said = tamper(step, name, said)
            with _timed(found):
                server.take(name, said)
    with _timed(found):
        found.total = server.total()
    found.sites, found.missing, found.faults = server.sites, server.missing, server.faults
    return found


def _check(values: Mapping[str, Array], drops: Mapping[str, Collection[str]]) -> None:
    """Refuse a rehearsal of nobody, and drop-outs that are no one's or at no step: they would change nothing."""
    if not values:
        raise BadInput("a rehearsal needs the values of three sites at least: give them by name")
    for step, sites in drops.items():
        if step not in STEPS:
            raise BadInput(f"drops: a sum has no step '{step}'; {nearest(step, STEPS)}")
        if isinstance(sites, str):
            raise BadInput(f"drops: the sites of step '{step}' are given as a list: ['{sites}']")
        for site in sites:
            if site not in values:
                raise BadInput(
                    f"drops: there is no site '{site}' to drop out at step '{step}'; {nearest(site, values)}"
                )


def _answered(site: SecureSite, step: str, told: Payload, contribution: Callable[[str], Array]) -> Message:
    if step == "keys":
        return site.keys()
    if step == "masked":
        return site.masked(contribution(site.name), told)
    return {"shares": site.shares, "sign": site.sign, "unmask": site.unmask}[step](told)


def _through_bytes(message: Payload) -> tuple[Message, int]:
    """A message as the other side reads it, and how many bytes it was."""
    arrays = {name: value for name, value in message.items() if isinstance(value, np.ndarray)}
    data = encode(arrays, {name: value for name, value in message.items() if name not in arrays})
    back, words = decode(data)
    return {**back, **words}, len(data)


@contextmanager
def _timed(found: Rehearsal, site: str = "") -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - began
        if site:
            found.site_seconds[site] = found.site_seconds.get(site, 0.0) + took
        else:
            found.server_seconds += took
