"""All of a run that changes from round to round, as it is kept in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.engine.checkpoint import Snapshot


@dataclass
class State:
    """All that changes from round to round."""

    model: Array
    method: dict[str, Array] = field(default_factory=dict)
    round: int = 0
    best: Array | None = None
    best_round: int = 0
    best_loss: float = float("inf")
    seconds: float = 0.0
    cost: dict[str, float] = field(default_factory=dict)
    stopped: str = ""

    def arrays(self) -> dict[str, Array]:
        best = {} if self.best is None else {"best": self.best}
        return {"model": self.model, **best, **{f"method/{n}": a for n, a in self.method.items()}}

    def facts(self) -> dict[str, Any]:
        loss = None if np.isinf(self.best_loss) else self.best_loss
        names = ("round", "best_round", "seconds", "cost", "stopped")
        return {"best_loss": loss, **{n: getattr(self, n) for n in names}}

    @classmethod
    def of(cls, snapshot: Snapshot) -> State:
        f = snapshot.facts
        return cls(
            model=np.array(snapshot.arrays["model"]),
            method={n: np.array(a) for n, a in snapshot.part("method").items()},
            round=int(f["round"]),
            best=np.array(snapshot.arrays["best"]) if "best" in snapshot.arrays else None,
            best_round=int(f["best_round"]),
            best_loss=float("inf") if f["best_loss"] is None else float(f["best_loss"]),
            seconds=float(f["seconds"]),
            cost=dict(f["cost"]),
            stopped=str(f["stopped"]),
        )
