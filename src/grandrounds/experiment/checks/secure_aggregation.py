"""Check that a plan can use secure aggregation: nothing may need a single site's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.methods import method_class, regularizer_class
from grandrounds.methods.baselines import POOL
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.select import count_sites
from grandrounds.methods.weigh import EXPLANATIONS

FEWEST = 3
_SUMMED = ("none", "proximal", "scaffold", "moon", "anchor", "permuted_anchor", "anchored_scaffold")
_TOLD = ("data_size", "uniform", TRUST, EXPLANATIONS)
"""Weighting rules that need no local model at the server."""


def refuse_what_is_seen(plan: Plan, rows: Mapping[str, int]) -> None:
    """Check that the plan can run with privacy.secure.

    Args:
        plan: The run's plan.
        rows: Number of training rows of each training site.

    Raises:
        BadInput: A setting needs single models, or too few sites train.
    """
    for reason in _reasons(plan, {site: n for site, n in rows.items() if site != POOL}):
        raise BadInput(f"privacy.secure hides single models, {reason}", code="secure-aggregation-does-not-fit")


def _reasons(plan: Plan, training: Mapping[str, int]) -> Iterator[str]:
    m = plan.method
    if not training:
        yield f"and method '{m.name}' has no local models to sum: use 'fedavg'"
    if len(training) < FEWEST:
        yield f"and a sum of {len(training)} sites would reveal them: use at least {FEWEST} training sites"
    yield from method_class(m.name).secure_refusals(plan)
    if plan.model.name in ("forest", "lightgbm") and method_class(m.name).has_model:
        yield f"and trees (model.name '{plan.model.name}') cannot be summed: use 'logistic' or 'mlp'"
    if plan.tasks.plain():
        yield "and heads of different tasks are averaged one by one: remove [tasks]"
    chosen = len(training) if m.select.rule == "all" else count_sites(m.select.fraction, len(training))
    if m.select.rule != "all" and chosen < FEWEST:
        yield f"and a round of {chosen} sites would reveal them: raise method.select.fraction"
    most = max(training.values(), default=0) / max(1, sum(training.values()))
    if m.weigh.rule == "data_size" and m.select.rule == "all" and most > plan.privacy.largest_weight:
        yield (
            f"and one site has {most:.0%} of the rows, more than privacy.largest_weight: "
            "raise it, or set method.weigh = 'uniform'"
        )
    if plan.engine.faults.nan:
        yield "so engine.faults.nan has no effect: remove it"
    if m.robust.rule != "none":
        yield f"and method.robust '{m.robust.rule}' compares them: set method.robust = 'none'"
    if m.cohorts.count != 1:
        yield "and cohorts are clustered by comparing them: set method.cohorts = 1"
    if m.weigh.rule not in _TOLD:
        yield f"and method.weigh '{m.weigh.rule}' needs them: use data_size, uniform or explanations"
    if regularizer_class(m).name not in _SUMMED:
        yield f"and stability '{m.stability}' needs them: use one of {', '.join(_SUMMED)}"
    if plan.evaluation.local_models == "crossed":
        yield "and evaluation.local_models 'crossed' sends them to every site: set it to 'own'"
    if plan.explain.sketch != "none" and plan.explain.at == "server" and explained_on(plan) is not None:
        yield "so the server cannot explain them: set explain.at = 'site', with reference rows that are sent to sites"
