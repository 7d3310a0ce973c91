"""Distribution functions of columns that all sites agree on, from two exchanges of whole-number counts.

The first counts rows by octave (powers of two) and, apart from it, by place within the octave. From these the server places up
to 127 cuts for each column, more where there are more rows; the second counts rows between cuts. Sums of whole numbers do not
depend on who holds which row, so neither do the knots. A site's rows between cuts are close to its values, as are the summaries
from which the encoding was agreed; under secure aggregation only sums over all sites are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.families import find_family
from grandrounds.capabilities.statistics.models.column_basis import LARGEST, Basis
from grandrounds.capabilities.statistics.models.columns import Column, parse_columns, read_columns
from grandrounds.capabilities.statistics.question import Blocks, Question, Rows
from grandrounds.core.arrays import Array

OCTAVES, LOWEST, PLACES = 104, -40, 32
"""Octaves of either sign, the least exponent (smaller values count as zero), and places within an octave."""

CELLS = 128
"""Cells between cuts in the second exchange, with the open ends."""

KNOTS = 64
"""Most knots of an agreed distribution function."""

FEWEST = 10
"""Fewest rows of a level, of missing values, or of one of two values that has a coefficient."""

ZERO = 2.0**LOWEST
"""Values closer to zero than this count as zero."""


@dataclass(frozen=True, eq=False)
class ColumnCounts:
    """Counts of rows over all sites; with two sides, apart for rows without and with the event.

    Attributes:
        rows: (2,) rows without and with the event, or with an outcome up to and above the agreed mean.
        missing: (sides, C) rows without a value.
        levels: For each column (sides, L); L = 0 for numbers.
        cuts: For each column its cuts, ascending; empty for categories.
        cells: For each column (sides, cuts + 1) rows between cuts.
    """

    rows: Array
    missing: Array
    levels: tuple[Array, ...]
    cuts: tuple[Array, ...]
    cells: tuple[Array, ...]


def number_places(columns: Sequence[Column]) -> list[int]:
    """Return the places of numbers among columns."""
    return [c for c, column in enumerate(columns) if not column.is_category]


def ask_octaves(
    text: str, columns: Sequence[Column], *, family: str, centre: float, unit: float, sides: int
) -> Question:
    """Build the first question: counts by octave, levels and missing values.

    Args:
        text: The columns as text.
        columns: The columns.
        family: Family of the outcome.
        centre: Subtracted from the outcome.
        unit: The outcome is divided by it.
        sides: 2: counts by side of the outcome; 1: of all rows.

    Returns:
        The question.
    """
    numbers, levels = len(number_places(columns)), sum(len(c.levels) for c in columns)
    return Question(
        "gam.octaves",
        {"columns": text, "family": family, "centre": centre, "unit": unit},
        {
            "rows": (2,),
            "wrong": (),
            "octaves": (numbers, 2 * OCTAVES + 1),
            "places": (numbers, PLACES),
            "missing": (sides, len(columns)),
            "levels": (sides, levels),
        },
        "counts by octave",
        cells=("octaves", "places", "missing", "levels"),
        whole=True,
    )


def answer_octaves(question: Question, rows: Rows) -> Blocks:
    """Answer "gam.octaves": rows by octave of each number, by place within the octave, by level, and missing ones."""
    columns = parse_columns(str(question.values["columns"]))
    values, side = read_columns(rows.x, columns), outcome_side(question, rows)
    sides = question.blocks["missing"][0]
    side = side if sides == 2 else np.zeros(len(rows), np.int64)
    octaves, places = [], []
    for c in number_places(columns):
        octave, place = find_octaves(values[~np.isnan(values[:, c]), c])
        octaves.append(np.bincount(octave, minlength=2 * OCTAVES + 1))
        places.append(np.bincount(place[place >= 0], minlength=PLACES))
    family = find_family(str(question.values["family"]))
    levels = [
        [np.bincount(values[(side == s) & ~np.isnan(values[:, c]), c].astype(int), minlength=len(column.levels))
         for c, column in enumerate(columns) if column.is_category]
        for s in range(sides)
    ]  # fmt: skip
    return {
        "rows": np.bincount(outcome_side(question, rows), minlength=2),
        "wrong": np.asarray(float(family.find_bad_rows(rows.y).sum())),
        "octaves": np.array(octaves).reshape(question.blocks["octaves"]),
        "places": np.array(places).reshape(question.blocks["places"]),
        "missing": np.array([np.isnan(values[side == s]).sum(axis=0) for s in range(sides)]),
        "levels": np.array([np.concatenate([np.empty(0), *found]) for found in levels]),
    }


def outcome_side(question: Question, rows: Rows) -> Array:
    """Return 1 for rows with the event, or with an outcome above the agreed mean, else 0."""
    v = question.values
    centre = float(np.asarray(v["unit"])) if v["family"] == "poisson" else float(np.asarray(v["centre"]))
    return (rows.y > (0.5 if v["family"] == "logistic" else centre)).astype(np.int64)


def find_octaves(v: Array) -> tuple[Array, Array]:
    """Find the octave of each value and its place within it.

    Args:
        v: (n,) values.

    Returns:
        Octaves from 0 (the most negative) to 208, 104 for zero; places from 0 to 31 by size, -1 for zero.
    """
    size, exponent = np.frexp(np.abs(v))
    octave = np.clip(exponent - 1 - LOWEST, 0, OCTAVES - 1)
    is_zero = np.abs(v) < ZERO
    out = np.where(is_zero, OCTAVES, np.where(v > 0, OCTAVES + 1 + octave, OCTAVES - 1 - octave))
    place = np.where(is_zero, -1, np.floor((2 * size - 1) * PLACES))
    return out.astype(np.int64), place.astype(np.int64)


def place_cuts(octaves: Array, places: Array) -> Array:
    """Place up to 127 cuts for one column.

    Each octave is divided by places as all octaves together are. A part with mass m has cuts in proportion to the square root
    of m, so that a value that most rows share takes few of them. The left end of every part with a cut is a cut.

    Args:
        octaves: (209,) rows by octave.
        places: (32,) rows by place within the octave.

    Returns:
        The cuts, ascending.
    """
    share = places / max(places.sum(), 1)
    left: list[float] = []
    right: list[float] = []
    mass: list[float] = []
    for octave in np.flatnonzero(octaves).tolist():
        if octave == OCTAVES:
            left, right, mass = [*left, -ZERO], [*right, ZERO], [*mass, float(octaves[octave])]
            continue
        inner = np.arange(PLACES)[share > 0]
        low = 2.0 ** (LOWEST + (octave - OCTAVES - 1 if octave > OCTAVES else OCTAVES - 1 - octave))
        ends = np.stack([low * (1 + inner / PLACES), low * (1 + (inner + 1) / PLACES)])
        ends = ends if octave > OCTAVES else -ends[::-1, ::-1]
        own = share[inner] if octave > OCTAVES else share[inner][::-1]
        left, right = [*left, *ends[0].tolist()], [*right, *ends[1].tolist()]
        mass += (octaves[octave] * own).tolist()
    if not mass:
        return np.zeros(0)
    weight = np.sqrt(mass)
    until = np.floor((CELLS - 1) * np.cumsum(weight) / weight.sum() + 1e-9).astype(int)
    cuts: list[float] = []
    for low, high, count in zip(left, right, np.diff(until, prepend=0).tolist(), strict=True):
        count = min(count, 1) if high - low == 2 * ZERO and low == -ZERO else count
        cuts += (low + (high - low) * np.arange(count) / max(count, 1)).tolist()
    return np.unique(np.array(cuts))


def ask_cells(text: str, columns: Sequence[Column], cuts: Sequence[Array], first: Question, sides: int) -> Question:
    """Build the second question: counts between cuts.

    Args:
        text: The columns as text.
        columns: The columns.
        cuts: The cuts of each numeric column.
        first: The first question.
        sides: 2: counts by side of the outcome; 1: of all rows.

    Returns:
        The question.
    """
    padded = np.full((len(cuts), CELLS - 1), LARGEST)
    for row, cut in zip(padded, cuts, strict=True):
        row[: len(cut)] = cut
    values = {**first.values, "columns": text, "cuts": padded}
    blocks = {"cells": (sides, len(cuts), CELLS)}
    return Question("gam.cells", values, blocks, "counts between cuts", cells=("cells",), whole=True)


def answer_cells(question: Question, rows: Rows) -> Blocks:
    """Answer "gam.cells": rows of each number from one cut to the next, the lower cut included."""
    columns = parse_columns(str(question.values["columns"]))
    values, cuts = read_columns(rows.x, columns), np.asarray(question.values["cuts"])
    sides = question.blocks["cells"][0]
    side = outcome_side(question, rows) if sides == 2 else np.zeros(len(rows), np.int64)
    out = np.zeros(question.blocks["cells"])
    for k, c in enumerate(number_places(columns)):
        known = ~np.isnan(values[:, c])
        cell = np.searchsorted(cuts[k], values[known, c], side="right")
        for s in range(sides):
            out[s, k] = np.bincount(cell[side[known] == s], minlength=CELLS)[:CELLS]
    return {"cells": out}


def read_counts(columns: Sequence[Column], cuts: Sequence[Array], first: Blocks, second: Blocks) -> ColumnCounts:
    """Collect the totals of both questions by column.

    Args:
        columns: The columns.
        cuts: The cuts of each numeric column.
        first: Total of "gam.octaves".
        second: Total of "gam.cells".

    Returns:
        The counts.
    """
    levels, used, cells, all_cuts, number = [], 0, [], [], 0
    none = np.zeros((len(first["missing"]), 0))
    for column in columns:
        levels.append(first["levels"][:, used : used + len(column.levels)])
        used += len(column.levels)
        if column.is_category:
            cells.append(none)
            all_cuts.append(np.zeros(0))
        else:
            cut = cuts[number]
            cells.append(second["cells"][:, number, : len(cut) + 1])
            all_cuts.append(cut)
            number += 1
    return ColumnCounts(first["rows"], first["missing"], tuple(levels), tuple(all_cuts), tuple(cells))


def left_ends(cuts: Array) -> Array:
    """Return the left end of each cell; of the first, which has none, a value below the first cut."""
    return np.concatenate([[cuts[0] - max(1.0, abs(cuts[0]))], cuts]) if len(cuts) else np.zeros(1)


def make_basis(
    columns: tuple[Column, ...], counts: ColumnCounts, *, splines: int, least: int, kept: Sequence[int]
) -> tuple[Basis, dict[int, str]]:
    """Make the basis of an additive model from agreed counts.

    Args:
        columns: The columns.
        counts: The counts over all sites.
        splines: B-splines of a number.
        least: Fewest rows of a level, of missing values and of a value.
        kept: Places of the columns to use.

    Returns:
        The basis, and the reason for each column that is left out.
    """
    count = len(columns)
    knots, ranks = np.full((count, KNOTS), LARGEST), np.ones((count, KNOTS))
    sizes, gaps = np.zeros(count, np.int64), np.zeros(count, bool)
    levels: list[tuple[int, ...]] = [() for _ in columns]
    left_out: dict[int, str] = {}
    missing = counts.missing.sum(axis=0)
    for c, column in enumerate(columns):
        if c not in kept:
            left_out[c] = "other columns tell more about the outcome (method.gam.columns)"
            continue
        gaps[c] = missing[c] >= least
        if column.is_category:
            rows = counts.levels[c].sum(axis=0)
            levels[c] = tuple(np.flatnonzero(rows >= least).tolist())
            if len(levels[c]) + gaps[c] < 2:
                left_out[c] = f"fewer than two levels have {least} rows"
                levels[c], gaps[c] = (), False
            continue
        value, rank, rows = find_knots(counts.cuts[c], counts.cells[c].sum(axis=0))
        if len(rows) == 2 and rows.min() >= least:
            sizes[c], knots[c, 0], ranks[c, 0] = 1, value[1], 0.5
        elif len(rows) > 2 and rows.sum() - rows.max() >= least:
            sizes[c], knots[c, : len(value)], ranks[c, : len(value)] = len(value), value, rank
        elif not gaps[c]:
            left_out[c] = (
                f"fewer than {least} rows differ from its usual value (values below 1e-12 in size count as zero)"
            )
    return Basis(columns, splines, knots, ranks, sizes, tuple(levels), gaps), left_out


def find_knots(cuts: Array, cells: Array) -> tuple[Array, Array, Array]:
    """Find up to 64 knots of a distribution function, at equal shares of the rows.

    Args:
        cuts: The cuts of a column.
        cells: (cuts + 1,) rows between them.

    Returns:
        Values (left ends of cells), their mid-ranks, and the rows of all cells that hold any.
    """
    held = np.flatnonzero(cells)
    rows = cells[held]
    n = rows.sum()
    if not n:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    above = np.cumsum(rows)
    chosen = np.unique(np.searchsorted(above, n * (np.arange(KNOTS) + 0.5) / KNOTS, side="right"))
    chosen = np.unique(np.concatenate([chosen, [0, len(rows) - 1]])) if len(chosen) < KNOTS - 1 else chosen
    return left_ends(cuts)[held][chosen], (above[chosen] - rows[chosen] / 2) / n, rows


def screen_columns(columns: Sequence[Column], counts: ColumnCounts, *, most: int) -> list[int]:
    """Choose the columns that tell most about the outcome, by counts of bins and sides of the outcome.

    The score of a column is its likelihood-ratio statistic less twice its degrees of freedom. Numbers have eight bins of equal
    size at most; missing values are one more.

    Args:
        columns: The columns.
        counts: The counts, by side of the outcome.
        most: Number of columns to keep.

    Returns:
        Their places, in order.
    """
    total = counts.rows
    expected = total / total.sum()
    scores = []
    for c, column in enumerate(columns):
        table = counts.levels[c] if column.is_category else _eighths(counts.cells[c])
        table = np.column_stack([table, counts.missing[:, c]])
        table = table[:, table.sum(axis=0) > 0]
        fair = expected[:, None] * table.sum(axis=0)
        statistic = 2 * float(np.sum(table * np.log(np.where(table > 0, table / fair, 1.0))))
        scores.append(statistic - 2 * (table.shape[1] - 1))
    best = np.argsort(-np.array(scores), kind="stable")[:most]
    return sorted(best.tolist())


def _eighths(cells: Array) -> Array:
    """Merge neighbouring cells (sides, cells) into eight bins of about equal size."""
    rows = cells.sum(axis=0)
    place = (8 * (np.cumsum(rows) - rows / 2) / max(rows.sum(), 1)).astype(int)
    return np.stack([np.bincount(place, weights=side, minlength=8) for side in cells])
