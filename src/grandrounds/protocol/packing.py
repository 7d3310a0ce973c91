"""Several named arrays as one vector and back: what a secure sum adds up, and how its parts are found again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

HELD = "held"
"""The report of an answer that is held: its layout."""


def layout(values: Mapping[str, Array]) -> str:
    """Names, shapes and whether they are whole numbers, as one line, in the order they are laid end to end."""
    return json.dumps([[n, list(values[n].shape), values[n].dtype.kind in "iub"] for n in sorted(values)])


def length(told: str) -> int:
    """How long the vector of a layout is."""
    return sum(int(np.prod(shape, dtype=int)) for _, shape, _ in json.loads(told))


def reports(told: str) -> set[str]:
    """The reports that a layout is of: of test.count and test.confusion, test."""
    return {name.split(".")[0] for name, _, _ in json.loads(told)}


def narrowed(told: str, reports: Collection[str]) -> str:
    """A layout with the parts of these reports alone."""
    return json.dumps([part for part in json.loads(told) if part[0].split(".")[0] in reports])


def laid_out(values: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """The values end to end, (L,), each times the weight of its report (1 where none is given)."""
    parts = [np.asarray(values[n], float).ravel() * weights.get(n.split(".")[0], 1.0) for n in sorted(values)]
    return np.concatenate(parts) if parts else np.empty(0)


def unpacked(total: Array, told: str) -> dict[str, Array]:
    """A sum (L,) by name again, as `layout` said; sums of whole numbers are whole."""
    if length(told) != len(total):
        raise BadInput("a secure sum has another length than its parts", code="wrong-shape")
    out: dict[str, Array] = {}
    at = 0
    for name, shape, whole in json.loads(told):
        size = int(np.prod(shape, dtype=int))
        part = total[at : at + size].reshape(shape)
        out[name] = np.rint(part).astype(np.int64) if whole else part
        at += size
    return out
