"""The label: columns that give it away at this site, and shares of classes that are not those agreed on.

A column leaks where it alone tells the classes apart far better than it does elsewhere. The AUROC here is compared with the
agreed one in standard errors (Hanley and McNeil 1982), so that few events make no alarm. Without an agreed AUROC only a nearly
perfect column counts. A column also leaks where its missing values tell the classes apart.

False alarms are controlled by `SCORE` standard errors and by `LEAST`, below which no column is reported. On 120 clean sites of
other hospitals than the reference (`bench/quality_tables.py`, part "tuning") the largest score was 3.4, with an AUROC of 0.94.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.agreement.check import Finding
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.checks import score_column
from grandrounds.data.table import Table, missing_mask, to_text

LEAK = "label-leak"
PREVALENCE = "label-prevalence"

LEAST = 0.85
"""AUROC of one column below which it is no leak."""

CERTAIN = 0.97
"""AUROC from which a column is a leak although no AUROC is agreed, and an error."""

SCORE = 4.2
SCORE_CERTAIN = 3.0
"""Standard errors between the AUROC here and the agreed one, and the same for a nearly perfect column."""

GAP_LEAST = (0.8, 0.95)
"""AUROC of being missing from which it is a leak; the second where most values are missing anyway, as tests of the very ill."""

EVENTS_WITH_VALUE = 8
EVENTS = 5
"""Rows of the smaller class below which nothing is said."""

ODDS = 4.0
"""Ratio of the odds of a class here and elsewhere from which it is reported; hospitals differ by up to 2 or 3."""


def check_leaks(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find agreed columns that tell the label at this site, by their values or by being missing.

    Args:
        table: The site's table.
        schema: The agreed schema.
    """
    if schema.task != CLASSIFICATION or schema.label not in table.columns:
        return
    labels = to_text(table.columns[schema.label])
    known = ~missing_mask(table.columns[schema.label])
    classes = sorted(set(labels[known].tolist()))
    targets = [np.asarray(labels == word) for word in (classes[1:] if len(classes) == 2 else classes)]
    for column in schema.columns:
        if column.name not in table.columns:
            continue
        for target in targets:
            finding = _find_leak(column, table.columns[column.name][known], target[known], schema.label)
            if finding is not None:
                yield finding
                break


def _find_leak(column: AgreedColumn, values: Array, target: Array, label: str) -> Finding | None:
    gaps = missing_mask(values)
    events, others = int((target & ~gaps).sum()), int((~target & ~gaps).sum())
    by_value, by_gap = score_column(values, target)
    if min(events, others) >= EVENTS_WITH_VALUE and by_value >= LEAST:
        usual = max(column.auroc or 0.5, 0.5)
        if column.auroc is None:
            clear = by_value >= CERTAIN
        else:
            error = _standard_error((by_value + usual) / 2, events, others)
            score = (by_value - usual) / error
            clear = score >= (SCORE_CERTAIN if by_value >= CERTAIN else SCORE)
        if clear:
            agreed = "" if column.auroc is None else f", {column.auroc:.2f} elsewhere"
            auroc = f"AUROC {by_value:.3f}{agreed}"
            text = f"alone tells '{label}' almost perfectly ({auroc}): was it written down after the outcome?"
            return Finding("error" if by_value >= CERTAIN else "warning", LEAK, column.name, text)
    return _find_gap_leak(column, gaps, target, label, by_gap)


def _find_gap_leak(column: AgreedColumn, gaps: Array, target: Array, label: str, auroc: float) -> Finding | None:
    """Find missing values that tell the classes apart."""
    events, others = int(target.sum()), int((~target).sum())
    least = GAP_LEAST[(column.missing_share or 0.0) >= 0.5]
    if min(events, others) < EVENTS or auroc < least:
        return None
    share = float(gaps.mean())
    error = np.sqrt(share * (1 - share) * (1 / events + 1 / others)) / 2
    if (auroc - 0.5) / max(float(error), 1e-9) < SCORE:  # as many standard errors as for values
        return None
    here, there = float(gaps[target].mean()), float(gaps[~target].mean())
    text = (
        f"its missing values tell '{label}' ({here:.0%} missing with the event, {there:.0%} without): is it recorded only after "
        "the outcome is known?"
    )
    return Finding("error" if auroc >= CERTAIN else "warning", LEAK, column.name, text)


def _standard_error(auroc: float, events: int, others: int) -> float:
    """Standard error of an AUROC (Hanley and McNeil 1982, equation 1)."""
    q1, q2 = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (events - 1) * (q1 - auroc**2) + (others - 1) * (q2 - auroc**2)
    return float(np.sqrt(variance / (events * others)))


def check_prevalence(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find classes whose share is far from the agreed one, and labels that seem to be exchanged.

    Args:
        table: The site's table.
        schema: The agreed schema, with `class_shares`.
    """
    if not schema.class_shares or schema.label not in table.columns:
        return
    words = [w for w in to_text(table.columns[schema.label]).tolist() if w is not None]
    n = len(words)
    if n < 4 * EVENTS:
        return
    here = np.array([words.count(word) / n for word in schema.classes])
    agreed = np.array(schema.class_shares)
    if len(here) == 2 and abs(agreed[0] - agreed[1]) > 0.3 and np.abs(here[::-1] - agreed).max() < 0.1:
        text = f"{here[1]:.0%} of the rows say '{schema.classes[1]}', {agreed[1]:.0%} elsewhere: are the two classes exchanged?"
        yield Finding("warning", PREVALENCE, schema.label, text)
        return
    for word, mine, usual in zip(schema.classes, here, agreed, strict=True):
        low, high = np.clip([mine, usual], 0.5 / n, 1 - 0.5 / n)
        odds = (low / (1 - low)) / (high / (1 - high))
        error = np.sqrt(1 / (n * low * (1 - low)) + 1 / (n * high * (1 - high)))
        if abs(np.log(odds)) > np.log(ODDS) + 2 * error:
            shares = f"{mine:.1%} of the rows say '{word}', {usual:.1%} elsewhere"
            text = f"{shares}: is it the same outcome, and are all patients here?"
            yield Finding("warning", PREVALENCE, schema.label, text)
            return
