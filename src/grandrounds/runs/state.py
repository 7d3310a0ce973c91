"""State of a run that changes from round to round, as stored in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.engine.checkpoint import Snapshot
from grandrounds.methods.assignment import ModelAssignment


@dataclass
class State:
    """State that changes from round to round."""

    served: ModelAssignment
    sites: tuple[str, ...]
    method: dict[str, Array] = field(default_factory=dict)
    round: int = 0
    best: ModelAssignment | None = None
    best_round: int = 0
    best_loss: float = float("inf")
    seconds: float = 0.0
    cost: dict[str, float] = field(default_factory=dict)
    stopped: str = ""
    clock: float = 0.0  # virtual seconds

    def known(self) -> dict[str, Any]:
        """Return the part of the state that the method receives at the start of a round."""
        return {"model": self.served.model, "assignment": self.served, "state": self.method}

    def arrays(self) -> dict[str, Array]:
        best = {} if self.best is None else self.best.arrays(self.sites)
        return {
            **{f"served/{n}": a for n, a in self.served.arrays(self.sites).items()},
            **{f"best/{n}": a for n, a in best.items()},
            **{f"method/{n}": a for n, a in self.method.items()},
        }

    def facts(self) -> dict[str, object]:
        loss = None if np.isinf(self.best_loss) else self.best_loss
        names = ("round", "best_round", "seconds", "cost", "stopped", "clock")
        return {"best_loss": loss, **{n: getattr(self, n) for n in names}}

    @classmethod
    def of(cls, snapshot: Snapshot, sites: tuple[str, ...]) -> State:
        f, best = snapshot.facts, snapshot.part("best")
        return cls(
            served=ModelAssignment.from_arrays(snapshot.part("served"), sites),
            sites=sites,
            method={n: np.array(a) for n, a in snapshot.part("method").items()},
            round=int(f["round"]),
            best=ModelAssignment.from_arrays(best, sites) if best else None,
            best_round=int(f["best_round"]),
            best_loss=float("inf") if f["best_loss"] is None else float(f["best_loss"]),
            seconds=float(f["seconds"]),
            cost=dict(f["cost"]),
            stopped=str(f["stopped"]),
            clock=float(f["clock"]),
        )
