"""Compare metrics from summed statistics with metrics of the pooled test rows, for one run.

    rounds run breast-cancer --out run
    python examples/pooled_check.py run

A consortium cannot pool its test rows, but a simulation can. This script collects the test rows of all sites, scores
them with the run's model and computes the metrics with scikit-learn.
"""

from __future__ import annotations

import sys

import numpy as np
import sklearn.metrics as sk

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.runs.federation import assemble


def pooled(folder: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the run's metrics and those of the pooled test rows."""
    run = gr.load_run(folder)
    held = assemble(Settings(run.plan))
    rows = np.concatenate([r.test for r in held.stack.rows])
    p = run.model.predict(held.data.table.take(rows)).probabilities
    y = run.model.encoding.labels(held.data.take(rows))
    two = p.shape[1] == 2
    top = (p[:, 1] >= 0.5).astype(int) if two else p.argmax(axis=1)
    rest = np.eye(p.shape[1])[y]
    own = {
        "accuracy": sk.accuracy_score(y, top),
        "balanced_accuracy": sk.balanced_accuracy_score(y, top),
        "macro_f1": sk.f1_score(y, top, average="macro"),
        "auroc": sk.roc_auc_score(y, p[:, 1]) if two else sk.roc_auc_score(y, p, multi_class="ovr"),
        "auprc": sk.average_precision_score(y, p[:, 1]) if two else sk.average_precision_score(rest, p),
        "brier": sk.brier_score_loss(y, p[:, 1]) if two else ((p - rest) ** 2).sum(axis=1).mean(),
        "log_loss": sk.log_loss(y, p),
    }
    if two:
        called, t = p[:, 1] >= run.model.threshold, y == 1
        own["sensitivity"] = called[t].mean()
        own["specificity"] = 1 - called[~t].mean()
    return run.summary["final"], own


def main() -> None:
    final, own = pooled(sys.argv[1])
    print(f"{final['count']:.0f} test rows")
    print(f"{'metric':<18} {'summed':>10} {'pooled':>10} {'difference':>11}")
    for name, value in own.items():
        print(f"{name:<18} {final[name]:>10.6f} {value:>10.6f} {abs(final[name] - value):>11.1e}")


if __name__ == "__main__":
    main()
