"""`gr.glm` and `gr.cox`: regressions across hospitals, equal to those of the pooled rows, with standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import RunProgress, exchange_progress
from grandrounds.api.sources import Settings, apply_settings, build_experiment
from grandrounds.core.errors import BadInput, warn_user

if TYPE_CHECKING:
    import pandas as pd

    from grandrounds.capabilities.statistics.estimates import Estimates
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.report.estimates import EstimatesRecord
    from grandrounds.runs.run import Run

TASKS = {"auto": "auto", "logistic": "classification", "linear": "regression", "poisson": "count"}
"""Families of `gr.glm`, each with the type of outcome (`data.task`)."""

_KEPT_SPLIT = ("partition", "sites", "alpha", "seed")
"""Settings of [split] that a regression takes from a recipe; all rows are for the fit."""


@dataclass(frozen=True, eq=False)
class Regression:
    """The result of `gr.glm` or `gr.cox`.

    Attributes:
        run: The finished run, with its ledger and record.
        record: Estimates in fitted and original units, exchanges, heterogeneity between hospitals, notes.
    """

    run: Run
    record: EstimatesRecord

    @property
    def estimates(self) -> Estimates:
        """Coefficients with standard errors, tests and intervals, in original units."""
        return self.record.original

    @property
    def exchanges(self) -> Mapping[str, Any]:
        """Cost of the fit: count, numbers_sent, numbers_held, ratio, bytes_up, bytes_down."""
        return self.record.exchanges

    def summary(self, *, width: int = 120) -> str:
        """Write the result as a text table.

        Args:
            width: Width of the terminal. Where the table is wider, ratios are printed below the coefficients.

        Returns:
            Facts, coefficients, columns that were left out, and notes.
        """
        from grandrounds.report.estimates_text import summary_text

        return summary_text(self.record, width=width, **_outcome(self.run))

    def to_frame(self) -> pd.DataFrame:
        """Return the coefficients as a data frame: one row for each, named by the index.

        Returns:
            The frame, with columns coef, std_err, z or t, p, low, high, the ratio with its interval, and left_out.
        """
        import pandas as pd

        from grandrounds.report.estimates_text import coefficient_rows

        frame = pd.DataFrame(coefficient_rows(self.record)).set_index("name")
        numbers = [c for c in frame.columns if c != "left_out"]
        return frame.astype(dict.fromkeys(numbers, float))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Write the coefficients as CSV, with every digit.

        Args:
            path: A file to write as well.

        Returns:
            The text.

        Raises:
            BadInput: The file cannot be written.
        """
        from grandrounds.report.estimates_text import to_csv

        return write_text(to_csv(self.record), path)

    def to_latex(self, path: str | Path | None = None, *, caption: str = "") -> str:
        """Write the coefficients as a LaTeX table; it needs the package booktabs.

        Args:
            path: A file to write as well.
            caption: The caption; by default the name of the model.

        Returns:
            The text.

        Raises:
            BadInput: The file cannot be written.
        """
        from grandrounds.report.estimates_text import to_latex

        return write_text(to_latex(self.record, caption=caption), path)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from grandrounds.report.estimates_text import to_html

        return to_html(self.record, **_outcome(self.run))


def glm(
    source: Any,
    *,
    label: str | None = None,
    features: Sequence[str] = (),
    site: str | None = None,
    formula: str | None = None,
    family: str = "auto",
    intercept: str = "common",
    errors: str = "model",
    ridge: float = 0.0,
    firth: bool = False,
    event: str | int | float | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    secure: bool = False,
    settings: Settings = (),
    out: str | Path | None = None,
    progress: RunProgress = None,
    **absent: object,
) -> Regression:
    """Fit a logistic, linear or Poisson regression across hospitals.

    Hospitals send sums over their patients, and no row. The result equals that of the pooled rows.

    Args:
        source: A pandas DataFrame, the path of a table (.csv, .parquet, .xlsx, a SQL URL), a data set or recipe by name, or an
            Experiment, of which the data are used.
        label: The outcome.
        features: The columns of the model; empty takes all that are left.
        site: The column that names the hospital of each row. Without one the rows of a table are dealt to simulated sites.
        formula: A formula in place of `label` and `features`: "died ~ age + C(sex) * bmi". It needs formulaic.
        family: "logistic", "linear" or "poisson"; "auto": logistic for two values, linear for a measurement. Counts are asked
            for.
        intercept: "common": one for all hospitals, as in the pooled rows; "own": one for each hospital, which stays there;
            "random": those shrunk towards their mean, which is approximate.
        errors: Standard errors of the "model", or robust ones by "rows", "patients" or "hospitals".
        ridge: Penalty on coefficients in standard deviations, 0.5 ridge sum b^2; there are no p-values then.
        firth: Firth's correction of logistic regression, for separated outcomes.
        event: The class of the label whose probability is modelled (`data.event`).
        patient: The column that names the patient.
        drop: Columns to leave out.
        secure: Use secure aggregation: the server receives sums over hospitals and no hospital's own.
        settings: Further settings by their names in the experiment file.
        out: The run folder; by default `runs/DATA-glm-seedN`.
        progress: True shows a bar, False none; by default a terminal or notebook shows one. A function is called with each
            event instead.
        absent: weights=, offset= and exposure= of other packages are refused with a reason; there are no others.

    Returns:
        The result: `summary()`, `to_frame()`, `estimates`, `run`. What a user should know of, such as hospitals that were left
        out, is a line of the summary and a `GrandRoundsWarning`.

    Raises:
        BadInput: A column, option or formula is wrong, or the data allow no such fit.
        RunFailed: The run stopped; its finished exchanges are on disk.

    Examples:
        >>> glm("heart", features=["age", "sex"]).summary()  # doctest: +SKIP
        >>> glm(frame, formula="died ~ age + C(sex) * bmi", site="hospital")  # doctest: +SKIP
    """
    refuse_absent(absent, "glm")
    if family not in TASKS:
        from grandrounds.core.errors import nearest

        raise BadInput(f"family is '{family}'; {nearest(family, TASKS)}", code="unknown-family")
    exact = {"intercept": intercept, "errors": errors, "ridge": ridge, "firth": firth}
    design = Design(label, tuple(features), formula=formula, task=TASKS[family])
    built, rows = regression_experiment(
        "glm",
        source,
        design,
        exact,
        site=site,
        event=event,
        patient=patient,
        drop=drop,
        secure=secure,
        settings=settings,
    )
    result = fit(built, rows, out=out, progress=progress)
    warn_user(result.record.warnings)
    return result


def cox(
    source: Any,
    *,
    time: str | None = None,
    event: str | None = None,
    features: Sequence[str] = (),
    site: str | None = None,
    formula: str | None = None,
    baseline: str = "strata",
    ties: str = "efron",
    errors: str = "model",
    ridge: float | str = 0.0,
    horizon: float | None = None,
    event_value: str | int | float | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    secure: bool = False,
    settings: Settings = (),
    out: str | Path | None = None,
    progress: RunProgress = None,
    **absent: object,
) -> Regression:
    """Fit a Cox regression across hospitals: hazard ratios with intervals.

    Hospitals send sums over their patients, and no row. Stratified by hospital (the default), no time leaves a hospital.

    Args:
        source: A pandas DataFrame, the path of a table (.csv, .parquet, .xlsx, a SQL URL), a data set or recipe by name, or an
            Experiment, of which the data are used.
        time: The column with the follow-up time.
        event: The column that tells events from censored rows: 1 and 0, or two words.
        features: The columns of the model; empty takes all that are left.
        site: The column that names the hospital of each row. Without one the rows of a table are dealt to simulated sites.
        formula: A formula in place of `time`, `event` and `features`: "Surv(days, died) ~ age + C(sex)". It needs formulaic.
        baseline: "strata": each hospital has its own baseline hazard; "grid": one for all, on intervals of time; "days": one
            for all, on single days, which discloses rows of single patients.
        ties: "efron" or "breslow".
        errors: Standard errors of the "model", or robust ones by "rows", "patients" or "hospitals".
        ridge: Penalty on coefficients in standard deviations, or "cv": chosen by cross-validation. There are no p-values then.
        horizon: Also score the model on the rows of the fit: C-index, Brier score, and calibration at this time. More sums
            leave the hospitals.
        event_value: The value of `event` that is the event, where it is not 1.
        patient: The column that names the patient.
        drop: Columns to leave out.
        secure: Use secure aggregation: the server receives sums over hospitals and no hospital's own.
        settings: Further settings by their names in the experiment file.
        out: The run folder; by default `runs/DATA-cox-seedN`.
        progress: True shows a bar, False none; by default a terminal or notebook shows one. A function is called with each
            event instead.
        absent: weights= and offset= of other packages are refused with a reason; there are no others.

    Returns:
        The result: `summary()`, `to_frame()`, `estimates`, `run`. What a user should know of, such as hospitals that were left
        out, is a line of the summary and a `GrandRoundsWarning`.

    Raises:
        BadInput: A column, option or formula is wrong, or the data allow no such fit.
        RunFailed: The run stopped; its finished exchanges are on disk.

    Examples:
        >>> cox(frame, time="days", event="died", site="hospital").summary()  # doctest: +SKIP
    """
    refuse_absent(absent, "cox")
    exact: dict[str, Any] = {"baseline": baseline, "ties": ties, "errors": errors, "ridge": ridge}
    if horizon is not None:
        exact["horizon"] = horizon
    design = Design(event, tuple(features), formula=formula, task="survival", duration=time)
    built, rows = regression_experiment(
        "cox",
        source,
        design,
        exact,
        site=site,
        event=event_value,
        patient=patient,
        drop=drop,
        secure=secure,
        settings=settings,
    )
    result = fit(built, rows, out=out, progress=progress)
    warn_user(result.record.warnings)
    return result


def refuse_absent(given: Mapping[str, object], function: str) -> None:
    """Refuse arguments that regressions of other packages have and this one does not.

    Args:
        given: The arguments that are none of the function's, by name.
        function: Its name.

    Raises:
        BadInput: One of them is an offset or a weight of rows.
        TypeError: It is nothing that is known.
    """
    from grandrounds.data.formula import NO_OFFSET

    for name in given:
        if name in ("offset", "exposure"):
            raise BadInput(f"{name}: {NO_OFFSET}", code="not-offered")
        if name in ("weights", "freq_weights", "var_weights"):
            raise BadInput(
                f"{name}: rows have no weights (survey, frequency or inverse-probability weights are not offered), and every row "
                "counts once; a table with one row for each patient can be fitted",
                code="not-offered",
            )
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


@dataclass(frozen=True)
class Design:
    """Outcome and columns of a regression, by name or as a formula.

    Attributes:
        label: The outcome; for survival the event.
        features: The columns of the model; empty: all that are left.
        formula: A formula in place of them.
        task: `data.task`.
        duration: The column with the follow-up time.
    """

    label: str | None
    features: tuple[str, ...] = ()
    formula: str | None = None
    task: str = "auto"
    duration: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of [data].

        Raises:
            BadInput: A formula comes with a label, features or a time, or is one for another model.
        """
        survival = self.task == "survival"
        if self.formula is None:
            named = {"label": self.label, "duration": self.duration}
            values: dict[str, Any] = {k: v for k, v in named.items() if v is not None}
            return {**values, "features": list(self.features), "task": self.task}
        from grandrounds.data.formula import parse_formula

        given = {"label (or event)": self.label, "features": self.features, "time": self.duration}
        twice = next((name for name, value in given.items() if value), None)
        if twice is not None:
            raise BadInput(f"both a formula and {twice} are given: leave one of them out", code="conflicting-options")
        formula = parse_formula(self.formula)
        if survival and formula.duration is None:
            raise BadInput(
                f"formula '{self.formula}' has no time: write Surv(TIME, {formula.label}) ~ ...", code="bad-formula"
            )
        if not survival and formula.duration is not None:
            raise BadInput(
                f"formula '{self.formula}' is one of survival: fit it with `rounds fit cox` or gr.cox",
                code="bad-formula",
            )
        return {**formula.settings(), "task": self.task}


def regression_experiment(
    method: str,
    source: Any,
    design: Design,
    exact: Mapping[str, Any],
    *,
    site: str | None = None,
    event: str | int | float | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    secure: bool = False,
    settings: Settings = (),
) -> tuple[Experiment, Any]:
    """Build the experiment of a regression: the source's data, reference coding, complete rows, and all rows for the fit.

    Args:
        method: "glm" or "cox".
        source: As in `gr.glm`.
        design: Outcome and columns.
        exact: The section [method.exact].
        site: `data.site`.
        event: `data.event`.
        patient: `data.patient`.
        drop: `data.drop`.
        secure: `privacy.secure`.
        settings: Further settings.

    Returns:
        The experiment; and the rows, where they are in memory (else None).

    Raises:
        BadInput: The source, an option or the formula is wrong.
    """
    from grandrounds.experiment.experiment import Experiment

    if source is None:
        raise BadInput("no data are given: name a table, a data frame or a data set", code="no-data-named")
    columns = design.settings()
    try:
        base, rows = build_experiment(
            source, label=columns.get("label"), site=site, event=event, patient=patient, drop=drop
        )
    except BadInput as e:
        if e.code != "label-not-set":
            raise
        words = str(e).removesuffix(" (give label=)")
        flags = "event= and time= (--event COLUMN --time COLUMN)" if method == "cox" else "label= (--label COLUMN)"
        raise BadInput(f"{words}: name it with {flags}, or write a formula", code="label-not-set") from None
    values = base.model_dump(mode="json", exclude_unset=True)
    data = {**values.get("data", {}), **columns}
    if columns.get("kinds"):
        data["kinds"] = {**values["data"].get("kinds", {}), **columns["kinds"]}
    data |= {"coding": "reference", "complete": True, "clip": 0.0}
    split = {k: v for k, v in values.get("split", {}).items() if k in _KEPT_SPLIT}
    split |= {"val": 0.0, "test": 0.0, "min_rows": 1, "official": False}
    plain: dict[str, Any] = {
        "name": base.name, "data": data, "split": split, "engine": {"precision": "float64"},
        "method": {"name": method, "exact": dict(exact)},
    }  # fmt: skip
    if "seed" in values:
        plain["seed"] = values["seed"]
    if secure:
        plain["privacy"] = {"secure": True}
    return apply_settings(Experiment.parse(plain, where="settings"), settings), rows


def fit(
    experiment: Experiment, rows: Any = None, *, out: str | Path | None = None, progress: RunProgress = None
) -> Regression:
    """Run a regression and read its result.

    Args:
        experiment: An experiment with method "glm" or "cox".
        rows: Rows in memory that replace those that the experiment names.
        out: The run folder.
        progress: As in `gr.glm`.

    Returns:
        The result.

    Raises:
        BadInput: The data allow no such fit.
        RunFailed: The run stopped.
    """
    from grandrounds.runs.run import run as start

    with exchange_progress(progress) as report:
        try:
            return read_regression(start(experiment, out=out, table=rows, progress=report))
        except BadInput as e:
            if e.code != "label-not-classes":
                e.args = (_name_families(str(e)),)
                raise
            label = experiment.data.label
            raise BadInput(
                f"outcome '{label}' has many different whole numbers, which may be a measurement or a count: say family linear "
                "or poisson (--family linear, --family poisson)",
                code="label-not-classes",
            ) from None


def _name_families(sentence: str) -> str:
    """Put the family that a fit takes in place of the task that a run takes."""
    for family, task in TASKS.items():
        if family != "auto":
            sentence = sentence.replace(f"--task {task}", f"--family {family}")
    return sentence


def read_regression(run: Run) -> Regression:
    """Read the result of a finished regression.

    Args:
        run: A run with method "glm" or "cox".

    Returns:
        The result.

    Raises:
        BadInput: The run is not finished, or is none of these.
    """
    from grandrounds.report.estimates import read_estimates

    record = read_estimates(run.summary)
    if record is None:
        raise BadInput(
            f"{run.folder} has no estimates: its method is '{run.plan['method']['name']}', not glm or cox",
            code="no-estimates",
        )
    notes = (*record.notes, *_constant_columns(run), *_small_hospitals(run))
    return Regression(run, replace(record, notes=notes, warnings=tuple(run.summary.warnings), site_notes=run.summary.notes))


def _constant_columns(run: Run) -> list[str]:
    """Name the columns that were asked for and have one value only."""
    asked = run.plan["data"].get("features") or ()
    gone = [c for c in run.schema["columns"] if c["kind"] == "constant" and c["name"] in asked]
    return [f"column '{c['name']}' is left out: {c['why']}" for c in gone]


def _small_hospitals(run: Run) -> list[str]:
    """Warn of hospitals with so few rows that their sums disclose patients, where sums came in the clear."""
    least = int(run.plan["method"]["exact"]["least"])
    small = sum(0 < counts["train"] < least for counts in run.summary.rows.values())
    if not small or run.plan["privacy"]["secure"]:
        return []
    return [
        f"{small} {'hospital has' if small == 1 else 'hospitals have'} fewer than {least} rows: without secure aggregation "
        "(--secure) the sums of so few patients disclose their values"
    ]


def _outcome(run: Run) -> dict[str, Any]:
    """Return the names of a run's outcome, the number of its hospitals and the reference levels of its columns."""
    data = run.plan["data"]
    categories = getattr(run.model.encoding, "categorical", ())
    return {
        "label": str(data["label"]),
        "duration": data.get("duration") or "",
        "hospitals": len(run.site_names),
        "references": [f"{c.name}={c.baseline}" for c in categories if c.baseline],
    }


def write_text(text: str, path: str | Path | None) -> str:
    """Write a text to a file, if one is named, and return it.

    Args:
        text: The text.
        path: The file; None writes nothing.

    Returns:
        The text.

    Raises:
        BadInput: The file cannot be written.
    """
    if path is not None:
        from grandrounds.core.arrays import write_atomic

        try:
            write_atomic(Path(path), text.encode())
        except OSError as e:
            raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another place", code="cannot-write") from None
    return text
