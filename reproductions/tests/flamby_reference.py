"""FLamby's protocol for Fed-TCGA-BRCA in NumPy, without the product's training: many shuffles of the same seed side by side.

Written from FLamby's files: the loss of `loss.py` (Cox partial likelihood within a batch, mean over all rows of the batch),
the strategies of `strategies/*.py`, the data loader that goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.concordance import count_pairs
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.sets.tcga import FEATURES, REGIONS

Deal = Callable[[int, int], np.ndarray]
"""deal(round, centre): row numbers (R, steps, width) of each update, -1 where a batch is short."""

LEARNING = {"FedAvg": 0.1, "FedProx": 0.1, "Scaffold": 0.01, "FedAdam": 0.01, "FedYogi": 0.01, "FedAdagrad": 0.01}
AT_SERVER = {"FedAdam": 0.1, "FedYogi": 0.1, "FedAdagrad": 1.0}


@dataclass(frozen=True)
class Centre:
    """Rows of one centre."""

    x: np.ndarray
    event: np.ndarray
    time: np.ndarray

    def __len__(self) -> int:
        return len(self.event)


def centres(part: str) -> list[Centre]:
    """Rows of "train" or "test", by centre, in FLamby's order of centres."""
    table = find_entry("tcga-brca").load()
    x = np.stack([table.column(name) for name in FEATURES], axis=1)
    mine = [(table.column("region") == r) & (table.column("part") == part) for r in REGIONS]
    return [Centre(x[rows], table.column("event")[rows], table.column("days")[rows]) for rows in mine]


def initial(seed: int) -> np.ndarray:
    """FLamby's initial weights (40,), the bias last."""
    from grandrounds_studies.flamby.net import Baseline

    layer = Baseline((39,), 1, seed=seed).fc
    return np.append(layer.weight.detach().numpy().ravel(), layer.bias.detach().numpy()).astype(float)


def loss_gradient(w: np.ndarray, x: np.ndarray, event: np.ndarray, time: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Gradient (R, 40) of the batch loss at w (R, 40); x (R, b, 39); padded rows are not real."""
    last = np.where(real, -time, np.inf)
    order = np.argsort(last, axis=1, kind="stable")
    event, real = (np.take_along_axis(a, order, 1) for a in (event * real, real))
    x = np.take_along_axis(x, order[..., None], 1)
    score = np.einsum("rbp,rp->rb", x, w[:, :-1])
    score = np.where(real, score, -np.inf)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    at_risk = np.maximum(weight.cumsum(axis=1), 1e-300)
    later = (event / at_risk)[:, ::-1].cumsum(axis=1)[:, ::-1]
    slope = (weight * later - event) / real.sum(axis=1, keepdims=True)
    return np.concatenate([np.einsum("rbp,rb->rp", x, slope), slope.sum(axis=1, keepdims=True)], axis=1)


def shuffled(sizes: list[int], count: int, *, goes_on: bool, updates: int = 100, rounds: int = 5, seed: int = 0) -> Deal:
    """Deal batches of 8 as torch's loader does, R times: shuffled anew each epoch; a new round goes on, or starts an epoch."""
    rng = np.random.default_rng(seed)

    def epochs(n: int, steps: int) -> np.ndarray:
        padded = -(-n // 8) * 8
        made = []
        for _ in range(-(-steps * 8 // padded)):
            one = np.full((count, padded), -1)
            one[:, :n] = rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)
            made.append(one)
        return np.concatenate(made, axis=1)[:, : steps * 8].reshape(count, steps, 8)

    if goes_on:
        all_rounds = [epochs(n, rounds * updates) for n in sizes]
        return lambda r, k: all_rounds[k][:, r * updates : (r + 1) * updates]
    return lambda r, k: epochs(sizes[k], updates)


def run(strategy: str, start: np.ndarray, deal: Deal, sites: list[Centre], *, rounds: int = 5) -> np.ndarray:
    """Models (R, 40) after the rounds; `start` is (R, 40)."""
    w, lr = start.astype(float), LEARNING[strategy]
    share = np.array([len(s) for s in sites]) / sum(len(s) for s in sites)
    mean, square = np.zeros_like(w), np.zeros_like(w)
    correction = np.zeros((len(sites), *w.shape))
    for r in range(rounds):
        local = []
        for k, site in enumerate(sites):
            y, batches = w.copy(), deal(r, k)
            for step in range(batches.shape[1]):
                rows = batches[:, step]
                grad = loss_gradient(y, site.x[rows], site.event[rows], site.time[rows], rows >= 0)
                if strategy == "FedProx":
                    grad = grad + 0.1 * (y - w)
                y = y - lr * (grad - correction[k])
            local.append(y)
        change = np.tensordot(share, np.stack(local), 1) - w
        if strategy == "Scaffold":
            correction = correction + (w + change - np.stack(local)) / (lr * batches.shape[1])
        if strategy in AT_SERVER:
            mean = 0.9 * mean + 0.1 * change
            if strategy == "FedAdam":
                square = 0.999 * square + 0.001 * change**2
            elif strategy == "FedYogi":
                square = square - 0.001 * change**2 * np.sign(square - change**2)
            else:
                square = square + change**2
            change = AT_SERVER[strategy] * mean / (np.sqrt(square) + 1e-8)
        w = w + change
    return w


def figures(w: np.ndarray, tests: list[Centre]) -> np.ndarray:
    """C-index (R, 8) of models (R, 40): centres 0 to 5, their mean, and all test rows together."""
    out = []
    for one in w:
        each = [count_pairs(t.time, t.event, t.x @ one[:-1]).index for t in tests]
        together = (np.concatenate(a) for a in zip(*((t.time, t.event, t.x @ one[:-1]) for t in tests), strict=True))
        out.append([*each, np.mean(each), count_pairs(*together).index])
    return np.array(out, float)


def main(shuffles: int) -> None:
    """Print the C-index of each strategy from FLamby's initial weights and from random ones, by either kind of loader."""
    from grandrounds_studies.flamby.published import SEEDS, published

    train, test = centres("train"), centres("test")
    sizes = [len(c) for c in train]
    flambys = np.repeat(np.stack([initial(s) for s in SEEDS]), shuffles, axis=0)
    drawn = np.random.default_rng(5).uniform(-1, 1, flambys.shape) / np.sqrt(39)
    ways = {
        "FLamby's initial weights, the loader goes on": (flambys, True),
        "FLamby's initial weights, each round begins a pass": (flambys, False),
        "random initial weights, the loader goes on": (drawn, True),
    }
    for strategy in LEARNING:
        for words, (start, goes_on) in ways.items():
            found = figures(run(strategy, start, shuffled(sizes, len(start), goes_on=goes_on), train), test)
            mean = found.mean(axis=0)
            theirs = [published(strategy, m).mean for m in ("client_mean", "pooled")]
            print(
                f"{strategy}, {words}, {len(start)} runs: mean of centres {mean[6]:.3f} (published {theirs[0]:.3f}), "
                f"all test rows {mean[7]:.3f} (published {theirs[1]:.3f})"
            )


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
