"""What a promise does not go with, refused in words before a round is run; and what it does not cover, for its statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.explain.rule import BACKGROUND_EXPLAINERS
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.methods.base import Method
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedxchain.checks import keeps_trust
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.weights import confirms_on_halves, resolve_lambdas
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.privacy.events import protects_patients
from grandrounds.site.stack import PARTS

_STEPS = ("none", "proximal", "scaffold", "anchor", "permuted_anchor", "anchored_scaffold")
"""Stabilities that add nothing of patients to a step of DP-SGD."""

_UPDATES = ("none", "proximal", "moon", "anchor", "permuted_anchor")
"""Stabilities with which a site's update is all that leaves it."""


def under_budget(plan: Plan) -> bool:
    """Whether all that a run releases must be paid for."""
    return plan.privacy.epsilon is not None


def counts_patients(plan: Plan) -> bool:
    """Whether patients are counted for percentiles, for a share of the budget."""
    return (
        under_budget(plan) and is_variant_of(plan.method.name, "veil") and bool(getattr(plan.method.veil, "percentiles", 0.0))
    )


def withheld_splits(plan: Plan) -> tuple[str, ...]:
    """Rows that sites say nothing of: under a budget all but test rows."""
    return tuple(p for p in PARTS if p != "test") if under_budget(plan) else ()


def refuse_what_is_not_private(model: Any, plan: Plan) -> None:
    """Raise the first reason why this plan cannot keep its promise."""
    mechanism = plan.privacy.mechanism
    for reason in (
        *_any(model, plan),
        *(_percentiles(plan) if counts_patients(plan) else ()),
        *(_sampled(plan) if mechanism == DP_SGD else ()),
        *(_client(plan) if mechanism == CLIENT else ()),
        *(_signals(plan) if under_budget(plan) else ()),
    ):
        raise BadInput(reason, code="privacy-does-not-fit")


def enough_rows(plan: Plan, rows: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sites that take part, and a warning that names the others; `rows`: training rows of each."""
    p = plan.privacy
    few = {s: n for s, n in rows.items() if n < p.min_rows} if p.mechanism == DP_SGD else {}
    if not few:
        return tuple(rows), ()
    if len(few) == len(rows):
        raise BadInput(
            f"no site has privacy.min_rows = {p.min_rows} training rows, the largest has {max(rows.values())}: Poisson "
            "sampling hides too little in so few; lower it only if you know that",
            code="too-few-rows",
        )
    named = ", ".join(f"{site} ({n})" for site, n in few.items())
    sentence = f"fewer training rows than privacy.min_rows = {p.min_rows}, so these take no part: {named}"
    return tuple(s for s in rows if s not in few), (sentence,)


def not_covered(plan: Plan) -> list[str]:
    """What leaves sites beside the promise, in words."""
    budgeted, client = under_budget(plan), plan.privacy.mechanism == CLIENT
    sentences = ["test rows, whose figures are as they are"]
    if not budgeted:
        sentences[0] = "test, validation and training rows, whose figures are as they are (no privacy.epsilon is set)"
        explains_locally = plan.explain.sketch != "none" or (keeps_trust(plan) and plan.method.trust.explained == "own")
        sentences += ["explanations on sites' own patients"] if explains_locally else []
        sentences += ["numbers of heat maps on sites' own pictures"] if maps_asked(plan) else []
    sentences.append("how many rows each site has")
    sentences += _known_of_sites(plan) if client else []
    if plan.data.encoding == "fitted":
        sentences.append(
            "how rows are prepared (summaries of training rows; data.encoding = 'public' asks for none): the model file keeps "
            "ranges and categories, and the end of a range can be one patient's value, such as the oldest age"
        )
    sentences += _of_patients(plan) if not client else []
    sentences += [f"the rows of reference set '{name}'" for name in plan.reference.plain()]
    sentences += _moved_by_others(plan)
    return [*sentences, *method_class(plan.method.name).exposes(plan)]


def _of_patients(plan: Plan) -> list[str]:
    """What a promise to patients, or to rows, leaves out of patients with several rows."""
    if not protects_patients(plan):
        why = "no patient column is named: data.patient" if plan.data.patient is None else "privacy.unit = 'row'"
        return [f"patients with several rows: the promise is to each row ({why})"]
    sentences = []
    if plan.split.partition == "column":
        sentences.append("patients at several sites: the promise is to a patient at each site")
    if plan.split.by != "patient":
        sentences.append(f"patients in two of training, validation and test rows (split.by = '{plan.split.by}')")
    return sentences


def _known_of_sites(plan: Plan) -> list[str]:
    """What a promise to sites takes as known of them."""
    if plan.method.weigh.rule == "data_size":
        return ["which sites take part: weights and noise follow from their public row counts (privacy.public_counts)"]
    sentences = ["how many sites the plan is for, which sums are divided by (privacy.sites)"]
    if plan.method.select.rule != "all":
        sentences.append("who is drawn in a round, which moves with the list of sites (method.select)")
    return sentences


def _moved_by_others(plan: Plan) -> list[str]:
    """The ways in which one patient more can still move another to another role or site."""
    sentences = []
    if plan.split.by == "time":
        sentences.append("who trains and who tests: a split by time (split.by) moves with every patient")
    else:
        sentences.append("who trains at sites of a few rows, where an empty part is given a row of another")
    if plan.split.partition != "column":
        sentences.append(f"which simulated site a row is dealt to (split.partition = '{plan.split.partition}')")
    if any(not one.get("source") for one in plan.reference.plain().values()):
        sentences.append("who is a reference row: without one of them the next takes its place, out of the training rows")
    return sentences


def _any(model: Any, plan: Plan) -> Iterator[str]:
    p, m = plan.privacy, plan.method
    kind = method_class(m.name)
    has_own_spending = kind.spends is not Method.spends
    if p.mechanism == "none":
        if under_budget(plan) and not has_own_spending:
            yield (
                f"privacy.epsilon is set, but method '{m.name}' adds no noise: set privacy.mechanism = 'dp-sgd' (patients) "
                "or 'client' (sites)"
            )
        return
    if has_own_spending:
        yield f"method '{m.name}' has mechanisms of its own: leave privacy.mechanism out"
    if p.epsilon is None and p.noise is None:
        yield f"privacy.mechanism '{p.mechanism}' needs privacy.epsilon, or privacy.noise"
    if model.kernel not in ("numpy", "torch"):
        yield f"privacy.mechanism '{p.mechanism}' clips vectors, and '{plan.model.name}' has none: use 'logistic' or 'mlp'"
    if getattr(model, "statistics", ()):
        yield f"privacy.mechanism '{p.mechanism}' does not cover BatchNorm's statistics: set model.norm = 'group'"
    alone = p.mechanism == DP_SGD and (is_variant_of(m.name, "local") or is_variant_of(m.name, "pooled"))
    if kind.round is not FedAvg.round and not alone:
        yield f"method '{m.name}' has no account of what a round releases: use fedavg, fedopt, scaffold or another averaging one"
    if p.mechanism == CLIENT and keeps_trust(plan):
        yield (
            "trust is told from single models before any noise, so method 'fedxchain' keeps no promise to sites: use "
            "privacy.mechanism = 'dp-sgd' (patients), or method 'fedavg'"
        )
    if plan.evaluation.local_models == "crossed":
        yield f"evaluation.local_models 'crossed' shows local models to all sites, beyond '{p.mechanism}': use 'own'"
    if confirms_on_halves(m.weigh):
        yield f"method.weigh.own_halves trains on half of a site's patients, of which '{p.mechanism}' has no account: unset it"
    if plan.train.finetune:
        yield f"train.finetune trains without privacy.mechanism '{p.mechanism}': set it to 0"


def _percentiles(plan: Plan) -> Iterator[str]:
    """Cells must be agreed before any row is looked at."""
    cells = "method.veil.percentiles counts patients in cells of usual ranges"
    if plan.data.encoding != "public":
        yield f"{cells}, which data.encoding = '{plan.data.encoding}' has none of: set data.encoding = 'public'"
    if not plan.data.clip:
        yield f"{cells}, and data.clip = 0 leaves values without a range: set data.clip above 0"


def _sampled(plan: Plan) -> Iterator[str]:
    regulariser = regularizer_class(plan.method).name
    if plan.train.noise:
        yield "train.noise blurs gradients that are not clipped, and DP-SGD has noise of its own: set train.noise = 0"
    if regulariser not in _STEPS:
        yield f"stability '{regulariser}' is no part of DP-SGD's clipped gradients: use {', '.join(_STEPS)}"


def _client(plan: Plan) -> Iterator[str]:
    m, regulariser = plan.method, regularizer_class(plan.method).name
    fixed = "the noise is sized for weights that no patient and no other site has a say in"
    if m.weigh.rule == "data_size" and not plan.privacy.public_counts:
        yield (
            f"{fixed}, and shares of the rows are none: set method.weigh = 'uniform', or privacy.public_counts = true if "
            "how many rows each site has is no secret"
        )
    elif m.weigh.rule not in ("data_size", "uniform"):
        yield f"{fixed}, and weighing by '{m.weigh.rule}' gives others: set method.weigh = 'uniform' (method 'fedavg')"
    if m.robust.rule != "none":
        yield f"{fixed}, and robust rule '{m.robust.rule}' gives others: set method.robust = 'none' (updates are clipped)"
    if m.cohorts.count != 1:
        yield "cohorts are found in updates before any noise: set method.cohorts = 1"
    if regulariser not in _UPDATES:
        yield f"with stability '{regulariser}' more than a clipped update leaves a site: use {', '.join(_UPDATES)}"
    if plan.tasks.plain():
        yield "heads of different tasks are averaged one by one, and each would need its own noise: leave [tasks] out"
    if under_budget(plan) and plan.explain.sketch != "none" and explained_on(plan) is not None:
        yield "sketches of sites' own models are no part of the noisy sum: set explain.sketch = 'none'"


def _signals(plan: Plan) -> Iterator[str]:
    """What sites would tell of their own rows as it is: under a budget it is paid for or not told."""
    m, e = plan.method, plan.evaluation
    raw = "which no noise covers while privacy.epsilon is set"
    if m.select.rule in ASKS_FIRST:
        yield f"method.select '{m.select.rule}' asks sites for their loss, {raw}: use all or random"
    signals = [n for n in ("worst_site", "calibration") if m.weigh.rule == EXPLANATIONS and resolve_lambdas(m.weigh).get(n)]
    if signals:
        yield f"method.weigh.lambdas has {signals[0]}, a figure of validation rows, {raw}: leave it to data and agreement"
    if keeps_trust(plan) and m.trust.accuracy_at == "site":
        yield f"method.trust.accuracy_at is 'site', a figure of validation rows, {raw}: set it to 'reference'"
    if keeps_trust(plan) and m.trust.explained == "own":
        yield f"method.trust.explained is 'own', reasons on patients of the site, {raw}: set it to 'reference'"
    if plan.train.finetune:
        yield f"train.finetune hands out a model of each site, trained on its own patients, {raw}: set it to 0"
    if plan.train.early_stop:
        yield f"train.early_stop looks at validation losses, {raw}: set it to 0"
    if e.local_models != "none":
        yield f"evaluation.local_models is '{e.local_models}', how right models are on training rows, {raw}: set it to 'none'"
    if e.threshold != "half":
        yield f"evaluation.threshold '{e.threshold}' is chosen on validation rows, {raw}: set it to 'half'"
    if e.calibrate == "temperature":
        yield f"evaluation.calibrate 'temperature' sums losses of validation rows, {raw}: use 'platt' or 'none'"
    if e.calibrate == "platt" and plan.privacy.mechanism == CLIENT:
        yield "evaluation.calibrate 'platt' is paid for by validation patients, not by sites: set it to 'none'"
    if plan.train.class_weights == "balanced":
        yield f"train.class_weights 'balanced' counts patients' labels, {raw}: give a weight for each class"
    if plan.explain.at == "site" and plan.explain.sketch != "none":
        yield f"explain.at is 'site', and what sites say of their models is not noised, {raw}: set it to 'server'"
    if plan.explain.sketch in BACKGROUND_EXPLAINERS and explained_on(plan) is None:
        yield f"explain.sketch '{plan.explain.sketch}' starts from the mean patient, {raw}: add [reference.rows] with rows = 200"
