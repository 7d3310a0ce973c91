"""Compare the personal parts on one recipe: figures of the models that sites deploy, mean over sites and seeds.

    python bench/personal_parts.py heart --model mlp --seeds 5

Every part goes with the same common model, a head with its own. The guard is off, so that the part is deployed at every site.
"sites worse" counts sites whose mean log loss over the seeds is higher than that of the common model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import grandrounds as gr
from grandrounds.core.arrays import Array
from grandrounds.methods.guard.candidates import HEAD, part_titles
from smoke import pick


def measure_part(recipe: str, part: str, seeds: int, more: Sequence[str]) -> dict[str, Array]:
    """Return accuracy and log loss by seed and site, (S, K) each."""
    figures: dict[str, list[list[float]]] = {"accuracy": [], "log_loss": []}
    for seed in range(seeds):
        folder = Path(tempfile.mkdtemp())
        personal = [f"personal.part={part}", "personal.guard=false", "personal.differences=false"]
        run = gr.run(recipe, out=folder / "run", settings=[f"seed={seed}", "explain.sketch=none", *personal, *more])
        by_site = run.summary["per_site"] if part == "none" else run.summary["personal"]["per_site"]
        for name, rows in figures.items():
            rows.append([by_site[site][name] for site in sorted(by_site)])
        shutil.rmtree(folder)
    return {name: np.array(rows) for name, rows in figures.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="heart")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--seeds", type=int, default=pick(5, 1))
    parser.add_argument("--set", action="append", default=pick([], ["method.rounds=2"]), metavar="KEY=VALUE")
    asked = parser.parse_args(words)
    print(f"{asked.recipe}, model {asked.model}, {asked.seeds} seeds: mean over sites")
    print(f"{'personal.part':15s} {'accuracy':>9s} {'log loss':>9s}  sites worse")
    parts = ["none", *(part for part in part_titles() if part != HEAD or asked.model != "logistic")]
    common = None
    for part in parts:
        found = measure_part(asked.recipe, part, asked.seeds, [f"model.name={asked.model}", *asked.set])
        loss = found["log_loss"].mean(axis=0)
        common = loss if common is None else common
        worse = f"{(loss > common).sum()} of {len(loss)}"
        print(f"{part:15s} {found['accuracy'].mean():9.3f} {loss.mean():9.3f}  {worse}", flush=True)


if __name__ == "__main__":
    main()
