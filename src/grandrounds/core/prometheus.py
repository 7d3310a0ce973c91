"""Metrics in the text format of Prometheus, for a page (`/metrics`) or a file of the textfile collector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Metrics = Mapping[str, tuple[str, str, Mapping[str, float]]]
"""name -> (counter or gauge, help, labels in Prometheus' format -> value)."""


def prometheus(metrics: Metrics) -> str:
    """Format metrics in Prometheus' text format."""
    lines = []
    for name, (kind, about, values) in metrics.items():
        escaped = about.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{'{' + labels + '}' if labels else ''} {_number(value)}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def label(**words: str) -> str:
    """Format the escaped labels of one value."""
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in words.items()}
    return ",".join(f'{k}="{v}"' for k, v in escaped.items())


def merge_metrics(parts: Iterable[Metrics]) -> Metrics:
    """Merge metrics of several sources: values of one name come under one head."""
    merged: dict[str, tuple[str, str, Mapping[str, float]]] = {}
    for part in parts:
        for name, (kind, about, values) in part.items():
            before = merged[name][2] if name in merged else {}
            merged[name] = (kind, about, {**before, **values})
    return merged


def _number(value: float) -> str:
    """Write a number in full: a time in seconds has ten digits."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
