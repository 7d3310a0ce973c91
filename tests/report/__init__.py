"""Small explanations and rounds for the tests of figures and pages, with numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.core.records import RoundRecord, RunSummary

EVIL = '<script>alert(1)</script></script><i>&"sloping"'
"""A name from data that would like to be more than a name."""


def typed(rounds: list[dict[str, Any]]) -> list[RoundRecord]:
    """Round records as `Run.rounds` has them; what a study keeps has no Decision."""
    return [RoundRecord.from_dict({"decision": {}, **values}) for values in rounds]


def summary(**values: Any) -> RunSummary:
    """A summary with these values and nothing else."""
    names = dict.fromkeys(("name", "method", "model", "data"), "")
    numbers = {key: {} for key in ("sites", "final", "per_site", "rows", "privacy", "cost")}
    return RunSummary.from_dict({**names, **numbers, "seed": 0, "rounds": 0, **values})


def block(sketches: dict[str, list[float]], *, k: int = 2, before: list[float] | None = None, **more: Any) -> dict:
    """A block of explanations.json from sketches, worked out the plain way."""
    sites, e = list(sketches), np.array(list(sketches.values()))
    consensus = e.mean(axis=0)
    apart = np.abs(e[:, None] - e[None]).sum(axis=-1)
    tops = [set(np.argsort(-row, kind="stable")[:k].tolist()) for row in e]
    shared = np.array([[len(a & b) / len(a | b) for b in tops] for a in tops])
    pairs = np.triu_indices(len(sites), 1)
    return {
        "sketches": sketches,
        "error": {s: [0.01] * e.shape[1] for s in sites},
        "flat": [],
        "consensus": consensus.tolist(),
        "drift": float(apart[pairs].mean()),
        "pairs": {"sites": sites, "drift": apart.tolist(), "jaccard": shared.tolist()},
        "to_consensus": {s: float(np.abs(row - consensus).sum()) for s, row in zip(sites, e, strict=True)},
        "consensus_drift": None if before is None else float(np.abs(consensus - before).sum()),
        "jaccard": float(shared[pairs].mean()),
        "k": k,
        "rank_correlation": 0.5,
        "nsds": dict.fromkeys(sites, 0.1),
        "sampling": 0.05,
        **more,
    }


def explanations(name: str = "c", feature: str = "lactate") -> dict[str, Any]:
    """Three sites and three features: two rounds of training, the second alone with the model in use."""
    first = block({"a": [0.6, 0.3, 0.1], "b": [0.6, 0.3, 0.1], name: [0.0, 0.2, 0.8]}, sampling=None)
    second = block({"a": [0.5, 0.3, 0.2], name: [0.1, 0.3, 0.6]}, before=first["consensus"], sampling=None)
    deployed = block({"a": [0.5, 0.4, 0.1], "b": [0.4, 0.4, 0.2], name: [0.3, 0.4, 0.3]}, flat=["b"])
    return {
        "schema": 1,
        "sketch": {"explainer": "permutation", "score": "log_loss", "repeats": 3, "at": "server", "every": 1, "k": 2},
        "features": ["age", feature, "ward"],
        "grid": None,
        "rounds": [{"round": 1, "training": first}, {"round": 3, "training": second, "deployed": deployed}],
        "final": deployed,
    }


def many(sites: int, rounds: int = 1, *, pairs: bool) -> dict[str, Any]:
    """Explanations of many sites, site-1 the farthest from the consensus."""
    rest = sites - 1
    held = {f"site-{k + 1}": [k / rest, 1 - k / rest, 0.0] for k in reversed(range(sites))}
    held["site-1"] = [0.0, 0.0, 1.0]
    made = block(held, **({} if pairs else {"pairs": None}))
    told = [{"round": r + 1, "training": made} for r in range(rounds)]
    return {**explanations(), "rounds": told, "final": {}}


def records(sites: tuple[str, ...] = ("a", "b", "c"), rounds: int = 3) -> list[dict[str, Any]]:
    """Round records in which site k has accuracy 0.5 + k / 100 + round / 1000 and weight in proportion to k + 1."""
    total = sum(range(1, len(sites) + 1))
    out = []
    for r in range(1, rounds + 1):
        accuracy = {s: 0.5 + k / 100 + r / 1000 for k, s in enumerate(sites)}
        whole = {"accuracy": 0.8 + r / 100, "auroc": 0.9, "majority": 0.6, "log_loss": 1 / r}
        weights = {s: (k + 1) / total for k, s in enumerate(sites)}
        size = {s: 10.0 * (k + 1) for k, s in enumerate(sites)}
        decision = {"round": r, "weights": weights, "signals": {"data_size": size}, "missing": {}}
        out.append(
            {"round": r, "test": whole, "val": whole, "sites": {"accuracy": accuracy, "log_loss": accuracy}, "decision": decision}
        )  # fmt: skip
    return out


RULE = {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "tau": 0.5, "kappa": 0.0, "form": "exponential", "signed": False}
RULE |= {"reasons": False}


def trusting(
    sites: tuple[str, ...] = ("a", "b", "c"), rounds: int = 3, feature: str = "lactate"
) -> list[dict[str, Any]]:
    """Rounds that keep trust: the last site is 1.2 nats off and right on a tenth of rows, all others alike."""
    out = []
    for r in range(1, rounds + 1):
        nsds = {s: 1.2 if s == sites[-1] else 0.1 for s in sites}
        accuracy = {s: 0.1 if s == sites[-1] else 0.9 for s in sites}
        trust = {s: 0.5 * accuracy[s] + 0.3 * float(np.exp(-nsds[s])) + 0.2 for s in sites}
        contribution = {s: -0.02 if s == sites[-1] else 0.01 for s in sites}
        signals = {
            "data_size": dict.fromkeys(sites, 10.0),
            "accuracy": accuracy,
            "nsds": nsds,
            "steadiness": dict.fromkeys(sites, 1.0),
            "consistency": dict.fromkeys(sites, 1.0),
            "trust": trust,
            "contribution": contribution,
            "reward": {s: trust[s] * contribution[s] for s in sites},
        }
        decision = {"round": r, "weights": dict.fromkeys(sites, 1 / len(sites)), "signals": signals, "missing": {}}
        out.append({"round": r, "decision": {**decision, "reasons": {"age": 0.7, feature: 0.3}}})
    return out
