"""Sections on performance: scores of test rows over all sites, by site and by subgroup, hospitals compared, and calibration."""

from __future__ import annotations

from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.metrics import DESCRIPTIONS, Place, shown_in
from grandrounds.metrics.fairness import (
    NO_MODEL,
    clearly_worse,
    decision_key,
    decision_metric,
    deployed_scores,
    group_lines,
    intervals,
    is_defined,
    majority_lines,
    rank_sites,
    site_flags,
    worst_site,
)
from grandrounds.metrics.names import binning_note, metric_label
from grandrounds.metrics.scores import BY_NAME
from grandrounds.report import figures
from grandrounds.report.deployed import deployed_tile
from grandrounds.report.document import Charts, number, span, table, td, text_cell
from grandrounds.report.figures.hospitals import hospital_forest
from grandrounds.report.hospitals import compare_hospitals, describe_pooled, headline_metric
from grandrounds.report.outcome import is_classification, percent
from grandrounds.report.sections.outcome import outcome_tiles
from grandrounds.report.style import words


def score_tiles(summary: RunSummary) -> str:
    """Write the main scores as tiles, of the models that hospitals deploy."""
    harm = deployed_tile(summary)
    summary = deployed_scores(summary)
    if is_classification(summary):
        tiles = _class_tiles(summary)
    else:
        tiles = [(escape(n), escape(v), escape(note)) for n, v, note in outcome_tiles(summary)]
    for kind, name in (("training", "training drift"), ("deployed", "deployed divergence")):
        if kind in summary.explanation:
            explanation = summary.explanation[kind]
            by_chance = (
                "scale 0 to 2" if explanation["sampling"] is None else f"by chance {number(explanation['sampling'], 3)}"
            )
            tiles.append((name, number(explanation["drift"], 3), by_chance))
    tiles += [(escape(n), escape(v), escape(note)) for n, v, note in harm]
    inner = "".join(f"<div class='tile'>{n}<b>{v}</b><span class='quiet'>{note}</span></div>" for n, v, note in tiles)
    return f"<div class='tiles'>{inner}</div>"


def _class_tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    final, headline = summary.final, headline_metric(summary)
    tiles = [
        (
            accuracy_name(summary),
            number(decision_metric("accuracy", final), 3),
            f"{NO_MODEL} {number(final['majority'], 3)}",
        ),
        (metric_label(headline), number(final[headline], 3), _interval(summary, headline)),
        ("log loss", number(final["log_loss"], 3), f"ECE {number(final['ece'], 3)}"),
    ]
    worst = worst_site(summary.per_site)
    if worst:
        ends = span(intervals(worst).get("auroc"), 2)
        tiles.append(("lowest AUROC of a site", number(worst["auroc"], 3), f"{escape(str(worst['site']))} {ends}"))
    return tiles


def _interval(summary: RunSummary, metric: str) -> str:
    """Write the interval of the AUROC, and that of all patients pooled beside the mean within hospitals."""
    final = summary.final
    if final[f"{metric}_low"] is None:
        text = "mean of one class against the rest"
    else:
        text = f"95% CI {number(final[f'{metric}_low'], 3)} to {number(final[f'{metric}_high'], 3)}"
    return "; ".join(note for note in (text, describe_pooled(summary), binning_note(final, metric)) if note)


def metrics_table(summary: RunSummary) -> str:
    """Tabulate every metric on test and training rows, with its meaning; errors by binning are noted beside the scores."""
    final = summary.final
    parts = (final, summary.training) if summary.training else (final,)
    others = [name for name in final if name not in DESCRIPTIONS]
    custom = {n: BY_NAME[n].text if n in BY_NAME else "A metric that this experiment defines." for n in others}
    same = {
        f"decision_{m}" for m in final if final.get(f"decision_{m}") == final[m]
    }  # equal at a threshold of 0.5: listed once
    rows = [
        [
            td(escape(words(name))),
            *[td(number(part.get(name), BY_NAME[name].digits if name in BY_NAME else 4)) for part in parts],
            f"<td class='text'>{text}</td>",
        ]
        for name, text in (DESCRIPTIONS | custom).items()
        if final.get(name) is not None and name != "count" and name not in same and not name.endswith("_resolution")
    ]
    return table(["metric", *("test", "train")[: len(parts)], ""], rows)


def calibration_figures(summary: RunSummary, charts: Charts) -> str:
    """Draw calibration, and the net benefit of acting on predictions."""
    drawn = []
    if summary.reliability:
        drawn.append(figures.reliability(summary.reliability))
    if summary.decision_curve:
        drawn.append(figures.decision_curve(summary.decision_curve))
    return charts.place(*drawn)


def fairness_lines(summary: RunSummary) -> list[str]:
    """Write a sentence for each site below its own majority class and for each subgroup that is clearly worse."""
    lines = [f"Worse than a constant answer at {line}." for line in majority_lines(summary)]
    return [*lines, *(f"Subgroup {line}." for line in group_lines(summary))]


def accuracy_name(summary: RunSummary) -> str:
    """Name the accuracy: with its threshold where decisions are not made at 0.5."""
    threshold = summary.threshold
    if threshold in (None, 0.5):
        return "accuracy"
    return f"accuracy at {percent(threshold if decision_key('accuracy', summary.final) != 'accuracy' else 0.5)}"


def site_table(summary: RunSummary) -> str:
    """Tabulate the sites with test rows, the lowest AUROC first."""
    per_site = summary.per_site
    events = any(is_defined(m.get("events")) for m in per_site.values())
    rows, columns = [], shown_in(Place.REPORT_SITES)
    for site in rank_sites(per_site):
        m = per_site[site]
        cells = [td(escape(site)), td(str(summary.rows[site]["train"])), td(f"{m['count']:.0f}")]
        cells += [td(number(m.get("events"), 0))] if events else []
        ends = intervals(m)
        for value, metric in ((m["auroc"], "auroc"), (decision_metric("accuracy", m), decision_key("accuracy", m))):
            cells.append(td(f"{number(value, 3)} <span class='quiet'>{span(ends.get(metric), 2)}</span>"))
        cells += [td(number(m.get(c), 3)) for c in columns]
        notes = [*site_flags(m, threshold=summary.threshold or 0.5), *summary.notes.get(site, [])[:2]]
        rows.append([*cells, text_cell("; ".join(notes))])
    head = [
        "site",
        "train rows",
        "test rows",
        *(["events"] if events else []),
        "AUROC (95% CI)",
        f"{accuracy_name(summary)} (95% CI)",
    ]
    return table([*head, *map(words, columns), ""], rows)


def subgroup_table(summary: RunSummary) -> str:
    """Tabulate test rows by subgroup: rows, events, AUROC, sensitivity, specificity and accuracy with 95% intervals."""
    rows, columns = [], shown_in(Place.SUBGROUPS)
    for name, m in summary.subgroups.items():
        ends, right = intervals(m), decision_key("accuracy", m)
        cells = [td(escape(name)), td(f"{m['count']:.0f}"), td(number(m.get("events"), 0))]
        for metric in (*columns, right):
            low_high = span(ends.get(metric), 2)
            cells.append(td(f"{number(m.get(metric), 3)} <span class='quiet'>{low_high}</span>"))
        worse = clearly_worse(m, summary.final)
        rows.append(
            [*cells, td(number(m.get("ece"), 3)), text_cell(f"worse: {', '.join(map(words, worse))}" if worse else "")]
        )
    named = [*map(words, columns), accuracy_name(summary)]
    return table(["subgroup", "rows", "events", *named, "ECE", ""], rows)


def hospitals_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section that compares hospitals, with a forest plot; empty with fewer than two hospitals that have scores."""
    found = compare_hospitals(summary)
    drawn = None if found is None else hospital_forest(found)
    if found is None or drawn is None or len(found.tested) < 2:
        return []
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.sentences())
    note = f"Figures are of {found.model_text}, on each hospital's own test patients. {found.threshold_text} {found.reading}"
    figure = charts.place(drawn, wide=True)
    return ["<h2>Hospitals compared</h2>", f"<ul>{items}</ul>", figure, f"<p class='quiet'>{escape(note)}</p>"]
