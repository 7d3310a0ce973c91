"""L2-jax, a floor: one compiled call a round, a scan over the steps of a vmap over the sites. Dense models.

PYTHONPATH=bench python bench/ports/jax_floor.py W1
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from batched import batches

from workloads import WORKLOADS, Watch, dense_start, load


def forward(layers: Any, x: Any) -> Any:
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        x = jax.nn.relu(x) if i < len(layers) - 1 else x
    return x


def loss(layers: Any, x: Any, y: Any, real: Any) -> Any:
    said = jax.nn.log_softmax(forward(layers, x))
    lost = -jnp.take_along_axis(said, y[:, None], 1)[:, 0]
    return (lost * real).sum() / jnp.maximum(real.sum(), 1)


def main() -> None:
    name = sys.argv[1]
    w, rows, watch = WORKLOADS[name], load(name), Watch()
    order = np.arange(w.sites)
    x, y = jnp.asarray(rows.x), jnp.asarray(rows.y, jnp.int32)
    weights = jnp.asarray(rows.weights, jnp.float32)
    gradient = jax.vmap(jax.grad(loss))

    def step(layers: Any, batch: Any) -> tuple[Any, None]:
        at, real = batch
        return jax.tree.map(lambda p, g: p - w.lr * g, layers, gradient(layers, x[at], y[at], real)), None

    @jax.jit
    def one_round(glob: Any, at: Any, real: Any) -> Any:
        spread = jax.tree.map(lambda p: jnp.broadcast_to(p, (w.sites, *p.shape)), glob)
        trained, _ = jax.lax.scan(step, spread, (at, real))
        return jax.tree.map(lambda p: jnp.tensordot(weights, p, 1), trained)

    glob = [(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in dense_start(name)]
    watch.mark()
    for r in range(w.rounds):
        at, real = batches(rows, w, r, order)
        glob = jax.block_until_ready(one_round(glob, at.astype(np.int32), real))
        watch.mark()
    said = np.asarray(forward(glob, jnp.asarray(rows.test_x))).argmax(axis=1)
    watch.report(float((said == rows.test_y).mean()))


if __name__ == "__main__":
    main()
