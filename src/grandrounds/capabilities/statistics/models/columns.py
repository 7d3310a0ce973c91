"""Clinical columns of a model's inputs: which inputs hold a number, its missing-value indicator, or the levels of a category.

Additive models, boosted trees and risk cards read columns, not inputs. With data.coding = "columns" nothing is lost between the
two: numbers are inputs in original units, every column with gaps has an indicator, and every level of a category is an input.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.design import OTHER
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding


@dataclass(frozen=True)
class Column:
    """One clinical column.

    Attributes:
        name: Name in the table.
        place: Input with the number; -1 for a category.
        missing: Input that is 1 where the number is missing; -1 if no training row lacks it.
        levels: Inputs of the levels of a category, in order; empty for a number.
        words: Names of the levels.
    """

    name: str
    place: int = -1
    missing: int = -1
    levels: tuple[int, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def is_category(self) -> bool:
        return self.place < 0


def find_columns(encoding: AnyEncoding | None) -> tuple[Column, ...]:
    """List the clinical columns of an encoding in which no value is lost (data.coding = "columns").

    Args:
        encoding: The agreed encoding of rows.

    Returns:
        Numbers, then categories, in the order of the encoding. Columns without a value at any site are left out.

    Raises:
        BadInput: The encoding has another coding, or is one of images.
    """
    if encoding is not None and not isinstance(encoding, Encoding):
        raise BadInput(
            "additive models, trees and cards read the columns of a table, and the data are images: use 'small-cnn'",
            code="model-does-not-fit",
        )
    if encoding is None or not encoding.by_column:
        raise BadInput(
            "additive models, trees and cards read whole columns: set data.coding = 'columns'", code="wrong-coding"
        )
    out, indicator = [], len(encoding.numeric)
    for place, number in enumerate(encoding.numeric):
        if number.low < number.high:
            out.append(Column(number.name, place, indicator if number.indicator else -1))
        indicator += number.indicator
    first = indicator
    for category in encoding.categorical:
        words = (*category.levels, *([OTHER] if category.other else []))
        out.append(Column(category.name, levels=tuple(range(first, first + len(words))), words=words))
        first += len(words)
    return tuple(out)


def read_columns(x: Array, columns: Sequence[Column]) -> Array:
    """Read the values of columns from inputs.

    Args:
        x: Inputs, (n, d).
        columns: The columns.

    Returns:
        (n, C) float64: numbers in original units, the number of the level of a category, NaN where the value is missing.
    """
    out = np.full((len(x), len(columns)), np.nan)
    for c, column in enumerate(columns):
        if not column.is_category:
            out[:, c] = x[:, column.place]
            if column.missing >= 0:
                out[x[:, column.missing] > 0.5, c] = np.nan
        elif column.levels:
            block = x[:, list(column.levels)]
            known = block.sum(axis=1) > 0.5  # of a mean patient, the most frequent level
            out[known, c] = block.argmax(axis=1)[known]
    return out


def write_columns(columns: Sequence[Column]) -> str:
    """Write columns as JSON text, as questions and model specs carry them."""
    return _write(tuple(columns))


@lru_cache(maxsize=16)
def _write(columns: tuple[Column, ...]) -> str:
    """Write columns; every question of a fit carries the same ones."""
    return json.dumps([asdict(c) for c in columns])


@lru_cache(maxsize=16)
def parse_columns(text: str) -> tuple[Column, ...]:
    """Read what `write_columns` wrote.

    Raises:
        BadInput: The text is not a list of columns.
    """
    try:
        return tuple(
            Column(
                str(c["name"]), int(c["place"]), int(c["missing"]), tuple(map(int, c["levels"])), tuple(map(str, c["words"]))
            )
            for c in json.loads(text)
        )
    except (ValueError, KeyError, TypeError):
        raise BadInput("a list of columns is damaged", code="malformed-message") from None
