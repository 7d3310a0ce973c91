"""A run's budget: how much noise it takes, what each round is charged before it begins, what was promised in the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grandrounds.errors import BadInput
from grandrounds.methods import method_class
from grandrounds.methods.base import Method, Server
from grandrounds.methods.platt import PrivatePlatt
from grandrounds.methods.private import CLIENT, DP_SGD, Private, spends
from grandrounds.privacy.clipped import sampled_steps
from grandrounds.privacy.events import Event

if TYPE_CHECKING:
    from grandrounds.privacy.budget import Budget
    from grandrounds.privacy.secagg import Secret

SERVER = "the server"
"""Whose secret a trusted server's noise comes from in a simulation; no site can be called so."""


@dataclass
class Spending:
    """What a run may spend and has spent. `joined`: in how many rounds each site was asked to train."""

    budget: Budget
    private: Private
    joined: dict[str, int] = field(default_factory=dict)
    simulated: bool = True  # noise follows from the seed

    @classmethod
    def of(
        cls,
        plan: Any,
        held: Mapping[str, Any] | None,
        *,
        model_size: int,
        sites: int,
        secret: Secret | None = None,
    ) -> Spending | None:
        """As [privacy] says, or as an interrupted run `held` it; None where nothing is promised.

        `secret`: what the server's own noise comes from; of a simulation, the seed.

        Noise is settled once: a run that goes on for longer than planned does not add less of it, it runs out of budget.
        """
        p = plan.privacy
        if p.mechanism == "none" and method_class(plan.method.name).spends is Method.spends:
            return None
        from grandrounds.privacy.budget import Budget
        from grandrounds.privacy.secagg import Secret as _Secret

        private = Private(
            mechanism=p.mechanism,
            epsilon=p.epsilon,
            delta=p.delta,
            clip=p.clip,
            noise=0.0 if p.noise is None else p.noise,
            rate=p.rate,
            secure=p.secure,
            fewest=p.fewest_rows,
            steps=sampled_steps(p.rate, epochs=plan.train.epochs, steps=plan.train.steps),
            secret=_Secret.simulated(plan.seed, SERVER) if secret is None else secret,
        )
        if held is not None:
            private = replace(private, noise=float(held["noise"]))
            return cls(Budget.from_dict(held["budget"]), private, dict(held["joined"]), simulated=secret is None)
        if p.mechanism != "none" and p.noise is None:
            private = _with_noise(private, plan.method.rounds, model_size=model_size, sites=sites)
        return cls(Budget(p.epsilon, p.delta), private, simulated=secret is None)

    def charge(self, method: Method, server: Server) -> None:
        """Spend what this round will release, or raise `Overspent` before anything is.

        A patient is at one site, so the site that took part most often sets what is spent: a round is charged where it can
        make that more. This holds for the run's own mechanisms, whose rounds are all alike; a method with events of its own
        is charged for every round. Sites drawn at random get no credit for the draw, which the server knows.
        """
        events = tuple(method.spends(server))
        if not events:
            return
        own = type(method).spends is not Method.spends
        times = server.round if own else max(self.joined.values(), default=0) + 1
        said = json.dumps([e.to_dict() for e in events], sort_keys=True)
        self.budget.charge(events, key=f"{'round' if own else 'participation'} {times}: {said}")

    def calibration(self, by: str) -> PrivatePlatt | None:
        """Platt's line within the budget of the validation rows, who are other patients than those trained on; charged here."""
        p = self.private
        if p.epsilon is None or by != "platt":
            return None
        private = PrivatePlatt(p.epsilon, p.delta, p.secure)
        self.budget.charge(private.events(), key="calibration")
        return private

    def took_part(self, sites: Iterable[str]) -> None:
        for site in sites:
            self.joined[site] = self.joined.get(site, 0) + 1

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"noise": self.private.noise, "budget": self.budget.to_dict(), "joined": dict(self.joined)}

    def told(self, events: Sequence[Event]) -> dict[str, Any]:
        """For a round's Decision: what it released, and what is spent so far."""
        return {
            "mechanism": self.mechanism,
            "secure": self.private.secure,
            "epsilon_spent": self.epsilon,
            "delta": self.private.delta,
            **self._terms(),
            "events": [e.to_dict() for e in events],
        }

    @property
    def mechanism(self) -> str:
        """As [privacy] names it; of a method with mechanisms of its own, theirs."""
        kinds = dict.fromkeys(e.kind for e in self.budget.events)
        return self.private.mechanism if self.private.mechanism != "none" else ", ".join(kinds) or "none"

    @property
    def epsilon(self) -> float:
        """The largest of what training and validation rows have spent: no patient is in both."""
        return max(self.budget.spent("training"), self.budget.spent("validation"))

    def promised(self, *, rounds: int, not_covered: Sequence[str], lent: Mapping[str, int]) -> dict[str, Any]:
        """For summary.json: the promise with its terms in one sentence, and what it does not cover."""
        from grandrounds.privacy.accounting import statement

        p = self.private
        terms = {"clip": p.clip, "noise": p.noise} if p.mechanism in (DP_SGD, CLIENT) else {}
        said = statement(self.budget.events, p.delta, rounds=rounds, simulated=self.simulated)
        told = [f"{n} rows of reference set '{name}', which were sent to every site" for name, n in lent.items()]
        uncovered = [*not_covered, *told]
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "budget": p.epsilon,
            "delta": p.delta,
            **self._terms(),
            **terms,
            **({"rate": p.rate, "steps": p.steps} if p.mechanism == DP_SGD else {}),
            "secure": p.secure,
            "statement": f"{said[0].upper()}{said[1:]}. Not covered: {'; '.join(uncovered)}.",
            "not_covered": uncovered,
            "spent": {of: self.budget.spent(of) for of in dict.fromkeys(e.of for e in self.budget.events)},
            "events": _together(self.budget.events),
            **({"lent": dict(lent)} if lent else {}),
        }

    def _terms(self) -> dict[str, Any]:
        """Whom the promise is to, and who must be trusted for it."""
        events = self.budget.events
        return {
            "unit": events[0].unit if events else None,
            "neighbours": "add/remove",
            "trust": " and ".join(dict.fromkeys(e.trust for e in events)) or None,
        }


def _with_noise(private: Private, rounds: int, *, model_size: int, sites: int) -> Private:
    """With the least noise that all rounds can be run with."""
    from grandrounds.privacy.accounting import epsilon_of, noise_for

    if private.epsilon is None:
        raise BadInput(f"privacy.mechanism '{private.mechanism}' needs privacy.epsilon, or privacy.noise")
    sampled = private.mechanism == DP_SGD
    steps, rate = (rounds * private.steps, private.rate) if sampled else (rounds, 1.0)
    found = replace(private, noise=noise_for(private.epsilon, private.delta, steps=steps, rate=rate))
    while private.secure and not sampled:  # discrete noise on rounded values takes a little more
        one = spends(_like(found, model_size, sites))
        if epsilon_of([replace(e, count=rounds) for e in one], private.delta) <= private.epsilon:
            break
        found = replace(found, noise=1.005 * found.noise)
    return found


def _like(private: Private, model_size: int, sites: int) -> Server:
    """A server of this size, to ask what a round of it would spend."""
    import numpy as np

    names = tuple(str(k) for k in range(sites))
    return Server(1, np.zeros(model_size, np.float32), names, 0, private=private)


def _together(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Events with those that are alike counted as one."""
    counts: dict[Event, int] = {}
    for e in events:
        one = replace(e, count=1)
        counts[one] = counts.get(one, 0) + e.count
    return [replace(e, count=n).to_dict() for e, n in counts.items()]
