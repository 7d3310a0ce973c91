"""`rounds track`, and `--track` of `rounds run` and `rounds resume`: finished runs in MLflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Withdrawn
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


@dataclass(frozen=True)
class TrackOptions:
    """Option of `rounds run` and `rounds resume` that names a tracker; a wrong one is refused before training starts."""

    track: Annotated[
        str | None,
        typer.Option(
            "--track",
            metavar="mlflow[:URI]",
            help="When the run is done, log it to MLflow: at MLFLOW_TRACKING_URI, MLflow's own default, or URI.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.track is not None:
            from grandrounds.capabilities.integrations.mlflow import Target

            Target.parse(self.track)

    def finish(self, run: Run, *, quiet: bool) -> Run:
        """Log a run that has just finished. If the tracker cannot be reached, print one line: the run itself is complete."""
        if self.track is not None:
            _log_finished(run, self.track, quiet=quiet)
        return run


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
    from grandrounds.capabilities.integrations.mlflow import Target
    from grandrounds.capabilities.integrations.mlflow import track as log
    from grandrounds.runs.run import Run

    target = Target.parse(destination)
    runs = [Run(folder, withdrawn=withdrawn) for folder in folders]
    for run in runs:
        run.refuse_withdrawn()
    for run in runs:
        echo(f"{run.folder}: {log(run, target, figures=figures)}")  # type: ignore[arg-type]


def _log_finished(run: Run, track: str, *, quiet: bool) -> None:
    from grandrounds.capabilities.integrations.mlflow import Target
    from grandrounds.capabilities.integrations.mlflow import track as log
    from grandrounds.core.errors import GrandRoundsError

    target = Target.parse(track)
    try:
        logged = log(run, target)
    except GrandRoundsError as e:
        echo(f"not tracked: {e}; log it later with `rounds track {run.folder} --to {target}`", err=True)
    else:
        if not quiet or logged.unchanged:
            echo(f"tracked: {logged}", err=True)
