"""The first sections of a report: the verdict in plain language, the facts of the model, and for whom it is worse."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.report.overview import FAIR, Overview


def summary_part(view: Overview) -> list[str]:
    """Write the verdict, the headline figures and the findings; hospitals and groups are in the next part."""
    figures = [
        *([(view.headline.label, view.headline.value_text, view.headline.beside_text)] if view.headline else []),
        *([("test rows", f"{view.test_rows:,}", _events(view))] if view.test_rows else []),
        ("hospitals", f"{view.sites:,}" if view.sites is not None else "–", view.sites_text),
        *[(s.label, s.value_text, s.interval_text) for s in view.scores if s.key in ("sensitivity", "specificity")],
    ]
    tiles = "".join(
        f"<div class='tile'>{escape(name)}<b>{escape(value)}</b><span class='quiet'>{escape(note)}</span></div>"
        for name, value, note in figures
    )
    colour = "" if view.tone == FAIR else escape(view.verdict)
    found, threshold = view.findings, [view.threshold_text] if view.threshold_text else []
    model = (*found.effects, *found.event, *found.overall, *found.calibration)
    return [
        f"<p class='verdict {colour}'>{escape(view.verdict_title)}</p>" if view.verdict_title else "",
        *(f"<p class='warn'>{escape(warning)}</p>" for warning in view.warnings),
        f"<div class='tiles'>{tiles}</div>" if view.headline else "",
        f"<p class='quiet'>{escape(view.basis_line)}</p>" if view.basis_line else "",
        bullets([*model, *found.features, *threshold, view.privacy_title]),
    ]


def _events(view: Overview) -> str:
    return f"{view.events:,} with the event" if view.events is not None else ""


def worse_part(summary: RunSummary, view: Overview) -> list[str]:
    """Name the hospitals and groups of patients that the model serves worse, or state that none was found."""
    if not view.test_rows:
        return []
    lines = [*view.findings.harm, *view.findings.majority, *view.findings.sites, *view.findings.weights, *view.findings.subgroups]
    lines += list(view.findings.gaps)
    if len(view.worse_sites) > 1:
        lines.append(f"Hospitals where the model is clearly worse: {', '.join(view.worse_sites)}.")
    if len(view.unclear_sites) > 1:
        lines.append(f"Hospitals where it is not clear that the model is better than none: {', '.join(view.unclear_sites)}.")
    groups = [] if view.subgroups else [_no_groups(summary)]
    return [bullets([*lines, *groups])]


def _no_groups(summary: RunSummary) -> str:
    if summary.subgroups or summary.fairness:
        return "No subgroup is clearly worse than all test patients together."
    return "No subgroup was evaluated: set evaluation.subgroups to columns before this model is used."


def bullets(lines: Iterable[str]) -> str:
    """Write sentences as a list; all text is escaped."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
