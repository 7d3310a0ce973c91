"""A trained model with all it needs to score a patient: parameters, encoding, schema, threshold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.arrays import Array, load
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.incoming import read_through
from grandrounds.data.schema import Schema
from grandrounds.data.table import Table
from grandrounds.errors import BadInput
from grandrounds.metrics import scores, tally
from grandrounds.models.dense import Dense, class_probabilities
from grandrounds.site.evaluate import score


@dataclass(frozen=True)
class Predictions:
    """Probabilities (n, C) in the order of `classes`, the decision at the threshold, and what had to be made up."""

    probabilities: Array
    classes: tuple[str, ...]
    decisions: Array
    notes: tuple[str, ...]

    @property
    def risk(self) -> Array:
        """The probability of the positive class (binary models), (n,)."""
        return self.probabilities[:, -1]


@dataclass(frozen=True)
class TrainedModel:
    """What `rounds predict`, `evaluate` and `export` work with. A temperature is already in the last layer."""

    net: Dense
    theta: Array
    encoding: Encoding
    schema: Schema
    threshold: float
    temperature: float | None

    @classmethod
    def load(cls, path: Path) -> TrainedModel:
        params, meta = load(path)
        try:
            net = Dense(tuple(meta["widths"]))
            return cls(
                net=net,
                theta=net.layout.pack(params, dtype=next(iter(params.values())).dtype),
                encoding=Encoding.from_dict(meta["encoding"]),
                schema=Schema.from_dict(meta["columns"]),
                threshold=float(meta["threshold"]),
                temperature=meta["temperature"],
            )
        except (KeyError, TypeError, ValueError, StopIteration):
            raise BadInput(f"{path} is not a model of Grand Rounds") from None

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters as named arrays."""
        return self.net.layout.views(self.theta)

    def predict(self, table: Any) -> Predictions:
        """Score the rows of a Table or pandas DataFrame; a label column is not needed and not looked at."""
        data = read_through(_as_table(table), self.schema)
        logits, notes = self._logits(data)
        p = class_probabilities(logits.astype(float))
        if len(self.encoding.classes) == 2:
            decided = (p[:, 1] >= self.threshold).astype(np.int64)
        else:
            decided = p.argmax(axis=1)
        return Predictions(p, self.encoding.classes, np.array(self.encoding.classes, object)[decided], tuple(notes))

    def evaluate(self, table: Any) -> dict[str, Any]:
        """External validation: every metric on labelled rows of a table, overall and by site where it has that column."""
        data = read_through(_as_table(table), self.schema, labelled=True)
        logits, notes = self._logits(data)
        y = self.encoding.labels(data)
        classes = len(self.encoding.classes)
        names, site = np.array(["all rows"], object), np.zeros(len(y), np.int64)
        if data.site is not None:
            names, site = np.unique(data.site.astype(str), return_inverse=True)
        total = tally(logits, y, group=site, groups=len(names), classes=classes)
        each = scores(total, threshold=self.threshold)
        return {
            "overall": {k: float(v) for k, v in scores(total.sum(axis=0), threshold=self.threshold).items()},
            "per_site": {str(s): {k: float(v[i]) for k, v in each.items()} for i, s in enumerate(names)},
            "threshold": self.threshold,
            "notes": list(notes),
        }

    def _logits(self, data: Dataset) -> tuple[Array, list[str]]:
        x = self.encoding.encode(data, self.theta.dtype)
        return score(self.net, self.theta, x), self.encoding.notes(data)


def _as_table(table: Any) -> Table:
    return table if isinstance(table, Table) else Table.from_pandas(table)
