"""Fits of models that read whole columns, by the name of the model: one line each.

The server drives such a fit over all hospitals. Methods 'pooled' and 'local' drive the same fit over the rows of one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grandrounds.data.outcome import Outcome
from grandrounds.models.column_model import ColumnModel
from grandrounds.statistics.question import Fit

FITS: dict[str, Callable[[ColumnModel, Outcome | None, int], Fit[Any]]] = {}
"""From the model, the outcome (None for classes) and the fewest rows of a cell (method.exact.least) to the fit. Its result has
`arrays`, which `model.pack` takes. Keys are kernels: "gam", "trees", "steps", "card"."""
