"""Check of reported scores by the server (score_at = "server"), which is not in the paper: sites score themselves there."""

from __future__ import annotations

from math import exp

import numpy as np

from grandrounds.explain.rationale import REPORT, RationaleRule
from grandrounds.methods.base import Server
from grandrounds.methods.xfed.ranking import SIGNALS
from grandrounds.protocol.messages import Answers

SEEN = "seen_"
"""Before the name of a signal: the server's own score."""


def score_at_server(server: Server, models: Answers, rule: RationaleRule) -> dict[str, dict[str, float]]:
    """Score the received models on the server's copy of the scoring images; a difference changes no weight."""
    assert server.reference is not None
    scores = server.reference.rationale(models["model"], rule)
    return {
        f"{SEEN}{signal}": dict(zip(models.sites, scores[f"{REPORT}.{name}"].tolist(), strict=True))
        for name, signal in SIGNALS.items()
        if np.isfinite(scores[f"{REPORT}.{name}"]).any()
    }


def find_discrepancies(models: Answers, server_scores: dict[str, dict[str, float]], *, tolerance: float) -> tuple[str, ...]:
    """List the sites whose reported scores differ from the server's. A loss has no upper bound, so exp(-loss) is compared."""
    out = []
    for name, signal in SIGNALS.items():
        for site, reported in zip(models.sites, np.asarray(models[f"{REPORT}.{name}"], float).tolist(), strict=True):
            computed = server_scores.get(f"{SEEN}{signal}", {}).get(site)
            if computed is None:
                continue
            difference = abs(exp(-reported) - exp(-computed)) if name == "loss" else abs(reported - computed)
            if difference > tolerance:
                label = {"xai": "XAI accuracy", "grid": "grid accuracy"}.get(signal, signal.replace("_", " "))
                out.append(f"{site}: says {label} {reported:.3f}, but the server computes {computed:.3f}")
    return tuple(out)
