"""Characteristics of the training rows for a dossier: the few numbers of percentiles.json that a paper prints.

percentiles.json has up to 200 quantiles of each column. A dossier leaves the consortium, so it carries the mean, the quartiles
and the share of missing values instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from grandrounds.core.arrays import parse_json

FILE = "percentiles.json"


def describe_columns(data: bytes) -> dict[str, Any]:
    """Describe the columns of the training rows.

    Args:
        data: Content of percentiles.json.

    Returns:
        `from`, `sha256`, `rows`, `noised`, and `columns`: name -> `mean`, `quartiles` (three numbers; empty where there are no
        quantiles), `missing` for numbers, `levels` (name -> share) and `missing` for categories.

    Raises:
        BadInput: The file is damaged.
    """
    found = parse_json(data, where=FILE)
    columns: dict[str, Any] = {name: _describe_number(c) for name, c in found.get("numeric", {}).items()}
    columns |= {name: _describe_category(c) for name, c in found.get("categorical", {}).items()}
    facts = {"rows": found.get("rows"), "noised": found.get("noised") or "", "columns": columns}
    return {"from": FILE, "sha256": sha256(data).hexdigest(), **facts}


def _describe_number(column: Mapping[str, Any]) -> dict[str, Any]:
    quantiles: Sequence[float] = column.get("quantiles") or ()
    return {"mean": column.get("mean"), "quartiles": _quartiles(quantiles), "missing": column.get("missing")}


def _describe_category(column: Mapping[str, Any]) -> dict[str, Any]:
    return {"levels": dict(column.get("levels") or {}), "missing": column.get("missing")}


def _quartiles(quantiles: Sequence[float]) -> list[float]:
    """Read the quartiles from quantiles at (i + 1/2) / n, by linear interpolation."""
    n = len(quantiles)
    if n < 4:
        return []
    out = []
    for share in (0.25, 0.5, 0.75):
        at = min(max(share * n - 0.5, 0.0), n - 1.0)
        k = min(int(at), n - 2)
        out.append(float(quantiles[k] + (at - k) * (quantiles[k + 1] - quantiles[k])))
    return out
