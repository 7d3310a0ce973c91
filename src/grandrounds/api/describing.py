"""`gr.table1`: describe the patients of all sites from sums."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from grandrounds.api.sources import memory_rows

if TYPE_CHECKING:
    from grandrounds.data.table import Table
    from grandrounds.statistics.table_result import TableOne


def table1(
    data: Any,
    *,
    site: str | None = None,
    group: str | None = None,
    columns: Sequence[str] = (),
    nonnormal: Sequence[str] = (),
    categorical: Sequence[str] = (),
    tests: bool = True,
    least: int = 5,
) -> TableOne:
    """Describe patients in a Table 1: counts, means, quartiles, missing values, differences and tests, from sums over sites.

    Numbers have mean and standard deviation, or median and quartiles where `nonnormal` lists them. Categories have counts and
    percentages. Counts below `least` are hidden.

    Args:
        data: The path of a table (.csv, .parquet, a SQL URL), a data set by name, or a pandas DataFrame.
        site: The column that names the hospital of each row; a data set may have one of its own.
        group: The column whose values are compared, such as the treatment arm.
        columns: The columns to describe, in order; by default all.
        nonnormal: Columns with median and quartiles in place of mean and standard deviation.
        categorical: Columns of numbers whose values are categories. Numbers 0 and 1 are.
        tests: Test for differences between groups: Welch's t, ANOVA, chi-squared, Fisher's exact, Kruskal-Wallis.
        least: Fewest patients of a count or mean that is shown.

    Returns:
        The table, with `.summary()`, `.to_frame()`, `.to_csv()`, `.to_latex()` and `.to_dict()`.

    Raises:
        BadInput: A column is not there, fewer than three sites are, or there are more than ten groups.

    Examples:
        >>> print(table1("patients.csv", site="hospital", group="arm").summary())  # doctest: +SKIP
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.table_one import run_table_one
    from grandrounds.statistics.table_rows import TableRequest

    table, usual = read_source(data)
    site = site or usual
    if site is None:
        raise BadInput(
            f"which column of {table.source} names the hospital? It has {', '.join(table.names[:20])} (give site=)",
            code="site-not-set",
        )
    request = TableRequest(
        site,
        group or "",
        _names(columns),
        _names(nonnormal),
        _names(categorical),
        tests,
        least,
    )
    return run_table_one(table, request)


def read_source(data: Any) -> tuple[Table, str | None]:
    """Read the rows of a table, a data set or a data frame.

    Args:
        data: The path of a table, a data set by name, a DataFrame or a Table.

    Returns:
        The rows; the column of hospitals that a data set of the catalog has.

    Raises:
        BadInput: There is no such data set or table, or it holds images.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.data.images import ImageSet
    from grandrounds.data.readers import read_table
    from grandrounds.data.sets.catalog import CATALOG
    from grandrounds.data.table import Table

    rows, site = memory_rows(data), None
    if rows is None:
        if not isinstance(data, str | PathLike):
            raise BadInput(
                f"cannot read an object of type {type(data).__name__}: give a table (.csv, .parquet), a data set or a pandas "
                "DataFrame",
                code="unknown-source",
            )
        name = str(data)
        if name in CATALOG:
            rows, site = CATALOG[name].load(), CATALOG[name].site
        else:
            rows = read_table(name)
    if isinstance(rows, ImageSet):
        raise BadInput("images have no columns to describe: give a table", code="needs-table")
    return (rows if isinstance(rows, Table) else Table.from_pandas(rows)), site


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(map(str, given))
