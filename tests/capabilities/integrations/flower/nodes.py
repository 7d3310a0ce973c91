"""Nodes that answer what a test tells them to, and a round of a strategy over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from grandrounds.capabilities.integrations.flower.client import metric_key
from tests.capabilities.integrations.flower.grid import app_grid


def model(vector: np.ndarray) -> ArrayRecord:
    """A vector (P,) as two arrays, so that packing has something to do."""
    half = len(vector) // 2
    return ArrayRecord({"a": Array(vector[:half].reshape(1, -1)), "b": Array(vector[half:])})


def vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([arrays["a"].numpy().ravel(), arrays["b"].numpy()])


def ours(**columns: Any) -> dict[str, Any]:
    """Columns of reports (dots written as double underscores) as a MetricRecord has them."""
    return {
        metric_key(name.replace("__", ".")): v.tolist() if isinstance(v, np.ndarray) else v
        for name, v in columns.items()
    }


def says(theta: np.ndarray | None, **metrics: Any) -> ClientApp:
    """A client that answers training with this model and these metrics."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        content = RecordDict({"metrics": MetricRecord(metrics)})
        if theta is not None:
            content["arrays"] = model(theta)
        return Message(content, reply_to=message)

    return app


def raises(why: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        raise ValueError(why)

    return app


def played(strategy: Strategy, apps: Mapping[int, ClientApp], start: np.ndarray, *, round: int = 1, spoil=None):
    """One round of training: the model and the metrics that come of it."""
    grid = app_grid(apps, spoil=spoil)
    messages = strategy.configure_train(round, model(start), ConfigRecord(), grid)
    return strategy.aggregate_train(round, grid.send_and_receive(messages))
