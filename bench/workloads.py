"""Four small federated workloads, and all that the ports of `anchors.py` share: rows, shuffles, a model, a stop-watch.

    W1  breast cancer, 10 label-skewed sites, logistic regression, 10 rounds of 5 epochs
    W2  digits, 10 label-skewed sites, MLP 64-64-32-10, 50 rounds of 2 epochs
    W3  76,000 synthetic rows x 90 columns at 152 sites, logistic regression, 20 rounds of 1 epoch
    W4  5,000 random pictures 3x32x32 at 10 sites, CNN of 62,006 parameters, 3 rounds of 1 epoch

Every site takes part in every round, SGD, models averaged by rows. This file needs NumPy alone, so that it loads in
every environment; scikit-learn, torch and Grand Rounds are imported where the data are written.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from smoke import SMOKE, pick

Array = np.ndarray[Any, np.dtype[Any]]

HELD_OUT = "held-out"
"""The site that holds the test rows and nothing else, in the files that Grand Rounds reads."""


@dataclass(frozen=True)
class Workload:
    sites: int
    rounds: int
    epochs: int
    batch: int
    lr: float
    widths: tuple[int, ...]  # of a dense model; () is the CNN


WORKLOADS = {
    "W1": Workload(sites=10, rounds=10, epochs=5, batch=32, lr=0.01, widths=(30, 2)),
    "W2": Workload(sites=10, rounds=50, epochs=2, batch=32, lr=0.05, widths=(64, 64, 32, 10)),
    "W3": Workload(sites=152, rounds=20, epochs=1, batch=64, lr=0.05, widths=(90, 2)),
    "W4": Workload(sites=10, rounds=3, epochs=1, batch=32, lr=0.01, widths=()),
}
PICTURES = pick(5000, 240)
"""Training pictures of W4."""

if SMOKE:
    WORKLOADS = {name: replace(w, sites=3, rounds=2, epochs=1) for name, w in WORKLOADS.items()}


@dataclass(frozen=True)
class Rows:
    """Training rows in the order of their sites, and the test rows, which belong to none."""

    x: Array  # float32
    y: Array  # int64
    offsets: Array  # site k holds rows offsets[k] to offsets[k + 1]
    test_x: Array
    test_y: Array

    @property
    def counts(self) -> Array:
        return np.diff(self.offsets)

    @property
    def weights(self) -> Array:
        """Each site's share of the training rows."""
        return self.counts / len(self.x)

    def site(self, k: int) -> slice:
        return slice(int(self.offsets[k]), int(self.offsets[k + 1]))


# --- the data ---------------------------------------------------------------------------------------


def write_all(folder: Path, names: list[str]) -> None:
    """Write each workload's rows and its seeded starting weights, for the ports, and its file for Grand Rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        last = folder / f"{name}.done"
        if last.exists():
            continue
        rows = _build(name)
        np.savez(folder / f"{name}.npz", **vars(rows))
        start = {n: p.detach().numpy() for n, p in network(name).named_parameters()}
        np.savez(folder / f"{name}.start.npz", **start)
        _write_ours(name, rows, folder)
        last.touch()


def load(name: str) -> Rows:
    """The rows, from the folder that $ANCHORS_DATA names."""
    with np.load(Path(os.environ["ANCHORS_DATA"]) / f"{name}.npz") as held:
        return Rows(**held)


def start_of(name: str) -> list[Array]:
    """The starting weights (outputs, inputs) and biases of each layer as torch has them, for ports without torch."""
    with np.load(Path(os.environ["ANCHORS_DATA"]) / f"{name}.start.npz") as held:
        return [held[key] for key in held.files]


def dense_start(name: str) -> list[tuple[Array, Array]]:
    """The same for a dense model: weights (inputs, outputs) and bias of each layer."""
    arrays = start_of(name)
    return [(w.T.copy(), b) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]


def _build(name: str) -> Rows:
    rng = np.random.default_rng(0)
    sites = WORKLOADS[name].sites
    if name in ("W1", "W2"):
        x, y, test_x, test_y = _from_sklearn(name)
        parts = _label_skew(y, sites, alpha=0.5, at_least=8, seed=1)
    elif name == "W3":
        n = sites * 500
        beta = rng.normal(size=90)
        every = rng.normal(size=(n + 5000, 90))
        labels = (every @ beta + rng.normal(size=n + 5000) * 3 > 0).astype(int)
        x, y, test_x, test_y = every[:n], labels[:n], every[n:], labels[n:]
        parts = np.split(np.arange(n), sites)
    else:
        n = PICTURES
        every, labels = rng.normal(size=(n * 6 // 5, 3, 32, 32)), rng.integers(0, 10, n * 6 // 5)
        x, y, test_x, test_y = every[:n], labels[:n], every[n:], labels[n:]
        parts = np.split(np.arange(n), sites)
    order = np.concatenate(parts)
    offsets = np.cumsum([0, *(len(p) for p in parts)])
    return Rows(
        x[order].astype(np.float32),
        y[order].astype(np.int64),
        offsets.astype(np.int64),
        test_x.astype(np.float32),
        test_y.astype(np.int64),
    )


def _from_sklearn(name: str) -> tuple[Array, Array, Array, Array]:
    """Training and test rows of an embedded set: breast cancer standardised, digits in 0..1."""
    from sklearn.datasets import load_breast_cancer, load_digits
    from sklearn.model_selection import train_test_split

    x, y = (load_breast_cancer if name == "W1" else load_digits)(return_X_y=True)
    x, test_x, y, test_y = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    shift, scale = (x.mean(axis=0), x.std(axis=0)) if name == "W1" else (0.0, 16.0)
    return (x - shift) / scale, y, (test_x - shift) / scale, test_y


def _label_skew(y: Array, sites: int, *, alpha: float, at_least: int, seed: int) -> list[Array]:
    """Each class dealt to the sites by Dirichlet shares, drawn again until every site has enough rows."""
    rng = np.random.default_rng(seed)
    while True:
        chunks = []
        for label in np.unique(y):
            rows = rng.permutation(np.flatnonzero(y == label))
            shares = np.cumsum(rng.dirichlet([alpha] * sites))[:-1]
            chunks.append(np.split(rows, (shares * len(rows)).astype(int)))
        parts = [np.sort(np.concatenate(mine)) for mine in zip(*chunks, strict=True)]
        if min(len(p) for p in parts) >= at_least:
            return parts


# --- the same, as a user of Grand Rounds would have it ----------------------------------------------


def experiment(name: str, folder: Path) -> dict[str, Any]:
    """The experiment file of a workload.

    - The test rows are a site of their own that only tests; nothing is scaled or drawn in, as in the other ports.
    - Two classes have one logit here, the difference of the two that the other ports train. Its gradient step is half
      as large, so the same function is learnt with twice the learning rate.
    - A linear model starts at zero here and at torch's small random numbers there; MLP and CNN start from the same
      distributions, but not the same draw.
    """
    w = WORKLOADS[name]
    one_logit = w.widths[-1:] == (2,)
    data: dict[str, Any] = {"table": str(ours_file(name, folder)), "label": "label", "site": "site"}
    if w.widths:
        data |= {"scale": "none", "clip": 0.0}
    if name == "W2":  # three pixels are black everywhere; said to be numbers, they stay, and the net has 64 inputs
        data["kinds"] = {f"x{j}": "numeric" for j in range(w.widths[0])}
    model: dict[str, Any] = {"name": {0: "small-cnn", 2: "logistic"}.get(len(w.widths), "mlp")}
    if model["name"] == "mlp":
        model["hidden"] = list(w.widths[1:-1])
    return {
        "name": name,
        "data": data,
        "split": {"scheme": "holdout", "holdout": [HELD_OUT], "val": 0.0},
        "model": model,
        "method": {"rounds": w.rounds},
        "train": {"epochs": w.epochs, "batch": w.batch, "lr": w.lr * (2 if one_logit else 1)},
        "engine": {"device": "cpu"},
    }


def ours_file(name: str, folder: Path) -> Path:
    """Tables as the file that `rounds plan --with-data` writes (the fastest of those that are read), pictures as .npz."""
    return folder / (f"{name}.rows.safetensors" if WORKLOADS[name].widths else f"{name}.pictures.npz")


def _write_ours(name: str, rows: Rows, folder: Path) -> None:
    sites = np.array([*(f"site-{k:03d}" for k in range(len(rows.counts))), HELD_OUT])
    site = np.repeat(sites, [*rows.counts, len(rows.test_x)])
    x, y = np.concatenate([rows.x, rows.test_x]), np.concatenate([rows.y, rows.test_y])
    if not WORKLOADS[name].widths:
        # Pictures have 8 bits a channel: these are rounded to 1/32 and cut at 4 deviations, and standardised again on
        # reading. Labels are random, so nothing can be learnt from them and 10 % is right.
        pixels = np.clip(np.rint(x * 32 + 128), 0, 255).astype(np.uint8)
        np.savez(ours_file(name, folder), images=np.moveaxis(pixels, 1, 3), label=y, site=site)
        return
    from grandrounds.data.row_files import write_bundle
    from grandrounds.data.table import Table

    columns = {f"x{j}": x[:, j] for j in range(x.shape[1])}
    table = Table.from_mapping({**columns, "label": y.tolist(), "site": site.tolist()}, source=name)
    write_bundle(table, folder / f"{name}.json")


# --- what the ports share ---------------------------------------------------------------------------


def shuffles(site: int, round: int, n: int, epochs: int) -> Iterator[Array]:
    """The order of a site's rows in each epoch: ports that take it end with the same weights."""
    rng = np.random.default_rng([7, site, round])
    return (rng.permutation(n) for _ in range(epochs))


def network(name: str) -> Any:
    """The model in torch, from seeded starting weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    widths = WORKLOADS[name].widths
    if not widths:
        for channels in ((3, 6), (6, 16)):
            layers += [nn.Conv2d(*channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        widths = (400, 120, 84, 10)
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def accuracy(net: Any, rows: Rows) -> float:
    """Of a torch model, on the test rows."""
    import torch

    with torch.no_grad():
        said = net(torch.from_numpy(rows.test_x)).argmax(dim=1).numpy()
    return float((said == rows.test_y).mean())


class Watch:
    """Seconds and CPU seconds of each round: `with watch:` around it, or `mark` before the first and after every one."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._at: tuple[float, float] | None = None

    def __enter__(self) -> None:
        self._at = (time.perf_counter(), time.process_time())

    def __exit__(self, *_: object) -> None:
        self.mark()
        self._at = None

    @property
    def began(self) -> bool:
        return self._at is not None

    def mark(self) -> None:
        now = (time.perf_counter(), time.process_time())
        if self._at is not None:
            self.wall.append(now[0] - self._at[0])
            self.cpu.append(now[1] - self._at[1])
        self._at = now

    def medians(self) -> dict[str, float]:
        """Of all rounds but the first, which imports, compiles and allocates."""
        return {"wall": statistics.median(self.wall[1:]), "cpu": statistics.median(self.cpu[1:])}

    def report(self, accuracy: float, **others: Watch) -> None:
        """One line for `anchors.py`: the round's seconds, those of other parts, and the final accuracy."""
        told: dict[str, Any] = {"round": self.medians(), **{name: w.medians() for name, w in others.items()}}
        print("ANCHOR " + json.dumps({**told, "accuracy": accuracy}), flush=True)
