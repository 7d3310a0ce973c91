"""A Grid whose nodes are ClientApps; what an app leaves in its Context stays with its node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from tests.near_grid import NearGrid, Spoil


def app_grid(
    apps: Mapping[int, ClientApp], *, run_config: Mapping[str, Any] | None = None, spoil: Spoil | None = None
) -> NearGrid:
    held = {}
    for k, (node, app) in enumerate(apps.items()):
        told = {"partition-id": k, "num-partitions": len(apps)}
        held[node] = partial(app, context=Context(1, node, told, RecordDict(), dict(run_config or {})))
    return NearGrid(held, spoil=spoil)
