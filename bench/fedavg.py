"""Seconds per FedAvg round: Grand Rounds against a plain sequential PyTorch loop, in one process, on the same rows.

Both train the same model from the same start with the same batches, so they must end at the same accuracy; the
largest difference between their weights is printed. Only training and averaging are timed, after one warm-up round;
evaluation, checkpoint and the first import are not in it.

    python bench/fedavg.py [--passes 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import grandrounds  # noqa: F401  (pins one BLAS thread before NumPy loads)
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.training import learning_rate
from grandrounds.runs.federation import assemble
from grandrounds.runs.setup import set_up_run
from grandrounds.site.batches import batch_rows, batch_width
from smoke import pick

torch.set_num_threads(1)


@dataclass(frozen=True)
class Job:
    title: str
    experiment: dict
    rounds: int


JOBS = [
    Job(
        "breast cancer, 10 sites, logistic",
        {
            "data": {"name": "breast-cancer"},
            "split": {"partition": "dirichlet", "sites": 10},
            "train": {"epochs": 5, "lr": 0.01},
        },
        10,
    ),
    Job(
        "digits, 10 sites, MLP 64-32",
        {
            "data": {"name": "digits"},
            "split": {"partition": "dirichlet", "sites": 10},
            "model": {"name": "mlp", "hidden": [64, 32]},
            "train": {"epochs": 2, "lr": 0.05},
        },
        20,
    ),
    Job(
        "icu-cohort, 152 hospitals, logistic",
        {"data": {"name": "icu-cohort"}, "train": {"epochs": 1, "batch": 64, "lr": 0.05}},
        5,
    ),
]


class Consortium:
    """One experiment's prepared sites, as both contestants use them."""

    def __init__(self, job: Job) -> None:
        self.plan = Settings(Experiment.parse(job.experiment).plan())
        self.engine = set_up_run(self.plan, assemble(self.plan), None).engine
        self.model = self.engine.hosts[0].model
        self.parts = self.engine.hosts[0].stack.parts
        self.start = self.model.init(0)

    def accuracy(self, theta: np.ndarray) -> float:
        part = self.parts["test"]
        logits = self.model.logits(theta, part.x)
        predicted = logits[:, 0] > 0 if self.model.outputs == 1 else logits.argmax(axis=1)
        return float((predicted == part.y).mean())


def ours(held: Consortium, rounds: int) -> tuple[np.ndarray, list[float]]:
    """The product's own engine and FedAvg."""
    method = build_method(held.plan.method, held.plan.train)
    theta, seconds = held.start, []
    for r in range(1, rounds + 1):
        began = time.perf_counter()
        theta = held.engine.drive(method.round(Server(r, theta, held.engine.sites, 0)), round=r).model
        held.engine.commit()
        seconds.append(time.perf_counter() - began)
    return theta, seconds


def network(widths: tuple[int, ...]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def plain_loop(held: Consortium, rounds: int) -> tuple[np.ndarray, list[float]]:
    """FedAvg as anyone would write it in PyTorch: one site after another, torch.optim.SGD, autograd."""
    train, part, names = held.plan.train, held.parts["train"], held.engine.sites
    net = network(held.model.widths)
    x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
    loss_of = torch.nn.functional.cross_entropy
    if held.model.outputs == 1:
        y = y.to(x.dtype)[:, None]
        loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    width = batch_width(part, train.batch)
    weights = part.counts / part.counts.sum()
    state = [a.T.copy() if a.ndim == 2 else a.copy() for a in held.model.layout.views(held.start).values()]
    glob = [torch.from_numpy(a) for a in state]
    seconds = []
    for r in range(1, rounds + 1):
        began = time.perf_counter()
        lr = learning_rate(train.schedule, base=train.lr, round=r, rounds=rounds)
        total = [torch.zeros_like(g) for g in glob]
        for k, name in enumerate(names):
            n = int(part.counts[k])
            with torch.no_grad():
                for p, g in zip(net.parameters(), glob, strict=True):
                    p.copy_(g)
            optimizer = torch.optim.SGD(net.parameters(), lr=lr)
            rng = generator(0, purpose="order", round=r, site=name)
            steps = train.epochs * -(-n // width)
            for rows in batch_rows(n, width=width, steps=steps, rng=rng):
                i = torch.from_numpy(rows[rows >= 0] + part.offsets[k])
                optimizer.zero_grad()
                loss_of(net(x[i]), y[i]).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, net.parameters(), strict=True):
                    t.add_(p, alpha=float(weights[k]))
        glob = total
        seconds.append(time.perf_counter() - began)
    arrays = [g.numpy().T if g.ndim == 2 else g.numpy() for g in glob]
    return np.concatenate([a.ravel() for a in arrays]), seconds


def measure(job: Job, passes: int) -> dict:
    """Both contestants, turn by turn, so that a busy moment of the machine hits both."""
    held, rounds = Consortium(job), pick(job.rounds, 2)
    times: dict[str, list[float]] = {"ours": [], "loop": []}
    for _ in range(passes):
        mine, a = ours(held, rounds)
        theirs, b = plain_loop(held, rounds)
        times["ours"].append(statistics.median(a[1:]))
        times["loop"].append(statistics.median(b[1:]))
    ratios = [b / a for a, b in zip(times["ours"], times["loop"], strict=True)]
    return {
        "job": job.title,
        "sites": len(held.engine.sites),
        "loop_ms": 1e3 * statistics.median(times["loop"]),
        "ours_ms": 1e3 * statistics.median(times["ours"]),
        "ratio": statistics.median(ratios),
        "accuracy_loop": held.accuracy(theirs.astype(np.float32)),
        "accuracy_ours": held.accuracy(mine),
        "largest_difference": float(np.abs(mine - theirs).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=pick(3, 1))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(
        "| job | PyTorch loop ms/round | Grand Rounds ms/round | times faster | accuracy loop / ours | largest difference |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    rows = []
    for job in pick(JOBS, JOBS[:2]):
        row = measure(job, args.passes)
        rows.append(row)
        print(
            f"| {row['job']} | {row['loop_ms']:.1f} | {row['ours_ms']:.2f} | {row['ratio']:.1f} | "
            f"{row['accuracy_loop']:.4f} / {row['accuracy_ours']:.4f} | {row['largest_difference']:.1e} |",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
