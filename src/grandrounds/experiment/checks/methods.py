"""Check that the settings of an experiment are compatible, before its first round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.capability import load
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name
from grandrounds.experiment.checks import guard, local_models, objective, rationale
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.methods.anchors import anchor_reference
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.robust import NEEDS_REFERENCE, ONE_VOTE
from grandrounds.methods.select import ASKS_FIRST, count_sites
from grandrounds.methods.sse_agg.method import weighting_refusals
from grandrounds.methods.weigh import CHOSEN_RULES, EXPLANATIONS
from grandrounds.methods.weigh import NEEDS_REFERENCE as WEIGHED_BY_REFERENCE
from grandrounds.models.protocol import COLUMN_KERNELS, GRADIENT_FREE

NO_BIAS = "Platt scaling needs a bias in the last layer: add one, or set evaluation.calibrate = 'temperature'"


def refuse_what_it_cannot(model: Any, plan: Plan, *, sites: int, pictures: bool = False) -> None:
    """Check that the method, the model and the other settings fit together.

    Args:
        model: The built model.
        plan: The run's plan.
        sites: Number of training sites.
        pictures: True for image data.

    Raises:
        BadInput: Two settings are incompatible; the message names the first such pair and a fix.
    """
    for reason in (
        *_parts(plan),
        *_weighing(model, plan, sites),
        *_reference(plan),
        *_robust(plan, sites),
        *_training(model, plan),
        *objective.refusals(model, plan),
        *_model(model, plan),
        *method_class(plan.method.name).refusals(model, plan, sites=sites, pictures=pictures),
        *_trust(plan),
        *guard.refusals(model, plan),
        *rationale.refusals(plan, pictures=pictures),
        *local_models.refusals(model, plan, sites=sites),
    ):
        raise BadInput(reason, code="method-does-not-fit")


def _parts(plan: Plan) -> Iterator[str]:
    """Check that the method uses every part that [method] sets."""
    m = plan.method
    kind = method_class(m.name)
    reports = {
        "select": m.select.rule != "all",
        "weigh": m.weigh.rule in CHOSEN_RULES,
        "robust": m.robust.rule != "none",
        "stability": m.stability not in ("auto", "none", kind.regularizer_name),
        "cohorts": m.cohorts.count != 1,
    }
    for part, wanted in reports.items():
        if wanted and part not in kind.parts:
            yield f"method '{m.name}' does not support method.{part}: remove it, or use another method"
    if kind.regularizer_name and m.stability not in ("auto", "none", kind.regularizer_name):
        yield (
            f"method '{m.name}' already uses stability '{kind.regularizer_name}': for '{m.stability}' set method.name = 'fedavg'"
        )
    if kind.family == "async" and m.select.rule in ASKS_FIRST:
        yield f"method '{m.name}' is asynchronous and cannot select sites by '{m.select.rule}': set method.select = 'random'"
    if kind.family == "async" and "sgd" in regularizer_class(m).needs:
        yield f"method '{m.name}' is asynchronous, which SCAFFOLD's control variates do not support: use stability 'proximal'"
    if kind.family == "async" and plan.engine.min_sites > 1:
        yield f"method '{m.name}' is asynchronous and has no minimum number of sites: set engine.min_sites = 1"


def _weighing(model: Any, plan: Plan, sites: int) -> Iterator[str]:
    """Check the settings that weighting by explanations and cohorts exclude."""
    m, kind = plan.method, method_class(plan.method.name)
    explains, apart = m.weigh.rule == EXPLANATIONS, m.cohorts.count != 1
    if explains and kind.family == "async":
        yield f"method '{m.name}' is asynchronous and cannot compare explanations: set method.weigh = 'data_size'"
    if apart and kind.family == "async":
        yield f"method '{m.name}' is asynchronous and cannot form cohorts: remove method.cohorts"
    if explains:
        yield from weighting_refusals(plan, sites=sites)
    if apart and model.kernel in GRADIENT_FREE:
        yield f"model.name is '{plan.model.name}': trees have no update vectors to cluster; set method.cohorts = 1"
    if apart and plan.tasks.plain():
        yield "sites with different tasks train different heads, so their updates cannot be clustered: set method.cohorts = 1"
    if apart and isinstance(m.cohorts.count, int) and m.cohorts.count > sites:
        yield f"method.cohorts.count is {m.cohorts.count}, but only {sites} sites train: lower method.cohorts.count"
    if apart and m.cohorts.start > m.rounds:
        yield f"method.cohorts.start is {m.cohorts.start}, but method.rounds is {m.rounds}: lower method.cohorts.start"
    if not apart or m.cohorts.models == "combined":
        return
    if kind.family == "fedopt":
        yield f"method '{m.name}' optimises one model at the server: set method.cohorts.models = 'combined'"
    if "sgd" in regularizer_class(m).needs:
        yield "method.cohorts.models 'separate' has no global control variate for SCAFFOLD: set method.stability = 'proximal'"
    if plan.train.early_stop:
        yield "train.early_stop needs a single global model: set method.cohorts.models = 'combined', or train.early_stop = 0"


def _trust(plan: Plan) -> Iterator[str]:
    """Check that the method computes trust if it is the weight."""
    if plan.method.weigh.rule == TRUST and not is_variant_of(plan.method.name, "fedxchain"):
        yield f"method.weigh is 'trust', which method '{plan.method.name}' does not compute: set method.name = 'fedxchain'"


def left_alone(plan: Plan) -> tuple[str, ...]:
    """Return warnings about weighting settings that the method ignores."""
    w = plan.method.weigh
    setting = "lambdas" if w.lambdas.plain() else "explanation_weight" if w.explanation_weight is not None else ""
    if not setting or w.rule == EXPLANATIONS:
        return ()
    return (
        f"method.weigh.{setting} has no effect: method '{plan.method.name}' weights by {w.rule}; use method.name = 'sse-agg'",
    )


def _reference(plan: Plan) -> Iterator[str]:
    """Check that rules which need reference rows at the server have them."""
    wanted = [
        r for r in (plan.method.robust.rule, plan.method.weigh.rule) if r in (*NEEDS_REFERENCE, *WEIGHED_BY_REFERENCE)
    ]
    if wanted and reference_name(plan) is None:
        if plan.reference.plain():
            yield f"'{wanted[0]}' needs reference rows, and there are several sets: set method.reference"
        yield f"'{wanted[0]}' needs reference rows at the server: add [reference.root] with rows = 100"
    if "reference" in regularizer_class(plan.method).needs and anchor_reference(plan) is None:
        yield _not_lent(plan)


def _not_lent(plan: Plan) -> str:
    """Return an error about missing anchor rows, with the suggested fix."""
    reference, regulariser = plan.reference.plain(), regularizer_class(plan.method).name
    named = plan.method.anchor_rows or ("anchor" if "anchor" in reference else None)
    if named is not None:
        return f"stability '{regulariser}' sends the rows of '{named}' to every site: set reference.{named}.sent = true"
    if any(settings.get("sent") for settings in reference.values()):
        return f"stability '{regulariser}' needs reference rows, and several sets are sent: set method.anchor_rows"
    return f"stability '{regulariser}' sends reference rows to every site: add [reference.anchor] with rows = 200 and sent = true"


def _robust(plan: Plan, sites: int) -> Iterator[str]:
    r, m = plan.method.robust, plan.method
    if r.rule in ONE_VOTE and m.weigh.rule in CHOSEN_RULES:
        yield (
            f"method.robust '{r.rule}' gives every site the same weight and cannot use method.weigh '{m.weigh.rule}': remove one "
            "of them"
        )
    buffered = is_variant_of(m.name, "fedbuff")
    answers = m.buffer if buffered else sites if m.select.rule == "all" else count_sites(m.select.fraction, sites)
    if r.rule in ("krum", "multi-krum") and answers < r.attackers + 3:
        yield (
            f"method.robust '{r.rule}' with {r.attackers} attackers needs {r.attackers + 3} updates per round, "
            f"not {answers}: lower method.robust.attackers or select more sites"
        )
    if r.rule != "none" and plan.tasks.plain():
        yield (
            f"method.robust '{r.rule}' compares whole models, but sites with different tasks train different heads: set "
            "method.robust = 'none'"
        )
    if buffered and m.buffer > sites:
        yield f"method.buffer is {m.buffer}, but only {sites} sites train: lower method.buffer"


def _training(model: Any, plan: Plan) -> Iterator[str]:
    """Check the optimizer and the model that a local regularizer needs."""
    regulariser = regularizer_class(plan.method)
    if "sgd" in regulariser.needs and plan.train.optimizer != "sgd":
        yield (
            f"SCAFFOLD needs plain gradient steps, but train.optimizer is '{plan.train.optimizer}': set train.optimizer = 'sgd'"
        )
    if (
        "features" in regulariser.needs
        and model.kernel in ("numpy", "torch")
        and plan.model.name in ("logistic", "linear")
    ):
        yield "MOON needs hidden features, and a logistic model has none: use model.name = 'mlp' or an image model"
    if "reference" in regulariser.needs and bool(getattr(model, "statistics", False)):
        yield f"stability '{regulariser.name}' would change BatchNorm statistics by its reference rows: set model.norm = 'group'"
    if "reference" in regulariser.needs and plan.tasks.plain():
        yield f"stability '{regulariser.name}' supports one task, and [tasks] has several: use stability 'proximal'"
    if plan.train.continue_epoch and not plan.train.steps:
        yield "train.continue_epoch goes on in an epoch that train.steps left, and rounds have whole epochs: set train.steps"
    if plan.train.early_stop and (is_variant_of(plan.method.name, "fedbn") or plan.model.statistics == "site"):
        yield (
            "train.early_stop restores an earlier model, but sites do not keep BatchNorm layers of earlier rounds: "
            "set train.early_stop = 0"
        )


def _model(model: Any, plan: Plan) -> Iterator[str]:
    """Check settings that some models do not support: forests and boosted trees have no gradients and no logits."""
    kernel, m, how = model.kernel, plan.method, plan.evaluation.calibrate
    if kernel in ("forest", "boosted"):
        from grandrounds.models import boosted, forest

        refusals = (forest if kernel == "forest" else boosted).REFUSALS
        kind = method_class(m.name)
        reports = {
            m.name: m.name in refusals,
            kind.family: kind.family in refusals,
            regularizer_class(m).name: regularizer_class(m).name != "none",
            "averaging": kernel == "boosted" and m.name not in boosted.METHODS,
            "robust": m.robust.rule != "none",
            "distance": m.weigh.rule == "distance",
            "reference": m.weigh.rule == "reference_accuracy",
            "temperature": how == "temperature" or (how == "platt" and kernel == "forest"),
            "class_weights": kernel == "forest" and plan.train.class_weights != "none",
            "keep_optimizer": plan.train.keep_optimizer,
            "noise": bool(plan.train.noise),
            "finetune": bool(plan.train.finetune),
            "attack": any(
                a["kind"] in ("sign-flip", "scale", "gaussian", "free-rider") for a in plan.plain()["attacks"]
            ),
        }
        for name, wanted in reports.items():
            if wanted:
                yield f"model.name is '{plan.model.name}': {refusals[name]}"
    if kernel in COLUMN_KERNELS:
        yield from load(COLUMN_KERNELS[kernel].refusals)(model, plan)
    if not getattr(model, "ends_linear", True):
        wanted = {
            "evaluation.calibrate": how != "none",
            "tasks": bool(plan.tasks.plain()),
            "MOON's contrast": "features" in regularizer_class(m).needs,
        }
        for name in (n for n, w in wanted.items() if w):
            yield (
                f"model.name is '{plan.model.name}': {name} needs a torch.nn.Linear that computes the logits and whose "
                "parameters are the last of the module"
            )
    if how == "platt" and kernel == "torch" and f"{model.last_layer}.bias" not in model.trainable:
        yield f"model.name is '{plan.model.name}': {NO_BIAS}"
    if how == "platt" and model.outputs != 1:
        yield "evaluation.calibrate is 'platt', which supports two classes, and the data has more: use 'temperature' or 'none'"
    if plan.tasks.plain() and kernel != "torch":
        yield "sites with different tasks need the torch kernel: set engine.kernel = 'torch'"
    if kernel == "numpy" and plan.engine.precision in ("tf32", "bf16"):
        yield f"engine.precision is '{plan.engine.precision}', which needs torch: use 'float32', or engine.kernel = 'torch'"
