"""Requests that a run of a plan sends to sites: tasks and reports, by the plan's settings alone.

No data are read and nothing is run. A site that opened a plan answers no other request (`policy/questions.py` of the keeper), and
its staff read the list beforehand. A dossier lists the data that a site disclosed from it. Tests compare it with the requests of
many runs. If settings leave it open, the list contains more, never less.
"""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.core.capability import collect, load
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.experiment.checks.privacy import counts_patients, sends_summaries, under_budget
from grandrounds.explain.rule import BACKGROUND_EXPLAINERS
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.methods.fedxchain.checks import keeps_trust, needs_mean_patient
from grandrounds.methods.guard.server import is_personal
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.weights import requested_reports
from grandrounds.methods.veil.budget import VOTING, resolve_selection
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.protocol import tasks
from grandrounds.protocol.messages import UPLOAD, Ask, AskId, Value
from grandrounds.protocol.task_spec import COUNT
from grandrounds.protocol.tasks import spec_of
from grandrounds.site.stack import CLEAN


def expected_asks(plan: PlanValues) -> tuple[Ask, ...]:
    """List an Ask of each kind that a run of this plan may send, without its arrays."""
    p = Plan(plan)
    asks = [Ask(tasks.OPEN), *_before(p), *_rounds(p), *_about(p), *_after(p)]
    return tuple(ask.numbered(AskId(str(plan["name"]), 1, step), ()) for step, ask in enumerate(asks))


def _ask(p: Plan, task: str, *report: str, **shared: Value) -> Ask:
    """Create an Ask for these reports, or for all reports of the task; those summed by secure aggregation are withheld."""
    named = report or tuple(spec_of(task).reports)
    masked = {r.name for r in spec_of(task).reports.values() if r.is_masked and p.privacy.secure}
    return Ask(task, shared=shared, report=named, withheld=tuple(r for r in named if r in masked))


def _before(p: Plan) -> Iterator[Ask]:
    """List the Asks before round 1: agreement on data, reference rows, introductions for secure sums."""
    if sends_summaries(p):
        yield _ask(p, tasks.SUMMARISE)  # and once more, within the agreed ranges
    centre = (p.explain.sketch in BACKGROUND_EXPLAINERS and explained_on(p) is None) or needs_mean_patient(p)
    rows = tuple(r.name for r in spec_of(tasks.PREPARE).reports.values() if r.kind == COUNT)
    has_notes = method_class(p.method.name).asks_notes and not under_budget(p)
    more = (*(("notes",) if has_notes else ()), *(("centre",) if centre else ()))
    yield _ask(p, tasks.PREPARE, *rows, *more)
    if any(rows["sent"] for rows in p.reference.plain().values()):
        yield _ask(p, tasks.LEND)
    if p.privacy.secure:
        yield _ask(p, tasks.INTRODUCE)
        yield _ask(p, tasks.MEET)


def _rounds(p: Plan) -> Iterator[Ask]:
    """List the Asks of rounds: selection, training, weighting."""
    m, own = p.method, method_class(p.method.name).asks(p)
    if m.select.rule in ASKS_FIRST:
        yield _ask(p, tasks.SCORE, "loss")
    if is_variant_of(m.name, "clustered"):
        yield _ask(p, tasks.SCORE, "losses")
    if is_variant_of(m.name, "veil"):
        yield from _veil(p)
    elif own:
        yield from (_ask(p, task, **shared) for task, shared in own.items() if task != tasks.MASKED)
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
        noise = p.privacy.mechanism == CLIENT or is_variant_of(m.name, "veil")
        masked = {"tag": f"{tasks.MODELS} 1", "noise": float(noise), **own.get(tasks.MASKED, {})}
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
    if not method_class(p.method.name).evaluates:
        return
    asked = {CLEAN: p.data.shortcut.p, "test_groups": p.evaluation.subgroups}
    asked["val_groups"] = asked["test_groups"] and p.evaluation.mitigation != "none"
    yield _ask(p, tasks.EVALUATE, *(r for r in spec_of(tasks.EVALUATE).reports if asked.get(r, True)))
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
        yield from _stages(p)
        return
    if p.personal.spread is None:
        yield _ask(p, tasks.PERSONAL_SPREAD)
    yield _ask(p, tasks.PERSONAL)
    yield from _stages(p)
    if p.personal.guard:
        yield _ask(p, tasks.PERSONAL_HARM)


def _stages(p: Plan) -> Iterator[Ask]:
    """List the Asks of stages that capabilities add after hospitals chose their models."""
    for task, stage in collect("stages").items():
        for reports in load(stage.reports)(p):
            yield _ask(p, task, *reports)
