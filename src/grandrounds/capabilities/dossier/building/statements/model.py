"""Statements about the model: its type, how it was built, its decisions, its updates and its full specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grandrounds.capabilities.dossier.building.evidence import ENVIRONMENT, EXPERIMENT, PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.performance import NO_TEST
from grandrounds.capabilities.dossier.building.statements.run_kind import (
    classifies,
    defined,
    has_event,
    has_test_rows,
    is_deployed,
)
from grandrounds.metrics.fairness import is_defined

_NAMES = {
    "logistic": "logistic regression",
    "linear": "linear model",
    "mlp": "multi-layer perceptron",
    "lightgbm": "set of gradient-boosted trees (LightGBM)",
    "forest": "random forest",
    "gam": "additive model",
    "trees": "set of boosted trees",
    "card": "risk card",
    "ebm": "explainable boosting machine",
    "small-cnn": "small convolutional network",
    "deep-cnn": "deep convolutional network",
    "resnet18": "ResNet-18",
}
_SUMS = ("estimates", "shapes", "trees", "card")
"""Parts of a summary of models that are fitted from sums over sites."""
_SEED = ("seed", ("seed",))
_SETTINGS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "estimates": (
        ("ridge penalty", ("method", "exact", "ridge")),
        ("standard errors", ("method", "exact", "errors")),
        ("intercepts", ("method", "exact", "intercept")),
    ),
    "card": (
        ("terms, at most", ("method", "card", "terms")),
        ("points of a term, at most", ("method", "card", "points")),
        ("route", ("method", "card", "route")),
    ),
    "trees": (
        _SEED,
        ("bins of a number", ("method", "trees", "bins")),
        ("ridge penalty", ("method", "trees", "ridge")),
        ("rows of a leaf, at least", ("method", "trees", "least")),
    ),
    "shapes": (
        ("splines of a number", ("method", "gam", "splines")),
        ("weight of smoothness", ("method", "gam", "gamma")),
    ),
    "veil": (
        _SEED,
        ("feature selection", ("method", "veil", "selection")),
        ("inputs that are selected, at most", ("method", "veil", "features")),
        ("learning rate", ("method", "veil", "lr")),
        ("L2 penalty", ("method", "veil", "l2")),
    ),
    "forest": (_SEED, ("trees of a site", ("model", "trees")), ("depth of a tree, at most", ("model", "depth"))),
    "lightgbm": (_SEED, ("trees of a round", ("model", "trees"))),
    "ebm": (_SEED,),
    "gradient": (
        _SEED,
        ("local epochs in a round", ("train", "epochs")),
        ("batch size", ("train", "batch")),
        ("optimizer", ("train", "optimizer")),
        ("learning rate", ("train", "lr")),
        ("L2 penalty", ("train", "l2")),
        ("client selection", ("method", "select", "rule")),
        ("aggregation weights", ("method", "weigh", "rule")),
        ("robust aggregation", ("method", "robust", "rule")),
    ),
}
"""Settings of the plan that shape a model, by the way in which it is built."""
_MOST_TERMS = 300


def is_from_sums(facts: Facts) -> bool:
    """Tell whether the model was fitted from sums over sites, so that its rounds are exchanges."""
    return any(facts.get(SUMMARY, key, "exchanges") for key in _SUMS)


def name_model(facts: Facts) -> Value:
    """Name the type of the model: "logistic regression", "risk card"."""
    model = facts.value(SUMMARY, "model")
    return facts.derive(
        model.value, "name of the model's type", model, text=_NAMES.get(model.value, f"model '{model.value}'")
    )


def state_model(facts: Facts) -> Iterator[Statement]:
    """State the type of the model and its size."""
    name = name_model(facts)
    if facts.get(SUMMARY, "card", "terms"):
        terms = facts.value(SUMMARY, "card", "terms")
        number = facts.derive(len(terms.value), "number of terms", terms)
        yield say("The model is a {name} of {number} terms with whole-number points.", name=name, number=number)
    elif facts.has(SUMMARY, "trees", "trees"):
        trees, depth = facts.value(SUMMARY, "trees", "trees"), facts.value(SUMMARY, "trees", "depth")
        yield say("The model is a {name}: {trees} trees of depth {depth}.", name=name, trees=trees, depth=depth)
    elif facts.get(SUMMARY, "shapes", "columns"):
        columns = facts.value(SUMMARY, "shapes", "columns")
        used = facts.derive(sum(bool(c.get("used", True)) for c in columns.value), "columns with an effect", columns)
        number = facts.derive(len(columns.value), "columns", columns)
        yield say("The model is an {name} that uses {used} of {number} columns.", name=name, used=used, number=number)
    elif facts.get(SUMMARY, "parameters"):
        yield say("The model is a {name} with {size} parameters.", name=name, size=facts.value(SUMMARY, "parameters"))
    else:
        yield say("The model is a {name}.", name=name)


def state_training(facts: Facts) -> Iterator[Statement]:
    """State the method that fitted the model."""
    method, rounds = facts.value(SUMMARY, "method"), facts.value(SUMMARY, "rounds")
    if is_from_sums(facts):
        yield say(
            "Method '{method}' fitted it from sums over sites in {rounds} exchanges.", method=method, rounds=rounds
        )
    else:
        yield say("Method '{method}' trained it in {rounds} rounds.", method=method, rounds=rounds)
    if facts.get(SUMMARY, "stopped") and not is_from_sums(facts):
        yield say("Training ended early: {stopped}.", stopped=facts.value(SUMMARY, "stopped"))
    if facts.get(SUMMARY, "models"):
        models = facts.value(SUMMARY, "models")
        number = facts.derive(len(set(models.value.values())), "different model files", models)
        yield say("Sites have {number} separate models; each site is scored with its own.", number=number)


def tabulate_settings(facts: Facts) -> Table:
    """Tabulate the settings of model building."""
    named = (facts.get(SUMMARY, "method"), facts.get(SUMMARY, "model"))
    way = next((key for key in ("card", "trees", "estimates", "shapes") if facts.get(SUMMARY, key)), None)
    way = way or next((str(name) for name in named if name in _SETTINGS), "gradient")
    rows: list[tuple[str | Value, ...]] = [
        (name, facts.value(PLAN, *path, show="g")) for name, path in _SETTINGS[way] if facts.has(PLAN, *path)
    ]
    return Table("Settings of model building", ("setting", "value"), tuple(rows), (facts.source(PLAN),))


def state_imbalance(facts: Facts) -> Iterator[Statement]:
    """State the methods against class imbalance, and any recalibration after them."""
    if not classifies(facts):
        raise MissingFact("the outcome has no classes")
    weights = facts.get(PLAN, "train", "class_weights", default="none")
    source = facts.source(PLAN, "train", "class_weights")
    if weights == "none":
        yield say("No method against class imbalance was used: all rows have the same weight in training.", source)
    elif weights == "balanced":
        yield say("Classes are weighted in the loss by the inverse of their frequency.", source)
    else:
        yield say("Classes are weighted in the loss: {weights}.", weights=facts.value(PLAN, "train", "class_weights"))
    if is_defined(facts.get(SUMMARY, "event", "share")):
        yield say(
            "The event has a share of {share} of training rows.",
            share=facts.value(SUMMARY, "event", "share", show=".1%"),
        )
    yield from state_calibration(facts)


def state_calibration(facts: Facts) -> Iterator[Statement]:
    """State the calibration after training."""
    if facts.has(SUMMARY, "platt"):
        slope, intercept = (facts.value(SUMMARY, "platt", k, show=".3f") for k in ("slope", "intercept"))
        yield say(
            "Platt scaling was fitted to validation rows: slope {slope}, intercept {intercept}.",
            slope=slope,
            intercept=intercept,
        )
    elif facts.has(SUMMARY, "temperature"):
        value = facts.value(SUMMARY, "temperature", show=".3f")
        yield say("Predictions were calibrated by a temperature of {value}, fitted to validation rows.", value=value)
    else:
        yield say(
            "The common model was not recalibrated after training.", facts.source(PLAN, "evaluation", "calibrate")
        )


def state_threshold_choice(facts: Facts) -> Iterator[Statement]:
    """State how the threshold of decisions was found."""
    if not classifies(facts):
        yield say("The model makes no classification, so there is no threshold.", facts.source(SUMMARY, "task"))
        return
    if not has_event(facts):
        yield say(
            "A decision is the class with the largest probability; there is no threshold.",
            facts.source(SUMMARY, "classes"),
        )
        return
    rule = facts.get(PLAN, "evaluation", "threshold", default="half")
    source = facts.source(PLAN, "evaluation", "threshold")
    if rule == "youden":
        yield say(
            "The threshold has the largest sum of sensitivity and specificity on validation rows of all sites.", source
        )
    elif rule == "specificity":
        target = facts.value(PLAN, "evaluation", "specificity", show=".0%")
        yield say(
            "The threshold is the lowest with a specificity of {target} on validation rows of all sites.", target=target
        )
    else:
        yield say("The threshold was not chosen by data: it is one half.", source)


def state_prediction(facts: Facts) -> Iterator[Statement]:
    """State how predictions of the evaluation were calculated."""
    if not has_test_rows(facts):
        raise MissingFact(NO_TEST)
    where = "Each site" if is_deployed(facts) else "Each simulated site"
    yield say(
        f"{where} applied the final model to its own test rows.",
        facts.source(SUMMARY, "per_site"),
    )
    yield say(
        "`rounds predict RUN --table FILE` calculates predictions for new patients with the same file.",
        facts.source(SUMMARY, "model"),
    )


def state_specification(facts: Facts) -> Iterator[Statement]:
    """State where the full model is, and the command that writes it for other programs."""
    yield say(
        "model.safetensors has all parameters, the preparation of columns and the threshold.",
        facts.source(SUMMARY, "model"),
    )
    model = facts.get(SUMMARY, "model")
    if model in ("logistic", "linear") or facts.get(SUMMARY, "estimates"):
        yield say(
            "`rounds export RUN --to json` writes the formula: coefficients and preparation.",
            facts.source(SUMMARY, "model"),
        )
    if facts.get(SUMMARY, "card"):
        yield say(
            "`rounds card RUN` writes the card as one page that people can use without a computer.",
            facts.source(SUMMARY, "card"),
        )


def tabulate_coefficients(facts: Facts) -> Iterator[Table]:
    """Tabulate the coefficients of a regression in original units, or the terms of a risk card; nothing for other models."""
    if facts.get(SUMMARY, "card", "terms"):
        terms = facts.raw(SUMMARY, "card", "terms")
        rows: list[tuple[str | Value, ...]] = [
            (
                facts.value(SUMMARY, "card", "terms", k, "text"),
                facts.value(SUMMARY, "card", "terms", k, "points", show="+d"),
            )
            for k in range(len(terms))
        ]
        yield Table("Risk card", ("term", "points"), tuple(rows))
        totals = facts.get(SUMMARY, "card", "totals", default=[])
        if totals:
            yield Table(
                "Risk by total points",
                ("points", "risk (95% interval)"),
                tuple(_total(facts, k) for k in range(len(totals))),
            )
    coefficients = facts.get(SUMMARY, "estimates", "original", "coefficients", default=[])
    if 0 < len(coefficients) <= _MOST_TERMS:
        rows = []
        for k, c in enumerate(coefficients):
            path = ("estimates", "original", "coefficients", k)
            name = facts.value(SUMMARY, *path, "name")
            if not is_defined(c.get("estimate")):
                rows.append((name, "-", str(c.get("reason") or "-")))
                continue
            ends = (
                f"{c['low']:.4g} to {c['high']:.4g}" if is_defined(c.get("low")) and is_defined(c.get("high")) else "-"
            )
            interval = facts.derive(
                [c.get("low"), c.get("high")], "95% interval", facts.source(SUMMARY, *path), text=ends
            )
            rows.append((name, facts.value(SUMMARY, *path, "estimate", show=".4g"), interval))
        yield Table("Coefficients in original units", ("input", "coefficient", "95% interval"), tuple(rows))


def _total(facts: Facts, k: int) -> tuple[str | Value, ...]:
    total = facts.raw(SUMMARY, "card", "totals", k)
    source = facts.source(SUMMARY, "card", "totals", k)
    points = f"{total['from']}" if total["from"] == total["to"] else f"{total['from']} to {total['to']}"
    risk = f"{total['risk']:.1%}"
    if is_defined(total.get("low")) and is_defined(total.get("high")):
        risk += f" ({total['low']:.1%} to {total['high']:.1%})"
    return facts.derive([total["from"], total["to"]], "totals", source, text=points), facts.derive(
        total["risk"], "risk", source, text=risk
    )


def state_code(facts: Facts) -> Iterator[Statement]:
    """State the program and the file that repeat the analysis."""
    yield say(
        "The analysis was made by Grand Rounds {version}, under the Apache licence 2.0.",
        version=facts.value(ENVIRONMENT, "packages", "grandrounds"),
    )
    digest = (
        facts.derive(facts.evidence.digest(EXPERIMENT), "SHA-256 of the file", facts.source(EXPERIMENT))
        if EXPERIMENT in facts.evidence.files
        else None
    )
    if digest is None:
        raise MissingFact(f"the run has no {EXPERIMENT}")
    yield say(
        "`rounds run experiment.toml` repeats it with all settings; the file has the SHA-256 {digest}.", digest=digest
    )


def state_events_per_parameter(facts: Facts) -> Statement:
    """State the events among training rows for each parameter of the model."""
    events = defined(facts, "training", "events", reason="events among training rows are not known", show=",.0f")
    size = facts.value(SUMMARY, "parameters")
    if not size.value or not events.value:
        raise MissingFact("events for each parameter are not defined for this model")
    each = facts.derive(events.value / size.value, "training.events / parameters", events, size, show=".2g")
    return say(
        "Training rows have {events} events for {size} parameters: {each} events for each.",
        events=events,
        size=size,
        each=each,
    )
