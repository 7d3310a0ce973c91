"""Patients as a watch reads them: values of the model's columns, scores, feature attributions and outcomes.

The same values describe the site's validation rows (the baseline) and new patients, so that both are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.capabilities.watch.statistics import Rows
from grandrounds.capabilities.watch.statistics.rows import UNSEEN_CATEGORY
from grandrounds.core.arrays import Array
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table, to_text


@dataclass(frozen=True)
class WatchedColumn:
    """A column of the model's inputs.

    Attributes:
        name: The column.
        levels: Its categories in training; empty for a number.
        low: Lower end of the range that the consortium agreed on; -inf where there is none.
        high: Upper end.
        order: Levels from low to high, of an ordinal column, whose numbers are 0, 1, ...
        middle: Median of the reference patients; NaN for a category, or where it is not known.
        is_image: It is a property of images, not a column of a table.
    """

    name: str
    levels: tuple[str, ...] = ()
    low: float = -np.inf
    high: float = np.inf
    order: tuple[str, ...] = ()
    middle: float = np.nan
    is_image: bool = False

    @property
    def is_category(self) -> bool:
        return bool(self.levels)


@dataclass(frozen=True, eq=False)
class Patients:
    """A block of n patients.

    Attributes:
        numbers: Column -> (n,) values, NaN where missing.
        categories: Column -> (n,) place among the column's levels, -1 where missing, the number of levels where not among them.
        unseen: Column -> place of a patient -> the word that is not among the levels.
        risks: (n, 1) risk of the event, (n, k) probabilities of three or more classes, or (n, 1) the prediction of other tasks.
        explanations: (n, F) absolute feature attributions, in the order of `Observer.features`.
        label: (n,) 1 for the event and 0 otherwise, or the number of the class; NaN where it is not known yet.
        key: (n,) uint64, a hash of the model's inputs of each patient.
    """

    numbers: Mapping[str, Array]
    categories: Mapping[str, Array]
    unseen: Mapping[str, Mapping[int, str]]
    risks: Array
    explanations: Array
    label: Array
    key: Array
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    @property
    def score(self) -> Array:
        """One number (n,) of each patient: the risk, or the probability of the predicted class."""
        return main_score(self.risks)

    @property
    def outcome(self) -> Array:
        """The outcome (n,) that the score predicts: 1 for the event, or where the predicted class is right; NaN if not known."""
        return main_outcome(self.risks, self.label)

    def take(self, rows: Array) -> Patients:
        """Select patients by their places."""
        new_place = {int(old): new for new, old in enumerate(rows.tolist())}
        return replace(
            self,
            numbers={name: values[rows] for name, values in self.numbers.items()},
            categories={name: values[rows] for name, values in self.categories.items()},
            unseen={
                name: {new_place[i]: word for i, word in words.items() if i in new_place} for name, words in self.unseen.items()
            },
            risks=self.risks[rows],
            explanations=self.explanations[rows],
            label=self.label[rows],
            key=self.key[rows],
        )


    def to_rows(self, columns: Sequence[WatchedColumn], features: Sequence[str], *, people: Array | None = None) -> Rows:
        """Return the patients as the statistics of a watch read them.

        Args:
            columns: The watched columns.
            features: The columns of the attributions.
            people: (n,) person of each row, where one has several.
        """
        numbers, categories = dict(self.numbers), {}
        for column in columns:
            if column.is_category:
                place = self.categories[column.name]
                categories[column.name] = np.where(place == len(column.levels), UNSEEN_CATEGORY, place)
            elif column.order and self.unseen.get(column.name):
                values = numbers[column.name].copy()
                values[list(self.unseen[column.name])] = -1.0  # a level that training did not have
                numbers[column.name] = values
        return Rows(
            numbers,
            categories,
            score=self.risks[:, 0] if self.risks.shape[1] == 1 else self.risks,
            attributions={name: self.explanations[:, f] for f, name in enumerate(features)},
            label=self.label,
            patient=people,
        )


def main_score(risks: Array) -> Array:
    """Return one number (n,) of each patient from its risks (n, k)."""
    return np.asarray(risks[:, 0] if risks.shape[1] == 1 else risks.max(axis=1))


def main_outcome(risks: Array, label: Array) -> Array:
    """Return the outcome (n,) that the score predicts, from risks (n, k) and labels (n,)."""
    if risks.shape[1] == 1:
        return label
    return np.where(np.isnan(label), np.nan, (label == risks.argmax(axis=1)).astype(float))


def outcome_words(rows: Table | ImageSet, column: str | None) -> Array | None:
    """Return the labels (n,) of rows as text with None for missing.

    Args:
        rows: The rows.
        column: The label column; of images any name stands for their labels.

    Returns:
        The labels; None where the rows have no such column.
    """
    if column is None:
        return None
    if isinstance(rows, ImageSet):
        return np.array([word or None for word in rows.label.tolist()], object)
    values: Any = rows.columns.get(column)
    return None if values is None else to_text(values)
