"""Risk cards as values: terms with points, and the printed risk of every total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.core.errors import BadInput

AT_MOST, ABOVE, LEVEL, MISSING = KINDS = ("at most", "above", "level", "missing")
"""Kinds of terms, by number: a number up to a value, above it, a level of a category, no value."""


@dataclass(frozen=True)
class Term:
    """One line of a card.

    Attributes:
        text: The line as it is printed.
        column: Name of the column.
        kind: One of `KINDS`.
        value: The number of "at most" and "above", the level of "level", None for "missing".
        points: The points of a patient who meets it.
    """

    text: str
    column: str
    kind: str
    value: float | str | None
    points: int


@dataclass(frozen=True)
class RiskRange:
    """The printed risk of a range of totals.

    Attributes:
        first: Lowest total.
        last: Highest total.
        rows: Training rows with such a total, over all hospitals.
        events: Events among them.
        risk: Printed risk.
        low: Lower end of its 95% interval.
        high: Upper end.
    """

    first: int
    last: int
    rows: int
    events: int
    risk: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Return the range as JSON values."""
        out = asdict(self)
        return {"from": out.pop("first"), "to": out.pop("last"), **out}


@dataclass(frozen=True)
class Card:
    """A risk card: terms with points, and the risk of every total of points.

    Attributes:
        terms: The terms, in the order of the card.
        totals: Ranges of totals that follow each other, from the lowest total that the points allow to the highest.
    """

    terms: tuple[Term, ...]
    totals: tuple[RiskRange, ...]

    def risk(self, total: int) -> float:
        """Return the printed risk of a total of points."""
        return next((r.risk for r in self.totals if total <= r.last), self.totals[-1].risk)

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON values."""
        return {"terms": [asdict(t) for t in self.terms], "totals": [t.to_dict() for t in self.totals]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Card:
        """Read what `to_dict` wrote.

        Raises:
            BadInput: The values are not those of a card.
        """
        try:
            terms = tuple(
                Term(str(t["text"]), str(t["column"]), str(t["kind"]), t["value"], int(t["points"]))
                for t in values["terms"]
            )
            totals = tuple(
                RiskRange(
                    *(int(t[k]) for k in ("from", "to", "rows", "events")),
                    *(float(t[k]) for k in ("risk", "low", "high")),
                )
                for t in values["totals"]
            )
        except (KeyError, TypeError, ValueError):
            raise BadInput("the risk card is damaged: a term or a total cannot be read", code="damaged-card") from None
        if not totals or any(t.kind not in KINDS for t in terms):
            raise BadInput("the risk card is damaged: it has no risks, or an unknown kind of term", code="damaged-card")
        return cls(terms, totals)


def show_risk(risk: float) -> str:
    """Write a printed risk as a percentage, with all its digits: "2.4%", "0.31%"."""
    return f"{100 * risk:.6f}".rstrip("0").rstrip(".") + "%"


def print_risk(risk: float) -> float:
    """Round a risk as it is printed: to a tenth of a percent, at the ends to two digits of the smaller share."""
    smaller = min(risk, 1 - risk)
    if smaller >= 0.01 or smaller <= 0:
        return round(risk, 3)
    digits = 1 - int(np.floor(np.log10(smaller)))
    return round(risk, digits)
