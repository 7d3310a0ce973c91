"""`gr.run` and `gr.resume`: train across sites, and continue an interrupted run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import RunProgress, run_progress
from grandrounds.api.sources import Settings, build_experiment, settings_list

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def run(
    experiment: Any = None,
    *,
    label: str | None = None,
    event: str | int | float | None = None,
    task: str | None = None,
    time: str | None = None,
    site: str | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    method: Any = None,
    rounds: int | None = None,
    model: Any = None,
    guard: bool | None = None,
    personal: str | None = None,
    cohort: Any = None,
    seed: int | None = None,
    settings: Settings = (),
    out: str | Path | None = None,
    table: Any = None,
    progress: RunProgress = None,
) -> Run:
    """Train one model across sites and write a run folder.

    Args:
        experiment: The recipe or data set by name, the path of a .toml file or of a table (.csv, .parquet, .xlsx, a SQL URL),
            a pandas DataFrame, or an Experiment. None runs the recipe of `rounds run`.
        label: The column to predict (`data.label`).
        event: The class whose probability is the risk (`data.event`); of survival data the value that is the event.
        task: The type of the outcome, "classification", "regression", "count" or "survival" (`data.task`). None: inferred from
            the label where that is certain.
        time: The column with the follow-up time of survival data (`data.duration`); the label is then the event.
        site: The column that names the hospital of each row (`data.site`). Without one the rows of a table are dealt to
            simulated sites.
        patient: The column that names the patient (`data.patient`).
        drop: Columns to leave out (`data.drop`).
        method: The method's name, or the section as a dict or `gr.config.Method`.
        rounds: The number of rounds (`method.rounds`).
        model: The model's name, or the section as a dict or `gr.config.Model`.
        guard: Each site deploys the common model with its own intercept, unless the common model, the personal part, a model of
            its own or its most common class is clearly better (`personal.guard`).
        personal: The part of the model that each site has for itself, such as "intercept" or "ditto" (`personal.part`).
        cohort: The cohort file by which the table is made from clinical records; the experiment is then their folder, zip or
            SQL URL (`data.cohort`).
        seed: The seed of every random choice.
        settings: Any other setting by its name in the experiment file: `{"train.lr": 0.05}`.
        out: The run folder; by default `runs/DATA-METHOD-seedN`. It must not exist yet.
        table: Rows in memory that replace those that an Experiment names: a DataFrame or Table.
        progress: True shows a bar, False none; by default a terminal or notebook shows one. A function is called with
            each event instead.

    Returns:
        The finished run.

    Raises:
        BadInput: The source, an option or the data are wrong.
        RunFailed: The run stopped; its finished rounds are on disk.

    Examples:
        >>> run("heart", method="fedprox", rounds=30, seed=1)  # doctest: +SKIP
        >>> run(frame, label="died", site="hospital")  # doctest: +SKIP
        >>> run(frame, label="died", time="days", site="hospital")  # doctest: +SKIP
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import run as start

    if table is not None and experiment is None:
        experiment, table = table, None
    built, rows = build_experiment(
        experiment,
        label=label,
        event=event,
        task=task,
        time=time,
        site=site,
        patient=patient,
        drop=drop,
        cohort=cohort,
        method=method,
        rounds=rounds,
        model=model,
        guard=guard,
        personal=personal,
        seed=seed,
        settings=settings,
    )
    if rows is not None and table is not None:
        raise BadInput("two tables were given: leave out table=", code="two-data-sources")
    with run_progress(progress) as report:
        return start(built, out=out, table=table if rows is None else rows, progress=report)


def resume(
    folder: str | Path,
    *,
    settings: Settings = (),
    table: Any = None,
    progress: RunProgress = None,
    trust_code: bool = False,
) -> Run:
    """Continue an interrupted run; its result has the same bits as a run without interruption.

    Args:
        folder: The run folder.
        settings: Settings that may change: `method.rounds`, `engine.*` and `evaluation.*`.
        table: The rows again, where the run was made from a data frame.
        progress: As in `run`.
        trust_code: Run code of the run's author also where the run was made elsewhere.

    Returns:
        The finished run.

    Raises:
        BadInput: The folder is no run folder, a setting may not change, or the run's code is not trusted.
    """
    from grandrounds.runs.run import resume as continue_run

    with run_progress(progress) as report:
        return continue_run(
            folder, settings=settings_list(settings), table=table, progress=report, trust_code=trust_code
        )
