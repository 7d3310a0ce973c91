"""What XFed's scores cost: milliseconds a sample, and the share of a round's training at sixteen sites.

    python bench/xfed_cost.py [--device cuda] [--precision bf16] [--passes 5] [--json FILE]

ResNet-18 with the stem for ImageNet and group norm, 32x32x3 pictures. First the IoU-ratio, integrated gradients with SmoothGrad
(5 copies, 5 steps) and heat inside against outside of the mask: 30 pictures in one pass and one at a time, against Captum
where it is installed, else the same loop in plain torch, one picture at a time, in the same process, turn by turn; that
they find the same heat is checked. Then, with the models that 16 sites have after an epoch (batches of 128), what a round
asks to score all of them on the 30 pictures, beside the epoch: by masks, as in the paper, and by masks and scenes, as by
default. Medians after one turn that is not counted. On a CPU, whose clock is the process's own time, there are few pictures,
sites and rows: a try, not a result. In bf16 the two sides round differently, and how far they are apart is only told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import grandrounds  # noqa: F401  (pins one thread before NumPy loads)
from grandrounds.core.rng import generator
from grandrounds.explain.agreement import iou_ratio
from grandrounds.explain.explainers.heat import heat
from grandrounds.explain.rationale import RationaleRule, score_rationale
from grandrounds.models import build_model
from grandrounds.models.dense import targets
from grandrounds.models.torch_model import TorchModel
from grandrounds.site.kernels import trainer
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob
from smoke import pick

try:
    from captum import attr
except ImportError:
    attr = None

SIDE, CLASSES, BATCH = 32, 10, pick(128, 8)
SAMPLES, STEPS = 5, 5
NET = {
    "name": "resnet18",
    "inputs": [3, SIDE, SIDE],
    "classes": CLASSES,
    "norm": "group",
    "stem": "imagenet",
    "weights": None,
}
QUIET = 1e-6
"""Noise too small to matter where two sides must find the same."""

SIZES = {
    "cuda": {"pictures": 30, "sites": 16, "rows": (3125, 1250)},
    "cpu": {"pictures": 2, "sites": 2, "rows": (BATCH,)},
}

Task = Callable[[], Any]


def pictures(n: int, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(0, purpose=purpose)
    return rng.standard_normal((n, 3, SIDE, SIDE), dtype=np.float32), np.arange(n) % CLASSES


def clock() -> float:
    """Seconds on the wall when a GPU is done with all it was given; without one the process's own time."""
    if not torch.cuda.is_initialized():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def medians(passes: int, sides: Mapping[str, Task]) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of each side, turn by turn, after one turn that is not counted; and what each found last."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    found: dict[str, Any] = {}
    for turn in range(passes + 1):
        for name, work in sides.items():
            began = clock()
            found[name] = work()
            took = clock() - began
            if turn:
                seconds[name].append(took)
    return {name: statistics.median(all_) for name, all_ in seconds.items()}, found


def by_captum(model: TorchModel, x: torch.Tensor, y: int) -> torch.Tensor:
    tunnel = attr.NoiseTunnel(attr.IntegratedGradients(model.net))
    how = {"nt_type": "smoothgrad", "nt_samples": SAMPLES, "stdevs": QUIET, "n_steps": STEPS}
    return tunnel.attribute(x, target=y, **how)[0]


def by_hand(model: TorchModel, x: torch.Tensor, y: int) -> torch.Tensor:
    nodes, weights = (model.tensor(v)[:, None, None, None] for v in np.polynomial.legendre.leggauss(STEPS))
    noisy = x + QUIET * torch.randn(SAMPLES, *x.shape[1:], device=x.device)
    points = (noisy[:, None] * (1 + nodes) / 2).flatten(0, 1).requires_grad_()
    slope = torch.autograd.grad(model.net(points)[:, y].sum(), points)[0]
    return (noisy * (slope.unflatten(0, (SAMPLES, STEPS)) * weights / 2).sum(1)).mean(0)


def samples(model: TorchModel, n: int, passes: int) -> dict[str, float]:
    """Milliseconds a sample, from the picture in memory to its IoU-ratio."""
    theta = model.init(0)
    x, y = pictures(n, "scoring")
    masks = np.broadcast_to(np.arange(SIDE) < SIDE // 2, (n, SIDE, SIDE))
    one = by_hand if attr is None else by_captum

    def ours(cut: slice) -> np.ndarray:
        found = heat("integrated_gradients", model, theta, x[cut], y[cut], steps=STEPS, samples=SAMPLES, sigma=QUIET)
        iou_ratio(found, masks[cut])
        return found

    def theirs() -> np.ndarray:
        model.point_at(model.tensor(theta))
        model.net.eval()
        out = []
        for i in range(n):
            with torch.autocast(model.device.type, torch.bfloat16, enabled=model.precision == "bf16"):
                slope = one(model, model.tensor(x[i : i + 1]), int(y[i]))
            found = slope.detach().float().abs().sum(0).cpu().numpy()
            iou_ratio(found, masks[i])
            out.append(found)
        return np.stack(out)

    sides = {
        "ours, in one pass": lambda: ours(slice(None)),
        "ours, one at a time": lambda: np.concatenate([ours(slice(i, i + 1)) for i in range(n)]),
        f"{'Captum' if attr else 'plain torch'}, one at a time": theirs,
    }
    seconds, found = medians(passes, sides)
    first = next(iter(found.values()))
    gap = max(float(np.abs(other - first).mean() / np.abs(first).mean()) for other in found.values())
    print(f"heat maps differ by {gap:.1e} of their mean")
    assert gap < 0.05 or model.precision == "bf16", "the sides find different heat"
    return {name: 1e3 * s / n for name, s in seconds.items()}


def shares(model: TorchModel, n: int, sites: int, rows: int, passes: int) -> dict[str, float]:
    """Seconds of one local epoch of all sites, and of scoring all of their models."""
    x, y = pictures(sites * rows, "training")
    part = Part(x, y, targets(y, CLASSES), np.zeros(len(y), np.int64), np.arange(sites + 1) * rows)
    names, members = tuple(f"site-{k:02d}" for k in range(1, sites + 1)), np.arange(sites)
    start, train, rounds = model.init(0), trainer(model), iter(range(1, passes + 2))

    def epoch() -> np.ndarray:
        work = TrainConfig(seed=0, round=next(rounds), lr=0.01, epochs=1, batch=BATCH)
        return np.asarray(train(TrainJob(model, part, members, start, work, names=names)).theta)

    taken, found = medians(passes, {"an epoch": epoch})
    scored, classes = pictures(n, "scoring")
    masks = np.ascontiguousarray(np.broadcast_to(np.arange(SIDE) < SIDE // 2, (n, SIDE, SIDE)))
    rules = {"masks": RationaleRule(0, grid=0), "masks and scenes": RationaleRule(0)}
    work = {
        f"scores by {name}": lambda rule=rule: score_rationale(rule, model, found["an epoch"], scored, classes, masks)
        for name, rule in rules.items()
    }
    spent, reports = medians(passes, work)
    assert all(np.isfinite(r["rationale.xai"]).all() for r in reports.values()), "a model has no score"
    return taken | spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="float32", choices=("float32", "tf32", "bf16"))
    parser.add_argument("--passes", type=int, default=0, help="turns that count; by default 5 on a GPU and 1 on a CPU")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    size, passes = SIZES[args.device], args.passes or (5 if args.device == "cuda" else 1)
    model: Any = build_model(NET, kernel="torch", device=args.device, precision=args.precision)
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {args.precision}")
    n, sites, out = size["pictures"], size["sites"], []
    each = samples(model, n, passes)
    print(f"\n| IoU-ratio of {n} pictures | ms a sample | times ours in one pass |\n|---|---:|---:|")
    for name, ms in each.items():
        ratio = ms / next(iter(each.values()))
        out.append({"work": "IoU-ratio", "side": name, "ms": ms, "ratio": ratio})
        print(f"| {name} | {ms:.3f} | {ratio:.1f} |", flush=True)
    print(f"\n| {sites} sites, pictures at each | work | seconds | share of an epoch |\n|---:|---|---:|---:|")
    for rows in size["rows"]:
        found = shares(model, n, sites, rows, passes)
        for name, seconds in found.items():
            share = seconds / found["an epoch"]
            out.append({"work": name, "sites": sites, "rows": rows, "seconds": seconds, "share": share})
            print(f"| {rows:,} | {name} | {seconds:.3f} | {share:.1%} |", flush=True)
    if args.json:
        about = {"device": where, "torch": torch.__version__, "precision": args.precision, "passes": passes}
        args.json.write_text(json.dumps(about | {"results": out}, indent=1))


if __name__ == "__main__":
    main()
