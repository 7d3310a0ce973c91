"""Use your own data loader: a function that returns a data frame (or a grandrounds Table, or an ImageSet).

    python examples/own_data.py

From an experiment file: data.name = "own_data:stays" (see own.toml).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import grandrounds as gr


def stays() -> pd.DataFrame:
    """Make up stays at three hospitals. The rows are the same every time, since a run stores their hash."""
    rng = np.random.default_rng(7)
    n = 600
    age, lactate = rng.normal(66, 14, n).round(), rng.lognormal(0.6, 0.5, n).round(1)
    risk = 1 / (1 + np.exp(-(-6 + 0.06 * age + 0.7 * lactate)))
    return pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south", "harbour"], n, p=[0.5, 0.3, 0.2]),
            "age": age,
            "lactate": np.where(rng.random(n) < 0.1, np.nan, lactate),
            "ward": rng.choice(["medical", "surgical", "cardiac"], n),
            "died": np.where(rng.random(n) < risk, "yes", "no"),
        }
    )


def main() -> None:
    experiment = gr.Experiment(
        name="own data",
        data={"name": stays, "label": "died", "site": "hospital"},
        method={"rounds": 10},
    )
    run = gr.run(experiment)
    print(f"{run.folder}: AUROC {run.summary['final']['auroc']:.3f} at {', '.join(run.summary['per_site'])}")


if __name__ == "__main__":
    main()
