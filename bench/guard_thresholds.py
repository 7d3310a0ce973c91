"""Decisions of deployed models: at which threshold?

    python bench/guard_thresholds.py            # heart
    python bench/guard_thresholds.py eicu-demo
    python bench/guard_thresholds.py ham10000

Each seed chooses the threshold by Youden's index on the validation rows of all sites (`evaluation.threshold = "youden"`). Printed
are accuracy, sensitivity, specificity and Youden's index over the test rows of all sites and seeds: of the common model, of the
models that sites deploy at the same threshold, of these at a threshold chosen by their own scores on the validation rows of all
sites (which runs use), and at a threshold from the site's own validation rows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.guard.candidates import rows_of
from grandrounds.models import Model
from grandrounds.recipes import load_recipe
from grandrounds.runs.finalize import Finalizer
from grandrounds.runs.run import run
from grandrounds.site.evaluate import score
from smoke import pick

SEEDS = pick(5, 1)
COMMON, DEPLOYED = "common model", "deployed, common threshold"
JOINT, OWN = "deployed, their threshold", "deployed, a threshold by site"


class WatchedFinalizer(Finalizer):
    """A finalizer that counts decisions of the models which sites deploy."""

    counts: dict[str, Any] = {}  # noqa: RUF012

    def _personalized(self, model: Model, served: ModelAssignment) -> Any:
        facts, tallies = super()._personalized(model, served)
        threshold, joint = self._threshold(served), float(str(facts["threshold"]))
        host: Any = self.context.engine
        host = host.hosts[0]
        for k, deployed in host.personal_models.items():
            risks = {
                (split, name): self._risks(model, host, theta, split, k)
                for split in ("val", "test")
                for name, theta in ((COMMON, served.model), (DEPLOYED, deployed))
            }
            events = {split: self._events(host, split, k) for split in ("val", "test")}
            own = choose_threshold(risks["val", DEPLOYED], events["val"], otherwise=threshold)
            for name, risk, cut in (
                (COMMON, risks["test", COMMON], threshold),
                (DEPLOYED, risks["test", DEPLOYED], threshold),
                (JOINT, risks["test", DEPLOYED], joint),
                (OWN, risks["test", DEPLOYED], own),
            ):
                self.counts[name] = self.counts.get(name, 0) + count(risk >= cut, events["test"])
        return facts, tallies

    @staticmethod
    def _events(host: Any, split: str, k: int) -> Any:
        part = host.stack.parts[split]
        return part.y[rows_of(part, k)] == host.stack.event

    @staticmethod
    def _risks(model: Model, host: Any, theta: Any, split: str, k: int) -> Any:
        part = host.stack.parts[split]
        shares = 1 / (1 + np.exp(-score(model, theta, part.x[rows_of(part, k)])[:, 0]))
        return shares if host.stack.event == 1 else 1 - shares


def choose_threshold(risk: Any, event: Any, *, otherwise: float) -> float:
    """Choose the threshold with the largest Youden index; rows of one class choose none."""
    if event.all() or not event.any():
        return otherwise
    return float(max(np.unique(risk), key=lambda cut: (risk[event] >= cut).mean() - (risk[~event] >= cut).mean()))


def count(positive: Any, event: Any) -> Any:
    """Count rows: called positive and with the event, with the event, called negative without it, without it."""
    return np.array([(positive & event).sum(), event.sum(), (~positive & ~event).sum(), (~event).sum()])


def main() -> None:
    """Print the table of one recipe."""
    import grandrounds.runs.runner as runner

    runner.Finalizer = WatchedFinalizer  # type: ignore[misc]
    settings = ["personal.guard=true", "personal.differences=false", "explain.sketch=none", "evaluation.threshold=youden"]
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            run(load_recipe(*sys.argv[1:] or ["heart"]).with_settings([f"seed={seed}", *settings]), out=Path(folder) / "run")
    print(f"{'':32} accuracy  sensitivity  specificity  Youden's index")
    for name, (caught, events, spared, others) in WatchedFinalizer.counts.items():
        sensitivity, specificity = caught / events, spared / others
        accuracy = (caught + spared) / (events + others)
        print(f"{name:32} {accuracy:8.3f}  {sensitivity:11.3f}  {specificity:11.3f}  {sensitivity + specificity - 1:14.3f}")


if __name__ == "__main__":
    main()
