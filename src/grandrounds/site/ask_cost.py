"""Cost of an answer to a site's privacy account: the values that readers of Asks return and an account adds up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask, Value
from grandrounds.site.stack import CLEAN, PARTS

if TYPE_CHECKING:
    from grandrounds.site.host import SiteHost

ROW_KINDS = {"train": "training", "val": "validation", "test": "test", CLEAN: "test"}
"""Name of each split in the accountant."""

ALL = PARTS


@dataclass(frozen=True)
class Disclosure:
    """A report without noise of its own.

    Attributes:
        description: Its data, as text.
        rows: Splits of the rows in it.
        reach: Largest L2 change by one patient (or site).
        largest: Bound on its entries, known before any row is read.
        unit: Protected unit: patient or site.
    """

    description: str
    rows: tuple[str, ...]
    reach: float = math.inf
    largest: float = math.inf
    unit: str = "patient"


@dataclass(frozen=True)
class AskCost:
    """Privacy cost of an Ask.

    Attributes:
        events: Charged if it is answered at all.
        disclosures: Charged by report, if the report leaves.
        unbounded: Rows are trained on without noise, so the site's state discloses them from now on.
    """

    events: tuple[Event, ...] = ()
    disclosures: Mapping[str, Disclosure] = field(default_factory=dict)
    unbounded: bool = False


@dataclass(frozen=True)
class RowCounts:
    """Number of the site's rows in each split, taken as publicly known."""

    train: int
    val: int
    test: int

    @classmethod
    def from_host(cls, host: SiteHost) -> RowCounts:
        split = host.stack.rows[0]
        return cls(len(split.train), len(split.val), len(split.test))

    def present(self, *parts: str) -> tuple[str, ...]:
        """Return the names of those splits that have rows."""
        counts = {"train": self.train, "val": self.val, "test": self.test, CLEAN: self.test}
        return tuple(dict.fromkeys(ROW_KINDS[p] for p in parts if counts.get(p)))


def raw(description: str, rows: Sequence[str], *, trust: str = "local") -> tuple[Event, ...]:
    """Make a release without noise for each of these splits."""
    return tuple(Event("raw", description, of=part, trust=trust) for part in dict.fromkeys(rows))


def within(value: float, low: float, high: float) -> bool:
    """Check that a server's number is within the range in which a mechanism's arithmetic keeps its bound.

    Far outside it, floats round a clipped vector up beyond its norm, or noise down to nothing.
    """
    return math.isfinite(value) and low <= value <= high


def every_report(ask: Ask, description: str, rows: Sequence[str]) -> AskCost:
    """Charge every report with this disclosure."""
    return AskCost((), dict.fromkeys(ask.report, Disclosure(description, tuple(rows))))


def clipped_sum(ask: Ask, rows: RowCounts, description: str, reach: float) -> AskCost:
    """Charge a sum with the site's own noise, or one that is held for a secure sum with noise."""
    noise = number(ask.shared, "noise")
    if noise and math.isfinite(reach):
        sigma = noise / reach
        if not within(sigma, 1e-6, 1e9):
            return AskCost(raw(description, rows.present("train")))
        return AskCost((Event("gaussian", description, sigma=sigma),) if rows.train else ())
    disclosure = Disclosure(description, rows.present("train"), reach, largest=reach * max(1, rows.train))
    return AskCost((), dict.fromkeys(ask.report, disclosure))


def number(settings: Mapping[str, Value], name: str) -> float:
    """Return a number of an Ask; 0 where it is not set."""
    return float(settings.get(name, 0.0))
