"""Site budget: a privacy budget on the site's own disk that covers all runs and that no message can reset."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import remove_leftovers, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.privacy.budget import Budget
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import plain, rounded_down, rounded_up


@dataclass(frozen=True)
class LimitChange:
    """The effect of a policy's limits on a stored budget.

    Attributes:
        before: The stored epsilon.
        after: The epsilon of the policy.
        spent: The epsilon spent over all runs, for the rows of which most is spent.
        refusal: Why the limits are refused, and the suggested fix; "" if they apply.
    """

    before: float
    after: float
    spent: float
    refusal: str

    def describe(self) -> str:
        """Describe the change, with the rest of the budget."""
        change = f" -> {self.after:g}" if self.after != self.before else ""
        remaining = rounded_down(max(0.0, min(self.before, self.after) - self.spent))
        facts = f"epsilon limit {self.before:g}{change}; spent {rounded_up(self.spent)}; remaining {remaining}"
        if self.refusal:
            return f"{facts}. Refused: {self.refusal}"
        return f"{facts}. A limit that was lowered cannot be raised again" if change else facts


class SiteBudget:
    """A `Budget` in a JSON file of the site, charged by all runs.

    Charge before the release. The charge is on disk before `charge` returns. After a crash between the two, the same run
    and key cost nothing (`charge` returns False) and must be answered with the *same* values from the site's cache. Other
    values may be drawn under the same key only if none ever left the site.

    Processes take turns by a lock file, and each reads the file again. A damaged file raises `BadInput`; only the site's
    staff may start over, by removing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path | str, *, epsilon: float | None = None, delta: float | None = None) -> SiteBudget:
        """Open the budget at `path`, or create it with both limits. A lower epsilon replaces that of the file; charges stay.

        Args:
            path: The JSON file.
            epsilon: Limit; required for a new file.
            delta: Probability of failure; required for a new file.

        Returns:
            The budget.

        Raises:
            BadInput: The file has a lower epsilon or another delta, cannot be read or is damaged; or it does not exist and a
                limit is missing.
        """
        budget = cls(Path(path))
        with budget._turn():
            remove_leftovers(budget.path.parent, budget.path.name)
            if not budget.path.exists():
                if epsilon is None or delta is None:
                    raise BadInput(
                        f"there is no site budget at {budget.path}: give epsilon and delta to create it",
                        code="missing-budget",
                    )
                budget._write(Budget(epsilon, delta))
            stored = budget._read()
            change = budget._compare(stored, epsilon, delta)
            if change.refusal:
                raise BadInput(change.refusal, code="changed-budget-limit")
            if change.after < change.before:
                stored.epsilon = change.after
                budget._write(stored)
        return budget

    def foresee(self, epsilon: float | None, delta: float | None) -> LimitChange:
        """Compare limits with those of the file, which stays as it is."""
        return self._compare(self.budget(), epsilon, delta)

    def _compare(self, stored: Budget, epsilon: float | None, delta: float | None) -> LimitChange:
        before, refusal = float(stored.epsilon or 0.0), ""
        after = before if epsilon is None else epsilon
        if delta is not None and delta != stored.delta:
            old = plain(stored.delta)
            refusal = f"delta from {old} to {plain(delta)}: set privacy.delta = {old} in policy.toml"
        elif after > before:
            refusal = (
                f"epsilon from {before:g} to {after:g}: a limit can be lowered, not raised. Set privacy.epsilon = {before:g} or "
                "less in policy.toml"
            )
        if refusal:
            refusal = f"the policy changes the site budget at {self.path}, {refusal}"
        spent = max((stored.spent(rows) for rows in {e.of for e in stored.events}), default=0.0)
        return LimitChange(before, after, spent, refusal)

    def charge(self, event: Event | Iterable[Event], *, run: str, key: str) -> bool:
        """Charge a release on disk before it is made.

        Args:
            event: One event, or several.
            run: Name of the run.
            key: Identifies the release within the run.

        Returns:
            True for a new release, False if this run and key were charged before.

        Raises:
            Overspent: The release does not fit; the file is unchanged.
        """
        named = json.dumps([run, key])
        events = [event] if isinstance(event, Event) else list(event)
        with self._turn():
            budget = self._read()
            is_repeat = budget.has(named)
            budget.charge(events, key=named)
            if not is_repeat:
                self._write(budget)
        return not is_repeat

    def spent(self, rows: str = "training") -> float:
        """Return the epsilon spent for these rows over all runs."""
        return self.budget().spent(rows)

    def budget(self) -> Budget:
        """Return a copy of the stored budget, to inspect and not to charge."""
        with self._turn():
            return self._read()

    def _read(self) -> Budget:
        try:
            values: Any = json.loads(self.path.read_bytes())
        except OSError as e:
            raise BadInput(
                f"cannot read the site budget at {self.path}: {e.strerror or e}", code="cannot-read"
            ) from None
        except ValueError:
            raise BadInput(
                f"the site budget at {self.path} is damaged: restore the newest copy; nothing is released",
                code="damaged-budget",
            ) from None
        try:
            budget = Budget.from_dict(values)
        except BadInput as e:
            raise BadInput(
                f"the site budget at {self.path} is damaged ({e}): restore the newest copy", code="damaged-budget"
            ) from None
        if budget.epsilon is None:
            raise BadInput(
                f"the site budget at {self.path} is damaged (it has no limit): restore the newest copy", code="damaged-budget"
            )
        return budget

    def _write(self, budget: Budget) -> None:
        try:
            write_atomic(self.path, json.dumps(budget.to_dict(), indent=1).encode())
            self.path.chmod(0o600)
        except OSError as e:
            raise BadInput(
                f"cannot write the site budget at {self.path}: {e.strerror or e}; nothing is released",
                code="cannot-write",
            ) from None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock of the file; the system releases it when a process dies."""
        try:
            handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as e:
            raise BadInput(
                f"cannot lock the site budget at {self.path}: {e.strerror or e}", code="cannot-write"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
