"""What asynchronous methods share: who is at work, and how much less a late answer counts."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.select import share
from grandrounds.protocol.messages import Arrival, Ask, Receive, Send

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

RULES = {
    "constant": "late answers count as much as others",
    "polynomial": "(staleness + 1) ** -a",
    "hinge": "1 up to b rounds, then 1 / (a * (staleness - b) + 1)",
}


def trust_in_late(staleness: int, settings: Any) -> float:
    """s(t - tau) of FedAsync (Xie et al. 2019): 1 for a fresh answer, less for one trained from an old model."""
    if settings.rule == "polynomial":
        return float((staleness + 1) ** -settings.a)
    if settings.rule == "hinge" and staleness > settings.b:
        return float(1 / (settings.a * (staleness - settings.b) + 1))
    return 1.0


@dataclass
class AtWork:
    """Which sites hold an Ask they have not answered; remembered between rounds as an array (K,)."""

    sites: tuple[str, ...]
    busy: Array
    failed: set[str] = field(default_factory=set)  # in this round: they have another turn in the next
    draws: int = 0

    @classmethod
    def of(cls, server: Server) -> AtWork:
        return cls(server.sites, server.state.get("busy", np.zeros(len(server.sites), np.int8)).copy())

    def fill(self, server: Server, settings: Any, *, but: Collection[str] = ()) -> tuple[str, ...]:
        """Idle sites to set to work: all, or as many as keep [method.select]'s share of sites at work.

        `but` had their turn in this round, as had those that failed.
        """
        idle = [k for k, s in enumerate(self.sites) if not self.busy[k] and s not in but and s not in self.failed]
        room = len(self.sites) if settings.rule == "all" else share(settings.fraction, len(self.sites))
        room = min(len(idle), room - int(self.busy.sum()))
        if room <= 0:
            return ()
        if room < len(idle):
            idle = sorted(server.rng(f"select {self.draws}").choice(idle, room, replace=False).tolist())
            self.draws += 1
        self.busy[idle] = 1
        return tuple(self.sites[k] for k in idle)

    def next(self) -> Generator[Receive, Arrival, Arrival | None]:
        """The next answer, or None where it failed and only left its place free."""
        arrival = yield Receive()
        site = arrival.answer.site
        self.busy[self.sites.index(site)] = 0
        if arrival.answer.error:
            self.failed.add(site)
            return None
        return arrival

    @property
    def any(self) -> bool:
        return bool(self.busy.any())


def send(ask: Ask) -> Generator[Send, None, None]:
    """Put an Ask on its way, where anybody is to get it."""
    if ask.to:
        yield Send(ask)
