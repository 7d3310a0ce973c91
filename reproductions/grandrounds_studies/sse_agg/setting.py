"""The set-up of SSE-AGG's first experiment: what its paper gives, what it leaves open, and the ways that are compared."""

from __future__ import annotations

from typing import Any

from grandrounds_studies.study import Arm, Point

PAPER = "SSE-AGG, IJRASET 14(5), 2026, doi.org/10.22214/ijraset.2026.82269"
DIGITS, SYNTHETIC, TEXT = "digits", "synthetic", "diabetes-130-text"
ALPHAS = (0.05, 0.2, 1.0)
WEIGHTS = (0.2, 0.5, 0.8)
"""Values of its lambda besides 0, which is FedAvg: here `explanation_weight`."""

BASE: dict[str, Any] = {
    "split": {"partition": "dirichlet", "sites": 5},
    "reference": {"rows": {"rows": 200}, "anchor": {"rows": 200, "sent": True, "labelled": False}},
    "model": {"name": "mlp", "hidden": [64]},
    "method": {"rounds": 50},
    "train": {"epochs": 2, "batch": 32, "lr": 0.05},
    "explain": {"sketch": "permutation", "every": 1, "reference": "rows"},
}
SETTLED = (
    "The paper gives 5 clients, 50 rounds, 200 reference rows and alpha. It does not give the model's width, the optimiser's "
    "settings and, for this experiment, the local epochs: here one hidden layer of 64, SGD with learning rate 0.05 and "
    "batches of 32, two epochs a round.",
    "It does not say what a sketch is scored by, nor whether sites share permutations: here log loss on labelled reference "
    "rows, three permutations of each feature, the same at all sites and in all rounds.",
    "Drift and Jaccard@5 are means over the last ten rounds; accuracy and its like are of the final model, on the test rows "
    "of all sites.",
    "200 further rows are held out in every arm for methods that share rows with sites, so that all arms train on the same rows. "
    "'As built here' is method sse-agg with preset 'drift'; 'as printed' is the paper's eq. 5 and 8 and nothing else.",
)
EMBEDDED = (
    "The paper's 'NBERT' embedding is not defined: here each stay is reported as a sentence and embedded by all-MiniLM-L6-v2, "
    "mean-pooled; 12,000 stays of as many patients."
)


def printed(e: float, **more: Any) -> Arm:
    """SSE-AGG as its paper has it: eq. 5 and 8 with lambda = e, and no other stability."""
    weigh = {"form": "inverse", "explanation_weight": e, "between_rounds": "data_size"}
    return Arm(
        f"SSE-AGG as printed, e={e:g}", {"method": {"name": "sse-agg", "weigh": weigh, "stability": "none"}, **more}
    )


FEDAVG = Arm("FedAvg", {"method": {"name": "fedavg"}})
DISTANCE = Arm("Param-Distance", {"method": {"name": "fedavg", "weigh": "distance"}})
BY_ACCURACY = Arm("Ref-Accuracy", {"method": {"name": "fedavg", "weigh": "reference_accuracy", "reference": "rows"}})
PRINTED = printed(0.5)
OURS = Arm("SSE-AGG as built here", {"method": {"name": "sse-agg", "preset": "drift"}})
BASELINES = (FEDAVG.label, DISTANCE.label, BY_ACCURACY.label)
BOTH = (PRINTED.label, OURS.label)
"""A claim about SSE-AGG is tested of the paper's form and of ours."""

FEW = (FEDAVG.label, PRINTED.label, OURS.label)
QUICK: dict[str, Any] = {"method": {"rounds": 4}}


def at(data: str, alpha: float, *, arms: tuple[str, ...] = ()) -> Point:
    """A data set with this skew of labels."""
    settings = {"data": {"name": data}, "split": {"alpha": alpha}}
    return Point(f"{data}, alpha {alpha:g}", settings, x=alpha, group=data, arms=arms)
