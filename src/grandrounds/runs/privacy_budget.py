"""Privacy budget of a run: noise calibration, charges before each round, and the final privacy statement."""

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
"""The release after the rounds: Platt's line of the final model, charged to validation patients."""

SERVER = "the server"
"""Name of the trusted server, whose secret generates its noise in a simulation; no site can have this name."""


@dataclass(frozen=True)
class Calibrated:
    """A calibration that was charged: the round of its model, its releases, and the line once it is known.

    The model identifies it: the line of the same model is the same release; that of another model is charged again.
    """

    model: str
    round: int
    events: tuple[Event, ...]
    line: PlattLine | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain values for charges.json."""
        line = None if self.line is None else asdict(self.line)
        return {**self.released(), "line": line}

    def released(self) -> dict[str, object]:
        """Return the values for the ledger's closing entry."""
        return {
            "what": CALIBRATION,
            "model": self.model,
            "round": self.round,
            "events": [e.to_dict() for e in self.events],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibrated:
        """Read the values that `to_dict` or `released` wrote."""
        line = values.get("line")
        events = tuple(Event.from_dict(e) for e in values["events"])
        return cls(str(values["model"]), int(values["round"]), events, None if line is None else PlattLine(**line))


@dataclass
class Spending:
    """Budget and spending of a run. `joined`: the number of rounds in which each site was asked to train."""

    budget: Budget
    private: PrivacyTerms
    joined: dict[str, int] = field(default_factory=dict)
    simulated: bool = True  # noise follows from the seed
    column: str | None = None  # column that names patients, where the guarantee is per patient
    calibrations: dict[str, Calibrated] = field(default_factory=dict)  # by the digest of the model
    begun: dict[str, Any] = field(default_factory=dict)  # the current round, for a method with its own noise

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
        """Set up the spending that [privacy] states, or that an interrupted run `stored`; None without a guarantee.

        `secret` generates the server's noise; in a simulation it follows from the seed. `charges`: releases outside the
        rounds of an interrupted run (`Checkpoint.charges`).

        The noise is fixed once: a run that continues for longer than planned keeps its noise and runs out of budget.
        """
        p = plan.privacy
        method = method_class(plan.method.name)
        if p.mechanism == "none" and (method.spends is Method.spends or (method.noise_is_optional and p.epsilon is None)):
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
        """Add the releases of an earlier process outside the rounds; return this object."""
        for one in charged_calibrations(charges):
            self.budget.recall(one.events, key=f"{CALIBRATION} of {one.model}")
            self.calibrations[one.model] = one
        self.begun = dict(charges.get("begun", {}))
        return self

    def charges(self) -> dict[str, Any]:
        """Return the values for charges.json: releases outside the rounds, and the settings of the current round."""
        calibrations = [one.to_dict() for one in self.calibrations.values()]
        return {CALIBRATIONS: calibrations, **({"begun": self.begun} if self.begun else {})}

    def released(self) -> list[dict[str, object]]:
        """Return the releases outside the rounds for the ledger's closing entry."""
        return [one.released() for one in self.calibrations.values()]

    def charge(self, method: Method, server: Server) -> bool:
        """Charge the releases of a round before it starts.

        A patient is at one site, so the site that took part most often determines the spending: a round is charged where it
        increases that number. This is valid for the run's own mechanisms, whose rounds are identical; a method with its own
        events is charged for every round. Random selection of sites does not reduce the charge, because the server knows it.

        Returns:
            True where the round has noise of the method's own. It must be on disk before the round (`charges`): repeating a
            round with other noise after a crash would be a second release, and is refused.

        Raises:
            Overspent: The budget does not allow the round.
            BadInput: The round was started before a crash with other noise.
        """
        events = tuple(method.spends(server))
        if not events:
            return False
        has_own_spending = type(method).spends is not Method.spends
        times = server.round if has_own_spending else max(self.joined.values(), default=0) + 1
        listed = [e.to_dict() for e in events]
        if has_own_spending and self.begun.get("round") == server.round and self.begun["events"] != listed:
            raise BadInput(
                f"round {server.round} was started with other noise, because method.rounds was {self.begun['rounds']}: resume "
                f"with method.rounds={self.begun['rounds']}, and change it once that round is done",
                code="rounds-changed",
            )
        listing = json.dumps(listed, sort_keys=True)
        self.budget.charge(events, key=f"{'round' if has_own_spending else 'participation'} {times}: {listing}")
        if has_own_spending:
            self.begun = {"round": server.round, "rounds": method.settings.rounds, "events": listed}
        return has_own_spending

    def calibration(self, kind: str) -> PrivatePlatt | None:
        """Return the private fit of Platt's line, charged to the validation rows, who are other patients."""
        p = self.private
        return None if p.epsilon is None or kind != "platt" else PrivatePlatt(p.epsilon, p.delta, p.secure)

    def charge_calibration(self, private: PrivatePlatt, *, model: str, round: int) -> None:
        """Charge the release of this model's line once; raise `Overspent` where the budget does not allow it.

        Args:
            private: The calibration.
            model: The digest of the model.
            round: The round of the model.
        """
        events = private.events()
        self.budget.charge(events, key=f"{CALIBRATION} of {model}")
        self.calibrations.setdefault(model, Calibrated(model, round, events))

    def took_part(self, sites: Iterable[str]) -> None:
        for site in sites:
            self.joined[site] = self.joined.get(site, 0) + 1

    def facts(self) -> dict[str, object]:
        """Return the values for a checkpoint."""
        planned = {"sites": self.private.sites} if self.private.sites else {}
        return {"noise": self.private.noise, "budget": self.budget.to_dict(), "joined": dict(self.joined), **planned}

    def told(self, events: Sequence[Event]) -> dict[str, object]:
        """Return the releases of a round and the spending so far, for its Decision."""
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
        """Return the mechanism that [privacy] names, or those of the method."""
        kinds = dict.fromkeys(e.kind for e in self.budget.events)
        return self.private.mechanism if self.private.mechanism != "none" else ", ".join(kinds) or "none"

    @property
    def epsilon(self) -> float:
        """Return the larger spending of training and validation rows: no patient is in both."""
        return max(self.budget.spent("training"), self.budget.spent("validation"))

    def promised(self, *, rounds: int, not_covered: Sequence[str], lent: Mapping[str, int]) -> dict[str, object]:
        """Return the guarantee for summary.json: its terms in one sentence, and what it does not cover."""
        from grandrounds.privacy.accounting import statement

        p = self.private
        terms = {"clip": p.clip, "noise": p.noise} if p.mechanism in (DP_SGD, CLIENT) else {}
        sentence = statement(
            self.budget.events, p.delta, rounds=rounds, simulated=self.simulated, secure=p.secure, unit=whom(self._terms())
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
        """Return the unit of the guarantee, and the parties that must be trusted."""
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
    """Read the calibrations of charges.json; raise `BadInput` where it is damaged."""
    try:
        return [Calibrated.from_dict(one) for one in charges.get(CALIBRATIONS, ())]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "checkpoint/charges.json is damaged: it lists what was released; restore it from a copy",
            code="damaged-budget",
        ) from None


def refuse_another_calibration(plan: Plan, charges: Mapping[str, Any], *, rounds_done: int) -> None:
    """Refuse further rounds where the remaining budget does not allow another calibration.

    Args:
        plan: The plan of the remaining rounds.
        charges: Releases outside the rounds so far (`Checkpoint.charges`).
        rounds_done: The number of finished rounds.

    Raises:
        BadInput: Another model could not be calibrated within privacy.epsilon.
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
    """Return the terms with the least noise that allows all rounds."""
    from grandrounds.privacy.accounting import epsilon_of, noise_for

    if private.epsilon is None:
        raise BadInput(
            f"privacy.mechanism '{private.mechanism}' needs privacy.epsilon, or privacy.noise", code="no-epsilon"
        )
    sampled = private.mechanism == DP_SGD
    steps, rate = (rounds * private.steps, private.sampling_rate) if sampled else (rounds, 1.0)
    private_noise = replace(private, noise=noise_for(private.epsilon, private.delta, steps=steps, rate=rate))
    while private.secure and not sampled:  # discrete noise on rounded values needs a little more
        one = round_events(_like(private_noise, model_size, sites))
        if epsilon_of([replace(e, count=rounds) for e in one], private.delta) <= private.epsilon:
            break
        private_noise = replace(private_noise, noise=1.005 * private_noise.noise)
    return private_noise


def _planned_sites(plan: Plan, stored: Mapping[str, Any] | None, sites: int) -> int:
    """Return the number of sites that 'client' divides by: from the plan or the interrupted run, else the sites at the start.

    It is 0 for another mechanism, and where sites are weighted by public row counts.
    """
    if plan.privacy.mechanism != CLIENT or plan.method.weigh.rule == "data_size":
        return 0
    planned = plan.privacy.sites or int((stored or {}).get("sites", 0)) or sites
    if planned < sites:
        raise BadInput(
            f"privacy.sites = {planned} is fewer than the {sites} sites that train: set it to {sites} or more, or leave it out",
            code="bad-setting",
        )
    return int(planned)


def _like(private: PrivacyTerms, model_size: int, sites: int) -> Server:
    """Return a server of this size, to compute the spending of a round."""
    import numpy as np

    names = tuple(str(k) for k in range(sites))
    return Server(1, np.zeros(model_size, np.float32), names, 0, private=private)


def _together(events: Sequence[Event]) -> list[dict[str, object]]:
    """Merge equal events, with their count."""
    counts: dict[Event, int] = {}
    for e in events:
        one = replace(e, count=1)
        counts[one] = counts.get(one, 0) + e.count
    return [replace(e, count=n).to_dict() for e, n in counts.items()]
