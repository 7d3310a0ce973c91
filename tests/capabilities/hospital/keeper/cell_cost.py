"""Cost of hiding small cells: `python -m tests.capabilities.hospital.keeper.cell_cost` prints the figures of docs/site.md.

FedAvg for ten rounds over the wire, each site's answers as they are and as the default policy lets them leave.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from tests.capabilities.hospital.keeper.test_small_cells import trimming

SEEDS = range(5)


def auroc(data: str, seed: int, policy: Policy | None) -> float:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if policy is not None:
            trimming(patch, policy)
        values = {"data": {"name": data}, "seed": seed, "engine": {"wire": True}, "method": {"rounds": 10}}
        done = gr.run(gr.Experiment.parse({**values, "explain": {"sketch": "none"}}), out=f"{folder}/r")
        return float(done.summary["final"]["auroc"])


def main() -> None:
    for data in ("heart", "eicu-demo"):
        plain, told = (np.array([auroc(data, s, policy) for s in SEEDS]) for policy in (None, Policy()))
        change = told - plain
        print(
            f"{data}: AUROC {plain.mean():.4f} as they are, {told.mean():.4f} as the policy lets them leave; "
            f"change by seed {change.min():+.4f} to {change.max():+.4f}, mean {change.mean():+.4f}"
        )


if __name__ == "__main__":
    main()
