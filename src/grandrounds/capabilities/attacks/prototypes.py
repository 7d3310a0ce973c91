"""Model inversion: the most typical input of each class is rebuilt from the model, and compared with patients.

The attacker of Fredrikson et al. (2015) looks for the input with the largest probability of a class. For tables the search tries
agreed values of every column and prefers common ones; for images it climbs the gradient from a grey image. A prototype
shows what a class looks like in general, and is a leak only if training patients lie closer to it than other patients do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.attacks.findings import AttackedRun
from grandrounds.core.arrays import Array, read_json
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.data.design import multiply
from grandrounds.data.encoding import Encoding, class_numbers
from grandrounds.models.dense import class_probabilities
from grandrounds.privacy.attacks.membership import Attack, judged
from grandrounds.runs.model import TrainedModel
from grandrounds.site.evaluate import score

NAME = "model inversion"
_STEPS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Values of a number that are tried, in standard deviations."""
_PASSES = 12
_GAIN = 1e-9
"""Smallest gain in log-probability of a change."""
_CLIMBS, _RATE = 60, 0.05
_MOST_ROWS = 2000


@dataclass(frozen=True, eq=False)
class Prototypes:
    """The most typical input of each class.

    Attributes:
        classes: Names of the classes.
        inputs: Encoded inputs, (C, ...).
        probability: The model's probability of the class at its prototype, (C,).
        values: For tables, by class: columns that differ from an average patient, with their value.
        attack: Distances of training patients and of others to the prototype of their class, as an attack; None without rows.
    """

    classes: tuple[str, ...]
    inputs: Array
    probability: Array
    values: Mapping[str, Mapping[str, str]]
    attack: Attack | None = None

    def sentences(self) -> list[str]:
        """Explain the result in sentences."""
        if self.attack is None:
            return [
                f"Model inversion rebuilt a typical input of {len(self.classes)} classes (in attacks.json). The rows are not on "
                "this machine, so it cannot be compared with patients."
            ]
        a = self.attack
        clear = a.low == a.low and a.low > 0.5
        verdict = (
            "training patients lie closer to the model's prototypes than others: the model reveals something of them"
            if clear
            else "the prototypes are not clearly closer to training patients than to others"
        )
        return [
            f"Model inversion: {verdict} (AUC {a.auc:.3f}, 95% CI {_shown(a.low)} to {_shown(a.high)}; 0.5 is no difference)."
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the part `prototypes` of attacks.json."""
        return {
            "attack": None if self.attack is None else self.attack.to_dict(),
            "classes": {
                name: {"probability": float(p), "values": dict(self.values.get(name, {}))}
                for name, p in zip(self.classes, self.probability, strict=True)
            },
            "sentences": self.sentences(),
        }


def invert_model(attacked: AttackedRun) -> Prototypes | None:
    """Rebuild the prototypes of a model of classes and compare them with patients.

    Args:
        attacked: The run, with or without rows.

    Returns:
        The prototypes; None for a model that has no gradient and reads images, or predicts no class.
    """
    if not attacked.is_classification:
        return None
    model = attacked.run.model
    if isinstance(model.encoding, Encoding):
        inputs, values = _invert_table(model, model.encoding, _spreads(attacked, model.encoding))
    elif model.net.kernel == "torch":
        inputs, values = _invert_images(model), {}
    else:
        return None
    p = _probabilities(model, inputs)
    classes = tuple(str(c) for c in model.encoding.classes)
    return Prototypes(classes, inputs, np.diag(p), values, _compare(attacked, model, inputs))


def _compare(attacked: AttackedRun, model: TrainedModel, prototypes: Array) -> Attack | None:
    """Judge how much closer training rows are to the prototype of their class than other rows."""
    if attacked.run_rows is None or attacked.chosen is None:
        return None
    rng = generator(int(attacked.plan.seed), purpose="model inversion")
    member = attacked.chosen.member
    parts = [np.flatnonzero(member), np.flatnonzero(~member)]
    places = np.concatenate([rng.permutation(p)[:_MOST_ROWS] for p in parts])
    data = attacked.run_rows.consortium.data.take(attacked.chosen.rows[places])
    encoding: Any = model.encoding
    known = np.isin(data.label, encoding.classes)
    data, places = data.take(known), places[known]
    x = np.asarray(encoding.encode(data, model.theta.dtype), float).reshape(len(data), -1)
    y = class_numbers(data.label, list(encoding.classes), where=data.name)
    nearest = prototypes.reshape(len(prototypes), -1)[y]
    scale = x.std(axis=0)
    distance = np.sqrt((((x - nearest) / np.where(scale > 0, scale, 1.0)) ** 2).sum(axis=1))
    return judged(NAME, -distance, member[places])


def _spreads(attacked: AttackedRun, encoding: Encoding) -> dict[str, tuple[float, float]]:
    """Return middle and deviation of each number as an attacker knows them: from the model file, or published with the run."""
    published: dict[str, Array] = {}
    path = attacked.run.folder / "percentiles.json"
    if encoding.by_column and path.exists():
        try:
            numeric = read_json(path)["numeric"]
            published = {str(name): np.array(numeric[name].get("quantiles", ()), float) for name in numeric}
        except (BadInput, LookupError, TypeError, ValueError, AttributeError):
            pass  # damaged: the attacker has the file's other values
    ranges = attacked.plan.data.plain()["ranges"]
    out = {}
    for rule in encoding.numeric:
        known = published.get(rule.name, np.empty(0))
        if not encoding.by_column:
            out[rule.name] = (rule.centre, rule.scale)
        elif len(known) > 1:
            low, middle, high = np.quantile(known, [0.16, 0.5, 0.84])
            out[rule.name] = (float(middle), float(high - low) / 2)
        elif rule.name in ranges:
            low, high = ranges[rule.name]
            out[rule.name] = ((low + high) / 2, (high - low) / 4)
        else:
            out[rule.name] = (rule.fill, max(abs(rule.fill) / 4, 1.0))
    return out


def _invert_table(
    model: TrainedModel, encoding: Encoding, spreads: Mapping[str, tuple[float, float]]
) -> tuple[Array, dict[str, dict[str, str]]]:
    """Search each class's prototype from an average patient: the best value of every column, until nothing improves."""
    blocks = list(_column_inputs(encoding, spreads).items())
    owner = np.repeat(np.arange(len(blocks)), [len(choices) for _, (_, choices) in blocks])
    number = np.concatenate([np.arange(len(choices)) for _, (_, choices) in blocks])
    prior = [np.array([weight for _, weight, _ in choices]) for _, (_, choices) in blocks]
    width = len(encoding.features) - len(encoding.product_places)

    def build(chosen: Array) -> Array:
        x = np.zeros(width)
        for (_, (places, choices)), k in zip(blocks, chosen.tolist(), strict=True):
            x[places] = choices[k][0]
        return x

    def value(tried: Array, weights: Array, c: int) -> Array:
        p = _probabilities(model, _with_products(encoding, tried))[:, c]
        gain: Array = np.log(np.maximum(p, 1e-300)) + weights
        return gain

    found, values = [], {}
    for c, word in enumerate(encoding.classes):
        chosen = np.zeros(len(blocks), np.int64)
        best = float(value(build(chosen)[None], np.zeros(1), c)[0])
        for _ in range(_PASSES):
            tried = np.repeat(build(chosen)[None], len(owner), axis=0)
            weights = np.full(len(owner), sum(w[k] for w, k in zip(prior, chosen, strict=True)))
            for row, (j, k) in enumerate(zip(owner.tolist(), number.tolist(), strict=True)):
                places, choices = blocks[j][1]
                tried[row, places] = choices[k][0]
                weights[row] += prior[j][k] - prior[j][chosen[j]]
            gains = value(tried, weights, c)
            single, together = chosen.copy(), chosen.copy()
            top = int(gains.argmax())
            single[owner[top]] = number[top]
            for j in range(len(blocks)):
                mine = np.flatnonzero(owner == j)
                k = mine[gains[mine].argmax()]
                together[j] = number[k] if gains[k] > best + _GAIN else chosen[j]
            options = np.stack([single, together])
            totals = [sum(w[k] for w, k in zip(prior, option, strict=True)) for option in options]
            reached = value(np.stack([build(option) for option in options]), np.array(totals), c)
            if reached.max() <= best + _GAIN:
                break
            chosen, best = options[int(reached.argmax())], float(reached.max())
        found.append(_with_products(encoding, build(chosen)[None])[0])
        values[str(word)] = {name: choices[k][2] for (name, (_, choices)), k in zip(blocks, chosen.tolist(), strict=True) if k}
    return np.stack(found), values


def _column_inputs(
    encoding: Encoding, spreads: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[Array, list[tuple[Array, float, str]]]]:
    """Return, by column, its places among the inputs and its choices: inputs, log-prior and text; the first is the average."""
    features = encoding.features[: len(encoding.features) - len(encoding.product_places)]
    sources = encoding.sources[: len(features)]
    places: dict[str, list[int]] = {}
    for j, source in enumerate(sources):
        places.setdefault(source, []).append(j)
    out = {}
    for rule in encoding.numeric:
        mine = np.array(places[rule.name])
        choices = []
        for z in sorted(_STEPS, key=lambda s: (abs(s), s)):
            middle, deviation = spreads[rule.name]
            value = float(np.clip(middle + z * deviation, rule.low, rule.high))
            inputs = np.zeros(len(mine))
            inputs[0] = (value - rule.centre) / rule.scale
            choices.append((inputs, -0.5 * z * z, f"{value:.4g}"))
        out[rule.name] = (mine, choices)
    for cat in encoding.categorical:
        mine = np.array(places.get(cat.name, ()), int)
        if len(mine):
            inputs_of = [np.zeros(len(mine)), *np.eye(len(mine))]
            words = [cat.baseline or "none of the levels", *(features[j].removeprefix(f"{cat.name}=") for j in mine)]
            out[cat.name] = (mine, [(inputs, 0.0, word) for inputs, word in zip(inputs_of, words, strict=True)])
    return out


def _invert_images(model: TrainedModel) -> Array:
    """Climb the probability of each class from a grey image, by the gradient of the loss at the inputs."""
    from grandrounds.explain.explainers.gradients import loss_slopes

    outputs, classes = model.net.outputs, len(model.encoding.classes)
    x = np.zeros((classes, *model.encoding.inputs), model.theta.dtype)
    target = np.eye(classes, dtype=x.dtype) if outputs > 1 else np.arange(classes, dtype=x.dtype)[:, None]
    for _ in range(_CLIMBS):
        slope = loss_slopes(model.net, model.theta[None], x, target)[0]
        size = np.sqrt((slope.reshape(classes, -1) ** 2).mean(axis=1)).reshape(-1, *[1] * (x.ndim - 1))
        x = x - _RATE * slope / np.maximum(size, 1e-12) - 0.01 * _RATE * x
    return x


def _with_products(encoding: Encoding, x: Array) -> Array:
    return np.concatenate([x, multiply(x, encoding.product_places)], axis=1) if encoding.products else x


def _probabilities(model: TrainedModel, x: Array) -> Array:
    p: Array = class_probabilities(np.asarray(score(model.net, model.theta, np.asarray(x, model.theta.dtype)), float))
    return p


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
