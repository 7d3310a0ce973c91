"""The result of a watch across hospitals: features by the number of sites where they moved, and the size of the shift.

All numbers follow from sums that sites sent. Counts of few patients are left out of the distributions (None).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.small_cells import hide_cells
from grandrounds.capabilities.watch.method.comparison import Comparison, holm, stability_index
from grandrounds.capabilities.watch.method.site import (
    CALIBRATION,
    EVENTS,
    EXPLANATION,
    MEANS,
    RESIDUAL,
    SCORE,
    WatchLayout,
)
from grandrounds.core.arrays import Array
from grandrounds.data.encoding import Encoding


@dataclass(frozen=True)
class SiteSums:
    """The sums of one site, or of all.

    Attributes:
        layout: Places of the numbers.
        comparisons: By block.
        flags: Number of sites where each check found a change.
        patients: New patients.
        reference: Reference patients.
        labelled: New patients with a label.
        compared: Sites with enough new patients.
        sites: Sites in the sum.
    """

    layout: WatchLayout
    comparisons: Mapping[str, Comparison]
    flags: Array
    patients: float
    reference: float
    labelled: float
    compared: int
    sites: int

    @classmethod
    def read(cls, layout: WatchLayout, vector: Array, *, sites: int = 1) -> SiteSums:
        """Read an answer, or a sum of answers of so many sites."""
        comparisons, flags, counts = layout.unpack(vector)
        patients, reference, labelled, compared = counts.tolist()
        return cls(layout, comparisons, np.rint(flags), patients, reference, labelled, round(compared), sites)

    def moved(self, kind: str, name: str = "") -> int:
        """Return the number of sites where a check found a change."""
        return int(self.flags[self.layout.checks.index((kind, name))])

    @property
    def named(self) -> list[str]:
        """Return the checks that found a change: columns by name, others by kind."""
        return [
            name if kind == "input" else f"{kind} of {name}" if name else kind
            for (kind, name), flag in zip(self.layout.checks, self.flags.tolist(), strict=True)
            if flag
        ]


def describe_watch(
    sums: SiteSums, by_site: Mapping[str, SiteSums], encoding: Encoding, *, level: float, least: int, noise: float
) -> dict[str, Any]:
    """Describe a watch as JSON values, as summary.json has them.

    Args:
        sums: The sums of all sites.
        by_site: Those of each site, where they came in the clear.
        encoding: The encoding of the watched model, for units.
        level: Chance of a false alarm at a site.
        least: Smallest count that is shown.
        noise: Standard deviation of the noise in a site's counts; 0: none.
    """
    n = max(sums.patients, 1.0)
    least = 0 if noise else least
    features = _features(sums, encoding, least=least, noise=noise)
    for feature, is_shifted in zip(features, holm([f["p"] for f in features], level), strict=True):
        feature["shifted"] = bool(is_shifted)
    features.sort(key=lambda f: (-f["moved"], -f["explanation"]["moved"], f["p"]))
    explained = sums.comparisons[EXPLANATION]
    distance = float(np.abs(explained.observed - explained.expected).sum() / n)
    return {
        "patients": round(sums.patients),
        "reference": round(sums.reference),
        "labelled": round(sums.labelled),
        "compared": sums.compared,
        "level": level,
        "by_chance": sums.compared * level,
        "noise": noise or None,
        "features": features,
        "score": {
            "moved": sums.moved("score"),
            **_distribution(sums.comparisons[SCORE], sums.layout.bins.score_names, least=least, noise=noise),
        },
        "explanation": {"distance": distance, "by_chance": _chance_distance(explained, n)},
        "calibration": _calibration(sums, least=least),
        "by_site": [
            {
                "site": site,
                "patients": round(own.patients),
                "moved": own.named,
                "compared": bool(own.compared),
            }
            for site, own in by_site.items()
        ],
    }


def _features(sums: SiteSums, encoding: Encoding, *, least: int, noise: float) -> list[dict[str, Any]]:
    n, layout = max(sums.patients, 1.0), sums.layout
    rules = {rule.name: rule for rule in encoding.numeric}
    explained, means = sums.comparisons[EXPLANATION], sums.comparisons[MEANS]
    p_explained = explained.bin_p(counts=False)
    out = []
    for c, column in enumerate(layout.bins.columns):
        entry: dict[str, Any] = {
            "name": column.name,
            "kind": "number" if column.edges else "category",
            "moved": sums.moved("input", column.name),
            **_distribution(sums.comparisons[f"column {c}"], column.names, least=least, noise=noise),
            "means": None,
            "explanation": {"moved": 0, "share": None, "expected": None, "p": None},
        }
        if column.name in layout.numbers:
            j, rule = layout.numbers.index(column.name), rules[column.name]
            new, before = (float(rule.centre + rule.scale * a[j] / n) for a in (means.observed, means.expected))
            if means.variance[j] > 0:
                entry["means"] = {"new": new, "expected": before, "difference": new - before}
        if column.name in layout.features:
            j = layout.features.index(column.name)
            entry["explanation"] = {
                "moved": sums.moved("explanation", column.name),
                "share": float(explained.observed[j] / n),
                "expected": float(explained.expected[j] / n),
                "p": float(p_explained[j]),
            }
        out.append(entry)
    return out


def _distribution(comparison: Comparison, names: Sequence[str], *, least: int, noise: float) -> dict[str, Any]:
    """Describe a comparison of counts: stability index, p-value, the bin that changed most, and shares by bin."""
    o, e = (np.maximum(a, 0.0) for a in (comparison.observed, comparison.expected))
    hidden = np.zeros(len(o), bool)
    if least:
        line = [np.arange(len(o))]
        hidden = hide_cells(np.rint(o).astype(int), line, least=least)
    shares = [a / max(a.sum(), 1.0) for a in (o, e)]
    bins = [
        {"bin": name, "new": None if hide else float(new), "expected": None if hide else float(before)}
        for name, new, before, hide in zip(names, *shares, hidden.tolist(), strict=True)
    ]
    used = np.where(hidden, -1.0, np.abs(shares[0] - shares[1]))
    largest = bins[int(used.argmax())]
    return {"psi": None if noise else stability_index(comparison), "p": comparison.p(), "largest": dict(largest), "bins": bins}


def _calibration(sums: SiteSums, *, least: int) -> dict[str, Any] | None:
    """Compare events with the sum of predicted risks; None without labels, or with few events at every site."""
    total, bins, change = (sums.comparisons[name] for name in (EVENTS, CALIBRATION, RESIDUAL))
    if not sums.labelled or not total.variance.sum():
        return None
    observed, expected, variance = (float(a[0]) for a in (total.observed, total.expected, total.variance))
    labelled = max(sums.labelled, 1.0)
    return {
        "moved": sums.moved("calibration"),
        "observed": observed / labelled,
        "expected": expected / labelled,
        "ratio": observed / expected if expected > 0 and np.sqrt(variance) < expected / 2 else None,
        "p": total.p(),
        "change": {
            "difference": float((change.observed - change.expected)[0] / max(sums.patients, 1.0)),
            "p": float(change.bin_p(counts=False)[0]),
        },
        "bins": [
            {"bin": name, "observed": float(o) if not least or o == 0 or o >= least else None, "expected": float(e)}
            for name, o, e in zip(sums.layout.bins.score_names, bins.observed, bins.expected, strict=True)
        ]
        if bins.variance.any()
        else [],
    }


def _chance_distance(explained: Comparison, n: float) -> float:
    """Return the L1 distance of explanations that sampling alone would give: the mean of |normal| by feature."""
    return float(np.sqrt(2 / np.pi * np.maximum(explained.variance, 0.0)).sum() / n)
