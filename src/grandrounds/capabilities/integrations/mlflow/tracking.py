"""Log a run to a tracker."""

from __future__ import annotations

from grandrounds.capabilities.integrations.mlflow.client import log
from grandrounds.capabilities.integrations.mlflow.contents import read_contents
from grandrounds.capabilities.integrations.mlflow.target import FORMS, Figures, LoggedRun, Target
from grandrounds.core.errors import BadInput, nearest
from grandrounds.runs.run import Run


def track(run: Run, target: str | Target = "mlflow", *, figures: Figures = "json") -> LoggedRun:
    """Log a finished run, or update its earlier log.

    Args:
        run: The run.
        target: The tracker: "mlflow", "mlflow:URI" or a Target.
        figures: "json" for Plotly, "html" for a page each (2 MB), "png" if kaleido and a browser are installed.

    Returns:
        The logged run.

    Raises:
        BadInput: The tracker or the format is unknown, or the run is not finished.
        NotLogged: The tracker failed.
    """
    place = target if isinstance(target, Target) else Target.parse(target)
    if figures not in FORMS:
        raise BadInput(f"unknown format of figures '{figures}'; {nearest(figures, FORMS)}", code="unknown-figure-format")
    return log(read_contents(run), place, figures=figures)
