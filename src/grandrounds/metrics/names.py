"""Labels of metrics for people."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.core.records import Scores
from grandrounds.metrics.scores import BY_NAME, COMPARED

_SPECS = {**{metric.name: metric for metric in COMPARED}, **BY_NAME}

FINETUNED_PREFIX = "finetuned_"
"""Before a metric's name: after each site's fine-tuning (train.finetune)."""

PERSONAL_PREFIX = "personal_"
"""Before a metric's name: of the models that sites deploy (personal.part, personal.guard)."""

OOD_PREFIX = "ood_"
"""Before a metric's name: on the test rows without the shortcut in the images (data.shortcut)."""

RESOLUTION_TOLERANCE = 1e-3
"""The largest error by binning that is not worth a note."""

_PREFIXES = {FINETUNED_PREFIX: "fine-tuned ", PERSONAL_PREFIX: "deployed ", OOD_PREFIX: "OOD "}

def metric_range(metric: str) -> tuple[float, float] | None:
    """Return the range that a metric can have, whichever model or rows it was taken of; None where it is not known."""
    name = base_metric(metric)
    return _SPECS[name].limits if name in _SPECS else None


def higher_is_better(metric: str) -> bool | None:
    """Tell which values of a metric are better; None where neither are, or where it is not known."""
    name = base_metric(metric)
    return _SPECS[name].higher_is_better if name in _SPECS else None


def lower_is_better(metric: str) -> bool:
    """Tell whether lower values of a metric are better."""
    return higher_is_better(metric) is False


def describe_direction(metric: str) -> str:
    """Return "higher is better" or "lower is better"; "" where neither is, or where it is not known."""
    return {True: "higher is better", False: "lower is better", None: ""}[higher_is_better(metric)]


def base_metric(metric: str) -> str:
    """Return the metric itself, whichever model or rows it was taken of."""
    before = next((word for word in _PREFIXES if metric.startswith(word)), "")
    return metric.removeprefix(before)


def binning_note(figures: Scores, metric: str) -> str:
    """Return "± 0.004 at most from binning" where a metric may be off by more than `RESOLUTION_TOLERANCE`, else ""."""
    off = figures.get(f"{metric}_resolution")
    return "" if off is None or off <= RESOLUTION_TOLERANCE else f"± {off:.3f} at most from binning"


def with_auroc(chosen: Sequence[str]) -> tuple[str, ...]:
    """Add AUROC before each ECE that lacks it: a model without discrimination can be calibrated perfectly."""
    out: list[str] = []
    for metric in chosen:
        ranking = metric.removesuffix("ece") + "auroc"
        if base_metric(metric) == "ece" and ranking not in chosen:
            out.append(ranking)
        out.append(metric)
    return tuple(dict.fromkeys(out))


def metric_label(metric: str) -> str:
    """Return a metric's name for a table."""
    name = base_metric(metric)
    before = _PREFIXES.get(metric.removesuffix(name), "")
    return before + (_SPECS[name].words if name in _SPECS else name.replace("_", " "))
