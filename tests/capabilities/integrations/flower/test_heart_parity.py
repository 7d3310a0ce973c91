"""The same hospitals, the same local training: `grandrounds.run` and the Flower strategy end with the same model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import grandrounds as gr
from grandrounds.capabilities.integrations.flower import SSEAgg
from grandrounds.capabilities.integrations.flower.client import sse_report
from grandrounds.core.plan import Settings
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import Ask
from grandrounds.runs.federation import assemble
from grandrounds.runs.references import ServerRows
from grandrounds.runs.setup import set_up_run
from tests.capabilities.integrations.flower.grid import app_grid

ROUNDS = 4
WEIGH = {
    "form": "inverse",
    "sharpness": 2.0,
    "lambdas": {"data": 0.3, "agreement": 0.4, "worst_site": 0.2, "calibration": 0.1},
}
EXPERIMENT = {
    "data": {"name": "heart"},
    "reference": {"rows": {"rows": 60}},
    "method": {"name": "sse-agg", "rounds": ROUNDS, "stability": "none", "weigh": WEIGH},
    "train": {"epochs": 1, "batch": 32, "lr": 0.1},
    "explain": {"sketch": "permutation"},
    "engine": {"precision": "float64"},
    "evaluation": {"calibrate": "none"},
}


class Hospitals:
    """The hospitals of an experiment, each as a Flower client that trains with the package's own kernel."""

    def __init__(self, plan: Settings) -> None:
        self.plan = plan
        consortium = assemble(plan)
        self.opening = set_up_run(plan, consortium, None)
        self.engine, self.sites = self.opening.engine, consortium.training
        self.host = self.engine.hosts[0]
        self.reference = ServerRows.of("rows", plan, consortium, self.opening).part
        self.method = build_method(plan.method, plan.train)

    def client(self, site: str) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: object) -> Message:
            round = int(message.content["config"]["server-round"])
            work = self.method.train_config(Server(round, np.zeros(0), self.sites, self.plan.seed))
            start = message.content["arrays"]["theta"].numpy()
            ask = Ask("train", shared={"model": start, **work}, to=(site,), report=("model", "count"))
            answers = self.engine.drive(_one(ask), round=round)
            theta = answers["model"][0]
            metrics = MetricRecord({"num-examples": int(answers["count"][0]), **self.report(site, theta)})
            return Message(RecordDict({"arrays": record(theta), "metrics": metrics}), reply_to=message)

        return app

    def report(self, site: str, theta: np.ndarray) -> dict:
        """By the client's helper, from a callable: the package's own explainers are not asked."""
        k = self.host.stack.names.index(site)
        val = self.host.stack.parts["val"]
        mine = slice(int(val.offsets[k]), int(val.offsets[k + 1]))
        return sse_report(
            lambda x: 1 / (1 + np.exp(-self.host.model.logits(theta, x)[:, 0])),
            self.reference.x,
            self.reference.y,
            columns=self.opening.encoding.sources,
            seed=self.plan.seed,
            repeats=self.plan.explain.repeats,
            validation=(val.x[mine], val.y[mine]),
        )


def record(theta: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"theta": Array(theta)})


def _one(ask: Ask):
    return (yield ask)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return gr.run(gr.Experiment.parse(EXPERIMENT), out=tmp_path_factory.mktemp("runs") / "heart")


def test_the_strategy_ends_with_the_model_of_the_local_engine(local):
    plan = Settings(gr.Experiment.parse(EXPERIMENT).plan())
    held = Hospitals(plan)
    nodes = {101 + k: held.client(site) for k, site in enumerate(held.sites)}
    strategy = SSEAgg(WEIGH, min_train_nodes=len(nodes), fraction_evaluate=0.0)
    start = record(held.host.model.init(plan.seed, np.float64))
    result = strategy.start(grid=app_grid(nodes), initial_arrays=start, num_rounds=ROUNDS)

    rounds = [r["decision"] for r in local.rounds]
    assert len(strategy.decisions) == len(rounds) == ROUNDS
    name = {str(101 + k): site for k, site in enumerate(held.sites)}
    for own, theirs in zip(strategy.decisions, rounds, strict=True):
        assert {name[n]: w for n, w in own["weights"].items()} == pytest.approx(theirs["weights"], abs=1e-6)
        for signal in ("disagreement", "val_loss", "ece"):
            mine = {name[n]: v for n, v in own["signals"][signal].items()}
            assert mine == pytest.approx(theirs["signals"][signal], abs=1e-6)
    spread = max(abs(w - 1 / 4) for d in rounds for w in d["weights"].values())
    assert spread > 0.05, "weights that are all alike would show nothing"
    theta = result.arrays["theta"].numpy()
    whole = local.model.theta
    assert np.allclose(theta, whole, rtol=0, atol=1e-6)
    assert np.abs(whole).max() > 0.1


def test_decisions_are_plain_json(local):
    plan = Settings(gr.Experiment.parse(EXPERIMENT).plan())
    held = Hospitals(plan)
    nodes = {101 + k: held.client(site) for k, site in enumerate(held.sites)}
    strategy, grid = SSEAgg(min_train_nodes=4), app_grid(nodes)
    messages = strategy.configure_train(1, record(held.host.model.init(plan.seed, np.float64)), ConfigRecord(), grid)
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    (decision,) = json.loads(json.dumps(strategy.decisions))
    assert set(decision) == set(local.rounds[0]["decision"])
