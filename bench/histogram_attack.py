"""An attack on the summed histograms of boosted trees: link cells of one patient across columns by their gradient.

    python bench/histogram_attack.py                       # heart, in the package
    python bench/histogram_attack.py --cohort eicu-demo    # needs GRANDROUNDS_DATA

The attacker is the server of a run under secure aggregation: it has the sums of all sites and no site's own. A cell with one row
tells that row's bin and gradient. All trees of one round share the gradients of their rows, and after the first round few rows
have the same one. So cells of one row with equal gradient and curvature, in any node of any tree of the round, belong to the same
patient, unless two cells of one column contradict each other. Histograms of larger children follow by subtraction.

The table has, for the round in which most patients are exposed: patients of whom at least five columns are linked, their share of
all training rows, the mean number of columns linked, and the share of links that are right, that is, all linked bins and the
outcome belong to one training row. Only this attack was measured: a setting under which it finds less is not thereby safe.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from folds import make_fold
from grandrounds.capabilities.attacks.sums import FEWEST, SeenRound, judge_round, read_level
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.boosting import fit_trees
from grandrounds.capabilities.statistics.boosting_answers import LEVEL
from grandrounds.capabilities.statistics.boosting_question import unpack_edges
from grandrounds.capabilities.statistics.boosting_terms import trees_terms
from grandrounds.capabilities.statistics.models.column_trees import bin_values
from grandrounds.capabilities.statistics.models.columns import read_columns
from grandrounds.capabilities.statistics.question import Rows, Total
from grandrounds.core.arrays import Array
from smoke import pick

SETTINGS: dict[str, dict[str, Any]] = {
    "default (32 bins, leaves of 20)": {},
    "16 bins": {"bins": 16},
    "leaves of 50": {"least": 50},
    "depth 1 (readable)": {"preset": "readable"},
    "8 levels, stochastic": {"rounding": "stochastic"},
}


def watch_fit(options: dict[str, Any], columns: Any, rows: Rows) -> tuple[list[SeenRound], Array]:
    """Fit trees to rows as one site and return what the server saw in each round, and the bins of the rows."""
    fit = fit_trees(trees_terms(options, columns))
    seen: dict[int, SeenRound] = {}
    known: dict[tuple[int, int], Array] = {}
    question, bins = next(fit), np.empty((0, 0))
    try:
        while True:
            total = {name: np.asarray(v, float) for name, v in ANSWERS[question.kind](question, rows).items()}
            if question.kind == LEVEL:
                trees = len(np.asarray(question.values["output"]))
                if trees not in seen:
                    seen[trees], known = SeenRound(), {}
                read_level(question, total, seen[trees], known)
                if not len(bins):
                    edges = unpack_edges(question.values["edges"], question.values["edge_counts"])
                    bins = bin_values(read_columns(rows.x, columns), *edges)
            question = fit.send(Total(total, ("all",)))
    except StopIteration:
        return list(seen.values()), bins


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohort", default="heart")
    asked = parser.parse_args()
    fold = make_fold(asked.cohort, 0)
    rows = fold.train
    print(f"{asked.cohort}: {len(rows):,} training rows, {len(fold.columns)} columns\n")
    print(
        f"| setting | cells of one row | patients with {FEWEST}+ columns linked | share | columns each | links that are right |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for name, options in list(SETTINGS.items())[: pick(None, 2)]:
        rounds, bins = watch_fit(options, fold.columns, rows)
        judged = [judge_round(seen, bins, rows.y) for seen in rounds]
        exposed, each, right = max(judged, key=lambda one: one[0])
        share = sum(s.single for s in rounds) / max(1, sum(s.filled for s in rounds))
        print(
            f"| {name} | {share:.1%} | {exposed:,} | {exposed / len(rows):.1%} | {each:.1f} | "
            f"{'-' if np.isnan(right) else f'{right:.1%}'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
