"""Attribute inference on a finished run: each column in turn is hidden, and guessed with the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.membership.shadows import AttackedRows
from grandrounds.capabilities.attacks.queries import ModelQuery
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.data.dataset import Dataset
from grandrounds.privacy.attacks.attribute import (
    CONFIDENCE,
    AttributeAttack,
    difference_interval,
    guess_values,
    impute_values,
)

if TYPE_CHECKING:
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows

MOST_ROWS = 2000
"""Most training rows, and most other rows, that are guessed; of more, a sample is drawn."""

FEWEST = 10
"""Fewest training rows and other rows with a value, for a column to be attacked."""

BINS = 4
"""Bins of a number: at its quartiles."""

_FEW_VALUES = 6
"""A number with at most so many different values is guessed value by value."""

_MOST_LEVELS = 30


@dataclass(frozen=True, eq=False)
class HiddenColumn:
    """A column to guess: the number of each row's value (-1: missing), and the value that stands for each number."""

    name: str
    kind: str
    place: int  # among numeric or categorical columns
    number: Array  # (n,)
    stands: Array  # (V,) numbers, or codes of categories

    def fill(self, data: Dataset, value: int) -> Dataset:
        """Return the rows with one value in this column."""
        name = "codes" if self.kind == "category" else "numeric"
        columns = getattr(data, name).copy()
        columns[:, self.place] = self.stands[value]
        return replace(data, **{name: columns})


@dataclass(frozen=True)
class AttributeInference:
    """Attacks on all columns, the worst first."""

    columns: tuple[AttributeAttack, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> AttributeAttack:
        """The column whose advantage is furthest above zero, measured by the width of its interval."""
        return self.columns[0]

    @property
    def leaking(self) -> tuple[AttributeAttack, ...]:
        """Columns whose advantage is above zero, also after looking at many columns."""
        return tuple(a for a in self.columns if a.low_all > 0)

    def sentences(self) -> list[str]:
        """Explain the results in sentences."""
        if not self.columns:
            return ["Attribute inference: no column has enough patients with a value to guess it."]
        w, several = self.worst, len(self.columns) > 1
        over = f", {_points(w.low_all)} to {_points(w.high_all)} over all {len(self.columns)} columns" if several else ""
        lines = [
            f"Attribute inference: from the model, the outcome and all other columns, an attacker guesses '{w.column}' right for "
            f"{w.accuracy_members:.1%} of training patients and for {w.accuracy_nonmembers:.1%} of patients who were not trained "
            f"on. The advantage, which is the leak, is {_points(w.advantage)} percentage points "
            f"(95% CI {_points(w.low)} to {_points(w.high)}{over}).",
            f"Without the model, the most frequent value is right for {w.marginal:.1%} of training patients, and a prediction "
            f"from the other columns and the outcome for {w.imputation:.1%}.",
        ]
        if self.leaking:
            names = ", ".join(f"'{a.column}'" for a in self.leaking[:5])
            more = f" and {len(self.leaking) - 5} more" if len(self.leaking) > 5 else ""
            lines.append(f"The model reveals more about its training patients than about others in: {names}{more}.")
        elif several:
            lines.append(
                f"None of the {len(self.columns)} columns has an advantage that is clearly above zero: '{w.column}' is the worst."
            )
        else:
            lines.append("The advantage is not clearly above zero.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the section `attribute` of attacks.json."""
        return {
            "confidence": CONFIDENCE,
            "worst": self.worst.column if self.columns else None,
            "leaking": [a.column for a in self.leaking],
            "columns": [a.to_dict() for a in self.columns],
            "sentences": self.sentences(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttributeInference:
        """Read what `to_dict` wrote."""
        return cls(tuple(AttributeAttack.from_dict(a) for a in values["columns"]), tuple(values["notes"]))


def infer_attributes(
    run: Run,
    run_rows: RunRows,
    chosen: AttackedRows,
    *,
    sensitive: Sequence[str] = (),
    progress: Callable[[str], None] = lambda column: None,
) -> AttributeInference:
    """Hide each column in turn and guess it for training rows and for rows that were not trained on.

    Args:
        run: A finished run of a model of tables.
        run_rows: Its rows.
        chosen: The rows to guess, and which of them were trained on.
        sensitive: Columns to attack; none: all columns of the model.
        progress: Called with the name of each column before it is attacked.

    Returns:
        The attacks, the worst first.

    Raises:
        BadInput: A column is unknown.
    """
    places = _sample(chosen.member, run_rows.plan.seed)
    rows, member = chosen.rows[places], chosen.member[places]
    query = ModelQuery.build(run, run_rows, rows, chosen.site[places], member)
    data = query.data
    assert isinstance(data, Dataset)
    columns = list_columns(query, data)
    known = {c.name: c for c in columns}
    for name in sensitive:
        if name not in known:
            raise BadInput(
                f"--sensitive {name}: the model has no such column, or it has one value only; {nearest(name, list(known))}",
                code="unknown-column",
            )
    asked = [known[name] for name in dict.fromkeys(sensitive)] if sensitive else columns
    attacked: list[HiddenColumn] = []
    left: list[HiddenColumn] = []
    for column in asked:
        seen = column.number >= 0
        enough = min(int((seen & member).sum()), int((seen & ~member).sum())) >= FEWEST
        (attacked if enough else left).append(column)
    indicators = _indicators(columns, data)
    results = []
    for column in attacked:
        progress(column.name)
        results.append(_attack_column(query, data, column, member, indicators, len(attacked)))
    notes = [f"'{c.name}' was not guessed: fewer than {FEWEST} patients of a kind have a value" for c in left]
    if len(places) < len(chosen.rows):
        notes.append(
            f"columns were guessed for {int(member.sum()):,} training rows and {int((~member).sum()):,} others, drawn from "
            f"{int(chosen.member.sum()):,} and {int((~chosen.member).sum()):,}"
        )
    ranked = sorted(results, key=lambda a: (-a.advantage / max(a.advantage - a.low, 1e-12), a.column))
    return AttributeInference(tuple(ranked), (*chosen.notes, *notes))


def list_columns(query: ModelQuery, data: Dataset) -> list[HiddenColumn]:
    """List the columns that the model reads and that have at least two values, with their bins."""
    encoding: Any = query.model.encoding
    used = {rule.name for rule in (*encoding.numeric, *encoding.categorical)}
    out = []
    for j, name in enumerate(data.numeric_names):
        if name in used:
            number, stands = _bin_numbers(data.numeric[:, j])
            out.append(HiddenColumn(name, "number", j, number, stands))
    for j, name in enumerate(data.categorical_names):
        if name in used:
            code = data.codes[:, j]
            levels, count = np.unique(code[code >= 0], return_counts=True)
            kept = np.sort(levels[np.argsort(-count, kind="stable")[:_MOST_LEVELS]])
            place = np.full(len(data.vocabulary[j]) + 1, -1)
            place[kept] = np.arange(len(kept))
            out.append(HiddenColumn(name, "category", j, place[code], kept))
    return [c for c in out if len(c.stands) > 1]


def _attack_column(
    query: ModelQuery, data: Dataset, column: HiddenColumn, member: Array, indicators: Mapping[str, Array], tests: int
) -> AttributeAttack:
    fits = query.log_likelihoods([column.fill(data, v) for v in range(len(column.stands))])
    seen = column.number >= 0
    share = np.bincount(column.number[seen], minlength=len(column.stands)) / seen.sum()
    right = guess_values(share, fits) == column.number
    others = np.concatenate([block for name, block in indicators.items() if name != column.name], axis=1)
    taught = np.where(seen & ~member, column.number, -1)
    imputed = impute_values(others, taught, len(column.stands)).argmax(axis=1) == column.number
    inside, outside = seen & member, seen & ~member
    patient = data.patient
    groups = (None, None) if patient is None else (patient[inside], patient[outside])
    advantage, low, high = difference_interval(right[inside], right[outside], *groups)
    _, low_all, high_all = difference_interval(
        right[inside], right[outside], *groups, confidence=1 - (1 - CONFIDENCE) / max(tests, 1)
    )
    return AttributeAttack(
        column.name,
        column.kind,
        len(column.stands),
        int(inside.sum()),
        int(outside.sum()),
        float(right[inside].mean()),
        float(right[outside].mean()),
        advantage,
        low,
        high,
        low_all,
        high_all,
        marginal=float((column.number[inside] == share.argmax()).mean()),
        imputation=float(imputed[inside].mean()),
    )


def _bin_numbers(x: Array) -> tuple[Array, Array]:
    """Return the bin of each number (-1: missing) and the median of each bin; few different values are bins of their own."""
    seen = np.isfinite(x)
    values = np.unique(x[seen])
    if len(values) <= _FEW_VALUES:
        return np.where(seen, np.searchsorted(values, x), -1), values
    cuts = np.unique(np.quantile(x[seen], np.arange(1, BINS) / BINS))
    number = np.where(seen, np.searchsorted(cuts, x, side="left"), -1)
    filled = np.unique(number[seen])
    stands = np.array([np.median(x[number == b]) for b in filled])
    return np.where(seen, np.searchsorted(filled, number), -1), stands


def _indicators(columns: Sequence[HiddenColumn], data: Dataset) -> dict[str, Array]:
    """Return indicators (n, V) of the values of every column and of the outcome, for the attacker without the model."""
    out = {c.name: np.eye(len(c.stands) + 1)[c.number][:, :-1] for c in columns}
    if data.outcome is not None or data.duration is not None:
        number, stands = _bin_numbers(np.asarray(data.outcome if data.outcome is not None else data.duration, float))
    else:
        words, number = np.unique(data.label.astype(str), return_inverse=True)
        stands = np.asarray(words)
    out[""] = np.eye(len(stands))[number.ravel()]
    return out


def _sample(member: Array, seed: int) -> Array:
    """Choose at most `MOST_ROWS` members and as many others."""
    rng = generator(seed, purpose="attribute inference")
    parts = [np.flatnonzero(member), np.flatnonzero(~member)]
    drawn = [np.sort(rng.permutation(p)[:MOST_ROWS]) if len(p) > MOST_ROWS else p for p in parts]
    return np.sort(np.concatenate(drawn))


def _points(value: float) -> str:
    """Format a difference of shares in percentage points."""
    return f"{100 * value:+.1f}"
