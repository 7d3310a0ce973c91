"""The sites' half of method 'watch': count new patients and reference patients in agreed bins, and compare the two.

New patients are those that the hospital names (`[watch] table` in site.toml), or in a simulation a table or the test rows.
Reference patients are the site's own: training and validation rows for columns, validation rows for what the model makes of
them. Of a patient with several rows one counts.

Only the comparisons leave the site, and one yes or no for each check (`moved`). With a noise in the Ask, every count has noise
before it is compared, and all that is sent follows from the noisy counts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.small_cells import hide_cells
from grandrounds.capabilities.watch.method.bins import WatchBins
from grandrounds.capabilities.watch.method.comparison import (
    FEWEST,
    Comparison,
    compare_counts,
    compare_means,
    compare_shares,
    fisher_p,
    holm,
    join_p,
    student_p,
    trend_p,
)
from grandrounds.capabilities.watch.method.task import WATCH
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import task_of
from grandrounds.explain.explainers.shapley import Shap
from grandrounds.explain.features import build_features
from grandrounds.models.dense import class_probabilities
from grandrounds.protocol.messages import Ask
from grandrounds.site.evaluate import score
from grandrounds.site.platt import LIMIT
from grandrounds.site.plugin import Columns, SitePlugin, Task
from grandrounds.site.stack import Patients

_log = logging.getLogger("grandrounds.site")

_LARGEST = 1e300
"""Bound of one attribution, so that a patient's sum of them is finite."""

UNIT = 1024
"""Noise is drawn in whole numbers of 1/1024 patients, so that shares and risks can be rounded to them."""

ALARMS = "alarms"
"""Value of method.watch.moved: features moved by the alarms of the site's own watch."""

SCORE, EXPLANATION, MEANS = "score", "explanation", "means"
CALIBRATION, EVENTS, RESIDUAL = "calibration", "events", "residual"
"""Blocks of an answer beside those of columns."""


def parameters_digest(theta: Array) -> str:
    """Compute the SHA-256 of a model's parameters as doubles, by which a plan names a model."""
    return hashlib.sha256(np.ascontiguousarray(theta, "<f8").tobytes()).hexdigest()


@dataclass(frozen=True)
class WatchLayout:
    """Places of the numbers in an answer: comparisons by block, flags of checks, and counts of patients.

    Attributes:
        bins: The agreed bins.
        features: Features of explanations.
        numbers: Numeric columns, whose means are compared; none under a privacy budget.
    """

    bins: WatchBins
    features: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def blocks(self) -> dict[str, int]:
        """Return the number of bins of each block, in order; columns by their place."""
        own = {f"column {c}": len(column.names) for c, column in enumerate(self.bins.columns)}
        scores = len(self.bins.score_names)
        return {
            **own,
            SCORE: scores,
            EXPLANATION: len(self.features),
            MEANS: len(self.numbers),
            CALIBRATION: scores,
            EVENTS: 1,
            RESIDUAL: 1,
        }

    @property
    def checks(self) -> tuple[tuple[str, str], ...]:
        """Return kind and feature of each flag."""
        return (
            *(("input", c.name) for c in self.bins.columns),
            *(("explanation", name) for name in self.features),
            ("score", ""),
            ("calibration", ""),
        )

    @property
    def size(self) -> int:
        """Return the length of an answer."""
        return 3 * sum(self.blocks.values()) + len(self.checks) + 4

    def pack(self, comparisons: Mapping[str, Comparison], flags: Array, counts: Array) -> Array:
        """Return an answer: comparisons, flags, and the numbers of new, reference and labelled patients and of sites."""
        return np.concatenate([*(comparisons[name].pack() for name in self.blocks), flags, counts]).astype(float)

    def unpack(self, vector: Array) -> tuple[dict[str, Comparison], Array, Array]:
        """Read an answer, or a sum of answers."""
        out, first = {}, 0
        for name, size in self.blocks.items():
            out[name] = Comparison.unpack(vector[first : first + 3 * size])
            first += 3 * size
        return out, np.asarray(vector[first:-4], float), np.asarray(vector[-4:], float)


@dataclass(frozen=True)
class _Group:
    """New or reference patients: counts by bin, and what the model makes of them."""

    columns: list[Array]  # counts by bin
    score: Array  # counts by bin
    shares: Array  # (n, F) shares of attributions
    observed: Array  # events by bin of the score, of labelled patients
    expected: Array  # sums of risks by bin
    spread: Array  # sums of p (1 - p) by bin
    residuals: Array  # (l,) outcome minus risk of labelled patients
    numbers: Array  # (n, P) numbers in units of training, NaN missing
    patients: int


class WatchSite(SitePlugin):
    """The sites' half of method 'watch'."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {WATCH: self._answer}

    def _answer(self, ask: Ask, members: Array) -> Columns:
        encoding = self.site.encoding
        if not isinstance(encoding, Encoding) or not isinstance(self.site.stack.data, Dataset):
            raise BadInput("method 'watch' needs the columns of a table", code="needs-table")
        theta = np.asarray(ask.shared["model"])
        if parameters_digest(theta) != str(ask.shared["digest"]):
            raise BadInput("the model that was sent is not the one that the plan names", code="other-model")
        bins = WatchBins.from_encoding(encoding, json.loads(str(ask.shared["edges"])))
        if int(ask.shared["columns"]) != len(bins.columns):
            raise BadInput("the request counts other columns than the model reads", code="malformed-ask")
        layout = watch_layout(encoding, bins, private=bool(ask.shared.get("noise", 0.0)))
        answers = [self._compare(ask, int(k), layout, theta) for k in members]
        return {"sums": np.array(answers)}

    def _compare(self, ask: Ask, k: int, layout: WatchLayout, theta: Array) -> Array:
        """Compare the new patients of one site with its reference patients."""
        stack, labels = self.site.stack, bool(ask.shared["labels"])
        split, data = stack.rows[k], stack.data
        assert isinstance(data, Dataset), "images are refused before"
        new = stack.new_patients(k)
        judged = split.val if len(split.val) else split.train
        background = np.asarray(ask.shared["background"], float)
        fresh = self._count(new, new, layout, theta, background, labels=labels)
        known = self._count(
            data.take(np.concatenate([split.train, split.val])),
            data.take(judged),
            layout,
            theta,
            background,
            labels=labels,
        )
        noise, least = float(ask.shared.get("noise", 0.0)), int(ask.shared["least"])
        if noise:
            return self._private(ask, k, layout, fresh, known, noise=noise)
        if fresh.patients < least:
            return np.zeros(layout.size)
        comparisons = _compare_exactly(layout, fresh, known)
        alarms = stack.alarms[k] if stack.alarms and ask.shared.get("moved") == ALARMS else None
        if alarms is None:
            flags = _find_moved(layout, comparisons, fresh, known, level=float(ask.shared["level"]))
        else:
            flags = np.array([check in alarms for check in layout.checks])
        labelled = len(fresh.residuals)
        if "sums" not in ask.withheld:
            comparisons, labelled = _hide_small(comparisons, fresh, known, least=least)
        self._note(k, layout, flags)
        return layout.pack(comparisons, flags, np.array([fresh.patients, known.patients, labelled, 1.0]))

    def _count(
        self, data: Dataset, judged: Dataset, layout: WatchLayout, theta: Array, background: Array, *, labels: bool
    ) -> _Group:
        """Count patients in the bins; `judged` are those whom the model scores and explains."""
        encoding, model, bins = self.site.encoding, self.site.prepared_model(), layout.bins
        data, judged = _one_each(data), _one_each(judged)
        dtype = self.site.stack.parts["train"].x.dtype
        x = encoding.encode(judged, dtype)
        z = _score_bounded(model, theta, x) if len(x) else np.empty((0, max(1, model.outputs)))
        two = task_of(encoding) == CLASSIFICATION and len(encoding.classes) == 2
        if task_of(encoding) != CLASSIFICATION:
            scores = z[:, 0]
        else:
            p = class_probabilities(z)
            scores = p[:, self.site.stack.event] if two else p.max(axis=1)
        placed = bins.place_scores(scores)
        size = len(bins.score_names)
        y = _outcomes(judged, encoding) if two and labels else np.full(len(judged), np.nan)
        known = ~np.isnan(y)
        risk = np.floor(scores[known] * UNIT) / UNIT if two else scores[known]
        places = bins.place(data)
        numeric = {name: j for j, name in enumerate(data.numeric_names)}
        rules = {rule.name: rule for rule in encoding.numeric}
        numbers = [_standardise(data, numeric, rules[name]) for name in layout.numbers]
        return _Group(
            [np.bincount(place, minlength=len(c.names)) for place, c in zip(places, bins.columns, strict=True)],
            np.bincount(placed, minlength=size),
            _shares(model, theta, x, background, encoding),
            np.bincount(placed[known], weights=y[known], minlength=size),
            np.bincount(placed[known], weights=risk, minlength=size),
            np.bincount(placed[known], weights=risk * (1 - risk), minlength=size),
            y[known] - risk,
            np.stack(numbers, axis=1) if numbers else np.empty((len(data), 0)),
            len(data),
        )

    def _private(
        self, ask: Ask, k: int, layout: WatchLayout, fresh: _Group, known: _Group, *, noise: float
    ) -> Array:
        """Add noise to every count, then compare: all that is returned follows from the noisy counts."""
        labels = bool(ask.shared["labels"])
        raw = [_histograms(group, labels=labels) for group in (fresh, known)]
        drawn = self._noise(ask, k, noise, sum(len(block) for group in raw for block in group))
        noisy, first = [], 0
        for group in raw:
            out = []
            for block in group:
                out.append(block + drawn[first : first + len(block)])
                first += len(block)
            noisy.append(out)
        new, reference = noisy
        columns = len(layout.bins.columns)
        n, m = (max(1.0, float(np.mean([b.sum() for b in group[:columns]]))) for group in noisy)
        split = self.site.stack.rows[k]
        share = len(split.val) / (len(split.train) + len(split.val)) if len(split.val) else 1.0  # row counts are public
        judged = max(5.0, m * share)
        comparisons = {
            f"column {c}": compare_counts(new[c], reference[c], noise=noise, n=n, n_reference=m) for c in range(columns)
        }
        comparisons[SCORE] = compare_counts(new[columns], reference[columns], noise=noise, n=n, n_reference=judged)
        comparisons[EXPLANATION] = compare_shares(
            new[columns + 1], reference[columns + 1], noise=noise, n=n, n_reference=judged
        )
        comparisons[MEANS] = Comparison(*np.zeros((3, 0)))
        comparisons[CALIBRATION] = Comparison(*np.zeros((3, len(layout.bins.score_names))))
        comparisons[EVENTS] = comparisons[RESIDUAL] = Comparison(*np.zeros((3, 1)))
        if labels:
            (seen, risks), (seen_before, risks_before) = new[columns + 2 :], reference[columns + 2 :]
            binomial = np.clip(risks, 0.0, None) + 2 * noise**2  # at least the variance of the events, and of both noises
            comparisons[CALIBRATION] = Comparison(seen, risks, binomial)
            comparisons[EVENTS] = comparisons[CALIBRATION].add_bins()
            size = len(seen)
            away, before = float((seen - risks).sum()), float((seen_before - risks_before).sum())
            ratio = n / judged
            spread = 0.25 * n * (1 + ratio) + 2 * size * noise**2 * (1 + ratio**2)
            comparisons[RESIDUAL] = Comparison(*(np.array([v]) for v in (away, before * ratio, spread)))
        p = []
        for c, column in enumerate(layout.bins.columns):
            bins = comparisons[f"column {c}"].p()
            trend = trend_p(new[c][1:], reference[c][1:], noise=noise, n=n, n_reference=m)
            p.append(join_p(bins, trend) if column.edges else bins)
        p += comparisons[EXPLANATION].bin_p(counts=False).tolist()
        trend = trend_p(new[columns], reference[columns], noise=noise, n=n, n_reference=judged)
        p += [join_p(comparisons[SCORE].p(), trend), comparisons[RESIDUAL].p(counts=False)]
        flags = holm(p, float(ask.shared["level"]))
        self._note(k, layout, flags)
        return layout.pack(comparisons, flags, np.array([n, m, n if labels else 0.0, 1.0]))

    def _noise(self, ask: Ask, k: int, sigma: float, size: int) -> Array:
        """Draw noise of this standard deviation, rounded up, in steps of 1/1024 from the site's secret."""
        from grandrounds.privacy.discrete import discrete_gaussian

        key = np.frombuffer(self.site.secret(self.site.stack.names[k]).bytes(f"{ask.id}: {ask.task}", 16), "<u8")
        return discrete_gaussian(math.ceil(sigma * UNIT), size, rng=np.random.Generator(np.random.Philox(key=key))) / UNIT

    def _note(self, k: int, layout: WatchLayout, flags: Array) -> None:
        """Write the features that moved here to the site's own log."""
        moved = [f"{kind} {name}".strip() for (kind, name), flag in zip(layout.checks, flags, strict=True) if flag]
        _log.info("%s: %s", self.site.stack.names[k], f"moved: {', '.join(moved)}" if moved else "no feature moved")


def watch_layout(encoding: Encoding, bins: WatchBins, *, private: bool) -> WatchLayout:
    """Return the layout of answers: the same at every site and at the server."""
    features = build_features(encoding, grid=1).names
    return WatchLayout(bins, features, () if private else tuple(rule.name for rule in encoding.numeric))


def _compare_exactly(layout: WatchLayout, fresh: _Group, known: _Group) -> dict[str, Comparison]:
    out = {
        f"column {c}": compare_counts(new, reference)
        for c, (new, reference) in enumerate(zip(fresh.columns, known.columns, strict=True))
    }
    out[SCORE] = compare_counts(fresh.score, known.score)
    out[EXPLANATION] = compare_means(fresh.shares, known.shares)
    out[MEANS] = _compare_present(fresh.numbers, known.numbers)
    out[CALIBRATION] = Comparison(fresh.observed, fresh.expected, fresh.spread)
    out[EVENTS] = out[CALIBRATION].add_bins()
    residual = compare_means(fresh.residuals[:, None], known.residuals[:, None])
    weight = fresh.patients / max(1, len(fresh.residuals))  # a site counts by its new patients, not by its labels
    out[RESIDUAL] = Comparison(residual.observed * weight, residual.expected * weight, residual.variance * weight**2)
    return out


def _compare_present(new: Array, reference: Array) -> Comparison:
    """Compare means of the values that are there, column by column, times the number of all new patients."""
    out = np.zeros((3, new.shape[1]))
    n = len(new)
    for j in range(new.shape[1]):
        a, b = new[~np.isnan(new[:, j]), j], reference[~np.isnan(reference[:, j]), j]
        if len(a) > 1 and len(b) > 1:
            out[:, j] = n * a.mean(), n * b.mean(), n**2 * (a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return Comparison(*out)


def _find_moved(
    layout: WatchLayout, comparisons: Mapping[str, Comparison], fresh: _Group, known: _Group, *, level: float
) -> Array:
    """Return the flag of each check: exact tests of counts, t tests of explanations and residuals, Holm's correction."""
    columns = zip(layout.bins.columns, fresh.columns, known.columns, strict=True)
    p = [_column_p(new, reference, first=1 if column.edges else None) for column, new, reference in columns]
    fewest = min(len(fresh.shares), len(known.shares))
    explained = student_p(comparisons[EXPLANATION], fewest=fewest) if fewest >= FEWEST else np.ones(len(layout.features))
    labelled = min(len(fresh.residuals), len(known.residuals))
    calibrated = student_p(comparisons[RESIDUAL], fewest=labelled)[0] if labelled >= FEWEST else 1.0
    return holm([*p, *explained.tolist(), _column_p(fresh.score, known.score, first=0), float(calibrated)], level)


def _column_p(new: Array, reference: Array, *, first: int | None) -> float:
    """Compute the p-value of a column: exact tests of its bins, and from bin `first` on, where they are in order, a trend."""
    used = (new + reference) > 0
    bins = min(1.0, int(used.sum()) * float(fisher_p(new[used], reference[used]).min(initial=1.0)))
    return bins if first is None else join_p(bins, trend_p(new[first:], reference[first:]))


def _hide_small(
    comparisons: Mapping[str, Comparison], fresh: _Group, known: _Group, *, least: int
) -> tuple[dict[str, Comparison], int]:
    """Leave out bins that count few patients, new or reference, and those that would give them away by subtraction."""
    out = dict(comparisons)
    for c, (new, reference) in enumerate(zip(fresh.columns, known.columns, strict=True)):
        out[f"column {c}"] = comparisons[f"column {c}"].hide(_small(new, reference, least=least))
    out[SCORE] = comparisons[SCORE].hide(_small(fresh.score, known.score, least=least))
    few = np.array([0 < (~np.isnan(fresh.numbers[:, j])).sum() < least for j in range(fresh.numbers.shape[1])], bool)
    out[MEANS] = comparisons[MEANS].hide(few)
    labelled = len(fresh.residuals)
    events = int(fresh.observed.sum())
    empty = {name: c.hide(np.ones(len(c.observed), bool)) for name, c in out.items()}
    out[CALIBRATION] = empty[CALIBRATION]  # bins of few events would be the rule: events are sent as one total
    if min(events, labelled - events) < least:
        return {**out, EVENTS: empty[EVENTS], RESIDUAL: empty[RESIDUAL]}, 0
    return out, labelled


def _small(new: Array, reference: Array, *, least: int) -> Array:
    line = [np.arange(len(new))]
    return np.asarray(hide_cells(new, line, least=least) | hide_cells(reference, line, least=least))


def _histograms(group: _Group, *, labels: bool) -> list[Array]:
    """Return all counts of a group, in steps of 1/1024; one patient adds at most 1 (in L2) to each."""
    shares = np.floor(group.shares * UNIT).sum(axis=0) / UNIT
    return [*group.columns, group.score, shares, *([group.observed, group.expected] if labels else [])]


def _one_each(data: Dataset) -> Dataset:
    """Return one row of each patient; all rows where the table has no patient column."""
    return data if data.patient is None else data.take(np.sort(Patients.of(data.patient).chosen))


def _outcomes(data: Dataset, encoding: Encoding) -> Array:
    """Return 1 for the event and 0 for the other class, (n,); NaN without a label."""
    event = encoding.event if encoding.event in encoding.classes else encoding.classes[-1]
    known = {word: float(word == event) for word in encoding.classes}
    return np.array([known.get(word, np.nan) for word in data.label.tolist()], float)


def _standardise(data: Dataset, places: Mapping[str, int], rule: Any) -> Array:
    """Return a number within the agreed range, in units of training; NaN where it is missing."""
    if rule.name not in places:
        return np.full(len(data), np.nan)
    return np.asarray((np.clip(data.numeric[:, places[rule.name]], rule.low, rule.high) - rule.centre) / rule.scale)


def _score_bounded(model: Any, theta: Array, x: Array) -> Array:
    """Return the logits or predictions (n, C), clipped: any model gives every patient one finite number, and so one bin."""
    with np.errstate(over="ignore", invalid="ignore"):
        z = np.asarray(score(model, theta, x), float)
    bounded: Array = np.clip(np.nan_to_num(z), -LIMIT, LIMIT)
    return bounded


def _shares(model: Any, theta: Array, x: Array, background: Array, encoding: Encoding) -> Array:
    """Return each patient's attributions as shares (n, F): their sizes over the sum; 0 where the model uses nothing."""
    features = build_features(encoding, grid=1)
    if not len(x):
        return np.zeros((0, len(features)))
    outputs = np.zeros(len(x), np.int64)
    if model.outputs > 1:
        outputs = _score_bounded(model, theta, x).argmax(axis=1)
    explainer = Shap(features, background[None].astype(x.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(np.asarray(explainer.signed(model, theta, x, outputs), float))
    size = np.minimum(np.nan_to_num(size), _LARGEST)  # a model that overflows must not make a share that is not a number
    total = size.sum(axis=1, keepdims=True)
    shares: Array = np.divide(size, total, out=np.zeros_like(size), where=total > 0)
    return shares
