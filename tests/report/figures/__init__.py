"""Rounds and bins for the tests of figures."""

from __future__ import annotations

from grandrounds.report.figure import Figure
from tests.report import records

BINS = {
    "of": "positive class",
    "edges": [0.0, 0.25, 0.5, 0.75, 1.0],
    "count": [40, 0, 10, 3],
    "confidence": [0.1, None, 0.6, 0.9],
    "outcome": [0.05, None, 0.7, 1.0],
}

CURVE = {"thresholds": [0.1, 0.3, 0.5], "model": [0.3, 0.2, 0.1], "treat_all": [0.28, 0.04, -0.4]}


def weighed(name: str = "c") -> list[dict]:
    """Three rounds weighed by reasons in cohorts; the second asked for no reasons, in the third `name` is alone."""
    away = [{"a": 0.1, "b": 0.2, name: 0.9}, {}, {"a": 0.3, "b": 0.0, name: 0.0}]
    of = [{"a": 1, "b": 1, name: 1}, {"a": 1, "b": 2, name: 2}, {"a": 1, "b": 1, name: 2}]
    return [
        {
            "round": r + 1,
            "decision": {
                "round": r + 1,
                "weights": {"a": 0.5, "b": 0.4, name: 0.1},
                "signals": {"disagreement": away[r]} if away[r] else {},
                "cohorts": {"of": of[r], "count": max(of[r].values()), "consistency": (None, 0.0, -0.5)[r]},
            },
        }
        for r in range(3)
    ]


def attended(name: str = "c") -> list[dict]:
    """Two rounds of three sites: all are there; then `name` is missing, by its own words, and b is not asked."""
    cost = [{"bytes_down": 3e6, "bytes_up": 1e6, "seconds": 2.0}, {"bytes_down": 2e6, "bytes_up": 5e5, "seconds": 4.0}]
    asked, missing = [["a", "b", name], ["a", name]], [{}, {name: name}]
    return [
        {"round": r + 1, "decision": {"round": r + 1, "asked": asked[r], "missing": missing[r], "cost": cost[r]}}
        for r in range(2)
    ]


def scored_locally(name: str = "c") -> list[dict]:
    """Two evaluated rounds of three; the model of `name` knows its own rows and no others, and in the second it is away."""
    told = [
        {
            "train_accuracy": {"a": 0.8, name: 1.0},
            "others_train": {"a": 0.7, name: 0.3},
            "external": {"a": 0.6, name: 0.2},
        },
        {"train_accuracy": {"a": 0.9}, "others_train": {"a": None}, "external": {"a": 0.5}},
    ]
    rounds = records(("a", name))
    return [{**rounds[0], "local": told[0]}, rounds[1], {**rounds[2], "local": told[1]}]


def mapped() -> list[dict]:
    """Heat maps after two rounds of three; of the first there is nothing to compare with."""
    since = {f"{whose}_{how}": None for whose in ("local", "common") for how in ("ssim", "rank")}
    first = {
        "local": {"concentration": 0.1},
        "common": {"concentration": 0.2},
        "alike": {"ssim": 0.5, "rank": 0.4},
        "since": since,
    }
    last = {**first, "since": dict.fromkeys(since, 0.9)}
    told = [{"maps": {"means": {"grad_cam": own, "normgrad": own}}} for own in (first, last)]
    return [{"round": 1, **told[0]}, {"round": 2}, {"round": 3, **told[1]}]


def trace(figure: Figure, name: str) -> dict:
    return next(t for t in figure["data"] if t.get("name", "").startswith(name))


def selected(name: str = "c") -> list[dict]:
    """Two rounds in which XFed selects two of three sites: b is left out, then `name`."""
    score = [{"a": 0.9, "b": 0.2, name: 0.5}, {"a": 0.8, "b": 0.6, name: 0.1}]
    place = [{"a": 1, "b": 3, name: 2}, {"a": 1, "b": 2, name: 3}]
    return [
        {
            "round": r + 1,
            "decision": {
                "round": r + 1,
                "asked": ["a", "b", name],
                "weights": {s: 0.5 for s in place[r] if place[r][s] < 3},
                "signals": {"accuracy": score[r], "score": score[r], "place": place[r]},
            },
        }
        for r in range(2)
    ]
