"""`rounds table1`: describe the patients of all sites from sums."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import CohortFile, Query, Quiet, Reading, Set, expand_options, show_reading
from grandrounds.cli.terminal import Terminal, echo

if TYPE_CHECKING:
    from grandrounds.data.table import Table


def register(app: typer.Typer) -> None:
    app.command("table1")(table1)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


@expand_options
def table1(
    source: Annotated[
        str, typer.Argument(metavar="[TABLE | DATA SET]", help="Your own table (as --table), or a data set: heart.")
    ] = "",
    table: Annotated[
        str | None, typer.Option("--table", help="Your own data: .csv, .parquet, .xlsx, .sas7bdat, .dta, .sav or a SQL URL.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="Column that names the hospital of each row.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Column whose values are compared: --group arm.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Columns to describe, in order: age,sex. Default: all.")
    ] = None,
    nonnormal: Annotated[
        str | None,
        typer.Option("--nonnormal", help="Columns with median and quartiles in place of mean and SD: crp,los."),
    ] = None,
    categorical: Annotated[
        str | None, typer.Option("--categorical", help="Columns of numbers that are categories: stage,nyha.")
    ] = None,
    tests: Annotated[bool, typer.Option("--tests/--no-tests", help="Test for differences between groups.")] = True,
    least: Annotated[int, typer.Option("--least", min=2, help="Fewest patients of a count that is shown.")] = 5,
    cohort: CohortFile = None,
    query: Query = None,
    reading: Reading = Reading(),
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the table as CSV to this file.")] = None,
    latex: Annotated[Path | None, typer.Option("--latex", help="Write the table as LaTeX to this file.")] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Secure aggregation: no hospital's own sums are seen, and it has no column."),
    ] = False,
    settings: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/DATA-table1-seed0).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Describe patients in a Table 1: counts, means, quartiles, missing values, differences and tests.

    All numbers come from sums over hospitals and equal those of the pooled rows. Counts below 5 are hidden.

    Example: `rounds table1 --table patients.csv --site hospital --group arm --nonnormal crp`
    """
    from grandrounds.capabilities.statistics.api.describing import describe
    from grandrounds.capabilities.statistics.table_rows import TableRequest

    if cohort is not None and bool(source) != (table is not None):
        rows: Table | str = table or source
    else:
        rows = read_rows(source, table, query, reading, command="table1")
    request = TableRequest(
        site or "", group or "", _split(columns), _split(nonnormal), _split(categorical), tests, least
    )
    result, run = describe(
        rows,
        request,
        cohort=cohort,
        secure=secure,
        settings=settings,
        out=out,
        progress=None if sys.stderr.isatty() else False,
    )
    for note in run.summary.assumed if cohort is not None else ():
        echo(f"assumed: {note}", err=True)
    for path, text in ((csv, result.to_csv), (latex, result.to_latex)):
        if path is not None:
            _write(path, text())
    if as_json:
        echo(json.dumps(result.to_dict()))
    elif quiet:
        echo(str(run.folder))
    else:
        echo(result.summary(width=Terminal().width if sys.stdout.isatty() else None))
        echo(f"run: {run.folder}")


def read_rows(source: str, table: str | None, query: str | None, reading: Reading, *, command: str) -> Table | str:
    """Read the user's own table; the name of a data set is returned as it is.

    Args:
        source: A data set, or a table.
        table: A table.
        query: Query of a SQL URL.
        reading: Text format of the table.
        command: Name of the command, for messages.

    Raises:
        BadInput: There is no table, or options contradict each other.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.data.formats import DEFAULT_MISSING
    from grandrounds.data.readers import read_table
    from grandrounds.data.sets.catalog import CATALOG

    if bool(source) == (table is not None):
        raise BadInput(
            f"both '{source}' and --table are given: leave one of them out"
            if source
            else f"which table? Give one: rounds {command} --table patients.csv --site hospital",
            code="conflicting-options" if source else "missing-option",
        )
    where = table or source
    if where in CATALOG and table is None:
        if (flag := reading.first_flag()) is not None:
            raise BadInput(
                f"{flag} is for a table of your own, and '{where}' is a data set: add --table FILE",
                code="missing-option",
            )
        return where
    missing = [*DEFAULT_MISSING, *(reading.missing or ())]
    rows = read_table(where, query=query, missing=missing, form=reading.text_format())
    show_reading(rows)
    return rows


def read_cohort_rows(cohort: Path, where: str, site: str | None) -> tuple[Table, str | None]:
    """Read the table of a cohort from clinical records, and print assumptions.

    Args:
        cohort: The cohort file.
        where: The records of one hospital, or a folder with those of several.
        site: The column of hospitals that the user named.

    Returns:
        The table, and the column of hospitals.

    Raises:
        BadInput: The cohort or the records cannot be read.
    """
    from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
    from grandrounds.capabilities.statistics.api.describing import read_records

    rows, usual = read_records(where, read_cohort(cohort))
    show_reading(rows)
    return rows, site or usual


def _write(path: Path, text: str) -> None:
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    try:
        write_atomic(path, text.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another place", code="cannot-write") from None
