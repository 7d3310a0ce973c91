"""A small regression with numbers that can be checked by hand, as summary.json has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.estimates import INTERCEPT, Estimates

SD = {"age": 10.0, "lactate": 2.0}
"""Standard deviations of the numbers: fitted coefficients are per standard deviation."""


def logistic(
    model: str = "logistic", *, name: str = "lactate", tests: bool = True, **facts: Any
) -> tuple[Estimates, Estimates]:
    """Estimates as fitted and in original units: age is clear, the level may be chance, a column was left out."""
    names = [INTERCEPT, "age", name, "sex=f", "height missing"]
    fitted = Estimates.build(
        model,
        names,
        np.array([-1.0, 0.5, 0.02, -0.4]),
        np.diag([0.1, 0.1, 0.01, 0.3]) ** 2,
        left_out={"height missing": "constant"},
        errors="model" if tests else "penalised",
        degrees=95.0 if model == "linear" else None,
        tests=tests,
        facts={"n": 150, "events": 60, "log_likelihood": -80.25, "aic": 168.5, "intercept": "own", **facts},
        notes=["Few clusters: intervals are too short."],
    )
    return fitted, fitted.transform(np.diag([1.0, 1 / SD["age"], 1 / SD["lactate"], 1.0]))


def estimates(model: str = "logistic", **more: Any) -> dict[str, Any]:
    """The key `estimates` of summary.json."""
    fitted, original = logistic(model, **more)
    return {
        "fitted": fitted.to_dict(),
        "original": original.to_dict(),
        "exchanges": {
            "count": 6,
            "numbers_sent": 120,
            "numbers_held": 600,
            "ratio": 0.2,
            "bytes_up": 960,
            "bytes_down": 240,
        },
        "notes": ["At b every row has one outcome: it says nothing about slopes."],
    }
