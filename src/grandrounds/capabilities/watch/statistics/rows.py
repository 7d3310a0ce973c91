"""Rows of patients as the watch reads them: plain arrays by column, without files or runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

MISSING_CATEGORY, UNSEEN_CATEGORY = -1, -2
"""Codes of a category that is missing, and of one that the model was not trained on."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Values, scores, explanations and labels of n rows. Leave out what is not known.

    Attributes:
        numbers: Values (n,) of each numeric column, NaN where missing.
        categories: Codes (n,) of each categorical column from 0 on, -1 where missing, -2 for a category unseen in training.
        score: Predicted risk of the event (n,), or probabilities of several classes (n, k).
        attributions: Attribution (n,) of each column to the prediction: the sum over the model inputs of that column.
        label: 1 for the event and 0 otherwise, or the number of the class (n,); NaN where not known yet.
        patient: Patient of each row (n,). Rows of one patient in one call count as one patient, at the place of its first row.
            None: each row is a patient.
    """

    numbers: Mapping[str, Array] = field(default_factory=dict)
    categories: Mapping[str, Array] = field(default_factory=dict)
    score: Array | None = None
    attributions: Mapping[str, Array] = field(default_factory=dict)
    label: Array | None = None
    patient: Array | None = None

    def __post_init__(self) -> None:
        parts = [*self.numbers.values(), *self.categories.values(), *self.attributions.values()]
        parts += [a for a in (self.score, self.label, self.patient) if a is not None]
        if len({len(a) for a in parts}) > 1:
            raise BadInput(
                "columns of patients to watch have different lengths: give one value for each row", code="watch-rows"
            )

    def __len__(self) -> int:
        for part in (self.score, self.label, self.patient):
            if part is not None:
                return len(part)
        for columns in (self.numbers, self.categories, self.attributions):
            for column in columns.values():
                return len(column)
        return 0

    @property
    def risks(self) -> Array | None:
        """Probabilities (n, k) of the classes that are watched: the event alone, or every one of several classes."""
        if self.score is None:
            return None
        score = np.asarray(self.score, np.float64)
        return score[:, None] if score.ndim == 1 else score

    def take(self, rows: Array) -> Rows:
        """Return the rows at these places, in this order."""
        return Rows(
            numbers={name: values[rows] for name, values in self.numbers.items()},
            categories={name: codes[rows] for name, codes in self.categories.items()},
            score=None if self.score is None else self.score[rows],
            attributions={name: values[rows] for name, values in self.attributions.items()},
            label=None if self.label is None else self.label[rows],
            patient=None if self.patient is None else self.patient[rows],
        )

    def group_patients(self) -> Array | None:
        """Number the patients (n,) by their first row; None if each row is a patient of its own."""
        if self.patient is None:
            return None
        words, first, place = np.unique(self.patient.astype(str), return_index=True, return_inverse=True)
        if len(words) == len(self.patient):
            return None
        order = np.empty(len(words), np.int64)
        order[np.argsort(first, kind="stable")] = np.arange(len(words))
        return order[place.ravel()]


def mean_by_patient(values: Array, patients: Array | None) -> Array:
    """Average (n, q) over the rows of each patient, without NaN; NaN where a patient has no value."""
    if patients is None:
        return values
    count = int(patients.max()) + 1 if len(patients) else 0
    known = ~np.isnan(values)
    sums, seen = np.zeros((count, values.shape[1])), np.zeros((count, values.shape[1]))
    np.add.at(sums, patients, np.where(known, values, 0.0))
    np.add.at(seen, patients, known)
    with np.errstate(invalid="ignore"):
        return sums / seen
