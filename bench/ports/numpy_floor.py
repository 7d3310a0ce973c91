"""L2-numpy, a floor: every site's dense model trained at once, the gradient written out, NumPy alone.

PYTHONPATH=bench python bench/ports/numpy_floor.py W1

Sites are sorted by their steps, and those that have done theirs are sliced away.
"""

from __future__ import annotations

import sys

import numpy as np
from batched import batches, step_counts

from workloads import WORKLOADS, Array, Watch, dense_start, load


def step(ws: list[Array], bs: list[Array], x: Array, target: Array, scale: Array, lr: np.float32) -> None:
    """One SGD step of all sites, in place: ws (sites, inputs, outputs), bs (sites, 1, outputs), x (sites, batch, inputs)."""
    last = len(ws) - 1
    inputs = [x]
    for i, (w, b) in enumerate(zip(ws, bs, strict=True)):
        z = inputs[-1] @ w + b
        inputs.append(np.maximum(z, 0) if i < last else z)
    z = inputs.pop()
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    delta = (z / z.sum(axis=-1, keepdims=True) - target) * scale
    for i in range(last, -1, -1):
        below = (delta @ ws[i].swapaxes(1, 2)) * (inputs[i] > 0) if i else delta
        ws[i] -= lr * (inputs[i].swapaxes(1, 2) @ delta)
        bs[i] -= lr * delta.sum(axis=1, keepdims=True)
        delta = below


def main() -> None:
    name = sys.argv[1]
    w, rows, watch = WORKLOADS[name], load(name), Watch()
    steps = step_counts(rows, w)
    order = np.argsort(-steps, kind="stable")
    active = [int((steps > s).sum()) for s in range(steps.max())]
    weights = rows.weights[order].astype(np.float32)
    target = np.eye(w.widths[-1], dtype=np.float32)[rows.y]
    glob = dense_start(name)
    watch.mark()
    for r in range(w.rounds):
        ws = [np.repeat(weight[None], w.sites, axis=0) for weight, _ in glob]
        bs = [np.repeat(bias[None, None], w.sites, axis=0) for _, bias in glob]
        at, real = batches(rows, w, r, order)
        xs, ts = rows.x[at], target[at]
        scale = (real / np.maximum(real.sum(axis=-1, keepdims=True), 1))[..., None]
        for s, a in enumerate(active):
            step([m[:a] for m in ws], [b[:a] for b in bs], xs[s, :a], ts[s, :a], scale[s, :a], np.float32(w.lr))
        glob = [(np.tensordot(weights, m, 1), weights @ b[:, 0]) for m, b in zip(ws, bs, strict=True)]
        watch.mark()
    z = rows.test_x
    for i, (weight, bias) in enumerate(glob):
        z = z @ weight + bias
        z = np.maximum(z, 0) if i < len(glob) - 1 else z
    watch.report(float((z.argmax(axis=1) == rows.test_y).mean()))


if __name__ == "__main__":
    main()
