"""FasterRisk on the folds that `bench/card.py --write FOLDER` wrote, in a Python that has it (its NumPy is an older one).

    python bench/card_fasterrisk.py FOLDER [--terms 5 10] [--folds 0 1 2 3 4] [--seconds 900]

Prints one line for each fold and number of terms: AUROC on the test rows, and CPU seconds. FasterRisk runs with its defaults on
the pooled training rows, with the same steps as candidates. A fold that would start after `--seconds` is left out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from smoke import need, pick, skip


def auroc(y: np.ndarray, score: np.ndarray) -> float:
    """Return the area under the ROC curve; ties count half."""
    positive, negative = score[y == 1], score[y == 0]
    above = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    return float(above)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs=pick(None, "?"))
    parser.add_argument("--terms", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=900)
    given = parser.parse_args()
    need("fasterrisk")
    from fasterrisk.fasterrisk import RiskScoreClassifier, RiskScoreOptimizer

    if given.folder is None:
        skip("there are no folds: bench/card.py --write writes them")
    start = time.monotonic()
    for terms in given.terms:
        for fold in given.folds:
            if time.monotonic() - start > given.seconds:
                print(f"terms {terms} fold {fold}: not run, out of time", flush=True)
                continue
            rows = np.load(given.folder / f"fold{fold}.npz")
            cpu = time.process_time()
            found = RiskScoreOptimizer(X=rows["train"].astype(float), y=2.0 * rows["train_y"] - 1, k=terms)
            found.optimize()
            factor, intercept, points = found.get_models(model_index=0)
            card = RiskScoreClassifier(factor, intercept, points)
            score = auroc(rows["test_y"], card.predict_prob(rows["test"].astype(float)))
            print(f"terms {terms} fold {fold}: AUROC {score:.4f}, CPU {time.process_time() - cpu:.0f} s", flush=True)


if __name__ == "__main__":
    main()
