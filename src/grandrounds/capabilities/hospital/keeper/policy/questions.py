"""Requests that a site answers, by the plan it opened: their kinds, how often each may be made, and their settings.

Everything follows from the plan's settings: no data are read and nothing is run. A site that opened a plan answers no other
request (`Questions`), so a server cannot probe its patients with settings of its own choice. The same list
(`experiment.requests`) shows the site's staff beforehand which requests a plan makes and which of them their policy refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from grandrounds.capabilities.hospital.keeper.codes import NOT_IN_PLAN, Refusal
from grandrounds.capabilities.hospital.keeper.policy.rules import METHOD, OWN_CODE, Policy, is_plan
from grandrounds.capabilities.hospital.keeper.store import Facts
from grandrounds.capabilities.statistics.methods.site import WHOLE_BITS, WHOLE_BOUND
from grandrounds.core.capability import collect, load
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.privacy import under_budget
from grandrounds.experiment.requests import expected_asks
from grandrounds.methods import is_exact, is_variant_of, method_class
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.methods.guard.candidates import HEAD
from grandrounds.methods.guard.choice import LEVEL
from grandrounds.methods.guard.server import (
    PRIVATE_SPREAD,
    VARIANCES,
    is_personal,
    part_epochs,
    settings_in_rounds,
)
from grandrounds.methods.platt import MAX_ROWS
from grandrounds.methods.secure import MODEL_BITS, STATISTIC_BITS, STATISTIC_BOUND
from grandrounds.methods.sse_agg.harm import confirms_on_halves
from grandrounds.methods.training import learning_rate, objective_payload
from grandrounds.methods.veil.budget import MAX_SUM_ENTRY
from grandrounds.protocol import tasks
from grandrounds.protocol.messages import OWN_HALF, USE_PERSONAL, Ask, Value
from grandrounds.protocol.task_spec import NOTHING
from grandrounds.protocol.tasks import spec_of

REPEATS = 3
"""Number of repetitions of a request: a server that was killed repeats some of them with other content."""

_TREES = 200
"""Models of different size are scored one by one (evaluation.local_models = "crossed"): at most this many sites."""

_TRAIN = ("epochs", "steps", "batch", "optimizer", "momentum", "weight_decay", "l2", "keep_optimizer", "augment")
"""Settings of [train] that are sent with every training request."""


_ABOUT_PERSONAL = (tasks.PERSONAL, tasks.PERSONAL_SPREAD, tasks.PERSONAL_HARM)


class Questions:
    """Requests of one run that a site answers, by the plan that it opened.

    Args:
        plan: The plan, as the site opened it.
        facts: State from `facts` before a restart of the keeper; empty for a new run.
    """

    def __init__(self, plan: PlanValues, facts: Facts) -> None:
        self._settings = Plan(plan)
        asks = expected_asks(plan)
        self._tasks = {ask.task for ask in asks}
        self._reports = {(ask.task, report) for ask in asks for report in ask.report}
        self._open = {(ask.task, report) for ask in asks for report in ask.report if report not in ask.withheld}
        self._asked: dict[str, int] = dict(facts.get("asked", {}))
        self._agreed: dict[str, str] = dict(facts.get("agreed", {}))
        self.numbers = int(facts.get("numbers", 0))  # numbers that this site sent in exact methods

    def check(self, ask: Ask) -> None:
        """Refuse a request that the plan does not declare, and count one that it does.

        Args:
            ask: The Ask; one that was answered before gets the same answer elsewhere.

        Raises:
            Refusal: The plan has no such request, no more of them in this round, or other settings for it.
        """
        spec = spec_of(ask.task)
        if ask.task not in self._tasks or not self._declares(ask) or not self._has_its_numbers(ask):
            raise Refusal(NOT_IN_PLAN)
        once = self._agreed_once(ask)
        if once and self._agreed.setdefault(*once) != once[1]:
            raise Refusal(NOT_IN_PLAN)
        if all(r in spec.reports and spec.reports[r].kind == NOTHING for r in ask.report):
            return
        key = f"{ask.round} {ask.task}"
        if self._asked.get(key, 0) >= self._most(ask) * REPEATS:
            raise Refusal(NOT_IN_PLAN)
        self._asked[key] = self._asked.get(key, 0) + 1
        self._asked = {k: n for k, n in self._asked.items() if int(k.split()[0]) in (0, ask.round - 1, ask.round)}

    def facts(self) -> dict[str, object]:
        """Return the state that must survive a restart of the keeper, and the end of the run."""
        return {"asked": self._asked, "agreed": self._agreed, **({"numbers": self.numbers} if self.numbers else {})}

    def _declares(self, ask: Ask) -> bool:
        """Check that the plan has a request with these reports in this round, withheld for a secure sum if required."""
        rounds = ask.round <= self._settings.method.rounds + 1
        declared = all((ask.task, r) in (self._reports if r in ask.withheld else self._open) for r in ask.report)
        return rounds and declared and set(ask.withheld) <= set(ask.report)

    def _most(self, ask: Ask) -> int:
        if ask.task == tasks.LEND:
            return len(self._settings.reference.plain())
        return _TREES if ask.report == ("lent",) else spec_of(ask.task).per_round

    def _agreed_once(self, ask: Ask) -> tuple[str, str] | None:
        """Return a choice that a server may make once in a run, with its digest: ranges of columns, or the encoding of
        rows.
        """
        choices = [ask.shared[name] for name in spec_of(ask.task).chosen_once if name in ask.shared]
        if not choices:
            return None
        content = b"".join(v.encode() if isinstance(v, str) else np.ascontiguousarray(v).tobytes() for v in choices)
        return ask.task, hashlib.sha256(content).hexdigest()

    def _has_its_numbers(self, ask: Ask) -> bool:
        """Check that its settings, those for all sites and those for this one, are the plan's."""
        site_values = {name: value for part in ask.each.values() for name, value in part.items()}
        if ask.task in _ABOUT_PERSONAL or USE_PERSONAL in {**ask.shared, **site_values}:
            return self._has_personal_numbers(ask, site_values)
        if ask.task in (others := collect("tasks")):
            return bool(load(others[ask.task].admits)(ask, self._settings))
        if ask.task == tasks.PREPARE:
            return self._has_personal_part(ask)
        if spec_of(ask.task).is_training:
            settings = (ask.shared, {**ask.shared, **site_values})
            halves = (
                (None, 1, 2) if ask.task == tasks.TRAIN and confirms_on_halves(self._settings.method.weigh) else (None,)
            )
            plan = self._training(ask)
            return all(values.get(OWN_HALF) in halves for values in settings) and all(
                values.get(name) == value for values in settings for name, value in plan.items()
            )
        if ask.task == tasks.STATISTIC:
            kinds = getattr(method_class(self._settings.method.name), "kinds", ())
            return ask.shared.get("kind") in kinds and not site_values.keys() - {"committed"}
        return ask.task != tasks.MASKED or self._has_its_bound({**ask.shared, **site_values})

    def _training(self, ask: Ask) -> dict[str, Value | None]:
        p, t, tuned = self._settings, self._settings.train, ask.task == tasks.FINETUNE
        settings: dict[str, Value | None] = {name: getattr(t, name) for name in _TRAIN}
        settings |= {"seed": p.seed, "round": ask.round, "lr": t.lr, "continue_epoch": t.continue_epoch or None}
        if tuned:
            return settings | {"epochs": t.finetune, "steps": 0, "objective": None}
        objective = objective_payload(t)
        settings |= {name: objective.get(name) for name in ("objective", "objective_options")}
        settings["lr"] = learning_rate(
            t.schedule, base=t.lr, round=ask.round, rounds=p.method.rounds, warmup=t.warmup, decay=t.decay
        )
        if p.privacy.mechanism == DP_SGD:
            settings |= {"clip": p.privacy.clip, "rate": p.privacy.sampling_rate}
        return settings | ({"longest": p.privacy.clip} if p.privacy.mechanism == CLIENT else {})

    def _has_personal_part(self, ask: Ask) -> bool:
        """Check that the model's specification has the personal part of the plan, which sites train in the rounds."""
        try:
            spec = json.loads(str(ask.shared["spec"]))
        except (KeyError, ValueError):
            return True  # the host refuses it
        part = settings_in_rounds(self._settings)
        keeps_head = isinstance(spec, dict) and spec.get("keeps") == HEAD
        return isinstance(spec, dict) and spec.get("personal", {}) == part and keeps_head == (part.get("part") == HEAD)

    def _has_personal_numbers(self, ask: Ask, site_values: Mapping[str, Value]) -> bool:
        """Check that an Ask about personal models has the plan's settings, the same at every site."""
        values, changed = ask.shared, site_values.keys() - {"committed", "model"}
        if changed or not is_personal(self._settings):
            return False
        match ask.task:
            case tasks.PERSONAL_SPREAD:
                same = np.array_equal(np.asarray(values.get("variances", ())), VARIANCES)
                return same and values.get("rows") in self._personal()["rows"]
            case tasks.PERSONAL_HARM:
                sites = LEVEL / max(float(values.get("level", 0.0)), 1e-9)  # Holm's levels: 0.05 / m of m sites
                return values.get("seed") == self._settings.seed and round(sites) >= 1 and abs(sites - round(sites)) < 1e-6
            case tasks.PERSONAL:
                return all(values.get(name) in allowed for name, allowed in self._personal().items())
        return ask.task in (tasks.EVALUATE, tasks.EXPLAIN) and not under_budget(self._settings)

    def _personal(self) -> dict[str, tuple[Value | None, ...]]:
        """Return the values that each setting of the Ask for personal models may have."""
        p, own = self._settings, self._settings.personal
        spreads = (*np.sqrt(VARIANCES), PRIVATE_SPREAD) if own.spread is None else (own.spread,)
        settings: dict[str, tuple[Value | None, ...]] = {name: (getattr(p.train, name),) for name in _TRAIN}
        return settings | {
            "seed": (p.seed,),
            "round": (p.method.rounds + 1,),
            "lr": (p.train.lr,),
            "part": (own.part,),
            "guard": (int(own.guard),),
            "rows": ("train", "validation") if own.rows == "auto" else (own.rows,),
            "variance": tuple(float(s) ** 2 for s in spreads),
            "epochs_own_part": (part_epochs(p),),
            "epochs_own_model": (1, p.train.epochs * p.method.rounds),
            "strength": (own.strength,),
            "mixture": (own.mixture,),
        }

    def _has_its_bound(self, settings: Mapping[str, Value]) -> bool:
        """Check that the bound of a sum is the plan's: a site refuses larger values, so another bound would be an oracle."""
        p, purpose = self._settings, str(settings.get("tag", "")).split(" ")[0]
        longest = p.privacy.clip if p.privacy.mechanism == CLIENT else p.privacy.secure_range
        models = (STATISTIC_BITS, MAX_SUM_ENTRY) if is_variant_of(p.method.name, "veil") else (MODEL_BITS, longest)
        tallies = {(STATISTIC_BITS, STATISTIC_BOUND), (STATISTIC_BITS, MAX_ROWS)}
        statistics = {(STATISTIC_BITS, p.method.exact.bound)} if is_exact(p.method.name) else set()
        allowed = {
            tasks.MODELS: {models},
            tasks.TALLIES: tallies,
            tasks.REASONS: {(STATISTIC_BITS, 1.0)},
            tasks.STATISTICS: statistics,
        }.get(purpose, set())
        scale = (settings.get("bits"), settings.get("bound"))
        if settings.get("whole", 0):
            return purpose == tasks.STATISTICS and is_exact(p.method.name) and scale == (WHOLE_BITS, WHOLE_BOUND)
        return scale in {(int(bits), float(bound)) for bits, bound in allowed}


def refused_requests(policy: Policy, plan: PlanValues) -> list[tuple[str, str, str]]:
    """List the requests of a plan that a policy would refuse.

    Args:
        policy: The policy.
        plan: The plan.

    Returns:
        (code, task, reports), each once: first the codes with which `open` is refused, then others of single requests.
    """
    opening = policy.refusals(Ask(tasks.OPEN), plan)
    refusals: dict[tuple[str, str, str], None] = {(code, tasks.OPEN, ""): None for code in opening}
    if not is_plan(plan) or {METHOD, OWN_CODE} & set(opening):  # code that a plan names is not imported
        return list(refusals)
    for ask in expected_asks(plan):
        for code in policy.refusals(ask, plan):
            if code in opening:
                continue
            alone = [r for r in ask.report if code in policy.refusals(_only(ask, r), plan)]
            refusals[(code, ask.task, "" if len(alone) == len(ask.report) else ", ".join(alone))] = None
    return list(refusals)


def _only(ask: Ask, report: str) -> Ask:
    withheld = tuple(r for r in ask.withheld if r == report)
    return Ask(ask.task, ask.shared, ask.each, report=(report,), withheld=withheld, id=ask.id)
