"""A run's budget: how much noise it takes, what each round is charged before it begins, what was promised in the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.methods import method_class
from grandrounds.methods.base import Method, Server
from grandrounds.methods.dp import CLIENT, DP_SGD, PrivacyTerms, round_events
from grandrounds.methods.platt import PlattLine, PrivatePlatt
from grandrounds.privacy.clipping import count_sampled_steps
from grandrounds.privacy.events import Event, protects_patients
from grandrounds.privacy.in_words import whom

if TYPE_CHECKING:
    from grandrounds.privacy.budget import Budget
    from grandrounds.privacy.secagg import Secret

CALIBRATION = "calibration"
"""The release that follows the rounds: Platt's line of the finished model, paid for by validation patients."""

SERVER = "the server"
"""Whose secret a trusted server's noise comes from in a simulation; no site can be called so."""


@dataclass(frozen=True)
class Calibrated:
    """A calibration that was charged: the model of which round it is of, its releases, and the line once it is known.

    The model is its identity: the line of the same model is the same release, and another model's is charged anew.
    """

    model: str
    round: int
    events: tuple[Event, ...]
    line: PlattLine | None = None

    def to_dict(self) -> dict[str, object]:
        """For charges.json: plain values."""
        line = None if self.line is None else asdict(self.line)
        return {**self.released(), "line": line}

    def released(self) -> dict[str, object]:
        """For the ledger's closing entry."""
        return {
            "what": CALIBRATION,
            "model": self.model,
            "round": self.round,
            "events": [e.to_dict() for e in self.events],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibrated:
        """As `to_dict` or `released` wrote it."""
        line = values.get("line")
        events = tuple(Event.from_dict(e) for e in values["events"])
        return cls(str(values["model"]), int(values["round"]), events, None if line is None else PlattLine(**line))


@dataclass
class Spending:
    """What a run may spend and has spent. `joined`: in how many rounds each site was asked to train."""

    budget: Budget
    private: PrivacyTerms
    joined: dict[str, int] = field(default_factory=dict)
    simulated: bool = True  # noise follows from the seed
    column: str | None = None  # whose values name patients, where the promise is to them
    calibrations: dict[str, Calibrated] = field(default_factory=dict)  # by the digest of the model
    begun: dict[str, Any] = field(default_factory=dict)  # the round under way, of a method with noise of its own

    @classmethod
    def of(
        cls,
        plan: Plan,
        stored: Mapping[str, Any] | None,
        *,
        model_size: int,
        sites: int,
        secret: Secret | None = None,
        charges: Mapping[str, Any] | None = None,
    ) -> Spending | None:
        """As [privacy] says, or as an interrupted run `stored` it; None where nothing is promised.

        `secret`: what the server's own noise comes from; of a simulation, the seed. `charges`: releases outside the
        rounds of an interrupted run (`Checkpoint.charges`).

        Noise is settled once: a run that goes on for longer than planned does not add less of it, it runs out of budget.
        """
        p = plan.privacy
        if p.mechanism == "none" and method_class(plan.method.name).spends is Method.spends:
            return None
        from grandrounds.privacy.budget import Budget
        from grandrounds.privacy.secagg import Secret as _Secret

        private = PrivacyTerms(
            mechanism=p.mechanism,
            epsilon=p.epsilon,
            delta=p.delta,
            clip=p.clip,
            noise=0.0 if p.noise is None else p.noise,
            sampling_rate=p.sampling_rate,
            secure=p.secure,
            min_rows=p.min_rows,
            sites=_planned_sites(plan, stored, sites),
            steps=count_sampled_steps(p.sampling_rate, epochs=plan.train.epochs, steps=plan.train.steps),
            secret=_Secret.simulated(plan.seed, SERVER) if secret is None else secret,
        )
        column = (plan.data.patient or "patient") if protects_patients(plan) else None
        if stored is not None:
            private = replace(private, noise=float(stored["noise"]))
            budget, joined = Budget.from_dict(stored["budget"]), dict(stored["joined"])
            return cls(budget, private, joined, simulated=secret is None, column=column).recall(charges or {})
        if p.mechanism != "none" and p.noise is None:
            private = _with_noise(private, plan.method.rounds, model_size=model_size, sites=sites)
        budget = Budget(p.epsilon, p.delta)
        return cls(budget, private, simulated=secret is None, column=column).recall(charges or {})

    def recall(self, charges: Mapping[str, Any]) -> Spending:
        """Count what an earlier process released outside the rounds; gives this spending."""
        for one in charged_calibrations(charges):
            self.budget.recall(one.events, key=f"{CALIBRATION} of {one.model}")
            self.calibrations[one.model] = one
        self.begun = dict(charges.get("begun", {}))
        return self

    def charges(self) -> dict[str, Any]:
        """For charges.json: releases outside the rounds, and what the round under way was begun with."""
        calibrations = [one.to_dict() for one in self.calibrations.values()]
        return {CALIBRATIONS: calibrations, **({"begun": self.begun} if self.begun else {})}

    def released(self) -> list[dict[str, object]]:
        """For the ledger's closing entry: releases outside the rounds, as charged."""
        return [one.released() for one in self.calibrations.values()]

    def charge(self, method: Method, server: Server) -> bool:
        """Spend what this round will release, or raise `Overspent` before anything is.

        A patient is at one site, so the site that took part most often sets what is spent: a round is charged where it can
        make that more. This holds for the run's own mechanisms, whose rounds are all alike; a method with events of its own
        is charged for every round. Sites drawn at random get no credit for the draw, which the server knows.

        Returns whether the round has noise of the method's own, which must be on disk before it is asked for (`charges`): the
        round begun with other noise, before a crash, would be a second release, and is refused.
        """
        events = tuple(method.spends(server))
        if not events:
            return False
        has_own_spending = type(method).spends is not Method.spends
        times = server.round if has_own_spending else max(self.joined.values(), default=0) + 1
        listed = [e.to_dict() for e in events]
        if has_own_spending and self.begun.get("round") == server.round and self.begun["events"] != listed:
            raise BadInput(
                f"round {server.round} was begun with other noise, because method.rounds was {self.begun['rounds']}: go on "
                f"with method.rounds={self.begun['rounds']}, and change it once that round is done",
                code="rounds-changed",
            )
        listing = json.dumps(listed, sort_keys=True)
        self.budget.charge(events, key=f"{'round' if has_own_spending else 'participation'} {times}: {listing}")
        if has_own_spending:
            self.begun = {"round": server.round, "rounds": method.settings.rounds, "events": listed}
        return has_own_spending

    def calibration(self, kind: str) -> PrivatePlatt | None:
        """Platt's line within the budget of the validation rows, who are other patients than those trained on."""
        p = self.private
        return None if p.epsilon is None or kind != "platt" else PrivatePlatt(p.epsilon, p.delta, p.secure)

    def charge_calibration(self, private: PrivatePlatt, *, model: str, round: int) -> None:
        """Spend what the line of this model releases, or raise `Overspent`; once for each model.

        Args:
            private: the calibration to be asked for.
            model: the digest of the model that is calibrated.
            round: the round that the model is of.
        """
        events = private.events()
        self.budget.charge(events, key=f"{CALIBRATION} of {model}")
        self.calibrations.setdefault(model, Calibrated(model, round, events))

    def took_part(self, sites: Iterable[str]) -> None:
        for site in sites:
            self.joined[site] = self.joined.get(site, 0) + 1

    def facts(self) -> dict[str, object]:
        """For a checkpoint."""
        planned = {"sites": self.private.sites} if self.private.sites else {}
        return {"noise": self.private.noise, "budget": self.budget.to_dict(), "joined": dict(self.joined), **planned}

    def told(self, events: Sequence[Event]) -> dict[str, object]:
        """For a round's Decision: what it released, and what is spent so far."""
        return {
            "mechanism": self.mechanism,
            "secure": self.private.secure,
            "epsilon_spent": self.epsilon,
            **({"sites": self.private.sites} if self.private.sites else {}),
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

    def promised(self, *, rounds: int, not_covered: Sequence[str], lent: Mapping[str, int]) -> dict[str, object]:
        """For summary.json: the promise with its terms in one sentence, and what it does not cover."""
        from grandrounds.privacy.accounting import statement

        p = self.private
        terms = {"clip": p.clip, "noise": p.noise} if p.mechanism in (DP_SGD, CLIENT) else {}
        sentence = statement(
            self.budget.events, p.delta, rounds=rounds, simulated=self.simulated, unit=whom(self._terms())
        )
        lent_notes = [f"{n} rows of reference set '{name}', which were sent to every site" for name, n in lent.items()]
        uncovered = [*not_covered, *lent_notes]
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "budget": p.epsilon,
            "delta": p.delta,
            **self._terms(),
            **terms,
            **({"rate": p.sampling_rate, "steps": p.steps} if p.mechanism == DP_SGD else {}),
            **({"sites": p.sites, "sensitivity": p.clip / p.sites} if p.sites else {}),
            "secure": p.secure,
            "statement": f"{sentence[0].upper()}{sentence[1:]}. Not covered: {'; '.join(uncovered)}.",
            "not_covered": uncovered,
            "spent": {target: self.budget.spent(target) for target in dict.fromkeys(e.of for e in self.budget.events)},
            "events": _together(self.budget.events),
            **({"lent": dict(lent)} if lent else {}),
        }

    def _terms(self) -> dict[str, object]:
        """Whom the promise is to, and who must be trusted for it."""
        events = self.budget.events
        unit = "row" if events and events[0].unit == "patient" and self.column is None else None
        return {
            "unit": unit or (events[0].unit if events else None),
            **({"patient_column": self.column} if self.column is not None else {}),
            "neighbours": "add/remove",
            "trust": " and ".join(dict.fromkeys(e.trust for e in events)) or None,
        }


CALIBRATIONS = "calibrations"


def charged_calibrations(charges: Mapping[str, Any]) -> list[Calibrated]:
    """The calibrations that charges.json lists; `BadInput` where it is damaged."""
    try:
        return [Calibrated.from_dict(one) for one in charges.get(CALIBRATIONS, ())]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "checkpoint/charges.json is damaged: it lists what was released; restore it from a copy",
            code="damaged-budget",
        ) from None


def refuse_another_calibration(plan: Plan, charges: Mapping[str, Any], *, rounds_done: int) -> None:
    """Refuse further rounds of a run whose calibration has spent what the next model's would need.

    Args:
        plan: the plan of the rounds to come.
        charges: releases outside the rounds so far (`Checkpoint.charges`).
        rounds_done: rounds that are finished.

    Raises:
        BadInput: where another round's model could not be calibrated within privacy.epsilon.
    """
    p, calibrations = plan.privacy, charged_calibrations(charges)
    if (
        p.epsilon is None
        or plan.evaluation.calibrate != "platt"
        or not calibrations
        or plan.method.rounds <= rounds_done
    ):
        return
    from grandrounds.privacy.accounting import epsilon_of

    new = PrivatePlatt(p.epsilon, p.delta, p.secure).events()
    after = epsilon_of([*(e for one in calibrations for e in one.events), *new], p.delta)
    if after > p.epsilon * (1 + 1e-9):
        raise BadInput(
            f"the model of round {calibrations[-1].round} was calibrated, and calibrating that of a later round too would bring "
            f"epsilon to {after:.4g} of {p.epsilon:g} (validation rows): set evaluation.calibrate=none, or leave "
            f"method.rounds at {rounds_done}",
            code="calibrated-already",
        )


def _with_noise(private: PrivacyTerms, rounds: int, *, model_size: int, sites: int) -> PrivacyTerms:
    """With the least noise that all rounds can be run with."""
    from grandrounds.privacy.accounting import epsilon_of, noise_for

    if private.epsilon is None:
        raise BadInput(
            f"privacy.mechanism '{private.mechanism}' needs privacy.epsilon, or privacy.noise", code="no-epsilon"
        )
    sampled = private.mechanism == DP_SGD
    steps, rate = (rounds * private.steps, private.sampling_rate) if sampled else (rounds, 1.0)
    private_noise = replace(private, noise=noise_for(private.epsilon, private.delta, steps=steps, rate=rate))
    while private.secure and not sampled:  # discrete noise on rounded values takes a little more
        one = round_events(_like(private_noise, model_size, sites))
        if epsilon_of([replace(e, count=rounds) for e in one], private.delta) <= private.epsilon:
            break
        private_noise = replace(private_noise, noise=1.005 * private_noise.noise)
    return private_noise


def _planned_sites(plan: Plan, stored: Mapping[str, Any] | None, sites: int) -> int:
    """The number that the client level divides by: as the plan or the interrupted run has it, else the sites at the start.

    0 where nothing is divided by it: by another mechanism, and where sites are weighed by public row counts.
    """
    if plan.privacy.mechanism != CLIENT or plan.method.weigh.rule == "data_size":
        return 0
    planned = plan.privacy.plain().get("sites", 0) or int((stored or {}).get("sites", 0)) or sites
    if planned < sites:
        raise BadInput(
            f"privacy.sites = {planned} is fewer than the {sites} sites that train: set it to {sites} or more, or leave it out",
            code="bad-setting",
        )
    return int(planned)


def _like(private: PrivacyTerms, model_size: int, sites: int) -> Server:
    """A server of this size, to ask what a round of it would spend."""
    import numpy as np

    names = tuple(str(k) for k in range(sites))
    return Server(1, np.zeros(model_size, np.float32), names, 0, private=private)


def _together(events: Sequence[Event]) -> list[dict[str, object]]:
    """Events with those that are alike counted as one."""
    counts: dict[Event, int] = {}
    for e in events:
        one = replace(e, count=1)
        counts[one] = counts.get(one, 0) + e.count
    return [replace(e, count=n).to_dict() for e, n in counts.items()]
