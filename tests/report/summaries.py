"""Summaries of finished runs, small and by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RunSummary
from grandrounds.report.card import BoardFile
from grandrounds.report.page import report_page
from grandrounds.runs.run import Run

if TYPE_CHECKING:
    from grandrounds.audit.verdict import AuditResult


def board_page(run: Run, audited: AuditResult | None = None, *, summary: RunSummary | None = None, use: str = "") -> str:
    """Return the page of a run as it is printed for a board, without figures of rounds and the script of charts."""
    board = BoardFile(Plan(run.plan), audited, use, "today")
    page = report_page(summary or run.summary, [], run.summary.environment, board=board)
    return page.partition("</style>")[2].partition("<script type='text/plain'")[0]


def classification(
    *, final: Mapping[str, Any] | None = None, per_site: Mapping[str, Mapping[str, Any]] | None = None, **more: Any
) -> RunSummary:
    """Return the summary of a run with two classes and three sites; the arguments replace scores."""
    scores = {
        "count": 400.0, "events": 100.0, "accuracy": 0.9, "decision_accuracy": 0.85, "majority": 0.75, "auroc": 0.85,
        "auroc_low": 0.8, "auroc_high": 0.9, "sensitivity": 0.8, "specificity": 0.87, "ppv": 0.67, "npv": 0.93,
        "log_loss": 0.3, "ece": 0.02, "calibration_slope": 1.02, "calibration_intercept": -0.01,
        "calibration_in_the_large": -0.01,
    }  # fmt: skip
    site = scores | {"count": 130.0, "events": 33.0, "auroc_low": 0.75, "auroc_high": 0.95}
    values = {
        "schema": 1, "name": "icu", "method": "fedavg", "model": "logistic", "data": "icu.csv", "seed": 0,
        "sites": {"all": 3, "training": 3}, "threshold": 0.17, "final": scores | dict(final or {}),
        "per_site": {s: site | dict((per_site or {}).get(s, {})) for s in ("a", "b", "c")},
        "rows": {s: {"train": 300, "val": 100, "test": 130} for s in ("a", "b", "c")},
        "privacy": {"statement": "No formal privacy.", "epsilon": None}, "rounds": 10, "parameters": 12, "inputs": [11],
        "classes": ["0", "1"], "event": {"class": "1", "other": "0", "label": "died", "share": 0.25, "by": "rule"},
        "cost": {"bytes_down": 1e6, "bytes_up": 2e6, "messages": 60.0, "seconds": 1.5},
        "explanation": {"top": [{"feature": "age", "share": 0.4}, {"feature": "lactate", "share": 0.3}]},
    }  # fmt: skip
    return RunSummary.from_dict(values | more)
