"""What a plan will ask of a site, told from its settings alone: no data is read and nothing is run.

A test holds it against what runs of many plans really asked. Where settings leave it open it names more, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.explain.rule import FROM_BACKGROUND
from grandrounds.explain_limits import explained_on
from grandrounds.keeper.policy import Policy
from grandrounds.keeper.reports import OPEN
from grandrounds.maps_limits import maps_asked
from grandrounds.messages import UPLOAD, Ask, AskId, Value
from grandrounds.methods import follows, stability_class
from grandrounds.methods.private import CLIENT, DP_SGD
from grandrounds.methods.reasons import EXPLANATIONS, reports
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.veil import VOTING
from grandrounds.methods.veil_budget import resolved
from grandrounds.privacy.tasks import CONTRIBUTE, DIVERGE, INTRODUCE, MEET, MODELS, PERCENTILES, TASKS, WEIGHTS
from grandrounds.privacy_limits import counts_patients, under_budget
from grandrounds.settings import Settings
from grandrounds.site.stack import CLEAN, PARTS
from grandrounds.trust_limits import from_centre, trusts


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
