"""`rounds track`, and `--track` of `rounds run` and `rounds resume`: finished runs in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Withdrawn
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.integrations.mlflow import Target
    from grandrounds.runs.run import Run


Track = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="mlflow[:URI]",
        help="When the run is done, log it to MLflow: at MLFLOW_TRACKING_URI, MLflow's own default, or URI.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("track")(reads_run(track))


def track(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    destination: Annotated[
        str, typer.Option("--to", metavar="mlflow[:URI]", help="At MLFLOW_TRACKING_URI, MLflow's own default, or URI.")
    ] = "mlflow",
    figures: Annotated[
        str,
        typer.Option(help="json: as Plotly reads it; html: a page each, 2 MB; png: needs kaleido and a browser."),
    ] = "json",
    withdrawn: Withdrawn = False,
) -> None:
    """Log finished runs to MLflow: parameters, metrics by round, figures, report, ledger head and model.

    A run that is already logged is updated. No patient's values and no keys are sent.
    """
    from grandrounds.integrations.mlflow import Target
    from grandrounds.integrations.mlflow import track as log
    from grandrounds.runs.run import Run

    target = Target.parse(destination)
    runs = [Run(folder, withdrawn=withdrawn) for folder in folders]
    for run in runs:
        run.refuse_withdrawn()
    for run in runs:
        echo(f"{run.folder}: {log(run, target, figures=figures)}")  # type: ignore[arg-type]


def resolve_target(track: str | None) -> Target | None:
    """Parse --track before training starts, so that a wrong value is found at once.

    Args:
        track: The option; None where it is not given.

    Returns:
        The tracker to log the run to; None to log nothing.

    Raises:
        BadInput: The option names no tracker.
    """
    if track is None:
        return None
    from grandrounds.integrations.mlflow import Target

    return Target.parse(track)


def log_run(run: Run, target: Target | None, *, quiet: bool) -> None:
    """Log a run that has just finished. If the tracker cannot be reached, print one line: the run itself is complete.

    Args:
        run: The finished run.
        target: The tracker to log it to; None to log nothing.
        quiet: Print nothing on success.
    """
    if target is None:
        return
    from grandrounds.core.errors import GrandRoundsError
    from grandrounds.integrations.mlflow import track as log

    try:
        logged = log(run, target)
    except GrandRoundsError as e:
        echo(f"not tracked: {e}; log it later with `rounds track {run.folder} --to {target}`", err=True)
    else:
        if not quiet or logged.unchanged:
            echo(f"tracked: {logged}", err=True)
