"""Federated XGBoost of Flower beside the product's trees: AUROC, bytes of a site and CPU seconds on the same five folds.

    python3 -m venv peers && peers/bin/pip install flwr==1.41.0 xgboost-cpu==3.2.0 scikit-learn==1.9.1 pandas==3.1.1
    export PYTHONPATH=src:bench OMP_NUM_THREADS=1
    peers/bin/python bench/peers_trees.py heart
    peers/bin/python bench/peers_trees.py eicu-demo --folds 2      # Flower's merging of JSON boosters takes long

Flower's own strategies run: `FedXgbBagging` and `FedXgbCyclic` of flwr.serverapp.strategy, started by their `start()`. The client
does what Flower's xgboost examples do: a round of boosting from the global booster, of which bagging sends the new tree and
cyclic the whole booster. Messages are Flower's, delivered in this process without a network; their bytes are those of the
boosters. Settings are those of the examples (rate 0.1, depth 8, hist) for 80 rounds; "scaled" divides the rate by the number
of sites, as the comprehensive example does with `scaled_lr`. All sites take part in every round of bagging, one in turn in a
cyclic round. The histogram-based XGBoost of NVFlare needs a library built with USE_FEDERATED, which the packages on PyPI lack.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from folds import FOLDS, Fold, auroc, make_fold
from grandrounds.capabilities.statistics.question import Rows
from grandrounds.core.arrays import Array
from smoke import need, pick

ROUNDS = pick(80, 2)
PARAMS = {
    "objective": "binary:logistic", "eta": 0.1, "max_depth": 8, "eval_metric": "auc", "nthread": 1, "num_parallel_tree": 1,
    "subsample": 1, "tree_method": "hist", "seed": 0,
}  # fmt: skip
"""Settings of Flower's quickstart-xgboost, with one thread."""


@dataclass
class Traffic:
    """Bytes that one site sends and receives, on average over the sites."""

    up: float = 0.0
    down: float = 0.0
    exchanges: int = 0


@dataclass(frozen=True)
class Score:
    """One fit: AUROC on the test rows, traffic, CPU seconds."""

    auroc: float
    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0


def fit_flower(fold: Fold, *, cyclic: bool, scaled: bool) -> Score:
    """Train federated XGBoost with Flower's strategy on the sites of a fold."""
    import xgboost as xgb
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic
    from flwr.supercore.task_identity import TaskIdentity

    random.seed(0)  # the strategy draws the order of nodes
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # what a ServerApp's process sets
    traffic = Traffic()
    sites = dict(enumerate(fold.sites.values(), start=1))
    rows = {node: _matrix(fold, part) for node, part in sites.items()}
    params = PARAMS | ({"eta": PARAMS["eta"] / len(sites)} if scaled else {})  # type: ignore[operator]

    def train(message: Message) -> RecordDict:
        """Do what the client of Flower's example does."""
        node = message.metadata.dst_node_id
        sent = message.content["arrays"]["0"].numpy().tobytes()
        if not sent:
            booster = xgb.train(params, rows[node], num_boost_round=1)
        else:
            booster = xgb.Booster(params=params)
            booster.load_model(bytearray(sent))
            booster.update(rows[node], booster.num_boosted_rounds())
            booster = booster if cyclic else booster[booster.num_boosted_rounds() - 1 : booster.num_boosted_rounds()]
        answer = np.frombuffer(booster.save_raw("json"), np.uint8)
        traffic.up += len(answer) / len(sites)
        traffic.down += len(sent) / len(sites)
        return RecordDict({"arrays": ArrayRecord([answer]), "metrics": MetricRecord({"num-examples": rows[node].num_row()})})

    class MemoryGrid(Grid):
        """Delivers Flower's messages in this process."""

        def set_run(self, run: object) -> None: ...

        @property
        def run(self) -> object:
            return None

        def create_message(self, *args: object, **more: object) -> Message:
            raise RuntimeError("strategies only call send_and_receive, not create_message")

        def push_messages(self, messages: object) -> object:
            raise RuntimeError("strategies only call send_and_receive, not push_messages")

        def pull_messages(self, message_ids: object) -> object:
            raise RuntimeError("strategies only call send_and_receive, not pull_messages")

        def get_node_ids(self) -> Iterable[int]:
            return list(sites)

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            training = [m for m in messages if m.metadata.message_type == "train"]  # no evaluation at the sites
            traffic.exchanges += bool(training)
            return [Message(train(m), reply_to=m) for m in training]

    logging.getLogger("flwr").setLevel(logging.ERROR)
    kind = FedXgbCyclic if cyclic else FedXgbBagging
    strategy = kind(fraction_train=1.0, fraction_evaluate=0.0)
    begun = time.process_time()
    result = strategy.start(MemoryGrid(), ArrayRecord([np.empty(0, np.uint8)]), num_rounds=ROUNDS)
    seconds = time.process_time() - begun
    booster = xgb.Booster(params=params)
    booster.load_model(bytearray(result.arrays["0"].numpy().tobytes()))
    return Score(auroc(fold.test.y, booster.predict(_matrix(fold, fold.test))), traffic, seconds)


def fit_pooled(fold: Fold) -> Score:
    """Train XGBoost with the same settings on pooled rows."""
    import xgboost as xgb

    rows = _matrix(fold, fold.train)
    begun = time.process_time()
    booster = xgb.train(PARAMS, rows, num_boost_round=ROUNDS)
    seconds = time.process_time() - begun
    return Score(auroc(fold.test.y, booster.predict(_matrix(fold, fold.test))), seconds=seconds)


def _matrix(fold: Fold, rows: Rows) -> object:
    import xgboost as xgb

    types = ["c" if c.is_category else "q" for c in fold.columns]
    return xgb.DMatrix(fold.values(rows), label=rows.y, feature_types=types, enable_categorical=True, nthread=1)


PEERS: Mapping[str, Callable[[Fold], Score]] = {
    "Flower, bagging": lambda fold: fit_flower(fold, cyclic=False, scaled=False),
    "Flower, bagging, scaled": lambda fold: fit_flower(fold, cyclic=False, scaled=True),
    "Flower, cyclic": lambda fold: fit_flower(fold, cyclic=True, scaled=False),
    "XGBoost, pooled rows": fit_pooled,
}


def main() -> None:
    """Print one line for each cohort and way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cohorts", nargs="*", default=["heart"])
    parser.add_argument("--folds", type=int, default=pick(FOLDS, 1), help="the first so many of the five folds")
    args = parser.parse_args()
    need("flwr", "xgboost")
    print("| cohort | way | AUROC | exchanges | MB up of a site | MB down | CPU seconds |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for cohort in args.cohorts:
        folds = [make_fold(cohort, k) for k in range(args.folds)]
        for name, fit in PEERS.items():
            scores = [fit(fold) for fold in folds]
            areas: Array = np.array([s.auroc for s in scores])
            up, down = (np.mean([getattr(s.traffic, way) for s in scores]) / 1e6 for way in ("up", "down"))
            exchanges = scores[0].traffic.exchanges or "rows leave"
            seconds = np.mean([s.seconds for s in scores])
            print(
                f"| {cohort} | {name} | {areas.mean():.3f} +- {areas.std():.3f} | {exchanges} | {up:.2f} | {down:.2f} | "
                f"{seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
