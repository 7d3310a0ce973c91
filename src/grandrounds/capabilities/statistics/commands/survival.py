"""`rounds fit km`: survival curves across hospitals, from counts that add."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.capabilities.statistics.commands.table1 import read_cohort_rows, read_rows
from grandrounds.cli.options import CohortFile, Query, Reading, expand_options
from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.data.table import Table


def register(app: typer.Typer) -> None:
    app.command("km")(km)


@expand_options
def km(
    source: Annotated[
        str, typer.Argument(metavar="[TABLE | DATA SET]", help="Your own table (as --table), or a data set.")
    ] = "",
    table: Annotated[
        str | None, typer.Option("--table", help="Your own data: .csv, .parquet, .xlsx, .sas7bdat, .dta, .sav or a SQL URL.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="Column with the follow-up time, such as days.")] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="Column that tells events from censored rows: 1 and 0, or two words.")
    ] = None,
    event_value: Annotated[
        str | None, typer.Option("--event-value", help="Value of --event that is the event, such as died.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="Column that names the hospital of each row.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Column whose values are compared: --group arm.")] = None,
    grid: Annotated[
        str,
        typer.Option(
            metavar="bins|days",
            help="bins: intervals with at least --least events. days: every day, equal to pooled rows; discloses the day of "
            "every event.",
        ),
    ] = "bins",
    least: Annotated[int, typer.Option("--least", min=2, help="Least number of events in an interval.")] = 5,
    unit: Annotated[float, typer.Option("--unit", help="Unit in which times are recorded: 1 for whole days.")] = 1.0,
    horizon: Annotated[
        float | None, typer.Option("--horizon", help="End of the restricted mean. Default: where all curves end.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="Times at which survival is printed: 365,730.")] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Secure aggregation: the server receives sums over hospitals and nothing else."),
    ] = False,
    cohort: CohortFile = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of a run with ledger, record and report.")] = None,
    query: Query = None,
    reading: Reading = Reading(),
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the points of all curves as CSV.")] = None,
    latex: Annotated[Path | None, typer.Option("--latex", help="Write the table of groups as LaTeX.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the curves: .html, or .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the curves as JSON and nothing else.")] = False,
) -> None:
    """Estimate Kaplan-Meier survival curves across hospitals, with intervals, medians and the log-rank test.

    Hospitals send counts of events and censored patients by interval of time. Groups are compared within hospitals.

    Example: `rounds fit km --table patients.csv --time days --event died --site hospital --group arm --at 365`
    """
    from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
    from grandrounds.capabilities.statistics.api.survival import kaplan_meier
    from grandrounds.core.errors import BadInput, GrandRoundsWarning

    rows: Table | str | None = None
    if cohort is not None:
        rows, site = read_cohort_rows(cohort, table or source, site)
        defined = read_cohort(cohort)
        time, event = time or defined.schema().duration, event or defined.outcome.name
    missing = [flag for flag, value in (("--time", time), ("--event", event)) if value is None]
    if missing or time is None or event is None:
        raise BadInput(
            f"{' and '.join(missing)} must name a column: rounds fit km --table FILE --time days --event died --site hospital",
            code="missing-option",
        )
    times = _numbers(at)
    if rows is None:
        rows = read_rows(source, table, query, reading, command="fit km")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrandRoundsWarning)  # they are notes of the summary
        result = kaplan_meier(
            rows,
            time=time,
            event=event,
            event_value=event_value,
            site=site,
            group=group,
            grid=grid,
            least=least,
            unit=unit,
            horizon=horizon,
            secure=secure,
            out=out,
        )
    if csv is not None:
        result.to_csv(csv)
    if latex is not None:
        result.to_latex(latex)
    if plot is not None:
        figure = result.plot(unit=time)
        (figure.write_png if plot.suffix.lower() == ".png" else figure.write_html)(plot)
    if as_json:
        echo(json.dumps(result.to_dict()))
        return
    echo(result.summary(times=times))
    for path in (csv, latex, plot):
        if path is not None:
            echo(f"wrote {path}")
    if result.run is not None:
        echo(f"report: {result.run.folder / 'report.html'}")
        echo(f"run folder: {result.run.folder}")


def _numbers(text: str | None) -> tuple[float, ...]:
    from grandrounds.core.errors import BadInput

    try:
        return tuple(float(word) for word in (text or "").split(",") if word.strip())
    except ValueError:
        raise BadInput(f"--at is '{text}': give times, such as 365,730", code="bad-value") from None
