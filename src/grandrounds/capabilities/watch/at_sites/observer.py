"""Read patients through the model that a site uses: values, scores, feature attributions and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from grandrounds.capabilities.watch.at_sites.patients import Patients, WatchedColumn
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.rng import generator, hash_words, mix_bits
from grandrounds.data.dataset import Dataset, read_new_rows
from grandrounds.data.encoding import Encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import task_of
from grandrounds.data.table import Table, to_text
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.features import Features
from grandrounds.runs.model import Predictions, TrainedModel
from grandrounds.site.tasks import task_of_class

BACKGROUND = 50
"""Validation rows that an attribution compares a patient with; a single case has more, but here all patients are explained."""

_EXACT, _PATHS, _HIDING = "exact Shapley values", "path gradients", "hiding one column at a time"
_UNBOUNDED = 1e299  # a range of an encoding that clips nothing
_IMAGE_COLUMNS = ("brightness", "contrast", "detail")


@dataclass(frozen=True, eq=False)
class Observer:
    """Reads patients through the model that a site uses.

    Attributes:
        model: The model.
        background: (B, d) inputs that attributions compare a patient with; none for images.
        task: The site's task; "" is the main one.
        seed: Of the choice of background rows.
    """

    model: TrainedModel
    background: Array
    task: str = ""
    seed: int = 0
    _steps: int = field(default=4, repr=False)

    @classmethod
    def from_rows(cls, model: TrainedModel, rows: Table | ImageSet, *, task: str = "", seed: int = 0) -> Observer:
        """Choose background rows among the baseline.

        Args:
            model: The model that the site uses.
            rows: The baseline: validation rows of the site.
            task: The site's task.
            seed: The run's seed.
        """
        if isinstance(rows, ImageSet):
            return cls(model, np.empty((0, 0)), task, seed)
        order = generator(seed, purpose="watch-background").permutation(len(rows))[:BACKGROUND]
        x, _ = _encode(model, rows.take(np.sort(order)))
        return cls(model, x, task, seed)

    @property
    def is_classification(self) -> bool:
        return bool(task_of(self.model.encoding) == CLASSIFICATION)

    @property
    def has_outcomes(self) -> bool:
        """True if labels are outcomes of the score: of classifications, for the main task."""
        return self.is_classification and not self.task

    @property
    def is_binary(self) -> bool:
        """True if the score is the risk of one event."""
        return self.is_classification and self.model.event_of(self.task) is not None

    @cached_property
    def columns(self) -> tuple[WatchedColumn, ...]:
        """The columns of the model's inputs."""
        encoding = self.model.encoding
        if not isinstance(encoding, Encoding):
            return tuple(WatchedColumn(name, is_image=True) for name in _IMAGE_COLUMNS)
        assert self.model.schema is not None
        orders = {c.name: c.order for c in self.model.schema.numeric_like}
        numbers = [
            WatchedColumn(
                rule.name,
                low=rule.low if abs(rule.low) < _UNBOUNDED else -np.inf,
                high=rule.high if abs(rule.high) < _UNBOUNDED else np.inf,
                order=orders.get(rule.name, ()),
            )
            for rule in encoding.numeric
        ]
        categories = [
            WatchedColumn(rule.name, levels=tuple(sorted({*rule.levels, *([rule.baseline] if rule.baseline else [])})))
            for rule in encoding.categorical
        ]
        return (*numbers, *(c for c in categories if c.levels))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The columns that attributions are for; empty for images."""
        return () if self._features is None else self._features.names

    @cached_property
    def explainer(self) -> str:
        """How patients are explained; "" where they are not."""
        if self._features is None:
            return ""
        from grandrounds.capabilities.cases.attributions import is_linear
        from grandrounds.models.protocol import GRADIENT_FREE

        try:
            self._signed(self.background[:1], np.zeros(1, np.int64))
        except (BadInput, ImportError):
            return _HIDING
        return _EXACT if self.model.net.kernel in GRADIENT_FREE or is_linear(self.model.net) else _PATHS

    @property
    def watched(self) -> tuple[str, ...]:
        """Sentences on what is watched."""
        lines = [f"inputs: {len(self.columns)} columns"]
        if self._features is None:
            lines = ["inputs: brightness, contrast and detail of images; images are not explained one by one"]
        lines.append("scores: " + self.score_name)
        if self.explainer:
            lines.append(f"explanations: feature attributions of each patient, by {self.explainer}")
        if self.is_binary and self.has_outcomes:
            lines.append("outcomes, as labels arrive: prevalence, calibration, discrimination and net benefit")
        elif self.has_outcomes:
            lines.append("outcomes, as labels arrive: prevalence, calibration and discrimination of each class")
        else:
            lines.append("outcomes: not watched, because their checks are for the main task of a classification")
        return tuple(lines)

    @property
    def score_name(self) -> str:
        """The score as text."""
        if not self.is_classification:
            return "the model's prediction"
        event = self.model.event_of(self.task)
        return "the probability of the predicted class" if event is None else f"the risk of {self.event_name}"

    @property
    def event_name(self) -> str:
        """The event as text: "died", or "outcome = 1" where the class says nothing alone; "" without one."""
        event = self.model.event_of(self.task) if self.is_classification else None
        if event is None:
            return ""
        return event.word if len(event.word) > 3 or not event.label else f"{event.label} = {event.word}"

    def observe_inputs(self, rows: Table, outcomes: Array | None) -> Patients:
        """Read values and labels of patients without scores and attributions: for training rows of the site."""
        table, unseen = self._separate_unknown_levels(rows)
        assert self.model.schema is not None
        numbers, categories, more = self._read_columns(read_new_rows(table, self.model.schema))
        n = len(table)
        label = self._labels(n, outcomes)
        none = np.empty((n, 0))
        return Patients(numbers, categories, {**unseen, **more}, np.full((n, 1), np.nan), none, label, np.zeros(n, np.uint64))

    def hash_rows(self, rows: Table | ImageSet) -> Array:
        """Hash the model's inputs of each patient (n,), without scoring them."""
        if isinstance(rows, ImageSet):
            return _hash_images(rows)
        table, unseen = self._separate_unknown_levels(rows)
        assert self.model.schema is not None
        numbers, categories, more = self._read_columns(read_new_rows(table, self.model.schema))
        return _hash_inputs(numbers, categories, {**unseen, **more})

    def observe(self, rows: Table | ImageSet, outcomes: Array | None = None) -> Patients:
        """Read patients.

        Args:
            rows: The patients' rows.
            outcomes: (n,) object: the label of each patient as text, None where it is not known; None: no labels.

        Raises:
            BadInput: The rows do not fit the model, or a label is not one of its classes.
        """
        if isinstance(rows, ImageSet):
            return self._observe_images(rows, outcomes)
        table, unseen = self._separate_unknown_levels(rows)
        x, data = _encode(self.model, table)
        prediction = self.model.predict(table, task=self.task, corrected=True)
        numbers, categories, more = self._read_columns(data)
        return Patients(
            numbers,
            categories,
            {**unseen, **more},
            _risks(prediction),
            self._explain(x, prediction),
            self._labels(len(x), outcomes),
            _hash_inputs(numbers, categories, {**unseen, **more}),
            prediction.notes,
        )

    def _observe_images(self, rows: ImageSet, outcomes: Array | None) -> Patients:
        prediction = self.model.predict(rows, task=self.task, corrected=True)
        pixels = rows.pixels.astype(np.float32) / 255
        flat = pixels.reshape(len(pixels), -1)
        detail = [np.abs(np.diff(pixels, axis=axis)).mean(axis=(1, 2, 3)) for axis in (1, 2)]
        values = (flat.mean(axis=1), flat.std(axis=1), (detail[0] + detail[1]) / 2)
        numbers = {name: v.astype(float) for name, v in zip(_IMAGE_COLUMNS, values, strict=True)}
        none, known = np.empty((len(rows), 0)), self._labels(len(rows), outcomes)
        return Patients(numbers, {}, {}, _risks(prediction), none, known, _hash_images(rows), prediction.notes)

    def _separate_unknown_levels(self, rows: Table) -> tuple[Table, dict[str, dict[int, str]]]:
        """Read levels of an ordinal column that training did not have as missing, and list them."""
        unseen: dict[str, dict[int, str]] = {}
        replaced: dict[str, Array] = {}
        for column in self.columns:
            if column.order and column.name in rows.columns:
                words = to_text(rows.columns[column.name])
                strange = {i: w for i, w in enumerate(words.tolist()) if w is not None and w not in column.order}
                if strange:
                    unseen[column.name] = strange
                    replaced[column.name] = np.array([None if i in strange else w for i, w in enumerate(words)], object)
        return (rows.with_columns(replaced) if replaced else rows), unseen

    def _read_columns(
        self, data: Dataset
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, dict[int, str]]]:
        numbers: dict[str, Array] = {}
        categories: dict[str, Array] = {}
        unseen: dict[str, dict[int, str]] = {}
        number_place = {name: j for j, name in enumerate(data.numeric_names)}
        category_place = {name: j for j, name in enumerate(data.categorical_names)}
        for column in self.columns:
            j = (category_place if column.is_category else number_place).get(column.name)
            if not column.is_category:
                numbers[column.name] = np.full(len(data), np.nan) if j is None else data.numeric[:, j]
                continue
            if j is None:
                categories[column.name] = np.full(len(data), -1, np.int64)
                continue
            place = {level: k for k, level in enumerate(column.levels)}
            words = data.vocabulary[j]
            table = np.array([*(place.get(word, len(place)) for word in words), -1], np.int64)
            found = categories[column.name] = table[data.codes[:, j]]
            unseen[column.name] = {
                int(i): words[data.codes[i, j]] for i in np.flatnonzero(found == len(place)).tolist()
            }
        return numbers, categories, unseen

    @cached_property
    def _features(self) -> Features | None:
        encoding = self.model.encoding
        return Features.from_columns(encoding.sources) if isinstance(encoding, Encoding) else None

    def _signed(self, x: Array, outputs: Array) -> Array:
        assert self._features is not None
        shap = explainers_for(Use.TABLE_SKETCH)["shap"].load()
        explainer = shap(self._features, self.background, steps=self._steps)
        values: Array = explainer.signed(self.model.net, self.model.theta, x, outputs)
        return values

    def _explain(self, x: Array, prediction: Predictions) -> Array:
        """Return the absolute attribution (n, F) of each column to the score of the predicted class or of the event."""
        if self._features is None:
            return np.empty((len(x), 0))
        if not len(x):
            return np.empty((0, len(self.features)))
        net = self.model.net
        outputs = np.zeros(len(x), np.int64)
        if net.outputs > 1 and prediction.values is None:
            places = [self.model.encoding.classes.index(word) for word in prediction.classes]
            event = prediction.event
            chosen = prediction.probabilities.argmax(axis=1) if event is None else prediction.classes.index(event.word)
            outputs = np.broadcast_to(np.array(places)[chosen], len(x)).astype(np.int64)
        if self.explainer != _HIDING:
            return np.abs(self._signed(x, outputs)).astype(float)
        middle, rows = self.background.mean(axis=0), np.arange(len(x))
        full = np.asarray(net.logits(self.model.theta, x), float)[rows, outputs]
        out = np.empty((len(x), len(self.features)))
        for f, inputs in enumerate(self._features.groups):
            hidden = x.copy()
            hidden[:, inputs] = middle[inputs]
            out[:, f] = np.abs(full - np.asarray(net.logits(self.model.theta, hidden), float)[rows, outputs])
        return out

    def _labels(self, count: int, words: Array | None) -> Array:
        return np.full(count, np.nan) if words is None or not self.has_outcomes else self.number_labels(words)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes of the site's task."""
        tasks = list(self.model.spec.get("tasks", []))
        return tuple(word for word in self.model.encoding.classes if task_of_class(word, tasks) == self.task)

    def number_labels(self, words: Array) -> Array:
        """Number labels (n,): 1 for the event and 0 otherwise, or the number of the class; NaN where not known.

        Args:
            words: (n,) the label as text, None where it is not known.

        Raises:
            BadInput: A label is not one of the classes.
        """
        place = {word: k for k, word in enumerate(self.classes)}
        for word in words.tolist():
            if word is not None and word not in place:
                raise BadInput(
                    f"label '{word[:40]}' is not one of the model's classes ({', '.join(self.classes[:6])}): write it as in "
                    "training, or name the right column with --label",
                    code="unknown-class",
                )
        event = self.model.event_of(self.task)
        if event is not None:
            place = {word: int(word == event.word) for word in place}
        return np.array([np.nan if word is None else place[word] for word in words.tolist()])


def _encode(model: TrainedModel, table: Table) -> tuple[Array, Dataset]:
    assert model.schema is not None and isinstance(model.encoding, Encoding)
    data = read_new_rows(table, model.schema)
    return model.encoding.encode(data, model.theta.dtype), data


def _risks(prediction: Predictions) -> Array:
    if prediction.values is not None:
        return np.asarray(prediction.values, float)[:, None]
    if prediction.event is None:
        return np.asarray(prediction.probabilities, float)
    return np.asarray(prediction.risk, float)[:, None]


def _hash_images(rows: ImageSet) -> Array:
    digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in rows.pixels)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _hash_inputs(
    numbers: Mapping[str, Array], categories: Mapping[str, Array], unseen: Mapping[str, Mapping[int, str]]
) -> Array:
    """Hash the inputs of each patient (n,); equal inputs have equal hashes."""
    count = len(next(iter((*numbers.values(), *categories.values())), np.empty(0)))
    out = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for values in numbers.values():
            bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
            out = mix_bits(out * np.uint64(31) + bits)
        for places in categories.values():
            out = mix_bits(out * np.uint64(31) + places.astype(np.uint64))
        for words in unseen.values():
            if words:
                rows = np.fromiter(words, np.int64, len(words))
                out[rows] = mix_bits(out[rows] * np.uint64(31) + hash_words(list(words.values())))
    return out
