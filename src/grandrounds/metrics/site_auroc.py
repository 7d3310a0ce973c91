"""Heterogeneity of the AUROC across hospitals: random-effects meta-analysis of the hospitals' own AUROCs on the logit scale.

The AUROC lies between 0 and 1, and its sampling distribution is skewed near 1. Meta-analyses of prediction models combine its
logit (Snell, Ensor, Debray, Moons and Riley 2018). The standard error of a hospital's logit follows by the delta method from the
wider half of its 95% interval, since ends are cut at 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.metrics.meta_analysis import FEWEST_SITES, MetaCoefficient, combine_estimates

FEWEST_FOR_UNSEEN = 5
"""Hospitals that a prediction interval needs: of three or four, Student's t is so wide that nearly any AUROC is in it."""

_WIDE = 1.959963984540054  # 97.5% quantile of the normal distribution


@dataclass(frozen=True)
class SiteAUROC:
    """AUROC over hospitals. Numbers are None where fewer than three hospitals have an AUROC with an interval.

    The prediction interval needs `FEWEST_FOR_UNSEEN` hospitals.

    Attributes:
        sites: Hospitals in the analysis.
        left_out: Hospital -> cause why it is not in the analysis.
        estimate: Random-effects mean of the AUROC.
        low: Lower end of its 95% confidence interval.
        high: Upper end.
        i2: I-squared of the logits: share of the variation between hospitals that is not chance, 0 to 1.
        q: Cochran's Q of the logits.
        q_p: p-value of Q.
        tau2: Variance of the logit between hospitals.
        prediction_low: Lower end of the 95% prediction interval: AUROC expected at a new hospital.
        prediction_high: Upper end.
    """

    sites: tuple[str, ...]
    left_out: Mapping[str, str]
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    i2: float | None = None
    q: float | None = None
    q_p: float | None = None
    tau2: float | None = None
    prediction_low: float | None = None
    prediction_high: float | None = None

    @property
    def sentence(self) -> str:
        """State the AUROC that is expected at a hospital that took no part, or that too few hospitals tell it."""
        n = len(self.sites)
        if self.prediction_low is None or self.prediction_high is None:
            named = f"{n} {'hospital' if n == 1 else 'hospitals'} with an AUROC and its interval {'is' if n == 1 else 'are'}"
            return f"{named} too few to say what to expect at a hospital that took no part ({FEWEST_FOR_UNSEEN} are needed)."
        return (
            f"At a hospital that took no part expect an AUROC of {self.prediction_low:.3f} to {self.prediction_high:.3f} "
            f"(95% prediction interval, from {n} hospitals)."
        )


def combine_auroc(per_site: Mapping[str, Mapping[str, Any]]) -> SiteAUROC:
    """Combine the AUROCs of hospitals.

    Args:
        per_site: Hospital -> metrics, of which "auroc", "auroc_low" and "auroc_high" are read (`per_site` of summary.json).

    Returns:
        The analysis, in units of the AUROC.
    """
    logits: dict[str, tuple[float, float]] = {}
    left_out: dict[str, str] = {}
    for site, figures in per_site.items():
        point = read_logit(figures)
        if isinstance(point, str):
            left_out[site] = point
        else:
            logits[site] = point
    sites = tuple(logits)
    if len(sites) < FEWEST_SITES:
        return SiteAUROC(sites, left_out)
    found = combine_estimates("logit AUROC", [p[0] for p in logits.values()], [p[1] for p in logits.values()])
    return _to_auroc(sites, left_out, found)


def read_logit(figures: Mapping[str, Any]) -> tuple[float, float] | str:
    """Return the logit of one hospital's AUROC and its variance; a cause as text where there is none."""
    values = [figures.get(name) for name in ("auroc", "auroc_low", "auroc_high")]
    if values[0] is None or not math.isfinite(values[0]):
        return "it has no AUROC"
    if any(v is None or not math.isfinite(v) for v in values):
        return "its AUROC has no interval"
    auroc, low, high = (float(v) for v in values if v is not None)
    if not 0 < auroc < 1:
        return "its AUROC is 0 or 1, which has no logit"
    if low <= 0 and high >= 1:
        return "its interval covers 0 to 1"
    error = max(auroc - low, high - auroc) / _WIDE
    if error <= 0:
        return "its AUROC has an interval of width zero"
    return math.log(auroc / (1 - auroc)), (error / (auroc * (1 - auroc))) ** 2


def _to_auroc(sites: tuple[str, ...], left_out: Mapping[str, str], found: MetaCoefficient) -> SiteAUROC:
    """Return the analysis of logits in units of the AUROC."""

    def back(logit: float | None) -> float | None:
        return None if logit is None else 1 / (1 + math.exp(-logit))

    return SiteAUROC(
        sites,
        left_out,
        back(found.estimate),
        back(found.low),
        back(found.high),
        found.i2,
        found.q,
        found.q_p,
        found.tau2,
        back(found.prediction_low) if len(sites) >= FEWEST_FOR_UNSEEN else None,
        back(found.prediction_high) if len(sites) >= FEWEST_FOR_UNSEEN else None,
    )
