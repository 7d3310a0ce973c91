"""The price of explanations in the loop: sketches of ten sites' models on 200 reference rows.

    python bench/explain.py [--passes 7] [--json FILE]

Digits, ten label-skewed sites, MLP 64-64-32-10 (W2 of `workloads.py`), each model trained on its site for ten rounds of
two epochs; five permutations a pixel. In one process, turn by turn, on one thread, in CPU seconds:

- permutation sketches by Grand Rounds, scikit-learn's permutation_importance and Captum's FeaturePermutation,
- the arithmetic floor: the products and element-wise passes that all permuted rows cost, on arrays allocated before, in
  the best block size, with nothing drawn, gathered or added up. Rows whose value a permutation does not change (black
  pixels) are not worked out by Grand Rounds, so it is held against the floor on pixels that all differ as well,
- the gradient sketch against one local epoch of the ten sites.

scikit-learn and Captum draw permutations of their own and score accuracy, so their time is compared and not their numbers:
these are checked in tests/explain. Captum is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grandrounds  # noqa: F401  (pins one BLAS thread before NumPy loads)

# isort: split
import numpy as np

from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.gradients import Gradient
from grandrounds.explain.explainers.permutation import Permutation
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, targets
from grandrounds.site.batches import BatchPlan
from grandrounds.site.numpy_train import train
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob
from smoke import pick
from workloads import WORKLOADS, Array
from workloads import _build as build

ROWS, REPEATS, ROUNDS = pick(200, 40), pick(5, 1), pick(10, 1)
Job = Callable[[], Any]


@dataclass(frozen=True)
class Bar:
    """A ratio of two medians of the same run, and what it has to reach."""

    title: str
    ratio: float
    bar: float
    at_least: bool

    @property
    def held(self) -> bool:
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar


class Setting:
    """Ten sites with models of their own, and the reference rows their sketches are taken on."""

    def __init__(self) -> None:
        rows, load = build("W2"), WORKLOADS["W2"]
        self.model = Dense(load.widths)
        classes = self.model.outputs
        groups = np.zeros(len(rows.y), np.int64)
        self.part = Part(rows.x, rows.y, targets(rows.y, classes), groups, rows.offsets)
        self.members = np.arange(load.sites)
        self.names = tuple(f"site-{k}" for k in self.members)
        self.load = load
        self.theta = self.model.init(0)
        for r in range(1, ROUNDS + 1):
            self.theta = self.trained(r, epochs=load.epochs)
        self.x, self.y = rows.test_x[:ROWS], rows.test_y[:ROWS]
        self.distinct = self.x + np.random.default_rng(0).normal(0, 1e-3, self.x.shape).astype(np.float32)
        self.target = targets(self.y, classes)
        self.features = Features.from_inputs([f"pixel {j}" for j in range(load.widths[0])])

    def trained(self, round: int, *, epochs: int) -> Array:
        """The sites' models after some more epochs, as the trainer of the product does it, batches drawn and all."""
        work = TrainConfig(seed=0, round=round, lr=self.load.lr, epochs=epochs, batch=self.load.batch)
        plan = BatchPlan.draw(self.part, self.members, names=self.names, config=work)
        return np.asarray(train(TrainJob(self.model, self.part, self.members, self.theta, work), plan).theta)

    def sketch(self, explainer: Any, x: Array | None = None) -> Array:
        return measure(explainer, self.model, self.theta, self.x if x is None else x, self.target).values


# --- permutation sketches ---------------------------------------------------------------------------


def permutation_jobs(held: Setting) -> dict[str, Job]:
    """Sketches of all sites by each contestant."""
    how = Permutation(held.features, seed=0, repeats=REPEATS)
    jobs: dict[str, Job] = {
        "ours": lambda: held.sketch(how),
        "ours, all pixels different": lambda: held.sketch(how, held.distinct),
        "ours, scored by accuracy": lambda: held.sketch(replace(how, score="accuracy")),
        "scikit-learn": by_sklearn(held),
    }
    try:
        jobs["Captum"] = by_captum(held)
    except ImportError:
        print("Captum is not installed and is left out: pip install captum")
    return jobs


def by_sklearn(held: Setting) -> Job:
    """permutation_importance of an estimator whose predict is the same NumPy model."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.inspection import permutation_importance

    class Trained(ClassifierMixin, BaseEstimator):
        def __init__(self, theta: Array | None = None) -> None:
            self.theta, self.classes_ = theta, np.arange(held.model.outputs)

        def fit(self, x: Array, y: Array) -> Trained:
            return self

        def predict(self, x: Array) -> Array:
            assert self.theta is not None
            return held.model.logits(self.theta, x).argmax(axis=1)

    def job() -> None:
        for theta in held.theta:
            permutation_importance(Trained(theta), held.x, held.y, n_repeats=REPEATS, random_state=0)

    return job


def by_captum(held: Setting) -> Job:
    """FeaturePermutation of the same models in torch, once a repeat."""
    import torch
    from captum.attr import FeaturePermutation

    from grandrounds.models.torch_model import settle_torch

    settle_torch()
    x, y = torch.from_numpy(held.x), torch.from_numpy(held.y)
    nets = []
    for theta in held.theta:
        layers: list[torch.nn.Module] = []
        for (a, b), (w, bias) in zip(pairwise(held.model.widths), held.model.layers(theta), strict=True):
            linear = torch.nn.Linear(a, b)
            linear.weight.data, linear.bias.data = torch.from_numpy(w.T.copy()), torch.from_numpy(bias.copy())
            layers += [linear, torch.nn.ReLU()]
        nets.append(torch.nn.Sequential(*layers[:-1]))

    def job() -> None:
        for net in nets:

            def accuracy(rows: torch.Tensor, net: torch.nn.Module = net) -> torch.Tensor:
                return (net(rows).argmax(1) == y).float().mean().reshape(1)

            explainer = FeaturePermutation(accuracy)
            with torch.no_grad():
                for _ in range(REPEATS):
                    explainer.attribute(x)

    return job


# --- the arithmetic floor ---------------------------------------------------------------------------


def best_floor(held: Setting) -> Job:
    """The bare arithmetic of all permuted rows, as many permuted pixels at once as is fastest."""
    rows = len(held.theta) * REPEATS * len(held.features) * ROWS
    sizes = medians({pixels: floor(held, rows // 10, pixels) for pixels in (2, 4, 6, 8, 12, 16)}, pick(5, 1))
    return floor(held, rows, min(sizes, key=sizes.__getitem__))


def floor(held: Setting, rows: int, pixels: int) -> Job:
    """Rank-1 product, ReLUs, products, log-sum-exp; ReLU and addition as one comparison, as in `explain/permutation.py`."""
    rng = np.random.default_rng(0)
    (w1, _), (w2, _), (w3, _) = held.model.layers(held.theta[0])

    def made(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    delta, weight = made(pixels, 1, ROWS), w1[:pixels, :, None].copy()
    a, b, z = (made(pixels, width, ROWS) for width in held.model.widths[1:])
    floor_a, floor_b, shift, target = made(64, ROWS), made(32, ROWS), made(10, ROWS), made(10, ROWS)
    top, right, total, before = made(pixels, 1, ROWS), made(pixels, ROWS), made(pixels, ROWS), made(ROWS)
    product = np.empty_like(z)

    def job() -> None:
        for _ in range(round(rows / (pixels * ROWS))):
            np.multiply(weight, delta, out=a)
            np.maximum(a, floor_a, out=a)
            np.matmul(w2.T, a, out=b)
            np.maximum(b, floor_b, out=b)
            np.matmul(w3.T, b, out=z)
            np.add(z, shift, out=z)
            np.maximum.reduce(z, axis=1, keepdims=True, out=top)
            np.subtract(z, top, out=z)
            np.multiply(z, target, out=product)
            np.add.reduce(product, axis=1, out=right)
            np.exp(z, out=z)
            np.add.reduce(z, axis=1, out=total)
            np.log(total, out=total)
            np.subtract(total, right, out=total)
            np.subtract(total, before, out=total)

    return job


# --- the gradient sketch ----------------------------------------------------------------------------


def gradient_jobs(held: Setting) -> dict[str, Job]:
    """The gradient sketch of all sites, and what it is measured by."""
    return {
        "gradient sketch": lambda: held.sketch(Gradient(held.features)),
        "local epoch": lambda: held.trained(ROUNDS + 1, epochs=1),
    }


def rank_correlation(held: Setting, score: str) -> float:
    """Spearman's correlation of gradient and permutation sketch, mean over sites."""
    from scipy.stats import spearmanr

    permuted = np.maximum(held.sketch(Permutation(held.features, seed=0, repeats=REPEATS, score=score)), 0)
    pairs = zip(held.sketch(Gradient(held.features)), permuted, strict=True)
    return statistics.mean(float(spearmanr(a, b).statistic) for a, b in pairs)


# --- the run ----------------------------------------------------------------------------------------


def medians(jobs: dict[Any, Job], passes: int) -> dict[Any, float]:
    """CPU seconds of each job, turn by turn, so that a busy moment of the machine hits all of them."""
    seconds: dict[Any, list[float]] = {name: [] for name in jobs}
    for turn in range(passes + 1):
        for name, job in jobs.items():
            began = time.process_time()
            job()
            if turn:  # the first imports and allocates
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(s) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=pick(7, 1))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    held = Setting()
    found = medians(permutation_jobs(held) | {"floor": best_floor(held)} | gradient_jobs(held), args.passes)
    ours = found["ours"]
    bars = [Bar("scikit-learn / ours", found["scikit-learn"] / ours, 10, True)]
    if "Captum" in found:
        bars.append(Bar("Captum / ours", found["Captum"] / ours, 2.5, True))
    bars += [
        Bar("ours / floor", ours / found["floor"], 1.3, False),
        Bar("ours / floor, all pixels different", found["ours, all pixels different"] / found["floor"], 1.3, False),
        Bar("gradient sketch / local epoch", found["gradient sketch"] / found["local epoch"], 1, False),
    ]
    print("| ten sites | CPU ms |\n|---|---:|")
    for name, seconds in found.items():
        print(f"| {name} | {1e3 * seconds:.2f} |")
    print("\n| ratio | measured | bar | |\n|---|---:|---:|---|")
    for b in bars:
        print(
            f"| {b.title} | {b.ratio:.2f} | {'>=' if b.at_least else '<='} {b.bar} | {'PASS' if b.held else 'FAIL'} |"
        )
    agreement = {score: rank_correlation(held, score) for score in ("log_loss", "self")}
    told = ", ".join(f"{value:.3f} by {score}" for score, value in agreement.items())
    print(f"\nrank correlation of gradient and permutation sketch, mean over sites: {told}")
    if args.json:
        ratios = {b.title: {"measured": b.ratio, "bar": b.bar, "pass": b.held} for b in bars}
        args.json.write_text(
            json.dumps({"cpu_seconds": found, "ratios": ratios, "rank_correlation": agreement}, indent=1)
        )


if __name__ == "__main__":
    main()
