"""Page of a comparison of sites before training: differences, sites side by side, and columns."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.bars import STYLE, share_bars
from grandrounds.report.document import document, table, td
from grandrounds.report.quality import headline, quality_tables

_SHADE = """
.heat td.far { background: #f7c9a3; color: #1b1f24 }
.heat td.some { background: #fdf1e7 }
"""
_COLUMNS = 60


def quality_page(quality: Mapping[str, Any], *, title: str = "Quality of the sites' data") -> str:
    """Write the page of a comparison of sites.

    Args:
        quality: The part `quality` of a run's summary.
        title: The heading.

    Returns:
        HTML, with no reference to anything outside of it. It has counts and names, and no value of a patient.

    Raises:
        BadInput: The record is damaged.
    """
    tables = quality_tables({"quality": quality})
    if not tables:
        raise BadInput("the record has no comparison of sites: run `rounds quality`", code="no-quality")
    named = bool(quality["findings"])
    verdict = f"<p class='verdict {'unfit' if named else 'fits'}'><b>{escape(headline(quality))}</b></p>"
    body = [
        f"<main><h1>{escape(title)}</h1>",
        verdict,
        "<p class='quiet'>From counts of rows in agreed bins, before training. No value or date of a patient left a site.</p>",
        tables[0].html(heading="h2"),
        *(t.html(heading="h2") for t in tables[1:]),
        *_effects(quality),
        *_distributions(quality),
        "</main>",
    ]
    return document(title, body, None, style=STYLE + _SHADE)


def _effects(quality: Mapping[str, Any]) -> list[str]:
    """Show the effect of every site in every column, large ones shaded."""
    effects = quality["effects"]
    if not effects:
        return []
    sites = list(next(iter(effects.values())))
    least = float(quality["effect"])
    order = sorted(effects, key=lambda name: -max(effects[name].values(), default=0.0))[:_COLUMNS]
    rows = []
    for name in order:
        cells = []
        for site in sites:
            value = float(effects[name][site])
            shade = " class='far'" if value >= least else " class='some'" if value >= least / 2 else ""
            cells.append(f"<td{shade}>{value:.0%}</td>")
        rows.append([td(escape(name)), *cells])
    head = ["<th class='text'>column</th>", *(escape(site) for site in sites)]
    note = (
        "<p class='quiet'>Share of a site's values that are in other bins than those of the other sites, beyond chance. "
        f"Shaded from {least / 2:.0%}, dark from {least:.0%}.</p>"
    )
    return [f"<section class='heat'><h2>Distance of each site from the others</h2>{note}{table(head, rows)}</section>"]


def _distributions(quality: Mapping[str, Any]) -> list[str]:
    """Draw the outcome and the years over all sites."""
    out = []
    classes, years = quality["bins"]["classes"], quality["bins"]["years"]
    if classes:
        out.append(_block([*classes, "another value"], quality["totals"]["outcome"], "Outcome, all sites"))
    if years:
        first, last = (int(y) for y in years)
        names = ["no date", f"before {first}", *map(str, range(first, last + 1)), f"after {last}"]
        counts = quality["totals"]["years"]
        used = [k for k, v in enumerate(counts) if v]
        if used:
            chosen = range(used[0], used[-1] + 1)
            out.append(_block([names[k] for k in chosen], [counts[k] for k in chosen], "Years, all sites"))
    return out


def _block(names: list[str], counts: list[float | None], title: str) -> str:
    known = [0.0 if v is None else max(float(v), 0.0) for v in counts]
    total = sum(known) or 1.0
    return f"<h2>{escape(title)}</h2>{share_bars(names, [v / total for v in known], title=title)}"
