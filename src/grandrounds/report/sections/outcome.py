"""Report sections on the scores of runs that predict a number, a count or the time to an event."""

from __future__ import annotations

from html import escape
from typing import Any

from grandrounds.core.records import RunSummary
from grandrounds.metrics.fairness import MIN_ROWS, is_defined
from grandrounds.metrics.scores import DESCRIPTIONS
from grandrounds.report.document import number, table, td, text_cell
from grandrounds.report.outcome import (
    format_score,
    rank_by_task,
    score_interval,
    shown_metrics,
    words_of,
)
from grandrounds.report.style import words


def outcome_tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Return a tile for each score, and one for the worst site: its name, the value and a note."""
    outcome = words_of(summary)
    assert outcome is not None
    tiles = []
    for metric in shown_metrics(summary):
        ends = score_interval(metric, summary.final)
        tiles.append((words(metric), format_score(metric, summary.final[metric]), f"95% CI {ends}" if ends else ""))
    sites = [s for s in rank_by_task(summary) if (summary.per_site[s].get("count") or 0) >= MIN_ROWS]
    if len(sites) > 1:
        worst = summary.per_site[sites[0]]
        tiles.append(
            (f"worst {words(outcome.main)} of a site", format_score(outcome.main, worst.get(outcome.main)), sites[0])
        )
    return tiles


def outcome_sites(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Tabulate the scores of each site as text, the worst site first: heads and rows."""
    metrics, per_site = shown_metrics(summary), summary.per_site
    events = any(is_defined(m.get("events")) for m in per_site.values())
    head = ["site", "train rows", "test rows", *(["events"] if events else []), *map(words, metrics), "notes"]
    rows = []
    for site in rank_by_task(summary):
        m = per_site[site]
        cells = [site, str(summary.rows.get(site, {}).get("train", "–")), f"{m['count']:.0f}"]
        cells += [format_score("events", m.get("events"))] if events else []
        cells += [_with_interval(metric, m) for metric in metrics]
        rows.append([*cells, "; ".join(str(note) for note in summary.notes.get(site, [])[:2])])
    return head, rows


def _with_interval(metric: str, figures: Any) -> str:
    ends = score_interval(metric, figures)
    return f"{format_score(metric, figures.get(metric))}{f' ({ends})' if ends else ''}"


def outcome_section(summary: RunSummary) -> list[str]:
    """Write the sections on scores by site, by subgroup and over all sites."""
    outcome = words_of(summary)
    assert outcome is not None
    head, rows = outcome_sites(summary)
    cells = [[*(td(escape(cell)) for cell in row[:-1]), text_cell(row[-1])] for row in rows]
    return [
        f"<h2>Sites, worst {escape(words(outcome.main))} first</h2>",
        table([*map(escape, head[:-1]), ""], cells),
        *_subgroups(summary),
        "<h2>Performance on test patients of all sites</h2>",
        _metrics(summary),
    ]


def _subgroups(summary: RunSummary) -> list[str]:
    if not summary.subgroups:
        return []
    metrics = shown_metrics(summary)
    rows = [
        [td(escape(name)), td(f"{m['count']:.0f}"), *(td(escape(_with_interval(metric, m))) for metric in metrics)]
        for name, m in summary.subgroups.items()
    ]
    return ["<h2>Subgroups</h2>", table(["subgroup", "rows", *map(words, metrics)], rows)]


def _metrics(summary: RunSummary) -> str:
    final, train = summary.final, summary.training
    rows = [
        [td(escape(words(name))), td(format_score(name, value)), td(format_score(name, train.get(name))),
         text_cell(DESCRIPTIONS.get(name, ""))]
        for name, value in final.items()
        if is_defined(value) and name not in ("count", "events")
    ]  # fmt: skip
    counts = [[td(escape(name)), td(number(final.get(name), 0)), td(number(train.get(name), 0)), text_cell("")]
              for name in ("count", "events") if is_defined(final.get(name))]  # fmt: skip
    return table(["metric", "test", "train", ""], [*counts, *rows])
