"""Privacy budget of a run: it is charged before a release, and refuses a release that would exceed it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.events import Event

SCHEMA = 1
_ROUNDING = 1 + 1e-9
"""Tolerance for rounding, so that three charges of a third of the budget fit."""


class Overspent(RunFailed):
    """A release was refused, because it would exceed the budget. Nothing was released or charged."""


class Budget:
    """Releases of a run and the epsilon they spent; `epsilon=None` sets no limit and only counts.

    A raw release spends infinity: with a limit it is refused.
    """

    def __init__(self, epsilon: float | None, delta: float) -> None:
        if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
            raise BadInput(f"epsilon = {epsilon:g} is not a valid budget: choose a finite number above 0", code="bad-epsilon")
        if not 0 <= delta < 1:
            raise BadInput(
                f"delta = {delta:g} is not a valid probability: choose a small number such as 1e-5", code="bad-delta"
            )
        self.epsilon = epsilon
        self.delta = delta
        self._events: list[Event] = []
        self._keys: dict[str, list[Event]] = {}

    @property
    def events(self) -> tuple[Event, ...]:
        """All charged releases, in order."""
        return tuple(self._events)

    def charge(self, event: Event | Iterable[Event], *, key: str | None = None) -> None:
        """Charge a release before it is made. Several events are charged all or none.

        Args:
            event: One event, or several.
            key: Identifies the release (the Ask's id and the released data). A key that was charged before is the same
                release after a crash and costs nothing.

        Raises:
            Overspent: The release does not fit; nothing has changed.
            BadInput: The key was charged before for other events.
        """
        new = _listed(event)
        if key is not None and key in self._keys:
            if self._keys[key] != new:
                raise BadInput(
                    f"'{key}' was charged before for another release: use a new key for each release", code="repeated-release"
                )
            return
        if self.epsilon is not None and (after := self._after(new)) > self.epsilon * _ROUNDING:
            raise Overspent(_refusal(new, after, self.epsilon, self.delta, self._spent_on(new)), code="budget-overspent")
        self._events += new
        if key is not None:
            self._keys[key] = new

    def recall(self, event: Event | Iterable[Event], *, key: str) -> None:
        """Count a release of an earlier process, which is spent even if it does not fit; a known key is ignored."""
        if key not in self._keys:
            self._keys[key] = _listed(event)
            self._events += self._keys[key]

    def has(self, key: str) -> bool:
        """Tell whether this key was charged before."""
        return key in self._keys

    def would(self, event: Event | Iterable[Event]) -> float:
        """Compute the epsilon of the affected rows if this were released too."""
        return self._after(_listed(event))

    def spent(self, rows: str = "training") -> float:
        """Compute the epsilon of these rows so far; for sites that of all rows, because a site holds every split."""
        return epsilon_of([e for e in self._events if e.of == rows or e.unit == "site"], self.delta)

    def left(self, event: Event | Iterable[Event]) -> float:
        """Compute the remaining budget for the rows of this event, at least zero."""
        return max(0.0, (math.inf if self.epsilon is None else self.epsilon) - self._spent_on(_listed(event)))

    def _spent_on(self, events: list[Event]) -> float:
        return max((self.spent(rows) for rows in {e.of for e in events}), default=0.0)

    def _after(self, new: list[Event]) -> float:
        rows = {e.of for e in new}
        return epsilon_of([*(e for e in self._events if e.of in rows or e.unit == "site"), *new], self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint: a resumed run continues from them and charges nothing twice."""
        listed = [e.to_dict() for e in self._events]
        keys = {key: [e.to_dict() for e in events] for key, events in self._keys.items()}
        return {"schema": SCHEMA, "epsilon": self.epsilon, "delta": self.delta, "events": listed, "keys": keys}

    @classmethod
    def from_dict(cls, values: object) -> Budget:
        """Restore a budget from `to_dict`.

        Raises:
            BadInput: The values have another form. The result is never an empty budget.
        """
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            raise BadInput(f"a stored budget is damaged: its schema must be {SCHEMA}", code="damaged-budget")
        epsilon, delta, events, keys = (values.get(name) for name in ("epsilon", "delta", "events", "keys"))
        if not (epsilon is None or _is_number(epsilon)) or delta is None or not _is_number(delta):
            raise BadInput(
                "a stored budget is damaged: epsilon and delta must be numbers", code="damaged-budget"
            )
        if not isinstance(events, list) or not isinstance(keys, Mapping):
            raise BadInput("a stored budget is damaged: it must list its events and keys", code="damaged-budget")
        budget = cls(epsilon, delta)
        budget._events = [Event.from_dict(e) for e in events]
        for key, listed in keys.items():
            if not isinstance(listed, list):
                raise BadInput("a stored budget is damaged: each key must list its events", code="damaged-budget")
            budget._keys[str(key)] = [Event.from_dict(e) for e in listed]
        return budget


def _listed(event: Event | Iterable[Event]) -> list[Event]:
    return [event] if isinstance(event, Event) else list(event)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refusal(new: list[Event], after: float, limit: float, delta: float, spent: float) -> str:
    names = ", ".join(dict.fromkeys(e.what for e in new))
    rows = ", ".join(dict.fromkeys(e.of for e in new))
    if math.isinf(after):
        return f"'{names}' would be released without noise, which no budget covers (epsilon = {limit:g} of {rows} rows)"
    return (
        f"'{names}' would raise epsilon to {after:.4g}; the budget is {limit:g} at delta = {delta:g} ({rows} rows), of "
        f"which {spent:.4g} is spent and {max(0.0, limit - spent):.4g} left. Nothing was released. Use more noise, fewer "
        "rounds, or a larger budget"
    )
