"""Tables and figures of a run for notebooks: rounds, sites and weights as pandas frames, a summary as HTML, figures by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.names import metric_label
from grandrounds.report.estimates import read_estimates
from grandrounds.report.findings import describe_findings

if TYPE_CHECKING:
    from pandas import DataFrame

    from grandrounds.report.figure import Figure
    from grandrounds.runs.run import Run

PLOTS = (
    "curves",
    "sites",
    "weights",
    "drift",
    "importance",
    "reliability",
    "decision_curve",
    "attendance",
    "cost",
    "coefficients",
)
"""Names of figures that `Run.plot` draws."""

_SHOWN = ("auroc", "accuracy", "log_loss", "ece")
"""Scores of a classification that a notebook shows; of another task all scores."""


def history_frame(rounds: Sequence[RoundRecord]) -> DataFrame:
    """Tabulate rounds: one line per round.

    Args:
        rounds: The records of the rounds.

    Returns:
        A frame with the index `round`. Columns `test_*` and `val_*` are scores, NaN in a round without evaluation.
        `asked` and `missing` count sites; `training_*` and `deployed_*` are measures of the explanations; the others are
        the cost of the round.
    """
    from pandas import DataFrame

    return DataFrame([_history_line(r) for r in rounds]).set_index("round") if rounds else DataFrame()


def _history_line(record: RoundRecord) -> dict[str, Any]:
    decision = record.decision
    line: dict[str, Any] = {"round": record.round}
    for part, scores in (("test", record.test), ("val", record.val)):
        line |= {f"{part}_{name}": _number(value) for name, value in (scores or {}).items()}
    line |= {"asked": len(decision.asked), "missing": len(decision.missing)}
    for model, measures in record.explanation.items():
        line |= {
            f"{model}_{name}": _number(v) for name, v in measures.items() if v is None or isinstance(v, int | float)
        }
    line |= {name: _number(value) for name, value in decision.cost.items()}
    return {**line, "virtual_seconds": record.virtual_seconds}


def sites_frame(summary: RunSummary, rounds: Sequence[RoundRecord]) -> DataFrame:
    """Tabulate sites: one line per site.

    Args:
        summary: The summary of the run.
        rounds: The records of its rounds.

    Returns:
        A frame with the index `site`: the rows of each use (`train_rows`, `val_rows`, `test_rows`), the weight in the last
        aggregation that the site took part in, the rounds in which it was asked and missing, and its test scores.
    """
    from pandas import DataFrame

    lines: list[dict[str, Any]] = []
    weights = {site: weight for r in rounds for site, weight in r.decision.weights.items()}
    asked = Counter(site for r in rounds for site in r.decision.asked)
    missing = Counter(site for r in rounds for site in r.decision.missing)
    for site in dict.fromkeys([*summary.rows, *summary.per_site]):
        lines.append(
            {
                "site": site,
                **{f"{use}_rows": count for use, count in summary.rows.get(site, {}).items()},
                "weight": weights.get(site, float("nan")),
                "rounds_asked": asked[site],
                "rounds_missing": missing[site],
                **{name: _number(value) for name, value in summary.per_site.get(site, {}).items()},
            }
        )
    return DataFrame(lines).set_index("site") if lines else DataFrame()


def weights_frame(rounds: Sequence[RoundRecord], sites: Sequence[str]) -> DataFrame:
    """Tabulate aggregation weights: one line per round, one column per site.

    Args:
        rounds: The records of the rounds.
        sites: The sites, in the order of the columns.

    Returns:
        A frame with the index `round`; NaN where a site had no part in the aggregation.
    """
    from pandas import DataFrame, Index

    values = [[_number(r.decision.weights.get(site)) for site in sites] for r in rounds]
    return DataFrame(values, index=Index([r.round for r in rounds], name="round"), columns=list(sites), dtype=float)


def summary_html(run: Run) -> str:
    """Write the summary of a run as a small HTML table, and its findings as sentences; every name is escaped."""
    if not run.finished:
        done = len(run.rounds)
        return f"<p><b>{escape(str(run.folder))}</b>: not finished, {done} rounds done; continue with <code>gr.resume</code></p>"
    s = run.summary
    lines = [
        ("data", f"{s.data}: {s.sites.get('all', len(s.per_site))} sites, {_total_rows(s)} rows"),
        ("method", f"{s.method}, {s.model}, {s.rounds} rounds, seed {s.seed}"),
    ]
    if run.event is not None:
        lines.append(("event", run.event.line.removeprefix("event: ")))
    lines += [
        (f"test {metric_label(name)}", f"{value:.4f}") for name in _shown(s) if (value := s.final.get(name)) is not None
    ]
    lines += [("privacy", str(s.privacy.get("statement", ""))), *(("warning", w) for w in s.warnings)]
    lines.append(("folder", str(run.folder)))
    left = "style='text-align:left'"
    rows = "".join(f"<tr><th {left}>{escape(a)}</th><td {left}>{escape(b)}</td></tr>" for a, b in lines if b)
    findings = "".join(f"<li>{escape(sentence)}</li>" for sentence in describe_findings(s))
    return f"<table><caption>{escape(s.name)}</caption><tbody>{rows}</tbody></table><ul>{findings}</ul>"


def _shown(summary: RunSummary) -> tuple[str, ...]:
    """List the test scores of a run that a notebook shows."""
    return _SHOWN if summary.task == CLASSIFICATION else shown_in(Place.SCREEN, summary.task)


def draw_plot(run: Run, name: str) -> Figure:
    """Draw a figure of a run.

    Args:
        run: The run.
        name: One of `PLOTS`.

    Raises:
        BadInput: There is no such figure, or the run did not record its values.
    """
    from grandrounds.report import figures

    if name not in PLOTS:
        raise BadInput(f"no figure '{name}'; {nearest(name, PLOTS)}", code="unknown-choice")
    if name == "curves":
        return figures.curves(run.rounds, run.summary if run.finished else None)
    if name == "coefficients":
        record = read_estimates(run.summary)
        if record is None:
            raise BadInput(
                f"{run.folder} has no estimates: its method is '{run.summary.method}'; glm and cox have them",
                code="no-estimates",
            )
        return figures.coefficients(record.fitted, record.original)
    if name in ("drift", "importance"):
        explanations = run.explanations
        return (
            figures.drift_over_rounds(explanations)
            if name == "drift"
            else figures.importance_heatmap(explanations, "deployed")
        )
    if name in ("reliability", "decision_curve"):
        values: Mapping[str, Any] = getattr(run.summary, name)
        if not values:
            raise BadInput(f"{run.folder} has no {name}: it needs test rows of two classes", code="no-evaluated-round")
        return figures.reliability(values) if name == "reliability" else figures.decision_curve(values)
    if name == "sites":
        return figures.site_curves(run.rounds, summary=run.summary if run.finished else None)
    draw = {
        "weights": figures.weights,
        "attendance": figures.presence_over_rounds,
        "cost": figures.bytes_over_rounds,
    }[name]
    return draw(run.rounds)


def _total_rows(summary: RunSummary) -> int:
    return sum(sum(uses.values()) for uses in summary.rows.values())


def _number(value: float | None) -> float:
    """Return a score as a number for a frame: NaN where it is not defined."""
    return float("nan") if value is None else value
