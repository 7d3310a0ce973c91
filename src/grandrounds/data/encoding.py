"""Encoding of clinical columns as the model's inputs, agreed between all sites.

Made once from the merged summaries, sent to every site, saved with the model: whoever scores a
patient later uses the same numbers. Missing values are filled with the consortium's median and
marked by an indicator where gaps are common enough to mean something. Values beyond the range that
the consortium agreed on are clipped to it before mean and deviation are taken, so that one artefact
can neither decide a risk nor wipe a column out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION, REGRESSION, SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.data.dataset import Dataset
from grandrounds.data.design import (
    INTERCEPT,
    OTHER,
    describe_filled,
    describe_levels,
    multiply,
    original_units,
    product_name,
    product_places,
    reference_levels,
)
from grandrounds.data.outcome import Outcome
from grandrounds.data.subgroups import Grouping, agree_groupings, groupings_from, groupings_to_dict, plan_bands
from grandrounds.data.summary import Moments, Summary
from grandrounds.data.table import Table

INDICATOR_SHARE = 0.01
"""A missing-value indicator is made where at least this share of the consortium's rows lacks the value."""

_MANY = 20  # columns with fewer distinct values than this are codes or counts: rare ones are no artefacts
_WIDE = 1e300  # a bound that draws nothing in
_FARTHEST = 1e30  # an input that is too large for its type becomes this one, so that every row has numbers
_FAR = 20.0  # times the way from the median to the end of the range: no measurement lies there
_SPREAD = 500.0  # times the distance of the quartiles: no range is as wide as that


@dataclass(frozen=True)
class Numeric:
    """x -> (clip(x or fill, low, high) - centre) / scale, and 1 where x was missing if `indicator`."""

    name: str
    fill: float
    low: float
    high: float
    centre: float
    scale: float
    indicator: bool

    def count_far(self, x: Array) -> int:
        """Count the values so far outside the agreed range that none is a measurement."""
        if self.high == _WIDE:
            return 0
        low, high = (_FAR * max(abs(end - self.fill), self.scale) for end in (self.low, self.high))
        return int(((x > self.fill + high) | (x < self.fill - low)).sum())


@dataclass(frozen=True)
class Categorical:
    """One 0/1 input for each level; `other` gathers rare levels and those never seen in training.

    A column of two levels needs one input: `baseline` is the level that reads 0. With data.coding = "reference" every column
    has such a level.
    """

    name: str
    levels: tuple[str, ...]
    other: bool
    baseline: str = ""


@dataclass(frozen=True)
class Encoding:
    """The rule that turns rows into inputs (n, d), in feature order: numeric, indicators, categories, products."""

    numeric: tuple[Numeric, ...]
    categorical: tuple[Categorical, ...]
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    groups: tuple[str, ...] = ()
    public: bool = False  # made of what is known beforehand: no row was looked at
    event: str | None = None  # the class whose probability is the risk; None: there are not two
    products: tuple[tuple[str, ...], ...] = ()  # columns that are multiplied with each other
    left_out: Mapping[str, str] = field(default_factory=dict)  # columns that read 0 everywhere, with the reason
    by_column: bool = False  # data.coding = "columns": inputs lose nothing of a column (models/columns.py)
    outcome: Outcome | None = None  # of tasks other than classification; `classes` are then those of the event, or none
    subgroups: tuple[Grouping, ...] = ()  # groups of the columns of evaluation.subgroups

    @property
    def task(self) -> str:
        """The type of the outcome."""
        return CLASSIFICATION if self.outcome is None else self.outcome.task

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        single = self._single
        return (*single, *(product_name([single[j] for j in p]) for p in self.product_places))

    @cached_property
    def _single(self) -> tuple[str, ...]:
        """The names of the inputs that are no products."""
        return (
            *(r.name for r in self.numeric),
            *(f"{r.name} missing" for r in self.numeric if r.indicator),
            *(f"{r.name}={level}" for r in self.categorical for level in (*r.levels, *([OTHER] if r.other else []))),
        )

    @cached_property
    def product_places(self) -> tuple[tuple[int, ...], ...]:
        """For each input that is a product, the places of its factors among the inputs."""
        if not self.products:
            return ()
        gaps = sum(r.indicator for r in self.numeric)
        places: dict[str, list[int]] = {}
        for j, source in enumerate(self._single_sources):
            if not len(self.numeric) <= j < len(self.numeric) + gaps:
                places.setdefault(source, []).append(j)
        return tuple(product_places(self.products, places))

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row of inputs."""
        return (len(self.features),)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """For each input the clinical column it comes from; for a product its columns, as "age:sex"."""
        single = self._single_sources
        return (*single, *(product_name([single[j] for j in p]) for p in self.product_places))

    @cached_property
    def _single_sources(self) -> tuple[str, ...]:
        return (
            *(r.name for r in self.numeric),
            *(r.name for r in self.numeric if r.indicator),
            *(r.name for r in self.categorical for _ in range(len(r.levels) + r.other)),
        )

    def encode(self, data: Dataset, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """Encode a data set as inputs (n, d); `notes` lists what had to be filled in."""
        blocks = [*self._numeric(data), *self._categorical(data)]
        x = np.concatenate(blocks, axis=1) if blocks else np.empty((len(data), 0))
        if self.products:
            x = np.concatenate([x, multiply(x, self.product_places)], axis=1)
        with np.errstate(over="ignore"):
            out = np.ascontiguousarray(x, dtype=dtype)
        if not np.isfinite(out).all():  # a cell or a product beyond the range of the type
            np.nan_to_num(out, copy=False, posinf=_FARTHEST, neginf=-_FARTHEST)
        return out

    def original_units(self) -> tuple[tuple[str, ...], Array]:
        """Return the linear map from coefficients of inputs to coefficients in original units.

        Returns:
            The names of the coefficients, the intercept first, and A with b_original = A b_fitted. The covariance is A V A'.
        """
        others = len(self._single) - len(self.numeric)
        centre = [*(r.centre for r in self.numeric), *[0.0] * others]
        scale = [*(r.scale for r in self.numeric), *[1.0] * others]
        return (INTERCEPT, *self.features), original_units(centre, scale, self.product_places)

    def notes(self, data: Dataset) -> list[str]:
        """List columns that are absent, empty or far out of range here, and categories nobody trained on."""
        out = []
        middle = "the middle of its usual range" if self.public else "the consortium's median"
        index = {name: j for j, name in enumerate(data.numeric_names)}
        for rule in self.numeric:
            read = "it reads as missing" if self.by_column and rule.indicator else f"{middle} is used instead"
            if rule.name not in index:
                out.append(f"column '{rule.name}' is absent: {read}")
                continue
            x = data.numeric[:, index[rule.name]]
            if len(data) and np.isnan(x).all():
                out.append(f"column '{rule.name}' has no value here: {read}")
            far = int(rule.count_far(x))
            if far:
                values = "1 value is" if far == 1 else f"{far} values are"
                out.append(
                    f"column '{rule.name}': {values} far outside its range; look for entry errors or another unit"
                )
        index = {name: j for j, name in enumerate(data.categorical_names)}
        for cat in self.categorical:
            read = "it reads as missing" if self.by_column else "all its categories read 0"
            if cat.name not in index:
                out.append(f"column '{cat.name}' is absent: {read}")
                continue
            codes = np.unique(data.codes[:, index[cat.name]])
            levels = {*cat.levels, cat.baseline}
            new = [w for i in codes if i >= 0 and (w := data.vocabulary[index[cat.name]][i]) not in levels]
            if new and not cat.other:
                nothing = "missing" if self.by_column else "no category"
                out.append(f"category '{new[0]}' of '{cat.name}' was not seen in training: it reads as {nothing}")
            if len(codes) and codes[-1] < 0:
                out.append(f"column '{cat.name}' has no value here: {read}")
        return out

    def absent_columns(self, table: Table) -> tuple[str, ...]:
        """List the columns of the inputs that a table lacks."""
        names = (*(rule.name for rule in self.numeric), *(rule.name for rule in self.categorical))
        return tuple(name for name in names if name not in table.columns and name not in self.left_out)

    def labels(self, data: Dataset) -> Array:
        """Number the classes (n,); a label the consortium has never trained on is refused.

        Of other tasks these are the numbers as recorded, or for survival 1 where the event was observed.
        """
        if self.task == SURVIVAL:
            return np.asarray(data.label == self.event).astype(np.int64)
        if data.outcome is not None and self.outcome is not None:
            return np.asarray(data.outcome, np.float64)
        return class_numbers(data.label, self.classes, where=f"column '{data.schema.label}'", public=self.public)

    def level_names(self) -> tuple[tuple[str, ...], ...]:
        """Return the agreed levels of each categorical column, also one that is left out of the inputs; "other" comes last."""
        return tuple(
            (*sorted({*r.levels, *([r.baseline] if r.baseline else [])}), *(["other"] if r.other else []))
            for r in self.categorical
        )

    def level_numbers(self, data: Dataset) -> Array:
        """Return the place of each categorical value among `level_names`, (n, q); -1 where it is missing or unknown."""
        index = {name: j for j, name in enumerate(data.categorical_names)}
        out = np.full((len(data), len(self.categorical)), -1, np.int64)
        for k, (rule, names) in enumerate(zip(self.categorical, self.level_names(), strict=True)):
            if rule.name in index:
                place = {level: i for i, level in enumerate(names)}
                rest = len(names) - 1 if rule.other else -1
                j = index[rule.name]
                table = np.array([*(place.get(word, rest) for word in data.vocabulary[j]), -1], np.int64)
                out[:, k] = table[data.codes[:, j]]
        return out

    def group_numbers(self, groups: Sequence[str]) -> Array:
        """Number the subgroups (n,); the last number is for subgroups never seen in training."""
        return index_in(groups, self.groups)

    def _numeric(self, data: Dataset) -> list[Array]:
        rules = self.numeric
        if not rules:
            return []
        index = {name: j for j, name in enumerate(data.numeric_names)}
        nothing = np.full(len(data), np.nan)
        x = np.stack([data.numeric[:, index[r.name]] if r.name in index else nothing for r in rules], axis=1)
        gap = np.isnan(x)
        numbers = np.array([(r.fill, r.low, r.high, r.centre, r.scale) for r in rules]).T
        fill, low, high, centre, scale = numbers
        with np.errstate(over="ignore"):
            x = (np.clip(np.where(gap, fill, x), low, high) - centre) / scale
        return [x, gap[:, [r.indicator for r in rules]].astype(float)]

    def _categorical(self, data: Dataset) -> list[Array]:
        index = {name: j for j, name in enumerate(data.categorical_names)}
        blocks = []
        for rule in self.categorical:
            width = len(rule.levels) + rule.other
            if rule.name not in index:
                blocks.append(np.zeros((len(data), width)))
                continue
            j = index[rule.name]
            place = {rule.baseline: width} if rule.baseline else {}
            place |= {level: i for i, level in enumerate(rule.levels)}
            rest = len(rule.levels) if rule.other else width
            table = np.array([place.get(word, rest) for word in data.vocabulary[j]] + [width], np.int64)
            code = table[data.codes[:, j]]  # -1, missing, takes the last entry
            blocks.append(np.eye(width + 1)[code][:, :width])
        return blocks

    def to_dict(self) -> dict[str, object]:
        values = {name: v for name, v in asdict(self).items() if name != "subgroups"}
        return {name: v for name, v in values.items() if v or name not in _OPTIONAL} | groupings_to_dict(self.subgroups)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Encoding:
        return cls(
            numeric=tuple(Numeric(**r) for r in d["numeric"]),
            categorical=tuple(Categorical(**{**r, "levels": tuple(r["levels"])}) for r in d["categorical"]),
            classes=tuple(d["classes"]),
            class_counts=tuple(d["class_counts"]),
            groups=tuple(d["groups"]),
            public=bool(d.get("public", False)),
            event=d.get("event"),
            products=tuple(tuple(p) for p in d.get("products", ())),
            left_out=dict(d.get("left_out", {})),
            by_column=bool(d.get("by_column", False)),
            outcome=Outcome.from_dict(d["outcome"]) if d.get("outcome") else None,
            subgroups=groupings_from(d),
        )


_OPTIONAL = ("public", "event", "products", "left_out", "by_column", "outcome")
"""Fields that are written only where they are set."""


def class_numbers(label: Array, classes: Sequence[str], *, where: str, public: bool = False) -> Array:
    """Number labels (n,) by `classes`; one that is not among them is refused, with a suggested fix."""
    unknown = sorted(set(label.tolist()) - set(classes))
    if unknown and public:
        raise BadInput(
            f"label '{unknown[0]}' in {where} is not one of the listed classes: add it to "
            f"data.levels ({nearest(unknown[0], classes)})",
            code="unknown-class",
        )
    if unknown:
        raise BadInput(
            f"label '{unknown[0]}' in {where} is on no training row, so it cannot be learnt; "
            f"merge rare classes or leave those rows out ({nearest(unknown[0], classes)})",
            code="untrained-class",
        )
    return index_in(label.tolist(), classes)


def index_in(words: Sequence[str], levels: Sequence[str]) -> Array:
    """Find the place (n,) of each word among the levels; len(levels) for a word that is not among them."""
    order = {name: i for i, name in enumerate(levels)}
    return np.array([order.get(word, len(order)) for word in words], np.int64)


@dataclass(frozen=True)
class EncodingRules:
    """The experiment's settings of the preparation (section [data])."""

    scale: str = "standard"
    impute: str = "median"
    clip: float = 0.001
    max_categories: int = 30
    positive: str | None = None
    coding: str = "levels"
    complete: bool = False
    products: tuple[tuple[str, ...], ...] = ()
    least: int = 0  # rows of a level over all sites, with coding "reference"
    task: str = CLASSIFICATION  # the type of the outcome, as the rows have it
    subgroups: tuple[str, ...] = ()  # columns whose groups are compared
    bands: Mapping[str, Sequence[float]] = field(default_factory=dict)  # cuts of those that are numbers

    @property
    def by_column(self) -> bool:
        """True if inputs lose nothing of a column: original units, all gaps marked, an input for each level."""
        return self.coding == "columns"

    @classmethod
    def from_plan(cls, plan: Plan) -> EncodingRules:
        """Read the settings of a plan."""
        d = plan.data
        exact = getattr(plan.method, "exact", None)  # a section of statistics: without it no level is too small
        return cls(
            "none" if d.coding == "columns" else d.scale,
            d.impute,
            0.0 if d.coding == "columns" else d.clip,
            d.max_categories,
            d.positive,
            coding=d.coding,
            complete=d.complete,
            products=tuple(tuple(p) for p in d.products),
            least=exact.least if exact and d.coding == "reference" else 0,
            subgroups=tuple(plan.evaluation.subgroups),
            bands=plan_bands(plan.evaluation),
        )


def agree_ranges(total: Summary, *, clip: float) -> tuple[Array, Array]:
    """Agree on the range (p,), (p,) that values of each numeric column are clipped to: `clip` on either side.

    A column of few distinct values (codes, counts) has no tails to cut. Its range reaches from the least to the
    greatest value that occurs twice, and as far again on either side.

    Args:
        total: The merged summary of all sites.
        clip: The share of rows on either side that is drawn in; 0 draws nothing in.

    Returns:
        The lower and the upper end of each column's range.
    """
    p = len(total.count)
    low, high = np.full(p, -_WIDE), np.full(p, _WIDE)
    for j in range(p) if clip > 0 else ():
        values, count = total.cells.of_column(j)
        if len(values) >= _MANY:
            rank, n = np.cumsum(count), int(count.sum())
            outside = max(clip * (n - 1), 1.0)
            ends = np.searchsorted(rank, np.array([outside + 1, n - outside]) - 1e-9)
            if values[ends[1]] > values[ends[0]]:
                low[j], high[j] = values[ends]
        elif (count > 1).any():
            least, greatest = values[count > 1][[0, -1]]
            with np.errstate(over="ignore"):  # of values that no sum of squares can hold (`Moments`)
                beyond = max(greatest - least, 0.01 * max(abs(least), abs(greatest)))
                low[j], high[j] = least - beyond, greatest + beyond
    return low, high


def find_artefacts(total: Summary, low: Array, high: Array, *, names: Sequence[str]) -> list[str]:
    """Warn of each numeric column whose extreme value or range is absurd beside its quartiles."""
    quarter, median, three = total.cells.quantiles(np.array([0.25, 0.5, 0.75]), columns=len(names))
    out = []
    for j, name in enumerate(names):
        values, _ = total.cells.of_column(j)
        if not len(values) or high[j] == _WIDE:
            continue
        middle = three[j] - quarter[j]
        for side, value, end in (("smallest", values[0], low[j]), ("largest", values[-1], high[j])):
            extreme, reach = abs(value - median[j]), abs(end - median[j])
            if extreme > _FAR * max(reach, middle) or reach > _SPREAD * middle > 0:
                out.append(
                    f"column '{name}': the {side} value is about {value:.3g}, and half of all values lie between "
                    f"{quarter[j]:.4g} and {three[j]:.4g}; look for entry errors or another unit. Values below "
                    f"{low[j]:.4g} and above {high[j]:.4g} are clipped to that range"
                )
    return out


def make_encoding(
    total: Summary, moments: Moments, *, numeric: Sequence[str], categorical: Sequence[str], rules: EncodingRules
) -> Encoding:
    """Make the encoding from the merged summaries of all sites.

    Args:
        total: The merged summary.
        moments: The merged moments within `agree_ranges`.
        numeric: The names of numeric columns.
        categorical: The names of categorical columns.
        rules: The experiment's settings.
    """
    low, high = agree_ranges(total, clip=rules.clip)
    quarter, median, three = total.cells.quantiles(np.array([0.25, 0.5, 0.75]), columns=len(numeric))
    out = []
    left_out = {}
    for j, name in enumerate(numeric):
        if total.count[j] == 0:
            out.append(Numeric(name, 0.0, 0.0, 0.0, 0.0, 1.0, False))
            continue
        centre, scale = float(moments.mean[j]), float(moments.deviation[j])
        small = _small_column(total, j, rules.least, deviation=scale)
        if small is not None:
            left_out[name] = f"all but fewer than {rules.least} rows have one value"
            out.append(Numeric(name, small, small, small, small, 1.0, False))
            continue
        if rules.scale == "robust":
            centre, scale = float(median[j]), float(three[j] - quarter[j]) / 1.349
        elif rules.scale == "none":
            centre, scale = 0.0, 1.0
        share = 1 - total.count[j] / total.rows
        out.append(
            Numeric(
                name,
                fill=float(median[j] if rules.impute == "median" else moments.mean[j]),
                low=float(low[j]),
                high=float(high[j]),
                centre=centre,
                scale=scale if scale > 1e-12 else 1.0,
                indicator=bool(share > 0 if rules.by_column else share >= INDICATOR_SHARE) and not rules.complete,
            )
        )
    return Encoding(
        numeric=tuple(out),
        categorical=tuple(_levels(name, counts, rules) for name, counts in zip(categorical, total.levels, strict=True)),
        **order_classes(total.classes, rules.positive),
        groups=tuple(sorted(total.groups)),
        products=rules.products,
        left_out=left_out,
        by_column=rules.by_column,
        outcome=_round_units(agree_outcome(total, rules.task)) if rules.by_column else agree_outcome(total, rules.task),
        subgroups=agree_groupings(rules.subgroups, rules.bands, total.subgroups, numeric=numeric, cells=total.cells),
    )


def describe_design(encoding: Encoding, total: Summary, rules: EncodingRules) -> list[str]:
    """State which levels were merged, which columns were left out because few rows have a value, and what was filled in.

    Args:
        encoding: The encoding that was agreed on.
        total: The merged summary of all sites.
        rules: The experiment's settings.

    Returns:
        Sentences; none without data.coding = "reference".
    """
    if rules.coding != "reference":
        return []
    out = [f"column '{name}' is left out: {reason} (exact.least)" for name, reason in encoding.left_out.items()]
    for rule, counts in zip(encoding.categorical, total.levels, strict=True):
        named = (*rule.levels, rule.baseline)
        out += describe_levels(rule.name, counts, named, other=rule.other, least=rules.least)
    filled = f"were filled with the {rules.impute}"
    for number, known in zip(encoding.numeric, total.count, strict=True):
        out += describe_filled(number.name, total.rows - int(known), filled)
    for rule, counts in zip(encoding.categorical, total.levels, strict=True):
        out += describe_filled(rule.name, total.rows - sum(counts.values()), f"count as the reference '{rule.baseline}'")
    return out


def _small_column(total: Summary, column: int, least: int, *, deviation: float) -> float | None:
    """Return the usual value of a numeric column from which fewer than `least` rows differ; None for any other column.

    A column with two values is a category: the sums over the rows of its rare value are those patients' values. Cells of the
    summary are 0.2% wide; a column that varies within its usual cell, such as a year, has a larger deviation than its cells.
    """
    if not least:
        return None
    values, count = total.cells.of_column(column)
    most = int(count.argmax())
    between = float(np.average((values - np.average(values, weights=count)) ** 2, weights=count))
    is_small = 0 < count.sum() - count[most] < least and deviation**2 <= 1.02 * between
    return float(values[most]) if is_small else None


def _levels(name: str, counts: Mapping[str, int], rules: EncodingRules) -> Categorical:
    """Choose the most frequent levels, in alphabetical order; two levels need one input only."""
    most = rules.max_categories
    if rules.coding == "reference":
        reference, named, rest = reference_levels(counts, most=most, least=rules.least)
        return Categorical(name, named, rest, baseline=reference)
    levels = sorted(sorted(counts, key=lambda w: (-counts[w], w))[:most])
    if len(levels) == 2 and len(counts) == 2 and not rules.by_column:
        return Categorical(name, (levels[1],), False, baseline=levels[0])
    return Categorical(name, tuple(levels), len(counts) > most)


def agree_outcome(total: Summary, task: str) -> Outcome | None:
    """Agree on the units in which the outcome is trained, from the merged summary; None for classification.

    Raises:
        BadInput: The outcome has no value at any site, or one value only.
    """
    if task == CLASSIFICATION:
        return None
    if task == SURVIVAL:
        return Outcome(task)
    count, mean, m2 = (0.0, 0.0, 0.0) if total.outcome is None else total.outcome.tolist()
    scale = np.sqrt(m2 / max(count, 1)) if task == REGRESSION else mean
    if not count or not scale > 0:
        raise BadInput(
            "the label has one value only in the training rows of all sites: nothing can be learnt", code="constant-label"
        )
    return Outcome(task, centre=mean if task == REGRESSION else 0.0, scale=float(scale))


def _round_units(outcome: Outcome | None) -> Outcome | None:
    """Round the units of an outcome to 9 digits, so that they do not depend on how rows are divided into sites."""
    if outcome is None:
        return None
    return replace(outcome, centre=float(f"{outcome.centre:.9g}"), scale=float(f"{outcome.scale:.9g}"))


class OrderedClasses(TypedDict):
    """Classes in the order of an encoding, and the rows of each."""

    classes: tuple[str, ...]
    class_counts: tuple[int, ...]


def order_classes(counts: Mapping[str, int], positive: str | None) -> OrderedClasses:
    """Order classes: numbers by size, words by alphabet; the positive class of two comes last."""

    def key(word: str) -> tuple[int, float, str]:
        try:
            return 0, float(word), word
        except ValueError:
            return 1, 0.0, word

    names = sorted(counts, key=key)
    if positive is not None:
        if positive not in counts:
            raise BadInput(
                f"data.positive is '{positive}', which is not a class; classes are: {', '.join(names)}",
                code="unknown-class",
            )
        if len(names) > 2:
            raise BadInput(
                f"data.positive needs two classes; there are {len(names)}: {', '.join(names)}", code="needs-two-classes"
            )
        names = [n for n in names if n != positive] + [positive]
    return {"classes": tuple(names), "class_counts": tuple(counts[n] for n in names)}
