"""What does not go together in an experiment, refused in words before a round is run: what, why, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name
from grandrounds.experiment.checks import local_models, rationale
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.methods.anchors import anchor_reference
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.robust import NEEDS_REFERENCE, ONE_VOTE
from grandrounds.methods.select import ASKS_FIRST, count_sites
from grandrounds.methods.sse_agg.method import weighting_refusals
from grandrounds.methods.weigh import CHOSEN_RULES, EXPLANATIONS
from grandrounds.methods.weigh import NEEDS_REFERENCE as WEIGHED_BY_REFERENCE

NO_BIAS = "its last layer has no bias for Platt's intercept: give it one, or set evaluation.calibrate = 'temperature'"


def refuse_what_it_cannot(model: Any, plan: Plan, *, sites: int, pictures: bool = False) -> None:
    """Raise the first reason why this model cannot do what the plan asks for; `sites` is how many train."""
    for reason in (
        *_parts(plan),
        *_weighing(model, plan, sites),
        *_reference(plan),
        *_robust(plan, sites),
        *_training(model, plan),
        *_model(model, plan),
        *method_class(plan.method.name).refusals(model, plan, sites=sites, pictures=pictures),
        *_trust(plan),
        *rationale.refusals(plan, pictures=pictures),
        *local_models.refusals(model, plan, sites=sites),
    ):
        raise BadInput(reason, code="method-does-not-fit")


def _parts(plan: Plan) -> Iterator[str]:
    """Parts of [method] that the method has no place for."""
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
            yield f"method '{m.name}' has no use for method.{part}: leave it out, or use another method"
    if kind.regularizer_name and m.stability not in ("auto", "none", kind.regularizer_name):
        yield f"method '{m.name}' is stability '{kind.regularizer_name}' already: for '{m.stability}' set method.name = 'fedavg'"
    if kind.family == "async" and m.select.rule in ASKS_FIRST:
        yield f"method '{m.name}' does not wait for all sites, so none can be chosen by '{m.select.rule}': use random"
    if kind.family == "async" and "sgd" in regularizer_class(m).needs:
        yield f"method '{m.name}' mixes models of different ages, which SCAFFOLD's variates do not allow: use proximal"
    if kind.family == "async" and plan.engine.min_sites > 1:
        yield f"method '{m.name}' goes on with whoever answers: set engine.min_sites = 1"


def _weighing(model: Any, plan: Plan, sites: int) -> Iterator[str]:
    """What weighing by explanations and cohorts cannot go with."""
    m, kind = plan.method, method_class(plan.method.name)
    explains, apart = m.weigh.rule == EXPLANATIONS, m.cohorts.count != 1
    if explains and kind.family == "async":
        yield f"method '{m.name}' does not wait for all sites, so their reasons cannot be compared: weigh by data_size"
    if apart and kind.family == "async":
        yield f"method '{m.name}' does not wait for all sites, so there are no cohorts: leave method.cohorts out"
    if explains:
        yield from weighting_refusals(plan, sites=sites)
    if apart and model.kernel in ("forest", "boosted"):
        yield f"model.name is '{plan.model.name}': trees have no update vectors to find cohorts by; set method.cohorts = 1"
    if apart and plan.tasks.plain():
        yield "sites with different tasks train different heads, so their updates form no cohorts: set method.cohorts = 1"
    if apart and isinstance(m.cohorts.count, int) and m.cohorts.count > sites:
        yield f"method.cohorts.count is {m.cohorts.count}, but only {sites} sites train: lower it"
    if apart and m.cohorts.start > m.rounds:
        yield f"method.cohorts.start is {m.cohorts.start}, but there are {m.rounds} rounds: lower it"
    if not apart or m.cohorts.models == "combined":
        return
    if kind.family == "fedopt":
        yield f"method '{m.name}' steps one model at the server: set method.cohorts.models = 'combined'"
    if "sgd" in regularizer_class(m).needs:
        yield "cohorts with models of their own have no common variate for SCAFFOLD: set method.stability = 'proximal'"
    if plan.train.early_stop:
        yield "train.early_stop looks at one model: set method.cohorts.models = 'combined', or train.early_stop = 0"


def _trust(plan: Plan) -> Iterator[str]:
    """Trust as a weight of methods that keep none."""
    if plan.method.weigh.rule == TRUST and not is_variant_of(plan.method.name, "fedxchain"):
        yield f"method.weigh 'trust' is method 'fedxchain', not '{plan.method.name}': set method.name = 'fedxchain'"


def left_alone(plan: Plan) -> tuple[str, ...]:
    """What the plan sets and its method makes no use of, where that is easily taken for something else."""
    w = plan.method.weigh
    setting = "lambdas" if w.lambdas.plain() else "explanation_weight" if w.explanation_weight is not None else ""
    if not setting or w.rule == EXPLANATIONS:
        return ()
    return (
        f"method.weigh.{setting} has no say: '{plan.method.name}' weighs by {w.rule}; it is for method.name = 'sse-agg'",
    )


def _reference(plan: Plan) -> Iterator[str]:
    """Rules that need rows of the server's own."""
    wanted = [
        r for r in (plan.method.robust.rule, plan.method.weigh.rule) if r in (*NEEDS_REFERENCE, *WEIGHED_BY_REFERENCE)
    ]
    if wanted and reference_name(plan) is None:
        if plan.reference.plain():
            yield f"'{wanted[0]}' needs to know which reference rows are meant: set method.reference"
        yield f"'{wanted[0]}' needs reference rows at the server: add [reference.root] with rows = 100"
    if "reference" in regularizer_class(plan.method).needs and anchor_reference(plan) is None:
        yield _not_lent(plan)


def _not_lent(plan: Plan) -> str:
    """Why there are no rows to anchor sites to, and the way out."""
    reference, regulariser = plan.reference.plain(), regularizer_class(plan.method).name
    named = plan.method.anchor_rows or ("anchor" if "anchor" in reference else None)
    if named is not None:
        return f"stability '{regulariser}' sends the rows of '{named}' to every site: set reference.{named}.sent = true"
    if any(settings.get("sent") for settings in reference.values()):
        return f"stability '{regulariser}' needs to know which of the reference rows are meant: set method.anchor_rows"
    return (
        f"stability '{regulariser}' lends reference rows to every site: add [reference.anchor] with rows = 200 and sent = true"
    )


def _robust(plan: Plan, sites: int) -> Iterator[str]:
    r, m = plan.method.robust, plan.method
    if r.rule in ONE_VOTE and m.weigh.rule in CHOSEN_RULES:
        yield f"robust rule '{r.rule}' gives every site one vote and cannot weigh by '{m.weigh.rule}': leave one of them out"
    buffered = is_variant_of(m.name, "fedbuff")
    answers = m.buffer if buffered else sites if m.select.rule == "all" else count_sites(m.select.fraction, sites)
    if r.rule in ("krum", "multi-krum") and answers < r.attackers + 3:
        yield (
            f"robust rule '{r.rule}' against {r.attackers} attackers needs {r.attackers + 3} answers a round, "
            f"not {answers}: lower method.robust.attackers or ask more sites"
        )
    if r.rule != "none" and plan.tasks.plain():
        yield f"robust rule '{r.rule}' compares whole models, but sites with different tasks train different heads"
    if buffered and m.buffer > sites:
        yield f"method.buffer is {m.buffer}, but only {sites} sites train: lower it"


def _training(model: Any, plan: Plan) -> Iterator[str]:
    """What a stability needs of the local work and of the model."""
    regulariser = regularizer_class(plan.method)
    if "sgd" in regulariser.needs and plan.train.optimizer != "sgd":
        yield (
            f"SCAFFOLD's variates are means of plain gradients, but train.optimizer is '{plan.train.optimizer}': "
            "set it to 'sgd'"
        )
    if "features" in regulariser.needs and model.kernel in ("numpy", "torch") and plan.model.name == "logistic":
        yield "MOON contrasts hidden features and a logistic model has none: use model 'mlp' or a net"
    if "reference" in regulariser.needs and bool(getattr(model, "statistics", False)):
        yield f"stability '{regulariser.name}' would mix its rows into BatchNorm's statistics: set model.norm = 'group'"
    if "reference" in regulariser.needs and plan.tasks.plain():
        yield f"stability '{regulariser.name}' knows one task, and these sites have several: use stability 'proximal'"
    if plan.train.early_stop and (is_variant_of(plan.method.name, "fedbn") or plan.model.statistics == "site"):
        yield (
            "train.early_stop goes back to an earlier model, but sites do not keep BatchNorm layers of earlier rounds: "
            "set train.early_stop = 0"
        )


def _model(model: Any, plan: Plan) -> Iterator[str]:
    """What some models cannot do: forests and boosted trees have no gradient and no logits."""
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
    if not getattr(model, "ends_linear", True):
        wanted = {
            "evaluation.calibrate": how != "none",
            "tasks": bool(plan.tasks.plain()),
            "MOON's contrast": "features" in regularizer_class(m).needs,
        }
        for name in (n for n, w in wanted.items() if w):
            yield (
                f"model.name is '{plan.model.name}': {name} needs a torch.nn.Linear that gives the logits and whose "
                "parameters come last in the module"
            )
    if how == "platt" and kernel == "torch" and f"{model.last_layer}.bias" not in model.trainable:
        yield f"model.name is '{plan.model.name}': {NO_BIAS}"
    if how == "platt" and model.outputs != 1:
        yield "evaluation.calibrate 'platt' is for two classes, and this model tells more apart: use temperature, or none"
    if plan.tasks.plain() and kernel != "torch":
        yield "sites with different tasks need the torch kernel: set engine.kernel = 'torch'"
    if kernel == "numpy" and plan.engine.precision in ("tf32", "bf16"):
        yield f"engine.precision '{plan.engine.precision}' is for torch: use float32, or engine.kernel = 'torch'"
