"""Tables of a run as CSV: UTF-8, comma, a header row, one unit a column. Rows are those of the JSON resources."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from grandrounds.capabilities.console.api.parameters import RunName, Viewer
from grandrounds.capabilities.console.api.resources import Resources, Responses, file_word, send_file
from grandrounds.capabilities.console.api.rounds import round_lines
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.core.errors import visible
from grandrounds.metrics.fairness import intervals
from grandrounds.metrics.names import metric_label

resources = Resources("tables")
CSV: Responses = {200: {"description": "A table with a header row.", "content": {"text/csv": {}}}}
Row = Mapping[str, Any]
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of a text that a spreadsheet would run as a formula."""


def write_csv(rows: Sequence[Row]) -> bytes:
    """Write rows as CSV.

    A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay numbers. Control characters and
    marks of text direction are escapes. Columns are those of all rows, in order of appearance; a cell without a value is empty.

    Args:
        rows: Values by column.

    Returns:
        UTF-8 text with a header row.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow([_cell(column) for column in columns])
    table.writerows([[_cell(row.get(column)) for column in columns] for row in rows])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if value.startswith(_FORMULA) else text


def _scores(metrics: Mapping[str, float | None], ends: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Return columns of metrics, each followed by the ends of its 95% interval where there is one."""
    columns: dict[str, Any] = {}
    for metric, value in metrics.items():
        columns[metric] = value
        if metric in ends:
            columns[f"{metric}_low"], columns[f"{metric}_high"] = ends[metric]
    return columns


def site_rows(run_index: RunIndex, run: str) -> list[Row]:
    """List the sites of a finished run with their scores."""
    return [
        {"site": s.site, "train_rows": s.train_rows, "test_rows": s.test_rows, "events": s.events}
        | _scores(s.metrics, s.intervals)
        | {"notes": "; ".join(s.notes)}
        for s in run_view.site_lines(run_index, run)
    ]


def subgroup_rows(run_index: RunIndex, run: str) -> list[Row]:
    """List the subgroups of a finished run with their scores."""
    return [
        {"group": g.group, "rows": g.rows, "events": g.events}
        | _scores(g.metrics, g.intervals)
        | {"worse": "; ".join(g.worse)}
        for g in run_view.group_lines(run_index, run)
    ]


def round_rows(run_index: RunIndex, run: str) -> list[Row]:
    """List the rounds of a run so far with their scores."""
    return [
        {"round": r.round, "sites": r.sites, "missing": len(r.missing)}
        | {f"validation_{metric}": value for metric, value in (r.validation or {}).items()}
        | {f"test_{metric}": value for metric, value in (r.test or {}).items()}
        | {"bytes_down": r.bytes_down, "bytes_up": r.bytes_up, "seconds": r.seconds}
        for r in round_lines(run_index, run)
    ]


def weight_rows(run_index: RunIndex, run: str) -> list[Row]:
    """List the weight and the signals of each site in each round of a run so far."""
    return [
        {"round": record.round, "site": w.site, "weight": w.weight, "missing": w.missing} | w.signals
        for record in run_index.run(run).rounds
        for w in run_view.one_round(run_index, run, record.round).sites
    ]


def metric_rows(run_index: RunIndex, run: str) -> list[Row]:
    """List the final scores of a run on the test rows of all sites."""
    final = run_view.head(run_index, run).final
    ends = intervals({key: value for key, value in final.items() if value is not None})
    return [
        {"metric": metric, "label": metric_label(metric), "value": value}
        | dict(zip(("low", "high"), ends.get(metric, (None, None)), strict=True))
        for metric, value in final.items()
        if not metric.endswith(("_low", "_high"))
    ]


TABLES: dict[str, tuple[Callable[[RunIndex, str], Sequence[Row]], str]] = {
    "sites": (site_rows, "The sites of a finished run with scores and 95% intervals, as CSV"),
    "subgroups": (subgroup_rows, "The subgroups of a finished run with scores and 95% intervals, as CSV"),
    "rounds": (round_rows, "The rounds of a run so far, as CSV: one row a round"),
    "weights": (weight_rows, "Weights and signals of sites, as CSV: one row a round and site"),
    "metrics": (metric_rows, "The final scores of a run on the test rows of all sites, as CSV"),
}


def _serve(name: str) -> Callable[..., Response]:
    make = TABLES[name][0]

    def table(request: Request, who: Viewer, run: RunName) -> Response:
        data = write_csv(make(get_state(request).run_index, run))
        return send_file(data, f"{name}-{file_word(run)}.csv", "text/csv; charset=utf-8")

    table.__name__ = f"{name}_table"
    return table


for _name, (_, _summary) in TABLES.items():
    resources.add(f"/runs/{{run}}/{_name}.csv", _serve(_name), summary=_summary, response_class=Response, responses=CSV)
