"""The risk card of a run: the record of summary.json as typed values, how it does at one hospital, and its printable page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from grandrounds.core.errors import BadInput, visible
from grandrounds.core.records import RunSummary
from grandrounds.models.risk_card import ABOVE, AT_MOST, LEVEL, MISSING, Card, RiskRange, show_risk

ROUTES = {"distilled": "distilled from an additive model", "direct": "fitted to outcomes"}

NOT_MEASURED = "A value that was not measured meets no line, unless the line says 'missing'."
"""Rule for missing values, as it is printed on every card."""


@dataclass(frozen=True)
class CardRecord:
    """The card of a run.

    Attributes:
        card: Terms and totals.
        outcome: The event whose risk is printed: "death = yes".
        data: Name of the data.
        route: "distilled" or "direct".
        rows: Training rows, over all hospitals.
        sites: Number of hospitals.
        exchanges: Facts about the exchanges of the fit.
        notes: Notes of the fit.
    """

    card: Card
    outcome: str
    data: str
    route: str
    rows: int
    sites: int
    exchanges: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"Risk card: {self.outcome}" if self.outcome else "Risk card"

    @property
    def source(self) -> str:
        """A sentence on where the card comes from."""
        count = self.exchanges.get("count")
        told = f" in {count:.0f} exchanges of sums" if count else ""
        return f"{self.data}: {self.rows:,} patients of {self.sites} hospitals, {ROUTES.get(self.route, self.route)}{told}."

    @property
    def finding(self) -> str:
        """A sentence on the lines with the most points, and on the lowest and the highest risk."""
        top = sorted(self.card.terms, key=lambda t: -abs(t.points))[:3]
        named = ", ".join(f"{t.text} ({t.points:+d})" for t in top)
        low, high = self.card.totals[0], self.card.totals[-1]
        ends = f"{show_risk(low.risk)} at a total of {low.last} or less to {show_risk(high.risk)} at {high.first} or more"
        return f"The risk card has {len(self.card.terms)} lines; most points: {named}. Risks go from {ends}."

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes of the fit, and one on totals whose patients alone have another share of events than the printed risk."""
        drawn = [t for t in self.card.totals if is_drawn(t)]
        if not drawn:
            return self.notes
        named = ", ".join(f"{t.events:,} of {t.rows:,} at {total_text(t, self.card)}" for t in drawn)
        return (
            f"* Patients at this total had another share of events ({named}), by more than chance (95%): the printed "
            "risk is mostly that of the line through all totals.",
            *self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values, for a page or another program."""
        return {
            **self.card.to_dict(),
            **{name: getattr(self, name) for name in ("outcome", "data", "route", "rows", "sites", "title", "source")},
            "exchanges": dict(self.exchanges),
            "notes": list(self.notes),
            "columns": [asdict(c) for c in list_bands(self.card)],
        }


@dataclass(frozen=True)
class CalibrationPoint:
    """Patients of similar risk: their mean printed risk, the share with the event and its 95% interval."""

    predicted: float
    observed: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True)
class CardPerformance:
    """How a card does on the rows of one place.

    Attributes:
        place: The hospital, "all hospitals", or the name of a table.
        rows: Test rows there.
        events: Events among them.
        scores: AUROC with its interval, Brier score and others, by name.
        calibration: Points of a calibration curve, by rising risk.
        decision: Net benefit by threshold: `thresholds`, `model`, `treat_all`.
        notes: Notes, such as few events.
    """

    place: str
    rows: int
    events: int
    scores: Mapping[str, float] = field(default_factory=dict)
    calibration: tuple[CalibrationPoint, ...] = ()
    decision: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """A sentence with the main figures."""
        value, low, high = (self.scores.get(name) for name in ("auroc", "auroc_low", "auroc_high"))
        auroc = "" if value is None or value != value else f", AUROC {value:.3f}"
        if auroc and low is not None and high is not None and low == low:
            auroc += f" (95% CI {low:.3f} to {high:.3f})"
        return f"{self.place}: {self.rows:,} test patients, {self.events:,} with the event{auroc}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**asdict(self), "line": self.line}


@dataclass(frozen=True)
class Band:
    """Values of a column that have the same points."""

    text: str
    points: int


@dataclass(frozen=True)
class ColumnBands:
    """The points of one column, by its values."""

    column: str
    bands: tuple[Band, ...]


def read_card(summary: RunSummary | Mapping[str, Any]) -> CardRecord | None:
    """Read the card of a summary.

    Args:
        summary: summary.json.

    Returns:
        The card; None for a run without one.

    Raises:
        BadInput: The card is damaged.
    """
    values: Any = summary
    found = values.get("card")
    if not found:
        return None
    event = values.get("event") or {}
    label, word = event.get("label"), event.get("class")
    try:
        return CardRecord(
            Card.from_dict(found),
            "" if word is None else f"{label} = {word}" if label else str(word),
            str(values["data"]),
            str(found["route"]),
            int(found["rows"]),
            len(found["sites"]),
            {name: float(v) for name, v in found["exchanges"].items() if v is not None},
            tuple(map(str, found["notes"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput("the card in summary.json is damaged: run it again", code="damaged-card") from None


def list_bands(card: Card) -> tuple[ColumnBands, ...]:
    """List the points of each column by its values, as a nomogram shows them.

    Args:
        card: The card.

    Returns:
        For each column in the order of the card: ranges of a number, levels of a category, missing.
    """
    out = []
    for name in dict.fromkeys(t.column for t in card.terms):
        terms = [t for t in card.terms if t.column == name]
        bands = [Band("missing", t.points) for t in terms if t.kind == MISSING]
        levels = [Band(str(t.value), t.points) for t in terms if t.kind == LEVEL]
        steps = [t for t in terms if t.kind in (AT_MOST, ABOVE)]
        if steps:
            cuts = sorted({float(t.value or 0) for t in steps})
            numbers = []
            for k in range(len(cuts) + 1):
                low, high = (None if k == 0 else cuts[k - 1]), (None if k == len(cuts) else cuts[k])
                met = (t.points for t in steps if _covers(t.kind, float(t.value or 0), low, high))
                numbers.append(Band(_range_text(low, high), sum(met)))
            bands = [*_join_equal(numbers, cuts), *bands]
        else:
            bands = [*levels, Band("other" if levels else "measured", 0), *bands]
        out.append(ColumnBands(name, tuple(bands)))
    return tuple(out)


def _covers(kind: str, value: float, low: float | None, high: float | None) -> bool:
    """Tell that all values above `low` and at most `high` meet a step."""
    return (high is not None and high <= value) if kind == AT_MOST else (low is not None and low >= value)


def _range_text(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:.12g}"
    return f"above {low:.12g}" if high is None else f"{low:.12g} to {high:.12g}"


def _join_equal(bands: Sequence[Band], cuts: Sequence[float]) -> list[Band]:
    """Join neighbouring ranges with the same points."""
    groups: list[list[int]] = []
    for k, band in enumerate(bands):
        if groups and bands[groups[-1][-1]].points == band.points:
            groups[-1].append(k)
        else:
            groups.append([k])
    ends = [None, *cuts, None]
    return [Band(_range_text(ends[g[0]], ends[g[-1] + 1]), bands[g[0]].points) for g in groups]


def total_text(total: RiskRange, card: Card) -> str:
    """Write a range of totals: "4", "5 to 7", "2 or less", "12 or more"."""
    first, last = card.totals[0] is total, card.totals[-1] is total
    if first and last:
        return "any"
    if first:
        return f"{total.last} or less"
    if last:
        return f"{total.first} or more"
    return str(total.first) if total.first == total.last else f"{total.first} to {total.last}"


def risk_text(total: RiskRange) -> str:
    """Write a printed risk, with a star where the patients at that total alone say something else: "24.7% *"."""
    return f"{show_risk(total.risk)} *" if is_drawn(total) else show_risk(total.risk)


def is_drawn(total: RiskRange) -> bool:
    """Tell whether the patients at a total rule its printed risk out: it is outside the exact 95% interval of their share."""
    from scipy.stats import binomtest

    if not total.rows:
        return False
    own = binomtest(total.events, total.rows).proportion_ci(0.95, "exact")
    return not own.low <= total.risk <= own.high


def interval_text(total: RiskRange) -> str:
    """Write the interval of a risk: "1.2% to 8.4%"."""
    return f"{show_risk(total.low)} to {show_risk(total.high)}"


def escape_text(text: object) -> str:
    """Escape a name from data for a drawing."""
    return escape(visible(str(text)))
