"""`gr.table1`: describe the patients of all sites from sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.api.progress import RunProgress, exchange_progress
from grandrounds.api.sources import Settings, apply_settings, cohort_value, memory_rows
from grandrounds.capabilities.sources.cohort.definition import Cohort
from grandrounds.capabilities.sources.cohort.plan_cohort import read_agreed, write_agreed
from grandrounds.capabilities.statistics.table_rows import TableRequest, choose_terms, split_sites
from grandrounds.capabilities.statistics.table_terms import MOST_LEVELS
from grandrounds.core.errors import BadInput
from grandrounds.data.table import missing_mask

if TYPE_CHECKING:
    from grandrounds.capabilities.statistics.table_result import TableOne
    from grandrounds.capabilities.statistics.table_terms import TableTerms
    from grandrounds.data.table import Table
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import Run

_NO_GROUP = "(no group)"
"""Label of a run without groups: a column that is added, since every run has a label. It is in no table."""


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
    cohort: Any = None,
    secure: bool = False,
    settings: Settings = (),
    out: str | Path | None = None,
    progress: RunProgress = None,
) -> TableOne:
    """Describe patients in a Table 1: counts, means, quartiles, missing values, differences and tests, from sums over sites.

    Numbers have mean and standard deviation, or median and quartiles where `nonnormal` lists them. Categories have counts and
    percentages. Counts below `least` are hidden.

    Args:
        data: The path of a table (.csv, .parquet, .xlsx, .sav, a SQL URL), a data set by name, or a pandas DataFrame.
        site: The column that names the hospital of each row; a data set may have one of its own.
        group: The column whose values are compared, such as the treatment arm.
        columns: The columns to describe, in order; by default all.
        nonnormal: Columns with median and quartiles in place of mean and standard deviation.
        categorical: Columns of numbers whose values are categories. Numbers 0 and 1 are.
        tests: Test for differences between groups: Welch's t, ANOVA, chi-squared, Fisher's exact, Kruskal-Wallis.
        least: Fewest patients of a count or mean that is shown.
        cohort: The cohort file by which the table is made from clinical records; `data` is then their folder, zip or SQL URL.
        secure: Use secure aggregation: the server receives sums over hospitals and no hospital's own. The table then has no
            columns of single sites.
        settings: Further settings by their names in the experiment file.
        out: The run folder; by default `runs/DATA-table1-seedN`.
        progress: True shows a bar, False none; by default a terminal or notebook shows one. A function is called with each
            event instead.

    Returns:
        The table, with `.summary()`, `.to_frame()`, `.to_csv()`, `.to_latex()` and `.to_dict()`.

    Raises:
        BadInput: A column is not there, fewer than three sites are, or there are more than ten groups.
        RunFailed: The run stopped; its finished exchanges are on disk.

    Examples:
        >>> print(table1("patients.csv", site="hospital", group="arm").summary())  # doctest: +SKIP
    """
    request = TableRequest(
        site or "",
        group or "",
        _names(columns),
        _names(nonnormal),
        _names(categorical),
        tests,
        least,
    )
    return describe(data, request, cohort=cohort, secure=secure, settings=settings, out=out, progress=progress)[0]


def describe(
    data: Any,
    request: TableRequest,
    *,
    cohort: Any = None,
    secure: bool = False,
    settings: Settings = (),
    out: str | Path | None = None,
    progress: RunProgress = None,
) -> tuple[TableOne, Run]:
    """Run a Table 1 and read it.

    Args:
        data: As in `table1`.
        request: Columns, groups and rules; `site` may be "" for a data set that has one of its own, and for records of several
            hospitals.
        cohort: The cohort file, for clinical records.
        secure: Use secure aggregation.
        settings: Further settings.
        out: The run folder.
        progress: As in `table1`.

    Returns:
        The table and the finished run.

    Raises:
        BadInput: The request does not match the data.
        RunFailed: The run stopped.
    """
    from grandrounds.capabilities.statistics.table_result import TableOne
    from grandrounds.runs.run import run as start
    from grandrounds.runs.runner import new_folder

    agreed = None if cohort is None else read_agreed(cohort_value(cohort))
    table, usual = read_source(data) if agreed is None else read_records(data, agreed)
    request = replace(request, site=request.site or usual or "")
    if agreed is not None and not request.columns:
        described = [*(f.name for f in agreed.features), agreed.outcome.name]
        request = replace(request, columns=tuple(name for name in described if name != request.group))
    if not request.site:
        raise BadInput(
            f"which column of {table.source} names the hospital? It has {', '.join(table.names[:20])} (give site=)",
            code="site-not-set",
        )
    split_sites(table, request.site)
    terms, left_out = choose_terms(table, request)
    rows = table if request.group else table.with_columns({_NO_GROUP: np.arange(len(table)) % 2})
    name = Path(table.source).name.split(".")[0] or "table"
    built = apply_settings(_build(terms, request, name=name, secure=secure, cohort=agreed), settings)
    if out is None:  # rows in memory have no name in the plan
        out = new_folder(Path("runs"), f"{name}-table1-seed{built.seed}")
    with exchange_progress(progress) as report:
        run = start(built, out=out, table=rows, progress=report)
    found = TableOne.from_dict(run.summary["table1"])
    notes = (*_tell_gaps(table, request), *found.notes)
    return replace(found, left_out={**left_out, **(found.left_out or {})}, notes=notes), run


def _tell_gaps(table: Table, request: TableRequest) -> tuple[str, ...]:
    """Tell how many rows have no group."""
    gaps = int(missing_mask(table.columns[request.group]).sum()) if request.group else 0
    if not gaps:
        return ()
    count = str(gaps) if gaps >= request.least else f"fewer than {request.least}"
    return (f"rows without a value of '{request.group}', which are left out: {count}",)


def _build(
    terms: TableTerms, request: TableRequest, *, name: str, secure: bool, cohort: Cohort | None = None
) -> Experiment:
    """Build the experiment of a Table 1: all rows, no model. Runs have a label: the group, or a column of no meaning."""
    from grandrounds.core.sources import DATA_FRAME
    from grandrounds.experiment.experiment import Experiment

    kinds = {c.name: "categorical" for c in terms.categorical} | {c.name: "numeric" for c in terms.numeric}
    data = {
        "table": DATA_FRAME,
        "label": request.group or _NO_GROUP,
        "task": "classification",
        "site": request.site,
        "features": list(terms.names),
        "kinds": kinds,
        "drop_unlabelled": True,
        "max_categories": MOST_LEVELS,
        "cohort": None if cohort is None else write_agreed(cohort),
    }
    if request.group and len(terms.groups) == 2:
        data["event"] = terms.groups[1]  # no group of two is an event here, but a run of classes names one
    exact: dict[str, Any] = {
        "columns": list(terms.names),
        "nonnormal": list(request.nonnormal),
        "tests": request.tests,
        "least": request.least,
    }
    values: dict[str, Any] = {
        "name": name,
        "data": data,
        "split": {"val": 0.0, "test": 0.0, "min_rows": 1},
        "engine": {"precision": "float64"},
        "explain": {"sketch": "none"},
        "method": {"name": "table1", "exact": exact},
    }
    if request.group:
        exact["group"] = request.group
    if secure:
        values["privacy"] = {"secure": True}
    return Experiment.parse(values, where="settings")


def read_records(data: Any, cohort: Cohort) -> tuple[Table, str | None]:
    """Read the table of a cohort from clinical records.

    Args:
        data: Records of one hospital, or a folder with those of several.
        cohort: The cohort.

    Returns:
        The rows; the column of hospitals, where there are several.

    Raises:
        BadInput: The records cannot be read.
    """
    from grandrounds.capabilities.sources.cohort.hospitals import SITE, read_cohort_table

    table = read_cohort_table(cohort, data)
    return table, SITE if SITE in table.columns else None


def read_source(data: Any) -> tuple[Table, str | None]:
    """Read the rows of a table, a data set or a data frame.

    Args:
        data: The path of a table, a data set by name, a DataFrame or a Table.

    Returns:
        The rows; the column of hospitals that a data set of the catalog has.

    Raises:
        BadInput: There is no such data set or table, or it holds images.
    """
    from grandrounds.data.images import ImageSet
    from grandrounds.data.readers import read_table
    from grandrounds.data.sets.catalog import CATALOG
    from grandrounds.data.table import Table

    rows, site = memory_rows(data), None
    if rows is None:
        if not isinstance(data, str | PathLike):
            raise BadInput(
                f"cannot read an object of type {type(data).__name__}: give a table (.csv, .parquet, .xlsx), a data set or a "
                "pandas DataFrame",
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
