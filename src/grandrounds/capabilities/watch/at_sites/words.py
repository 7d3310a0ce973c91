"""Words of an alarm: what changed, since when, whether the model's figures suffer, and what can be done."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.watch.at_sites.sums import CategoryFigures, NumberFigures, OutcomeFigures
from grandrounds.capabilities.watch.at_sites.units import find_unit_change

Z_95 = 1.959964
WORSE, NOT_WORSE, UNKNOWN = "worse", "no clear loss", "unknown"
"""Verdicts on the model's figures after a change."""
IMAGE_ACTIONS = ["Check the camera or scanner, its settings, and how images are exported."]
"""Suggestions where images look different."""
LEAST_LABELLED, LEAST_EVENTS = 10, 3
"""Labelled patients since a change, and events and others among them, from which on the model's figures are compared."""


@dataclass(frozen=True)
class Place:
    """The place of a watch, for commands in sentences.

    Attributes:
        run: The run folder, as the user names it.
        site: The hospital.
        score: The score as text ("the risk of died").
        event: The event ("died"); "" where there is none.
        unit: Of attributions: "log-odds", or "" for other scales.
        folder: The site's own folder at a hospital; "" in a simulation.
        classes: Three or more classes, which are watched one by one.
    """

    run: str
    site: str
    score: str
    event: str = ""
    unit: str = "log-odds"
    folder: str = ""
    classes: tuple[str, ...] = ()

    @property
    def recalibrate(self) -> str:
        """The command that recalibrates the model at this site."""
        where = f"--folder {shlex.quote(self.folder)}" if self.folder else f"--site {shlex.quote(self.site)}"
        return f"`rounds recalibrate {shlex.quote(self.run)} {where} --table labelled.csv`"

    @property
    def retrain(self) -> str:
        """The command that trains again; at a hospital the consortium does."""
        if self.folder:
            return "the operator of the consortium submits a new run"
        return f"`rounds run {shlex.quote(self.run.rstrip('/'))}/experiment.toml`"


def show(value: float) -> str:
    """Write a number with three digits, large ones in full."""
    if not math.isfinite(value):
        return "not known"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return str(np.format_float_positional(value, precision=3, fractional=False, trim="-"))


def percent(share: float) -> str:
    """Write a share in percent."""
    if not math.isfinite(share):
        return "not known"
    if 0 < share < 0.01:
        return f"{100 * share:.1f}%"
    return f"{100 * share:.0f}%"


def describe_missing(column: str, before: float, now: float, *, absent: bool) -> str:
    """Describe a column that goes missing."""
    if absent:
        return f"Column {column} is not in the table any more; it was missing in {percent(before)} of patients before."
    return f"Column {column} is missing in {percent(now)} of patients, {percent(before)} before."


def describe_unseen(column: str, before: float, now: float, words: Mapping[str, int]) -> str:
    """Describe codes that training did not have."""
    named = "" if not words else ": " + ", ".join(f"'{word}' ({count} patients)" for word, count in words.items())
    return f"Column {column} has codes that training did not have in {percent(now)} of patients, {percent(before)} before{named}."


def describe_range(column: str, low: float, high: float, before: NumberFigures, now: NumberFigures) -> str:
    """Describe values out of the range of training."""
    outside = percent(now.below + now.above), percent(before.below + before.above)
    way = f"below {show(low)}" if now.below > now.above else f"above {show(high)}"
    return (
        f"Column {column} is outside the range of training in {outside[0]} of patients, {outside[1]} before, most of them {way}; "
        f"the mean is {show(now.mean)}, {show(before.mean)} before."
    )


def describe_new_values(column: str, before: NumberFigures, now: NumberFigures) -> str:
    """Describe values that no reference patient had, of a column with few values."""
    return (
        f"Column {column} has values that no reference patient had; the mean is {show(now.mean)}, {show(before.mean)} before."
    )


def describe_number(column: str, direction: str, middle: float, before: NumberFigures, now: NumberFigures) -> str:
    """Describe a number that moved up or down; `middle` is the median of the reference patients."""
    up = direction == "up"
    upper = [figures.upper if up else 1 - figures.upper for figures in (now, before)]
    side = f"{'above' if up else 'at or below'} {show(middle)}"
    way = "higher" if up else "lower"
    return (
        f"Column {column} is {way}: {percent(upper[0])} of patients are {side}, {percent(upper[1])} before; "
        f"the mean is {show(now.mean)} (standard deviation {show(now.sd)}), {show(before.mean)} ({show(before.sd)}) before."
    )


def describe_category(column: str, before: CategoryFigures, now: CategoryFigures, level: str = "") -> str:
    """Describe a category whose share changed; without a level, the one that changed most."""
    changes = {name: now.shares[name] - share for name, share in before.shares.items() if math.isfinite(now.shares[name])}
    chosen = level if level in before.shares else max(changes, key=lambda name: abs(changes[name]), default="")
    if not chosen:
        return f"Column {column} has no known category any more."
    return f"Column {column} is '{chosen}' in {percent(now.shares[chosen])} of patients, {percent(before.shares[chosen])} before."


def describe_score(place: Place, before: tuple[float, float], now: tuple[float, float]) -> str:
    """Describe a score that moved."""
    way = "higher" if now[0] > before[0] else "lower"
    name = place.score[0].upper() + place.score[1:]
    return f"{name} is {way}: mean {show(now[0])}, {show(before[0])} before."


def describe_explanation(place: Place, column: str, before: float, now: float) -> str:
    """Describe an attribution that changed."""
    way = "more" if now > before else "less"
    unit = f" in {place.unit}" if place.unit else ""
    return (
        f"The model relies {way} on {column}: its mean absolute attribution{unit} is {show(now)}, {show(before)} before."
    )


def describe_outcome(kind: str, place: Place, before: OutcomeFigures, now: OutcomeFigures) -> str:
    """Describe a change of the outcome or of the model's figures."""
    event = f"'{place.event}'" if place.event else "A right prediction"
    if kind == "prevalence":
        share = _with_interval(now.observed)
        return f"{event} is the outcome of {share} of labelled patients, {percent(before.observed[0])} before."
    if kind == "calibration":
        way = "too low" if now.observed[0] > now.predicted else "too high"
        return (
            f"Predicted risks are {way}: {percent(now.predicted)} predicted, {_with_interval(now.observed)} observed "
            f"({percent(before.predicted)} and {percent(before.observed[0])} before)."
        )
    if kind == "discrimination":
        return f"Discrimination changed: AUROC {_interval(now.auroc)}, {show(before.auroc[0])} before."
    return f"Net benefit at the threshold changed: {_interval(now.benefit)}, {show(before.benefit[0])} before."


def describe_class(kind: str, name: str, before: float, now: float) -> str:
    """Describe a change of one of several classes: of its probability, or of its share among outcomes."""
    way = "higher" if now > before else "lower"
    if kind == "score":
        return f"The probability of '{name}' is {way}: mean {show(now)}, {show(before)} before."
    if kind == "prevalence":
        return f"'{name}' is the outcome of {percent(now)} of labelled patients, {percent(before)} before."
    if kind == "calibration":
        return f"Observed less predicted share of '{name}' is {way}: {show(now)}, {show(before)} before."
    return (
        f"The model separates '{name}' less well: its mean probability differs by {show(now)} between patients with and without "
        f"it, {show(before)} before."
    )


def describe_since(since: int, time: float, patients: int, alarm: int, *, labelled: bool) -> str:
    """Describe the time of a change, and the number of patients from then to the alarm."""
    who = "labelled patient" if labelled else "patient"
    date = f" ({format_date(time)})" if math.isfinite(time) else ""
    count = f"{patients:,} {who}{'' if patients == 1 else 's'}"
    return f"Since {who} {since:,}{date}, for {count} until the alarm at {who} {alarm:,}."


def describe_figures(before: OutcomeFigures, now: OutcomeFigures) -> tuple[str, str]:
    """Compare the model's figures since a change with the baseline.

    Args:
        before: Figures of the baseline.
        now: Figures of labelled patients since the change.

    Returns:
        A sentence; and `WORSE`, `NOT_WORSE` or `UNKNOWN`.
    """
    if not now.rows:
        return "There are no labels since then yet: it cannot be said whether the model's figures suffer.", UNKNOWN
    if now.rows < LEAST_LABELLED:
        return (
            f"There are {now.rows:.0f} labelled patients since then, of at least {LEAST_LABELLED} that are needed: it cannot be "
            "said whether the model's figures suffer.",
            UNKNOWN,
        )
    losses, enough = [], min(min(f.events, f.rows - f.events) for f in (now, before)) >= LEAST_EVENTS
    if enough and _is_lower(now.auroc, before.auroc):
        losses.append("discrimination")
    gaps = [abs(f.observed[0] - f.predicted) for f in (now, before)]
    if not now.observed[1] <= now.predicted <= now.observed[2] and gaps[0] > gaps[1]:
        losses.append("calibration")
    if enough and _is_lower(now.benefit, before.benefit):
        losses.append("net benefit")
    earlier = f"{percent(before.observed[0])} against {percent(before.predicted)} before"
    parts = [f"observed {_with_interval(now.observed)} against {percent(now.predicted)} predicted, {earlier}"]
    if enough and math.isfinite(now.auroc[0]):
        parts.insert(0, f"AUROC {_interval(now.auroc)}, {show(before.auroc[0])} before")
    if enough and math.isfinite(now.benefit[0]):
        parts.append(f"net benefit {_interval(now.benefit)}, {show(before.benefit[0])} before")
    if not enough:
        parts.append("too few events for discrimination and net benefit")
    verdict = (
        f"The model's figures suffer ({' and '.join(losses)})"
        if losses
        else "The model's figures show no clear loss, which few labels and events can hide"
    )
    return f"{verdict}: {'; '.join(parts)} ({now.rows:.0f} labelled patients since then).", WORSE if losses else NOT_WORSE


def number_actions(column: str, before: NumberFigures, now: NumberFigures) -> list[str]:
    """Suggest what to check where a number moved."""
    change = find_unit_change(before, now, column)
    if change is None:
        return [f"Check how {column} is measured: another device, a sensor that drifts, or other patients."]
    return [f"{change.sentence}: check the unit of column {column}, and convert it before patients are scored."]


def unseen_actions(column: str, levels: Sequence[str], words: Mapping[str, int], vanished: str) -> list[str]:
    """Suggest a mapping for codes that training did not have."""
    code = f"'{next(iter(words))}'" if words else "the new codes"
    if vanished and words:
        same = f"map {code} of column {column} to '{vanished}' if they mean the same"
        return [f"'{vanished}' became rare at the same time: {same}."]
    known = ", ".join(f"'{level}'" for level in levels[:6]) + (" ..." if len(levels) > 6 else "")
    return [f"Map {code} of column {column} to one of {known}, or ask for a new model that knows it."]


def missing_actions(column: str) -> list[str]:
    """Suggest what to check where a column goes missing."""
    return [
        f"Check the interface or the device that fills column {column}; until then the model reads a typical value in its place."
    ]


def model_actions(place: Place, kind: str, verdict: str) -> list[str]:
    """Suggest what can be done about the model."""
    if kind in ("missing", "unseen", "range") and verdict != WORSE:
        return []
    recalibrate = f"If the change is real, recalibrate the model at this site with labelled patients: {place.recalibrate}."
    retrain = f"If that is not enough, train again: {place.retrain}."
    if kind == "discrimination":
        return [f"Recalibration does not mend discrimination: train again with recent patients, {place.retrain}."]
    return [recalibrate, retrain]


def format_date(time: float) -> str:
    """Write seconds since 1970 as a date (UTC)."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).date().isoformat()


def _interval(value: tuple[float, float, float]) -> str:
    return f"{show(value[0])} (95% interval {show(value[1])} to {show(value[2])})"


def _with_interval(value: tuple[float, float, float]) -> str:
    return f"{percent(value[0])} (95% interval {percent(value[1])} to {percent(value[2])})"


def _is_lower(now: tuple[float, float, float], before: tuple[float, float, float]) -> bool:
    """Tell whether a figure is lower than before beyond chance, at 95%."""
    if not (math.isfinite(now[0]) and math.isfinite(before[0])):
        return False
    errors = [(v[2] - v[1]) / (2 * Z_95) for v in (now, before)]
    return now[0] - before[0] < -Z_95 * math.hypot(*errors)
