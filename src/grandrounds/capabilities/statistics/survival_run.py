"""Survival curves of rows in one place: they are split by site, and sums alone are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.brier import fit_baseline
from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, fit_kaplan_meier
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.capabilities.statistics.survival_rows import SurvivalRequest, read_survival_rows
from grandrounds.capabilities.statistics.survival_scores import SurvivalScores, fit_survival_scores
from grandrounds.capabilities.statistics.time_counts import LEAST, Grid, count_by_cell
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table, to_text

_NO_INPUT = "(no input)"
"""Input of a run without groups: a column that is added. It is in no result."""


def run_kaplan_meier(
    table: Table,
    request: SurvivalRequest,
    *,
    grid: Grid = "bins",
    least: int = LEAST,
    unit: float = 1.0,
    horizon: float | None = None,
) -> KaplanMeier:
    """Estimate survival curves from sums over sites.

    Args:
        table: Rows of all sites.
        request: Columns of time, event, site and group.
        grid: "bins" (intervals with at least `least` events) or "days".
        least: Least number of events in an interval.
        unit: Unit in which times are recorded.
        horizon: End of the restricted mean.

    Returns:
        The curves. Their facts have exchanges, numbers sent by one site, and numbers held by all.

    Raises:
        BadInput: The request does not match the table, or too few events were observed.
    """
    rows, record = read_survival_rows(table, request), Record()
    fit = fit_kaplan_meier(rows.groups, grid=grid, least=least, unit=unit, horizon=horizon)
    result = fit_in_memory(fit, rows.sites, ANSWERS, record)
    held = sum(map(len, rows.sites.values())) * (3 if request.group else 2)
    facts = {
        **result.facts,
        "sites": len(rows.sites),
        "event": rows.event,
        "exchanges": record.exchanges,
        "numbers_sent": record.numbers,
        "numbers_held": held,
        "ratio": record.numbers / held,
    }
    return replace(result, facts=facts, notes=(*rows.notes, *result.notes))


def slim_table(table: Table, request: SurvivalRequest) -> tuple[Table, tuple[str, ...], str]:
    """Return a table with the columns of survival curves alone, for a run.

    Args:
        table: Rows of all sites.
        request: Columns of time, event, site and group.

    Returns:
        Rows with a group, events as 0 and 1; notes; and the column that is the input of the run: the group, or one without a
        meaning, since every run has an input.

    Raises:
        BadInput: The request does not match the table.
    """
    found = read_survival_rows(table, request)
    parts = list(found.sites.items())
    columns: dict[str, Array] = {
        request.time: np.concatenate([np.asarray(rows.time) for _, rows in parts]),
        request.event: np.concatenate([rows.y for _, rows in parts]),
        request.site: np.concatenate([np.full(len(rows), site, object) for site, rows in parts]),
    }
    if request.group:
        words = np.array(found.groups, object)
        columns[request.group] = np.concatenate([words[rows.group] for _, rows in parts])
        return Table(columns, table.source), found.notes, request.group
    columns[_NO_INPUT] = (np.arange(len(columns[request.time])) % 2).astype(np.float64)
    return Table(columns, table.source), found.notes, _NO_INPUT


def run_survival_scores(
    table: Table,
    request: SurvivalRequest,
    score: Array,
    *,
    training: tuple[Table, Array] | None = None,
    horizons: Sequence[float] = (),
    horizon: float | None = None,
    grid: Grid = "bins",
    across: bool = False,
    least: int = LEAST,
    unit: float = 1.0,
) -> SurvivalScores:
    """Score a survival model on rows of all sites, from sums.

    Args:
        table: Rows of all sites.
        request: Columns of time, event and site.
        score: (n,) risk score of each row: the logarithm of its relative hazard.
        training: Rows and their scores from which the baseline hazard is estimated; None: the rows themselves.
        horizons: Times of the Brier scores.
        horizon: Time of the calibration.
        grid: Grid of the censoring curve.
        across: Compare patients of different sites as well.
        least: Least number of events in an interval or group.
        unit: Unit in which times are recorded.

    Returns:
        The scores.

    Raises:
        BadInput: The columns hold other values, too few events were observed, or a horizon is out of reach.
    """
    sites = _scored_rows(table, request, score)
    source = sites if training is None else _scored_rows(training[0], request, training[1])
    nothing = np.empty(0)
    counts = fit_in_memory(count_by_cell(unit=unit, least=least), source, ANSWERS)
    baseline = fit_in_memory(fit_baseline(nothing, counts, least=least), source, ANSWERS)
    fit = fit_survival_scores(
        nothing, baseline, horizons=horizons, horizon=horizon, grid=grid, across=across, least=least, unit=unit
    )
    result = fit_in_memory(fit, sites, ANSWERS)
    if training is None:
        note = "The baseline hazard is that of the scored rows: the Brier score and the calibration are optimistic."
        result = replace(result, notes=(*result.notes, note))
    return result


def _scored_rows(table: Table, request: SurvivalRequest, score: Array) -> dict[str, Rows]:
    """Return each site's rows, with scores as offsets."""
    if len(score) != len(table):
        raise BadInput(f"{len(score)} scores for {len(table)} rows: give one for each row", code="length-mismatch")
    if not np.isfinite(score).all():
        raise BadInput("a risk score is not finite: look at the columns of the model", code="infinite-value")
    found = read_survival_rows(table, replace(request, group=""))
    texts = to_text(table.column(request.site, flag="--site"))
    return {site: replace(rows, offset=np.asarray(score, float)[texts == site]) for site, rows in found.sites.items()}
