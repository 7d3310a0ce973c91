"""Differences of a hospital from the common model, as the record of a run has them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PERMUTATIONS = 999
"""Permutations of outcomes over patients in the test of a column."""

LEVEL = 0.05
"""Level of the test at a hospital, over all of its columns."""

WHOLE_SCORE = "(all features)"
"""The record of the common model's score as a whole: all coefficients are larger or smaller by one factor."""


@dataclass(frozen=True)
class Difference:
    """How one column counts at a hospital, against the common model.

    Attributes:
        feature: The clinical column, or `WHOLE_SCORE`.
        input: The model's input with the clearest difference: the column itself, a level of it, or its missing values.
        outcome: The class whose score differs most, where there are more than two; else "".
        difference: Difference of the effect: in log-odds, log rates or units of the outcome; for `per` units of a number, for
            having a level.
        low: Lower end of the 95% interval.
        high: Upper end.
        p: Probability of such a difference by sampling alone, corrected for the number of columns.
        differs: Sampling alone does not explain it (p <= 0.05), and the interval excludes 0.
        common: Effect in the common model, in the same units.
        per: Step of a number in its original units; 0 for other inputs.
    """

    feature: str
    input: str
    outcome: str
    difference: float
    low: float
    high: float
    p: float
    differs: bool
    common: float
    per: float

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON, numbers with six digits."""
        return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in asdict(self).items()}
