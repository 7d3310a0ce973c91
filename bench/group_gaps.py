"""Simulated tables for the comparison of groups: false alarms without a difference, and planted gaps that are found.

    python bench/group_gaps.py                 # 2,000 tables a line, about two minutes
    python bench/group_gaps.py --tables 200

Groups are compared as in a run (evaluation.subgroups): by sensitivity, PPV, calibration and AUROC, against the largest group,
with Holm's correction. A false alarm is a table with at least one flagged gap.
"""

from __future__ import annotations

import argparse

import numpy as np

from grandrounds.metrics import tally
from grandrounds.metrics.gaps import Gap, correct_by_holm, find_gaps
from grandrounds.metrics.groups import group_scores, hide_small_groups
from smoke import pick

SIZES = ((400, 300, 100, 60), (300, 60, 60, 60, 60, 60), (1500, 1000, 700), (5000, 4000))
THRESHOLD = 0.25


def gaps_of(sizes: tuple[int, ...], rng: np.random.Generator, lower: float) -> list[Gap]:
    """Draw a table and compare its groups; `lower`: the second group's events have log-odds that are lower by this."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    z = rng.normal(-1.5, 1.2, len(group))
    y = (rng.random(len(group)) < 1 / (1 + np.exp(-z))).astype(int)
    z = np.where((group == 1) & (y == 1), z - lower, z)
    scores = group_scores(tally(z[:, None], y, classes=2, group=group, groups=len(sizes)), THRESHOLD)
    hidden = hide_small_groups(scores.rows.tolist(), scores.events.tolist(), 5)
    return correct_by_holm(find_gaps("group", [str(k) for k in range(len(sizes))], scores, hidden)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=pick(2000, 5))
    tables = parser.parse_args().tables
    print(f"{'groups (rows)':30} {'lower by':>8} {'flagged tables':>14} {'intervals without 0':>19} {'gap of group 2 found':>20}")
    for lower in (0.0, 1.0):
        for sizes in SIZES:
            rng = np.random.default_rng(0)
            flagged = alone = compared = found = 0
            for _ in range(tables):
                gaps = gaps_of(sizes, rng, lower)
                flagged += any(g.flagged for g in gaps)
                alone += sum(g.excludes_zero for g in gaps)
                compared += len(gaps)
                found += any(g.flagged and g.group == "1" and g.difference < 0 for g in gaps)
            shares = [f"{flagged / tables:.1%}", f"{alone / compared:.1%}", f"{found / tables:.1%}" if lower else "-"]
            print(f"{' '.join(map(str, sizes)):30} {lower:8.1f} {shares[0]:>14} {shares[1]:>19} {shares[2]:>20}", flush=True)


if __name__ == "__main__":
    main()
