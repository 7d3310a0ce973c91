"""Metrics in the text format of Prometheus, for a page (`/metrics`) or a file of the textfile collector."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from grandrounds.core.version import __version__

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


def build_info() -> Metrics:
    """Return the version as a metric with the constant value 1."""
    return {"grandrounds_build_info": ("gauge", "Version of the package; always 1.", {label(version=__version__): 1.0})}


def disk_metrics(folders: Mapping[str, Path]) -> Metrics:
    """Return free and total bytes of the disks with these folders."""
    found = {label(folder=name): shutil.disk_usage(path) for name, path in folders.items() if path.exists()}
    return {
        "grandrounds_disk_free_bytes": (
            "gauge",
            "Free bytes of the disk with a folder.",
            {folder: float(usage.free) for folder, usage in found.items()},
        ),
        "grandrounds_disk_size_bytes": (
            "gauge",
            "Size of the disk with a folder.",
            {folder: float(usage.total) for folder, usage in found.items()},
        ),
    }


def _number(value: float) -> str:
    """Write a number in full: a time in seconds has ten digits."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
