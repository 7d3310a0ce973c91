"""`rounds quality`: compare the data of all sites before training, from counts in agreed bins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Query, Quiet, Reading, Set, expand_options
from grandrounds.cli.terminal import Terminal, echo

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

DIFFERS = 1
"""Exit code if a site differs from all others by an error."""


def register(app: typer.Typer) -> None:
    app.command("quality")(quality)


@expand_options
def quality(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[TABLE | DATA SET | RUN]", help="Rows of all sites, a data set, or the folder of a finished comparison."
        ),
    ] = "",
    table: Annotated[
        str | None, typer.Option("--table", help="Your own data: .csv, .csv.gz, .tsv, .parquet or a SQL URL.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="Column that names the hospital of each row.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column to predict, where no schema is given.")] = None,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="schema.json or consortium.toml (default: drafted from the table, with quantiles)."),
    ] = None,
    patient: Annotated[str | None, typer.Option("--patient", help="Column that names the patient, without a schema.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="Column of dates, without a schema.")] = None,
    years: Annotated[str, typer.Option("--years", help="First and last year with a count of its own.")] = "2000-2030",
    query: Query = None,
    reading: Reading = Reading(),
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Secure aggregation: the server sees totals, and sites compare themselves at home."),
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Privacy budget of the counts; noise is added at each site.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Write the plan for hospitals from --schema, for `rounds server submit`."),
    ] = None,
    settings: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/DATA-quality-seed0).")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the comparison as a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare the data of all sites before training: missing values, units, codes, outcome, years, repeated rows.

    Every site sends counts of its rows in agreed bins, and nothing else. Counts of fewer than 5 patients are hidden.
    Exit code 0: no site differs by an error. 1: one does.

    Example: `rounds quality patients.csv --site hospital --label died`
    """
    if plan is not None:
        _write_plan(plan, schema, years=_read_years(years), secure=secure, epsilon=epsilon)
        return
    run = _find_run(source)
    if run is None:
        from grandrounds.capabilities.quality.api import compare_sites
        from grandrounds.capabilities.statistics.commands.table1 import read_rows

        run = compare_sites(
            read_rows(source, table, query, reading, command="quality"),
            site=site,
            label=label,
            schema=schema,
            patient=patient,
            time=time,
            years=_read_years(years),
            secure=secure,
            epsilon=epsilon,
            settings=settings,
            out=out,
            progress=None if sys.stderr.isatty() else False,
        )
    result = run.summary["quality"]
    if html is not None:
        from grandrounds.capabilities.quality.quality_page import quality_page
        from grandrounds.capabilities.quality.site_report import write_page

        write_page(html, quality_page(result, title=f"Quality of the sites' data: {run.summary['data']}"))
    if as_json:
        echo(json.dumps(result))
    elif quiet:
        echo(str(run.folder))
    else:
        from grandrounds.cli.screen import show_quality

        show_quality(Terminal(), run.summary)
        echo(f"run: {run.folder}")
    if any(f["level"] == "error" for f in result["findings"]):
        raise typer.Exit(DIFFERS)


def _find_run(source: str) -> Run | None:
    """Return the finished comparison in a folder; None where the source is no run."""
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run

    if not source or not (Path(source) / "summary.json").is_file():
        return None
    run = Run(Path(source))
    if "quality" not in run.summary:
        raise BadInput(
            f"{source} is a run of method '{run.summary['method']}', not a comparison of sites: give a table, or a run of "
            "`rounds quality`",
            code="no-quality",
        )
    return run


def _read_years(text: str) -> tuple[int, int]:
    from grandrounds.core.errors import BadInput

    first, _, last = text.partition("-")
    if not (first.strip().isdigit() and last.strip().isdigit()) or not 1800 <= int(first) <= int(last) <= 2200:
        raise BadInput(f"--years is '{text}': give the first and the last year, such as 2010-2025", code="bad-option")
    return int(first), int(last)


def _write_plan(
    file: Path, schema: Path | None, *, years: tuple[int, int], secure: bool, epsilon: float | None
) -> None:
    """Write the experiment of a comparison at hospitals, for `rounds server submit`."""
    from grandrounds.capabilities.quality.api import quality_values
    from grandrounds.core import toml
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput
    from grandrounds.data.agreement.schema import DataSchema
    from grandrounds.data.agreement.schema_file import read_schema
    from grandrounds.experiment.experiment import Experiment

    if schema is None:
        raise BadInput("--plan needs the agreed schema: add --schema consortium.toml", code="missing-option")
    agreed = read_schema(schema)
    if not isinstance(agreed, DataSchema):
        raise BadInput(f"{schema} is a schema of images, and sites are compared by columns of a table", code="needs-table")
    values = quality_values(agreed, years=years, secure=secure, epsilon=epsilon)
    Experiment.parse({**values, "data": {**values["data"], "table": "patients.csv"}}, where="settings")
    head = "# Quality of the sites' data before training, for `rounds server submit`. Every site sends counts in these bins."
    try:
        write_atomic(file, toml.dumps(values, head=head).encode())
    except OSError as e:
        raise BadInput(f"cannot write {file}: {e.strerror or e}; choose another place", code="cannot-write") from None
    echo(f"wrote {file}: submit it with `rounds server submit {file}`")
