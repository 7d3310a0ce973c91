"""The server's side: one file an algorithm, and one line here."""

from __future__ import annotations

from typing import Any

from grandrounds.methods.base import Method
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedprox import FedProx

METHODS: dict[str, type[Method]] = {m.name: m for m in (FedAvg, FedProx)}


def build_method(settings: Any, train: Any) -> Method:
    """The method an experiment names."""
    return METHODS[settings.name](settings, train)
