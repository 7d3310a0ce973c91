"""Models of whole columns in a plan: the settings of their fit, settings that exclude them, and their fit to one site's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.card import card_options
from grandrounds.capabilities.statistics.column_fits import FITS
from grandrounds.capabilities.statistics.models.column_model import LEAST, SEED, turn_sign
from grandrounds.capabilities.statistics.models.ebm import METHODS as EBM_METHODS
from grandrounds.capabilities.statistics.models.ebm import REFUSAL as EBM_REFUSAL
from grandrounds.capabilities.statistics.question import Rows, fit_in_memory
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.methods import is_variant_of, method_class
from grandrounds.site.kernels import fit_each
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainJob, TrainResult


def gam_options(plan: Plan) -> dict[str, Any]:
    """Return the settings of a fit of model 'gam'; the private one has steps in place of curves."""
    options = _fit_options(plan, plan.plain()["method"]["gam"])
    return {**options, "basis": "steps"} if is_variant_of(plan.method.name, "private-gam") else options


def trees_options(plan: Plan) -> dict[str, Any]:
    """Return the settings of a fit of model 'trees'."""
    return _fit_options(plan, plan.plain()["method"]["trees"])


def card_model_options(plan: Plan) -> dict[str, Any]:
    """Return the settings of a fit of model 'card'."""
    return _fit_options(plan, card_options(plan.plain()["method"]))


def _fit_options(plan: Plan, own: dict[str, Any]) -> dict[str, Any]:
    return {**own, LEAST: plan.method.exact.least, SEED: plan.seed}


def column_refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Check settings that models of whole columns do not support: they are fitted from sums and have no gradient."""
    m, name = plan.method, plan.model.name
    if method_class(m.name).earlier_model:
        return
    if m.name not in (name, "pooled", "local") and not (name == "gam" and is_variant_of(m.name, "private-gam")):
        yield (
            f"model '{name}' is fitted from sums over hospitals, not by method '{m.name}': use method '{name}' (or 'pooled' and "
            "'local' to compare with)"
        )
    if plan.engine.precision != "float64":
        yield (
            f"model '{name}' reads numbers as they are recorded, and engine.precision is '{plan.engine.precision}', which rounds "
            "them: remove engine.precision"
        )
    wanted = {
        "train.class_weights": plan.train.class_weights != "none",
        "train.noise": bool(plan.train.noise),
        "train.finetune": bool(plan.train.finetune),
        "train.keep_optimizer": plan.train.keep_optimizer,
        "train.early_stop": bool(plan.train.early_stop),
        "[tasks]": bool(plan.tasks.plain()),
    }
    for setting in (s for s, is_set in wanted.items() if is_set):
        yield f"model '{name}' has no training steps and one outcome: remove {setting}"


def card_refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Check settings that no risk card supports, also where 'pooled' or 'local' fits it.

    Args:
        model: The model.
        plan: The plan.

    Yields:
        Sentences.
    """
    yield from column_refusals(model, plan)
    if getattr(model, "task", CLASSIFICATION) != CLASSIFICATION or model.outputs != 1:
        yield (
            "a risk card prints the risk of one event, and the label has another task or more classes: choose a label with two "
            "values, or model 'gam'"
        )
    if plan.method.gam.own_shapes:
        yield "method.gam.own_shapes adds shapes of a hospital to model 'gam', and a card has none: remove it"
    if plan.evaluation.calibrate != "none":
        yield "a risk card prints its risks, and a calibration would change them: set evaluation.calibrate = 'none'"


def ebm_refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Check settings that an EBM does not support."""
    if plan.method.name not in EBM_METHODS:
        yield f"model.name is 'ebm': {EBM_REFUSAL}"
    yield from column_refusals(model, plan)


def train_ebm(job: TrainJob) -> TrainResult:
    """Fit an EBM at each site on its own rows; it does not continue from `start`."""
    return fit_each(job, purpose="ebm")


def train_from_sums(job: TrainJob) -> TrainResult:
    """Fit a model of whole columns at each site to its own rows, by the questions that a server asks all sites.

    A model that is fitted already stays as it is: a second fit to the same rows would give the same.
    """
    model: Any = job.model
    unfitted, fitted = model.init(0), []
    for j, k in enumerate(job.members.tolist()):
        first = job.start if np.ndim(job.start[0]) == 0 else job.start[j]
        fitted.append(_fit_columns(job, k) if np.array_equal(first, unfitted) else first)
    none = np.zeros(len(job.members), np.int64)
    return TrainResult(fitted, none, (), none[:, None])


def _fit_columns(job: TrainJob, k: int) -> Array:
    """Fit a model of whole columns to the rows of one site. Of several sites one may have a single class: a constant fits it."""
    model: Any = job.model
    rows, is_binary = _rows_between(job, job.part, *job.part.offsets[k : k + 2]), _has_two_classes(model)
    has_others = len(rows) < len(job.part.y)  # else these are all training rows, and all validation rows go with them
    if job.validation is not None:
        places = job.validation.offsets[k : k + 2] if has_others else job.validation.offsets[[0, -1]]
        rows = replace(rows, validation=_rows_between(job, job.validation, *places))
    if has_others and is_binary and len(np.unique(rows.y)) < 2:
        theta: Array = model.constant(float(rows.y.sum() + 0.5) / (len(rows) + 1))
    else:
        fit = FITS[model.kernel](model, job.outcome, int(model.options[LEAST]))
        try:
            result = fit_in_memory(fit, {job.names[k]: rows}, ANSWERS)
        except BadInput as e:
            raise BadInput(f"site '{job.names[k]}' by itself: {e}" if has_others else str(e), code=e.code) from None
        theta = model.pack(result.arrays)
    return turn_sign(theta) if is_binary and job.event == 0 else theta


def _has_two_classes(model: Any) -> bool:
    return bool(model.task == CLASSIFICATION and model.classes == 2)


def _rows_between(job: TrainJob, part: Part, first: int, end: int) -> Rows:
    """Return rows of a part, as a fit reads them: y is 1 for the event of two classes."""
    mine = slice(int(first), int(end))
    y = part.y[mine] == job.event if _has_two_classes(job.model) else part.y[mine]
    time = None if part.time is None else np.asarray(part.time[mine], np.float64)
    return Rows(np.asarray(part.x[mine], np.float64), np.asarray(y, np.float64), time=time)
