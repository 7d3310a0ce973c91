"""Check that the settings of an experiment fit the type of its outcome."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.data.corruption.attacks import DATA_KINDS, LIE
from grandrounds.data.subgroups import plan_bands
from grandrounds.experiment.checks import guard
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.models import model_name

_CLASS_METHODS = {
    "veil": "counts the two classes of a logistic model",
    "xfed": "scores predictions of classes on images",
    "fedxchain": "measures trust by accuracy",
}


def refuse_task(plan: Plan, task: str) -> None:
    """Refuse settings that make no sense for a task other than classification.

    Args:
        plan: The run's plan.
        task: The type of the outcome.

    Raises:
        BadInput: A setting needs classes; the message names the first one and a fix.
    """
    if task == CLASSIFICATION and plan.model.name != "linear":
        return
    model_name(plan.model.name, task)
    for reason in _reasons(plan, task):
        raise BadInput(f"the task is {task}: {reason}", code="task-does-not-fit")


def refuse_groups(plan: Plan, task: str, classes: int) -> None:
    """Refuse evaluation.subgroups and evaluation.mitigation where groups cannot be compared.

    Args:
        plan: The run's plan.
        task: The type of the outcome.
        classes: The number of classes.

    Raises:
        BadInput: The outcome has no figures that are compared, or the mitigation lacks two classes or columns.
    """
    e = plan.evaluation
    named, mitigation = tuple(e.subgroups), e.mitigation
    bands = [column for column in plan_bands(e) if column not in named]
    if bands or len(set(named)) < len(named):
        twice = next((column for column in named if named.count(column) > 1), "")
        fault = f"evaluation.subgroups names '{twice}' twice" if twice else f"evaluation.bands has '{bands[0]}', not named"
        raise BadInput(f"{fault}: name each column once in evaluation.subgroups", code="conflicting-settings")
    if mitigation != "none" and not named:
        raise BadInput(
            f"evaluation.mitigation is '{mitigation}', but evaluation.subgroups names no column: name one (--subgroups sex)",
            code="missing-setting",
        )
    if mitigation != "none" and plan.train.finetune:
        raise BadInput(
            f"evaluation.mitigation '{mitigation}' corrects one model, and train.finetune gives each site another: set "
            "train.finetune = 0, or evaluation.mitigation = 'none'",
            code="conflicting-settings",
        )
    if named and not method_class(plan.method.name).has_model:
        raise BadInput(
            f"evaluation.subgroups compares groups by a model's scores, and method '{plan.method.name}' has no model: use "
            "method.exact.group (--group)",
            code="task-does-not-fit",
        )
    if named and task == SURVIVAL:
        raise BadInput(
            "evaluation.subgroups compares classes, numbers or counts, and the task is survival: use evaluation.subgroup, which "
            "gives the C-index of each group of one column",
            code="task-does-not-fit",
        )
    if mitigation != "none" and (task != CLASSIFICATION or classes != 2):
        kind = f"there are {classes}" if task == CLASSIFICATION else f"the task is {task}"
        raise BadInput(
            f"evaluation.mitigation '{mitigation}' needs two classes, and {kind}: set it to 'none'",
            code="task-does-not-fit",
        )


def _reasons(plan: Plan, task: str) -> Iterator[str]:
    """List the settings that do not fit a task other than classification."""
    m, e = plan.method, plan.evaluation
    for name, why in _CLASS_METHODS.items():
        if is_variant_of(m.name, name):
            yield f"method '{m.name}' {why}; use another method"
    yield from guard.task_refusals(plan, task)
    if plan.tasks.plain():
        yield "[tasks] group the classes of a label; leave them out"
    if plan.data.positive is not None:
        yield "data.positive is a class; leave it out"
    if task != SURVIVAL and plan.data.event is not None:
        yield "data.event is a class; leave --event out"
    if plan.train.class_weights != "none":
        yield "train.class_weights weighs classes; leave it out"
    if e.calibrate != "none":
        yield "evaluation.calibrate calibrates probabilities of classes; set it to 'none'"
    if e.threshold != "half":
        yield "evaluation.threshold decides between classes; leave it out"
    if e.local_models != "none":
        yield "evaluation.local_models reports accuracies; leave it out"
    if e.rationale_set is not None:
        yield "evaluation.rationale_set scores images; leave it out"
    if plan.explain.score == "accuracy":
        yield "explain.score = 'accuracy' needs classes; use 'log_loss', which is the loss of the task, or 'self'"
    if m.weigh.rule in ("reference_accuracy", "trust"):
        yield f"method.weigh = '{m.weigh.rule}' needs accuracies; use 'data_size'"
    if m.weigh.lambdas.plain().get("calibration"):
        yield "method.weigh.lambdas has calibration, which is of probabilities; leave it out"
    stability = regularizer_class(m).name
    if stability == "alignment":
        yield "stability 'alignment' compares attributions of classes; use 'proximal'"
    if stability == "anchored_scaffold":
        yield "stability 'anchored_scaffold' uses the entropy of predicted classes; use 'scaffold' or 'anchor'"
    if task == SURVIVAL and "anchor" in stability:
        yield f"stability '{stability}' anchors predictions of single rows, which a Cox model does not make; use 'proximal'"
    if task == SURVIVAL and plan.privacy.mechanism == "dp-sgd":
        yield (
            "the Cox loss couples patients, so DP-SGD cannot clip the gradient of each one; "
            "use privacy.mechanism = 'client', or leave it out"
        )
    if task == SURVIVAL and plan.explain.sketch == "gradient":
        yield "explain.sketch = 'gradient' needs a loss of single rows; use 'permutation', 'coefficients' or 'shap'"
    for attack in plan.plain()["attacks"]:
        if attack["kind"] in (*DATA_KINDS, LIE):
            yield f"attack '{attack['kind']}' changes classes; use one on models, such as 'sign-flip'"
