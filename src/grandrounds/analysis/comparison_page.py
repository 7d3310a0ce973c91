"""The page of a comparison: arms side by side, with paired differences, trade-offs and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite, log
from typing import TYPE_CHECKING, Any, TypedDict

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.names import describe_direction, higher_is_better, metric_range
from grandrounds.metrics.statistics import describe_bounded
from grandrounds.report import figures
from grandrounds.report.document import Charts, document, number, table, td
from grandrounds.report.figure import Figure, packed_script
from grandrounds.report.style import labels, words

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

_CURVES = shown_in(Place.COURSE)
_REASONS = {
    "training_drift": ("training", "drift"),
    "training_jaccard": ("training", "jaccard"),
    "deployed_divergence": ("deployed", "drift"),
    "deployed_jaccard": ("deployed", "jaccard"),
}
"""Measures of explanations in a summary, by their names in comparisons."""

Triple = tuple[float, float, float]


class PairRow(TypedDict):
    """The paired difference of an arm to the first, in comparison.json."""

    n: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None


class ComparisonRow(TypedDict):
    """One metric of one arm, in comparison.json."""

    arm: str
    metric: str
    n: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    cv: float | None
    paired_to_first: PairRow | None


class PriceRow(TypedDict):
    """The price of an arm, in comparison.json."""

    arm: str
    exchanges: float | None
    bytes_up: float | None
    cpu_seconds: float | None


def comparison_page(
    comparison: Mapping[str, Any], runs: Mapping[str, Sequence[Run]], *, title: str = "Comparison"
) -> str:
    """Write the page of a comparison.

    Args:
        comparison: The content of comparison.json.
        runs: Arm -> its runs, for curves and explanations.
        title: The heading of the page.
    """
    charts = Charts(packed_script())
    rows: list[ComparisonRow] = comparison["rows"]
    stability = {arm: _reasons(arm_runs) for arm, arm_runs in runs.items()}
    virtual_seconds = comparison.get("at")
    when = "" if virtual_seconds is None else f", after {virtual_seconds:g} virtual seconds"
    metrics = list(dict.fromkeys(r["metric"] for r in rows))
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{_count(rows)}{when}; "
        f"differences are to {escape(comparison['first'])}, paired by seed and fold; 95% intervals are "
        "of three runs or more, cut at the ends of a metric's range</p>",
        *(f"<p class='quiet'>{escape(note)}</p>" for note in comparison.get("notes", ())),
        *(f"<p>{escape(sentence)}</p>" for sentence in comparison.get("conclusion", ())),
        charts.note,
        "<h2>All arms</h2>",
        charts.place(figures.intervals(rows), wide=True),
        *[_table(comparison["first"], [r for r in rows if r["metric"] == m], m) for m in metrics],
        *_prices(rows, comparison.get("prices", []), comparison.get("headline", metrics[0])),
        *_profile(rows, runs, charts),
        *_trade(rows, stability, charts),
        *_course(runs, charts),
    ]
    return document(title, body, charts.script)


def _count(rows: Sequence[ComparisonRow]) -> str:
    counts = {r["arm"]: r["n"] for r in rows}
    return f"{len(counts)} arms, {sum(counts.values())} runs"


def _table(first: str, rows: Sequence[ComparisonRow], metric: str) -> str:
    """Write mean, interval and paired difference of every arm in one metric."""
    head = ["", "runs", "mean", "std", "95% CI", "CV %", f"difference to {escape(first)}", "95% CI", "p"]
    lines = []
    for row in rows:
        cells = [td(escape(row["arm"])), td(str(row["n"])), td(number(row["mean"])), td(number(row["std"]))]
        cells += [td(_span(row)), td(number(row["cv"], 2))]
        pair = row["paired_to_first"]
        if pair is None:
            cells += [td("")] * 3
        else:
            cells += [_difference(metric, pair), td(_span(pair)), td(number(pair["p"], 3))]
        lines.append(cells)
    better = describe_direction(metric)
    name = escape(words(metric)) + (f" <span class='quiet'>({better})</span>" if better else "")
    return f"<section><h3>{name}</h3>{table(head, lines)}</section>"


def _prices(rows: Sequence[ComparisonRow], prices: Sequence[PriceRow], metric: str) -> list[str]:
    """Write the price of every arm beside a metric: exchanges, bytes that a site sends, CPU time."""
    if not prices:
        return []
    by_arm = {row["arm"]: row for row in rows if row["metric"] == metric}
    lines = []
    for price in prices:
        row = by_arm[price["arm"]]
        sent = ["rows leave", "all rows"] if price["exchanges"] is None else [f"{price['exchanges']:,.0f}", _bytes(price)]
        cells = [escape(price["arm"]), number(row["mean"]), _span(row), *sent, number(price["cpu_seconds"], 1)]
        lines.append([td(cell) for cell in cells])
    head = ["", escape(words(metric)), "95% CI", "exchanges", "sent by a site", "CPU seconds of a run"]
    note = (
        "<p class='quiet'>An exchange is one question to all sites and their answers: one round. Bytes are those of the arrays "
        "that one site sends in training, without evaluation. Means over runs.</p>"
    )
    return [f"<section><h2>Price</h2>{table(head, lines)}{note}</section>"]


def _bytes(price: PriceRow) -> str:
    return "&ndash;" if price["bytes_up"] is None else format_bytes(price["bytes_up"])


def format_bytes(count: float) -> str:
    """Write a number of bytes in kB or MB."""
    return f"{count / 1e6:,.2f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _span(values: ComparisonRow | PairRow) -> str:
    if values["low"] is None or values["high"] is None:
        return f"{values['n']} runs: no interval" if values["n"] == 2 else "&ndash;"
    return f"{number(values['low'])}&nbsp;to&nbsp;{number(values['high'])}"


def _difference(metric: str, pair: PairRow) -> str:
    """Write a difference, in colour where its interval leaves out zero."""
    value = pair["difference"]
    if value is None:
        return td("&ndash;")
    low, high = pair["low"], pair["high"]
    clear = low is not None and high is not None and (low > 0 or high < 0)
    better = higher_is_better(metric)
    shade = ("good" if (value > 0) == better else "bad") if clear and better is not None else ""
    return f"<td class='{shade}'>{value:+.4f}</td>"


def _reasons(runs: Sequence[Run]) -> dict[str, Triple]:
    """Compute mean and 95% interval of the explanation measures of an arm's runs, where all of them have one."""
    out = {}
    for name, (kind, key) in _REASONS.items():
        values = [run.summary["explanation"].get(kind, {}).get(key) for run in runs]
        if values and None not in values:
            s = describe_bounded([float(v) for v in values], metric_range(name))
            out[name] = (s.mean, s.low if isfinite(s.low) else s.mean, s.high if isfinite(s.high) else s.mean)
    return out


def _profile(rows: Sequence[ComparisonRow], runs: Mapping[str, Sequence[Run]], charts: Charts) -> list[str]:
    """Draw all metrics, traffic and privacy of the arms at once, as VEIL's Fig. 1; nothing for one arm or two axes."""
    arms: dict[str, dict[str, float | None]] = {row["arm"]: {} for row in rows}
    for row in rows:
        arms[row["arm"]][row["metric"]] = row["mean"]
    sent = {arm: _mean_of([_traffic(run) for run in runs.get(arm, ())]) for arm in arms}
    epsilons = {arm: _mean_of([_inverse_epsilon(run) for run in runs.get(arm, ())]) for arm in arms}
    for arm, values in arms.items():
        values |= {"log(1 / MB)": -log(sent[arm] or 1.0)} if all(sent.values()) else {}
        values |= {"1 / epsilon": epsilons[arm]} if any(epsilons.values()) else {}
    axes = list(dict.fromkeys(axis for values in arms.values() for axis in values))
    if len(arms) < 2 or len(axes) < 3:
        return []
    names = labels(list(arms), width=60)
    drawn = figures.radar(axes, dict(zip(names, arms.values(), strict=True)))
    return ["<h2>All metrics at once</h2>", charts.place(drawn, wide=True)]


def _traffic(run: Run) -> float:
    """Return the arrays of training that sites and server exchanged, both ways, in MB."""
    cost = run.summary.cost
    return float(cost.get("payload_up", 0.0) + cost.get("payload_down", 0.0)) / 1e6


def _inverse_epsilon(run: Run) -> float:
    """Return 1 / epsilon; 0 for a run without a guarantee."""
    epsilon = (run.summary.privacy or {}).get("epsilon")
    return 1 / float(epsilon) if epsilon else 0.0


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _trade(rows: Sequence[ComparisonRow], stability: Mapping[str, Mapping[str, Triple]], charts: Charts) -> list[str]:
    """Draw the trade-offs: performance against stability of explanations."""
    metrics = list(dict.fromkeys(r["metric"] for r in rows))
    arms = list(dict.fromkeys(r["arm"] for r in rows))
    measured: dict[str, dict[str, tuple[float | None, float | None, float | None]]] = {
        arm: dict(stability.get(arm, {})) for arm in arms
    }
    for row in rows:
        measured[row["arm"]][row["metric"]] = (row["mean"], row["low"], row["high"])
    drawn: list[Figure] = []
    for drift in ("training_drift", "deployed_divergence"):
        points = [{"label": a, **values} for a, values in measured.items() if drift in values and metrics[0] in values]
        if len(points) > 1 and drift != metrics[0]:
            drawn.append(figures.pareto(points, x=drift, y=metrics[0], arms=arms))
    return ["<h2>Trade-offs</h2>", charts.place(*drawn)] if drawn else []


def _course(runs: Mapping[str, Sequence[Run]], charts: Charts) -> list[str]:
    """Draw the curves of each arm over the rounds."""
    drawn = []
    tasks = {run.summary.task for arm_runs in runs.values() for run in arm_runs}
    shown = _CURVES if tasks <= {CLASSIFICATION} else [m for task in sorted(tasks) for m in shown_in(Place.COURSE, task)]
    for metric in shown:
        curves = {
            arm: [
                {r["round"]: r["test"][metric] for r in run.rounds if metric in (r.get("test") or {})} for run in arm_runs
            ]
            for arm, arm_runs in runs.items()
        }
        if any(len(curve) > 1 for arm_runs in curves.values() for curve in arm_runs):
            try:
                drawn.append(figures.arm_curves(curves, metric))
            except BadInput:  # undefined at every arm: an AUROC of sites with one class, say
                continue
    return ["<h2>Training curves</h2>", charts.place(*drawn)] if drawn else []
