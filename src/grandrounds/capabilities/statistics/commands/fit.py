"""`rounds fit glm`, `rounds fit cox`: regressions across hospitals, with standard errors, equal to those of the pooled rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.capabilities.statistics.commands import survival
from grandrounds.cli.options import (
    CohortFile,
    Columns,
    Drop,
    EventClass,
    Json,
    Label,
    Patient,
    Query,
    Quiet,
    Reading,
    Seed,
    Set,
    SiteColumn,
    TableFile,
    build_experiment,
    expand_options,
)
from grandrounds.cli.terminal import Terminal, echo, warn

if TYPE_CHECKING:
    from grandrounds.capabilities.statistics.api.fitting import Design, Regression
    from grandrounds.runs.run import Run

app = typer.Typer(
    help=(
        "Fit a regression across hospitals: coefficients with standard errors, tests and confidence intervals.\n\n"
        "Hospitals send sums over their patients, and no row. The result equals that of the pooled rows. Rows with a missing "
        "value are left out. The most frequent level of a category is its reference. Coefficients are in original units.\n\n"
        "`rounds fit glm --table patients.csv --label died --site hospital --features age,sex,bmi`\n\n"
        '`rounds fit glm --table patients.csv --site hospital --formula "died ~ age + C(sex) * bmi"`\n\n'
        "`rounds fit cox --table patients.csv --time days --event died --site hospital --features age,sex`\n\n"
        "`rounds fit km --table patients.csv --time days --event died --site hospital --group arm`"
    ),
    no_args_is_help=True,
)

Features = Annotated[
    str | None, typer.Option("--features", help="Columns of the model: age,sex,bmi. Default: all that are left.")
]
FormulaText = Annotated[
    str | None,
    typer.Option(
        "--formula",
        metavar="TEXT",
        help='A formula instead of the outcome and --features: "died ~ age + C(sex) * bmi". C() is a category, * adds '
        "interactions, I(age**2) is a square. It needs the package formulaic.",
    ),
]
Errors = Annotated[
    str,
    typer.Option(
        metavar="model|rows|patients|hospitals",
        help="Standard errors: of the model, or robust by row, patient (--patient) or hospital. Robust ones take one more "
        "exchange.",
    ),
]
Secure = Annotated[
    bool,
    typer.Option("--secure", help="Secure aggregation: the server receives the sum over hospitals and nothing else."),
]
DataSource = Annotated[
    str,
    typer.Argument(
        metavar="[DATA | FILE.toml | TABLE]", help="A data set (`rounds list data`), a TOML file, or your own table."
    ),
]


def register(rounds: typer.Typer) -> None:
    survival.register(app)
    rounds.add_typer(app, name="fit")


@dataclass(frozen=True)
class FitSource:
    """Source of the rows of a regression."""

    source: DataSource = ""
    table: TableFile = None
    cohort: CohortFile = None


@dataclass(frozen=True)
class AbsentOptions:
    """Options that regressions of other packages have, and that are refused with a reason."""

    weights: Annotated[str | None, typer.Option("--weights", hidden=True)] = None
    offset: Annotated[str | None, typer.Option("--offset", hidden=True)] = None
    exposure: Annotated[str | None, typer.Option("--exposure", hidden=True)] = None


@dataclass(frozen=True)
class FitColumns:
    """Columns of a regression beside its outcome."""

    site: SiteColumn = None
    features: Features = None
    formula: FormulaText = None
    patient: Patient = None
    drop: Drop = None
    absent: AbsentOptions = AbsentOptions()


@dataclass(frozen=True)
class FitRest:
    """Text format of the table, further settings, and places where the result is written."""

    query: Query = None
    reading: Reading = field(default_factory=Reading)
    settings: Set = field(default_factory=list)
    seed: Seed = None
    out: Annotated[Path | None, typer.Option(help="Run folder (default: runs/DATA-METHOD-seedN).")] = None
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the coefficients, with every digit, to a CSV file.")
    ] = None
    latex: Annotated[Path | None, typer.Option("--latex", help="Write the coefficients to a LaTeX file.")] = None
    as_json: Json = False
    quiet: Quiet = False


def _split(names: str | None) -> tuple[str, ...]:
    return tuple(c.strip() for c in (names or "").split(",") if c.strip())


@app.command()
@expand_options
def glm(
    source: FitSource = FitSource(),
    label: Label = None,
    event: EventClass = None,
    columns: FitColumns = FitColumns(),
    family: Annotated[
        str,
        typer.Option(
            metavar="auto|logistic|linear|poisson",
            help="auto: logistic for an outcome of two values, linear for a measurement. Ask for poisson for counts.",
        ),
    ] = "auto",
    intercept: Annotated[
        str,
        typer.Option(
            metavar="common|own|random",
            help="common: one for all hospitals, as in the pooled rows. own: one for each, which stays there. random: those "
            "shrunk towards their mean, which is approximate.",
        ),
    ] = "common",
    errors: Errors = "model",
    ridge: Annotated[
        float, typer.Option(help="Penalty on coefficients in standard deviations; there are no p-values then.")
    ] = 0.0,
    firth: Annotated[
        bool, typer.Option("--firth", help="Firth's correction, for an outcome that columns separate.")
    ] = False,
    secure: Secure = False,
    rest: FitRest = FitRest(),
) -> None:
    """Fit a logistic, linear or Poisson regression across hospitals.

    Examples: `rounds fit glm heart --features age,sex,resting_bp` --
    `rounds fit glm --table patients.csv --label died --site hospital --features age,sex,bmi --secure`
    """
    from grandrounds.capabilities.statistics.api.fitting import TASKS, Design
    from grandrounds.core.errors import BadInput, nearest

    if family not in TASKS:
        raise BadInput(f"--family is '{family}'; {nearest(family, TASKS)}", code="unknown-family")
    design = Design(label, _split(columns.features), formula=columns.formula, task=TASKS[family])
    exact = {"intercept": intercept, "errors": errors, "ridge": ridge, "firth": firth}
    _fit("glm", _read(source, rest), design, exact, columns=columns, event=event, secure=secure, rest=rest)


@app.command()
@expand_options
def cox(
    source: FitSource = FitSource(),
    time: Annotated[str | None, typer.Option("--time", help="Column with the follow-up time, such as days.")] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="Column that tells events from censored rows: 1 and 0, or two words.")
    ] = None,
    event_value: Annotated[
        str | None, typer.Option("--event-value", help="Value of --event that is the event, such as died.")
    ] = None,
    columns: FitColumns = FitColumns(),
    baseline: Annotated[
        str,
        typer.Option(
            metavar="strata|grid|days",
            help="strata: each hospital has its own baseline hazard, and no time leaves it. grid: one for all, on intervals with "
            "at least five events. days: one for all by single days, which discloses rows of single patients.",
        ),
    ] = "strata",
    horizon: Annotated[
        float | None,
        typer.Option(help="Also score the model: C-index, Brier score, and calibration at this time. More sums leave."),
    ] = None,
    ties: Annotated[str, typer.Option(metavar="efron|breslow", help="Treatment of events at the same time.")] = "efron",
    errors: Errors = "model",
    ridge: Annotated[
        str,
        typer.Option(metavar="X|cv", help="Penalty on coefficients in standard deviations; cv: by cross-validation."),
    ] = "0",
    secure: Secure = False,
    rest: FitRest = FitRest(),
) -> None:
    """Fit a Cox regression across hospitals: hazard ratios with confidence intervals.

    Examples: `rounds fit cox --table patients.csv --time days --event died --site hospital --features age,sex` --
    `rounds fit cox --table patients.csv --site hospital --formula "Surv(days, died) ~ age + C(sex)"`
    """
    from grandrounds.capabilities.statistics.api.fitting import Design

    design = Design(event, _split(columns.features), formula=columns.formula, task="survival", duration=time)
    exact: dict[str, Any] = {"baseline": baseline, "ties": ties, "errors": errors, "ridge": _penalty(ridge)}
    if horizon is not None:
        exact["horizon"] = horizon
    _fit("cox", _read(source, rest), design, exact, columns=columns, event=event_value, secure=secure, rest=rest)


def _penalty(text: str) -> float | str:
    """Read the value of --ridge: a number or "cv"."""
    from grandrounds.core.errors import BadInput

    if text == "cv":
        return text
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"--ridge is '{text}': give a number from 0 on, or cv", code="bad-value") from None


def _read(source: FitSource, rest: FitRest) -> Any:
    """Return the source: the name of a data set or recipe, or an experiment on the user's table.

    Raises:
        BadInput: There is none, or options contradict each other.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.data.readers import table_endings
    from grandrounds.data.spreadsheets import UNREADABLE

    name = source.source
    if not name and source.table is None:
        raise BadInput(
            "no data are given: name your table (--table FILE) or a data set (`rounds list data`)", code="no-data-named"
        )
    own = source.table is not None or source.cohort is not None
    own = own or "://" in name or name.lower().endswith((*table_endings(), *UNREADABLE))
    if not own and rest.query is None and rest.reading.first_flag() is None:
        return name
    return build_experiment(
        name,
        table=source.table,
        columns=Columns(cohort=source.cohort),
        query=rest.query,
        reading=rest.reading,
        require_label=False,
    )


def _fit(
    method: str,
    source: Any,
    design: Design,
    exact: dict[str, Any],
    *,
    columns: FitColumns,
    event: str | None,
    secure: bool,
    rest: FitRest,
) -> None:
    """Build the experiment of a regression, run it, and print and write its result."""
    from grandrounds.capabilities.statistics.api.fitting import fit, refuse_absent, regression_experiment

    refuse_absent({name: v for name, v in vars(columns.absent).items() if v is not None}, method)
    experiment, _ = regression_experiment(
        method,
        source,
        design,
        exact,
        site=columns.site,
        event=event,
        patient=columns.patient,
        drop=_split(columns.drop),
        secure=secure,
        settings=[*rest.settings, *([f"seed={rest.seed}"] if rest.seed is not None else [])],
    )
    with ExchangeWatch(quiet=rest.quiet or rest.as_json) as watch:
        result = fit(experiment, out=rest.out, progress=watch)
    if rest.csv is not None:
        result.to_csv(rest.csv)
    if rest.latex is not None:
        result.to_latex(rest.latex)
    if rest.as_json:
        echo(json.dumps(result.run.summary))
    elif rest.quiet:
        echo(str(result.run.folder))
    else:
        show_regression(result)
        for path in (rest.csv, rest.latex):
            if path is not None:
                echo(f"wrote {path}")
        echo(f"report: {result.run.folder / 'report.html'}")
        echo(f"run folder: {result.run.folder}")


def show_regression(result: Regression) -> None:
    """Print the summary of a regression.

    Args:
        result: The result.
    """
    from grandrounds.report.estimates_text import WARNING

    console = Terminal()
    for line in result.summary(width=console.width if console.is_terminal else 120).splitlines():
        if line.startswith(WARNING):
            console.print(warn(line.removeprefix(WARNING)), soft_wrap=True)
        else:
            echo(line)


def show_run_estimates(run: Run) -> bool:
    """Print the coefficients of a finished run that is a regression and nothing else: it has no test rows.

    Args:
        run: The run.

    Returns:
        True if the run is one.
    """
    from grandrounds.report.document import has_test_rows
    from grandrounds.report.estimates import read_estimates

    if read_estimates(run.summary) is None or has_test_rows(run.summary):
        return False
    from grandrounds.capabilities.statistics.api.fitting import read_regression

    show_regression(read_regression(run))
    return True


class ExchangeWatch:
    """Print the data, the columns that are left out and each exchange of a regression on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._console = quiet, Terminal(stderr=True)

    def __enter__(self) -> ExchangeWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if kind is KeyboardInterrupt and not self._quiet:
            echo("stopped; finished exchanges are saved: `rounds resume RUN` continues the fit", err=True)

    def __call__(self, event: Any) -> None:
        """Print an event of the run."""
        if self._quiet:
            return
        if event["event"] == "reading":
            self._console.print(f"reading {event['data']} and agreeing on its columns ...", style="dim")
        elif event["event"] == "start":
            self._start(event)
        elif event["event"] == "round":
            step = str(event["why"]).partition(" (")[0]  # without digests of question and answer
            self._console.print("; ".join([step, *event["notes"]]), style="dim", soft_wrap=True)

    def _start(self, event: Any) -> None:
        """Print the size of the fit and the columns that are no part of it."""
        self._console.print(f"{event['sites']} sites, {event['inputs'][0]} inputs -> {event['folder']}", soft_wrap=True)
        schema = event["schema"]
        roles = (schema.label, schema.site, schema.patient, schema.time, schema.duration)
        gone = [c for c in schema.columns if c.kind in ("id", "constant", "drop") and c.name not in roles]
        gone = [c for c in gone if c.why != NOT_LISTED]
        if gone:
            text = "; ".join(f"{c.name} ({c.why})" for c in gone[:6])
            more = f"; and {len(gone) - 6} more" if len(gone) > 6 else ""
            self._console.print(f"left out: {text}{more}", style="dim", soft_wrap=True)
        for note in event.get("assumed", ()):
            self._console.print(f"assumed: {note}", soft_wrap=True)


NOT_LISTED = "not listed in data.features"
"""Reason of a column that the user did not ask for, which is not worth a line."""
