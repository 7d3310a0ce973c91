"""Questions to the models in use of a run: the log-likelihood of each patient's outcome, and inputs as a model reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION, COUNT, SURVIVAL
from grandrounds.data.encoding import class_numbers
from grandrounds.data.kinds import Holdings, outcome_of
from grandrounds.privacy.attacks.membership import confidence
from grandrounds.runs.model import TrainedModel
from grandrounds.site.evaluate import score
from grandrounds.site.tasks import task_of_class

if TYPE_CHECKING:
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows


@dataclass(frozen=True, eq=False)
class ModelQuery:
    """The models in use at the sites of some rows.

    Attributes:
        data: The rows.
        models: Models with the rows that they are for, (n,) bool, and the task of their sites ("" is the main one).
        hazard: Survival: cumulative hazard at each row's time, (n,), for an average patient.
        spread: Regression: standard deviation of the model's errors on patients who were not trained on.
    """

    data: Holdings
    models: tuple[tuple[TrainedModel, Array, str], ...]
    hazard: Array | None = None
    spread: float = 1.0

    @classmethod
    def build(cls, run: Run, run_rows: RunRows, rows: Array, site: Array, member: Array) -> ModelQuery:
        """Find the models of these rows.

        Args:
            run: A finished run.
            run_rows: Its rows.
            rows: Numbers of the rows, (n,).
            site: The site of each.
            member: True where a row was trained on; what an attacker learns about errors comes from the others.
        """
        stack = run_rows.consortium.stack
        task = dict(zip(stack.names, stack.tasks or ("",) * len(stack.names), strict=True))
        files: Mapping[str, str] = run.summary["models"]
        ways = {name: (files.get(name), task[name]) for name in dict.fromkeys(site.tolist())}
        models = []
        for way in dict.fromkeys(ways.values()):
            mine = np.isin(site.astype(str), [name for name, other in ways.items() if other == way])
            models.append((run.model if way[0] is None else run.model_at(way[0]), mine, way[1]))
        query = cls(run_rows.consortium.data.take(rows), tuple(models))
        if run.summary.task == CLASSIFICATION:
            return query
        outputs = query.outputs(query.data)[:, 0]
        if run.summary.task == SURVIVAL:
            assert query.data.duration is not None  # type: ignore[union-attr]
            hazard = _cumulative_hazard(query._labels(), query.data.duration, outputs, ~member)  # type: ignore[union-attr]
            return cls(query.data, query.models, hazard=hazard)
        errors = (query._labels() - outputs)[~member]
        return cls(query.data, query.models, spread=max(float(errors.std()), 1e-6))

    @property
    def model(self) -> TrainedModel:
        """The first model, whose encoding all share."""
        return self.models[0][0]

    def outputs(self, data: Holdings) -> Array:
        """Compute the outputs (n, C) of each row's model for these rows, which replace those of the query."""
        return self._outputs([data])[0]

    def _outputs(self, variants: Sequence[Holdings]) -> list[Array]:
        """Compute the outputs of several variants of the rows; models score them all at once."""
        out: list[Array] = []
        for model, mine, _ in self.models:
            x = [_encode(model, data if mine.all() else data.take(mine)) for data in variants]
            z = np.asarray(score(model.net, model.theta, np.concatenate(x)), float).reshape(len(variants), int(mine.sum()), -1)
            out = out or [np.full((len(data), z.shape[2]), np.nan) for data in variants]
            for filled, part in zip(out, z, strict=True):
                filled[mine] = part
        return out

    def log_likelihoods(self, variants: Sequence[Holdings]) -> Array:
        """Compute the log-likelihood (n, V) of each row's own outcome under its model, for changed rows.

        Args:
            variants: The rows of the query, each time with another value in some column.

        Returns:
            Of classes log p; of numbers and counts the Gaussian and Poisson log-density up to a constant; of survival that of
            the event and the follow-up time at the hazard of an average patient.
        """
        return np.stack([self._log_likelihood(z) for z in self._outputs(variants)], axis=1)

    def _log_likelihood(self, z: Array) -> Array:
        outcome = outcome_of(self.model.encoding)
        if outcome is None:
            out = np.empty(len(z))
            for mine, logits, y in self.classes(z):
                out[mine] = -np.logaddexp(0.0, -confidence(logits, y))
            return out
        y, s = self._labels(), z[:, 0]
        if outcome.task == SURVIVAL:
            assert self.hazard is not None
            survival: Array = y * s - self.hazard * np.exp(np.clip(s, -30, 30))
            return survival
        if outcome.task == COUNT:
            count: Array = y * s - np.exp(np.clip(s, -30, 30))
            return count
        number: Array = -((y - s) ** 2) / (2 * self.spread**2)
        return number

    def classes(self, z: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield rows, their logits within their task, and class numbers."""
        for model, mine, task in self.models:
            words, tasks = model.encoding.classes, list(model.spec.get("tasks", []))
            places = [c for c, word in enumerate(words) if task_of_class(word, tasks) == task]
            logits = z[mine][:, places] if len(places) < len(words) else z[mine]
            yield mine, logits, class_numbers(self.data.label[mine], [words[c] for c in places], where=self.data.name)

    def _labels(self) -> Array:
        """Return outcomes in the units of the model's output."""
        encoding: Any = self.model.encoding
        outcome = outcome_of(encoding)
        y = np.asarray(encoding.labels(self.data), float)
        assert outcome is not None
        return y if outcome.task == SURVIVAL else outcome.standardise(y) if outcome.task != COUNT else y / outcome.scale


def encode_rows(model: TrainedModel, data: Holdings) -> Array:
    """Encode rows as a model reads them, (n, d)."""
    return np.asarray(_encode(model, data), float)


def _encode(model: TrainedModel, data: Holdings) -> Array:
    encoding: Any = model.encoding
    x: Array = encoding.encode(data, model.theta.dtype)
    return x


def _cumulative_hazard(event: Array, time: Array, score: Array, used: Array) -> Array:
    """Estimate the cumulative baseline hazard at every row's time by Breslow's formula, from the rows that are used."""
    order = np.argsort(time[used], kind="stable")
    t, d, risk = time[used][order], event[used][order], np.exp(np.clip(score[used][order], -30, 30))
    at_risk = np.cumsum(risk[::-1])[::-1]
    total = np.concatenate([[0.0], np.cumsum(d / np.maximum(at_risk, 1e-12))])
    out: Array = total[np.searchsorted(t, time, side="right")]
    return out
