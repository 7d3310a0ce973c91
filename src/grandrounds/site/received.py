"""Check the values that come with an Ask, before a row of the site is read.

A server may send any numbers. One infinite weight turns the answer about a single patient into NaN, which no noise hides, so
every array of every task has finite numbers of a bounded size, and a model has the size that the site built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.models import Model
from grandrounds.models.protocol import COLUMN_KERNELS
from grandrounds.protocol.layout import Layout
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import STATISTIC, STORE, WEIGHTS

LARGEST = 1e100
"""Bound of a number that the server sends: far above those of any model, and far below overflow of a sum of squares."""

_MODELS = ("model", "models", "variate")
"""Values of an Ask with one entry for each parameter along the last axis."""

_ENDS = ("edges", "low", "high")
"""Values that may be infinite: ends of ranges, within which rows are clipped or counted."""

_WITHOUT_NOISE = (STATISTIC, STORE)
"""Tasks whose numbers may be of any size: their sums have no noise, and columns without a range end near the largest number. So
may those of a model of columns, which has such ends."""

_WITHOUT_ROWS = (WEIGHTS,)
"""Tasks in which a number may be NaN: figures of sites that have none, by which a site checks its weight without its rows."""


def check_received(ask: Ask, model: Model | None, members: Iterable[str]) -> None:
    """Refuse an Ask with a value that no honest server sends; nothing of this depends on the site's rows.

    Args:
        ask: The Ask.
        model: The model that the site built; None before task `prepare`.
        members: The sites that are asked.

    Raises:
        BadInput: An array is not numeric, not finite or too large, or a model has another size.
    """
    size = model.layout.size if model is not None and isinstance(model.layout, Layout) else None
    of_columns = model is not None and model.kernel in COLUMN_KERNELS
    for values in (ask.shared, *(ask.each.get(name, {}) for name in members)):
        _check_values(ask.task, values, size, of_columns=of_columns)


def _check_values(task: str, values: Mapping[str, Value], size: int | None, *, of_columns: bool) -> None:
    for name, value in values.items():
        if isinstance(value, str):
            if value[:1] in ("{", "["):
                _check_json(task, name, value)
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            _refuse(task, name, f"has values of type {array.dtype}, not numbers")
        if array.dtype.kind == "f":
            any_size = task in _WITHOUT_NOISE or (of_columns and name in _MODELS)
            largest = float(np.finfo(array.dtype).max)
            any_size = any_size or not array.ndim  # a setting, which the plan fixes
            limit = math.inf if name in _ENDS else largest if any_size else min(LARGEST, largest)
            bounded = np.abs(array) <= limit  # False for NaN
            if not (bounded | np.isnan(array) if task in _WITHOUT_ROWS else bounded).all():
                _refuse(task, name, f"has numbers that are not finite, or larger than {LARGEST:g}")
        if name in _MODELS and size is not None and array.shape[-1:] != (size,):
            _refuse(task, name, f"has shape {array.shape}, and the model has {size} parameters")


def _check_json(task: str, name: str, text: str) -> None:
    """Refuse a JSON text that cannot be read, or has a number that is not finite, such as NaN or 1e999."""

    def read_number(word: str) -> float:
        number = float(word)
        if not math.isfinite(number):
            _refuse(task, name, f"has the number {word[:20]}")
        return number

    try:
        json.loads(text, parse_constant=read_number, parse_float=read_number)
    except (ValueError, RecursionError):
        _refuse(task, name, "is not valid JSON")


def _refuse(task: str, name: str, problem: str) -> NoReturn:
    raise BadInput(f"'{name}' of task '{task}' from the server {problem}", code="bad-request-values")
