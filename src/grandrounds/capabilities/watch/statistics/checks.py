"""Checks of a watch: their kinds, and the share of the false-alarm rate that each may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

MISSING, UNSEEN, RANGE, SHIFT = "missing", "unseen", "range", "shift"
SCORE, EXPLANATION = "score", "explanation"
PREVALENCE, CALIBRATION, DISCRIMINATION, NET_BENEFIT = "prevalence", "calibration", "discrimination", "net benefit"
INPUT_KINDS = (MISSING, UNSEEN, RANGE, SHIFT)
LABEL_KINDS = (PREVALENCE, CALIBRATION, DISCRIMINATION, NET_BENEFIT)
KINDS = (*INPUT_KINDS, SCORE, EXPLANATION, *LABEL_KINDS)
UP, DOWN = "up", "down"

INPUT_SHARE = 0.25
"""Share of the false-alarm rate of all checks of inputs; every column gets the same part."""
SHARES = {
    (SCORE, UP): 0.02, (SCORE, DOWN): 0.02, (EXPLANATION, UP): 0.03, (EXPLANATION, DOWN): 0.03,
    (PREVALENCE, UP): 0.45, (PREVALENCE, DOWN): 0.05, (CALIBRATION, UP): 0.06, (CALIBRATION, DOWN): 0.03,
    (DISCRIMINATION, DOWN): 0.03, (NET_BENEFIT, DOWN): 0.03,
}  # fmt: skip
"""Share of each other kind and direction, divided among its checks.

A check with share w alarms log(1/w) / KL patients later than one with the whole rate, KL being the evidence of a patient in nats.
An input that breaks gives 0.1 to 1 nat a patient, so a small share costs few patients. A doubled prevalence of 9% gives 0.04."""


@dataclass(frozen=True)
class Check:
    """One thing that is watched.

    Attributes:
        name: Unique name, such as "shift up: age".
        kind: One of `KINDS`.
        column: The column, or "" for scores and labels.
        direction: "up" or "down": more or less than in the reference rows.
        share: Part of the false-alarm rate of the site that this check may use; shares of all checks add up to one.
        level: Number of the category (of its column) or of the class (of scores and labels); None if there is none.
    """

    name: str
    kind: str
    column: str
    direction: str
    share: float
    level: int | None = None

    @property
    def labelled(self) -> bool:
        """Needs labels."""
        return self.kind in LABEL_KINDS


def name_check(kind: str, column: str, direction: str, level: int | None) -> str:
    """Return the unique name of a check."""
    place = column if level is None else f"{column}[{level}]" if column else f"class {level}"
    return f"{kind} {direction}" + (f": {place}" if place else "")


def share_out(made: Iterable[tuple[str, str, str, int | None]]) -> list[Check]:
    """Give each check (kind, column, direction, level) its share: columns alike, and alike within a kind and direction.

    Shares of kinds without a check are not given to others, so the sum may be below one.
    """
    made = list(made)
    columns = Counter(column for kind, column, _, _ in made if kind in INPUT_KINDS)
    kinds = Counter((kind, direction) for kind, _, direction, _ in made)
    out = []
    for kind, column, direction, level in made:
        if kind in INPUT_KINDS:
            share = INPUT_SHARE / len(columns) / columns[column]
        else:
            share = SHARES[kind, direction] / kinds[kind, direction]
        out.append(Check(name_check(kind, column, direction, level), kind, column, direction, share, level))
    return out
