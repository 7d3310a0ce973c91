"""Groups of patients by several columns (`evaluation.subgroups`), cut in the same way at every hospital.

A `Grouping` is agreed once for the consortium and travels in the encoding: the levels of a column of categories, or the cuts of
a column of numbers. The cuts are those of `evaluation.bands`, clinical age bands for a column named age, or quartiles of the
merged summaries, rounded to three digits. So a row is in the same group at a hospital, in a simulation and in `rounds predict`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import EvaluationSettings
from grandrounds.core.toml import key
from grandrounds.data.table import format_number, missing_mask, parse_numbers, to_text

if TYPE_CHECKING:
    from grandrounds.data.summary import Cells

AGE_BANDS = (45.0, 65.0, 80.0)
"""Cuts of a column of ages without `evaluation.bands`: under 45, 45-64, 65-79, 80 and over."""

MANY_NUMBERS = 10
"""Distinct values from which on a column of numbers is cut into bands."""

MOST_LEVELS = 30
"""Most groups of a column of categories."""

MISSING, OTHER = "missing", "all others"
"""Groups of rows without a value, and with a value that no training row had."""

WordCounts = Mapping[str, int] | None
"""Training rows of a site by group; None for a column of too many values to name."""


@dataclass(frozen=True)
class Grouping:
    """Groups of one column: its levels, or the cuts of its numbers, each the lower end of a band."""

    column: str
    levels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The groups in order; the last is that of all other values."""
        return (*(band_names(self.edges) if self.edges else self.levels), *((MISSING,) if self.edges else ()), OTHER)

    def number(self, values: Array) -> Array:
        """Number the group of each value (n,), as in `names`."""
        if self.edges:
            numbers = _as_numbers(values)
            cell = np.searchsorted(self.edges, numbers, side="right")
            unreadable = np.isnan(numbers) & ~missing_mask(values)
            bands = len(self.edges) + 1
            return np.where(unreadable, bands + 1, np.where(np.isnan(numbers), bands, cell)).astype(np.int64)
        place = {word: k for k, word in enumerate(self.levels)}
        return np.array([place.get(word, len(place)) for word in _as_words(values)], np.int64)

    def to_dict(self) -> dict[str, object]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Grouping:
        return cls(str(d["column"]), tuple(map(str, d["levels"])), tuple(map(float, d["edges"])))


def band_names(edges: Sequence[float]) -> list[str]:
    """Name the bands between cuts: "under 45", "45-64", "80 and over"; with cuts that are no whole numbers "1.5 to under 2"."""
    ends = [_short(edge) for edge in edges]
    if all(edge == np.floor(edge) and edge >= 0 for edge in edges):
        pairs = itertools.pairwise(edges)
        between = [_short(low) if high - low == 1 else f"{_short(low)}-{_short(high - 1)}" for low, high in pairs]
    else:
        between = [f"{a} to under {b}" for a, b in itertools.pairwise(ends)]
    return [f"under {ends[0]}", *between, f"{ends[-1]} and over"]


def column_values(data: Any, column: str) -> Array:
    """Return the values of a column of a table or of images, as numbers or as text.

    Raises:
        BadInput: There is no such column.
    """
    if hasattr(data, "table"):
        return np.asarray(data.table.column(column, flag="evaluation.subgroups"))
    columns = {"label": data.label, **({} if data.site is None else {"site": data.site}), **data.columns}
    if column not in columns:
        raise BadInput(
            f"column '{column}' not found in {data.name}; {nearest(column, columns)} (use evaluation.subgroups)",
            code="unknown-column",
        )
    values = columns[column]
    present = [v for v in values.tolist() if v is not None]
    return _as_numbers(values) if present and parse_numbers(present) is not None else np.asarray(values)


def cuts_of(column: str, bands: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """Return the cuts of a column that are known beforehand: those of `evaluation.bands`, or the age bands; else none."""
    if column in bands:
        return tuple(float(edge) for edge in bands[column])
    return AGE_BANDS if column.lower() in ("age", "age_years", "anchor_age") else ()


def count_words(data: Any, columns: Sequence[str], bands: Mapping[str, Sequence[float]]) -> dict[str, WordCounts]:
    """Count a site's training rows by group, for columns whose groups are not known beforehand.

    Args:
        data: The site's training rows, with their raw table.
        columns: The columns of `evaluation.subgroups`.
        bands: Cuts by column (`evaluation.bands`).

    Returns:
        Rows by group; None for a column of too many values to name, which needs cuts. Columns with known cuts are left out.

    Raises:
        BadInput: A column is unknown, or has cuts and holds text.
    """
    out: dict[str, WordCounts] = {}
    for column in columns:
        values = column_values(data, column)
        is_number = values.dtype == np.float64
        if column in bands and not is_number:
            raise BadInput(
                f"evaluation.bands.{key(column)} cuts numbers, and column '{column}' of {data.name} holds text: remove the bands",
                code="bands-need-numbers",
            )
        if is_number and cuts_of(column, bands):
            continue
        words = Counter(_as_words(values))
        many = MANY_NUMBERS if is_number else MOST_LEVELS
        out[column] = None if len(words) > many else dict(sorted(words.items()))
    return out


def add_words(parts: Sequence[Mapping[str, WordCounts]]) -> dict[str, WordCounts]:
    """Add the counts of all sites; a column that one of them cannot name has None."""
    out: dict[str, WordCounts] = {}
    for column in dict.fromkeys(column for part in parts for column in part):
        counts = [part[column] for part in parts if column in part]
        total: Counter[str] = Counter()
        for count in counts:
            total.update(count or {})
        out[column] = None if None in counts else dict(sorted(total.items()))
    return out


def agree_groupings(
    columns: Sequence[str],
    bands: Mapping[str, Sequence[float]],
    words: Mapping[str, WordCounts],
    *,
    numeric: Sequence[str] = (),
    cells: Cells | None = None,
) -> tuple[Grouping, ...]:
    """Agree on the groups of each column from the merged summaries of all sites.

    Args:
        columns: The columns of `evaluation.subgroups`.
        bands: Cuts by column (`evaluation.bands`).
        words: Rows by group, merged over sites (`count_words`).
        numeric: Names of the numeric features.
        cells: Merged quantile sketches of the numeric features.

    Returns:
        One grouping for each column.

    Raises:
        BadInput: A column has too many values to name and no cuts.
    """
    out = []
    for column in columns:
        named = words.get(column)
        if column not in words:
            out.append(Grouping(column, edges=check_cuts(column, cuts_of(column, bands))))
        elif named is not None and len(named) <= MOST_LEVELS:
            out.append(Grouping(column, levels=tuple(sorted(named))))
        elif cells is not None and column in numeric:
            out.append(Grouping(column, edges=_quartiles(cells, list(numeric).index(column), columns=len(numeric))))
        else:
            raise BadInput(
                f"evaluation.subgroups names '{column}', which has more than {MOST_LEVELS} groups or is a number that no model "
                f"input shows: set its cuts, such as evaluation.bands.{key(column)} = [10, 20]",
                code="too-many-groups",
            )
    return tuple(out)


def check_cuts(column: str, edges: Sequence[float]) -> tuple[float, ...]:
    """Check that cuts rise.

    Raises:
        BadInput: They do not, or there is none.
    """
    if not edges or any(b <= a for a, b in itertools.pairwise(edges)) or not np.isfinite(edges).all():
        raise BadInput(
            f"evaluation.bands.{key(column)} is {list(edges)}: write one cut or more, from low to high",
            code="unordered-range",
        )
    return tuple(float(edge) for edge in edges)


def known_groupings(
    columns: Sequence[str], bands: Mapping[str, Sequence[float]], levels: Mapping[str, Sequence[str]]
) -> tuple[Grouping, ...]:
    """Return the groups of each column without asking a site, as data.encoding = "public" needs it.

    Raises:
        BadInput: Neither cuts nor levels of a column are known.
    """
    out = []
    for column in columns:
        if column in levels and column not in bands:
            out.append(Grouping(column, levels=(*sorted(levels[column]), MISSING)))
        elif cuts_of(column, bands):
            out.append(Grouping(column, edges=check_cuts(column, cuts_of(column, bands))))
        else:
            raise BadInput(
                f"evaluation.subgroups names '{column}', whose groups are not known, and data.encoding = 'public' asks no site "
                f'for them: set data.levels.{key(column)} = ["...", "..."], or evaluation.bands.{key(column)} = [10, 20]',
                code="levels-not-known",
            )
    return tuple(out)


def number_groups(groupings: Sequence[Grouping], data: Any) -> Array:
    """Number the group of each row in each column, (n, J)."""
    columns = [grouping.number(column_values(data, grouping.column)) for grouping in groupings]
    return np.stack(columns, axis=1) if columns else np.zeros((len(data), 0), np.int64)


def _quartiles(cells: Cells, column: int, *, columns: int) -> tuple[float, ...]:
    """Return the quartiles of a feature, rounded to three digits, each once."""
    edges = cells.quantiles(np.array([0.25, 0.5, 0.75]), columns=columns)[:, column]
    return tuple(dict.fromkeys(float(f"{edge:.3g}") for edge in edges))


def _short(value: float) -> str:
    return format_number(value) if value == np.floor(value) else f"{value:.6g}"


def _as_numbers(values: Array) -> Array:
    """Read values as numbers; NaN where one is missing or is no number."""
    if values.dtype == np.float64:
        return values
    return np.array([_as_number(v) for v in values.tolist()], np.float64)


def _as_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _as_words(values: Array) -> list[str]:
    """Read values as text, with a word for missing ones."""
    words = to_text(values).copy()
    words[missing_mask(values)] = MISSING
    return [str(word) for word in words]


def plan_bands(evaluation: EvaluationSettings) -> dict[str, tuple[float, ...]]:
    """Return the cuts by column of the section [evaluation] of a plan."""
    return {column: tuple(edges) for column, edges in evaluation.bands.plain().items()}


def groupings_to_dict(groupings: Sequence[Grouping]) -> dict[str, object]:
    """Write groupings as part of an encoding; nothing where there is none."""
    return {"subgroups": [grouping.to_dict() for grouping in groupings]} if groupings else {}


def groupings_from(encoding: Mapping[str, Any]) -> tuple[Grouping, ...]:
    """Read the groupings of an encoding."""
    return tuple(map(Grouping.from_dict, encoding.get("subgroups", ())))
