"""Every data set of the catalog, FedAvg and FedProx, five seeds (or five folds of unseen hospitals): a Markdown table.

    python bench/study.py [--out runs/study] [--jobs 2] [--only heart,digits]

Interrupted, it goes on where it was. Sets that are not on this machine are named and left out.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import grandrounds as gr
from grandrounds.analysis.compare import compare
from grandrounds.core.errors import BadInput
from grandrounds.recipes import load_recipe
from grandrounds.runs.batch import run_all
from smoke import SMOKE, pick

RECIPES = {
    "breast-cancer": "seed",
    "digits": "seed",
    "heart": "seed",
    "heart-unseen": "split.fold",
    "diabetes-130": "seed",
    "icu-cohort": "split.fold",
    "eicu-demo": "seed",
}
METHODS = ("fedavg", "fedprox")
METRICS = ("accuracy", "majority", "auroc", "auprc", "log_loss", "ece", "worst_site_accuracy")


def runs_of(recipe: str, axis: str, out: Path, jobs: int) -> list[gr.Run]:
    base = load_recipe(recipe)
    repeats = pick(4 if recipe == "heart-unseen" else 5, 1)
    plans = {
        f"{method}-{i}": base.with_settings([f"method.name={method}", f"{axis}={i}", *pick([], ["method.rounds=2"])]).plan()
        for method in METHODS
        for i in range(repeats)
    }
    return run_all(plans, out / recipe, jobs=jobs, progress=lambda name, run: None)


def cell(mean: float, std: float) -> str:
    return "-" if mean != mean else f"{mean:.3f} ± {std:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--jobs", type=int, default=pick(os.cpu_count() or 1, 1))
    parser.add_argument("--only", default=pick(",".join(RECIPES), "heart"))
    args = parser.parse_args()
    print("| recipe | method | n | " + " | ".join(m.replace("_", " ") for m in METRICS) + " | seconds a round |")
    print("|---|---|---:|" + "---:|" * (len(METRICS) + 1))
    for recipe in args.only.split(","):
        try:
            runs = runs_of(recipe, RECIPES[recipe], args.out, args.jobs)
        except BadInput as e:
            if SMOKE:
                raise
            print(f"| {recipe} | left out: {e} |")
            continue
        result = compare(runs, metrics=METRICS)
        for arm in result.arms:
            figures = [result.summary(arm, m) for m in METRICS]
            seconds = [r.summary["cost"]["seconds"] / r.summary["rounds"] for r in arm.runs.values()]
            text = " | ".join(cell(f.mean, f.std) for f in figures)
            print(
                f"| {recipe} | {arm.label} | {figures[0].n} | {text} | {sum(seconds) / len(seconds):.3f} |", flush=True
            )


if __name__ == "__main__":
    main()
