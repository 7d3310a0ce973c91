"""From clinical columns to the model's inputs: the agreement all sites prepare their rows by.

Made once from the merged summaries, sent to every site, saved with the model: whoever scores a
patient later uses the same numbers. Missing values are filled with the consortium's median and
marked by an indicator where gaps are common enough to mean something; values beyond the
consortium's outermost quantiles are drawn in, so that one artefact cannot decide a risk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.dataset import Dataset
from grandrounds.data.summary import Summary
from grandrounds.errors import BadInput, nearest

INDICATOR_SHARE = 0.01
"""A missing-value indicator is made where at least this share of the consortium's rows lacks the value."""

_MANY = 20  # columns with fewer distinct values than this are codes or counts: nothing to draw in


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


@dataclass(frozen=True)
class Categorical:
    """One 0/1 input for each level; `other` gathers rare levels and those never seen in training.

    A column of two levels needs one input: `baseline` is the level that reads 0.
    """

    name: str
    levels: tuple[str, ...]
    other: bool
    baseline: str = ""


@dataclass(frozen=True)
class Encoding:
    """How rows become inputs (n, d), in feature order: numeric, indicators, categories."""

    numeric: tuple[Numeric, ...]
    categorical: tuple[Categorical, ...]
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    groups: tuple[str, ...] = ()
    public: bool = False  # made of what is known beforehand: no row was looked at

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return (
            *(r.name for r in self.numeric),
            *(f"{r.name} missing" for r in self.numeric if r.indicator),
            *(f"{r.name}={level}" for r in self.categorical for level in (*r.levels, *(["other"] if r.other else []))),
        )

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row of inputs."""
        return (len(self.features),)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """For each input the clinical column it comes from."""
        return (
            *(r.name for r in self.numeric),
            *(r.name for r in self.numeric if r.indicator),
            *(r.name for r in self.categorical for _ in range(len(r.levels) + r.other)),
        )

    def encode(self, data: Dataset, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """The inputs (n, d) of a data set; `notes` says what had to be made up."""
        blocks = [*self._numeric(data), *self._categorical(data)]
        x = np.concatenate(blocks, axis=1) if blocks else np.empty((len(data), 0))
        return np.ascontiguousarray(x, dtype=dtype)

    def notes(self, data: Dataset) -> list[str]:
        """Columns that are absent or empty here, and categories nobody trained on."""
        out = []
        middle = "the middle of its usual range" if self.public else "the consortium's median"
        at = {name: j for j, name in enumerate(data.numeric_names)}
        for rule in self.numeric:
            if rule.name not in at:
                out.append(f"column '{rule.name}' is absent: {middle} stands in for it")
            elif len(data) and np.isnan(data.numeric[:, at[rule.name]]).all():
                out.append(f"column '{rule.name}' has no value here: {middle} stands in for it")
        at = {name: j for j, name in enumerate(data.categorical_names)}
        for cat in self.categorical:
            if cat.name not in at:
                out.append(f"column '{cat.name}' is absent: all its categories read 0")
                continue
            seen = np.unique(data.codes[:, at[cat.name]])
            known = {*cat.levels, cat.baseline}
            new = [w for i in seen if i >= 0 and (w := data.vocabulary[at[cat.name]][i]) not in known]
            if new and not cat.other:
                out.append(f"category '{new[0]}' of '{cat.name}' was not seen in training: it reads as no category")
            if len(seen) and seen[-1] < 0:
                out.append(f"column '{cat.name}' has no value here: all its categories read 0")
        return out

    def labels(self, data: Dataset) -> Array:
        """Class numbers (n,); a label the consortium has never trained on is refused."""
        return class_numbers(data.label, self.classes, where=f"column '{data.schema.label}'", public=self.public)

    def group_numbers(self, groups: Sequence[str]) -> Array:
        """Subgroup numbers (n,); the last number is for subgroups never seen in training."""
        return place_in(groups, self.groups)

    def _numeric(self, data: Dataset) -> list[Array]:
        rules = self.numeric
        if not rules:
            return []
        at = {name: j for j, name in enumerate(data.numeric_names)}
        nothing = np.full(len(data), np.nan)
        x = np.stack([data.numeric[:, at[r.name]] if r.name in at else nothing for r in rules], axis=1)
        gap = np.isnan(x)
        numbers = np.array([(r.fill, r.low, r.high, r.centre, r.scale) for r in rules]).T
        fill, low, high, centre, scale = numbers
        x = (np.clip(np.where(gap, fill, x), low, high) - centre) / scale
        return [x, gap[:, [r.indicator for r in rules]].astype(float)]

    def _categorical(self, data: Dataset) -> list[Array]:
        at = {name: j for j, name in enumerate(data.categorical_names)}
        blocks = []
        for rule in self.categorical:
            width = len(rule.levels) + rule.other
            if rule.name not in at:
                blocks.append(np.zeros((len(data), width)))
                continue
            j = at[rule.name]
            place = {level: i for i, level in enumerate(rule.levels)}
            rest = len(rule.levels) if rule.other else width
            table = np.array([place.get(word, rest) for word in data.vocabulary[j]] + [width], np.int64)
            code = table[data.codes[:, j]]  # -1, missing, takes the last entry
            blocks.append(np.eye(width + 1)[code][:, :width])
        return blocks

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return values if self.public else {name: v for name, v in values.items() if name != "public"}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Encoding:
        return cls(
            numeric=tuple(Numeric(**r) for r in d["numeric"]),
            categorical=tuple(Categorical(**{**r, "levels": tuple(r["levels"])}) for r in d["categorical"]),
            classes=tuple(d["classes"]),
            class_counts=tuple(d["class_counts"]),
            groups=tuple(d["groups"]),
            public=bool(d.get("public", False)),
        )


def class_numbers(label: Array, classes: Sequence[str], *, where: str, public: bool = False) -> Array:
    """Labels (n,) as numbers into `classes`; one that is not among them is refused, with the way out."""
    unknown = sorted(set(label.tolist()) - set(classes))
    if unknown and public:
        raise BadInput(
            f"label '{unknown[0]}' in {where} is not one of the classes that were said to be all: list it in "
            f"data.levels too ({nearest(unknown[0], classes)})"
        )
    if unknown:
        raise BadInput(
            f"label '{unknown[0]}' in {where} is on no training row, so it cannot be learnt; "
            f"merge rare classes or leave those rows out ({nearest(unknown[0], classes)})"
        )
    return place_in(label.tolist(), classes)


def place_in(words: Sequence[str], known: Sequence[str]) -> Array:
    """The place (n,) of each word among the known ones; len(known) for a word that is not there."""
    order = {name: i for i, name in enumerate(known)}
    return np.array([order.get(word, len(order)) for word in words], np.int64)


@dataclass(frozen=True)
class EncodingRules:
    """The experiment's say in the preparation (section [data])."""

    scale: str = "standard"
    impute: str = "median"
    clip: float = 0.001
    max_categories: int = 30
    positive: str | None = None


def make_encoding(
    total: Summary, *, numeric: Sequence[str], categorical: Sequence[str], rules: EncodingRules
) -> Encoding:
    """The encoding that the merged summary of all sites asks for."""
    p = len(numeric)
    low, quarter, median, three, high = total.cells.quantiles(
        np.array([rules.clip, 0.25, 0.5, 0.75, 1 - rules.clip]), columns=p
    )
    deviation = np.sqrt(total.m2 / np.maximum(total.count, 1))
    many = (total.cells.distinct(p) >= _MANY) & (rules.clip > 0) & (high > low)
    out = []
    for j, name in enumerate(numeric):
        if total.count[j] == 0:
            out.append(Numeric(name, 0.0, 0.0, 0.0, 0.0, 1.0, False))
            continue
        centre, scale = float(total.mean[j]), float(deviation[j])
        if rules.scale == "robust":
            centre, scale = float(median[j]), float(three[j] - quarter[j]) / 1.349
        elif rules.scale == "none":
            centre, scale = 0.0, 1.0
        share = 1 - total.count[j] / total.rows
        out.append(
            Numeric(
                name,
                fill=float(median[j] if rules.impute == "median" else total.mean[j]),
                low=float(low[j]) if many[j] else -1e300,
                high=float(high[j]) if many[j] else 1e300,
                centre=centre,
                scale=scale if scale > 1e-12 else 1.0,
                indicator=bool(share >= INDICATOR_SHARE),
            )
        )
    return Encoding(
        numeric=tuple(out),
        categorical=tuple(
            _levels(name, counts, rules.max_categories) for name, counts in zip(categorical, total.levels, strict=True)
        ),
        **ordered_classes(total.classes, rules.positive),
        groups=tuple(sorted(total.groups)),
    )


def _levels(name: str, counts: Mapping[str, int], most: int) -> Categorical:
    """The most frequent levels, in alphabetical order; two levels need one input only."""
    kept = sorted(sorted(counts, key=lambda w: (-counts[w], w))[:most])
    if len(kept) == 2 and len(counts) == 2:
        return Categorical(name, (kept[1],), False, baseline=kept[0])
    return Categorical(name, tuple(kept), len(counts) > most)


def ordered_classes(counts: Mapping[str, int], positive: str | None) -> dict[str, Any]:
    """Classes in order: numbers by size, words by alphabet; the positive class of two comes last."""

    def key(word: str) -> tuple[int, float, str]:
        try:
            return 0, float(word), word
        except ValueError:
            return 1, 0.0, word

    names = sorted(counts, key=key)
    if positive is not None:
        if positive not in counts:
            raise BadInput(f"data.positive is '{positive}', which is no class; classes are: {', '.join(names)}")
        if len(names) > 2:
            raise BadInput(f"data.positive needs two classes; there are {len(names)}: {', '.join(names)}")
        names = [n for n in names if n != positive] + [positive]
    return {"classes": tuple(names), "class_counts": tuple(counts[n] for n in names)}
