"""Metrics of the user's own: functions of a tally, named in `evaluation.metrics`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from grandrounds.core.errors import BadInput, RunFailed, mark_cells
from grandrounds.core.plugins import call, last_word, resolve
from grandrounds.metrics import DESCRIPTIONS, Tally


def custom_metrics(paths: Sequence[str]) -> dict[str, Callable[[Tally], float]]:
    """Metrics of the experiment's own, by the name of their function."""
    out: dict[str, Callable[[Tally], float]] = {}
    for path in paths:
        name = last_word(path)
        if name in DESCRIPTIONS or name in out:
            raise BadInput(
                f"evaluation.metrics names '{path}', but there is a metric '{name}' already: rename it",
                code="duplicate-metric",
            )
        if not callable(resolve(path, key="evaluation.metrics")):
            raise BadInput(f"evaluation.metrics names '{path}', which is not a function", code="not-a-function")
        out[name] = _checked_metric(path)
    return out


def _checked_metric(path: str) -> Callable[[Tally], float]:
    """Return the metric, checked each time: a figure that is no number must not reach a record."""

    def measure(tally: Tally) -> float:
        try:
            value = call(path, tally, key="evaluation.metrics")
        except BadInput as e:
            raise mark_cells(RunFailed(str(e), code=e.code)) from e.__cause__
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise RunFailed(
                f"evaluation.metrics names '{path}', which gave a value of type {type(value).__name__}: return one number",
                code="bad-metric-value"
            )
        return float(value)

    return measure
