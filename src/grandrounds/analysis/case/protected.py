"""Attributes that should not move a risk by themselves: who a patient is, and where and how they are looked after.

A model that goes by them has often learnt a proxy: care that differs between groups, or how a hospital codes. Such a
reason is flagged, with what it does to the risk; whether it belongs there is for people to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.core.errors import BadInput, nearest

PROTECTED, ADMINISTRATIVE, NAMED = "protected", "administrative", "named"

_WORDS = {
    PROTECTED: r"sex|gender|race|racial|ethnic\w*|religion|nationality|(native |primary )?language|marital ?(status)?"
    r"|skin tone",
    ADMINISTRATIVE: r"insur(ance|ed|er)\w*|medicaid|medicare|pay[eo]r|region|teaching\w*|beds|(num|hospital) ?beds\w*"
    r"|(hospital|unit|icu)? ?(admit|admission) ?source\w*|zip|(zip|post) ?code",
}
_PATTERNS = {kind: re.compile(rf"\b(?:{words})\b") for kind, words in _WORDS.items()}
WHY = (
    "Who a patient is, or how care is organised, is no sign of illness by itself: such a reason may stand for something that "
    "was not measured, or for a bias in the data, and need not hold at another hospital."
)
_SEEN = 0.05  # points of risk below which nothing is said


@dataclass(frozen=True)
class Flag:
    """One such attribute that moves this patient's risk by `points`: without it the risk would be `risk_without`."""

    column: str
    kind: str
    value: float | str | None
    contribution: float
    points: float
    risk_without: float
    at: str | None  # the mean that "without" stands for; None: where the explainer starts from
    decides: bool  # whether the decision would be another then

    @property
    def words(self) -> str:
        """What it does to the risk."""
        way = "raises" if self.points > 0 else "lowers"
        instead = "without it the risk" if self.at is None else f"at {self.at} it"
        turned = ", which would change the decision" if self.decides else ""
        return f"{way} the risk by {abs(self.points):.1f} points: {instead} would be {self.risk_without:.1%}{turned}"

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "words": self.words}


def kind_of(column: str) -> str | None:
    """What a column's name gives it away as, if anything."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column)
    words = re.sub(r"[^a-z0-9]+", " ", spaced.lower())
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(words)), None)


def watched(columns: Sequence[str], named: Sequence[str] = ()) -> Mapping[str, str]:
    """The columns to flag and why: those `named`, or else those that their names give away."""
    for name in named:
        if name not in columns:
            raise BadInput(f"--protected {name}: the model sees no such column; {nearest(name, columns)}")
    if named:
        return dict.fromkeys(named, NAMED)
    return {column: kind for column in columns if (kind := kind_of(column)) is not None}


def is_seen(points: float) -> bool:
    """Whether a change of risk shows in a number with one decimal."""
    return abs(points) >= _SEEN
