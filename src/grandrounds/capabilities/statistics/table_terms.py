"""The terms of a Table 1: columns, groups and rules that all sites know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.capabilities.statistics.small_cells import LEAST
from grandrounds.core.errors import BadInput, nearest

MOST_GROUPS = 10
MOST_LEVELS = 50


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers.

    Attributes:
        name: Its name.
        low: Lower end of the public range; None: found from the sites' answers.
        high: Upper end.
        steps: Recorded values per unit, such as 1 for years and 10 for tenths; 0: found from the sites' answers.
        nonnormal: Show median and quartiles in place of mean and standard deviation.
    """

    name: str
    low: float | None = None
    high: float | None = None
    steps: int = 0
    nonnormal: bool = False


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories: its name and the agreed levels."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class TableTerms:
    """The terms of a Table 1, public to all sites.

    Attributes:
        numeric: Columns of `Rows.numeric`, in order.
        categorical: Columns of `Rows.codes`, in order.
        group: Name of the column that groups rows; "" without groups.
        groups: Names of the groups, by their number in `Rows.group`.
        order: Names of the columns that the table shows, in order; () shows all, numbers first. The others are not asked for.
        least: Fewest patients of a count or a mean that is shown.
        tests: Test for differences between groups.
    """

    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()
    group: str = ""
    groups: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    least: int = LEAST
    tests: bool = True

    def __post_init__(self) -> None:
        if not self.names:
            raise BadInput("Table 1 has no columns; name some (use --columns)", code="no-columns")
        known = {*(c.name for c in self.numeric), *(c.name for c in self.categorical)}
        if odd := next((name for name in self.order if name not in known), None):
            raise BadInput(
                f"column '{odd}' of Table 1 is not among the columns; {nearest(odd, known)} (use --columns)",
                code="unknown-column",
            )
        if len(self.groups) > MOST_GROUPS:
            raise BadInput(
                f"column '{self.group}' has {len(self.groups)} groups, and Table 1 shows at most {MOST_GROUPS}; choose "
                "another column or merge groups (use --group)",
                code="too-many-groups",
            )
        for column in self.numeric:
            if column.low is not None and column.high is not None and not column.low < column.high:
                raise BadInput(
                    f"the range of column '{column.name}' is {column.low:g} to {column.high:g}; give the lower end first",
                    code="bad-range",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in the order of the table."""
        return self.order or (*(c.name for c in self.numeric), *(c.name for c in self.categorical))

    @property
    def numeric_places(self) -> tuple[int, ...]:
        """Places of the numeric columns that the table shows."""
        shown = set(self.names)
        return tuple(j for j, c in enumerate(self.numeric) if c.name in shown)

    @property
    def categorical_places(self) -> tuple[int, ...]:
        """Places of the categorical columns that the table shows."""
        shown = set(self.names)
        return tuple(j for j, c in enumerate(self.categorical) if c.name in shown)

    @property
    def group_count(self) -> int:
        """Number of groups; 1 without groups."""
        return max(1, len(self.groups))

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON values."""
        return {
            "numeric": [dict(vars(c)) for c in self.numeric],
            "categorical": [{"name": c.name, "levels": list(c.levels)} for c in self.categorical],
            "group": self.group,
            "groups": list(self.groups),
            "order": list(self.order),
            "least": self.least,
            "tests": self.tests,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableTerms:
        """Read what `to_dict` wrote."""
        return cls(
            tuple(NumericColumn(**c) for c in values["numeric"]),
            tuple(CategoricalColumn(str(c["name"]), tuple(c["levels"])) for c in values["categorical"]),
            str(values["group"]),
            tuple(values["groups"]),
            tuple(values["order"]),
            int(values["least"]),
            bool(values["tests"]),
        )
