"""Pack named arrays into one vector for secure aggregation, and unpack the sum."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

LAYOUT = "held"
"""Column of an answer that describes the reports withheld for a secure sum: their layout, without values."""


def describe_layout(values: Mapping[str, Array]) -> str:
    """Describe named arrays in packing order as one line of JSON: name, shape, and true for integers."""
    return json.dumps([[n, list(values[n].shape), values[n].dtype.kind in "iub"] for n in sorted(values)])


def packed_size(layout: str) -> int:
    """Count the entries of the vector that a layout describes."""
    return sum(int(np.prod(shape, dtype=int)) for _, shape, _ in json.loads(layout))


def layout_reports(layout: str) -> set[str]:
    """List the reports of a layout: those of test.count and test.confusion are {"test"}."""
    return {name.split(".")[0] for name, _, _ in json.loads(layout)}


def narrow_layout(layout: str, reports: Collection[str]) -> str:
    """Return the layout of these reports alone."""
    return json.dumps([part for part in json.loads(layout) if part[0].split(".")[0] in reports])


def pack(values: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Concatenate named arrays in the order of their names.

    Args:
        values: Arrays by name.
        weights: The factor of each report; 1 where none is given.

    Returns:
        One vector, (L,).
    """
    parts = [np.asarray(values[n], float).ravel() * weights.get(n.split(".")[0], 1.0) for n in sorted(values)]
    return np.concatenate(parts) if parts else np.empty(0)


def unpack(total: Array, layout: str) -> dict[str, Array]:
    """Cut a sum of packed vectors into named arrays.

    Args:
        total: The sum, (L,).
        layout: As `describe_layout` wrote it; arrays of integers are rounded to integers.

    Returns:
        Arrays by name.

    Raises:
        BadInput: The sum has another length than the layout.
    """
    if packed_size(layout) != len(total):
        raise BadInput(
            f"a secure sum has {len(total)} entries, but its layout describes {packed_size(layout)}", code="wrong-shape"
        )
    out: dict[str, Array] = {}
    start = 0
    for name, shape, is_integer in json.loads(layout):
        size = int(np.prod(shape, dtype=int))
        part = total[start : start + size].reshape(shape)
        out[name] = np.rint(part).astype(np.int64) if is_integer else part
        start += size
    return out
