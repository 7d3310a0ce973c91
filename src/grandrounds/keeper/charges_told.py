"""What one answer tells of patients: values that the readers of Asks make and an account adds up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grandrounds.privacy.events import Event
from grandrounds.site.stack import CLEAN, PARTS

if TYPE_CHECKING:
    from grandrounds.site.host import SiteHost

OF = {"train": "training", "val": "validation", "test": "test", CLEAN: "test"}
"""Whose rows a part's are, as the accountant says it."""

ALL = PARTS


@dataclass(frozen=True)
class Told:
    """A report without noise of its own: whose rows it is of, and how far one patient (or site) can move it, in L2.

    `largest`: an entry that it cannot be beyond, known before any row is looked at.
    """

    what: str
    rows: tuple[str, ...]
    reach: float = math.inf
    largest: float = math.inf
    unit: str = "patient"


@dataclass(frozen=True)
class Reading:
    """An Ask as it is understood: `events` are charged if it is answered at all, `told` where the report leaves.

    `unbounded`: whether rows are trained on without noise, so that whatever the site remembers from now on tells of them.
    """

    events: tuple[Event, ...] = ()
    told: Mapping[str, Told] = field(default_factory=dict)
    unbounded: bool = False


@dataclass(frozen=True)
class Rows:
    """How many rows the site has of each part: taken as known to everybody."""

    train: int
    val: int
    test: int

    @classmethod
    def of(cls, host: SiteHost) -> Rows:
        mine = host.stack.rows[0]
        return cls(len(mine.train), len(mine.val), len(mine.test))

    def there(self, *parts: str) -> tuple[str, ...]:
        """Whose rows these parts are, where there are any."""
        counts = {"train": self.train, "val": self.val, "test": self.test, CLEAN: self.test}
        return tuple(dict.fromkeys(OF[p] for p in parts if counts.get(p)))


def raw(what: str, rows: Sequence[str], *, trust: str = "local") -> tuple[Event, ...]:
    """A release without noise, of each of these kinds of rows."""
    return tuple(Event("raw", what, of=of, trust=trust) for of in dict.fromkeys(rows))


def within(value: float, low: float, high: float) -> bool:
    """Whether a server's number is one that the arithmetic of a mechanism keeps its bound for.

    Far outside, floats round a clipped vector up to more than its length, or noise down to nothing.
    """
    return math.isfinite(value) and low <= value <= high
