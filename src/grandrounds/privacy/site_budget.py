"""A site's own budget on its own disk: it outlives runs, and no server's message can reset it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.privacy.budget import Budget
from grandrounds.privacy.events import Event


class SiteBudget:
    """A `Budget` in a JSON file, held by the site, charged by all runs that ask its patients.

    Charge first, release then. The charge is on disk before `charge` returns: after a crash between the two the same run
    and key are asked again, cost nothing, and must be answered with the *same* values (from the site's cache of answers):
    `charge` returns False then. A site that has lost that answer must not draw another one under the same key.

    Processes take turns by a lock beside the file, and each reads the file anew. A damaged file is `BadInput`: to start
    from nothing again is for the site's own people to decide, by removing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path | str, *, epsilon: float | None = None, delta: float | None = None) -> SiteBudget:
        """Open the budget at `path`; make it, with both limits, where there is none.

        Raises:
            BadInput: The file has other limits, cannot be read or is damaged; or there is none and a limit is missing.
        """
        budget = cls(Path(path))
        with budget._turn():
            if not budget.path.exists():
                if epsilon is None or delta is None:
                    raise BadInput(
                        f"there is no budget at {budget.path}: give its epsilon and delta to make one",
                        code="missing-budget",
                    )
                budget._write(Budget(epsilon, delta))
            stored = budget._read()
        for name, wanted, current in (("epsilon", epsilon, stored.epsilon), ("delta", delta, stored.delta)):
            if wanted is not None and wanted != current:
                raise BadInput(
                    f"the budget at {budget.path} has {name} = {current:g}, not {wanted:g}: limits are set once, when it is made",
                    code="changed-budget-limit",
                )
        return budget

    def charge(self, event: Event | Iterable[Event], *, run: str, key: str) -> bool:
        """Charge, on disk, before anything is released: True if it is new, False if this run and key were charged before.

        `Overspent` where it does not fit; the file is then as it was.
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
        """Return the epsilon that these rows have spent over all runs."""
        return self.budget().spent(rows)

    def budget(self) -> Budget:
        """Return a copy of the budget in the file: to look at, not to charge."""
        with self._turn():
            return self._read()

    def _read(self) -> Budget:
        try:
            values: Any = json.loads(self.path.read_bytes())
        except OSError as e:
            raise BadInput(
                f"cannot read the budget at {self.path}: {e.strerror or e}", code="cannot-read"
            ) from None
        except ValueError:
            raise BadInput(
                f"the budget at {self.path} is damaged: restore it from a copy; nothing is released",
                code="damaged-budget",
            ) from None
        try:
            budget = Budget.from_dict(values)
        except BadInput as e:
            raise BadInput(
                f"the budget at {self.path} is damaged ({e}): restore it from a copy", code="damaged-budget"
            ) from None
        if budget.epsilon is None:
            raise BadInput(
                f"the budget at {self.path} is damaged (it has no limit): restore it from a copy", code="damaged-budget"
            )
        return budget

    def _write(self, budget: Budget) -> None:
        try:
            write_atomic(self.path, json.dumps(budget.to_dict(), indent=1).encode())
            self.path.chmod(0o600)
        except OSError as e:
            raise BadInput(
                f"cannot write the budget at {self.path}: {e.strerror or e}; nothing is released",
                code="cannot-write",
            ) from None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone with the file; the system gives the lock back when a process dies."""
        try:
            handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as e:
            raise BadInput(
                f"cannot lock the budget at {self.path}: {e.strerror or e}", code="cannot-write"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
