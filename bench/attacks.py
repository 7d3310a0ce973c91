"""What each robust rule stands: accuracy on true test rows under each attack, mean over seeds.

    python bench/attacks.py [--seeds 5] [--out runs/attacks] [--jobs 2]

Breast cancer, ten sites (Dirichlet 0.5), logistic regression, 20 rounds; the three largest sites attack, which is more
than half of the rows. FLTrust has 40 reference rows. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from grandrounds.experiment.experiment import Experiment
from grandrounds.runs.batch import run_all
from smoke import pick

ALIKE = ", uniform"  # every site counts alike, however many rows it has
EVERY_RULE = (
    *("none", "none" + ALIKE, "krum", "multi-krum", "median", "trimmed-mean"),
    *("geometric-median", "geometric-median" + ALIKE, "fltrust", "foolsgold", "clip", "clip" + ALIKE),
)
ATTACKS = ("", "label-flip", "label-shuffle", "sign-flip", "scale", "gaussian", "free-rider", "lie")[: pick(None, 2)]
RULES = pick(EVERY_RULE, ("none", "krum"))
ATTACKERS = 3


def plan(rule: str, attack: str, seed: int) -> dict:
    """One run of a rule, with weights by rows unless it says otherwise."""
    values = {
        "seed": seed,
        "data": {"name": "breast-cancer"},
        "split": {"partition": "dirichlet", "sites": 10},
        "reference": {"root": {"rows": 40}},
        "method": {
            "robust": {"rule": rule.removesuffix(ALIKE), "attackers": ATTACKERS, "trim": 0.3},
            "weigh": "uniform" if rule.endswith(ALIKE) else "data_size",
        },
        "attacks": [{"kind": attack, "count": ATTACKERS}] if attack else [],
    }
    return Experiment.parse(values).plan()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=pick(5, 1))
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"))
    parser.add_argument("--jobs", type=int, default=pick(os.cpu_count() or 1, 1))
    args = parser.parse_args()
    cells = {
        (r, a, s): f"{r.replace(', ', '-')}-{a or 'honest'}-{s}"
        for r in RULES
        for a in ATTACKS
        for s in range(args.seeds)
    }
    plans = {name: plan(*cell) for cell, name in cells.items()}
    runs = dict(zip(cells, run_all(plans, args.out, jobs=args.jobs, progress=lambda name, run: None), strict=True))
    print("| rule | " + " | ".join(a or "nobody attacks" for a in ATTACKS) + " |")
    print("|---|" + "---:|" * len(ATTACKS))
    for rule in RULES:
        means = [
            statistics.mean(runs[rule, a, s].summary["final"]["accuracy"] for s in range(args.seeds)) for a in ATTACKS
        ]
        print(f"| {rule} | " + " | ".join(f"{m:.3f}" for m in means) + " |")


if __name__ == "__main__":
    main()
