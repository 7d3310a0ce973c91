"""Table 1 as a result: cells with small counts hidden, printed as text, a data frame, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.group_tests import GroupTest

HIDDEN = "*"
"""A cell that would give away a small count."""
MOST_SITES = 6
"""Most sites with columns of their own in the printed text."""
_EMPTY = "-"
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
}


@dataclass(frozen=True)
class TableColumn:
    """A column of the table: all rows, a group or a site.

    Attributes:
        name: "Overall", or the name of the group or site.
        kind: "overall", "group" or "site".
        n: Rows; None where the count is hidden.
    """

    name: str
    kind: str
    n: int | None


@dataclass(frozen=True)
class Cell:
    """The summary of one variable in one column of the table.

    Attributes:
        missing: Rows without a value; None where the column's rows are hidden.
        n: Rows with a value; None where it is hidden.
        mean: Mean.
        sd: Standard deviation with n - 1.
        quartiles: Lower quartile, median and upper quartile; () if they were not asked for.
        counts: Rows of each level; None where a count is hidden. () for numbers.
        small: For each level, True where the hidden count is below the least one.
        hidden: The mean and quartiles are of few rows, or would give away those of few.
    """

    missing: int | None
    n: int | None
    mean: float | None = None
    sd: float | None = None
    quartiles: tuple[float, ...] = ()
    counts: tuple[int | None, ...] = ()
    small: tuple[bool, ...] = ()
    hidden: bool = False


@dataclass(frozen=True)
class Variable:
    """One variable of the table.

    Attributes:
        name: Its name.
        kind: "mean", "median" or "category".
        cells: One for each column of the table.
        levels: Names of its levels; () for numbers.
        smd: Absolute standardised differences of each two groups, in the order of `itertools.combinations`; None where a
            group is empty or hidden.
        test: Test for a difference between groups; None without groups, and where cells are hidden.
        p_range: Where cells are hidden, p as "<0.001", "<0.01", "<0.05" or ">=0.05", since p itself would give them away.
        width: Largest error of its quartiles; 0 if they are exact.
        unit: Unit of its numbers; "" where it is not known.
    """

    name: str
    kind: str
    cells: tuple[Cell, ...]
    levels: tuple[str, ...] = ()
    smd: tuple[float | None, ...] = ()
    test: GroupTest | None = None
    p_range: str = ""
    width: float = 0.0
    unit: str = ""


@dataclass(frozen=True)
class TableOne:
    """Table 1 over all sites.

    Attributes:
        columns: All rows first, then groups, then sites where their answers came in the clear.
        variables: In the order of the terms.
        group: Name of the column that groups rows; "" without groups.
        least: Fewest patients of a count or a mean that is shown.
        left_out: Columns that are not in the table, with the reason.
        exchanges: Questions that each site answered.
        notes: Sentences for people.
    """

    columns: tuple[TableColumn, ...]
    variables: tuple[Variable, ...]
    group: str = ""
    least: int = 5
    left_out: Mapping[str, str] | None = None
    exchanges: int = 0
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Variable:
        """Return a variable by name."""
        return next(v for v in self.variables if v.name == name)

    def cell(self, variable: str, column: str = "Overall") -> Cell:
        """Return the summary of a variable in a column of the table.

        Args:
            variable: Name of the variable.
            column: "Overall", or the name of a group or site.

        Returns:
            The cell.
        """
        place = next(k for k, c in enumerate(self.columns) if c.name == column)
        return self[variable].cells[place]

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups that are shown."""
        return tuple(c.name for c in self.columns if c.kind == "group")

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "columns": [dict(vars(c)) for c in self.columns],
            "variables": [
                dict(vars(v))
                | {
                    "cells": [{k: list(x) if isinstance(x, tuple) else x for k, x in vars(c).items()} for c in v.cells],
                    "levels": list(v.levels),
                    "smd": list(v.smd),
                    "test": None if v.test is None else v.test.to_dict(),
                }
                for v in self.variables
            ],
            "group": self.group,
            "least": self.least,
            "left_out": dict(self.left_out or {}),
            "exchanges": self.exchanges,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableOne:
        """Read what `to_dict` wrote.

        Args:
            values: JSON values.

        Returns:
            The table.
        """
        return cls(
            tuple(TableColumn(**c) for c in values["columns"]),
            tuple(_read_variable(v) for v in values["variables"]),
            str(values["group"]),
            int(values["least"]),
            dict(values["left_out"]),
            int(values["exchanges"]),
            tuple(values["notes"]),
        )

    def without_sites(self) -> TableOne:
        """Return the table without the columns of single sites."""
        shown = [k for k, c in enumerate(self.columns) if c.kind != "site"]
        return replace(
            self,
            columns=tuple(self.columns[k] for k in shown),
            variables=tuple(replace(v, cells=tuple(v.cells[k] for k in shown)) for v in self.variables),
        )

    def header(self) -> list[str]:
        """Return the names of the printed columns; the first two are the variable and the level."""
        names = ["", "", "Missing", *(c.name for c in self.columns)]
        return [*names, *(["SMD", "p", "test"] if len(self.groups) > 1 else [])]

    def rows(self) -> list[list[str]]:
        """Return the printed rows, one text for each column of `header`."""
        tested = len(self.groups) > 1
        first = ["n", "", "", *(self._count(c.n) for c in self.columns), *([""] * 3 if tested else [])]
        return [first, *(row for v in self.variables for row in self._print_variable(v, tested=tested))]

    def to_frame(self) -> Any:
        """Return the printed table as a pandas data frame, indexed by variable and level."""
        import pandas as pd

        rows = self.rows()
        index = pd.MultiIndex.from_tuples([(r[0], r[1]) for r in rows], names=["variable", "level"])
        return pd.DataFrame([r[2:] for r in rows], index=index, columns=self.header()[2:])

    def to_csv(self) -> str:
        """Return the printed table as CSV; every row has the name of its variable."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["variable", "level", *self.header()[2:]])
        writer.writerows(self.rows())
        return stream.getvalue()

    def to_latex(self) -> str:
        """Return the printed table as a LaTeX tabular with booktabs' rules, and its footnotes below it."""
        header = self.header()
        lines = [f"\\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}", "\\toprule"]
        lines.append(" & ".join(map(_escape, ["Variable", "Level", *header[2:]])) + " \\\\")
        lines.append("\\midrule")
        lines += [" & ".join(map(_escape, row)) + " \\\\" for row in _drop_repeats(self.rows())]
        below = [f"\\par{{\\footnotesize {_escape(note)}}}" for note in self.footnotes()]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *below, ""])

    def summary(self, *, width: int | None = None) -> str:
        """Return the table as text, with the reasons for what it does not show.

        Args:
            width: Width of the terminal. Where the table is wider, or has more than six sites, columns of sites are left out.

        Returns:
            The text.
        """
        sites = sum(c.kind == "site" for c in self.columns)
        text = self._print()
        if sites > MOST_SITES or (sites and width and len(text.split("\n")[1]) > width):
            note = f"Columns of the {sites} sites are in the CSV, LaTeX and data frame."
            return replace(self.without_sites(), notes=(*self.notes, note))._print()
        return text

    def _print(self) -> str:
        title = "Table 1" + (f" by {self.group}" if self.groups else "")
        rows = [self.header(), *_drop_repeats(self.rows())]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = [
            "  ".join(
                text.ljust(w) if k < 2 else text.rjust(w) for k, (text, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join(
            [title, rule, lines[0].rstrip(), rule, *(t.rstrip() for t in lines[1:]), rule, *self.footnotes()]
        )

    def footnotes(self) -> list[str]:
        """Return the sentences below the table."""
        cells = [c for v in self.variables for c in v.cells]
        out = []
        if any(any(c.small) or c.hidden for c in cells) or any(c.n is None for c in self.columns):
            out.append(
                f"<{self.least}: fewer than {self.least} patients. {HIDDEN}: hidden, since it would give such a count away."
            )
        elif any(v.p_range for v in self.variables):
            out.append(f"{HIDDEN}: hidden, since it would give a small count away.")
        if len(self.groups) > 2:
            out.append("SMD: the largest of each two groups.")
        for v in self.variables:
            if v.width:
                out.append(f"Quartiles of {v.name} are within {v.width:.2g}.")
        out += [f"{name} is left out: {reason}." for name, reason in (self.left_out or {}).items()]
        return [*out, *(note if note.endswith(".") else f"{note}." for note in self.notes)]

    def _count(self, n: int | None) -> str:
        return f"<{self.least}" if n is None else str(n)

    def _print_variable(self, v: Variable, *, tested: bool) -> list[list[str]]:
        overall = v.cells[0]
        ends = [_print_smd(v), _print_p(v), v.test.name if v.test else ""] if tested else []
        missing = _EMPTY if overall.missing is None else str(overall.missing)
        if v.kind != "category":
            digits = _decimals(overall)
            cells = [self._print_number(c, v.kind, digits) for c in v.cells]
            label = "median [Q1, Q3]" if v.kind == "median" else "mean (SD)"
            return [[f"{v.name} ({v.unit})" if v.unit else v.name, label, missing, *cells, *ends]]
        rows = []
        for k, level in enumerate(v.levels):
            cells = [self._print_count(c, k) for c in v.cells]
            first = [missing, *cells, *ends] if k == 0 else ["", *cells, *([""] * len(ends))]
            rows.append([f"{v.name}, n (%)", level, *first])
        return rows

    def _print_number(self, c: Cell, kind: str, digits: int) -> str:
        if c.hidden:
            return f"<{self.least}" if c.n is None else HIDDEN
        if kind == "median":
            if not c.quartiles:
                return _EMPTY
            low, middle, high = (f"{x:.{digits}f}" for x in c.quartiles)
            return f"{middle} [{low}, {high}]"
        if c.mean is None:
            return _EMPTY
        return f"{c.mean:.{digits}f} ({_EMPTY if c.sd is None else f'{c.sd:.{digits}f}'})"

    def _print_count(self, c: Cell, level: int) -> str:
        count = c.counts[level]
        if count is None:
            return f"<{self.least}" if c.small[level] else HIDDEN
        return f"{count} ({100 * count / c.n:.1f})" if c.n else str(count)


def _decimals(cell: Cell) -> int:
    """Choose decimals so that the standard deviation has at least two significant digits; at least one decimal."""
    if not cell.sd:
        return 1
    return int(np.clip(1 - np.floor(np.log10(cell.sd)), 1, 8))


def _print_smd(v: Variable) -> str:
    if v.p_range:
        return HIDDEN
    known = [d for d in v.smd if d is not None]
    return f"{max(known):.3f}" if known else _EMPTY


def _print_p(v: Variable) -> str:
    if v.p_range:
        return v.p_range
    if v.test is None:
        return _EMPTY
    return "<0.001" if v.test.p < 0.001 else f"{v.test.p:.3f}"


def _drop_repeats(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Print the name of a variable in its first row alone."""
    out, before = [], ""
    for row in rows:
        out.append(["" if row[0] == before else row[0], *row[1:]])
        before = row[0]
    return out


def _escape(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def _read_cell(values: Mapping[str, Any]) -> Cell:
    plain: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in values.items()}
    return Cell(**plain)


def _read_variable(values: Mapping[str, Any]) -> Variable:
    cells = tuple(_read_cell(c) for c in values["cells"])
    test = None if values["test"] is None else GroupTest.from_dict(values["test"])
    return Variable(
        str(values["name"]),
        str(values["kind"]),
        cells,
        tuple(values["levels"]),
        tuple(values["smd"]),
        test,
        str(values["p_range"]),
        float(values["width"]),
        str(values.get("unit", "")),
    )


def pairs(groups: Sequence[str]) -> list[tuple[str, str]]:
    """Return each two groups, in the order of `Variable.smd`."""
    return list(combinations(groups, 2))
