"""Grand Rounds from the inside: seconds of a round's training and averaging, of its evaluation and of its checkpoint.

    PYTHONPATH=bench python bench/ports/ours.py W1 PLAN.json FOLDER

The same parts that `rounds run` puts together, one call after another, so that each can be timed. The model starts where
those of the other ports do, so that the accuracies can be compared; batches are drawn as Grand Rounds draws them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import plain
from grandrounds.core.plan import Settings
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import evaluate
from grandrounds.runs import evaluation
from grandrounds.runs.federation import assemble
from grandrounds.runs.setup import set_up_run
from workloads import WORKLOADS, Array, Watch, start_of


def same_start(name: str) -> Array:
    """The other ports' starting weights as one vector: weights (inputs, outputs), of two logits their difference."""
    arrays = start_of(name)
    if WORKLOADS[name].widths:
        arrays = [a.T for a in arrays]
    if WORKLOADS[name].widths[-1:] == (2,):
        arrays = [a[..., 1] - a[..., 0] for a in arrays]
    return np.concatenate([a.ravel() for a in arrays])


def main() -> None:
    name, plan_file, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    values = json.loads(plan_file.read_text())
    plan = Settings(values)
    folder.mkdir(parents=True)
    checkpoint = Checkpoint(folder)
    checkpoint.start(values)
    consortium = assemble(plan)
    opening = set_up_run(plan, consortium, None)
    engine = opening.engine
    theta = same_start(name)
    if engine.layout is None or len(theta) != engine.layout.size:
        raise SystemExit(f"the model of {name} has other parameters here than in the other ports")
    method = build_method(plan.method, plan.train)
    rounds, scoring, saving = Watch(), Watch(), Watch()
    for r in range(1, plan.method.rounds + 1):
        with rounds:
            outcome = engine.drive(method.round(Server(r, theta, consortium.training, plan.seed)), round=r)
            engine.commit()
        theta = outcome.model
        with scoring:
            work = evaluate(outcome.assignment, ("val", "test"), figures=evaluation.site_metrics())
            figures = evaluation.round_scores(engine.drive(work, round=r), opening.metrics)
        with saving:
            state = {"round": r, "engine": engine.state(), "encoding": opening.encoding.to_dict()}
            checkpoint.write(plain({"round": r, **figures}), {"model": theta}, state)
    rounds.report(figures["test"]["accuracy"], evaluate=scoring, checkpoint=saving)


if __name__ == "__main__":
    main()
