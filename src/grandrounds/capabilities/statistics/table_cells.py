"""Cells of Table 1 from sums: means, shares, differences and tests, with small cells hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from grandrounds.capabilities.statistics.group_tests import (
    GroupTest,
    compare_counts,
    compare_means,
    compare_ranks,
    difference_of_means,
    difference_of_shares,
)
from grandrounds.capabilities.statistics.quantiles import Grid
from grandrounds.capabilities.statistics.question import Blocks, Total
from grandrounds.capabilities.statistics.small_cells import hide_cells, hide_groups
from grandrounds.capabilities.statistics.table_result import Cell, TableColumn, TableOne, Variable
from grandrounds.capabilities.statistics.table_terms import TableTerms
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_P_LIMITS = (0.001, 0.01, 0.05)


@dataclass(frozen=True)
class Histogram:
    """Rows by value, or by bin of values, and by group: (values, groups)."""

    counts: Array
    binned: bool


@dataclass(frozen=True)
class Sums:
    """Everything that the exchanges gave.

    Attributes:
        columns: Numeric columns of the terms that have sums.
        kept: Groups that are shown.
        centre: (columns, groups) centres of s and q.
        scale: (columns, groups) their units.
        total: The total with n, s, q, counts and rows, and each site's own where they came in the clear.
        quantiles: Quartiles by column and group; group -1 for all rows.
        grids: The grid of each numeric column.
        histograms: By numeric column, for the Kruskal-Wallis test.
        left_out: Columns without sums, with the reason.
        notes: Sentences for people.
        exchanges: Questions that each site answered.
    """

    columns: Array
    kept: Array
    centre: Array
    scale: Array
    total: Total
    quantiles: Mapping[tuple[int, int], Array]
    grids: Mapping[int, Grid]
    histograms: Mapping[int, Histogram]
    left_out: Mapping[str, str]
    notes: tuple[str, ...] = ()
    exchanges: int = 0


@dataclass(frozen=True)
class _Moments:
    """n, mean and sum of squared deviations, for several sets of rows."""

    n: Array
    mean: Array
    squares: Array

    @property
    def variance(self) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.n > 1, self.squares / (self.n - 1), np.nan))

    def merge(self) -> _Moments:
        """Return the moments of all rows together."""
        n = self.n.sum()
        if n == 0:
            return _Moments(np.array([0.0]), np.array([np.nan]), np.array([0.0]))
        mean = np.nansum(self.n * self.mean) / n
        squares = self.squares.sum() + np.nansum(self.n * (self.mean - mean) ** 2)
        return _Moments(np.array([n]), np.array([mean]), np.array([squares]))

    @classmethod
    def join(cls, parts: list[_Moments]) -> _Moments:
        """Put sets of rows side by side."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("n", "mean", "squares")))


def make_table(terms: TableTerms, sums: Sums) -> TableOne:
    """Make Table 1 from its sums, with small cells hidden.

    Args:
        terms: The terms.
        sums: The sums.

    Returns:
        The table.

    Raises:
        BadInput: No column has enough values.
    """
    layout = _Layout.make(terms, sums)
    variables, left_out = {}, dict(sums.left_out)
    for k, j in enumerate(sums.columns.tolist()):
        variables[terms.numeric[j].name] = _describe_numbers(terms, sums, layout, k)
    start = 0
    for column in (terms.categorical[j] for j in terms.categorical_places):
        stop = start + len(column.levels)
        counts = layout.lay_out("counts", slice(start, stop))
        start = stop
        if counts[:, 0].sum() < terms.least:
            left_out[column.name] = f"it has fewer than {terms.least} values over all sites"
        else:
            variables[column.name] = _describe_levels(terms, layout, column.name, column.levels, counts)
    if not variables:
        raise BadInput(
            f"no column of Table 1 has {terms.least} values over all sites; choose other columns (use --columns)",
            code="no-columns",
        )
    return TableOne(
        layout.columns(),
        tuple(variables[name] for name in terms.names if name in variables),
        terms.group,
        terms.least,
        left_out,
        sums.exchanges,
        sums.notes,
    )


@dataclass(frozen=True)
class _Layout:
    """The columns of the table: all rows, groups, sites."""

    terms: TableTerms
    kept: Array
    total: Blocks
    by_site: Mapping[str, Blocks]
    rows: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def make(cls, terms: TableTerms, sums: Sums) -> _Layout:
        bare = cls(terms, sums.kept, sums.total.values, sums.total.by_site)
        rows = bare.lay_out("rows")[0]
        return cls(terms, sums.kept, sums.total.values, sums.total.by_site, rows)

    @property
    def groups(self) -> slice:
        """Places of groups among the columns."""
        return slice(1, 1 + (len(self.kept) if self.terms.groups else 0))

    @property
    def sites(self) -> slice:
        """Places of sites among the columns."""
        return slice(self.groups.stop, self.groups.stop + len(self.by_site))

    def lay_out(self, block: str, levels: slice = slice(None)) -> Array:
        """Return counts by (level, group) as whole numbers by (level, column of the table)."""

        def read(blocks: Blocks) -> Array:
            counts = blocks[block] if block != "rows" else blocks[block][None, :-1]
            return np.asarray(np.rint(np.asarray(counts)[levels][:, self.kept]))

        total = read(self.total)
        own = [read(blocks).sum(1) for blocks in self.by_site.values()]
        return np.array([total.sum(1), *(total.T if self.terms.groups else ()), *own]).T.astype(int)

    def columns(self) -> tuple[TableColumn, ...]:
        names = ["Overall", *([self.terms.groups[g] for g in self.kept] if self.terms.groups else []), *self.by_site]
        kinds = ["overall", *["group"] * (self.groups.stop - 1), *["site"] * len(self.by_site)]
        small = (self.rows > 0) & (self.rows < self.terms.least)
        return tuple(
            TableColumn(name, kind, None if few else int(n))
            for name, kind, n, few in zip(names, kinds, self.rows, small, strict=True)
        )


def _describe_numbers(terms: TableTerms, sums: Sums, layout: _Layout, k: int) -> Variable:
    """Describe a column of numbers."""
    column, j = terms.numeric[int(sums.columns[k])], int(sums.columns[k])
    by_group = _read_moments(sums, sums.total.values, k)
    sites = [_read_moments(sums, blocks, k).merge() for blocks in sums.total.by_site.values()]
    moments = _Moments.join([by_group.merge(), *([by_group] if terms.groups else []), *sites])
    n = moments.n.astype(int)
    hidden = np.zeros(len(n), bool)
    for part in (layout.groups, layout.sites):
        hidden[part] = hide_groups(n[part], least=terms.least)
    cells = []
    places = [-1, *(sums.kept.tolist() if terms.groups else ()), *[None] * len(sites)]
    for c, place in enumerate(places):
        few = 0 < n[c] < terms.least
        missing = None if 0 < layout.rows[c] < terms.least else int(layout.rows[c]) - int(n[c])
        if hidden[c]:
            cells.append(Cell(None if few else missing, None if few else int(n[c]), hidden=True))
            continue
        quartiles = () if place is None else tuple(map(float, sums.quantiles.get((j, place), ())))
        mean = float(moments.mean[c]) if n[c] else None
        sd = float(np.sqrt(moments.variance[c])) if n[c] > 1 else None
        cells.append(Cell(missing, int(n[c]), mean, sd, quartiles))
    smd: tuple[float | None, ...] = ()
    test: GroupTest | None = None
    if len(sums.kept) > 1:
        smd = tuple(
            difference_of_means(by_group.mean[list(two)], by_group.variance[list(two)])
            for two in combinations(range(len(sums.kept)), 2)
        )
        test = _test_numbers(terms, sums, j, by_group)
    width = sums.grids[j].width if column.nonnormal else 0.0
    any_hidden = bool(hidden[layout.groups].any())
    return Variable(
        column.name, "median" if column.nonnormal else "mean", tuple(cells), (), *_guard(smd, test, any_hidden), width
    )


def _test_numbers(terms: TableTerms, sums: Sums, column: int, by_group: _Moments) -> GroupTest | None:
    if not terms.tests:
        return None
    if column in sums.histograms:
        histogram = sums.histograms[column]
        return compare_ranks(histogram.counts, binned=histogram.binned)
    return compare_means(by_group.n, by_group.mean, by_group.variance)


def _read_moments(sums: Sums, blocks: Blocks, k: int) -> _Moments:
    """Return the moments of one column by group, in the units of the column."""
    n, s, q = (np.asarray(blocks[name])[k, sums.kept] for name in ("n", "s", "q"))
    n = np.rint(n)
    centre, scale = sums.centre[k, sums.kept], sums.scale[k, sums.kept]
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = s / n
        squares = np.where(n > 0, np.maximum(q - s * middle, 0) * scale**2, 0.0)
        return _Moments(n, np.where(n > 0, centre + scale * middle, np.nan), squares)


def _describe_levels(terms: TableTerms, layout: _Layout, name: str, levels: tuple[str, ...], counts: Array) -> Variable:
    """Describe a column of categories; levels without rows are not shown."""
    present = counts[:, 0] > 0
    counts, levels = counts[present], tuple(level for level, there in zip(levels, present, strict=True) if there)
    hidden = _hide(counts, layout, terms.least)
    small = (counts > 0) & (counts < terms.least)
    n = counts.sum(0)
    cells = []
    for c in range(counts.shape[1]):
        few = 0 < layout.rows[c] < terms.least
        cells.append(
            Cell(
                None if few else int(layout.rows[c] - n[c]),
                None if few else int(n[c]),
                counts=tuple(None if hide else int(x) for x, hide in zip(counts[:, c], hidden[:, c], strict=True)),
                small=tuple(map(bool, small[:, c])),
            )
        )
    smd: tuple[float | None, ...] = ()
    test: GroupTest | None = None
    by_group = counts[:, layout.groups]
    if by_group.shape[1] > 1:
        smd = tuple(difference_of_shares(by_group[:, list(two)]) for two in combinations(range(by_group.shape[1]), 2))
        test = compare_counts(by_group) if terms.tests else None
    any_hidden = bool(hidden[:, : layout.groups.stop].any())
    return Variable(name, "category", tuple(cells), levels, *_guard(smd, test, any_hidden))


def _hide(counts: Array, layout: _Layout, least: int) -> Array:
    """Hide small cells; each column sums to its known n, and each level's groups, and its sites, to the overall count."""
    place: Array = np.arange(counts.size).reshape(counts.shape)
    lines = [place[:, c] for c in range(place.shape[1])]
    for part in (layout.groups, layout.sites):
        if part.stop > part.start:
            lines += [np.concatenate([place[k, :1], place[k, part]]) for k in range(len(place))]
    return hide_cells(counts.ravel(), lines, least=least).reshape(counts.shape)


def _guard(
    smd: tuple[float | None, ...], test: GroupTest | None, hidden: bool
) -> tuple[tuple[float | None, ...], GroupTest | None, str]:
    """Withhold differences and the exact p where cells are hidden: a reader could solve for them."""
    if not hidden:
        return smd, test, ""
    if test is None:
        return tuple(None for _ in smd), None, ""
    limit = next((x for x in _P_LIMITS if test.p < x), None)
    return tuple(None for _ in smd), None, f"<{limit:g}" if limit else f">={_P_LIMITS[-1]:g}"
