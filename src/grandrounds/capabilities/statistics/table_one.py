"""Table 1 from statistics that add: counts, means, standard deviations, quartiles and tests by group, over all sites.

The first exchange asks for the rows of each group and, column by column, whether all values of a site stay within public powers
of two and lie on a recorded grid. The second and third ask for n, the sum and the sum of squares about public centres: the
middle of the range, then the mean that the second gave. Each answer is complete in itself. The third also has the counts of
levels. Medians take their cuts in the third and a few more. The Kruskal-Wallis test takes one more.
No minimum and no maximum is asked for: each is the value of one patient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.capabilities.statistics.quantiles import (
    Found,
    Grid,
    Inquiry,
    Piece,
    Sought,
    count_between,
    find_quantiles,
)
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows, Total
from grandrounds.capabilities.statistics.table_cells import Histogram, Sums, make_table
from grandrounds.capabilities.statistics.table_result import TableOne
from grandrounds.capabilities.statistics.table_terms import TableTerms
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import Value

KIND = "table1"
CELLS = ("rows", "n", "counts", "between", "histogram")
"""Blocks that count patients. In the clear, a site's policy refuses them where its own counts are small."""
STEPS = (1, 2, 4, 10, 20, 100, 1000)
"""Recorded values per unit that are looked for: whole numbers, halves, quarters, tenths, twentieths, hundredths, thousandths."""
POWERS = np.arange(-20, 43)
"""Exponents of two within which values are looked for."""
_STEPS = {"histogram": "ranks", "counts": "sums and levels", "n": "sums", "between": "quartiles", "rows": "rows"}
"""Text of an exchange by the first of these blocks that it asks for."""
MOST_VALUES = 4096
"""Most recorded values of a column whose Kruskal-Wallis test is exact; with more it uses bins."""
MOST_BINS = 200
"""Most bins of a Kruskal-Wallis test of values that are not on a recorded grid."""
_NARROWEST = 1e-4
"""Least scale of the third exchange, in scales of the second."""


@dataclass(frozen=True)
class _Plan:
    """Agreed facts for the sums: the grid of each column, groups that are shown, and reasons for those that are not."""

    grids: dict[int, Grid]
    kept: Array
    left_out: dict[str, str]
    notes: tuple[str, ...]

    @property
    def columns(self) -> Array:
        """Numeric columns that are asked for."""
        return np.array(sorted(self.grids), int)


def fit_table_one(terms: TableTerms) -> Fit[TableOne]:
    """Ask for the sums of a Table 1 and make it.

    If a site leaves on the way, the sums are asked for again over the other sites, about other centres and cuts.

    Args:
        terms: The terms.

    Returns:
        The table. Columns and groups with fewer than `terms.least` rows are left out by name.

    Raises:
        BadInput: All columns or all groups are left out.
    """
    total = yield _question(_start(terms), "rows and ranges")
    plan, turn, exchanges = _agree(terms, total), 0, 1
    inquiry = _ask_sums(terms, plan, turn)
    piece = next(inquiry)
    while True:
        sites = total.sites
        total = yield _question(piece, next(text for block, text in _STEPS.items() if block in piece.blocks))
        exchanges += 1
        if total.is_new_roster:
            turn += 1
            plan = replace(plan, notes=(*plan.notes, _tell_leavers(sites, total.sites)))
            inquiry = _ask_sums(terms, plan, turn)
            piece = next(inquiry)
            continue
        try:
            piece = inquiry.send(total)
        except StopIteration as end:
            sums: Sums = end.value
            return make_table(terms, replace(sums, exchanges=exchanges))


def answer_table_one(question: Question, rows: Rows) -> Blocks:
    """Answer a question of Table 1 from the rows of one site.

    Args:
        question: Its values say which blocks are asked for.
        rows: `numeric`, `codes` and `group` are read.

    Returns:
        The blocks.

    Raises:
        BadInput: A value lies outside the agreed range of its column.
    """
    values = question.values
    group = np.zeros(len(rows), int) if rows.group is None else np.asarray(rows.group)
    count = int(np.asarray(values["groups"]))
    out: dict[str, Array] = {"rows": np.bincount(np.where(group < 0, count, group), minlength=count + 1).astype(float)}
    if "kept" in values:
        group = np.where(np.isin(group, np.asarray(values["kept"])), group, -1)
    if "range_columns" in values:
        out |= _describe_ranges(np.asarray(values["range_columns"]), rows)
    if "centre" in values:
        out |= _sum_numbers(question, rows, group)
    if "levels" in values:
        columns, levels = np.asarray(values["code_columns"]), np.asarray(values["levels"])
        out["counts"] = _count_levels(columns, levels, rows, group, count)
    if "cuts" in values:
        out |= count_between(values, rows, group)
    if "edges" in values:
        out["histogram"] = _count_bins(question, rows, group, count)
    return {name: out[name] for name in question.blocks}


def _question(piece: Piece, step: str) -> Question:
    counts = tuple(name for name in CELLS if name in piece.blocks)
    return Question(KIND, piece.values, piece.blocks, step, cells=counts, by_site=True)


def _tell_leavers(before: Sequence[str], after: Sequence[str]) -> str:
    left = [site for site in before if site not in after]
    return (
        f"{', '.join(left)} left while sums were asked for; the table is over the other {len(after)} sites, and the server has "
        "sums with and without"
    )


# The first exchange


def _start(terms: TableTerms) -> Piece:
    """Ask for rows of each group, and for the range and grid of columns where terms do not tell them."""
    columns = {j: terms.numeric[j] for j in terms.numeric_places}
    unknown = [j for j, c in columns.items() if c.low is None or c.high is None or c.steps == 0]
    values: dict[str, Value] = {"groups": terms.group_count}
    blocks: dict[str, tuple[int, ...]] = {"rows": (terms.group_count + 1,)}
    if unknown:
        values["range_columns"] = np.array(unknown)
        blocks |= {
            "sites": (),
            "within": (len(unknown), len(POWERS)),
            "positive": (len(unknown),),
            "recorded": (len(unknown), len(STEPS)),
        }
    return Piece(values, blocks)


def _describe_ranges(columns: Array, rows: Rows) -> Blocks:
    """Answer with 1 for each power that no value exceeds, for no negative value, and for each grid that all values lie on.

    These are facts about a site, not counts of rows.
    """
    assert rows.numeric is not None
    within, recorded = np.empty((len(columns), len(POWERS))), np.empty((len(columns), len(STEPS)))
    positive = np.empty(len(columns))
    for k, j in enumerate(columns):
        x = rows.numeric[:, j]
        x = x[~np.isnan(x)]
        largest = np.abs(x).max(initial=0.0)
        within[k] = largest <= 2.0**POWERS
        positive[k] = not (x < 0).any()
        safe = x[np.abs(x) <= 2.0 ** POWERS[-1]]
        recorded[k] = [bool((np.rint(safe * steps) / steps == safe).all()) for steps in STEPS]
    return {"sites": np.ones(()), "within": within, "positive": positive, "recorded": recorded}


def _agree(terms: TableTerms, total: Total) -> _Plan:
    """Choose grids and groups from the first totals."""
    rows = np.rint(total["rows"]).astype(int)
    kept = np.flatnonzero(rows[:-1] >= terms.least)
    notes = []
    for name, n in zip(terms.groups, rows, strict=False):
        if n < terms.least:
            notes.append(f"group '{name}' has fewer than {terms.least} rows and is left out")
    if rows[-1]:
        count = str(rows[-1]) if rows[-1] >= terms.least else f"fewer than {terms.least}"
        notes.append(f"rows without a group, which are left out: {count}")
    if len(kept) == 0:
        raise BadInput(
            f"Table 1 needs a group with at least {terms.least} rows over all sites; there is none", code="small-cell"
        )
    grids, left_out = _choose_grids(terms, total)
    return _Plan(grids, kept, left_out, tuple(notes))


def _choose_grids(terms: TableTerms, total: Total) -> tuple[dict[int, Grid], dict[str, str]]:
    """Take each column's grid from the terms, or else the narrowest range and the coarsest grid that all sites name."""
    grids, left_out = dict[int, Grid](), dict[str, str]()
    asked = iter(range(len(terms.numeric)))
    for j in terms.numeric_places:
        column = terms.numeric[j]
        if column.low is not None and column.high is not None and column.steps:
            grids[j] = Grid(column.low, column.high, column.steps)
            continue
        k, everyone = next(asked), np.rint(total["sites"])
        powers = np.flatnonzero(np.rint(total["within"][k]) == everyone)
        if len(powers) == 0:
            left_out[column.name] = (
                f"it has values beyond 2^{POWERS[-1]}, or infinite ones: an identifier is no measurement"
            )
            continue
        high = 2.0 ** POWERS[powers[0]]
        low = 0.0 if np.rint(total["positive"][k]) == everyone else -high
        steps = np.flatnonzero(np.rint(total["recorded"][k]) == everyone)
        grids[j] = Grid(
            low if column.low is None else column.low,
            high if column.high is None else column.high,
            column.steps or (STEPS[steps[0]] if len(steps) else 0),
        )
    return grids, left_out


# Sums


def _ask_sums(terms: TableTerms, plan: _Plan, turn: int) -> Inquiry[Sums]:
    """Ask for all sums of the table, with cuts for quartiles beside them."""
    base: dict[str, Value] = {"groups": terms.group_count, "kept": plan.kept}
    columns = plan.columns
    low = np.array([plan.grids[j].low for j in columns])
    high = np.array([plan.grids[j].high for j in columns])
    shape = (len(columns), terms.group_count)
    centre = np.broadcast_to(((low + high) / 2 + 0.01 * turn * (high - low))[:, None], shape)
    scale = np.broadcast_to(((high - low) / 2)[:, None], shape)
    n = np.zeros(shape)
    if len(columns):
        total = yield _moments(base, columns, centre, scale, low, high)
        n = np.rint(total["n"])
        centre, scale = _recentre(total, centre, scale, plan.kept, terms.least)
    shown = n[:, plan.kept].sum(1) >= terms.least if len(columns) else np.zeros(0, bool)
    left_out = plan.left_out | {
        terms.numeric[j].name: f"it has fewer than {terms.least} values over all sites"
        for j in columns[~shown].tolist()
    }
    columns, centre, scale, low, high, n = (a[shown] for a in (columns, centre, scale, low, high, n))
    piece = _moments(base, columns, centre, scale, low, high)
    if terms.categorical_places:
        levels = np.array([len(terms.categorical[j].levels) for j in terms.categorical_places])
        piece = Piece(
            {**piece.values, "levels": levels, "code_columns": np.array(terms.categorical_places)},
            {**piece.blocks, "counts": (int(levels.sum()), terms.group_count)},
        )
    sought = _seek(terms, columns, n, plan.kept)
    search = find_quantiles(sought, plan.grids, offset=turn)
    total, found = yield from _ask_beside(piece, search, base)
    histograms: dict[int, Histogram] = {}
    if terms.tests and len(plan.kept) > 1 and sought:
        histograms = yield from _ask_histograms(terms, plan, sought, found, base)
    by_place = {(s.column, s.group): q for s, q in zip(sought, found.quantiles, strict=True)}
    return Sums(columns, plan.kept, centre, scale, total, by_place, plan.grids, histograms, left_out, plan.notes)


def _moments(base: dict[str, Value], columns: Array, centre: Array, scale: Array, low: Array, high: Array) -> Piece:
    blocks: dict[str, tuple[int, ...]] = {"rows": (int(np.asarray(base["groups"])) + 1,)}
    if not len(columns):
        return Piece(base, blocks)
    values = {"columns": columns, "centre": centre, "scale": scale, "low": low, "high": high}
    shape = tuple(centre.shape)
    return Piece(base | values, blocks | {"n": shape, "s": shape, "q": shape})


def _sum_numbers(question: Question, rows: Rows, group: Array) -> Blocks:
    """Sum values and squares about public centres, in public scales, by column and group."""
    assert rows.numeric is not None
    values = {name: np.asarray(question.values[name]) for name in ("columns", "centre", "scale", "low", "high")}
    shape = values["centre"].shape
    n, s, q = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for k, j in enumerate(values["columns"]):
        x = rows.numeric[:, j]
        present = ~np.isnan(x) & (group >= 0)
        x, where = x[present], group[present]
        if len(x) and (x.min() < values["low"][k] or x.max() > values["high"][k]):
            raise BadInput(
                f"column {j + 1} of Table 1's numbers has a value outside the agreed range {values['low'][k]:g} to "
                f"{values['high'][k]:g}; correct it or agree on a wider range",
                code="out-of-range",
            )
        z = (x - values["centre"][k, where]) / values["scale"][k, where]
        for out, weights in ((n, None), (s, z), (q, z * z)):
            out[k] = np.bincount(where, weights, minlength=shape[1])
    return {"n": n, "s": s, "q": q}


def _recentre(total: Total, centre: Array, scale: Array, kept: Array, least: int) -> tuple[Array, Array]:
    """Return mean and standard deviation of each column and group: centre and scale of the next exchange.

    Groups with few values have those of all groups, so that the question tells no mean of few patients.
    """
    n, s, q = total["n"], total["s"], total["q"]
    every, narrowest = n[:, kept].sum(1), scale * _NARROWEST
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = s[:, kept].sum(1) / every
        width = np.sqrt(np.maximum(q[:, kept].sum(1) / every - middle**2, 0))
        enough = np.rint(n) >= least
        means = np.where(enough, s / n, middle[:, None])
        widths = np.where(enough, np.sqrt(np.maximum(q / n - (s / n) ** 2, 0)), width[:, None])
    return centre + scale * np.nan_to_num(means), np.maximum(scale * np.nan_to_num(widths), narrowest)


def _count_levels(columns: Array, levels: Array, rows: Rows, group: Array, groups: int) -> Array:
    """Count rows of each level of each categorical column, by group."""
    assert rows.codes is not None
    out = np.zeros((int(levels.sum()), groups))
    start = 0
    for j, size in zip(columns.tolist(), levels.tolist(), strict=True):
        codes = rows.codes[:, j]
        present = (codes >= 0) & (group >= 0)
        place = codes[present].astype(int) * groups + group[present]
        out[start : start + size] = np.bincount(place, minlength=size * groups).reshape(size, groups)
        start += size
    return out


def _seek(terms: TableTerms, columns: Array, n: Array, kept: Array) -> list[Sought]:
    """List the columns and groups whose quartiles are shown; groups with few values have none."""
    out = []
    for k, j in enumerate(columns.tolist()):
        if terms.numeric[j].nonnormal:
            out.append(Sought(j, -1, int(n[k, kept].sum())))
            if terms.groups:
                out += [Sought(j, g, int(n[k, g])) for g in kept.tolist() if n[k, g] >= terms.least]
    return out


def _ask_beside(piece: Piece, search: Inquiry[Found], base: dict[str, Value]) -> Inquiry[tuple[Total, Found]]:
    """Ask for a piece together with the first cuts of a search, then for the rest of the search."""
    try:
        cuts = next(search)
    except StopIteration as end:
        total = yield piece
        return total, end.value
    total = latest = yield Piece({**piece.values, **cuts.values}, {**piece.blocks, **cuts.blocks})
    while True:
        try:
            cuts = search.send(latest)
        except StopIteration as end:
            return total, end.value
        latest = yield Piece({**base, **cuts.values}, cuts.blocks)


# The Kruskal-Wallis test


def _ask_histograms(
    terms: TableTerms, plan: _Plan, sought: Sequence[Sought], found: Found, base: dict[str, Value]
) -> Inquiry[dict[int, Histogram]]:
    """Ask for the distribution of each column with quartiles, by group."""
    columns = [s.column for s in sought if s.group == -1]
    sizes = {s.column: s.n for s in sought if s.group == -1}
    edges = {j: _choose_edges(plan.grids[j], found.knots[j], sizes[j], terms.least) for j in columns}
    bins = [len(edges[j]) + 1 for j in columns]
    total = yield Piece(
        {
            **base,
            "edge_columns": np.array(columns),
            "bins": np.array(bins),
            "edges": np.concatenate(list(edges.values())),
        },
        {"histogram": (sum(bins), terms.group_count)},
    )
    parts = np.split(np.rint(total["histogram"]), np.cumsum(bins)[:-1])
    return {
        j: Histogram(part[:, plan.kept], binned=not _is_listed(plan.grids[j], found.knots[j], sizes[j]))
        for j, part in zip(columns, parts, strict=True)
    }


def _span(grid: Grid, knots: Array, n: int) -> tuple[int, int]:
    """Return the first and last place that may hold rows, by the counts of the search."""
    below, full = knots[knots[:, 1] == 0], knots[knots[:, 1] == n]
    return (
        int(below[-1, 0]) + 1 if len(below) else 0,
        int(full[0, 0]) if len(full) else grid.places - 1,
    )


def _is_listed(grid: Grid, knots: Array, n: int) -> bool:
    """Tell whether every recorded value has a bin of its own."""
    first, last = _span(grid, knots, n)
    return grid.is_exact and last - first < MOST_VALUES


def _choose_edges(grid: Grid, knots: Array, n: int, least: int) -> Array:
    """Choose upper edges of bins: after every recorded value, or of about equal counts by the cuts that were seen."""
    first, last = _span(grid, knots, n)
    if _is_listed(grid, knots, n):
        return grid.edge(np.arange(first, last))
    places = np.concatenate([[first - 1], knots[:, 0], [last]])
    counts = np.concatenate([[0], knots[:, 1], [n]])
    wanted = np.arange(1, max(2, min(MOST_BINS, n // least))) / max(2, min(MOST_BINS, n // least))
    order = np.argsort(places, kind="stable")
    chosen = np.interp(wanted * n, np.maximum.accumulate(counts[order]), places[order])
    return grid.edge(np.unique(np.floor(chosen).astype(int)))


def _count_bins(question: Question, rows: Rows, group: Array, groups: int) -> Array:
    """Count rows in each bin, by group."""
    assert rows.numeric is not None
    bins = np.asarray(question.values["bins"])
    edges = np.split(np.asarray(question.values["edges"]), np.cumsum(bins - 1)[:-1])
    parts = []
    for j, own, size in zip(np.asarray(question.values["edge_columns"]), edges, bins.tolist(), strict=True):
        x = rows.numeric[:, j]
        present = ~np.isnan(x) & (group >= 0)
        place = np.searchsorted(own, x[present], side="left") * groups + group[present]
        parts.append(np.bincount(place, minlength=size * groups).reshape(size, groups))
    return np.concatenate(parts).astype(float)
