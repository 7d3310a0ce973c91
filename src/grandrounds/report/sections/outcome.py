"""Report sections on the scores of runs that predict a number, a count or the time to an event."""

from __future__ import annotations

from html import escape
from typing import Any

from grandrounds.core.records import RunSummary
from grandrounds.metrics.fairness import is_defined, rank_sites, worst_site
from grandrounds.metrics.scores import HEADLINE, Place, metrics_of
from grandrounds.report.document import table, td, text_cell
from grandrounds.report.outcome import format_score, score_interval, shown_scores, task_of_run
from grandrounds.report.style import words


def outcome_tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Return a tile for each main score, and one for the worst site: its name, the value and a note."""
    tiles = []
    for metric in shown_scores(Place.TILES, summary):
        ends = score_interval(metric, summary.final)
        tiles.append((words(metric), format_score(metric, summary.final[metric]), f"95% CI {ends}" if ends else ""))
    worst, metric = worst_site(summary.per_site, task_of_run(summary)), HEADLINE[task_of_run(summary)]
    if worst:
        tiles.append((f"lowest {words(metric)} of a site", format_score(metric, worst[metric]), str(worst["site"])))
    return tiles


def outcome_sites(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Tabulate the scores of each site as text, the lowest headline metric first: heads and rows."""
    metrics, per_site = shown_scores(Place.REPORT_SITES, summary), summary.per_site
    events = any(is_defined(m.get("events")) for m in per_site.values())
    head = ["site", "train rows", "test rows", *(["events"] if events else []), *map(words, metrics), "notes"]
    rows = []
    for site in rank_sites(per_site, task_of_run(summary)):
        m = per_site[site]
        cells = [site, str(summary.rows.get(site, {}).get("train", "–")), f"{m['count']:.0f}"]
        cells += [format_score("events", m.get("events"))] if events else []
        cells += [_with_interval(metric, m) for metric in metrics]
        rows.append([*cells, "; ".join(str(note) for note in summary.notes.get(site, [])[:2])])
    return head, rows


def outcome_groups(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Tabulate the scores of each subgroup as text: heads and rows."""
    metrics = shown_scores(Place.SUBGROUPS, summary)
    rows = [
        [name, f"{m['count']:.0f}", *(_with_interval(metric, m) for metric in metrics)]
        for name, m in summary.subgroups.items()
    ]
    return ["subgroup", "test rows", *map(words, metrics)], rows


def _with_interval(metric: str, figures: Any) -> str:
    ends = score_interval(metric, figures)
    return f"{format_score(metric, figures.get(metric))}{f' ({ends})' if ends else ''}"


def sites_title(summary: RunSummary) -> str:
    """Return the heading of the table of sites."""
    return f"Sites, lowest {words(HEADLINE[task_of_run(summary)])} first"


def outcome_section(summary: RunSummary) -> list[str]:
    """Write the sections on scores by site, by subgroup and over all sites."""
    head, rows = outcome_sites(summary)
    cells = [[*(td(escape(cell)) for cell in row[:-1]), text_cell(row[-1])] for row in rows]
    return [
        f"<h2>{escape(sites_title(summary))}</h2>",
        table([*map(escape, head[:-1]), ""], cells),
        *_subgroups(summary),
        "<h2>Performance on test patients of all sites</h2>",
        outcome_metrics(summary),
    ]


def _subgroups(summary: RunSummary) -> list[str]:
    if not summary.subgroups:
        return []
    head, rows = outcome_groups(summary)
    return ["<h2>Subgroups</h2>", table([*map(escape, head)], [[td(escape(cell)) for cell in row] for row in rows])]


def outcome_metrics(summary: RunSummary) -> str:
    """Tabulate all scores on test and training rows, each with its meaning."""
    final, train = summary.final, summary.training
    rows = [
        [
            td(escape(words(m.name))),
            td(format_score(m.name, final[m.name])),
            td(format_score(m.name, train.get(m.name))),
            text_cell(m.text),
        ]
        for m in metrics_of(task_of_run(summary))
        if is_defined(final.get(m.name))
    ]
    return table(["metric", "test", "train", ""], rows)
