"""Log a run to MLflow with `MlflowClient` only, which both `mlflow` and `mlflow-skinny` have.

The model is logged as a safetensors file. MLflow's own flavours pickle, so none is used.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from grandrounds.capabilities.integrations.mlflow.contents import LONGEST_TAG, Contents, Metric, cut
from grandrounds.capabilities.integrations.mlflow.target import Figures, LoggedRun, NotLogged, Target, hide_credentials
from grandrounds.core.errors import GrandRoundsError

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # disable MLflow's telemetry
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # MLflow's default of seven takes four minutes for an unreachable server
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_PARAMS, _METRICS = 100, 500
"""Largest number of parameters and metrics in a request; MLflow allows 1000 in total."""

T = TypeVar("T")


def log(contents: Contents, target: Target, *, figures: Figures) -> LoggedRun:
    """Log a run, or update its earlier log.

    Args:
        contents: Content of the run.
        target: The tracker.
        figures: File format of figures.

    Returns:
        The logged run.

    Raises:
        NotLogged: MLflow failed; the message contains no secrets.
    """
    where = "its default location" if target.uri is None else hide_credentials(target.uri)
    with tempfile.TemporaryDirectory() as folder, _default_settings():
        drawings = _write_figures(
            contents, Path(folder), figures
        )  # before MLflow is contacted: PNG may be unavailable
        try:
            with redirect_stdout(io.StringIO()):  # MLflow would print the URI with its password
                client = _client(target)
                where = target.without_secrets(hide_credentials(str(client.tracking_uri)))
                return _RunLogger(client, contents, where).log(drawings)
        except GrandRoundsError:
            raise
        except Exception as e:  # any error of a store, driver or network: the run itself is complete
            raise NotLogged(
                f"MLflow at {where} did not accept {contents.identity.name}: {_reason(e, target)}", code="tracker-failed"
            ) from None


def _reason(error: BaseException, target: Target) -> str:
    """Describe an error briefly: the underlying network error, else MLflow's own message."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, (ConnectionError, TimeoutError, socket.gaierror)) and below.strerror:
            return str(below.strerror)
        below = below.__cause__ or below.__context__
    text = target.without_secrets(" ".join(str(error).split()))
    return cut(text or type(error).__name__, 400)


def _client(target: Target) -> Any:
    mlflow = import_module("mlflow")
    for name in ("mlflow", "alembic"):  # details of creating its tables are not relevant
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow.MlflowClient(tracking_uri=target.uri)


@contextmanager
def _default_settings() -> Iterator[None]:
    """Set MLflow's settings for a finished run, unless the user has set them."""
    ours = {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


class _RunLogger:
    """Logs one run to one store."""

    def __init__(self, client: Any, contents: Contents, where: str) -> None:
        self._client, self._contents, self._where = client, contents, where
        self._entities = import_module("mlflow.entities")

    def log(self, drawings: Sequence[Path]) -> LoggedRun:
        contents = self._contents
        ended = int(1000 * contents.ended)
        began = ended - int(1000 * max((m.ends for m in contents.metrics), default=0.0))
        experiment = os.environ.get(_EXPERIMENT) or contents.experiment
        place = self._experiment_id(experiment)
        previous = self._find_run(place)
        logged = previous or self._client.create_run(
            place, start_time=began, tags=dict(contents.tags), run_name=contents.identity.name
        )
        self._id = str(logged.info.run_id)
        for name, value in contents.tags.items():
            self._client.set_tag(self._id, name, value)
        unchanged = self._log_params(contents.params, logged.data.params)
        self._log_metrics(contents.metrics, ended, logged.data.metrics)
        for path, destination in [*contents.files, *((path, "figures") for path in drawings)]:
            self._client.log_artifact(self._id, str(path), destination or None)
        self._client.set_terminated(self._id, status="FINISHED", end_time=ended)
        return LoggedRun(self._id, experiment, self._where, previous is not None, unchanged)

    def _experiment_id(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name))
        if experiment.lifecycle_stage != "active":
            raise NotLogged(
                f"experiment '{name}' was deleted in MLflow at {self._where}: restore it there, or set {_EXPERIMENT}",
                code="deleted-experiment",
            )
        return str(experiment.experiment_id)

    def _find_run(self, experiment: str) -> Any:
        """Find the earlier log of this run, complete or not."""
        query = f"tags.`grandrounds.identity` = '{self._contents.identity.digest}'"
        runs = self._client.search_runs([experiment], filter_string=query, max_results=1)
        return runs[0] if runs else None

    def _log_params(self, now: Mapping[str, str], logged: Mapping[str, str]) -> tuple[str, ...]:
        """Log new parameters. MLflow never changes a parameter, so a changed one becomes a tag; return those."""
        new = [self._entities.Param(name, value) for name, value in now.items() if name not in logged]
        for some in _batches(_PARAMS, new):
            self._client.log_batch(self._id, params=some)
        differ = tuple(name for name, value in now.items() if logged.get(name, value) != value)
        for name in differ:
            self._client.set_tag(self._id, f"grandrounds.now.{name}", cut(now[name], LONGEST_TAG))
        return differ

    def _log_metrics(self, measured: Sequence[Metric], ended: int, logged: Mapping[str, float]) -> None:
        """Log new points. `logged` is the newest point of each metric, which tells which metrics have a history."""
        points = {(m.key, m.step, m.value) for name in logged for m in self._client.get_metric_history(self._id, name)}
        new = [
            self._entities.Metric(m.name, m.value, ended - int(1000 * m.ends), m.round)
            for m in measured
            if (m.name, m.round, m.value) not in points
        ]
        for some in _batches(_METRICS, new):
            self._client.log_batch(self._id, metrics=some)


def _write_figures(contents: Contents, folder: Path, form: Figures) -> list[Path]:
    """Write the run's figures to files."""
    paths = []
    for name, figure in contents.figures.items():
        path = folder / f"{name}.{form}"
        if form == "json":
            path.write_text(json.dumps(figure), encoding="utf-8")
        elif form == "html":
            figure.write_html(path)
        else:
            figure.write_png(path)
        paths.append(path)
    return paths


def _batches(most: int, values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]
