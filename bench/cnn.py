"""Convolutions on a CPU: one round of ten sites' small CNN against the bare loop with hand-written SGD.

    python bench/cnn.py [--passes 3]

Same pictures (500 random ones of 32x32x3 at each site), same batches, one thread; turn by turn, so that a busy moment of
the machine hits both. Convolutions are not batched over sites on a CPU, so the aim is to be no slower than the loop.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import grandrounds  # noqa: F401  (pins one thread before NumPy loads)
from grandrounds.core.rng import generator
from grandrounds.models import build_model
from grandrounds.models.dense import targets
from grandrounds.models.torch_model import TorchModel
from grandrounds.site.batches import BatchPlan
from grandrounds.site.stack import Part
from grandrounds.site.torch_train import train
from grandrounds.site.train_job import TrainConfig, TrainJob
from smoke import pick

SITES, ROWS, LR = pick(10, 3), pick(500, 40), 0.01
NAMES = tuple(f"s{k}" for k in range(SITES))
SPEC = {"name": "small-cnn", "inputs": [3, 32, 32], "classes": 10, "hidden": [], "trees": 1, "depth": 1, "norm": "group",
        "stem": "small", "weights": None, "statistics": "averaged"}  # fmt: skip


def pictures() -> Part:
    rng = generator(0, purpose="bench")
    n = SITES * ROWS
    y = rng.integers(0, 10, n)
    x = rng.standard_normal((n, 3, 32, 32), dtype=np.float32)
    return Part(x, y, targets(y, 10), np.zeros(n, np.int64), np.arange(SITES + 1) * ROWS)


def bare_loop(model: TorchModel, part: Part, start: np.ndarray, plan: BatchPlan) -> np.ndarray:
    """Each site in turn: forward, autograd, and p -= lr * g by hand."""
    x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
    total = np.zeros(len(start))
    for j in range(SITES):
        theta = torch.from_numpy(start.copy())
        params = model.point_at(theta)
        for s in range(int(plan.steps_in_order[j])):
            i = torch.from_numpy(plan.batch(s, j)[0])
            gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(model.net(x[i]), y[i]), params)
            with torch.no_grad():
                for p, g in zip(params, gradients, strict=True):
                    p.sub_(g, alpha=LR)
        total += theta.numpy() / SITES
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=pick(3, 1))
    args = parser.parse_args()
    part, members = pictures(), np.arange(SITES)
    model = build_model(SPEC, kernel="torch", device="cpu")
    start = model.init(0)
    times: dict[str, list[float]] = {"loop": [], "ours": []}
    for r in range(args.passes + 1):
        work = TrainConfig(seed=0, round=r + 1, lr=LR, epochs=1, batch=32)
        plan = BatchPlan.draw(part, members, names=NAMES, config=work)
        began = time.perf_counter()
        theirs = bare_loop(model, part, start, plan)
        middle = time.perf_counter()
        plan = BatchPlan.draw(part, members, names=NAMES, config=work)
        mine = model.combine(train(TrainJob(model, part, members, start, work), plan).theta, np.full(SITES, 1 / SITES))
        if r:
            times["loop"].append(middle - began)
            times["ours"].append(time.perf_counter() - middle)
    ratio = statistics.median(a / b for a, b in zip(times["loop"], times["ours"], strict=True))
    print("| job | bare loop s/round | Grand Rounds s/round | times faster | largest difference |")
    print("|---|---:|---:|---:|---:|")
    loop, ours = (statistics.median(times[k]) for k in ("loop", "ours"))
    gap = np.abs(mine - theirs).max()
    print(f"| small CNN, {SITES} sites x {ROWS} pictures, 1 epoch | {loop:.3f} | {ours:.3f} | {ratio:.2f} | {gap:.1e} |")


if __name__ == "__main__":
    main()
