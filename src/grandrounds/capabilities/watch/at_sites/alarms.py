"""Alarms of a watch: a signal of the statistics with its figures and sentences."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.capabilities.watch.at_sites import words
from grandrounds.capabilities.watch.at_sites.patients import WatchedColumn
from grandrounds.capabilities.watch.at_sites.sums import OutcomeFigures, SumLayout, outcome_figures
from grandrounds.capabilities.watch.at_sites.words import Place
from grandrounds.capabilities.watch.statistics import (
    CALIBRATION,
    DISCRIMINATION,
    EXPLANATION,
    LABEL_KINDS,
    MISSING,
    NET_BENEFIT,
    PREVALENCE,
    RANGE,
    SCORE,
    SHIFT,
    UNSEEN,
    Check,
    Signal,
)
from grandrounds.core.arrays import Array

GROUPS: Mapping[str, tuple[str, ...]] = {
    "missing values": (MISSING,),
    "unknown codes": (UNSEEN,),
    "values out of range": (RANGE,),
    "distributions": (SHIFT,),
    "scores": (SCORE,),
    "explanations": (EXPLANATION,),
    "outcomes": LABEL_KINDS,
}
"""Groups of checks as they are shown, with their kinds."""


@dataclass(frozen=True, eq=False)
class Window:
    """Sums over some patients.

    Attributes:
        sums: (width,) sums of inputs, scores and attributions.
        rows: Patients.
        outcomes: Sums of labelled patients.
    """

    sums: Array
    rows: float
    outcomes: Array


@dataclass(frozen=True, eq=False)
class Narrator:
    """Writes alarms in sentences.

    Attributes:
        place: Names for commands.
        layout: The places of sums.
        before: The reference patients.
        threshold: The decision threshold; None without one event.
        labelled: Outcomes are watched.
    """

    place: Place
    layout: SumLayout
    before: Window
    threshold: float | None
    labelled: bool

    def column(self, name: str) -> WatchedColumn | None:
        """Return a watched column by its name."""
        return next((c for c in self.layout.columns if c.name == name), None)

    def figures(self, window: Window) -> OutcomeFigures:
        """Compute the model's figures among the labelled patients of a window."""
        return outcome_figures(window.outcomes, self.threshold)

    def value(self, check: Check, window: Window) -> float | None:
        """Return the number that a check is about, among the patients of a window; None where it is not known."""
        value = self._value(check, window)
        return None if value is None or not math.isfinite(value) else value

    def write(
        self, signal: Signal, window: Window, *, time: float, since_time: float, codes: Mapping[str, int], absent: bool
    ) -> dict[str, Any]:
        """Write an alarm.

        Args:
            signal: The signal of the statistics.
            window: Patients since the change.
            time: Time of the alarm in seconds since 1970; NaN where not known.
            since_time: Time of the change.
            codes: Unknown codes of the column that enough patients have, with counts.
            absent: The table has no such column.

        Returns:
            The alarm as alarms.json has it, without id and state.
        """
        check = signal.check
        if check.level is not None and not check.column:
            name = self.place.classes[check.level] if check.level < len(self.place.classes) else f"class {check.level + 1}"
            change = words.describe_class(check.kind, name, signal.reference, signal.current)
            actions: list[str] = []
        else:
            change, actions = self._change(check, window, codes, absent)
        since = words.describe_since(
            signal.since, since_time, signal.patients, signal.patient, labelled=check.labelled
        )
        if self.labelled:
            harm, verdict = words.describe_figures(self.figures(self.before), self.figures(window))
        else:
            harm, verdict = "Outcomes are not watched: it cannot be said whether the model's figures suffer.", words.UNKNOWN
        advice = [*actions, *words.model_actions(self.place, check.kind, verdict)]
        reference, current = self.value(check, self.before), self.value(check, window)
        shown = {"reference": reference, "current": current, "evidence": signal.evidence}
        return {
            "check": check.name,
            "kind": check.kind,
            "column": check.column,
            "direction": check.direction,
            "time": None if math.isnan(time) else _moment(time),
            "patient": signal.patient,
            "since": signal.since,
            "since_time": None if math.isnan(since_time) else _moment(since_time),
            "patients": signal.patients,
            "labelled": check.labelled,
            "sentence": change,
            "since_sentence": since,
            "harm_sentence": harm,
            "harm": verdict,
            "advice": advice,
            "others": list(signal.others),
            "figures": {name: value for name, value in shown.items() if value is not None},
        }

    def _value(self, check: Check, window: Window) -> float | None:
        column = self.column(check.column)
        if check.kind == SCORE:
            return self.layout.score(window.sums, window.rows)[0] if check.level is None else None
        if check.kind == EXPLANATION:
            return self.layout.attribution(window.sums, window.rows, check.column)
        if check.kind in LABEL_KINDS:
            return self._outcome_value(check, self.figures(window))
        if column is None:
            return None
        if column.is_category:
            found = self.layout.categories(window.sums, window.rows, column)
            if check.kind == SHIFT and check.level is not None:
                return found.shares[column.levels[check.level]]
            return found.missing if check.kind == MISSING else found.unseen
        number = self.layout.numbers(window.sums, window.rows, column.name)
        if check.kind == UNSEEN:
            return None
        return {MISSING: number.missing, RANGE: number.below + number.above, SHIFT: number.mean}[check.kind]

    def _outcome_value(self, check: Check, figures: OutcomeFigures) -> float | None:
        if check.level is not None:
            return None  # of several classes the figures are those of the predicted class
        return {
            PREVALENCE: figures.observed[0],
            CALIBRATION: figures.observed[0] - figures.predicted,
            DISCRIMINATION: figures.auroc[0],
            NET_BENEFIT: figures.benefit[0],
        }[check.kind]

    def _change(self, check: Check, window: Window, codes: Mapping[str, int], absent: bool) -> tuple[str, list[str]]:
        """Describe a change; and suggest what to check."""
        column = self.column(check.column)
        if check.kind in LABEL_KINDS:
            return words.describe_outcome(check.kind, self.place, self.figures(self.before), self.figures(window)), []
        if check.kind == SCORE:
            scores = [self.layout.score(w.sums, w.rows) for w in (self.before, window)]
            return words.describe_score(self.place, scores[0], scores[1]), ["Look at the inputs that moved as well."]
        if check.kind == EXPLANATION:
            sizes = [self.layout.attribution(w.sums, w.rows, check.column) for w in (self.before, window)]
            sentence = words.describe_explanation(self.place, check.column, sizes[0], sizes[1])
            return sentence, [f"Check column {check.column}, and the columns that change with it."]
        assert column is not None
        if check.kind == MISSING:
            shares = [self._missing(column, w) for w in (self.before, window)]
            if check.direction == "down":
                return words.describe_missing(column.name, shares[0], shares[1], absent=False), [
                    f"Check that empty cells of column {column.name} are still written as empty, and not as a number such as 0."
                ]
            sentence = words.describe_missing(column.name, shares[0], shares[1], absent=absent)
            return sentence, words.missing_actions(column.name)
        if column.is_category:
            before, now = (self.layout.categories(w.sums, w.rows, column) for w in (self.before, window))
            if check.kind == UNSEEN:
                lost = min(column.levels, key=lambda level: _difference(now.shares[level], before.shares[level]))
                is_rare = before.shares[lost] - now.shares[lost] > 0.5 * now.unseen > 0
                actions = words.unseen_actions(column.name, column.levels, codes, lost if is_rare else "")
                return words.describe_unseen(column.name, before.unseen, now.unseen, codes), actions
            level = column.levels[check.level] if check.level is not None else ""
            return words.describe_category(column.name, before, now, level), [
                f"Check whether column {column.name} is coded in another way, or whether other patients come."
            ]
        return self._number_change(check, column, window, codes)

    def _number_change(
        self, check: Check, column: WatchedColumn, window: Window, codes: Mapping[str, int]
    ) -> tuple[str, list[str]]:
        before, now = (self.layout.numbers(w.sums, w.rows, column.name) for w in (self.before, window))
        if codes:
            share = sum(codes.values()) / window.rows if window.rows else math.nan
            return (
                words.describe_unseen(column.name, 0.0, min(1.0, share), codes),
                words.unseen_actions(column.name, column.order, codes, ""),
            )
        if column.is_image:
            sentence = words.describe_number(column.name, check.direction, column.middle, before, now)
            return f"Image {column.name}" + sentence.removeprefix(f"Column {column.name}"), words.IMAGE_ACTIONS
        actions = words.number_actions(column.name, before, now)
        if check.kind == RANGE:
            return words.describe_range(column.name, column.low, column.high, before, now), actions
        if check.kind == UNSEEN:
            return words.describe_new_values(column.name, before, now), actions
        return words.describe_number(column.name, check.direction, column.middle, before, now), actions

    def _missing(self, column: WatchedColumn, window: Window) -> float:
        if column.is_category:
            return self.layout.categories(window.sums, window.rows, column).missing
        return self.layout.numbers(window.sums, window.rows, column.name).missing


def _difference(now: float, before: float) -> float:
    return now - before if math.isfinite(now) and math.isfinite(before) else 0.0


def _moment(time: float) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(timespec="seconds")
