"""Terms of a site's privacy account, and the values that it is kept in.

`Terms` are settled by the site's own people: no message can change them. `own_split` checks that rows are training,
validation and test rows of the same patients in every run. `Disclosure`, `AskCost` and `RowCounts` are the values that
readers of Asks make and an account adds up.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.privacy.events import ROWS, Event
from grandrounds.site.stack import CLEAN, PARTS, Stack

if TYPE_CHECKING:
    from grandrounds.site.host import SiteHost

OF = {"train": "training", "val": "validation", "test": "test", CLEAN: "test"}
"""Whose rows a part's are, as the accountant says it."""

ALL = PARTS


@dataclass(frozen=True)
class Terms:
    """How a site counts. The defaults trust nobody but the protocol's own threshold of honest sites.

    `withheld_splits`: parts (train, val, test) that the site's host says nothing of; the same as the host was built with.
    `as_they_are`: rows (test) that the policy promises nothing for; what is told of them is listed and not charged.
    `own_split`: whether the site itself deals its rows to training, validation and test, once, for all runs. Where a server
    can have them dealt anew, a patient of one kind is one of another kind in the next run: then all kinds pay for each.
    `honest`: sites of a secure sum whose noise counts, this one among them; None: as few as the protocol lets survive.
    `trust_server`: whether the site takes the server's word for noise that the server adds itself; `declared`: that noise,
    in units of what one site can change (`declared_noise`).
    `classes`: the label's values as the consortium agreed on them; an encoding that leaves one out is refused.
    """

    withheld_splits: tuple[str, ...] = ()
    as_they_are: tuple[str, ...] = ()
    own_split: bool = True
    honest: int | None = None
    trust_server: bool = False
    declared: float | None = None
    classes: tuple[str, ...] = ()

    def due(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """What must be paid for: all but rows that the policy leaves out; by rows of every kind where splits change."""
        if not self.own_split:
            return tuple(replace(e, of=of) for e in events for of in (ROWS if e.unit == "patient" else (e.of,)))
        return tuple(e for e in events if e.of not in self.as_they_are or e.unit == "site")


def declared_noise(*, epsilon: float | None, delta: float, rounds: int, noise: float | None = None) -> float:
    """The noise that a trusted server of client-level noise must add by its own plan: as named, or as its budget asks for."""
    from grandrounds.privacy.accounting import noise_for

    if noise is not None or epsilon is None:
        return 0.0 if noise is None else float(noise)
    return noise_for(epsilon, delta, steps=rounds)


def own_split(path: Path, stack: Stack, *, most_test: float = 0.5) -> bool:
    """Whether this site's rows are dealt as in its first run, which is noted in `path`: what `Terms.own_split` asks for.

    It is the rows themselves that are compared, whatever the plan says. A split with more test rows than `most_test` is never
    the site's own, and is not noted.
    """
    dealt = stack.rows[0]
    parts = (dealt.train, dealt.val, dealt.test)
    if len(dealt.test) > most_test * sum(map(len, parts)):
        return False
    said = hashlib.sha256(b"|".join(np.ascontiguousarray(p, "<i8").tobytes() for p in parts)).hexdigest()
    if not path.exists():
        write_atomic(path, json.dumps(said).encode())
        return True
    try:
        return bool(json.loads(path.read_bytes()) == said)
    except (OSError, ValueError):
        raise BadInput(f"{path} is damaged: restore it from a copy; nothing is released", code="damaged-file") from None


@dataclass(frozen=True)
class Disclosure:
    """A report without noise of its own: whose rows it is of, and how far one patient (or site) can move it, in L2.

    `largest`: an entry that it cannot be beyond, known before any row is looked at.
    """

    what: str
    rows: tuple[str, ...]
    reach: float = math.inf
    largest: float = math.inf
    unit: str = "patient"


@dataclass(frozen=True)
class AskCost:
    """An Ask as it is understood: `events` are charged if it is answered at all, `disclosures` where the report leaves.

    `unbounded`: whether rows are trained on without noise, so that whatever the site remembers from now on tells of them.
    """

    events: tuple[Event, ...] = ()
    disclosures: Mapping[str, Disclosure] = field(default_factory=dict)
    unbounded: bool = False


@dataclass(frozen=True)
class RowCounts:
    """How many rows the site has of each part: taken as known to everybody."""

    train: int
    val: int
    test: int

    @classmethod
    def of(cls, host: SiteHost) -> RowCounts:
        mine = host.stack.rows[0]
        return cls(len(mine.train), len(mine.val), len(mine.test))

    def present(self, *parts: str) -> tuple[str, ...]:
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
