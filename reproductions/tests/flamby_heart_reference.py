"""FLamby's protocol for Fed-Heart-Disease in NumPy, without the product's data set or training: several seeds side by side.

Written from FLamby's files: rows, split and normalisation of `dataset.py` by pandas and scikit-learn, `strategies/*.py`, and the
order of batches that torch's data loader draws after `torch.manual_seed(seed)`. It gives the published accuracies to the digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from grandrounds.data.store import INCLUDED

NAMES = ("cleveland", "hungarian", "switzerland", "va")
SEEDS = (42, 43, 44, 45, 46)
ROUNDS, UPDATES, BATCH = 15, 100, 4
LEARNING = {
    "FedAvg": 0.001, "FedProx": 0.001, "Scaffold": 0.001, "Cyclic": 0.01, "FedAdam": 0.01, "FedYogi": 0.003162,
    "FedAdagrad": 0.003162,
}  # fmt: skip
AT_SERVER = {"FedAdam": 0.01, "FedYogi": 0.01, "FedAdagrad": 0.316228}

Deal = Callable[[int, int], np.ndarray]
"""deal(round, centre): row numbers (R, updates, 4) of each update, -1 where a batch is short."""


@dataclass(frozen=True)
class Centre:
    """Rows of one centre: inputs (n, 13) in standard deviations of its training rows, and labels (n,)."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@cache
def centres(part: str) -> tuple[Centre, ...]:
    """Rows of "train" or "test" of each centre."""
    import pandas as pd
    from sklearn.model_selection import train_test_split

    frames, tested = [], []
    for name in NAMES:
        frame = pd.read_csv(Path(INCLUDED) / f"heart/processed.{name}.data", header=None).replace("?", np.nan)
        frame = frame.drop([10, 11, 12], axis=1).dropna().apply(pd.to_numeric)
        ill = (frame[13] != 0).to_numpy()
        rows = np.arange(len(frame))
        by = ill if min(ill.sum(), (~ill).sum()) > 2 else None
        _, test = train_test_split(rows, train_size=0.66, test_size=1 - 0.66, random_state=43, shuffle=True, stratify=by)
        frames.append(frame)
        tested.append(np.isin(rows, test))
    table = pd.get_dummies(pd.concat(frames, ignore_index=True), columns=[2, 6], drop_first=True)
    y = (table.pop(13) != 0).to_numpy(float)
    x, owner, test = table.to_numpy(float), np.repeat(np.arange(4), [len(f) for f in frames]), np.concatenate(tested)
    assert x.shape == (740, 13)
    out = []
    for k in range(4):
        train = x[(owner == k) & ~test]
        mine = (owner == k) & (test if part == "test" else ~test)
        out.append(Centre((x[mine] - train.mean(axis=0)) / (train.std(axis=0, ddof=1) + 1e-9), y[mine]))
    return tuple(out)


def initial(seed: int) -> np.ndarray:
    """FLamby's initial weights (14,), the bias last: torch's linear layer, drawn first of all after the seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(13, 1)
    return np.append(layer.weight.detach().numpy().ravel(), layer.bias.detach().numpy()).astype(float)


def turns(seed: int, strategy: str) -> list[list[int]]:
    """Centres that train in each round: all of them, or for Cyclic one, in an order that is drawn anew for each cycle."""
    if strategy != "Cyclic":
        return [[0, 1, 2, 3]] * ROUNDS
    rng = np.random.default_rng(seed)
    return [[int(k)] for _ in range(4) for k in rng.permutation(4)][:ROUNDS]


def loader_order(seed: int, sizes: list[int], rounds: list[list[int]]) -> dict[tuple[int, int], np.ndarray]:
    """Row numbers (updates, 4) of (round, centre), as torch's shuffling data loaders draw them.

    A loader draws a seed for its workers when an epoch is opened, and one for the permutation when its first batch is asked for.
    FLamby opens the first epoch of each centre before it sets the seed.
    """
    import torch

    def draw() -> int:
        return int(torch.empty((), dtype=torch.int64).random_().item())

    waiting: list[list[np.ndarray] | None] = [None] * len(sizes)
    out = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for r, members in enumerate(rounds):
            for k in members:
                batches = []
                for _ in range(UPDATES):
                    if not waiting[k]:
                        if waiting[k] is not None:
                            draw()
                        rows = torch.randperm(sizes[k], generator=torch.Generator().manual_seed(draw())).numpy()
                        padded = np.full(-(-sizes[k] // BATCH) * BATCH, -1)
                        padded[: sizes[k]] = rows
                        waiting[k] = list(padded.reshape(-1, BATCH))
                    batches.append(waiting[k].pop(0))
                out[r, k] = np.stack(batches)
    return out


def gradient(w: np.ndarray, site: Centre, rows: np.ndarray) -> np.ndarray:
    """Gradient (R, 14) of the mean cross-entropy of each batch (R, 4) at w (R, 14)."""
    x, real = site.x[rows], rows >= 0
    score = np.einsum("rbp,rp->rb", x, w[:, :-1]) + w[:, -1:]
    slope = (1 / (1 + np.exp(-score)) - site.y[rows]) * real / real.sum(axis=1, keepdims=True)
    return np.concatenate([np.einsum("rbp,rb->rp", x, slope), slope.sum(axis=1, keepdims=True)], axis=1)


def train(
    w: np.ndarray, site: Centre, batches: np.ndarray, *, lr: float, mu: float = 0.0, less: float | np.ndarray = 0.0
) -> np.ndarray:
    """Models (R, 14) after gradient steps on batches (R, updates, 4), with a proximal term and less a correction."""
    start, w = w, w.copy()
    for step in range(batches.shape[1]):
        w -= lr * (gradient(w, site, batches[:, step]) + mu * (w - start) - less)
    return w


def run(strategy: str, start: np.ndarray, deal: Deal, sites: tuple[Centre, ...], *, rounds: int = ROUNDS) -> np.ndarray:
    """Models (R, 14) after the rounds, of a strategy in which all centres train in every round."""
    w, lr = start.astype(float), LEARNING[strategy]
    share = np.array([len(s) for s in sites]) / sum(len(s) for s in sites)
    mean, square = np.zeros_like(w), np.zeros_like(w)
    correction = np.zeros((len(sites), *w.shape))
    for r in range(rounds):
        mu = 0.01 if strategy == "FedProx" else 0.0
        local = np.stack([train(w, site, deal(r, k), lr=lr, mu=mu, less=correction[k]) for k, site in enumerate(sites)])
        change = np.tensordot(share, local, 1) - w
        if strategy == "Scaffold":
            correction = correction + (w + change - local) / (lr * UPDATES)
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


def run_published(strategy: str, seeds: tuple[int, ...] = SEEDS) -> np.ndarray:
    """Models (R, 14) of a strategy with FLamby's initial weights and order of batches."""
    sites, start = centres("train"), np.stack([initial(s) for s in seeds])
    sizes = [len(s) for s in sites]
    order = [loader_order(s, sizes, turns(s, strategy)) for s in seeds]
    if strategy != "Cyclic":
        return run(strategy, start, lambda r, k: np.stack([one[r, k] for one in order]), sites)
    out = []
    for i, one in enumerate(order):
        mine = np.concatenate([rows for (_, k), rows in one.items() if k == 0])
        out.append(train(start[i : i + 1], sites[0], mine[None], lr=LEARNING[strategy])[0])
    return np.stack(out)


def accuracies(w: np.ndarray) -> np.ndarray:
    """Accuracy (R, 4) of models (R, 14) at threshold 0.5 on the test rows of each centre."""
    return np.stack([((c.x @ w[:, :-1].T + w[:, -1] > 0) == (c.y[:, None] == 1)).mean(axis=0) for c in centres("test")], axis=1)
