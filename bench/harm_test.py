"""False alarms of the test of harm, by the test patients of the rarer class.

    python bench/harm_test.py [--cases 1500]

Hospitals are simulated whose deployed model is as good as their own: the log-odds of both are the true ones with the same noise.
Printed is the share of hospitals that the test calls harmed, at levels of consortia with 5, 50 and 139 hospitals (Holm's first
step). Hospitals with fewer test patients of the rarer class than stated are left out.
"""

from __future__ import annotations

import argparse

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.guard.choice import LEVEL, harm_p_value
from smoke import pick

HOSPITALS = (5, 50, 139)
CASES = ((36, 0.08, 1), (36, 0.08, 3), (36, 0.08, 5), (100, 0.08, 1), (100, 0.08, 5), (36, 0.5, 5))
"""Test patients, share with the event, and least patients of the rarer class."""


def draw_p_value(n: int, share: float, least: int, seed: int) -> float | None:
    """Draw one hospital and test it; None if it has fewer patients of the rarer class."""
    rng = np.random.default_rng([seed, n])
    base = float(np.log(share / (1 - share)))
    truth = base + rng.normal(0, 1.2, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-truth))).astype(float)
    if not least <= y.sum() <= n - least:
        return None

    def loss(score: Array) -> Array:
        return np.asarray(np.logaddexp(0, score) - y * score)

    deployed, own = (loss(truth + rng.normal(0, 0.7, n)) for _ in range(2))
    return harm_p_value([deployed - own, deployed - loss(np.full(n, base))], np.arange(n), seed=seed, site="site")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=pick(1500, 30), help="hospitals drawn for each line")
    cases = parser.parse_args().cases
    levels = [LEVEL / hospitals for hospitals in HOSPITALS]
    print("patients  events  least of a class  hospitals  " + "  ".join(f"at {level:.5f}" for level in levels))
    for n, share, least in CASES:
        drawn = (draw_p_value(n, share, least, seed) for seed in range(cases))
        found = np.array([p for p in drawn if p is not None])
        rates = "  ".join(f"{(found <= level).mean():10.5f}" for level in levels)
        print(f"{n:8}  {share:6.0%}  {least:16}  {len(found):9}  {rates}", flush=True)


if __name__ == "__main__":
    main()
