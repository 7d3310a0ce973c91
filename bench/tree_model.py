"""Cost of a fitted model 'trees' in use: scores against LightGBM's, Shapley values against SHAP's, by the same trees.

    python bench/tree_model.py [--passes 5] [--json FILE]

160 trees of depth 4 (20 rounds of 8) are fitted to 5,000 rows of 20 numbers and exported as LightGBM text, so that both programs
have the same trees. Scores: 100,000 rows, one thread, from numbers to log-odds. Shapley values: 1,000 rows over a background of
100, interventional; SHAP reads the exported model. CPU seconds, median over passes after one to warm up.
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
import lightgbm
import numpy as np
import shap

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.column_fits import FITS
from grandrounds.capabilities.statistics.export_trees import to_lightgbm
from grandrounds.capabilities.statistics.models.column_trees import TreesModel
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.question import Rows, fit_in_memory
from grandrounds.data.encoding import Encoding, Numeric
from grandrounds.runs.model import TrainedModel
from smoke import SMOKE, pick

COLUMNS, TRAINED, SCORED, EXPLAINED, BACKGROUND = pick((20, 5_000, 100_000, 1_000, 100), (5, 500, 1_000, 20, 10))
SCORES, VALUES = 2.0, 2.0  # most that ours may take, as a multiple of LightGBM's; least that SHAP takes, of ours


def fitted(rng: np.random.Generator) -> TrainedModel:
    """Fit trees to numbers with two steps and an interaction."""
    x = rng.normal(size=(TRAINED, COLUMNS))
    risk = 1 / (1 + np.exp(-(x[:, 0] + (x[:, 1] > 0.5) * x[:, 2] - 0.5 * np.abs(x[:, 3]))))
    y = (rng.random(TRAINED) < risk).astype(float)
    columns = tuple(Column(f"x{j}", j) for j in range(COLUMNS))
    model = TreesModel(COLUMNS, columns, options={"preset": "default"})
    result = fit_in_memory(FITS["trees"](model, None, 5), {"all": Rows(x, y)}, ANSWERS)
    numbers = tuple(Numeric(c.name, 0.0, -1e300, 1e300, 0.0, 1.0, indicator=False) for c in columns)
    encoding = Encoding(numbers, (), ("no", "yes"), (1, 1), by_column=True)
    return TrainedModel(model, {"name": "trees"}, model.pack(result.arrays), encoding, None, 0.5)


def seconds(job: Callable[[], Any], passes: int) -> float:
    """CPU seconds, the median of some passes after the first."""
    found = []
    for _ in range(passes + 1):
        began = time.process_time()
        job()
        found.append(time.process_time() - began)
    return statistics.median(found[1:])


def measure(passes: int) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(0)
    trained = fitted(rng)
    model: Any = trained.net
    booster = lightgbm.Booster(model_str=to_lightgbm(trained))
    many = rng.normal(size=(SCORED, COLUMNS))
    few, background = many[:EXPLAINED], many[-BACKGROUND:]
    explainer = shap.TreeExplainer(booster, background, feature_perturbation="interventional")
    off = np.abs(model.logits(trained.theta, few)[:, 0] - booster.predict(few, raw_score=True)).max()
    theirs = np.asarray(explainer.shap_values(few, check_additivity=False)).reshape(EXPLAINED, COLUMNS)
    apart = np.abs(model.shapley(trained.theta, few, background)[:, 0] - theirs).max()
    return {
        "scores": {
            "ours": seconds(lambda: model.logits(trained.theta, many), passes),
            "other": seconds(lambda: booster.predict(many, raw_score=True, num_threads=1), passes),
            "difference": float(off),
        },
        "shapley": {
            "ours": seconds(lambda: model.shapley(trained.theta, few, background), passes),
            "other": seconds(lambda: explainer.shap_values(few, check_additivity=False), passes),
            "difference": float(apart),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=pick(5, 1))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.passes)
    for what, peer in (("scores", "LightGBM"), ("shapley", "SHAP")):
        f = found[what]
        print(
            f"{what}: ours {1e3 * f['ours']:.0f} ms, {peer} {1e3 * f['other']:.0f} ms, ratio {f['other'] / f['ours']:.2f}; "
            f"largest difference {f['difference']:.1e}"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    slow = found["scores"]["ours"] > SCORES * found["scores"]["other"]
    slow |= VALUES * found["shapley"]["ours"] > found["shapley"]["other"]
    return int(slow and not SMOKE)


if __name__ == "__main__":
    sys.exit(main())
