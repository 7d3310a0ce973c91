"""Quality of the sites' data as tables: differences between sites, figures of each site, and columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.tables import TextTable

_COLUMNS = 60
"""Columns in the table, those with most missing values first."""


def quality_tables(summary: Mapping[str, Any]) -> list[TextTable]:
    """Return the tables of method 'quality'; none for another run.

    Args:
        summary: The summary of a finished run.

    Raises:
        BadInput: The record is damaged.
    """
    quality = summary.get("quality")
    if not quality:
        return []
    try:
        return [_findings(quality), *([_sites(quality)] if quality["by_site"] else []), _columns(quality)]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "summary.json is damaged: its part `quality` cannot be read; run it again", code="damaged-record"
        ) from None


def headline(quality: Mapping[str, Any]) -> str:
    """Return the main sentence of a comparison of sites."""
    sites = len(quality["sites"])
    if not quality["by_site"]:
        return (
            f"Totals of {sites} sites by secure aggregation: sites are not compared here. Each site compares itself with the "
            "totals, with `rounds site check --totals`."
        )
    named = list(dict.fromkeys(f["site"] for f in quality["findings"]))
    if not named:
        return f"No site differs from all others: {sites} sites, {quality['rows']:,} rows."
    first = quality["findings"][0]
    where = f" in {first['column']}" if first["column"] else ""
    return f"{len(named)} of {sites} sites differ from all others; largest: {first['site']}{where}."


def describe_finding(finding: Mapping[str, Any]) -> str:
    """Write one difference as a line of text."""
    column = f"{finding['column']}: " if finding["column"] else ""
    return f"{finding['level']}: {finding['site']}: {column}{finding['text']}"


def _findings(quality: Mapping[str, Any]) -> TextTable:
    rows = tuple(
        (f["site"], f["column"] or "rows", f["text"], f["level"], f"{f['effect']:.0%}") for f in quality["findings"]
    )
    notes = [
        f"A site is named if at least {quality['effect']:.0%} of its values are in other bins than those of the other sites, "
        "beyond chance; if it differs so from half of them; and if that is twice the usual difference between the others. "
        f"Equal sites are named with probability {quality['level']:g} at most (Holm's correction).",
    ]
    if quality["noise"]:
        sigma = f"{quality['noise']:.3g}"
        notes.append(f"Every count has noise of standard deviation {sigma} rows: small differences cannot be seen.")
    elif quality["by_site"]:
        notes.append(f"Counts of fewer than {quality['least']} patients, and counts that would give them away, were not sent.")
    head = ("site", "column", "difference", "level", "effect")
    title = "Quality of the sites' data"
    return TextTable(title, head, rows, names=3, before=(headline(quality),), notes=tuple(notes))


def _sites(quality: Mapping[str, Any]) -> TextTable:
    sites = quality["by_site"]
    has_event, has_years = (any(key in s for s in sites) for key in ("prevalence", "years"))
    head = ["site", "rows", "missing values", *([f"'{quality['event']}' (95% interval)"] if has_event else [])]
    head += [*(["years"] if has_years else []), "repeated rows", "codes used", "differences"]
    rows = []
    for s in sites:
        row = [s["site"], f"{s['rows']:,}", "" if s["missing"] is None else f"{s['missing']:.1%}"]
        if has_event:
            p = s.get("prevalence")
            row.append(f"{p['share']:.1%} ({p['low']:.1%} to {p['high']:.1%})" if p else "few")
        if has_years:
            row.append(" to ".join(dict.fromkeys(s["years"])) if s.get("years") else "")
        codes = s["codes"]
        used = f"{codes['used']} of {codes['agreed']}" if codes["agreed"] else ""
        row += ["few" if s["copies"] is None else f"{s['copies']:,}", used, str(s["differences"])]
        rows.append(tuple(row))
    notes = ("few: a count of few patients, which was not sent.",) if any("few" in r for r in rows) else ()
    return TextTable("Sites", tuple(head), tuple(rows), notes=notes)


def _columns(quality: Mapping[str, Any]) -> TextTable:
    columns = sorted(quality["columns"], key=lambda c: -c["missing"])
    rows = []
    for c in columns[:_COLUMNS]:
        known = {s: m for s, m in c["by_site"].items() if m is not None}
        spread = f"{min(known.values()):.0%} to {max(known.values()):.0%}" if known else ""
        outside = "" if c["outside"] is None else f"{c['outside']:.1%}"
        unknown = "" if c["unknown"] is None else f"{c['unknown']:.1%}"
        effects = (quality["effects"] or {}).get(c["name"], {})
        worst = max(effects, key=lambda site: effects[site]) if effects else ""
        rows.append((c["name"], c["unit"], f"{c['missing']:.1%}", spread, outside, unknown,
                     f"{worst} {effects[worst]:.0%}" if worst else ""))  # fmt: skip
    head = ("column", "unit", "missing", "missing by site", "out of range", "unknown codes", "largest effect")
    more = len(columns) - len(rows)
    notes = (f"{more} further columns have fewer missing values.",) if more > 0 else ()
    return TextTable("Columns", head, tuple(rows), names=2, notes=notes)
