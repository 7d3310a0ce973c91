"""Site budget: a privacy budget on the site's own disk that covers all runs and that no message can reset."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import remove_leftovers, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.privacy.budget import Budget
from grandrounds.privacy.events import Event


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
        """Open the budget at `path`, or create it with both limits.

        Args:
            path: The JSON file.
            epsilon: Limit; required for a new file.
            delta: Probability of failure; required for a new file.

        Returns:
            The budget.

        Raises:
            BadInput: The file has other limits, cannot be read or is damaged; or it does not exist and a limit is missing.
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
        for name, wanted, current in (("epsilon", epsilon, stored.epsilon), ("delta", delta, stored.delta)):
            if wanted is not None and wanted != current:
                raise BadInput(
                    f"the site budget at {budget.path} has {name} = {current:g}, not {wanted:g}: limits cannot be "
                    "changed after creation",
                    code="changed-budget-limit",
                )
        return budget

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
