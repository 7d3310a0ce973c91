"""Checks of personal parts that sites train: the models, methods and mechanisms that they work with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.capabilities.personal.training import head_of
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.methods import is_variant_of
from grandrounds.methods.guard.candidates import HEAD
from grandrounds.methods.weigh import CHOSEN_RULES


def refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Yield the reasons why a plan cannot train its personal part, each with the setting to change."""
    yield from _training(plan, plan.personal.part)
    if plan.personal.part == HEAD:
        yield from _head(model, plan)


def _training(plan: Plan, part: str) -> Iterator[str]:
    """Check settings of training that a personal part does not share with the run."""
    if plan.train.objective:
        yield (
            f"personal.part = '{part}' is trained with the usual loss, not with train.objective '{plan.train.objective}': leave "
            "one of them out"
        )
    if plan.train.finetune:
        yield (
            f"train.finetune sends fine-tuned models to the server, and personal.part = '{part}' keeps them at the sites: set "
            "train.finetune = 0"
        )


def _head(model: Any, plan: Plan) -> Iterator[str]:
    """Check settings that need the whole model, of which a site sends all but the last layer."""
    m, e = plan.method, plan.evaluation
    where = "personal.part = 'head' keeps the last layer at each site"
    if not len(head_of(model)):
        yield (
            f"model.name is '{plan.model.name}', which is one layer, and personal.part = 'head' needs layers before the last: "
            "use 'intercept' or 'finetune'"
        )
    if not getattr(model, "ends_linear", True):
        yield f"model.name is '{plan.model.name}': its last layer is no torch.nn.Linear, which personal.part = 'head' needs"
    if plan.privacy.mechanism != "none" or plan.privacy.epsilon is not None:
        yield (
            "a head of a site's own is trained without noise, and what leaves the site depends on it: use personal.part = "
            "'ditto' or 'finetune', or no privacy.mechanism and privacy.epsilon"
        )
    if is_variant_of(m.name, "fedbn") or plan.model.statistics == "site":
        yield f"{where}, and BatchNorm layers as well: use method 'fedavg' with model.statistics = 'averaged'"
    for name in ("sse-agg", "fedxchain", "xfed", "clustered"):
        if is_variant_of(m.name, name):
            yield f"{where}, and method '{m.name}' scores or explains whole local models: use 'fedavg'"
    if m.weigh.rule in CHOSEN_RULES and m.weigh.rule != "distance":
        yield f"{where}, and method.weigh = '{m.weigh.rule}' scores whole local models: use 'data_size'"
    if plan.explain.sketch != "none" and explained_on(plan) is not None:
        yield f"{where}, and local models are explained on reference rows '{explained_on(plan)}': set explain.sketch = 'none'"
    if maps_asked(plan):
        yield f"{where}, and explain.maps compares whole local models: leave it out"
    if e.local_models != "none":
        yield f"{where}, and evaluation.local_models scores whole local models: set it to 'none'"
    if e.rationale_set is not None:
        yield f"{where}, and evaluation.rationale_set explains the common model, whose last layer is not trained: leave it out"
    if e.calibrate != "none":
        yield f"{where}, and evaluation.calibrate = '{e.calibrate}' changes the common one, which no site uses: set it to 'none'"
    if plan.train.early_stop:
        yield f"{where}, and train.early_stop goes back to a round of which sites keep none: set train.early_stop = 0"
