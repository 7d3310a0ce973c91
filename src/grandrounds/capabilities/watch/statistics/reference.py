"""The reference of a watch: checks with their e-values, made from a site's validation rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from grandrounds.capabilities.watch.statistics import tilts, variables
from grandrounds.capabilities.watch.statistics.checks import Check, share_out
from grandrounds.capabilities.watch.statistics.rows import Rows, mean_by_patient
from grandrounds.capabilities.watch.statistics.tilts import Tilt
from grandrounds.capabilities.watch.statistics.variables import Variable
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

LEAST_PATIENTS = 10
"""Validation patients that a watch needs."""
LEAST_EVENTS = 3
"""Events, and patients without, that calibration and discrimination need among the validation rows."""
MARGIN = 2.0
"""Standard errors of the mean e-value by which evidence of inputs, scores and explanations is lowered: the reference rows are
few, and the mean of the next patients is not exactly theirs."""
Meta = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Evidence of patients against the reference.

    Attributes:
        log_e: Logarithm of the e-value (patients, tilts) of each tilt; NaN where a patient says nothing about it.
        shown: Number (patients, checks) whose mean an alarm shows; NaN likewise.
        seen: Patients whose values are read (patients,), which count as patients.
        labelled: Patients with a label and a score (patients,), which count as labelled patients.
    """

    log_e: Array
    shown: Array
    seen: Array
    labelled: Array

    def __len__(self) -> int:
        return len(self.log_e)

    def take(self, patients: Array) -> Evidence:
        """Return the evidence of these patients, in this order."""
        return Evidence(self.log_e[patients], self.shown[patients], self.seen[patients], self.labelled[patients])


@dataclass(frozen=True, eq=False)
class Reference:
    """Checks of a site and the tables that turn a patient into evidence. Holds no patient's values.

    Attributes:
        checks: The checks, those that need labels last.
        variables: What they read.
        reads: Variable (checks,) of each check.
        owner: Check (tilts,) of each tilt, ascending.
        tables: log e of each tilt and code, one after another.
        places: Start (tilts,) of each tilt's table.
        shown: Shown number of each check and code, one after another; NaN if the raw value is shown.
        usual: Mean (checks,) of the shown number in the reference patients.
        limit: The level A: a check with share w alarms when its statistic reaches A / w.
        patients: Number of reference patients.
    """

    checks: tuple[Check, ...]
    variables: tuple[Variable, ...]
    reads: Array
    owner: Array
    tables: Array
    places: Array
    shown: Array
    shown_places: Array
    shows_raw: Array
    usual: Array
    limit: float
    patients: int

    @classmethod
    def build(
        cls,
        validation: Rows,
        *,
        training: Rows | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        levels: Mapping[str, int] | None = None,
        threshold: float | None = None,
    ) -> Reference:
        """Make the reference of a site; `calibrate` then sets its level.

        Args:
            validation: The site's validation rows with scores, attributions and labels of the model that the site uses.
            training: The site's training rows: their inputs and labels make the reference surer, and an e-value then has a mean
                of at most one in the validation rows and in both together. Their scores and attributions are not read.
            ranges: Training range of each number.
            levels: Number of categories of each categorical column; by default one more than the largest code.
            threshold: Decision threshold of the risk, for net benefit.

        Raises:
            BadInput: There are too few validation patients.
        """
        groups = validation.group_patients()
        count = len(validation) if groups is None else int(groups.max()) + 1
        if count < LEAST_PATIENTS:
            raise BadInput(
                f"{count} validation patients are too few to watch a model: at least {LEAST_PATIENTS} are needed. "
                "Raise split.val, or watch with the rows of a larger site",
                code="watch-too-few-patients",
            )
        inputs = None
        if training is not None:
            inputs = Rows(training.numbers, training.categories, label=training.label, patient=training.patient)
        pairs = list(_make(validation, inputs, ranges or {}, levels or {}, threshold))
        pairs.sort(key=lambda pair: pair[0].labelled)
        return _assemble(pairs, validation, inputs, count)

    @property
    def labels_from(self) -> int:
        """Number of the first check that needs labels."""
        return next((i for i, check in enumerate(self.checks) if check.labelled), len(self.checks))

    @property
    def tilts(self) -> int:
        """Number of tilts of all checks."""
        return len(self.owner)

    def evidence(self, rows: Rows) -> Evidence:
        """Turn rows into the evidence of their patients.

        Rows of one patient count as one patient: its e-value is the mean over its rows, which is an e-value too.
        Columns that the reference does not know are ignored; checks of columns that the rows lack learn nothing.
        Rows with labels and scores but without columns are labels of patients seen before: they add to the checks of labels only.
        """
        n = len(rows)
        fresh = bool(rows.numbers or rows.categories or rows.attributions or rows.label is None)
        log_e = np.full((n, self.tilts), np.nan)
        shown = np.full((n, len(self.checks)), np.nan)
        starts = np.searchsorted(self.reads, np.arange(len(self.variables) + 1))
        tilt_starts = np.searchsorted(self.owner, starts)
        for v, variable in enumerate(self.variables):
            codes = variable.encode(rows) if fresh or variable.labelled else None
            if codes is None:
                continue
            first, last = tilt_starts[v], tilt_starts[v + 1]
            log_e[:, first:last] = self.tables[self.places[first:last] + codes[:, None]]
            for c in range(starts[v], starts[v + 1]):
                raw = variable.raw(rows) if self.shows_raw[c] else None
                shown[:, c] = self.shown[self.shown_places[c] + codes] if raw is None else raw
        seen = np.full(n, fresh)
        labelled = np.zeros(n, bool)
        if rows.label is not None:
            labelled = ~np.isnan(np.asarray(rows.label, np.float64))
        groups = rows.group_patients()
        if groups is None:
            return Evidence(log_e, shown, seen, labelled)
        with np.errstate(divide="ignore"):
            together = np.log(mean_by_patient(np.exp(log_e), groups))
        flags = mean_by_patient(np.stack([seen, labelled], axis=1).astype(np.float64), groups) > 0
        return Evidence(together, mean_by_patient(shown, groups), flags[:, 0], flags[:, 1])

    def to_arrays(self) -> tuple[dict[str, Array], Meta]:
        """Return arrays and a JSON value that `from_arrays` reads."""
        edges = [v.edges for v in self.variables]
        arrays = {name: np.asarray(getattr(self, name)) for name in _ARRAYS}
        arrays |= {
            "edges": np.concatenate([*edges, np.zeros(0)]),
            "edge_counts": np.array([len(e) for e in edges], np.int64),
            "spans": np.array([v.span for v in self.variables], np.float64).reshape(-1, 2),
        }
        meta: Meta = {
            "checks": [asdict(check) for check in self.checks],
            "variables": [
                {"kind": v.kind, "column": v.column, "level": v.level, "single": v.single, "size": v.size}
                for v in self.variables
            ],
            "limit": self.limit,
            "patients": self.patients,
        }
        return arrays, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], meta: Meta) -> Reference:
        """Read what `to_arrays` returned."""
        edges = np.split(arrays["edges"], np.cumsum(arrays["edge_counts"])[:-1]) if len(arrays["edge_counts"]) else []
        watched = tuple(
            Variable(**values, edges=edge, span=(float(span[0]), float(span[1])))
            for values, edge, span in zip(meta["variables"], edges, arrays["spans"], strict=True)
        )
        checks = tuple(Check(**values) for values in meta["checks"])
        parts = {name: arrays[name] for name in _ARRAYS}
        return cls(
            checks=checks, variables=watched, limit=float(meta["limit"]), patients=int(meta["patients"]), **parts
        )


_ARRAYS = ("reads", "owner", "tables", "places", "shown", "shown_places", "shows_raw", "usual")


def _make(
    validation: Rows,
    training: Rows | None,
    ranges: Mapping[str, tuple[float, float]],
    levels: Mapping[str, int],
    threshold: float | None,
) -> Iterator[tuple[Variable, list[Tilt]]]:
    """Yield each variable with its checks."""
    for column, raw in validation.numbers.items():
        values = np.asarray(raw, np.float64)
        if training is not None and column in training.numbers:
            values = np.concatenate([values, np.asarray(training.numbers[column], np.float64)])
        span = ranges.get(column, (-np.inf, np.inf))
        variable = variables.number(variables.NUMBER, column, values, span=(float(span[0]), float(span[1])))
        yield variable, list(tilts.tilt_number(variable, _count(variable, validation, training), values))
    for column, codes in validation.categories.items():
        variable = variables.category(column, levels.get(column, int(np.max(codes, initial=-1)) + 1))
        yield variable, list(tilts.tilt_category(_count(variable, validation, training)))
    for column, values in validation.attributions.items():
        variable = variables.number(variables.ATTRIBUTION, column, np.abs(np.asarray(values, np.float64)))
        yield variable, list(tilts.tilt_number_alone(variable, _count(variable, validation, None)))
    risks = validation.risks
    classes = 1 if risks is None else risks.shape[1]
    for level in range(classes):
        if risks is not None:
            variable = variables.number(variables.RISK, "", risks[:, level], level=level)
            yield variable, list(tilts.tilt_number_alone(variable, _count(variable, validation, None)))
        if validation.label is not None:
            variable = Variable(variables.LABEL, "", level, np.zeros(0), size=variables.FIRST + 2)
            yield (
                variable,
                list(tilts.tilt_label(level, _count(variable, validation, training if classes == 1 else None))),
            )
            if risks is not None:
                yield from _make_outcome(validation, risks[:, level], level)
    if (
        threshold is not None
        and 0 < threshold < 1
        and classes == 1
        and risks is not None
        and validation.label is not None
    ):
        variable = Variable(variables.DECISION, "", 0, np.array([threshold]), size=variables.FIRST + 4)
        yield variable, list(tilts.tilt_decision(_count(variable, validation, None), threshold))


def _make_outcome(validation: Rows, risk: Array, level: int) -> Iterator[tuple[Variable, list[Tilt]]]:
    """Yield calibration and discrimination of a class, if the validation rows have enough events and others."""
    variable = variables.number(variables.OUTCOME, "", risk, level=level)
    variable = replace(variable, size=variables.FIRST + 2 * (variable.size - variables.FIRST))
    events = variable.events(validation)
    assert events is not None
    known = ~np.isnan(events) & ~np.isnan(risk)
    happened = events[known].sum()
    if min(happened, known.sum() - happened) < LEAST_EVENTS:
        return
    logits = tilts.to_logits(risk[known])
    intercept, slope = tilts.recalibrate(logits, events[known])
    bins, count = variable.bin(risk[known]), (variable.size - variables.FIRST) // 2
    size = np.bincount(bins, minlength=count)
    edges = np.concatenate([variable.edges[:1], variable.edges, variable.edges[-1:]])
    middle = (edges[:-1] + edges[1:]) / 2 if len(edges) else np.array([risk[known].mean()])
    value = np.where(size > 0, np.bincount(bins, weights=risk[known], minlength=count) / np.maximum(size, 1), middle)
    means = np.bincount(bins, weights=logits, minlength=count) / np.maximum(size, 1)
    means = np.where(size > 0, means, tilts.to_logits(value))
    counts = _count(variable, validation, None)
    yield variable, list(tilts.tilt_outcome(level, counts, intercept + slope * means, value))


def _count(variable: Variable, validation: Rows, training: Rows | None) -> Array:
    """Count the codes (size,) of a variable in the reference rows."""
    counts = np.zeros(variable.size)
    for rows in (validation, training):
        codes = None if rows is None else variable.encode(rows)
        if codes is not None:
            counts += np.bincount(codes, minlength=variable.size)
    return counts


def _assemble(
    pairs: list[tuple[Variable, list[Tilt]]], validation: Rows, training: Rows | None, count: int
) -> Reference:
    """Lay the tables one after another, then normalise them on the reference rows."""
    pairs = [(variable, made) for variable, made in pairs if made]
    watched = [variable for variable, _ in pairs]
    flat = [(v, tilt) for v, (_, made) in enumerate(pairs) for tilt in made]
    several = validation.risks is not None and validation.risks.shape[1] > 1
    checks = share_out(
        (tilt.kind, watched[v].column, tilt.direction, tilt.level if several or watched[v].column else None)
        for v, tilt in flat
    )
    sizes = np.array([watched[v].size for v, tilt in flat for _ in tilt.tables], np.int64)
    check_sizes = np.array([watched[v].size for v, _ in flat], np.int64)
    none = [np.zeros(0)]
    reference = Reference(
        checks=tuple(checks),
        variables=tuple(watched),
        reads=np.array([v for v, _ in flat], np.int64),
        owner=np.repeat(np.arange(len(flat)), [len(tilt.tables) for _, tilt in flat]),
        tables=np.concatenate([tilt.tables.ravel() for _, tilt in flat] or none),
        places=np.cumsum(sizes) - sizes,
        shown=np.concatenate(
            [np.full(watched[v].size, np.nan) if t.shown is None else t.shown for v, t in flat] or none
        ),
        shown_places=np.cumsum(check_sizes) - check_sizes,
        shows_raw=np.array([tilt.shown is None for _, tilt in flat], bool),
        usual=np.zeros(len(flat)),
        limit=np.inf,
        patients=count,
    )
    first = reference.evidence(validation)
    scale = _mean_e(first.log_e, reference, np.array([tilt.exact for _, tilt in flat], bool), training)
    with np.errstate(invalid="ignore"):
        usual = np.nansum(first.shown, axis=0) / np.maximum((~np.isnan(first.shown)).sum(axis=0), 1)
    slack = np.concatenate([np.broadcast_to(tilt.slack, len(tilt.tables)) for _, tilt in flat] or none)
    return replace(reference, tables=reference.tables - np.repeat(np.log(scale) + slack, sizes), usual=usual)


def _mean_e(log_e: Array, reference: Reference, exact: Array, training: Rows | None) -> Array:
    """Return the number (tilts,) by which e-values are divided: the larger mean of the validation patients and of all patients.

    Smoothed shares are divided by one at least. Inputs, scores and explanations get `MARGIN` standard errors more.
    """
    parts = [log_e] if training is None else [log_e, reference.evidence(training).log_e]
    sums, squares, counts = np.zeros(reference.tilts), np.zeros(reference.tilts), np.zeros(reference.tilts)
    scale = np.where(exact[reference.owner], 0.0, 1.0)
    for part in parts:
        e = np.exp(part)
        known = ~np.isnan(e)
        counts += known.sum(axis=0)
        e[~known] = 0.0
        sums += e.sum(axis=0)
        squares += (e**2).sum(axis=0)
        mean = sums / np.maximum(counts, 1)
        error = np.sqrt(np.maximum(squares / np.maximum(counts, 1) - mean**2, 0) / np.maximum(counts, 1))
        scale = np.maximum(scale, mean)
    margin = np.array([MARGIN if not check.labelled else 0.0 for check in reference.checks])[reference.owner]
    return np.where(counts > 0, np.maximum(scale, mean + margin * error), 1.0)
