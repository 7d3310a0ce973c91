"""Explainable boosting machine (EBM) by InterpretML, without pairs: a strong additive baseline for tables.

It is fitted on rows in one place, by methods 'pooled' (all rows together) and 'local' (each site alone). The fitted machine is
one score for each bin of a number and each level of a category, so it becomes a model of step scores (steps.py): stored without
pickle, explained exactly, and used without InterpretML, which is imported only to fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.models.steps import StepModel
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, install_extra

METHODS = ("pooled", "local")
"""Methods that fit an EBM."""

REFUSAL = (
    "EBMs of several sites cannot be averaged, and their fit needs thousands of exchanges: use model 'gam', which is fitted from "
    "sums over hospitals, or method 'pooled' or 'local'"
)


@dataclass(frozen=True)
class EBMModel(StepModel):
    """An EBM without pairs, as step scores."""

    kernel: ClassVar[str] = "ebm"

    def fit(self, x: Array, y: Array, *, seed: int) -> Array:
        """Fit an EBM with InterpretML's defaults, one thread and no pairs, and return it as a vector.

        Rows of a single class have a constant score: log-odds of the class shares with one imagined row more in each class. A
        class without a row here has that score among several classes.

        Args:
            x: Inputs, (n, d).
            y: Numbers of the classes, (n,).
            seed: The seed of the machine's bags.

        Returns:
            The model.

        Raises:
            BadInput: InterpretML is not installed, or its machine does not fit the columns.
        """
        values, counts = self.values(x), np.bincount(np.asarray(y, np.int64), minlength=self.classes)
        present = np.flatnonzero(counts)
        shares = np.log((counts + 1) / (counts.sum() + self.classes))
        if len(present) < 2:
            start = shares[1:] - shares[0] if self.outputs == 1 else shares
            return self.pack(self.join(self._no_edges(), [], start))
        types = ["nominal" if c.is_category else "continuous" for c in self.columns]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing values, which have a score of their own here
            machine = _interpret().ExplainableBoostingClassifier(
                feature_types=types, interactions=0, n_jobs=1, random_state=seed % 2**31
            )
            machine.fit(values, np.asarray(y, np.int64))
        edges, scores, start = self._read(machine)
        if self.outputs > 1 and len(present) < self.classes:
            scores, start = [_spread(s, present, self.classes) for s in scores], _spread(start, present, self.classes)
            start[counts == 0] = shares[counts == 0]
        return self.pack(self.join(edges, scores, start))

    def _no_edges(self) -> list[Array]:
        return [np.zeros(0 if c.is_category else 1) for c in self.columns]

    def _read(self, machine: Any) -> tuple[list[Array], list[Array], Array]:
        """Read edges, scores (bins, outputs) and intercept of a fitted machine."""
        if [tuple(t) for t in machine.term_features_] != [(c,) for c in range(len(self.columns))]:
            raise BadInput("the EBM has other terms than one for each column", code="model-does-not-fit")
        outputs = np.size(machine.intercept_)
        edges, scores = [], []
        for column, bins, score in zip(self.columns, machine.bins_, machine.term_scores_, strict=True):
            table = np.asarray(score, np.float64).reshape(len(score), outputs)
            if column.is_category:
                edges.append(np.zeros(0))
                scores.append(_level_scores(column, bins[0], table))
                continue
            cuts = np.asarray(bins[0], np.float64)
            # A machine's bin holds its lower cut, a step model's bin its upper edge: the edge is the number just below the cut.
            edges.append(np.nextafter(cuts, -np.inf) if len(cuts) else np.zeros(1))
            scores.append(table[: len(cuts) + 2] if len(cuts) else table[[0, 1, 1]])
        return edges, scores, np.asarray(machine.intercept_, np.float64).ravel()


def _level_scores(column: Column, places: Mapping[str, int], table: Array) -> Array:
    """Return the scores of missing values and of each level; a level without a row has that of unknown values."""
    number = {float(word): place for word, place in places.items()}
    return table[[0, *(number.get(float(level), len(table) - 1) for level in range(len(column.levels)))]]


def _spread(values: Array, present: Sequence[int] | Array, classes: int) -> Array:
    """Spread scores (..., outputs) of the classes that have rows over all classes; of two, the first has score 0."""
    out = np.zeros((*values.shape[:-1], classes))
    out[..., list(present)[-values.shape[-1] :]] = values
    return out


def _interpret() -> Any:
    """Import InterpretML's glass boxes; raise BadInput with the install command if they are missing."""
    try:
        from interpret import glassbox
    except ImportError:
        raise BadInput(
            f"model.name is 'ebm', which needs the package interpret-core; {install_extra('baselines')}",
            code="missing-package",
        ) from None
    return glassbox
