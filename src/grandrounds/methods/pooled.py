"""Centralised training: what one could reach if rows might move, and so the upper reference of any comparison."""

from __future__ import annotations

from grandrounds.methods.fedavg import FedAvg

POOLED = "pooled"
"""The method that trains in one place."""

POOL = "pooled rows"
"""The name of the one site that holds every hospital's training rows then."""


class Pooled(FedAvg):
    """FedAvg over a single site that holds all training rows; hospitals validate and test as ever (`runs/federation.py`)."""

    name = POOLED
    title = "Pooled: all training rows in one place, as no hospital may do it (the upper reference)"
    parts = frozenset()
