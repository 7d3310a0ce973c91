"""The price of explaining pictures: many pictures, tiles, noisy copies and sites in a pass, against one picture at a time.

    python bench/explain_pictures.py [--device cuda] [--passes 3] [--each-tile] [--json FILE]

Small CNN on random 32x32x3 pictures: 4x4 tile occlusion of 200 pictures by 10 sites' models, and integrated gradients
with SmoothGrad (5 copies, 5 steps) of 30 pictures by 16 sites' models. Then ResNet-18, milliseconds a picture. The other
side is Captum where it is installed, else the same loop in plain torch; it is given one picture at a time, with all of
its tiles or points in one forward; with --each-tile also one tile a forward, which is Captum's default. Both sides do
all of the work in the same process, one thread, turn by turn; that they find the same is checked. A CPU's clock is the
process's own time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import grandrounds  # noqa: F401  (pins one thread before NumPy loads)
from grandrounds.core.rng import generator
from grandrounds.explain.explainers.heat import heat
from grandrounds.explain.explainers.occlusion import Occlusion
from grandrounds.explain.features import Features
from grandrounds.models import build_model
from grandrounds.models.dense import targets
from grandrounds.models.torch_model import TorchModel
from smoke import pick

try:
    from captum import attr
except ImportError:
    attr = None

SIDE, GRID, CLASSES = 32, 4, 10
SAMPLES, STEPS = 5, 5
NET = {"inputs": [3, SIDE, SIDE], "classes": CLASSES, "norm": "group", "stem": "small", "weights": None}


def built(name: str, device: str) -> TorchModel:
    return build_model({"name": name, **NET}, kernel="torch", device=device)


def pictures(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(0, purpose="bench")
    return rng.standard_normal((n, 3, SIDE, SIDE), dtype=np.float32), rng.integers(0, CLASSES, n)


class OneByOne:
    """One model after another, one picture after another."""

    def __init__(self, model: TorchModel, x: np.ndarray, y: np.ndarray) -> None:
        self.model = model
        self.x, self.y = model.tensor(x), torch.as_tensor(y).to(model.device)

    def score(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.cross_entropy(self.model.net(x), y.expand(len(x)), reduction="none")

    def occlusion(self, thetas: np.ndarray, at_once: int) -> np.ndarray:
        return np.stack([np.stack([self._hidden(i, at_once) for i in range(len(self.x))]) for _ in self._each(thetas)])

    def smooth(self, thetas: np.ndarray) -> np.ndarray:
        return np.stack([np.stack([self._smooth(i) for i in range(len(self.x))]) for _ in self._each(thetas)])

    def _each(self, thetas: np.ndarray):
        for theta in thetas:
            self.model.point_at(self.model.tensor(theta))
            self.model.net.eval()
            yield

    def _hidden(self, i: int, at_once: int) -> np.ndarray:
        x, y, tile = self.x[i : i + 1], self.y[i : i + 1], SIDE // GRID
        if attr is not None:
            window = (3, tile, tile)
            found = attr.Occlusion(lambda x: self.score(x, y)).attribute(
                x, sliding_window_shapes=window, strides=window, perturbations_per_eval=at_once
            )
            return found[0, 0, ::tile, ::tile].detach().reshape(-1).cpu().numpy()
        variants = x.repeat(GRID * GRID, 1, 1, 1)
        for f in range(GRID * GRID):
            down, across = f // GRID * tile, f % GRID * tile
            variants[f, :, down : down + tile, across : across + tile] = 0
        with torch.no_grad():
            scores = torch.cat([self.score(part, y) for part in variants.split(at_once)])
            return (self.score(x, y) - scores).cpu().numpy()

    def _smooth(self, i: int) -> np.ndarray:
        x, y = self.x[i : i + 1], int(self.y[i])
        if attr is not None:
            tunnel = attr.NoiseTunnel(attr.IntegratedGradients(self.model.net))
            how = {"nt_type": "smoothgrad", "nt_samples": SAMPLES, "stdevs": 1e-6, "n_steps": STEPS}
            return tunnel.attribute(x, target=y, **how)[0].abs().sum(0).detach().cpu().numpy()
        nodes, weights = (self.model.tensor(v)[:, None, None, None] for v in np.polynomial.legendre.leggauss(STEPS))
        noisy = x + 1e-6 * torch.randn(SAMPLES, *x.shape[1:], device=x.device)
        points = (noisy[:, None] * (1 + nodes) / 2).flatten(0, 1).requires_grad_()
        slope = torch.autograd.grad(self.model.net(points)[:, y].sum(), points)[0]
        mean = (slope.unflatten(0, (SAMPLES, STEPS)) * weights / 2).sum(1)
        return (noisy * mean).mean(0).abs().sum(0).cpu().numpy()


def timed(device: str, work: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    clock = time.perf_counter if device == "cuda" else time.process_time
    began = clock()
    out = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began, out


def turns(device: str, passes: int, sides: dict[str, Callable[[], np.ndarray]], loose: float) -> dict[str, float]:
    """Median seconds of each side, after one unmeasured turn on a GPU; all must find what ours finds."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for r in range(passes + (device == "cuda")):
        results = {}
        for name, work in sides.items():
            took, results[name] = timed(device, work)
            if r or device != "cuda":
                seconds[name].append(took)
        ours = results["ours"]
        for name, found in results.items():
            gap = np.abs(found - ours).mean() / np.abs(ours).mean()
            assert gap < loose, f"{name} and ours disagree: mean difference {gap:.1e} of the mean"
    return {name: statistics.median(all_) for name, all_ in seconds.items()}


def occlusion(device: str, passes: int, n: int, sites: int, each_tile: bool) -> dict[str, float]:
    model = built("small-cnn", device)
    thetas = np.stack([model.init(seed) for seed in range(sites)])
    x, y = pictures(n)
    explainer = Occlusion(Features.from_tiles(SIDE, SIDE, (GRID, GRID)))
    other = OneByOne(model, x, y)
    sides = {
        "ours": lambda: explainer.rows(model, thetas, x, targets(y, CLASSES), np.array([0, n])),
        "a picture at a time": lambda: other.occlusion(thetas, GRID * GRID),
    }
    if each_tile:
        sides["a tile at a time"] = lambda: other.occlusion(thetas, 1)
    return turns(device, passes, sides, 1e-2)


def smooth(name: str, device: str, passes: int, n: int, sites: int) -> dict[str, float]:
    """The noise of both sides is too small to matter, so that they must agree."""
    model = built(name, device)
    thetas = np.stack([model.init(seed) for seed in range(sites)])
    x, y = pictures(n)
    other = OneByOne(model, x, y)
    sides = {
        "ours": lambda: heat(
            "integrated_gradients", model, thetas, x, y, steps=STEPS, samples=SAMPLES, sigma=1e-6, seed=0
        ),
        "a picture at a time": lambda: other.smooth(thetas),
    }
    return turns(device, passes, sides, 5e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--each-tile", action="store_true", help="also hide one tile a forward: slow on a CPU")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, against {'Captum' if attr else 'a loop in plain torch'}")
    deep = 30 if args.device == "cuda" else pick(2, 1)
    (hidden, k), (n, m) = pick((200, 10), (4, 2)), pick((30, 16), (2, 2))
    how = (args.device, args.passes)
    jobs = {
        f"tile occlusion 4x4, {hidden} pictures, {k} sites, small-cnn": (
            hidden * k,
            lambda: occlusion(*how, hidden, k, args.each_tile),
        ),
        f"IG-SmoothGrad 5x5, {n} pictures, {m} sites, small-cnn": (n * m, lambda: smooth("small-cnn", *how, n, m)),
        f"IG-SmoothGrad 5x5, {deep} pictures, 1 site, resnet18": (deep, lambda: smooth("resnet18", *how, deep, 1)),
    }
    print("| work | side | seconds | ms a picture and site | times ours |")
    print("|---|---|---:|---:|---:|")
    out = []
    for name, (count, job) in jobs.items():
        found = job()
        for side, seconds in found.items():
            ratio = seconds / found["ours"]
            out.append({"work": name, "side": side, "seconds": seconds, "ms": 1e3 * seconds / count, "ratio": ratio})
            print(f"| {name} | {side} | {seconds:.3f} | {1e3 * seconds / count:.3f} | {ratio:.1f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
