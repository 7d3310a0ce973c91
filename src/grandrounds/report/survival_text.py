"""Survival curves as text, CSV and LaTeX: a line for each group, and survival at chosen times."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import visible
from grandrounds.report.tables import survival_table

if TYPE_CHECKING:  # statistics import scipy, and pages are drawn without it
    from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, SurvivalCurve

_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"}  # fmt: skip


def survival_text(result: KaplanMeier, *, times: Sequence[float] = ()) -> str:
    """Write survival curves for a terminal: rows, events, median and mean of each group, the log-rank test, and notes.

    Args:
        result: The curves.
        times: Times at which survival is shown as well.

    Returns:
        Lines, without an end of line.
    """
    summary = survival_table(result)
    lines = _grid(summary.head, summary.rows)
    if times:
        lines += ["", *_grid(*_survival_at(result, times))]
    lines += ["", *summary.before] if summary.before else []
    return "\n".join(visible(line) for line in [*lines, *(f"note: {note}" for note in summary.notes)])


def curve_rows(result: KaplanMeier) -> list[dict[str, Any]]:
    """Return one row for each point of each curve.

    Args:
        result: The curves.

    Returns:
        Rows with group, time, survival, low, high, at_risk, events and censored.
    """
    return [
        {
            "group": curve.group,
            "time": curve.times[k],
            "survival": curve.survival[k],
            "low": curve.low[k],
            "high": curve.high[k],
            "at_risk": curve.at_risk[k],
            "events": curve.died[k],
            "censored": curve.censored[k],
        }
        for curve in _curves(result)
        for k in range(len(curve.times))
    ]


def survival_csv(result: KaplanMeier) -> str:
    """Write the points of all curves as CSV, with all digits."""
    out = io.StringIO()
    names = ("group", "time", "survival", "low", "high", "at_risk", "events", "censored")
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(curve_rows(result))
    return out.getvalue()


def survival_latex(result: KaplanMeier) -> str:
    """Write rows, events, median and mean of each group as a LaTeX table (booktabs), with the test and the notes below it."""
    summary = survival_table(result)
    lines = [r"\begin{tabular}{l" + "r" * (len(summary.head) - 1) + "}", r"\toprule"]
    lines += [_latex_row(summary.head), r"\midrule", *(_latex_row(row) for row in summary.rows)]
    below = [rf"\par{{\footnotesize {_latex(line)}}}" for line in (*summary.before, *summary.notes)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *below, ""])


def _curves(result: KaplanMeier) -> tuple[SurvivalCurve, ...]:
    return (result.overall, *result.groups)


def _survival_at(result: KaplanMeier, times: Sequence[float]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    head = ("group", "time", "survival (95% CI)", "at risk")
    rows = []
    for curve in _curves(result):
        for time in times:
            found = curve.survival_at(time)
            shown = "not known" if found.value is None else f"{found.value:.4f} ({found.low:.4f} to {found.high:.4f})"
            rows.append((curve.group, f"{time:g}", shown, "" if found.value is None else f"{curve.at_risk_at(time):,}"))
    return head, tuple(rows)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out cells in columns: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in (head, *rows)
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in visible(text))
