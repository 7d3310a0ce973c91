"""The shapes of an additive model: the record of summary.json as typed values, their order by importance, and their sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import NO_LABELS, ColumnLabels
from grandrounds.report.estimates import to_ratio

Z = 1.959963984540054
"""Standard errors from the middle of a 95% interval to its end."""

SHOWN = 12
"""Shapes that a page shows at first; the others are behind a fold."""

SCALES = {
    "logistic": ("log-odds", "odds ratio"),
    "poisson": ("log expected count", "rate ratio"),
    "cox": ("log hazard", "hazard ratio"),
    "hazard": ("log-odds of the event in an interval", "odds ratio"),
    "linear": ("prediction", ""),
}
"""The scale on which shapes add, and the name of e^effect, by family."""

_FAMILIES = {
    "squared": "linear",
    "gaussian": "linear",
    "regression": "linear",
    "binomial": "logistic",
    "classification": "logistic",
    "count": "poisson",
    "survival": "cox",
}
"""Other names of families."""

MONOTONE = {"up": "may only rise", "down": "may only fall"}


@dataclass(frozen=True)
class MissingEffect:
    """The effect of a missing value. `error` is None where it is not known; `rows`: patients without a value, 0 if hidden."""

    effect: float
    error: float | None
    rows: float
    is_hidden: bool = False


@dataclass(frozen=True)
class Shape:
    """The effect of one column.

    Attributes:
        name: Name of the column.
        values: Points of a number's curve, or names of levels.
        effect: The effect at each of them.
        error: Standard error of each; None where they are not known.
        rows: Patients behind each of them.
        is_category: The column is a category.
        unit: Unit of the values; "" where it is not known.
        missing: The effect of a missing value; None where no patient lacks it.
        edf: Effective degrees of freedom; None where they are not known.
        used: The column has an effect in the model.
        monotone: "up" or "down" for a curve that may only rise or fall; None without a constraint.
        edges: Values between the bins of a number whose effect is constant within bins; empty for a curve.
        hidden: Places of counts that are not told: small ones, and others that would give them away.
    """

    name: str
    values: tuple[float, ...] | tuple[str, ...]
    effect: tuple[float, ...]
    error: tuple[float, ...] | None
    rows: tuple[float, ...]
    is_category: bool = False
    unit: str = ""
    missing: MissingEffect | None = None
    edf: float | None = None
    used: bool = True
    monotone: str | None = None
    edges: tuple[float, ...] = ()
    hidden: frozenset[int] = frozenset()

    @property
    def patients(self) -> float:
        """The number of patients with a value."""
        return sum(self.rows)

    @property
    def is_step(self) -> bool:
        """A number whose effect is constant within bins: trees of depth one, private scores."""
        return bool(self.edges)

    @property
    def bounds(self) -> list[float]:
        """The ends of the part of the axis that each point stands for: of its bin, or halfway to its neighbours."""
        x = [float(v) for v in self.values]
        if self.edges:
            return [min(2 * x[0] - self.edges[0], self.edges[0]), *self.edges, max(2 * x[-1] - self.edges[-1], self.edges[-1])]
        if len(x) == 1:
            return [x[0] - 0.5, x[0] + 0.5]
        return [x[0], *((a + b) / 2 for a, b in pairwise(x)), x[-1]]

    @property
    def importance(self) -> float:
        """The mean absolute difference of patients' effects from their mean: the mean absolute Shapley value."""
        pairs = list(zip(self.rows, self.effect, strict=True))
        if self.missing is not None:
            pairs.append((self.missing.rows, self.missing.effect))
        total = sum(n for n, _ in pairs)
        if not total:
            return max(self.effect, default=0.0) - min(self.effect, default=0.0)
        mean = sum(n * e for n, e in pairs) / total
        return sum(n * abs(e - mean) for n, e in pairs) / total

    @property
    def reference(self) -> int:
        """The place of the value that others are compared with: the median, or the most frequent level."""
        return max(range(len(self.rows)), key=lambda k: self.rows[k]) if self.is_category else self.quantile(0.5)

    def quantile(self, share: float) -> int:
        """Return the place of the point at which so large a share of the patients with a value is reached."""
        if not self.patients:
            return round(share * (len(self.values) - 1))
        reached = 0.0
        for k, n in enumerate(self.rows):
            reached += n
            if reached >= share * self.patients - 1e-9:
                return k
        return len(self.rows) - 1

    @property
    def decimals(self) -> int:
        """The decimals that tell the values of a number apart: a hundredth of their range has one digit."""
        if self.is_category or not self.values:
            return 0
        span = abs(float(self.values[-1]) - float(self.values[0])) or abs(float(self.values[0])) or 1.0
        return max(0, 2 - math.floor(math.log10(span)))

    def ends(self, k: int) -> tuple[float, float] | None:
        """Return the 95% interval of the effect at a place; None without a standard error."""
        if self.error is None:
            return None
        return self.effect[k] - Z * self.error[k], self.effect[k] + Z * self.error[k]

    def describe_value(self, k: int) -> str:
        """Write the value at a place, with its unit: '54 years', of a bin '50 to 55 years'."""
        value = self.values[k]
        if isinstance(value, str):
            return value
        if not self.edges:
            return f"{format_value(value, self.decimals)} {self.unit}".rstrip()
        if k == 0:
            return f"{format_value(self.edges[0], self.decimals)} {self.unit}".rstrip() + " or less"
        if k == len(self.edges):
            return f"more than {format_value(self.edges[-1], self.decimals)} {self.unit}".rstrip()
        low, high = (format_value(e, self.decimals) for e in self.edges[k - 1 : k + 1])
        return f"{low} to {high} {self.unit}".rstrip()


@dataclass(frozen=True)
class ShapesRecord:
    """The shapes of a run.

    Attributes:
        family: "logistic", "linear", "poisson", "cox" or "hazard".
        intercept: The score of a patient whose effects are all 0.
        shapes: Every column, the most important first.
        exchanges: Cost of the fit: count, numbers_sent, numbers_held, ratio, bytes_up, bytes_down.
        by_site: Effects of each hospital's own shapes, by site and column, at the values of the common one.
        rows: Rows of the fit.
        sites: Hospitals in the fit.
        notes: Sentences for people.
        is_behind_card: The shapes are of the additive model from which a risk card was distilled.
    """

    family: str
    intercept: float | None
    shapes: tuple[Shape, ...]
    exchanges: Mapping[str, Any] = field(default_factory=dict)
    by_site: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    rows: int = 0
    sites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_behind_card: bool = False

    @property
    def scale(self) -> str:
        """The scale on which shapes add: "log-odds"."""
        return SCALES[self.family][0]

    @property
    def ratio(self) -> str:
        """The name of e^difference; "" for a linear model."""
        return SCALES[self.family][1]

    @property
    def used(self) -> tuple[Shape, ...]:
        """The columns with an effect, the most important first."""
        return tuple(s for s in self.shapes if s.used)

    @property
    def unused(self) -> tuple[Shape, ...]:
        """The columns without one."""
        return tuple(s for s in self.shapes if not s.used)

    def find(self, name: str) -> Shape | None:
        """Return the shape of a column that is used; None where there is none."""
        return next((s for s in self.used if s.name == name), None)


def read_shapes(summary: Mapping[str, Any]) -> ShapesRecord | None:
    """Read the shapes of a summary.

    Args:
        summary: The summary of a finished run.

    Returns:
        The record; None for a run without shapes.

    Raises:
        BadInput: The record is damaged.
    """
    values = summary.get("shapes")
    if not values:
        return None
    try:
        family = _FAMILIES.get(str(values["family"]), str(values["family"]))
        labels = ColumnLabels.of_summary(summary)
        shapes = sorted((_read_shape(c, labels) for c in values["columns"]), key=lambda s: (-s.importance, s.name))
        if family not in SCALES:
            raise ValueError(family)
        intercept = values.get("intercept")
        return ShapesRecord(
            family=family,
            intercept=None if intercept is None else float(intercept),
            shapes=tuple(shapes),
            exchanges=dict(values.get("exchanges") or {}),
            by_site=_read_sites(values.get("by_site") or {}, shapes),
            rows=int(values.get("rows") or 0),
            sites=tuple(map(str, values.get("sites") or ())),
            notes=tuple(dict.fromkeys(_sentence(str(note)) for note in values.get("notes") or ())),
            is_behind_card=bool(summary.get("card")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "summary.json is damaged: its shapes cannot be read; run the experiment again", code="damaged-record"
        ) from None


def _sentence(note: str) -> str:
    """Write a note with a capital letter and a full stop."""
    return f"{note[:1].upper()}{note[1:]}" + ("" if note.endswith((".", "!", "?")) else ".")


def _read_shape(values: Mapping[str, Any], labels: ColumnLabels) -> Shape:
    is_category = values["kind"] == "category"
    points = tuple(map(str, values["values"])) if is_category else tuple(map(float, values["values"]))
    effect = tuple(map(float, values["effect"]))
    errors = values.get("se")
    rows = tuple(float(n or 0) for n in values.get("rows") or [0] * len(points))
    error = None if errors is None else tuple(map(float, errors))
    if {len(effect), len(rows), len(points if error is None else error)} != {len(points)}:
        raise ValueError("lengths")
    edges = () if is_category else tuple(map(float, values.get("edges") or ()))
    if edges and len(edges) != len(points) - 1:
        raise ValueError("edges")
    found = values.get("missing")
    missing = None
    if found is not None and found.get("rows") != 0:
        error_of_gap, count = found.get("se"), found.get("rows")
        missing = MissingEffect(
            float(found["effect"]), None if error_of_gap is None else float(error_of_gap), float(count or 0), count is None
        )
    name = str(values["name"])
    return Shape(
        name=name,
        values=points,
        effect=effect,
        error=error,
        rows=rows,
        is_category=is_category,
        unit=str(values.get("unit") or labels.find(name).unit),
        missing=missing,
        edf=None if values.get("edf") is None else float(values["edf"]),
        used=bool(values.get("used", True)) and bool(points),
        monotone=values.get("monotone"),
        edges=edges,
        hidden=frozenset(k for k, n in enumerate(values.get("rows") or ()) if n is None),
    )


def _read_sites(values: Mapping[str, Any], shapes: Sequence[Shape]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Read hospitals' own shapes; those on other points than the common shape are left out."""
    points = {s.name: len(s.values) for s in shapes}
    out: dict[str, dict[str, tuple[float, ...]]] = {}
    for site, columns in values.items():
        listed = columns.get("columns", columns)
        pairs = [(str(c["name"]), c["effect"]) for c in listed] if isinstance(listed, list) else listed.items()
        own = {name: tuple(map(float, effect)) for name, effect in pairs}
        out[str(site)] = {name: effect for name, effect in own.items() if len(effect) == points.get(name)}
    return out


def format_value(value: float, decimals: int) -> str:
    """Format a value of a column with so many decimals at most: '54', '0.5'; very small and large ones in powers of ten."""
    if value and not (decimals <= 6 and abs(value) < 1e9):
        return f"{value:.4g}"
    text = f"{value:.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def format_ratio(value: float | None) -> str:
    """Format a ratio: two decimals, more digits for small ones."""
    if value is None:
        return "very large"
    return f"{value:.2f}" if 0.1 <= value < 1000 else f"{value:.2g}"


def format_rows(rows: float) -> str:
    """Format a number of patients; counts with noise may be below zero."""
    return f"{max(0, round(rows)):,}"


def describe_rows(rows: float, *, is_hidden: bool = False) -> str:
    """Write a number of patients: '25 patients', '1 patient', 'number of patients hidden' where it is."""
    if is_hidden:
        return "number of patients hidden"
    return f"{format_rows(rows)} {'patient' if round(rows) == 1 else 'patients'}"


def compare_effect(record: ShapesRecord, effect: float, base: float) -> str:
    """Write an effect against another: 'odds ratio 1.35', or of a linear model '+0.4'."""
    if not record.ratio:
        return f"{effect - base:+.3g}"
    return f"{record.ratio} {format_ratio(to_ratio(effect - base))}"


def describe_point(record: ShapesRecord, shape: Shape, k: int | None) -> str:
    """Describe the effect at one value in a sentence.

    Args:
        record: The shapes of the run.
        shape: The shape.
        k: The place of the value; None for a missing value.
    """
    base = shape.reference
    if k is None:
        assert shape.missing is not None
        effect, rows, name = shape.missing.effect, shape.missing.rows, "missing"
        error = shape.missing.error
        ends = None if error is None else (effect - Z * error, effect + Z * error)
    else:
        effect, rows, name, ends = shape.effect[k], shape.rows[k], shape.describe_value(k), shape.ends(k)
    interval = "" if ends is None else f" (95% CI {ends[0]:+.2f} to {ends[1]:+.2f})"
    ratio = compare_effect(record, effect, shape.effect[base])
    against = "the reference" if k == base else f"{ratio} against {reference_text(shape)}"
    near = "" if shape.is_category or shape.is_step or k is None else " near this value"
    is_hidden = shape.missing is not None and shape.missing.is_hidden if k is None else k in shape.hidden
    behind = f"{describe_rows(rows, is_hidden=is_hidden)}{near}"
    return f"{name}: {record.scale} {effect:+.2f}{interval}; {against}; {behind}."


def reference_text(shape: Shape) -> str:
    """Name the value that others are compared with: '54 years (the median)'."""
    return f"{shape.describe_value(shape.reference)} ({'the most frequent level' if shape.is_category else 'the median'})"


def describe_shape(record: ShapesRecord, shape: Shape, *, most: int = 6) -> str:
    """Describe a shape in a sentence: ratios at the 10th and 90th percentile, or of levels, against the reference.

    Args:
        record: The shapes of the run.
        shape: The shape.
        most: Levels that are named at most, the largest effects first.
    """
    base = shape.effect[shape.reference]
    if shape.is_category:
        held = [k for k in range(len(shape.values)) if shape.rows[k] > 0 or k in shape.hidden or not shape.patients]
        others = [k for k in held if k != shape.reference]
        others.sort(key=lambda k: (-abs(shape.effect[k] - base), k))
        parts = [f"{shape.describe_value(k)} {_amount(record, shape.effect[k], base)}" for k in others[:most]]
        if len(others) > most:
            parts.append(f"and {len(others) - most} more level{'s' * (len(others) - most > 1)}")
    else:
        places = [(shape.quantile(0.1), "10th percentile"), (shape.quantile(0.9), "90th percentile")]
        places = [p for p in places if p[0] != shape.reference] or [(0, "lowest"), (len(shape.values) - 1, "highest")]
        parts = [f"{_amount(record, shape.effect[k], base)} at {shape.describe_value(k)} ({name})" for k, name in places]
    if shape.missing is not None:
        rows = describe_rows(shape.missing.rows, is_hidden=shape.missing.is_hidden)
        parts.append(f"{_amount(record, shape.missing.effect, base)} where it is missing ({rows})")
    name = record.ratio.capitalize() if record.ratio else "Change of the prediction"
    rule = f" The curve {MONOTONE[shape.monotone]} (a constraint of the experiment)." if shape.monotone in MONOTONE else ""
    return f"{name} against {reference_text(shape)}: {'; '.join(parts)}.{rule}"


def _amount(record: ShapesRecord, effect: float, base: float) -> str:
    return format_ratio(to_ratio(effect - base)) if record.ratio else f"{effect - base:+.3g}"


def column_title(shape: Shape, labels: ColumnLabels) -> str:
    """Return the clinical name of a shape's column."""
    return labels.find(shape.name).name


def describe_shapes(record: ShapesRecord, labels: ColumnLabels = NO_LABELS, *, most: int = 3) -> list[str]:
    """Describe the most important shapes in sentences, for the head of a report.

    Args:
        record: The shapes of a run.
        labels: Names and units of the columns.
        most: Shapes to describe at most.
    """
    lines = []
    for shape in record.used[:most]:
        text = describe_shape(record, replace(shape, monotone=None), most=2)
        lines.append(f"{column_title(shape, labels)}: {text[:1].lower()}{text[1:]}")
    if not record.used:
        lines.append("No column has an effect in the model.")
    return lines


def shapes_intro(record: ShapesRecord) -> str:
    """Explain how to read the shapes."""
    ratio = f" A difference of 0.69 doubles the {record.ratio.split()[0] if record.ratio else ''}." if record.ratio else ""
    base = "" if record.intercept is None else f" The sum starts at {record.intercept:+.2f}."
    bands = " Shaded: pointwise 95% bands." if any(s.error is not None for s in record.used) else ""
    model = "The risk card was distilled from this additive model. It" if record.is_behind_card else "The model"
    return (
        f"{model} adds one number for each column: its effect on the {record.scale}.{base}{ratio} A curve shows the effect of a "
        f"number, bars show those of levels; beside them is the number of patients behind each value.{bands} Where few patients "
        "are behind a value, its effect is uncertain. A shape describes an association, not a cause."
    )
