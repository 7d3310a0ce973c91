"""Figures of the rounds of a run: scores, participation, bytes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.core.errors import BadInput
from grandrounds.core.records import Decision, RoundRecord, RunSummary
from grandrounds.metrics import HEADLINE, HIGHER_IS_BETTER
from grandrounds.metrics.fairness import MIN_ROWS, NO_MODEL, can_rank, deployed_scores
from grandrounds.metrics.local_models import local_means
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.figures.weighting import bars, spread_positions
from grandrounds.report.outcome import task_of_run
from grandrounds.report.style import (
    COLOURS,
    FAINT,
    INK,
    MAX_SITES,
    QUIET,
    category,
    labels,
    layout,
    line_dashes,
    safe,
    site_colours,
    words,
)

_MAX_POINTS = 500
"""Rounds that a curve shows: a screen has no room for more."""
_COLOURED_SITES = 3
"""Number of sites, the first in order, that are drawn in colour and listed in the legend."""
_RANKING = (*HEADLINE.values(), "log_loss")
"""Metrics that order sites: the first that the records have. Accuracy never does: it depends on the threshold and on how
common the outcome is at a site."""


def curves(rounds: Sequence[RoundRecord], summary: RunSummary | None = None) -> Figure:
    """Draw accuracy and AUROC on the left and log loss on the right, on the rows of all sites.

    Args:
        rounds: The record of each round.
        summary: The summary of a finished run; a note tells why its final scores differ from the ends of the curves.

    Raises:
        BadInput: No round was evaluated.
    """
    evaluated = _drawn_rounds(rounds)
    x = [r.round for r in evaluated]
    lowest = [_lowest_auroc(r.sites, summary) for r in evaluated]
    test, val = [r.test or {} for r in evaluated], [r.val or {} for r in evaluated]
    scores = [
        _line(x, [t["accuracy"] for t in test], "accuracy", COLOURS[0], width=3),
        _line(x, [t["auroc"] for t in test], "AUROC", COLOURS[1], width=3),
        *([_line(x, lowest, "lowest AUROC of a site", COLOURS[2])] if any(v is not None for v in lowest) else []),
    ]
    constant = None if summary is None else deployed_scores(summary).final.get("majority")
    if constant is not None:
        scores.append(_line(x, [constant] * len(x), f"accuracy of {NO_MODEL}", QUIET, dash="dot"))
    right = [
        _line(x, [t["log_loss"] for t in test], "log loss, test", COLOURS[0], width=3),
        _line(x, [v["log_loss"] for v in val], "log loss, validation", COLOURS[4], dash="dash"),
    ]
    for line in right:
        line |= {"xaxis": "x2", "yaxis": "y2"}
    note = final_score_note(summary)
    shape = layout("Test scores by round", note=note, x="round", y="test rows of all sites", height=360)
    shape["xaxis"] |= {"domain": [0, 0.46]}
    shape["xaxis2"] = {"title": {"text": "round"}, "domain": [0.56, 1], "anchor": "y2"}
    shape["yaxis2"] = {"title": {"text": "log loss (nats)"}, "anchor": "x2"}
    return Figure([*scores, *right], shape)


def outcome_curves(rounds: Sequence[RoundRecord], metric: str) -> Figure:
    """Draw a metric on the test and validation rows of all sites over the rounds, for runs that predict no class.

    Args:
        rounds: The record of each round.
        metric: The metric.

    Raises:
        BadInput: No round was evaluated.
    """
    evaluated = _drawn_rounds(rounds)
    x = [r.round for r in evaluated]
    lines = [
        _line(x, [(r.test or {}).get(metric) for r in evaluated], "test rows", COLOURS[0], width=3),
        _line(x, [(r.val or {}).get(metric) for r in evaluated], "validation rows", COLOURS[4], dash="dash"),
    ]
    name = words(metric)
    return Figure(
        lines, layout(f"{name[:1].upper()}{name[1:]} by round", x="round", y=f"{name}, all sites", height=360)
    )


def final_score_note(summary: RunSummary | None) -> str:
    """Explain why the final scores of a run differ from those of its last round; empty where they do not."""
    if summary is None:
        return ""
    why = []
    if summary.temperature is not None or summary.platt:
        why.append("before calibration")
    if summary.threshold not in (None, 0.5):
        why.append(f"decided at 0.5, not at {summary.threshold:.3g}")
    if summary.stopped:
        why.append("including rounds after the best one")
    return f"each round's model {', '.join(why)}: the final scores differ" if why else ""


def _lowest_auroc(recorded: Mapping[str, Mapping[str, float | None]], summary: RunSummary | None) -> float | None:
    """Return the lowest AUROC of a site with the rows to be ranked; None where no site has one."""
    values = recorded.get("auroc", {})
    return min((v for s, v in values.items() if v is not None and _can_rank(s, recorded, summary)), default=None)


def _can_rank(site: str, recorded: Mapping[str, Mapping[str, float | None]], summary: RunSummary | None) -> bool:
    """Tell whether a site has the rows to be ranked: as the tables do in a finished run, else by its test rows."""
    if summary is not None and site in summary.per_site:
        return can_rank(summary.per_site[site], task_of_run(summary))
    rows = recorded.get("count")
    return rows is None or (rows.get(site) or 0) >= MIN_ROWS


def site_curves(rounds: Sequence[RoundRecord], metric: str | None = None, summary: RunSummary | None = None) -> Figure:
    """Draw a metric at every site over the rounds, the consortium's in bold and three sites in colour.

    In colour are the sites that ended with the lowest AUROC, or the highest log loss where the records have no AUROC. With
    many sites the figure shows thirty, in this order; sites with few test rows come last.

    Args:
        rounds: The record of each round.
        metric: The metric; by default the one that orders the sites.
        summary: The summary of a finished run; a note tells why its final scores differ from the ends of the curves.

    Raises:
        BadInput: No round was evaluated, or the metric is not recorded for each site.
    """
    evaluated = _drawn_rounds(rounds)
    recorded = evaluated[-1].sites
    ranked = ranking_metric(rounds)
    metric = metric or ranked or "accuracy"
    ranked = ranked if metric == "accuracy" else metric
    if metric not in recorded:
        raise BadInput(
            f"no metric '{metric}' is recorded by site; recorded metrics: {', '.join(recorded)}", code="unknown-metric"
        )
    x = [r.round for r in evaluated]
    order = _order_sites(recorded, metric, ranked, summary)
    by_round = [r.sites[metric] for r in evaluated]
    lines, selection = _site_lines(x, by_round, order, site_colours(rounds), _end_words(ranked))
    overall = [(r.test or {}).get(metric) for r in evaluated]
    lines.append({**_line(x, overall, "all sites together", INK, width=4), "legendrank": 1000})
    why = final_score_note(summary) if metric == "accuracy" else ""
    return Figure(
        lines,
        layout(
            f"{words(metric)[:1].upper()}{words(metric)[1:]} at each site",
            note=f"{why}<br>{selection}" if why else selection,
            x="round",
            y=f"{words(metric)}, test rows",
            height=380,
        ),
    )


def ranking_metric(rounds: Sequence[RoundRecord]) -> str | None:
    """Return the metric that orders sites: AUROC or another headline metric where a site has one, else log loss.

    Returns:
        The metric; None where the last evaluated round has neither.

    Raises:
        BadInput: No round was evaluated.
    """
    recorded = _evaluated_rounds(rounds)[-1].sites
    return next((m for m in _RANKING if any(v is not None for v in recorded.get(m, {}).values())), None)


def _order_sites(
    recorded: Mapping[str, Mapping[str, float | None]], metric: str, ranked: str | None, summary: RunSummary | None
) -> list[str]:
    """Order the sites that have a metric: those with the rows to be ranked first, worst by `ranked` first."""
    values = recorded.get(ranked or "", {})
    sign = -1.0 if HIGHER_IS_BETTER.get(ranked or "") is False else 1.0

    def rank(site: str) -> tuple[bool, bool, float, str]:
        value = values.get(site)
        return not _can_rank(site, recorded, summary), value is None, 0.0 if value is None else sign * value, site

    return sorted((s for s, v in recorded[metric].items() if v is not None), key=rank)


def _end_words(metric: str | None) -> str:
    """Name the worse end of a metric: "with the lowest AUROC", "with the highest log loss"; "by name" without a metric."""
    if metric is None:
        return "first by name"
    return f"with the {'highest' if HIGHER_IS_BETTER.get(metric) is False else 'lowest'} {words(metric)}"


def local_curves(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the accuracy of each site's own model on its own training rows, and of the common model on all test rows.

    FL-XAI's Figs. 4.3 to 4.24, which print the first for the second. With many sites it shows the thirty whose local model has
    the highest log loss.

    Raises:
        BadInput: No round has scores of local models.
    """
    scored = _rounds_with_local_models(rounds)
    x = [r.round for r in scored]
    by_round = [r.local["train_accuracy"] for r in scored]
    last = {
        s: v for values in by_round for s, v in values.items() if v is not None
    }  # the newest value of a site that was absent
    losses = {s: v for r in scored for s, v in r.local.get("train_loss", {}).items() if v is not None}
    order = sorted(last, key=lambda s: (-losses.get(s, 0.0), s))
    end = "with the highest log loss there" if losses else "first by name"
    lines, note = _site_lines(x, by_round, order, site_colours(rounds), end)
    common = [(r.test or {})["accuracy"] for r in scored]
    lines.append({**_line(x, common, "common model, test rows of all sites", INK, width=4), "legendrank": 1000})
    shape = layout("Each site's own model on its own training rows", note=note, x="round", y="accuracy", height=380)
    return Figure(lines, shape)


def crossed_curves(rounds: Sequence[RoundRecord], rows: Mapping[str, Mapping[str, int]]) -> Figure:
    """Draw the accuracy of local models on their own training rows, on other sites' and on all test rows (FL-XAI Fig. 4.39).

    Args:
        rounds: The record of each round.
        rows: The summary's `rows`; means over sites are weighted by them.

    Raises:
        BadInput: No round has scores of local models at other sites.
    """
    scored = [r for r in _rounds_with_local_models(rounds) if "external" in r.local]
    if not scored:
        raise BadInput(
            "local models were not scored at other sites in this run: set evaluation.local_models = 'crossed' and run it again",
            code="nothing-to-draw",
        )
    x = [r.round for r in scored]
    means = [local_means(r.local, rows) for r in scored]
    names = {
        "train_accuracy": "own training rows",
        "others_train": "other sites' training rows",
        "external": "test rows of all sites",
    }
    lines = [_line(x, [m[key] for m in means], name, c) for (key, name), c in zip(names.items(), COLOURS, strict=False)]
    common = [(r.test or {})["accuracy"] for r in scored]
    lines.append(_line(x, common, "common model, test rows of all sites", INK, width=4))
    title = "Local models on own, other sites' and test rows"
    return Figure(lines, layout(title, x="round", y="accuracy, mean over sites", height=380))


def _rounds_with_local_models(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    scored = [r for r in rounds if r.local]
    if not scored:
        raise BadInput(
            "no local model of this run was scored: set evaluation.local_models and run it again",
            code="nothing-to-draw",
        )
    return scored


def _site_lines(
    x: Sequence[int],
    by_round: Sequence[Mapping[str, float | None]],
    order: Sequence[str],
    colours: Mapping[str, str],
    end: str,
) -> tuple[list[Trace], str]:
    """Draw a line per site, the first of `order` in colour and in the legend; return a note about the selection too."""
    shown = order[:MAX_SITES]
    dashes = line_dashes(shown[:_COLOURED_SITES], colours)
    lines = []
    for rank, site in reversed(list(enumerate(shown))):
        named = rank < _COLOURED_SITES
        y = [values.get(site) for values in by_round]
        line = _line(x, y, safe(site), colours.get(site, QUIET) if named else "#c3c9cf", width=2 if named else 1)
        line["line"]["dash"] = dashes.get(site, "solid")
        lines.append({**line, "showlegend": named, "legendrank": 1001 + rank})
    some = f"{len(shown)} of {len(order)} sites {end}; " if len(shown) < len(order) else ""
    coloured = f"the {min(_COLOURED_SITES, len(shown))} {end if not some else 'first of them'} in colour"
    return lines, f"{some}{coloured}; names on hover"


def _drawn_rounds(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Choose the evaluated rounds that a curve shows: all, or evenly chosen ones with the first and the last."""
    evaluated = _evaluated_rounds(rounds)
    return [evaluated[i] for i in spread_positions(len(evaluated), _MAX_POINTS)]


def _evaluated_rounds(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    evaluated = [r for r in rounds if r.test is not None]
    if not evaluated:
        raise BadInput(
            "no round of this run was evaluated: set evaluation.every to draw curves", code="nothing-to-draw"
        )
    return evaluated


def _line(
    x: Sequence[int], y: Sequence[float | None], name: str, colour: str, *, dash: str = "solid", width: int = 2
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "width": width},
        "hovertemplate": "round %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
    }


_NOT_ASKED, _MISSING, _TOOK_PART = 0, 1, 2
_STEPS = [[0, FAINT], [0.333, FAINT], [0.334, COLOURS[1]], [0.666, COLOURS[1]], [0.667, COLOURS[5]], [1, COLOURS[5]]]


def presence_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the participation of each site in each round: took part, missing, or not asked.

    With many sites it shows those that were missing most often.
    """
    decisions = [r.decision for r in rounds]
    every = list(dict.fromkeys(s for d in decisions for s in (*d.asked, *d.missing)))
    missed = {s: sum(s in d.missing for d in decisions) for s in every}
    sites = sorted(every, key=lambda s: (-missed[s], s))[:MAX_SITES]
    shown = [decisions[i] for i in spread_positions(len(decisions))]
    z = [[_attendance(d, site) for d in shown] for site in sites]
    texts = [[_attendance_text(d, site) for d in shown] for site in sites]
    x, y = [str(d.round) for d in shown], labels(sites)
    total = sum(missed.values())
    note = f"missing {total} times in {len(rounds)} rounds" if total else "no site that was asked was missing"
    if len(every) > len(sites):
        note += f"; {len(sites)} of {len(every)} sites, most often missing first"
    trace = {
        "type": "heatmap",
        "x": x,
        "y": y,
        "z": z,
        "text": texts,
        "zmin": 0,
        "zmax": 2,
        "colorscale": _STEPS,
        "xgap": 1 if len(x) <= 60 else 0,
        "ygap": 1,
        "hovertemplate": "%{y}, round %{x}: %{text}<extra></extra>",
        "colorbar": {
            "tickvals": [0.33, 1.0, 1.67],
            "ticktext": ["not asked", "missing", "took part"],
            "thickness": 12,
        },
    }
    return Figure(
        [trace],
        layout(
            "Participation",
            note=note,
            x="round",
            height=180 + 16 * len(sites),
            xaxis=category(x, showgrid=False),
            yaxis=category(y, autorange="reversed", showgrid=False),
        ),
    )


def bytes_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the megabytes to and from sites in each round, evaluation included."""
    shown = [rounds[i] for i in spread_positions(len(rounds))]
    x = [r.round for r in shown]
    down, up = ([r.decision.cost[key] / 1e6 for r in shown] for key in ("bytes_down", "bytes_up"))
    drawn = [
        bars(x, down, "to sites", COLOURS[5], number_format=".4g"),
        bars(x, up, "from sites", COLOURS[0], number_format=".4g"),
    ]
    total = sum(r.decision.cost[key] for r in rounds for key in ("bytes_down", "bytes_up")) / 1e6
    note = f"{total:,.2f} MB in rounds, without setup and the final evaluation"
    return Figure(drawn, layout("Bytes", note=note, x="round", y="MB per round", height=340, barmode="stack"))


def seconds_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the wall-clock seconds of each round."""
    shown = [rounds[i] for i in spread_positions(len(rounds))]
    took = [r.decision.cost["seconds"] for r in shown]
    total = sum(r.decision.cost["seconds"] for r in rounds)
    drawn = [bars([r.round for r in shown], took, "seconds", COLOURS[2], number_format=".4g")]
    return Figure(drawn, layout("Time", note=f"{total:,.2f} s in rounds", x="round", y="seconds per round", height=340))


def _attendance(decision: Decision, site: str) -> int:
    if site in decision.missing:
        return _MISSING
    return _TOOK_PART if site in decision.asked else _NOT_ASKED


def _attendance_text(decision: Decision, site: str) -> str:
    if site in decision.missing:
        return safe(f"missing ({decision.missing[site]})")
    return "took part" if site in decision.asked else "not asked"
