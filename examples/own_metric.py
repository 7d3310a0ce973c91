"""Define your own metric: a function of a Tally, the sum of all sites' statistics.

    python examples/own_metric.py

From an experiment file: evaluation.metrics = ["own_metric:harm"] (see own.toml).
"""

from __future__ import annotations

import grandrounds as gr
from grandrounds.metrics import Tally


def harm(tally: Tally) -> float:
    """Mean cost of a decision at P = 0.5, where a missed event costs ten times as much as a false alarm."""
    false_alarms, missed = tally.confusion[0, 1], tally.confusion[1, 0]  # [true, predicted]
    return float(false_alarms + 10 * missed) / float(tally.count)


def main() -> None:
    experiment = gr.Experiment(
        name="own metric",
        data={"name": "breast-cancer", "positive": "malignant"},
        method={"rounds": 10},
        evaluation={"metrics": [harm]},
    )
    run = gr.run(experiment)
    print("by round:", ", ".join(f"{r['test']['harm']:.3f}" for r in run.rounds))
    print(f"final: harm {run.summary['final']['harm']:.3f}, accuracy {run.summary['final']['accuracy']:.3f}")


if __name__ == "__main__":
    main()
