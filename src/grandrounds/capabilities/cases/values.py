"""Values of a patient in clinical units: percentiles, notes on quality, and attributes that should not move a risk."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.schema import Column, Schema
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.data.summary import grid_index
from grandrounds.explain.percentiles import FEWEST, MAX_MARGIN, NoisedSpread, Population, Spread

IMPUTED, ABSENT, OUTSIDE, UNUSUAL, RARE, UNSEEN, CONTRADICTORY, MISSING = KINDS = (
    "imputed", "absent", "outside", "unusual", "rare", "unseen", "contradictory", "missing",
)  # fmt: skip
"""Kinds of remarks about a value."""

UNREAD = "not read"
"""Kind of a remark about columns without weight in the model."""

_BY_DOUBT = (CONTRADICTORY, OUTSIDE, UNSEEN, RARE, UNUSUAL)
_STAND_INS = {
    IMPUTED: "have no value and were replaced by typical values of the consortium",
    ABSENT: "are absent and were replaced by typical values of the consortium",
    MISSING: "have no value, and the model has learnt what that means",
}
_FEW = 3

_ORDER = {"min": 0, "minimum": 0, "lowest": 0, "mean": 1, "avg": 1, "average": 1, "median": 1,
          "max": 2, "maximum": 2, "highest": 2}  # fmt: skip
_SPREADS = ("std", "sd", "stdev")
_ORDERED_PAIRS = (("systolic", "diastolic"), ("sbp", "dbp"))
"""Pairs of measurements of which the first is never the lower."""


@dataclass(frozen=True)
class Note:
    """One remark about one column; `kind` is one of KINDS."""

    column: str
    kind: str
    text: str


def quality_lines(
    notes: Sequence[Note], unused: Collection[str] = (), labels: ColumnLabels | None = None
) -> list[tuple[str, str]]:
    """Write notes as lines with their kinds, the most doubtful first; many missing values are one line.

    Args:
        notes: The notes of one patient.
        unused: Columns without weight in the model. They come last, in one line: odd values there cannot mislead it.
        labels: Clinical names of the columns; without them, lines have the names of the table.
    """

    def name(column: str) -> str:
        return column if labels is None else labels.find(column).name

    def text(note: Note) -> str:
        rest = note.text.removeprefix(note.column)  # a note begins with its column
        return note.text if rest == note.text else name(note.column) + rest

    idle = dict.fromkeys(n.column for n in notes if n.column in unused)
    notes = [n for n in notes if n.column not in idle]
    shown = sorted((n for n in notes if n.kind not in _STAND_INS), key=lambda n: _BY_DOUBT.index(n.kind))
    lines = [(text(n), n.kind) for n in shown]
    for kind, words in _STAND_INS.items():
        same_kind = [n for n in notes if n.kind == kind]
        if len(same_kind) > _FEW:
            lines.append((f"{len(same_kind)} columns {words}: {', '.join(name(n.column) for n in same_kind)}", kind))
        else:
            lines += [(text(n), kind) for n in same_kind]
    if idle:
        few = "column has" if len(idle) == 1 else "columns have"
        lines.append(
            (f"{len(idle)} {few} no value or an odd one and no weight in the model: {', '.join(map(name, idle))}", UNREAD)
        )
    return lines


def contradiction_notes(values: Mapping[str, float]) -> tuple[Note, ...]:
    """Note numbers of one patient that cannot both be right; columns belong together by their names, so few are caught."""
    return tuple(
        Note(name, CONTRADICTORY, f"{name} = {values[name]:g} cannot be {why}") for name, why in _impossible(values)
    )


def _impossible(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in values:
        stem, statistic = _parts(name)
        if statistic in _SPREADS and values[name] < 0:
            yield name, "a deviation: it is below zero"
        if statistic in _ORDER:
            groups.setdefault(stem, []).append((_ORDER[statistic], name))
    for group in groups.values():
        for (low, a), (high, b) in combinations(sorted(group), 2):
            if low < high and _exceeds(values[a], values[b]):
                yield a, f"right beside {b} = {values[b]:g}, which is lower"
    for upper, lower in _ORDERED_PAIRS:
        for name in values:
            other = name.lower().replace(upper, lower)
            twin = next((n for n in values if n != name and n.lower() == other), None)
            if upper in name.lower() and twin is not None and _exceeds(values[twin], values[name]):
                yield name, f"right beside {twin} = {values[twin]:g}, which is higher"


def _parts(name: str) -> tuple[str, str]:
    """Split a column's name into measurement and statistic: heart_rate_min -> (heart rate, min)."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w]
    for end in (-1, 0):
        if len(words) > 1 and words[end] in (*_ORDER, *_SPREADS):
            statistic = words.pop(end)
            return " ".join(words), statistic
    return name, ""


def _exceeds(a: float, b: float) -> bool:
    """Tell that a is above b by more than rounding to whole numbers explains."""
    slack = 0.5 if float(a).is_integer() or float(b).is_integer() else 1e-6 * abs(b)
    return a > b + slack


PROTECTED, ADMINISTRATIVE, NAMED = "protected", "administrative", "named"

_WORDS = {
    PROTECTED: r"sex|gender|race|racial|ethnic\w*|religion|nationality|(native |primary )?language|marital ?(status)?"
    r"|skin tone",
    ADMINISTRATIVE: r"insur(ance|ed|er)\w*|medicaid|medicare|pay[eo]r|region|teaching\w*|beds|(num|hospital) ?beds\w*"
    r"|(hospital|unit|icu)? ?(admit|admission) ?source\w*|zip|(zip|post) ?code",
}
_PATTERNS = {kind: re.compile(rf"\b(?:{words})\b") for kind, words in _WORDS.items()}
WHY = (
    "A personal attribute, or the organisation of care, is not a sign of illness by itself. Its effect may stand for something "
    "unmeasured or for a bias in the data, and may differ at another hospital."
)
_VISIBLE = 0.05  # points of risk below which no remark is made


@dataclass(frozen=True)
class Flag:
    """A sensitive attribute that moves this patient's risk by `points`: without it the risk would be `risk_without`."""

    column: str
    kind: str
    value: float | str | None
    contribution: float
    points: float
    risk_without: float
    reference: str | None  # the reference for "without"; None: the explainer's baseline
    decides: bool  # the decision would change

    @property
    def words(self) -> str:
        """The effect on the risk as text."""
        way = "raises" if self.points > 0 else "lowers"
        instead = "without it" if self.reference is None else f"at {self.reference}"
        turned = ", which would change the decision" if self.decides else ""
        return f"{way} the risk by {abs(self.points):.1f} points; {instead} the risk would be {self.risk_without:.1%}{turned}"

    def to_dict(self) -> dict[str, object]:
        """Return the flag as plain JSON."""
        return {
            "column": self.column,
            "kind": self.kind,
            "value": self.value,
            "contribution": self.contribution,
            "points": self.points,
            "risk_without": self.risk_without,
            "at": self.reference,
            "decides": self.decides,
            "words": self.words,
        }


def column_kind(column: str) -> str | None:
    """Recognise a protected or administrative attribute by its column's name; None for others."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column)
    words = re.sub(r"[^a-z0-9]+", " ", spaced.lower())
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(words)), None)


def flag_columns(columns: Sequence[str], named: Sequence[str] = ()) -> Mapping[str, str]:
    """Choose the columns to flag, with the reason: those `named`, or else those recognised by name.

    Raises:
        BadInput: The model has no such column.
    """
    for name in named:
        if name not in columns:
            raise BadInput(
                f"--protected {name}: the model sees no such column; {nearest(name, columns)}", code="unknown-column"
            )
    if named:
        return dict.fromkeys(named, NAMED)
    return {column: kind for column in columns if (kind := column_kind(column)) is not None}


def is_visible(points: float) -> bool:
    """Tell that a change of risk shows in a number with one decimal."""
    return abs(points) >= _VISIBLE


RARE_SHARE = 0.01
"""A category that fewer patients have than this is called rare; so is a number in either end of this size."""


@dataclass(frozen=True)
class Value:
    """One column of one patient. A number (or an ordered level) has a percentile, a category the share of patients with it."""

    value: float | str | None  # None: missing
    percentile: float | None  # 0 to 100, among the training patients of all sites that have a value
    share: float | None  # 0 to 1: the training patients with this category; of a missing value, those that miss it too
    notes: tuple[Note, ...] = ()
    margin: float | None = None  # points by which noise may have moved either; None where there is no noise
    imputed: bool = False  # the value is missing, and a typical value is used instead


def read_values(
    row: Dataset, encoding: Encoding, schema: Schema, population: Population | None, *, stand_in: str
) -> dict[str, Value]:
    """Read the patient of a data set of one row, column by column."""
    kinds = {c.name: c for c in schema.columns}
    gaps = {rule.name: encoding.by_column and rule.indicator for rule in encoding.numeric}  # read as missing
    out = {
        rule.name: _number(row, rule, kinds[rule.name], population, None if gaps[rule.name] else stand_in)
        for rule in encoding.numeric
    }
    return out | {
        rule.name: _category(row, rule, population, has_missing=encoding.by_column) for rule in encoding.categorical
    }


def find_contradictions(row: Dataset) -> tuple[Note, ...]:
    """Find numbers of the patient that contradict each other."""
    numbers = dict(zip(row.numeric_names, row.numeric[0].tolist(), strict=True))
    return contradiction_notes({name: v for name, v in numbers.items() if not np.isnan(v)})


def short(value: float) -> str:
    """Write a number with four digits, without an exponent; whole numbers in full."""
    digits = max(4, len(str(int(abs(value))))) if abs(value) < 1e15 else 4
    return str(np.format_float_positional(value, precision=digits, fractional=False, trim="-"))


def share_text(share: float) -> str:
    """Write a share of patients; a small one is "under 1%"."""
    return "under 1%" if share < RARE_SHARE else f"{share:.0%}"


def _number(row: Dataset, rule: Numeric, column: Column, population: Population | None, stand_in: str | None) -> Value:
    def words(v: float) -> str:
        if not column.order:
            return short(v)
        return column.order[int(np.clip(round(v), 0, len(column.order) - 1))]

    name = rule.name
    spread = None if population is None else population.numeric.get(name)
    present = name in row.numeric_names
    v = float(row.numeric[0, row.numeric_names.index(name)]) if present else float("nan")
    if np.isnan(v):
        lacks, kind = (f"{name} has no value", IMPUTED) if present else (f"column '{name}' is absent", ABSENT)
        text = f"{lacks}: {stand_in}, {words(rule.fill)}, is used instead"
        if stand_in is None:
            text, kind = f"{lacks}: it reads as missing", MISSING
        share, margin = (None, None) if spread is None else _missing_share(spread)
        return Value(None, None, share, (Note(name, kind, text),), margin, imputed=stand_in is not None)
    place = None if spread is None else spread.percentile(v)
    share = spread.share(v) if isinstance(spread, Spread) and is_yes_no((*spread.quantiles, v)) else None
    margin = spread.margin(v) if isinstance(spread, NoisedSpread) else None
    notes = []
    if _is_outside(v, rule):
        side, read = ("below", rule.low) if v < rule.low else ("above", rule.high)
        usual = "what nearly all training patients have" if isinstance(spread, Spread) else "the agreed range"
        text = f"{name} = {words(v)} is {side} {usual}: it is clipped to {words(read)}"
        notes.append(Note(name, OUTSIDE, text))
    elif isinstance(spread, NoisedSpread):
        pass  # a hundredth of the patients is below what noise lets through
    elif spread is not None and place in (0, 100):
        low, high = (words(q) for q in (spread.quantiles[0], spread.quantiles[-1]))
        side = "below" if place == 0 else "above"
        text = f"{name} = {words(v)} is {side} what nearly all training patients have ({low} to {high})"
        notes.append(Note(name, OUTSIDE, text))
    elif place is not None and not 100 * RARE_SHARE <= place <= 100 * (1 - RARE_SHARE):
        end = "lowest" if place < 50 else "highest"
        notes.append(Note(name, UNUSUAL, f"{name} = {words(v)} is among the {end} 1% of the training patients' values"))
    return Value(words(v) if column.order else v, None if share is not None else place, share, tuple(notes), margin)


def is_yes_no(values: Collection[float]) -> bool:
    """Tell whether numbers are yes or no: 1 or 0. Such a column has shares and no percentiles.

    Args:
        values: Values of a column; none of them is missing.
    """
    return len(values) > 1 and set(values) <= {0.0, 1.0}


def _missing_share(spread: Spread | NoisedSpread) -> tuple[float | None, float | None]:
    """Return the share of patients without a value, and how far noise may have moved it."""
    if isinstance(spread, Spread):
        return spread.missing, None
    return None if spread.missing_margin > MAX_MARGIN else spread.missing, spread.missing_margin


def _is_outside(value: float, rule: Numeric) -> bool:
    """Tell whether a value is clipped by more than the width of a cell, the precision of the bounds."""
    if rule.low <= value <= rule.high:
        return False
    cell, low, high = grid_index(np.array([value, rule.low, rule.high]))
    return not low <= cell <= high


def _category(row: Dataset, rule: Categorical, population: Population | None, *, has_missing: bool) -> Value:
    name = rule.name
    shares = None if population is None else population.categorical.get(name)
    margin = None if shares is None or not shares.margin else shares.margin
    if margin is not None and margin > MAX_MARGIN:
        shares = None
    present = name in row.categorical_names
    position = row.categorical_names.index(name) if present else 0
    code = int(row.codes[0, position]) if present else -1
    nothing = f"'{rule.baseline}'" if rule.baseline else "missing" if has_missing else "no category"
    if code < 0:
        lacks, kind = (f"{name} has no value", IMPUTED) if present else (f"column '{name}' is absent", ABSENT)
        missing = None if shares is None else shares.missing
        note = Note(name, MISSING if has_missing else kind, f"{lacks}: it reads as {nothing}")
        return Value(None, None, missing, (note,), margin, imputed=not has_missing)
    word = row.vocabulary[position][code]
    share = (
        None if shares is None or (margin is not None and word not in shares.levels) else shares.levels.get(word, 0.0)
    )
    notes = []
    if word not in (*rule.levels, rule.baseline):
        reads = "'other'" if rule.other else nothing
        kind = RARE if share else UNSEEN
        notes.append(Note(name, kind, f"{name} = '{word}' {_how_rare(share)}: it reads as {reads}"))
    elif share is not None and share < RARE_SHARE and margin is None:
        notes.append(Note(name, RARE, f"{name} = '{word}' is a rare category: it {_how_rare(share)}"))
    return Value(word, None, share, tuple(notes), margin)


def _how_rare(share: float | None) -> str:
    if share is None:
        return "is unknown to the model"
    return (
        f"occurs in {100 * share:.2g}% of the training patients"
        if share
        else f"occurs in fewer than {FEWEST} training patients"
    )
