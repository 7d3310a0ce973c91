"""Terms of a site's privacy account, and the values that it uses.

The site's staff decide on `Terms`; no message can change them. `check_own_split` checks that every run splits the rows in
the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.privacy.events import ROWS, Event
from grandrounds.site.stack import Stack

if TYPE_CHECKING:
    pass

@dataclass(frozen=True)
class Terms:
    """Rules of accounting of a site. The defaults trust only the protocol's own threshold of honest sites.

    Attributes:
        withheld_splits: Splits (train, val, test) about which the site's host reports nothing.
        unprotected: Rows (test) without a guarantee; their releases are listed but not charged.
        own_split: The site splits its rows into training, validation and test once, for all runs. If a server can change
            the split, a patient of one split is in another in the next run, so every split pays for each release.
        honest: Sites of a secure sum whose noise counts, this one included; None: as few as the protocol lets survive.
        trust_server: The site accepts the server's word for noise that the server adds itself.
        declared: That noise, relative to the largest change by one site (`declared_noise`).
        classes: Values of the label that the consortium agreed on; an encoding that omits one is refused.
    """

    withheld_splits: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    own_split: bool = True
    honest: int | None = None
    trust_server: bool = False
    declared: float | None = None
    classes: tuple[str, ...] = ()

    def due(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return the events that must be charged: all except unprotected rows, and for rows of every split if splits
        change.
        """
        if not self.own_split:
            return tuple(replace(e, of=part) for e in events for part in (ROWS if e.unit == "patient" else (e.of,)))
        return tuple(e for e in events if e.of not in self.unprotected or e.unit == "site")


def declared_noise(*, epsilon: float | None, delta: float, rounds: int, noise: float | None = None) -> float:
    """Return the noise that a trusted server must add by its plan: as set, or as its budget requires."""
    from grandrounds.privacy.accounting import noise_for

    if noise is not None or epsilon is None:
        return 0.0 if noise is None else float(noise)
    return noise_for(epsilon, delta, steps=rounds)


def check_own_split(path: Path, stack: Stack, *, most_test: float = 0.5) -> bool:
    """Check that this site's rows are split as in its first run, which is recorded in `path` (`Terms.own_split`).

    The rows themselves are compared, whatever the plan says. A split with more test rows than `most_test` is never accepted
    or recorded.
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
        raise BadInput(f"{path} is damaged: restore the newest copy; nothing is released", code="damaged-file") from None
