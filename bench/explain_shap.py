"""What Shapley values cost: ours against SHAP's, in one process on the same rows; and how near path gradients come.

    python bench/explain_shap.py [--passes 5] [--json FILE]

100 rows of breast cancer are explained over a background of 50. MLP 64-32: path gradients (10 steps) against
DeepExplainer. Logistic regression: the closed form against LinearExplainer. Forest of 50 trees of depth 10: the same
TreeExplainer behind both, from our arrays and from scikit-learn's object. CPU seconds, median over passes after one to
warm up; imports are not in it. Ranks are compared with exact Shapley values, all 2^d coalitions, on models of 8 and 10
columns: over all values of 30 rows, and row by row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grandrounds  # noqa: F401  (pins one BLAS thread before NumPy loads)

# isort: split
import numpy as np
import shap
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from grandrounds.core.rng import generator
from grandrounds.explain.explainers.gradients import path_gradients
from grandrounds.explain.explainers.linear import linear_shap
from grandrounds.explain.explainers.shapley import exact_shapley, forest_shap, scores
from grandrounds.models.dense import Dense, targets
from grandrounds.models.forest import from_sklearn
from smoke import SMOKE, pick

torch.set_num_threads(1)

ROWS, BACKGROUND = pick(100, 10), pick(50, 10)
FASTER, NEARER = 10.0, 0.98
COLUMNS = {8: [0, 1, 4, 5, 6, 20, 24, 27], **pick({10: list(range(10))}, {})}
HIDDEN = pick(((16,), (8, 8), (64, 32)), ((8, 8),))
SEEDS = pick(3, 1)


def standardised() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), y


def trained(model: Dense, x: np.ndarray, y: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Parameters after 300 steps of gradient descent on all rows."""
    theta, target = model.init(seed)[None], targets(y, model.outputs)[None]
    weight, slope = np.full((1, len(x)), 1 / len(x), np.float32), np.empty((1, model.layout.size), np.float32)
    for _ in range(300):
        model.gradient(theta, x[None], target, weight, slope)
        theta -= 0.5 * slope
    return theta[0]


def chain(model: Dense, theta: np.ndarray) -> torch.nn.Sequential:
    """The model as torch's own layers, as DeepExplainer wants it."""
    layers: list[torch.nn.Module] = []
    for w, b in model.layers(theta):
        layer = torch.nn.Linear(*w.shape)
        layer.weight.data, layer.bias.data = torch.tensor(w.T.copy()), torch.tensor(b.copy())
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def seconds(job: Callable[[], Any], passes: int) -> float:
    """CPU seconds, the median of some passes after the first."""
    found = []
    for _ in range(passes + 1):
        began = time.process_time()
        job()
        found.append(time.process_time() - began)
    return statistics.median(found[1:])


def speed(passes: int) -> dict[str, dict[str, float]]:
    """Seconds of ours and of SHAP's, and how far the two are apart where they compute the same."""
    x, y = standardised()
    rows, background = x[200 : 200 + ROWS], x[:BACKGROUND]
    mlp = Dense((x.shape[1], 64, 32, 1))
    theta = trained(mlp, x, y)
    deep = shap.DeepExplainer(chain(mlp, theta), torch.tensor(background))
    fitted = LogisticRegression(max_iter=1000).fit(x, y)
    linear, weights = Dense((x.shape[1], 1)), np.concatenate([fitted.coef_[0], fitted.intercept_])
    grown = RandomForestClassifier(50, max_depth=10, random_state=0).fit(x, y)
    forest = from_sklearn(grown, classes=2)
    closed = linear_shap(linear, weights, rows, background)[:, 0]
    of_linear = shap.LinearExplainer(fitted, background).shap_values(rows)
    return {
        "MLP 64-32: path gradients, DeepExplainer": {
            "ours": seconds(lambda: path_gradients(mlp, theta, rows, background), passes),
            "shap": seconds(lambda: deep.shap_values(torch.tensor(rows)), passes),
        },
        "logistic: closed form, LinearExplainer": {
            "ours": seconds(lambda: linear_shap(linear, weights, rows, background), passes),
            "shap": seconds(lambda: shap.LinearExplainer(fitted, background).shap_values(rows), passes),
            "apart": float(np.abs(closed - of_linear).max()),
        },
        "forest 50 x 10: from arrays, from scikit-learn": {
            "ours": seconds(lambda: forest_shap(forest, rows, background), passes),
            "shap": seconds(
                lambda: shap.TreeExplainer(grown, background).shap_values(rows, check_additivity=False), passes
            ),
        },
    }


def nearness() -> list[dict[str, Any]]:
    """Rank correlation of path gradients with exact Shapley values, and the share of them that differs."""
    x, y = standardised()
    found = []
    for d, columns in COLUMNS.items():
        for hidden in HIDDEN:
            for seed in range(SEEDS):
                own = x[:, columns].astype(float)
                model = Dense((d, *hidden, 1))
                theta = trained(model, x[:, columns], y, seed=seed).astype(float)
                pick = generator(seed, purpose="bench").permutation(len(x))
                rows, background = own[pick[:30]], own[pick[30:80]]
                exact = exact_shapley(scores(model, theta), rows, background)[:, 0]
                along = path_gradients(model, theta, rows, background)
                each = [spearmanr(a, b).statistic for a, b in zip(along, exact, strict=True)]
                found.append(
                    {
                        "model": f"{d}-{'-'.join(map(str, hidden))}-1",
                        "ranks": float(spearmanr(along.ravel(), exact.ravel()).statistic),
                        "ranks_by_row": float(np.mean(each)),
                        "apart": float(np.linalg.norm(along - exact) / np.linalg.norm(exact)),
                    }
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=pick(5, 1))
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    args = parser.parse_args()
    times, near = speed(args.passes), nearness()
    print(f"| {ROWS} rows, background of {BACKGROUND} | ours ms | SHAP ms | SHAP / ours |")
    print("|---|---:|---:|---:|")
    for what, t in times.items():
        print(f"| {what} | {1e3 * t['ours']:.2f} | {1e3 * t['shap']:.2f} | {t['shap'] / t['ours']:.1f} |")
    print(f"\n| MLP | ranks against exact, worst of {SEEDS} seeds | row by row | relative difference |")
    print("|---|---:|---:|---:|")
    for name in dict.fromkeys(n["model"] for n in near):
        mine = [n for n in near if n["model"] == name]
        worst = [min(n[key] for n in mine) for key in ("ranks", "ranks_by_row")]
        print(f"| {name} | {worst[0]:.3f} | {worst[1]:.3f} | {max(n['apart'] for n in mine):.3f} |")
    mlp, linear, _ = times.values()
    faster, ranks = mlp["shap"] / mlp["ours"], min(n["ranks"] for n in near)
    bars = {
        f"path gradients are {faster:.1f} times as fast as DeepExplainer (at least {FASTER:g})": SMOKE or faster >= FASTER,
        f"the closed form is LinearExplainer's to {linear['apart']:.1e} (at most 1e-6)": linear["apart"] <= 1e-6,
        f"path gradients rank as exact Shapley values do, {ranks:.3f} (at least {NEARER:g})": ranks >= NEARER,
    }
    print()
    for bar, held in bars.items():
        print(f"{'PASS' if held else 'FAIL'}  {bar}")
    if args.json:
        args.json.write_text(json.dumps({"seconds": times, "nearness": near, "bars": bars}, indent=1))
    if not all(bars.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
