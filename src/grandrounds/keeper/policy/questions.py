"""Requests that a plan declares: their kinds, how often each may be made, and their settings.

Everything follows from the plan's settings: no data are read and nothing is run. A site that opened a plan answers no other
request (`Questions`), so a server cannot probe its patients with settings of its own choice. The same list shows the site's
staff beforehand which requests a plan makes (`expected_asks`) and which of them their policy refuses. Tests compare it with
the requests of many runs. If settings leave it open, the list contains more, never less.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

import numpy as np

from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.experiment.checks.privacy import counts_patients, under_budget
from grandrounds.explain.rule import BACKGROUND_EXPLAINERS
from grandrounds.keeper.codes import NOT_IN_PLAN, Refusal
from grandrounds.keeper.policy.rules import Policy
from grandrounds.keeper.store import Facts
from grandrounds.methods import is_exact, is_variant_of, method_class, regularizer_class
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.methods.exact.site import WHOLE_BITS, WHOLE_BOUND
from grandrounds.methods.fedxchain.checks import keeps_trust, needs_mean_patient
from grandrounds.methods.personal.guard import LEVEL
from grandrounds.methods.personal.parts import HEAD
from grandrounds.methods.personal.server import (
    PRIVATE_SPREAD,
    VARIANCES,
    is_personal,
    part_epochs,
    settings_in_rounds,
)
from grandrounds.methods.platt import MAX_ROWS
from grandrounds.methods.secure import MODEL_BITS, STATISTIC_BITS, STATISTIC_BOUND
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.weights import confirms_on_halves, requested_reports
from grandrounds.methods.veil.budget import VOTING, resolve_selection
from grandrounds.methods.veil.server import MAX_SUM_ENTRY
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.models.optimizers import learning_rate
from grandrounds.protocol import tasks
from grandrounds.protocol.messages import OWN_HALF, UPLOAD, USE_PERSONAL, Ask, AskId, Value
from grandrounds.protocol.task_spec import COUNT, NOTHING
from grandrounds.protocol.tasks import SPECS, spec_of
from grandrounds.site.objective import objective_payload
from grandrounds.site.stack import CLEAN

REPEATS = 3
"""Number of repetitions of a request: a server that was killed repeats some of them with other content."""

_TREES = 200
"""Models of different size are scored one by one (evaluation.local_models = "crossed"): at most this many sites."""

_TRAIN = ("epochs", "steps", "batch", "optimizer", "momentum", "weight_decay", "l2", "keep_optimizer", "augment")
"""Settings of [train] that are sent with every training request."""


_ABOUT_PERSONAL = (tasks.PERSONAL, tasks.PERSONAL_SPREAD, tasks.PERSONAL_HARM, tasks.PERSONAL_DIFFERENCES)


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
        settings |= {"seed": p.seed, "round": ask.round, "lr": t.lr, "continue_epoch": t.get("continue_epoch", False) or None}
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
            case tasks.PERSONAL_DIFFERENCES:
                allowed_rows = self._personal()["rows"]
                return values.get("seed") == self._settings.seed and values.get("rows") in allowed_rows
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
        (code, task, reports), each once; only `open` if the run itself is refused.
    """
    refusals: dict[tuple[str, str, str], None] = {}
    first = policy.refuses(Ask(tasks.OPEN), plan)
    if first:
        return [(first, tasks.OPEN, "")]
    for ask in expected_asks(plan):
        code = policy.refuses(ask, plan)
        if not code:
            continue
        alone = [r for r in ask.report if policy.refuses(_only(ask, r), plan) == code]
        refusals[(code, ask.task, "" if len(alone) == len(ask.report) else ", ".join(alone))] = None
    return list(refusals)


def expected_asks(plan: PlanValues) -> tuple[Ask, ...]:
    """List an Ask of each kind that a run of this plan may send, without its arrays."""
    p = Plan(plan)
    asks = [Ask(tasks.OPEN), *_before(p), *_rounds(p), *_about(p), *_after(p)]
    return tuple(ask.numbered(AskId(str(plan["name"]), 1, step), ()) for step, ask in enumerate(asks))


def _only(ask: Ask, report: str) -> Ask:
    withheld = tuple(r for r in ask.withheld if r == report)
    return Ask(ask.task, ask.shared, ask.each, report=(report,), withheld=withheld, id=ask.id)


def _ask(p: Plan, task: str, *report: str, **shared: Value) -> Ask:
    """Create an Ask for these reports, or for all reports of the task; those summed by secure aggregation are withheld."""
    named = report or tuple(SPECS[task].reports)
    masked = {r.name for r in SPECS[task].reports.values() if r.is_masked and p.privacy.secure}
    return Ask(task, shared=shared, report=named, withheld=tuple(r for r in named if r in masked))


def _before(p: Plan) -> Iterator[Ask]:
    """List the Asks before round 1: agreement on data, reference rows, introductions for secure sums."""
    if p.data.encoding == "fitted":
        yield _ask(p, tasks.SUMMARISE)  # and once more, within the agreed ranges
    centre = (p.explain.sketch in BACKGROUND_EXPLAINERS and explained_on(p) is None) or needs_mean_patient(p)
    rows = tuple(r.name for r in SPECS[tasks.PREPARE].reports.values() if r.kind == COUNT)
    more = (*(() if under_budget(p) else ("notes",)), *(("centre",) if centre else ()))
    yield _ask(p, tasks.PREPARE, *rows, *more)
    if any(rows["sent"] for rows in p.reference.plain().values()):
        yield _ask(p, tasks.LEND)
    if p.privacy.secure:
        yield _ask(p, tasks.INTRODUCE)
        yield _ask(p, tasks.MEET)


def _rounds(p: Plan) -> Iterator[Ask]:
    """List the Asks of rounds: selection, training, weighting."""
    m = p.method
    if m.select.rule in ASKS_FIRST:
        yield _ask(p, tasks.SCORE, "loss")
    if is_variant_of(m.name, "clustered"):
        yield _ask(p, tasks.SCORE, "losses")
    if is_variant_of(m.name, "veil"):
        yield from _veil(p)
    elif is_variant_of(m.name, "private-gam"):
        yield _ask(p, tasks.COUNT_CELLS, noise=float(not p.privacy.secure))
    elif is_exact(m.name):
        yield _ask(p, tasks.STATISTIC)
        if method_class(m.name).local_part(p) != "none":
            yield _ask(p, tasks.STORE)
    else:
        yield _train(p)
    if is_variant_of(m.name, "xfed"):
        yield _ask(p, UPLOAD)
    if keeps_trust(p):
        yield _ask(p, tasks.WEIGHTS)
        if p.privacy.secure:
            yield _ask(p, tasks.DIVERGE)
            yield _ask(p, tasks.CONTRIBUTE)
    if p.privacy.secure:
        noise = p.privacy.mechanism == CLIENT or is_variant_of(m.name, "veil") or is_variant_of(m.name, "private-gam")
        masked: dict[str, Value] = {"tag": f"{tasks.MODELS} 1", "noise": float(noise)}
        for task in tasks.SUM_STEPS:
            yield _ask(p, task, **(masked if task == tasks.MASKED else {}))


def _train(p: Plan) -> Ask:
    m, d = p.method, p.privacy
    clipped = d.mechanism == CLIENT and d.secure
    update = clipped or is_variant_of(m.name, "fedbuff")
    report = ["update" if update else "model", "count", "steps", *regularizer_class(m).report]
    shared: dict[str, Value] = {}
    if is_variant_of(m.name, "xfed"):
        report = [*report[1:], "rationale"]
    if m.weigh.rule == EXPLANATIONS:
        report += [r for r in requested_reports(m.weigh, 1) if r != "sketch"]
    if p.explain.at == "site" and p.explain.sketch != "none" and explained_on(p) is not None:
        report.append("sketch")
    if p.evaluation.local_models != "none":
        report.append("local")
    if keeps_trust(p):
        at_site = m.trust.explained == "own" or m.trust.accuracy_at == "site"
        report += ["shap", "trust"]
        shared["attribute_on"] = "" if at_site else "reference"
    if d.mechanism == DP_SGD:
        report.append(tasks.ERROR)
        shared |= {"rate": d.sampling_rate, "noise": 1.0, "clip": d.clip}
    elif d.mechanism == CLIENT:
        shared["longest"] = d.clip
    return _ask(p, tasks.TRAIN, *report, **shared)


def _veil(p: Plan) -> Iterator[Ask]:
    v, secure = p.method.veil, p.privacy.secure
    private = p.privacy.epsilon is not None
    noise: dict[str, Value] = {"noise": 0.0 if secure else float(private)}
    epsilon: dict[str, Value] = {"epsilon": float(private)}
    selection = resolve_selection(v.selection, secure=secure)
    if counts_patients(p):
        yield _ask(p, tasks.PERCENTILES, **noise)
    if selection in VOTING:
        if selection != "paper":
            yield Ask(tasks.CENSUS, shared=epsilon, report=("census",))
        yield _ask(p, tasks.PROPOSE, **epsilon, selection=selection)
        return
    for task in (tasks.CENSUS, tasks.SCORES, *((tasks.MOMENTS,) if selection == "moments" else ())):
        yield _ask(p, task, **noise)


def _about(p: Plan) -> Iterator[Ask]:
    """List the Asks for explanations and evaluation."""
    asked = {CLEAN: p.data.shortcut.p, "test_groups": p.evaluation.get("subgroups", ())}
    asked["val_groups"] = asked["test_groups"] and p.evaluation.get("mitigation", "none") != "none"
    yield _ask(p, tasks.EVALUATE, *(r for r in SPECS[tasks.EVALUATE].reports if asked.get(r, True)))
    if p.explain.sketch != "none" and not under_budget(p):
        yield _ask(p, tasks.EXPLAIN)
    if maps_asked(p):
        yield _ask(p, tasks.MAPS)
    if p.evaluation.local_models == "crossed":
        yield _ask(p, tasks.SCORE, "lent")


def _after(p: Plan) -> Iterator[Ask]:
    """List the Asks after the rounds: fine-tuning, calibration, countersignatures of the ledger."""
    private = under_budget(p)
    if p.train.finetune:
        yield _ask(p, tasks.FINETUNE)
    if p.evaluation.calibrate == "temperature":
        yield _ask(p, tasks.CALIBRATE)
    if p.evaluation.calibrate == "platt":
        yield _ask(p, tasks.PLATT, "counts" if private else "sums", epsilon=float(private))
    if is_personal(p):
        yield from _personal(p, private=private)
    yield _ask(p, tasks.WITNESS)


def _personal(p: Plan, *, private: bool) -> Iterator[Ask]:
    """List the Asks about personal models; under a privacy budget only that sites fit them."""
    if private:
        yield _ask(p, tasks.PERSONAL, "fitted")
        if p.personal.differences:
            yield _ask(p, tasks.PERSONAL_DIFFERENCES, "tested")
        return
    if p.personal.spread is None:
        yield _ask(p, tasks.PERSONAL_SPREAD)
    yield _ask(p, tasks.PERSONAL)
    if p.personal.differences:
        yield _ask(p, tasks.PERSONAL_DIFFERENCES, "sums")
        yield _ask(p, tasks.PERSONAL_DIFFERENCES, "tested", "differences")
    if p.personal.guard:
        yield _ask(p, tasks.PERSONAL_HARM)
