"""Define your own partition: one referral centre with most of the diseased patients, and small hospitals.

    python examples/own_partition.py

From an experiment file: split.partition = "own_partition:referral" (see own.toml).
"""

from __future__ import annotations

import numpy as np

import grandrounds as gr


def referral(y: np.ndarray, *, sites: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the rows of each site by its name; y (n,) has the class number of each row."""
    rows = rng.permutation(len(y))
    ill = y[rows] == np.bincount(y).argmin()  # the rarer class
    stays_away = rng.random(len(y)) < 0.4
    centre, rest = rows[ill & ~stays_away], rows[~ill | stays_away]
    well, rest = rest[: len(centre)], rest[len(centre) :]
    small = np.array_split(rest, sites - 1)
    return {"centre": np.concatenate([centre, well]), **{f"town-{k + 1}": r for k, r in enumerate(small)}}


def main() -> None:
    experiment = gr.Experiment(
        name="own partition",
        data={"name": "breast-cancer"},
        split={"partition": referral, "sites": 6},
        method={"rounds": 10},
    )
    run = gr.run(experiment)
    for site, figures in run.summary["per_site"].items():
        print(f"{site}: {run.summary['rows'][site]['train']} training rows, test accuracy {figures['accuracy']:.3f}")


if __name__ == "__main__":
    main()
