"""A small additive model, trees and a risk card with numbers that can be checked by hand, as summary.json has them."""

from __future__ import annotations

from typing import Any

EXCHANGES = {"count": 8, "numbers_sent": 480, "numbers_held": 2400, "ratio": 0.2, "bytes_up": 3840, "bytes_down": 960}


def number(name: str = "age", **more: Any) -> dict[str, Any]:
    """A curve over five points: median 60 (40 of 100 patients), 10th percentile 50, 90th 70."""
    return {
        "name": name, "kind": "number", "unit": "years", "values": [40.0, 50.0, 60.0, 70.0, 80.0],
        "effect": [-1.0, -0.5, 0.0, 0.7, 0.9], "se": [0.5, 0.2, 0.1, 0.2, 0.6], "rows": [5, 25, 40, 25, 5],
        "missing": {"effect": 0.3, "se": 0.25, "rows": 20}, "edf": 2.4, "used": True, "monotone": "up", **more,
    }  # fmt: skip


def category(name: str = "pain", **more: Any) -> dict[str, Any]:
    """Three levels, the second the most frequent; no value is missing."""
    return {
        "name": name, "kind": "category", "values": ["none", "typical", "other"], "effect": [-0.4, 0.2, 0.1],
        "se": [0.1, 0.1, 0.3], "rows": [50, 60, 10], "missing": None, "edf": 1.8, "used": True, "monotone": None, **more,
    }  # fmt: skip


def shapes(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The key `shapes` of summary.json: the category before the number, and a column that is not used."""
    unused = number("height", effect=[0.0] * 5, missing=None, edf=0.01, used=False, monotone=None, unit="")
    return {
        "intercept": -1.2, "family": "logistic", "columns": list(columns) or [category(), number(), unused],
        "exchanges": dict(EXCHANGES), "sites": ["a", "b", "c"], "rows": 120, "notes": ["age is sparse above 75"], **more,
    }  # fmt: skip


def trees(**more: Any) -> dict[str, Any]:
    """The key `trees` of summary.json."""
    return {
        "trees": 160, "rounds": 20, "depth": 4, "parallel": 8, "bins": 32,
        "cells": {"asked": 4000, "filled": 1000, "single": 220, "share_single": 0.22},
        "validation": [0.69, 0.5, 0.45, 0.46], "exchanges": {**EXCHANGES, "count": 80}, "sites": ["a", "b", "c"],
        "rows": 120, "notes": [], **more,
    }  # fmt: skip


def card(**more: Any) -> dict[str, Any]:
    """The key `card` of summary.json: totals from -1 (young, nothing else) to 6."""
    terms = [
        {"text": "age at most 40 years", "column": "age", "kind": "at most", "value": 40.0, "points": -1},
        {"text": "age above 60 years", "column": "age", "kind": "above", "value": 60.0, "points": 2},
        {"text": "age above 75 years", "column": "age", "kind": "above", "value": 75.0, "points": 1},
        {"text": "pain: typical", "column": "pain", "kind": "level", "value": "typical", "points": 3},
        {"text": "pain: not known", "column": "pain", "kind": "missing", "value": None, "points": 1},
    ]
    risks = [(-1, -1, 0.02), (0, 1, 0.084), (2, 2, 0.2), (3, 4, 0.45), (5, 6, 0.81)]
    totals = [
        {"from": a, "to": b, "rows": 20 + 4 * k, "events": k * 5, "risk": r, "low": r / 2, "high": (1 + r) / 2}
        for k, (a, b, r) in enumerate(risks)
    ]
    return {
        "terms": terms, "totals": totals, "route": "distilled", "scale": 0.7, "base": -3.1,
        "exchanges": {**EXCHANGES, "count": 11}, "sites": ["a", "b", "c"], "rows": 140, "notes": [], **more,
    }  # fmt: skip
