"""L1, a floor: FedAvg as a bare loop over the sites in torch, one thread.

PYTHONPATH=bench python bench/ports/torch_loop.py W1 optim      torch.optim.SGD, as most would write it
PYTHONPATH=bench python bench/ports/torch_loop.py W1 plain      p -= lr * g by hand
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workloads import WORKLOADS, Watch, Workload, accuracy, load, network, shuffles


def with_optim(net: nn.Module, x: Tensor, y: Tensor, batches: list[Tensor], w: Workload) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=w.lr)
    for i in batches:
        optimizer.zero_grad()
        cross_entropy(net(x[i]), y[i]).backward()
        optimizer.step()


def by_hand(net: nn.Module, x: Tensor, y: Tensor, batches: list[Tensor], w: Workload) -> None:
    params = list(net.parameters())
    for i in batches:
        gradients = torch.autograd.grad(cross_entropy(net(x[i]), y[i]), params)
        with torch.no_grad():
            for p, g in zip(params, gradients, strict=True):
                p.sub_(g, alpha=w.lr)


def averaged(states: list[dict[str, Any]], weights: list[float]) -> dict[str, Any]:
    return {name: sum(s[name] * a for s, a in zip(states, weights, strict=True)) for name in states[0]}


def main() -> None:
    name, variant = sys.argv[1:]
    torch.set_num_threads(1)
    train = {"optim": with_optim, "plain": by_hand}[variant]
    w, rows, watch = WORKLOADS[name], load(name), Watch()
    parts = [(torch.from_numpy(rows.x[rows.site(k)]), torch.from_numpy(rows.y[rows.site(k)])) for k in range(w.sites)]
    weights = rows.weights.tolist()
    net = network(name)
    glob = {n: t.clone() for n, t in net.state_dict().items()}
    watch.mark()
    for r in range(w.rounds):
        states = []
        for k, (x, y) in enumerate(parts):
            net.load_state_dict(glob)
            orders = shuffles(k, r, len(x), w.epochs)
            train(net, x, y, [i for order in orders for i in torch.from_numpy(order).split(w.batch)], w)
            states.append({n: t.clone() for n, t in net.state_dict().items()})
        glob = averaged(states, weights)
        watch.mark()
    net.load_state_dict(glob)
    watch.report(accuracy(net, rows))


if __name__ == "__main__":
    main()
