"""Milliseconds of one local step for all sites on a GPU: Grand Rounds' CUDA graph against a sequential PyTorch loop.

    python bench/gpu.py [--device cuda] [--nets small-cnn,resnet18,resnet18/imagenet] [--json FILE]

Random 32x32x3 pictures, batch 32; ResNet-18 with the stem for ImageNet in batches of 128 at 16 sites, as XFed has it.
`loop` trains one site after another with torch.optim.SGD in the same precision; `ours` is the product's own training: a
whole round (batch plan, copies and replay) over its steps, and the step alone (the replay). All medians of five.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from grandrounds.core.rng import generator
from grandrounds.models import build_model
from grandrounds.models.dense import targets
from grandrounds.models.torch_model import TorchModel
from grandrounds.site.batches import BatchPlan
from grandrounds.site.stack import Part
from grandrounds.site.tasks import penalty
from grandrounds.site.torch_job import row_losses
from grandrounds.site.torch_train import train
from grandrounds.site.train_job import TrainConfig, TrainJob
from smoke import SMOKE, pick

STEPS = pick(40, 2)


def sites(k: int, batch: int) -> Part:
    rng = generator(0, purpose="bench")
    n = k * batch * STEPS
    y = rng.integers(0, 10, n)
    x = rng.standard_normal((n, 3, 32, 32), dtype=np.float32)
    return Part(x, y, targets(y, 10), np.zeros(n, np.int64), np.arange(k + 1) * batch * STEPS)


def spec(name: str) -> dict:
    name, _, stem = name.partition("/")
    return {"name": name, "inputs": [3, 32, 32], "classes": 10, "hidden": [], "trees": 1, "depth": 1, "norm": "group",
            "stem": stem or "small", "weights": None, "statistics": "averaged"}  # fmt: skip


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ours(model: TorchModel, part: Part, theta: np.ndarray, k: int, batch: int, device: str) -> tuple[float, np.ndarray]:
    names, members = tuple(f"s{i}" for i in range(k)), np.arange(k)
    seconds, last = [], None
    for r in range(1, 7):
        wait(device)
        began = time.perf_counter()
        work = TrainConfig(seed=0, round=r, lr=0.01, epochs=1, batch=batch)
        plan = BatchPlan.draw(part, members, names=names, config=work)
        last = train(TrainJob(model, part, members, theta, work), plan)
        wait(device)
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds[1:]) / STEPS, last.theta


def replay(model: TorchModel) -> float:
    """Milliseconds of one step alone: replaying the graph that the last round recorded."""
    kept = model.cache.get("graphs")
    if kept is None:
        return float("nan")
    held = max(kept[1].values(), key=lambda h: len(h.t))
    seconds = []
    for _ in range(5):
        held.step.zero_()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            held.graph.replay()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds) / STEPS


def loop(model: TorchModel, part: Part, theta: np.ndarray, k: int, batch: int, device: str, steps: int) -> float:
    x, y = model.tensor(part.x), model.tensor(part.target)
    seconds = []
    for r in range(6):
        wait(device)
        began = time.perf_counter()
        for site in range(k):
            model.point_at(model.tensor(theta).clone())
            optimizer = torch.optim.SGD(model.net.parameters(), lr=0.01)
            for s in range(steps):
                i = torch.arange(batch, device=x.device) + site * batch * STEPS + s * batch
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device, torch.bfloat16, enabled=model.precision == "bf16"):
                    out = model.net(x[i])
                row_losses(out.float(), y[i]).mean().backward()
                optimizer.step()
        wait(device)
        if r:
            seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds) / steps


def check(device: str) -> None:
    """The graph against the bare CPU loop: uneven sites, every optimiser, all terms; prints the largest difference."""
    rng = generator(1, purpose="check")
    sizes = np.array([90, 33, 64, 7, 50])
    n = sizes.sum()
    y = rng.integers(0, 10, n)
    part = Part(rng.standard_normal((n, 3, 32, 32), dtype=np.float32), y, targets(y, 10), np.zeros(n, np.int64),
                np.cumsum([0, *sizes]))  # fmt: skip
    names, members = tuple("abcde"), np.arange(5)
    owner = np.repeat(members, sizes)
    even = (members % 2 == 0)[:, None] == (np.arange(10) < 5)[None]  # two tasks of five classes each
    halves = penalty(even, np.float64)
    tasked = replace(part, target=targets(np.where(owner % 2 == 0, y % 5, 5 + y % 5), 10))
    for optimizer in ("sgd", "momentum", "adam", "adamw")[: pick(None, 1)]:
        for extra, closed in (({}, None), ({"l2": 0.01, "proximal": 0.1}, None), ({}, halves)):
            work = TrainConfig(seed=0, round=1, lr=0.01, epochs=2, batch=32, optimizer=optimizer, weight_decay=0.1, **extra)
            plan = BatchPlan.draw(part, members, names=names, config=work)
            found = []
            for where in ("cpu", device):
                model = build_model(spec("small-cnn"), kernel="torch", device=where, precision="float64")
                start = model.init(0, np.float64)
                rows = part if closed is None else tasked
                found.append(train(TrainJob(model, rows, members, start, work, penalty=closed), plan))
            gap = np.abs(found[0].theta - found[1].theta).max()
            moved = np.abs(found[0].theta - start).max()
            what = "two tasks" if closed is not None else str(extra)
            print(f"check {optimizer} {what}: largest difference {gap:.1e} of {moved:.1e} moved", flush=True)
            assert gap < 1e-5, "the graph and the loop disagree"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=pick("cuda", "cpu"))
    parser.add_argument("--nets", default=pick("small-cnn,resnet18,resnet18/imagenet", "small-cnn"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", default=SMOKE, help="compare the graph with the CPU loop first")
    args = parser.parse_args()
    if args.check:
        check(args.device)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}")
    print(
        "| net | precision | sites | loop ms/step | ours ms/step, whole round | ours ms/step, step alone | times faster |"
    )
    print("|---|---|---:|---:|---:|---:|---:|")
    jobs = [("small-cnn", "float32", 10, 32), ("small-cnn", "tf32", 10, 32), ("small-cnn", "tf32", 100, 32),
            ("resnet18", "tf32", 10, 32), ("resnet18", "bf16", 10, 32),
            ("resnet18/imagenet", "tf32", 16, 128), ("resnet18/imagenet", "bf16", 16, 128)][: pick(None, 1)]  # fmt: skip
    rows = []
    for net, precision, k, batch in jobs:
        if net not in args.nets.split(","):
            continue
        part = sites(k, batch)
        model = build_model(spec(net), kernel="torch", device=args.device, precision=precision)
        theta = model.init(0)
        mine, _ = ours(model, part, theta, k, batch, args.device)
        alone = replay(model)
        theirs = loop(model, part, theta, k, batch, args.device, steps=pick(20 if net == "small-cnn" and k == 10 else 10, STEPS))
        rows.append({"net": net, "precision": precision, "sites": k, "loop": theirs, "ours": mine, "step": alone})
        print(
            f"| {net} | {precision} | {k} | {theirs:.2f} | {mine:.3f} | {alone:.3f} | {theirs / mine:.1f} |", flush=True
        )
        del model, part
        if args.device == "cuda":
            torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
