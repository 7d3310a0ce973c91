"""pfl (github.com/apple/pfl-research), torch, one process: SimulatedBackend, FedAvg weighted by rows, evaluation off.

PYTHONPATH=bench python bench/ports/pfl_peer.py W1
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from workloads import WORKLOADS, Watch, accuracy, load, network, shuffles

NEVER = WHOLE = 10**9


class Shuffled(Dataset):
    """One site's rows in one round: pfl's own set keeps one order for ever, this one takes the shared shuffles."""

    orders: Iterator[Any]

    def iter(self, batch_size: int | None) -> Iterator[Any]:
        if batch_size is None or batch_size >= WHOLE:
            yield self.raw_data
            return
        for i in torch.from_numpy(next(self.orders)).split(batch_size):
            yield [t[i] for t in self.raw_data]


class Timed(TrainingProcessCallback):
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.watch.mark()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.watch.mark()
        return False, Metrics()


def main() -> None:
    name = sys.argv[1]
    torch.set_num_threads(1)
    w, rows, watch = WORKLOADS[name], load(name), Watch()
    x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
    rounds_done = [0] * w.sites

    def user(k: int) -> Shuffled:
        mine = Shuffled((x[rows.site(k)], y[rows.site(k)]), user_id=str(k))
        mine.orders = shuffles(k, rounds_done[k], len(mine), w.epochs)
        rounds_done[k] += 1
        return mine

    net = network(name)
    net.loss = types.MethodType(lambda self, a, b: torch.nn.functional.cross_entropy(self(a), b), net)
    net.metrics = types.MethodType(lambda self, a, b: {"loss": Weighted(0.0, len(a))}, net)
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    sites = list(range(w.sites))
    train, validate = (FederatedDataset(user, get_user_sampler("minimize_reuse", sites)) for _ in range(2))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=w.rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=w.sites,
            val_cohort_size=0,
        ),
        SimulatedBackend(train, validate, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=w.epochs, local_learning_rate=w.lr, local_batch_size=w.batch),
        NNEvalHyperParams(local_batch_size=WHOLE),
        callbacks=[Timed(watch)],
        send_metrics_to_platform=False,
    )
    if rounds_done != [w.rounds] * w.sites:
        raise SystemExit(f"sites took part in {sorted(set(rounds_done))} rounds, should be {w.rounds}")
    watch.report(accuracy(net, rows))


if __name__ == "__main__":
    main()
