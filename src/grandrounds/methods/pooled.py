"""Centralised training: what one could reach if rows might move, and so the upper reference of any comparison."""

from __future__ import annotations

from grandrounds.methods.fedavg import FedAvg


class Pooled(FedAvg):
    """FedAvg over a single site that holds all training rows; hospitals validate and test as ever (`consortium.py`)."""

    name = "pooled"
    title = "Pooled: all training rows in one place, as no hospital may do it (the upper reference)"
    parts = frozenset()
