"""Terms of a site's privacy account, and the values that it is kept in.

`Terms` are settled by the site's own people: no message can change them. `check_own_split` checks that rows are training,
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

ROW_KINDS = {"train": "training", "val": "validation", "test": "test", CLEAN: "test"}
"""The kind of rows of each split, as the accountant names it."""

ALL = PARTS


@dataclass(frozen=True)
class Terms:
    """How a site counts. The defaults trust nobody but the protocol's own threshold of honest sites.

    Attributes:
        withheld_splits: Splits (train, val, test) that the site's host reports nothing of; as the host was built with.
        unprotected: Rows (test) that the policy promises nothing for; their releases are listed and not charged.
        own_split: The site itself splits its rows into training, validation and test, once, for all runs. Where a server can
            have them split anew, a patient of one kind is one of another kind in the next run: then all kinds pay for each.
        honest: Sites of a secure sum whose noise counts, this one among them; None: as few as the protocol lets survive.
        trust_server: The site takes the server's word for noise that the server adds itself.
        declared: That noise, in units of what one site can change (`declared_noise`).
        classes: Values of the label that the consortium agreed on; an encoding that leaves one out is refused.
    """

    withheld_splits: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    own_split: bool = True
    honest: int | None = None
    trust_server: bool = False
    declared: float | None = None
    classes: tuple[str, ...] = ()

    def due(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return the events that must be paid for: all but unprotected rows; by rows of every kind where splits change."""
        if not self.own_split:
            return tuple(replace(e, of=part) for e in events for part in (ROWS if e.unit == "patient" else (e.of,)))
        return tuple(e for e in events if e.of not in self.unprotected or e.unit == "site")


def declared_noise(*, epsilon: float | None, delta: float, rounds: int, noise: float | None = None) -> float:
    """Return the noise that a trusted server must add by its own plan: as named, or as its budget needs."""
    from grandrounds.privacy.accounting import noise_for

    if noise is not None or epsilon is None:
        return 0.0 if noise is None else float(noise)
    return noise_for(epsilon, delta, steps=rounds)


def check_own_split(path: Path, stack: Stack, *, most_test: float = 0.5) -> bool:
    """Check that this site's rows are split as in its first run, which is recorded in `path` (`Terms.own_split`).

    The rows themselves are compared, whatever the plan says. A split with more test rows than `most_test` is never the
    site's own, and is not recorded.
    """
    split = stack.rows[0]
    parts = (split.train, split.val, split.test)
    if len(split.test) > most_test * sum(map(len, parts)):
        return False
    split_digest = hashlib.sha256(b"|".join(np.ascontiguousarray(p, "<i8").tobytes() for p in parts)).hexdigest()
    if not path.exists():
        write_atomic(path, json.dumps(split_digest).encode())
        return True
    try:
        return bool(json.loads(path.read_bytes()) == split_digest)
    except (OSError, ValueError):
        raise BadInput(f"{path} is damaged: restore it from a copy; nothing is released", code="damaged-file") from None


@dataclass(frozen=True)
class Disclosure:
    """A report without noise of its own.

    Attributes:
        description: What it is, in words.
        rows: The kinds of rows that it is of.
        reach: How far one patient (or site) can move it, in L2.
        largest: A bound on its entries, known before any row is looked at.
        unit: What is protected: patient or site.
    """

    description: str
    rows: tuple[str, ...]
    reach: float = math.inf
    largest: float = math.inf
    unit: str = "patient"


@dataclass(frozen=True)
class AskCost:
    """The privacy cost of an Ask.

    Attributes:
        events: Charged if it is answered at all.
        disclosures: By report, charged where the report leaves.
        unbounded: Rows are trained on without noise, so that all that the site remembers from now on discloses them.
    """

    events: tuple[Event, ...] = ()
    disclosures: Mapping[str, Disclosure] = field(default_factory=dict)
    unbounded: bool = False


@dataclass(frozen=True)
class RowCounts:
    """The site's rows of each split: taken as known to everybody."""

    train: int
    val: int
    test: int

    @classmethod
    def from_host(cls, host: SiteHost) -> RowCounts:
        split = host.stack.rows[0]
        return cls(len(split.train), len(split.val), len(split.test))

    def present(self, *parts: str) -> tuple[str, ...]:
        """Return the kinds of rows of these splits, where there are any."""
        counts = {"train": self.train, "val": self.val, "test": self.test, CLEAN: self.test}
        return tuple(dict.fromkeys(ROW_KINDS[p] for p in parts if counts.get(p)))


def raw(description: str, rows: Sequence[str], *, trust: str = "local") -> tuple[Event, ...]:
    """Make a release without noise, of each of these kinds of rows."""
    return tuple(Event("raw", description, of=part, trust=trust) for part in dict.fromkeys(rows))


def within(value: float, low: float, high: float) -> bool:
    """Check that a server's number is one that the arithmetic of a mechanism keeps its bound for.

    Far outside, floats round a clipped vector up to more than its length, or noise down to nothing.
    """
    return math.isfinite(value) and low <= value <= high
