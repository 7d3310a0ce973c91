"""fluke (github.com/makgyver/fluke): CentralizedFL, which is FedAvg, weighted by rows, evaluation off.

    PYTHONPATH=bench python bench/ports/fluke_peer.py W1

fluke shuffles by itself, so its accuracy may differ a little from that of the other ports.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torchvision_stub  # noqa: F401  (before fluke)
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval

from workloads import WORKLOADS, Rows, Watch, accuracy, load, network


class Given:
    """Stands in for fluke's DataSplitter: the sites' rows as they are."""

    def __init__(self, rows: Rows, classes: int) -> None:
        self.rows, self.classes = rows, classes

    def assign(self, n_clients: int, batch_size: int) -> Any:
        x, y = torch.from_numpy(self.rows.x), torch.from_numpy(self.rows.y)
        mine = [self.rows.site(k) for k in range(n_clients)]
        settings = {"num_labels": self.classes, "batch_size": batch_size, "shuffle": True, "skip_singleton": False}
        return ([FastDataLoader(x[at], y[at], **settings) for at in mine], [None] * n_clients), None


class Timed(CentralizedFL):
    watch: Watch

    def notify(self, event: str, **more: Any) -> Any:
        if event == "end_round" or (event == "start_round" and not self.watch.began):
            self.watch.mark()
        return super().notify(event, **more)


def main() -> None:
    name = sys.argv[1]
    torch.set_num_threads(1)
    w, rows = WORKLOADS[name], load(name)
    classes = int(rows.test_y.max()) + 1
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_inmemory(True)
    environment.set_evaluator(ClassificationEval(eval_every=10**9, n_classes=classes))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client = DDict(
        batch_size=w.batch,
        local_epochs=w.epochs,
        loss=torch.nn.CrossEntropyLoss,
        optimizer=DDict(name="SGD", lr=w.lr),
        scheduler=DDict(name="StepLR", gamma=1.0, step_size=1),
    )
    settings = DDict(client=client, server=DDict(weighted=True), model=network(name))
    Timed.watch = Watch()
    algorithm = Timed(w.sites, Given(rows, classes), settings)
    algorithm.run(w.rounds, 1.0)
    Timed.watch.report(accuracy(algorithm.server.model, rows))


if __name__ == "__main__":
    main()
