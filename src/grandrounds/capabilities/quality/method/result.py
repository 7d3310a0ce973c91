"""The result of method 'quality' as plain values: totals of all sites, figures of each site, and differences.

Totals and figures follow from counts that sites sent. A total of few patients is hidden (None).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.capabilities.quality.method.comparison import Rules, fill_block, fill_hidden
from grandrounds.capabilities.quality.method.findings import SiteFinding, column_effects, event_column, find_differences
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.bins import COLUMN, COPIES, DATES, OUTCOME, PATIENTS, ROWS, AgreedBins
from grandrounds.data.agreement.counts import HIDDEN, choose_hidden, share_interval

OWN, OTHERS = "this site", "the other sites"
"""Names of the two sides where a site compares itself with totals."""


def describe_quality(
    bins: AgreedBins, total: Array, by_site: Mapping[str, Array], *, event: str, rules: Rules
) -> dict[str, Any]:
    """Describe the counts of all sites as JSON values, as summary.json has them.

    Args:
        bins: The agreed bins.
        total: The sum of all counts.
        by_site: Counts of each site, where they came in the clear; hidden ones are negative.
        event: The class whose share is the prevalence.
        rules: Thresholds of the comparison.
    """
    sites = fill_hidden(bins, by_site, noise=rules.noise)
    blocks = bins.split(total)
    if sites:
        rows = sum(float(np.maximum(counts[ROWS], 0.0)[0]) for counts in sites.values())
    else:
        rows = max(0.0, float(blocks[ROWS][0]))
    findings = find_differences(bins, sites, rules, event=event) if len(sites) > 1 else []
    return {
        "rows": round(rows),
        "least": rules.least,
        "level": rules.level,
        "effect": rules.effect,
        "noise": rules.noise or None,
        "event": bins.classes[event_column(bins, event)] if bins.classes else "",
        "bins": bins.to_dict(),
        "totals": _totals(bins, blocks, by_site, rules),
        "columns": [_column(bins, c.name, blocks, sites) for c in bins.columns],
        "by_site": [_site(bins, site, counts, by_site[site], rules, event, findings) for site, counts in sites.items()],
        "effects": column_effects(bins, sites, rules) if len(sites) > 1 else {},
        "findings": [f.to_dict() for f in findings],
    }


def compare_with_totals(result: Mapping[str, Any], own: Mapping[str, Array]) -> list[SiteFinding]:
    """Compare a site's own counts with the totals of a consortium, at the site: nothing is sent.

    Args:
        result: The part `quality` of a run's summary.
        own: Counts of the site by block, in the bins of that run.

    Returns:
        Differences of this site from the others.

    Raises:
        BadInput: The result is damaged.
    """
    try:
        bins = AgreedBins.from_dict(result["bins"])
        rules = Rules(float(result["level"]), float(result["effect"]), int(result["least"]), float(result["noise"] or 0.0))
        shown = {n: np.array([HIDDEN if v is None else max(float(v), 0.0) for v in result["totals"][n]]) for n in bins.blocks}
        own = {name: np.asarray(own[name], float) for name in bins.blocks}
        totals = {name: fill_block(counts, float(result["rows"]), own[name]) for name, counts in shown.items()}
        others = {name: np.maximum(totals[name] - own[name], 0.0) for name in bins.blocks}
        event = str(result["event"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput("the totals cannot be read: take them from `rounds quality RUN --json`", code="damaged-record") from None
    found = find_differences(bins, {OWN: own, OTHERS: others}, rules, event=event)
    return [f for f in found if f.site == OWN]


def _totals(
    bins: AgreedBins, blocks: Mapping[str, Array], by_site: Mapping[str, Array], rules: Rules
) -> dict[str, list[float | None]]:
    """Return the totals by block; None for counts of few patients, and for counts that a site has hidden."""
    unknown = bins.split(np.any([v < 0 for v in by_site.values()], axis=0)) if by_site and not rules.noise else {}
    out: dict[str, list[float | None]] = {}
    for name, counts in blocks.items():
        rounded = np.rint(counts)
        hidden = np.zeros(len(rounded), bool) if rules.noise else choose_hidden(rounded, rounded, least=rules.least)
        if unknown:
            hidden |= unknown[name] > 0
        out[name] = [None if hide else float(v) for v, hide in zip(rounded, hidden.tolist(), strict=True)]
    return out


def _column(
    bins: AgreedBins, name: str, blocks: Mapping[str, Array], sites: Mapping[str, Mapping[str, Array]]
) -> dict[str, Any]:
    """Describe one column: share of missing values, of values out of range and of unknown codes, over all sites."""
    column = next(c for c in bins.columns if c.name == name)
    counts = np.maximum(blocks[f"{COLUMN}{name}"], 0.0)
    if sites:
        counts = np.sum([np.maximum(s[f"{COLUMN}{name}"], 0.0) for s in sites.values()], axis=0)
    present = max(float(counts[1:].sum()), 1.0)
    return {
        "name": name,
        "kind": "number" if column.edges else "category" if column.levels else "other",
        "unit": column.unit,
        "missing": float(counts[0] / max(counts.sum(), 1.0)),
        "outside": float(counts[column.outside].sum() / present) if column.outside.any() else None,
        "unknown": float(counts[-1] / present) if column.levels else None,
        "by_site": {site: _missing(s[f"{COLUMN}{name}"]) for site, s in sites.items()},
    }


def _missing(counts: Array) -> float | None:
    total = float(np.maximum(counts, 0.0).sum())
    return float(np.clip(counts[0] / total, 0.0, 1.0)) if total > 0 else None


def _site(
    bins: AgreedBins,
    site: str,
    counts: Mapping[str, Array],
    sent: Array,
    rules: Rules,
    event: str,
    findings: list[SiteFinding],
) -> dict[str, Any]:
    """Describe one site: rows, missing cells, prevalence with interval, years, copies and coverage of codes."""
    raw = counts if rules.noise else bins.split(sent)
    rows = max(0.0, float(counts[ROWS][0]))
    gaps = [m for c in bins.columns if (m := _missing(counts[f"{COLUMN}{c.name}"])) is not None]
    out: dict[str, Any] = {
        "site": site,
        "rows": round(rows),
        "missing": float(np.mean(gaps)) if gaps else None,
        "hidden": 0 if rules.noise else int((sent < 0).sum()),
        "differences": sum(f.site == site for f in findings),
    }
    if bins.classes:
        place = event_column(bins, event)
        n, events = float(np.maximum(counts[OUTCOME], 0.0).sum()), float(counts[OUTCOME][place])
        shown = bool(raw[OUTCOME][place] >= 0 and n > 0)
        low, high = share_interval(events, n, noise=rules.noise)
        out["prevalence"] = {"share": events / n, "low": low, "high": high} if shown else None
    if bins.years is not None:
        used = [name for name, c in zip(bins.blocks[DATES][1:], raw[DATES][1:], strict=True) if c > 0]
        out["years"] = [used[0], used[-1]] if used else None
    out["copies"] = round(float(raw[COPIES][1])) if raw[COPIES][1] >= 0 else None
    if bins.patients and not rules.noise:
        out["several"] = round(float(raw[PATIENTS][1])) if raw[PATIENTS][1] >= 0 else None
    agreed = [(c.levels, raw[f"{COLUMN}{c.name}"][1:-1]) for c in bins.columns if c.levels]
    out["codes"] = {
        "used": int(sum((found != 0).sum() for _, found in agreed)),
        "agreed": sum(len(levels) for levels, _ in agreed),
    }
    return out
