"""`gr.kaplan_meier` and `gr.survival_scores`: survival curves, and scores of a survival model, across hospitals from sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.capabilities.statistics.api.describing import read_source
from grandrounds.capabilities.statistics.api.fitting import write_text
from grandrounds.core.errors import BadInput, nearest, warn_user

if TYPE_CHECKING:
    import pandas as pd

    from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, SurvivalCurve
    from grandrounds.capabilities.statistics.log_rank import LogRank
    from grandrounds.capabilities.statistics.survival_rows import SurvivalRequest
    from grandrounds.capabilities.statistics.survival_scores import SurvivalScores
    from grandrounds.capabilities.statistics.time_counts import Grid
    from grandrounds.core.arrays import Array
    from grandrounds.data.table import Table
    from grandrounds.report.figure import Figure
    from grandrounds.runs.run import Run

GRIDS = ("bins", "days")


@dataclass(frozen=True, eq=False)
class SurvivalAnalysis:
    """The result of `gr.kaplan_meier`.

    Attributes:
        curves: Survival curves, overall and by group, with the log-rank test.
        run: The finished run, with its ledger and report; None where no folder was asked for.
    """

    curves: KaplanMeier
    run: Run | None = None

    @property
    def overall(self) -> SurvivalCurve:
        """The curve of all patients, with median and restricted mean."""
        return self.curves.overall

    @property
    def groups(self) -> dict[str, SurvivalCurve]:
        """The curve of each group; empty without groups."""
        return {curve.group: curve for curve in self.curves.groups}

    @property
    def log_rank(self) -> LogRank | None:
        """The log-rank test; None without groups."""
        return self.curves.log_rank

    def summary(self, *, times: Sequence[float] = ()) -> str:
        """Write rows, events, median and mean of each group as a text table, with the log-rank test and notes.

        Args:
            times: Times at which survival is shown as well.

        Returns:
            The text.
        """
        from grandrounds.report.survival_text import survival_text

        return survival_text(self.curves, times=times)

    def to_frame(self) -> pd.DataFrame:
        """Return the points of all curves as a data frame.

        Returns:
            Columns group, time, survival, low, high, at_risk, events and censored.
        """
        import pandas as pd

        from grandrounds.report.survival_text import curve_rows

        return pd.DataFrame(curve_rows(self.curves))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Write the points of all curves as CSV, with every digit.

        Args:
            path: A file to write as well.

        Returns:
            The text.

        Raises:
            BadInput: The file cannot be written.
        """
        from grandrounds.report.survival_text import survival_csv

        return write_text(survival_csv(self.curves), path)

    def to_latex(self, path: str | Path | None = None) -> str:
        """Write rows, events, median and mean of each group as a LaTeX table; it needs the package booktabs.

        Args:
            path: A file to write as well.

        Returns:
            The text.

        Raises:
            BadInput: The file cannot be written.
        """
        from grandrounds.report.survival_text import survival_latex

        return write_text(survival_latex(self.curves), path)

    def to_dict(self) -> dict[str, Any]:
        """Return the curves as JSON values."""
        return self.curves.to_dict()

    def plot(self, *, unit: str = "") -> Figure:
        """Draw the curves with 95% intervals, and the table of numbers at risk.

        Args:
            unit: Unit of time for the axis, such as "days".

        Returns:
            The figure: `show()`, `write_html(path)`, `write_png(path)`.

        Raises:
            BadInput: No group has enough events for a curve.
        """
        from grandrounds.report.figures import survival_curves

        return survival_curves(self.curves, unit=unit)

    def __str__(self) -> str:
        return self.summary()


def kaplan_meier(
    data: Any,
    *,
    time: str,
    event: str,
    site: str | None = None,
    group: str | None = None,
    event_value: str | int | float | None = None,
    grid: str = "bins",
    least: int = 5,
    unit: float = 1.0,
    horizon: float | None = None,
    secure: bool = False,
    out: str | Path | None = None,
) -> SurvivalAnalysis:
    """Estimate Kaplan-Meier curves across hospitals, from counts that add.

    Curves have Greenwood's intervals on the scale log(-log S), median survival and restricted mean. Groups are compared by the
    log-rank test, stratified by hospital. On bins no count below `least` is shown; by day the curve equals that of the pooled
    rows, and the day of every event can be read.

    Args:
        data: The path of a table (.csv, .parquet, .xlsx, .sav, a SQL URL), a data set by name, or a pandas DataFrame.
        time: The column with the follow-up time.
        event: The column that tells events from censored rows: 1 and 0, or two words.
        site: The column that names the hospital of each row; a data set may have one of its own.
        group: The column whose values are compared, such as the treatment arm.
        event_value: The value of `event` that is the event, where it is not 1.
        grid: "bins": intervals with at least `least` events. "days": every day, which discloses the day of every event.
        least: Least number of events in an interval.
        unit: Unit in which times are recorded: 1 for whole days, 0.1 for tenths of a year.
        horizon: End of the restricted mean; by default the last time to which every curve reaches.
        secure: Use secure aggregation: the server receives sums over hospitals and no hospital's own. It makes a run.
        out: Folder of a run with ledger, report and record; by default none is written, or `runs/survival-seed0` with
            `secure`.

    Returns:
        The curves, with `.summary()`, `.to_frame()`, `.to_csv()`, `.to_latex()`, `.plot()` and `.to_dict()`.

    Raises:
        BadInput: A column is not there or holds other values, fewer than three sites are, or too few events were observed.

    Examples:
        >>> kaplan_meier("patients.csv", time="days", event="died", site="hospital", group="arm").plot()  # doctest: +SKIP
    """
    from grandrounds.capabilities.statistics.survival_rows import SurvivalRequest
    from grandrounds.capabilities.statistics.survival_run import run_kaplan_meier

    if grid not in GRIDS:
        raise BadInput(f"grid is '{grid}'; {nearest(grid, GRIDS)}", code="unknown-choice")
    table, usual = read_source(data)
    site = site or usual
    if site is None:
        raise BadInput(
            f"which column of {table.source} names the hospital? It has {', '.join(table.names[:20])} (give site=, --site)",
            code="site-not-set",
        )
    value = "" if event_value is None else f"{event_value:g}" if isinstance(event_value, float) else str(event_value)
    request = SurvivalRequest(time, event, site, group or "", value)
    chosen: Grid = "days" if grid == "days" else "bins"
    if secure or out is not None:
        result = _run(table, request, grid=chosen, least=least, unit=unit, horizon=horizon, secure=secure, out=out)
        warn_user(result.run.summary.warnings if result.run else ())
        return result
    return SurvivalAnalysis(run_kaplan_meier(table, request, grid=chosen, least=least, unit=unit, horizon=horizon))


def _run(
    table: Table,
    request: SurvivalRequest,
    *,
    grid: Grid,
    least: int,
    unit: float,
    horizon: float | None,
    secure: bool,
    out: str | Path | None,
) -> SurvivalAnalysis:
    """Estimate curves in a run of method 'survival', which reads no other column than those of the request."""
    from dataclasses import replace

    from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier
    from grandrounds.capabilities.statistics.survival_run import slim_table
    from grandrounds.core.sources import DATA_FRAME
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import run as start
    from grandrounds.runs.runner import new_folder

    if unit != 1:
        raise BadInput(
            f"unit is {unit:g}, and a run counts times in whole units: divide the times by the unit, or leave out and secure "
            "away",
            code="conflicting-options",
        )
    rows, notes, feature = slim_table(table, request)
    exact: dict[str, Any] = {"least": least, "baseline": "days" if grid == "days" else "strata"}
    exact |= {"group": request.group} if request.group else {}
    exact |= {} if horizon is None else {"horizon": horizon}
    columns = {"label": request.event, "duration": request.time, "site": request.site, "features": [feature]}
    values = {
        "name": "survival",
        "data": {"table": DATA_FRAME, "task": "survival", **columns},
        "split": {"val": 0.0, "test": 0.0, "min_rows": 1},
        "engine": {"precision": "float64"},
        "explain": {"sketch": "none"},
        "method": {"name": "survival", "exact": exact},
        "privacy": {"secure": secure},
    }
    experiment = Experiment.parse(values, where="settings")
    folder = new_folder(Path("runs"), f"survival-seed{experiment.seed}") if out is None else Path(out)
    done = start(experiment, out=folder, table=rows)
    curves, facts = KaplanMeier.from_dict(done.summary["survival"]), done.summary["statistic"]
    sent = {**facts["exchanges"], "exchanges": facts["exchanges"]["count"], "sites": len(facts["sites"])}
    notes = (*notes, *curves.notes, *done.summary.warnings)
    return SurvivalAnalysis(replace(curves, facts={**curves.facts, **sent}, notes=notes), done)


def survival_scores(
    run: Any,
    data: Any,
    *,
    training: Any = None,
    site: str | None = None,
    horizons: Sequence[float] = (),
    horizon: float | None = None,
    across: bool = False,
    least: int = 5,
    unit: float = 1.0,
) -> SurvivalScores:
    """Score the survival model of a finished run: C-index, Brier score and calibration, from sums over hospitals.

    Args:
        run: The run of `gr.cox` or of another method with a follow-up time, its result, or its folder.
        data: Rows with the columns of the model, time, event and hospital: a DataFrame or the path of a table.
        training: The rows that the model was fitted on, for the baseline hazard; by default `data` itself, with a note.
        site: The column that names the hospital of each row; by default that of the run.
        horizons: Times of the Brier scores; by default near those of 5%, 10%, ..., 95% of the events.
        horizon: Time of the calibration; by default the horizon in the middle.
        across: Compare patients of different hospitals as well. The server then sees counts of few patients.
        least: Least number of events in an interval or a group of risk.
        unit: Unit in which times are recorded.

    Returns:
        The scores: `c_index`, `brier`, `calibration`, `to_dict()`. `report.figures.survival_calibration` draws them.

    Raises:
        BadInput: The run has no survival model, or the rows do not fit it.

    Examples:
        >>> fitted = cox("patients.csv", time="days", event="died", site="hospital")  # doctest: +SKIP
        >>> survival_scores(fitted, "new_patients.csv", training="patients.csv").c_index  # doctest: +SKIP
    """
    from grandrounds.api.scoring import predict
    from grandrounds.capabilities.statistics.survival_rows import SurvivalRequest
    from grandrounds.capabilities.statistics.survival_run import run_survival_scores
    from grandrounds.runs.run import load_run

    found = load_run(run) if isinstance(run, str | Path) else getattr(run, "run", run)
    roles = found.plan["data"]
    time, site = roles.get("duration"), site or roles.get("site")
    if time is None:
        raise BadInput(f"{found.folder} has no model of survival: use a run with data.duration", code="wrong-task")
    if site is None:
        raise BadInput("which column names the hospital? The run has none (give site=)", code="site-not-set")
    value = roles.get("event")
    request = SurvivalRequest(str(time), str(roles["label"]), str(site), "", "" if value is None else str(value))

    def score(rows: Any) -> tuple[Table, Array]:
        table, _ = read_source(rows)
        return table, predict(found, rows)["risk_score"].to_numpy()

    table, scores = score(data)
    return run_survival_scores(
        table,
        request,
        scores,
        training=None if training is None else score(training),
        horizons=horizons,
        horizon=horizon,
        across=across,
        least=least,
        unit=unit,
    )
