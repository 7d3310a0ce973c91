"""What metrics are called where people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.metrics.scores import BY_NAME, POSITIVE, SHARE

_WORDS = {"worst_site_auroc": "worst site AUROC", "nsds": "NSDS"}
"""Names for people of figures that are not in the table of metrics."""

TUNED = "finetuned_"
"""Before a metric's name: after each site's fine-tuning (train.finetune)."""

OOD = "ood_"
"""Before a metric's name: on the test rows without the shortcut that was in the pictures (data.shortcut)."""

RESOLVED = 1e-3
"""The largest error by binning that is not worth a note."""

_BEFORE = {TUNED: "fine-tuned ", OOD: "OOD "}

_RANGES = {"worst_site_accuracy": SHARE, "worst_site_auroc": SHARE, "spurious_gap": (-1.0, 1.0)}
_RANGES |= {"megabytes": POSITIVE, "epsilon": POSITIVE}
"""The least and the largest value of figures that are not in the table of metrics."""


def range_of(metric: str) -> tuple[float, float] | None:
    """The range that a metric can have, whichever model or rows it was taken of; None where it is not known."""
    name = bare(metric)
    return BY_NAME[name].limits if name in BY_NAME else _RANGES.get(name)


def bare(metric: str) -> str:
    """The metric itself, whichever model or rows it was taken of."""
    before = next((word for word in _BEFORE if metric.startswith(word)), "")
    return metric.removeprefix(before)


def binning_note(figures: Mapping[str, Any], metric: str) -> str:
    """Return "± 0.004 at most from binning" where a figure from histograms may be off by more than `RESOLVED`, else ""."""
    off = figures.get(f"{metric}_resolution")
    return "" if off is None or off <= RESOLVED else f"± {off:.3f} at most from binning"


def with_ranking(chosen: Sequence[str]) -> tuple[str, ...]:
    """The same with AUROC before each ECE that lacks it: a model that tells nobody apart can be calibrated perfectly."""
    out: list[str] = []
    for metric in chosen:
        beside = metric.removesuffix("ece") + "auroc"
        if bare(metric) == "ece" and beside not in chosen:
            out.append(beside)
        out.append(metric)
    return tuple(dict.fromkeys(out))


def words(metric: str) -> str:
    """A metric's name for a table."""
    name = bare(metric)
    before = _BEFORE.get(metric.removesuffix(name), "")
    return before + (BY_NAME[name].words if name in BY_NAME else _WORDS.get(name, name.replace("_", " ")))
