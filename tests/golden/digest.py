"""Digests of a case: of its exact values, and of what another processor or library must give too.

On the machine of the corpus every value is the same to the last bit. Elsewhere sums of floats are close, and all else is equal.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CLOSE = 1e-6
"""Relative difference of sums of floats on another machine."""

LIBRARIES = ("numpy", "torch", "scipy", "scikit-learn", "pandas", "matplotlib", "cryptography")
DECIMAL = re.compile(r"-?\d[\d,]*\.\d+(?:e[+-]?\d+)?|\d+(?=\s?%)")
HEX = re.compile(r"\b[0-9a-f]{12,}\b")


@dataclass(frozen=True)
class Digest:
    """Digest of one value: of all of it, of all but floats and hashes, and three sums of its floats."""

    exact: str
    frame: str
    sums: tuple[float, float, float]

    @classmethod
    def of(cls, value: Any) -> Digest:
        floats = [f for f in _floats(value) if math.isfinite(f)]
        signed = sum(f * math.cos(i) for i, f in enumerate(floats))
        sums = (_short(sum(floats)), _short(sum(abs(f) for f in floats)), _short(signed))
        return cls(_hash(value), _hash(_frame(value)), sums)

    @classmethod
    def parse(cls, stored: list[Any]) -> Digest:
        return cls(stored[0], stored[1], tuple(stored[2:]))  # type: ignore[arg-type]

    def stored(self) -> list[Any]:
        return [self.exact, self.frame, *self.sums]

    def is_close(self, other: Digest) -> bool:
        """Tell whether all but floats is equal, and sums of floats are close."""
        scale = max(self.sums[1], 1e-9)
        near = all(abs(a - b) <= CLOSE * scale + 1e-12 for a, b in zip(self.sums, other.sums, strict=True))
        return self.frame == other.frame and near


def fingerprint() -> dict[str, str]:
    """Name the processor and the libraries, which decide the last bits of a float."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    facts = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in lines if ":" in line}
    out = {
        "processor": facts.get("model name", platform.processor()),
        "flags": _hash(sorted(facts.get("flags", "").split())),
    }
    for name in LIBRARIES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "none"
    return {**out, "python": platform.python_version()}


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Name every place where two values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(k for k in new if k not in old)]:
            if key not in new or key not in old:
                yield f"{where}/{key}: only {'before' if key in old else 'now'}"
            else:
                yield from differences(old[key], new[key], f"{where}/{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} values before, {len(new)} now"
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, f"{where}[{i}]")
    elif old != new or type(old) is not type(new):
        yield f"{where}: {_cut(old, new)}"


def _cut(old: Any, new: Any) -> str:
    """Both values, from the first character that differs."""
    a, b = str(old), str(new)
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    begin = max(0, start - 40)
    return f"{a[begin : start + 80]!r} -> {b[begin : start + 80]!r}"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def _short(value: float) -> float:
    return float(f"{value:.9g}")


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value):
            yield from _floats(value[key])
    elif isinstance(value, list):
        for v in value:
            yield from _floats(v)


def _frame(value: Any) -> Any:
    """The value without floats, and without hashes and decimals in its texts."""
    if isinstance(value, float):
        return "~"
    if isinstance(value, Mapping):
        return {key: _frame(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_frame(v) for v in value]
    return DECIMAL.sub("~", HEX.sub("#", value)) if isinstance(value, str) else value
