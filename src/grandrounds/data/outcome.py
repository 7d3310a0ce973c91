"""Outcomes that are not classes: numbers, counts and times to an event, and the units in which a model learns them.

`settle_task` tells the task from the label where that is certain. `Outcome` travels with the encoding: a model learns a number in
agreed standard deviations from the agreed mean, and a count in multiples of the agreed mean, so that one learning rate fits all
units. Predictions and metrics are in the units of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import AUTO, CLASSIFICATION, COUNT, REGRESSION, SURVIVAL, TASKS
from grandrounds.data.formats import date_format, is_iso_date
from grandrounds.data.table import Table, missing_mask, to_text

SURE_CLASSES = 10
"""Whole numbers with so few distinct values are codes of classes."""

MAX_CLASSES = 100
_LARGEST_LOG = 80.0


@dataclass(frozen=True)
class Outcome:
    """An outcome that is not a class, with the units of training.

    Attributes:
        task: "regression", "count" or "survival".
        centre: Subtracted from a number before training: the agreed mean; 0 for counts.
        scale: Unit of training: the agreed standard deviation of a number, the agreed mean of a count.
        event: Survival: the value of the label that is the event.
    """

    task: str
    centre: float = 0.0
    scale: float = 1.0
    event: str | None = None

    def standardise(self, y: Array) -> Array:
        """Convert outcomes to the units of training."""
        out: Array = (np.asarray(y, np.float64) - self.centre) / self.scale
        return out

    def predict(self, scores: Array) -> Array:
        """Convert a model's outputs (n,) to predictions: numbers, expected counts, or log hazards relative to zero inputs."""
        z = np.asarray(scores, np.float64)
        if self.task == COUNT:
            expected: Array = self.scale * np.exp(np.clip(z, -_LARGEST_LOG, _LARGEST_LOG))
            return expected
        return z if self.task == SURVIVAL else self.centre + self.scale * z

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: The task is unknown, or a unit is not a finite number.
        """
        outcome = cls(
            str(values["task"]), float(values["centre"]), float(values["scale"]), values.get("event") and str(values["event"])
        )
        if outcome.task not in TASKS or not np.isfinite([outcome.centre, outcome.scale]).all() or not outcome.scale > 0:
            raise ValueError("an outcome is damaged")
        return outcome


def settle_task(table: Table, label: str, *, task: str = AUTO, duration: str | None = None) -> str:
    """Return the task of a table: the one that is set, or the one that the label tells.

    Args:
        table: The table.
        label: The column to predict.
        task: data.task; "auto" tells it from the label.
        duration: data.duration, the column with the follow-up time.

    Returns:
        "classification", "regression", "count" or "survival".

    Raises:
        BadInput: A duration is set for another task, survival has none, or whole numbers may be a count or codes of classes.
    """
    if task not in (AUTO, SURVIVAL) and duration is not None:
        raise BadInput(
            f"data.task is '{task}' and data.duration '{duration}', a follow-up time, which only survival uses: "
            "leave --time out, or set --task survival",
            code="conflicting-settings",
        )
    if task == SURVIVAL and duration is None:
        raise BadInput(
            f"data.task is 'survival', and no column holds the follow-up time of {table.source}: name it with --time COLUMN "
            "(data.duration); --label names the event, 0 or 1",
            code="no-duration",
        )
    if task != AUTO:
        return task
    if duration is not None:
        return SURVIVAL
    values = table.column(label, flag="--label")
    numbers = values[np.isfinite(values)] if values.dtype == np.float64 else None
    if numbers is None or len(distinct := np.unique(numbers)) <= 2:
        return CLASSIFICATION
    if (numbers != np.floor(numbers)).any():
        return REGRESSION
    if len(distinct) > SURE_CLASSES and (len(distinct) > MAX_CLASSES or _is_count(numbers)):
        raise BadInput(
            f"label column '{label}' of {table.source} has {len(distinct)} different whole numbers, which may be a "
            "measurement, a count or codes of classes: say --task regression, --task count or --task classification (data.task)",
            code="label-not-classes",
        )
    return CLASSIFICATION


def _is_count(numbers: Array) -> bool:
    """Tell whether whole numbers are more, or rarer, than codes of classes are."""
    counts = Counter(numbers.tolist())
    return len(counts) > 2 * SURE_CLASSES or min(counts.values()) < SURE_CLASSES


def read_outcome(table: Table, label: str, task: str, duration: str | None) -> tuple[Array, Array | None]:
    """Read the outcome of a task other than classification.

    Args:
        table: The table; every row has a label.
        label: The label column.
        task: The task.
        duration: The column with the follow-up time, for survival.

    Returns:
        Numbers (n,) float64, or for survival the event's words (n,) object; and the follow-up times (n,) of survival.

    Raises:
        BadInput: A value is of another kind; the message counts the rows.
    """
    if task == SURVIVAL:
        assert duration is not None
        return _read_events(table, label), read_durations(table, duration)
    values = table.columns[label]
    where = f"label column '{label}' of {table.source}"
    if values.dtype != np.float64:
        word = next(v for v in values if v is not None)
        raise BadInput(
            f"{where} holds words such as '{word[:20]}', and data.task is '{task}', which predicts numbers: "
            "choose another column (use --label), or set --task classification",
            code="label-not-numbers",
        )
    _refuse(table, ~np.isfinite(values), f"{where} is not finite", code="infinite-value")
    if task == COUNT:
        bad = (values < 0) | (values != np.floor(values))
        fix = "fix them, or set --task regression"
        _refuse(table, bad, f"{where} is no count (0, 1, 2, ...)", code="label-not-counts", fix=fix)
    if len(values) and (values == values[0]).all():
        raise BadInput(
            f"{where} has one value only ({values[0]:g} in all {len(values)} rows): nothing can be learnt; "
            "choose another column (use --label)",
            code="constant-label",
        )
    return values, None


def _read_events(table: Table, label: str) -> Array:
    """Read the event column of survival data: two values at most."""
    words = np.array(to_text(table.columns[label]), dtype=object)
    distinct = sorted(set(words.tolist()))
    if len(distinct) > 2:
        raise BadInput(
            f"event column '{label}' of {table.source} has {len(distinct)} different values ({', '.join(distinct[:5])} ...): "
            "survival needs one event and censoring, such as 1 and 0; write competing events as one, or as censored",
            code="label-not-events",
        )
    return words


def read_durations(table: Table, name: str) -> Array:
    """Read a column of follow-up times: finite numbers from 0 on.

    Raises:
        BadInput: The column holds dates or words, or times are missing or negative; the message counts the rows.
    """
    values = table.column(name, flag="--time")
    where = f"follow-up time '{name}' of {table.source}"
    if values.dtype != np.float64:
        words = Counter(v for v in values.tolist() if v is not None)
        dates = sum(n for word, n in words.items() if is_iso_date(word)) or (sum(words.values()) if date_format(words) else 0)
        first = next(iter(words), "")
        if dates:
            raise BadInput(
                f"{where} holds dates in {_rows(dates)}, such as '{first[:20]}': a follow-up time is a number; write the days "
                "from the start of follow-up to the event or the last contact",
                code="duration-is-date",
            )
        raise BadInput(
            f"{where} holds words such as '{first[:20]}': a follow-up time is a number, such as days; fix the file, or list the "
            "word in data.missing (--missing WORD)",
            code="duration-not-number",
        )
    _refuse(table, np.isnan(values), f"{where} is missing", code="missing-durations",
            fix="fill them in, or leave these rows out with data.drop_unlabelled = true")  # fmt: skip
    _refuse(table, ~np.isfinite(values), f"{where} is not finite", code="infinite-value")
    _refuse(table, values < 0, f"{where} is negative", code="negative-durations")
    return values


def _refuse(table: Table, bad: Array, what: str, *, code: str, fix: str = "fix them or leave these rows out") -> None:
    """Raise where rows are bad, with their number and the first of them."""
    if bad.any():
        raise BadInput(f"{what} in {_rows(int(bad.sum()))}, first {table.where(int(bad.argmax()))}; {fix}", code=code)


def _rows(n: int) -> str:
    return "1 row" if n == 1 else f"{n} rows"


def unlabelled_rows(table: Table, label: str, duration: str | None) -> Array:
    """Find rows without a label, or without a follow-up time where there is one: (n,) of bool."""
    out = missing_mask(table.column(label, flag="--label"))
    return out if duration is None else out | missing_mask(table.column(duration, flag="--time"))


def group_outcome(values: Array, groups: int = 5) -> Array:
    """Group numbers (n,) by quantiles, for partitions with label skew: group numbers (n,)."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, groups + 1)[1:-1])) if len(values) else np.empty(0)
    return np.searchsorted(edges, values, side="left")
