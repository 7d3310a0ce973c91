"""Survival curves of rows in one place: they are split by site, and sums alone are used."""

from __future__ import annotations

from dataclasses import replace

from grandrounds.data.table import Table
from grandrounds.statistics import ANSWERS
from grandrounds.statistics.kaplan_meier import KaplanMeier, fit_kaplan_meier
from grandrounds.statistics.question import Record, fit_in_memory
from grandrounds.statistics.survival_rows import SurvivalRequest, read_survival_rows
from grandrounds.statistics.time_counts import LEAST, Grid


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
