"""What a run took of its machine, in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def machine_line(cost: Mapping[str, Any]) -> str:
    """CPU and memory of a summary's cost; nothing of runs of earlier versions, which did not look."""
    if "cpu_seconds" not in cost:
        return ""
    others = cost["children_peak_memory"]
    beside = f", {others / 1e6:.0f} MB in the largest process beside it" if others else ""
    return (
        f"{cost['round_seconds']:.3g} s a round; {cost['cpu_seconds']:.2f} CPU seconds ({cost['cpu_share']:.0%} of the cores); "
        f"at most {cost['peak_memory'] / 1e6:.0f} MB in memory ({cost['memory_share']:.1%} of the machine's){beside}"
    )
