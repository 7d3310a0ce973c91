"""Calibration in plain language: the slope and calibration in the large with intervals, a verdict, and where to go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.metrics.fairness import is_defined
from grandrounds.metrics.names import metric_label

Figures = Mapping[str, Any]

EXTREME, MIDDLE = "Risks are too extreme", "Risks are too close to the middle"
UNCLEAR = "There is no clear sign that risks are too extreme or too close to the middle"
TOO_LOW, TOO_HIGH = "Risks are too low on average", "Risks are too high on average"
ON_AVERAGE = "There is no clear sign that risks are too high or too low on average"

_ADVICE = (
    "Recalibrate before risks are shown to anyone: run again with evaluation.calibrate = \"platt\", or `rounds recalibrate` at a "
    "hospital."
)


def describe_calibration(figures: Figures) -> str:
    """Describe calibration in two verdicts with their figures; "" where the line could not be fitted."""
    return " ".join([*_slope(figures), *_in_the_large(figures)])


def calibration_findings(figures: Figures) -> Iterator[str]:
    """Yield a finding where the interval of the calibration slope excludes 1, with the remedy."""
    for text in _slope(figures):
        if not text.startswith(UNCLEAR):
            yield f"{text} {_ADVICE}"


def _slope(figures: Figures) -> Iterator[str]:
    ends = _ends(figures, "calibration_slope")
    if ends is not None:
        verdict = EXTREME if ends[1] < 1 else MIDDLE if ends[0] > 1 else UNCLEAR
        yield f"{verdict}: {_state(figures, 'calibration_slope')}, 1 is ideal."


def _in_the_large(figures: Figures) -> Iterator[str]:
    ends = _ends(figures, "calibration_in_the_large")
    if ends is not None:
        verdict = TOO_HIGH if ends[1] < 0 else TOO_LOW if ends[0] > 0 else ON_AVERAGE
        yield f"{verdict}: {_state(figures, 'calibration_in_the_large')}, 0 is ideal."


def _state(figures: Figures, metric: str) -> str:
    low, high = _ends(figures, metric) or (0.0, 0.0)
    return f"{metric_label(metric)} {figures[metric]:.2f} (95% CI {low:.2f} to {high:.2f})"


def _ends(figures: Figures, metric: str) -> tuple[float, float] | None:
    low, high = figures.get(f"{metric}_low"), figures.get(f"{metric}_high")
    if low is None or high is None or not is_defined(low) or not is_defined(high) or not is_defined(figures.get(metric)):
        return None
    return float(low), float(high)
