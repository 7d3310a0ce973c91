"""The questions that a plan declares: their kinds, how often each may be asked, and the numbers that come with them.

Everything follows from the plan's settings: no data are read and nothing is run. A site that has opened a plan answers no
other question (`Questions`), so a server cannot probe its patients by asking again with numbers of its own choice. The
same list tells the site's people beforehand what a plan would ask (`expected`) and what of it their policy refuses. Tests
compare it with what runs of many plans really asked. Where settings leave it open it names more, never less.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grandrounds.core.plan import Settings
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.experiment.checks.privacy import counts_patients, under_budget
from grandrounds.explain.rule import FROM_BACKGROUND
from grandrounds.keeper.codes import NOT_IN_PLAN, Refusal
from grandrounds.keeper.policy import Policy
from grandrounds.keeper.reports import NOTHING, OPEN, told_by
from grandrounds.methods import follows, stability_class
from grandrounds.methods.fedxchain.checks import from_centre, trusts
from grandrounds.methods.platt import EXCHANGES, MOST_ROWS
from grandrounds.methods.private import CLIENT, DP_SGD
from grandrounds.methods.secure import MODEL_BITS, STATISTIC_BITS, STATISTIC_BOUND
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.weights import reports, tries_halves
from grandrounds.methods.veil.budget import VOTING, resolved
from grandrounds.methods.veil.server import LARGEST
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.models.optimizers import learning_rate
from grandrounds.protocol.messages import OWN_HALF, UPLOAD, Ask, AskId, Value
from grandrounds.protocol.tasks import (
    CONTRIBUTE,
    DIVERGE,
    INTRODUCE,
    MEET,
    MODELS,
    PERCENTILES,
    REASONS,
    TALLIES,
    TASKS,
    WEIGHTS,
)
from grandrounds.site.stack import CLEAN, PARTS

REPEATS = 3
"""How often a question may be asked anew: a server that was killed asks some of them again, in other words."""

_MOST = {"evaluate": 3, "score": 3, "platt": EXCHANGES}
"""Questions of a task in one round, where there may be more than one."""

_TREES = 200
"""Models that differ in size are scored one by one (evaluation.local = "crossed"): as many as there are sites."""

_TRAIN = ("epochs", "steps", "batch", "optimizer", "momentum", "weight_decay", "l2", "keep_optimizer", "augment")
"""Settings of [train] that a site is told with every question to train."""


class Questions:
    """The questions of one run that a site answers, by the plan that it has opened.

    Args:
        plan: The plan, as the site opened it.
        facts: What `facts` gave before the keeper was started again; empty for a new run.
    """

    def __init__(self, plan: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self._settings = Settings(plan)
        asks = expected(plan)
        self._tasks = {ask.task for ask in asks}
        self._reports = {(ask.task, report) for ask in asks for report in ask.report}
        self._open = {(ask.task, report) for ask in asks for report in ask.report if report not in ask.held}
        self._asked: dict[str, int] = dict(facts.get("asked", {}))
        self._agreed: dict[str, str] = dict(facts.get("agreed", {}))

    def check(self, ask: Ask) -> None:
        """Refuse a question that the plan does not declare, and count one that it does.

        Args:
            ask: The question; one that was answered before never comes here, it gets the same answer.

        Raises:
            Refusal: The plan has no such question, no more of them in this round, or other numbers for it.
        """
        if ask.task not in self._tasks or not self._declares(ask) or not self._has_its_numbers(ask):
            raise Refusal(NOT_IN_PLAN)
        once = self._agreed_once(ask)
        if once and self._agreed.setdefault(*once) != once[1]:
            raise Refusal(NOT_IN_PLAN)
        if all(told_by(ask.task, report) == NOTHING for report in ask.report):
            return
        key = f"{ask.round} {ask.task}"
        if self._asked.get(key, 0) >= self._most(ask) * REPEATS:
            raise Refusal(NOT_IN_PLAN)
        self._asked[key] = self._asked.get(key, 0) + 1
        self._asked = {k: n for k, n in self._asked.items() if int(k.split()[0]) in (0, ask.round - 1, ask.round)}

    def facts(self) -> dict[str, Any]:
        """For the site's own state: what must outlive a restart of the keeper, and the end of the run."""
        return {"asked": self._asked, "agreed": self._agreed}

    def _declares(self, ask: Ask) -> bool:
        """Tell whether the plan has a question with these reports in this round, held back for a secure sum where it says so."""
        rounds = ask.round <= self._settings.method.rounds + 1
        known = all((ask.task, r) in (self._reports if r in ask.held else self._open) for r in ask.report)
        return rounds and known and set(ask.held) <= set(ask.report)

    def _most(self, ask: Ask) -> int:
        if ask.task == "lend":
            return len(self._settings.reference.plain())
        if ask.task == "summarise":
            return 2
        return _TREES if ask.report == ("lent",) else _MOST.get(ask.task, 1)

    def _agreed_once(self, ask: Ask) -> tuple[str, str] | None:
        """What a server may choose once in a run, with its digest: the ranges of columns, and how rows are encoded."""
        names = {"summarise": ("low", "high"), "prepare": ("encoding",)}.get(ask.task, ())
        said = [ask.shared[name] for name in names if name in ask.shared]
        if not said:
            return None
        content = b"".join(v.encode() if isinstance(v, str) else np.ascontiguousarray(v).tobytes() for v in said)
        return ask.task, hashlib.sha256(content).hexdigest()

    def _has_its_numbers(self, ask: Ask) -> bool:
        """Tell whether its numbers, those for all sites and those for this one, are the plan's."""
        own = {name: value for part in ask.each.values() for name, value in part.items()}
        if ask.task in ("train", "finetune"):
            told = (ask.shared, {**ask.shared, **own})
            halves = (None, 1, 2) if ask.task == "train" and tries_halves(self._settings.method.weigh) else (None,)
            plan = self._training(ask)
            return all(said.get(OWN_HALF) in halves for said in told) and all(
                said.get(name) == value for said in told for name, value in plan.items()
            )
        return ask.task != "secagg.masked" or self._has_its_bound({**ask.shared, **own})

    def _training(self, ask: Ask) -> dict[str, Value]:
        p, t, tuned = self._settings, self._settings.train, ask.task == "finetune"
        told: dict[str, Value] = {name: getattr(t, name) for name in _TRAIN}
        told |= {"seed": p.seed, "round": ask.round, "lr": t.lr}
        if tuned:
            return told | {"epochs": t.finetune, "steps": 0}
        told["lr"] = learning_rate(
            t.schedule, base=t.lr, round=ask.round, rounds=p.method.rounds, warmup=t.warmup, decay=t.decay
        )
        if p.privacy.mechanism == DP_SGD:
            told |= {"clip": p.privacy.clip, "rate": p.privacy.rate}
        return told | ({"longest": p.privacy.clip} if p.privacy.mechanism == CLIENT else {})

    def _has_its_bound(self, told: Mapping[str, Value]) -> bool:
        """The largest value of a sum is the plan's: a site refuses what is beyond it, so another would be an oracle."""
        p, purpose = self._settings, str(told.get("tag", "")).split(" ")[0]
        longest = p.privacy.clip if p.privacy.mechanism == CLIENT else p.privacy.range
        models = (STATISTIC_BITS, LARGEST) if follows(p.method.name, "veil") else (MODEL_BITS, longest)
        tallies = {(STATISTIC_BITS, STATISTIC_BOUND), (STATISTIC_BITS, MOST_ROWS)}
        known = {MODELS: {models}, TALLIES: tallies, REASONS: {(STATISTIC_BITS, 1.0)}}.get(purpose, set())
        said = (told.get("bits"), told.get("bound"))
        return said in {(int(bits), float(bound)) for bits, bound in known}


def refused(policy: Policy, plan: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a policy would refuse of a plan: (code, task, reports it is about), each once; `open` alone where it is that."""
    found: dict[tuple[str, str, str], None] = {}
    first = policy.refuses(Ask(OPEN), plan)
    if first:
        return [(first, OPEN, "")]
    for ask in expected(plan):
        whole = policy.refuses(ask, plan)
        if not whole:
            continue
        alone = [r for r in ask.report if policy.refuses(_only(ask, r), plan) == whole]
        found[(whole, ask.task, "" if len(alone) == len(ask.report) else ", ".join(alone))] = None
    return list(found)


def expected(plan: Mapping[str, Any]) -> tuple[Ask, ...]:
    """An Ask of each kind that a run of this plan may send, without its arrays."""
    p = Settings(plan)
    asks = [Ask(OPEN), *_before(p), *_rounds(p), *_about(p), *_after(p)]
    return tuple(ask.numbered(AskId(str(plan["name"]), 1, step), ()) for step, ask in enumerate(asks))


def _only(ask: Ask, report: str) -> Ask:
    held = tuple(r for r in ask.held if r == report)
    return Ask(ask.task, ask.shared, ask.each, report=(report,), held=held, id=ask.id)


def _before(p: Settings) -> Iterator[Ask]:
    """Agreeing on the data, sending reference rows, meeting for secure sums."""
    if p.data.encoding == "fitted":
        yield Ask("summarise", report=("summary",))  # and once more, within the ranges that were agreed on
    centre = (p.explain.sketch in FROM_BACKGROUND and explained_on(p) is None) or from_centre(p)
    rows = ("train_rows", "val_rows", "test_rows")
    more = (*(() if under_budget(p) else ("notes",)), *(("centre",) if centre else ()))
    yield Ask("prepare", report=(*rows, *more))
    if any(rows["sent"] for rows in p.reference.plain().values()):
        yield Ask("lend", report=("held",))
    if p.privacy.secure:
        yield Ask(INTRODUCE, report=("identity",))
        yield Ask(MEET, report=("met",))


def _rounds(p: Settings) -> Iterator[Ask]:
    """Selecting, training, weighing."""
    m = p.method
    if m.select.rule in ASKS_FIRST:
        yield Ask("score", report=("loss",))
    if follows(m.name, "clustered"):
        yield Ask("score", report=("losses",))
    if follows(m.name, "veil"):
        yield from _veil(p)
    else:
        yield _train(p)
    if follows(m.name, "xfed"):
        yield Ask(UPLOAD, report=("model",))
    if trusts(p):
        yield Ask(WEIGHTS, report=("agreed", "error"))
        if p.privacy.secure:
            yield Ask(DIVERGE, report=("trust",))
            yield Ask(CONTRIBUTE, report=("trust",))
    if p.privacy.secure:
        noise = p.privacy.mechanism == CLIENT or follows(m.name, "veil")
        for task, answers in TASKS.items():
            shared: dict[str, Value] = {"tag": f"{MODELS} 1", "noise": float(noise)}
            yield Ask(task, shared=shared if task == "secagg.masked" else {}, report=answers)


def _train(p: Settings) -> Ask:
    m, d = p.method, p.privacy
    clipped = d.mechanism == CLIENT and d.secure
    update = clipped or follows(m.name, "fedbuff")
    report = ["update" if update else "model", "count", "steps", *stability_class(m).report]
    shared: dict[str, Value] = {}
    if follows(m.name, "xfed"):
        report = [*report[1:], "rationale"]
    if m.weigh.rule == EXPLANATIONS:
        report += [r for r in reports(m.weigh, 1) if r != "sketch"]
    if p.explain.at == "site" and p.explain.sketch != "none" and explained_on(p) is not None:
        report.append("sketch")
    if p.evaluation.local != "none":
        report.append("local")
    if trusts(p):
        own = m.trust.explained == "own" or m.trust.accuracy_at == "site"
        report += ["shap", "trust"]
        shared["attribute_on"] = "" if own else "reference"
    if d.mechanism == DP_SGD:
        report.append("error")
        shared |= {"rate": d.rate, "noise": 1.0, "clip": d.clip}
    elif d.mechanism == CLIENT:
        shared["longest"] = d.clip
    held = {"model", "update", "variate", "shap"} if d.secure else set()
    return Ask("train", shared=shared, report=tuple(report), held=tuple(r for r in report if r in held))


def _veil(p: Settings) -> Iterator[Ask]:
    v, secure = p.method.veil, p.privacy.secure
    private = p.privacy.epsilon is not None
    noise: dict[str, Value] = {"noise": 0.0 if secure else float(private)}
    epsilon: dict[str, Value] = {"epsilon": float(private)}
    selection = resolved(v.selection, secure=secure)
    if counts_patients(p):
        yield Ask(PERCENTILES, shared=noise, report=("cells",), held=("cells",) if secure else ())
    if selection in VOTING:
        if selection != "paper":
            yield Ask("veil.census", shared=epsilon, report=("census",))
        yield Ask("veil.propose", shared={**epsilon, "selection": selection}, report=("votes",))
        return
    for task in ("census", "scores", *(("moments",) if selection == "moments" else ())):
        yield Ask(f"veil.{task}", shared=noise, report=(task,), held=(task,) if secure else ())


def _about(p: Settings) -> Iterator[Ask]:
    """Explaining, and how right models are."""
    parts = (*PARTS, CLEAN) if p.data.shortcut.p else PARTS
    yield Ask("evaluate", report=(*parts, "figures"), held=parts if p.privacy.secure else ())
    if p.explain.sketch != "none" and not under_budget(p):
        yield Ask("explain", report=("sketch",))
    if maps_asked(p):
        yield Ask("maps", report=("maps",))
    if p.evaluation.local == "crossed":
        yield Ask("score", report=("lent",))


def _after(p: Settings) -> Iterator[Ask]:
    """Fine-tuning, calibration, the ledger's countersignatures."""
    secure, private = p.privacy.secure, under_budget(p)
    if p.train.finetune:
        yield Ask("finetune", report=("model",))
    if p.evaluation.calibrate == "temperature":
        yield Ask("calibrate", report=("losses",), held=("losses",) if secure else ())
    if p.evaluation.calibrate == "platt":
        name = "counts" if private else "sums"
        yield Ask("platt", shared={"epsilon": float(private)}, report=(name,), held=(name,) if secure else ())
    yield Ask("witness", report=("signature", "have", "refused"))
