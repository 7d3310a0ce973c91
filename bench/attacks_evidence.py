"""Attacks on runs by kind of model, with and without epsilon: membership, attribute inference, reconstruction.

    python bench/attacks_evidence.py                        # heart, in the package; a minute or two
    python bench/attacks_evidence.py --data eicu-demo       # needs GRANDROUNDS_DATA
    python bench/attacks_evidence.py --data breast-cancer
    python bench/attacks_evidence.py --false-alarms 300     # of attribute inference, with members drawn by lot

Each line is one run of the recipe of the data set with another model, attacked as `rounds attack` does, without shadow models.
The columns: AUC of the loss threshold; the worst column of attribute inference with its advantage in percentage points and the
95% interval over all columns; model inversion as AUC; rows rebuilt from the update of a site with one row and of the smallest
site; patients, or cells, read from sums of exact methods; and patients alone in a cell of the final score histograms.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from grandrounds.analysis.membership.shadows import select_rows
from grandrounds.capabilities.attacks.attribute import list_columns
from grandrounds.capabilities.attacks.evidence import Evidence, collect_evidence
from grandrounds.capabilities.attacks.queries import ModelQuery
from grandrounds.core.errors import GrandRoundsError
from grandrounds.data.dataset import Dataset
from grandrounds.privacy.attacks.attribute import difference_interval, guess_values
from grandrounds.recipes import load_recipe
from grandrounds.runs.run import run as run_experiment
from grandrounds.runs.run_rows import RunRows
from smoke import SMOKE, pick

DP_SGD = ("privacy.mechanism=dp-sgd", "privacy.epsilon=3", "evaluation.threshold=half")
GLM = ("method.name=glm", "method.exact.ridge=0.1", "method.exact.intercept=common")
KINDS: dict[str, tuple[str, ...]] = {
    "logistic": (),
    "logistic, secure": ("privacy.secure=true",),
    "logistic, epsilon 3": DP_SGD,
    "mlp": ("model.name=mlp",),
    "mlp, epsilon 3": ("model.name=mlp", *DP_SGD),
    "forest": ("model.name=forest",),
    "lightgbm, pooled": ("model.name=lightgbm", "method.name=pooled"),
    "glm": GLM,
    "trees": ("model.name=trees",),
    "trees, secure": ("model.name=trees", "privacy.secure=true"),
    "ebm, pooled": ("model.name=ebm", "method.name=pooled"),
    "gam": ("model.name=gam",),
    "gam, epsilon 3": ("model.name=gam", "privacy.epsilon=3", "evaluation.threshold=half"),
    "card": ("model.name=card",),
}
"""Settings that are laid over the recipe of the data set."""

ALWAYS = ("explain.sketch=none", "personal.guard=false", "personal.differences=false")


def describe(evidence: Evidence) -> list[str]:
    """Return the cells of one line."""
    membership, attribute, rebuilt = evidence.membership, evidence.attribute, evidence.reconstruction
    assert membership is not None and attribute is not None and rebuilt is not None
    best, worst = membership.best, attribute.worst
    by_kind = {s.kind: s for s in rebuilt.statistics}
    inversion = (rebuilt.prototypes or {}).get("attack")
    updates = [f"{u.rebuilt:.0%}" for u in rebuilt.updates if u.rows == 1 or u.own]
    sums = next((by_kind[k] for k in ("histograms", "sums") if k in by_kind and by_kind[k].attacked), None)
    private = (s for s in rebuilt.statistics if s.statistic.startswith("metrics on test rows"))
    scores = by_kind.get("scores") or next(private, None)
    return [
        f"{best.auc:.3f} ({best.low:.3f} to {best.high:.3f})",
        f"{worst.column}: {100 * worst.advantage:+.1f} ({100 * worst.low_all:+.1f} to {100 * worst.high_all:+.1f})",
        "-" if inversion is None else f"{inversion['auc']:.3f} ({inversion['low']:.3f} to {inversion['high']:.3f})",
        ", ".join(updates) or "-",
        "-" if sums is None else f"{sums.exposed:,} of {sums.total:,} ({sums.attack})",
        "-" if scores is None else f"{scores.exposed:,} of {scores.total:,}",
        f"{sum(s.attacked for s in rebuilt.statistics)} of {len(rebuilt.statistics)}",
    ]


def count_false_alarms(data: str, times: int) -> None:
    """Print how often attribute inference finds a leak where members are drawn by lot, so that there is none."""
    with tempfile.TemporaryDirectory() as place:
        made = run_experiment(load_recipe(data).with_settings(ALWAYS), out=Path(place) / "run")
        rows = RunRows.read(made)
        chosen = select_rows(made, rows)
        query = ModelQuery.build(made, rows, chosen.rows, chosen.site, chosen.member)
    assert isinstance(query.data, Dataset)
    guesses = []
    for column in list_columns(query, query.data):
        fits = query.log_likelihoods([column.fill(query.data, v) for v in range(len(column.stands))])
        seen = column.number >= 0
        prior = np.bincount(column.number[seen], minlength=len(column.stands)) / seen.sum()
        guesses.append((guess_values(prior, fits) == column.number, seen))
    rng, corrected, single = np.random.default_rng(0), 0, 0
    for _ in range(times):
        member = rng.permutation(chosen.member)
        parts = [(right[seen & member], right[seen & ~member]) for right, seen in guesses]
        corrected += any(difference_interval(*p, confidence=1 - 0.05 / len(parts))[1] > 0 for p in parts)
        single += sum(difference_interval(*p)[1] > 0 for p in parts)
    print(f"{data}: {len(guesses)} columns, {times} draws of members by lot")
    print(f"a column's own 95% interval lies above zero: {single / times / len(guesses):.1%} of columns (2.5% expected)")
    print(f"some column is listed as leaking: {corrected / times:.1%} of draws (at most 2.5% expected)")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="heart")
    parser.add_argument("--kinds", nargs="*", default=pick(list(KINDS), ["logistic", "trees"]), choices=list(KINDS))
    parser.add_argument("--false-alarms", type=int, default=0)
    asked = parser.parse_args()
    if asked.false_alarms:
        count_false_alarms(asked.data, asked.false_alarms)
        return
    head = ["model", "membership AUC", "attribute advantage, worst column", "model inversion AUC"]
    head += ["rows rebuilt: 1 row, smallest site", "read from sums", "alone in a score cell", "statistics attacked", "seconds"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(asked.kinds):
            try:
                experiment = load_recipe(asked.data).with_settings([*ALWAYS, *KINDS[name]])
                made = run_experiment(experiment, out=Path(place) / str(number))
                begun = time.perf_counter()
                cells = describe(collect_evidence(made))
            except GrandRoundsError as e:
                if SMOKE:
                    raise
                print(f"| {name} | not run: {e} |", flush=True)
                continue
            print(f"| {' | '.join([name, *cells, f'{time.perf_counter() - begun:.1f}'])} |", flush=True)


if __name__ == "__main__":
    main()
