"""Check that a plan can keep its privacy guarantee, and list the data that the guarantee does not cover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import ADD_ROWS
from grandrounds.core.sources import AT_SITES
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.experiment.checks.objective import dp_sgd_refusals
from grandrounds.explain.rule import BACKGROUND_EXPLAINERS
from grandrounds.methods import METHODS, is_variant_of, method_class, regularizer_class
from grandrounds.methods.base import Method
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedxchain.checks import keeps_trust
from grandrounds.methods.guard.server import is_personal
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.harm import confirms_on_halves
from grandrounds.methods.sse_agg.weights import resolve_lambdas
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.privacy.events import protects_patients
from grandrounds.site.stack import PARTS

_STEPS = ("none", "proximal", "scaffold", "anchor", "permuted_anchor", "anchored_scaffold")
"""Local regularizers that add no patient data to a step of DP-SGD."""

_UPDATES = ("none", "proximal", "moon", "anchor", "permuted_anchor")
"""Local regularizers with which a site discloses its update only."""


_WITHOUT_NOISE = ("xfed", "fedbn")
"""Averaging methods without differential privacy: heat maps of single sites, and statistics of BatchNorm layers."""


def has_accounting(name: str) -> bool:
    """Check whether a built-in method can be run with differential privacy.

    Args:
        name: The name of a method.

    Returns:
        True for averaging methods and those with noise of their own, such as 'veil' and 'private-gam'; False for exact
        methods ('glm', 'cox', 'table1', ...), for methods that need single models without noise, and for unknown names.
    """
    kind = METHODS.get(name)
    if kind is None or name in _WITHOUT_NOISE:
        return False
    return kind.spends is not Method.spends or kind.round is FedAvg.round or name == "local"


def under_budget(plan: Plan) -> bool:
    """Return True if every release of the run is charged to a privacy budget."""
    return plan.privacy.epsilon is not None


def counts_patients(plan: Plan) -> bool:
    """Return True if the run spends budget on patient counts for percentiles."""
    return (
        under_budget(plan) and is_variant_of(plan.method.name, "veil") and bool(getattr(plan.method.veil, "percentiles", 0.0))
    )


def withheld_splits(plan: Plan) -> tuple[str, ...]:
    """Return the splits of which sites report no figures: all but test rows, if there is a budget."""
    return tuple(p for p in PARTS if p != "test") if under_budget(plan) else ()


def refuse_what_is_not_private(model: Any, plan: Plan) -> None:
    """Check that the plan can keep its privacy guarantee.

    Args:
        model: The built model.
        plan: The run's plan.

    Raises:
        BadInput: A setting is incompatible with the guarantee; the message names a fix.
    """
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
    """Return the sites that take part, and a warning that names the others.

    Args:
        plan: The run's plan.
        rows: Number of training rows of each site.

    Raises:
        BadInput: No site has privacy.min_rows training rows.
    """
    p = plan.privacy
    few = {s: n for s, n in rows.items() if n < p.min_rows} if p.mechanism == DP_SGD else {}
    if not few:
        return tuple(rows), ()
    if len(few) == len(rows):
        raise BadInput(
            f"no site has privacy.min_rows = {p.min_rows} training rows; the largest has {max(rows.values())}: sampling protects "
            "less in small sites; lower privacy.min_rows only if that is acceptable",
            code="too-few-rows",
        )
    named = ", ".join(f"{site} ({n})" for site, n in few.items())
    sentence = f"these sites have fewer training rows than privacy.min_rows = {p.min_rows} and take no part: {named}"
    return tuple(s for s in rows if s not in few), (sentence,)


def sends_summaries(plan: Plan) -> bool:
    """Return True if sites send summaries of their training rows without noise, to prepare columns."""
    return plan.data.encoding == "fitted" and not method_class(plan.method.name).earlier_model


def not_covered(plan: Plan) -> list[str]:
    """Return the disclosed data that the privacy guarantee does not cover, one phrase each."""
    budgeted, client = under_budget(plan), plan.privacy.mechanism == CLIENT
    sentences = ["metrics on test rows, which have no noise"]
    if not budgeted:
        sentences[0] = "metrics on test, validation and training rows, which have no noise (privacy.epsilon is not set)"
        explains_locally = plan.explain.sketch != "none" or (keeps_trust(plan) and plan.method.trust.explained == "own")
        sentences += ["explanations on sites' own patients"] if explains_locally else []
        sentences += ["figures of heat maps on sites' own images"] if maps_asked(plan) else []
        sentences += ["choices of sites and figures of their personal models"] if is_personal(plan) else []
    sentences.append("number of rows of each site")
    sentences += _known_of_sites(plan) if client else []
    if sends_summaries(plan):
        sentences.append(
            "summaries of training rows for the encoding (data.encoding = 'public' needs none): the model file keeps ranges and "
            "categories, and the end of a range can be one patient's value, such as the oldest age"
        )
    sentences += _of_patients(plan) if not client else []
    sentences += [f"rows of reference set '{name}'" for name in plan.reference.plain()]
    sentences += _moved_by_others(plan)
    method = method_class(plan.method.name)
    return [*(sentences if method.evaluates else sentences[1:]), *method.exposes(plan)]


def _of_patients(plan: Plan) -> list[str]:
    """Return the limits of a guarantee per patient or per row, for patients with several rows."""
    if not protects_patients(plan):
        why = "data.patient is not set" if plan.data.patient is None else "privacy.unit = 'row'"
        return [f"patients with several rows: the guarantee is per row ({why})"]
    sentences = []
    if not _deals_rows(plan):
        sentences.append("patients at several sites: the guarantee is per patient at each site")
    if plan.split.by != "patient":
        sentences.append(f"patients in two of training, validation and test rows (split.by = '{plan.split.by}')")
    return sentences


def _deals_rows(plan: Plan) -> bool:
    """Tell whether the rows of one table are dealt to simulated sites: hospitals, and a column of sites, have their own."""
    return plan.data.table != AT_SITES and plan.split.partition != "column"


def _known_of_sites(plan: Plan) -> list[str]:
    """Return the facts about sites that a guarantee per site takes as public."""
    if plan.method.weigh.rule == "data_size":
        return ["participation of sites: weights and noise depend on their public row counts (privacy.public_counts)"]
    sentences = ["number of sites by which sums are divided (privacy.sites)"]
    if plan.method.select.rule != "all":
        sentences.append("selection of sites in a round, which depends on the list of sites (method.select)")
    return sentences


def _moved_by_others(plan: Plan) -> list[str]:
    """Return the ways in which one additional patient can change another one's split or site."""
    sentences = []
    if plan.split.by == "time":
        sentences.append("membership in training and test rows: a split by time (split.by) changes with every patient")
    else:
        sentences.append("membership in training rows at very small sites, where an empty split takes a row of another")
    if _deals_rows(plan):
        sentences.append(f"assignment of rows to simulated sites (split.partition = '{plan.split.partition}')")
    if any(not one.get("source") for one in plan.reference.plain().values()):
        sentences.append("membership in reference rows: without one of them a training row takes its place")
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
        yield f"method '{m.name}' has its own privacy mechanism: remove privacy.mechanism"
    if p.epsilon is None and p.noise is None:
        yield f"privacy.mechanism is '{p.mechanism}' without a budget or noise: set privacy.epsilon, or privacy.noise"
    if model.kernel not in ("numpy", "torch"):
        yield (
            f"privacy.mechanism '{p.mechanism}' clips gradients or updates, and model '{plan.model.name}' has none: use "
            "'logistic' or 'mlp'"
        )
    if getattr(model, "statistics", ()):
        yield f"privacy.mechanism '{p.mechanism}' does not cover BatchNorm statistics: set model.norm = 'group'"
    alone = p.mechanism == DP_SGD and (is_variant_of(m.name, "local") or is_variant_of(m.name, "pooled"))
    if kind.round is not FedAvg.round and not alone:
        yield (
            f"method '{m.name}' has no privacy accounting of its rounds: use fedavg, fedopt, scaffold or another averaging method"
        )
    own = kind.own_exchange() if issubclass(kind, FedAvg) else ""
    if own == "train_and_aggregate" or (own and p.mechanism == CLIENT):
        yield (
            f"method '{m.name}' overrides {own}, which has no privacy accounting: leave privacy.mechanism out, or use fedavg, "
            "fedopt, scaffold or another averaging method"
        )
    if p.mechanism == CLIENT and keeps_trust(plan):
        yield (
            "method 'fedxchain' computes trust from single models before noise is added, so privacy.mechanism 'client' does not "
            "protect sites: use privacy.mechanism = 'dp-sgd' (patients), or method 'fedavg'"
        )
    if plan.evaluation.local_models == "crossed":
        yield (
            f"evaluation.local_models 'crossed' sends local models to all sites, which privacy.mechanism '{p.mechanism}' does "
            "not cover: use 'own'"
        )
    if confirms_on_halves(m.weigh):
        yield (
            f"method.weigh.own_halves trains on half of a site's patients, which privacy.mechanism '{p.mechanism}' does not "
            "account for: set it to false"
        )
    if plan.train.finetune:
        yield f"train.finetune trains without privacy.mechanism '{p.mechanism}': set train.finetune = 0"


def _percentiles(plan: Plan) -> Iterator[str]:
    """Check that the cells of the percentiles are known before any row is read."""
    cells = "method.veil.percentiles counts patients in cells of public ranges"
    if plan.data.encoding != "public":
        yield f"{cells}, and data.encoding = '{plan.data.encoding}' has no public ranges: set data.encoding = 'public'"
    if not plan.data.clip:
        yield f"{cells}, and data.clip = 0 leaves values without a range: set data.clip above 0"


def _sampled(plan: Plan) -> Iterator[str]:
    regulariser = regularizer_class(plan.method).name
    if plan.train.noise:
        yield "train.noise cannot be combined with DP-SGD, which adds its own noise: set train.noise = 0"
    if plan.train.continue_epoch:
        yield "train.continue_epoch goes on in shuffled rows, and DP-SGD draws rows anew in each step: set it to false"
    if regulariser not in _STEPS:
        yield f"stability '{regulariser}' is not covered by DP-SGD: use {', '.join(_STEPS)}"
    yield from dp_sgd_refusals(plan)


def _client(plan: Plan) -> Iterator[str]:
    m, regulariser = plan.method, regularizer_class(plan.method).name
    fixed = "privacy.mechanism 'client' needs weights that do not depend on patients or other sites"
    if m.weigh.rule == "data_size" and not plan.privacy.public_counts:
        yield (
            f"{fixed}, and method.weigh is 'data_size': set method.weigh = 'uniform', or privacy.public_counts = true if row "
            "counts are public"
        )
    elif m.weigh.rule not in ("data_size", "uniform"):
        yield f"{fixed}, and method.weigh is '{m.weigh.rule}': set method.weigh = 'uniform' (method 'fedavg')"
    if m.robust.rule != "none":
        yield f"{fixed}, and method.robust is '{m.robust.rule}': set method.robust = 'none' (updates are clipped)"
    if m.cohorts.count != 1:
        yield "privacy.mechanism 'client' does not cover cohorts, which are found before noise is added: set method.cohorts = 1"
    if regulariser not in _UPDATES:
        yield f"stability '{regulariser}' discloses more than a clipped update: use {', '.join(_UPDATES)}"
    if plan.tasks.plain():
        yield "privacy.mechanism 'client' does not support several tasks, whose heads would need separate noise: remove [tasks]"
    if under_budget(plan) and plan.explain.sketch != "none" and explained_on(plan) is not None:
        yield "privacy.mechanism 'client' does not cover sketches of local models: set explain.sketch = 'none'"


def _signals(plan: Plan) -> Iterator[str]:
    """Check that sites report no unprotected figures of their rows while there is a budget."""
    m, e = plan.method, plan.evaluation
    raw = "which privacy.epsilon does not cover"
    if m.select.rule in ASKS_FIRST:
        yield f"method.select '{m.select.rule}' requests each site's loss, {raw}: use 'all' or 'random'"
    signals = [n for n in ("worst_site", "calibration") if m.weigh.rule == EXPLANATIONS and resolve_lambdas(m.weigh).get(n)]
    if signals:
        yield f"method.weigh.lambdas has {signals[0]}, computed on validation rows, {raw}: use data and agreement only"
    if keeps_trust(plan) and m.trust.accuracy_at == "site":
        yield f"method.trust.accuracy_at is 'site', computed on validation rows, {raw}: set it to 'reference'"
    if keeps_trust(plan) and m.trust.explained == "own":
        yield f"method.trust.explained is 'own', explanations of the site's patients, {raw}: set it to 'reference'"
    if plan.train.finetune:
        yield f"train.finetune releases a model trained on each site's patients, {raw}: set it to 0"
    if plan.train.early_stop:
        yield f"train.early_stop uses validation losses, {raw}: set it to 0"
    if e.local_models != "none":
        yield f"evaluation.local_models is '{e.local_models}', accuracy on training rows, {raw}: set it to 'none'"
    if e.threshold != "half":
        yield f"evaluation.threshold '{e.threshold}' is chosen on validation rows, {raw}: set it to 'half'"
    if e.mitigation != "none":
        yield f"evaluation.mitigation '{e.mitigation}' is fitted to validation rows by group, {raw}: set it to 'none'"
    if e.calibrate == "temperature":
        yield f"evaluation.calibrate 'temperature' uses losses of validation rows, {raw}: use 'platt' or 'none'"
    if e.calibrate == "platt" and plan.privacy.mechanism == CLIENT:
        yield "evaluation.calibrate 'platt' protects patients, not sites as privacy.mechanism 'client' does: set it to 'none'"
    if plan.train.class_weights == "balanced":
        yield f"train.class_weights 'balanced' counts patients' labels, {raw}: give a weight for each class"
    if plan.explain.at == "site" and plan.explain.sketch != "none":
        yield f"explain.at is 'site', which sends sketches without noise, {raw}: set it to 'server'"
    if plan.explain.sketch in BACKGROUND_EXPLAINERS and explained_on(plan) is None:
        yield f"explain.sketch '{plan.explain.sketch}' uses the mean patient, {raw}: {ADD_ROWS}"
