"""What trust costs with 10, 100 and 1,000 sites: seconds and bytes of a round of FedXChain against FedAvg in the same run.

    python bench/trust.py [--sites 10,100,1000] [--rounds 3] [--json FILE]

A logistic model of 20 features, 20 training rows at each site. *Plain*: the server sees models and SHAP shares. *Masked*:
both are secure sums, and sites judge themselves on 40 reference rows that they were sent. *Compressed*: 5 features told
apart. Seconds are those of all sites and the server together, on one core, without evaluation; a consortium's sites work
side by side. The first round is left out. FedAvg runs plain and masked beside it: the ratio is what trust adds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

import grandrounds as gr
from grandrounds.data.table import Table
from smoke import pick

ROWS = 32
ARMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": {"name": "fedavg"}},
    "FedXChain": {"method": {"name": "fedxchain"}},
    "FedXChain, compressed": {"method": {"name": "fedxchain", "trust": {"top": 5}}},
    "FedAvg, masked": {"method": {"name": "fedavg"}, "privacy": {"secure": True}},
    "FedXChain, masked": {"method": {"name": "fedxchain"}, "privacy": {"secure": True}},
}


def table(sites: int) -> Table:
    x, y = make_classification(ROWS * sites + 400, 20, n_informative=8, random_state=0)
    return Table.from_mapping({**{f"x{j:02d}": x[:, j] for j in range(20)}, "y": y.astype(float)}, source="bench")


def experiment(arm: dict[str, Any], sites: int, rounds: int) -> gr.Experiment:
    return gr.Experiment.parse(
        {
            "data": {"label": "y"},
            "split": {"partition": "equal", "sites": sites},
            "reference": {"root": {"rows": 40, "sent": True}},
            "train": {"epochs": 1},
            "explain": {"sketch": "none"},
            "evaluation": {"every": rounds},
            **arm,
            "method": {**arm["method"], "rounds": rounds},
        }
    )


def measured(arm: dict[str, Any], sites: int, rounds: int) -> dict[str, float]:
    """Of one round, the mean of all but the first and the last (which is evaluated)."""
    with tempfile.TemporaryDirectory() as folder:
        run = gr.run(experiment(arm, sites, rounds), table=table(sites), out=Path(folder) / "run")
        costs = [r["decision"]["cost"] for r in run.rounds[1:-1]]
    up, down = (float(np.mean([c[k] for c in costs])) / sites for k in ("bytes_up", "bytes_down"))
    return {"seconds": float(np.mean([c["seconds"] for c in costs])), "up": up, "down": down}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default=pick("10,100,1000", "4"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'':24s}{'sites':>7s}{'seconds':>10s}{'x FedAvg':>10s}{'kB up':>9s}{'kB down':>9s}  (a site, a round)")
    for sites in (int(n) for n in args.sites.split(",")):
        for name, arm in ARMS.items():
            one = measured(arm, sites, max(3, args.rounds))
            found.setdefault(str(sites), {})[name] = one
            like = found[str(sites)]["FedAvg, masked" if "masked" in name else "FedAvg"]
            times = one["seconds"] / like["seconds"]
            print(
                f"{name:24s}{sites:7d}{one['seconds']:10.3f}{times:10.1f}{one['up'] / 1e3:9.2f}{one['down'] / 1e3:9.2f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
