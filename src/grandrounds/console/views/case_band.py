"""What became of patients with such a risk: the bin of the run's reliability that a risk falls into, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

LEAST = 30
"""Test rows of a band from which it is said whether the model is right there."""
_TOO_FEW = "There the model said {mean:.1%} on average; {rows} rows are too few to tell whether that is right."

TOP = "top class"
"""What the bins are of where there are more than two classes."""


class Band(BaseModel):
    """Test patients of all sites whose risk lay between `low` and `high`: how many there were, and the share that had the
    event (of more than two classes: for which the model was right), with Wilson's 95% interval."""

    low: float
    high: float
    rows: int
    share: float | None
    share_low: float | None
    share_high: float | None
    said: str
    verdict: str


def band(reliability: Mapping[str, Any], risk: float, *, event: str) -> Band | None:
    """The band of a risk; None where the run judged no test rows."""
    if not reliability:
        return None
    count = reliability["count"]
    k = min(int(risk * len(count)), len(count) - 1)  # as metrics.tally counts them
    low, high = (float(edge) for edge in reliability["edges"][k : k + 2])
    rows = round(float(count[k] or 0))
    top = reliability.get("of") == TOP
    between = f"between {_percent(low)} and {_percent(high)}"
    who = f"for which the model was {between} sure" if top else f"whose risk of {event} was {between}"
    if not rows:
        said = f"No test row of any site was one {who}: how far this figure can be trusted is not known."
        return Band(low=low, high=high, rows=0, share=None, share_low=None, share_high=None, said=said, verdict="")
    share, mean = float(reliability["outcome"][k]), float(reliability["confidence"][k])
    ends = interval(round(share * rows), rows)
    happened = "it was right for" if top else "it happened to"
    said = f"Of the {rows:,} test rows of all sites {who}, {happened} {share:.1%} (95% interval {ends[0]:.1%} to {ends[1]:.1%})."
    return Band(
        low=low,
        high=high,
        rows=rows,
        share=share,
        share_low=ends[0],
        share_high=ends[1],
        said=said,
        verdict=_verdict(mean, ends) if rows >= LEAST else _TOO_FEW.format(rows=rows, mean=mean),
    )


def interval(hits: int, rows: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    from scipy.stats import binomtest

    found = binomtest(hits, rows).proportion_ci(0.95, "wilson")
    return float(found.low), float(found.high)


def _verdict(mean: float, ends: tuple[float, float]) -> str:
    """Whether what was said there, on average, is what came true."""
    if mean > ends[1]:
        return f"There the model said too much: {mean:.1%} on average."
    if mean < ends[0]:
        return f"There the model said too little: {mean:.1%} on average."
    return f"There the model said {mean:.1%} on average, in line with what came true."


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
