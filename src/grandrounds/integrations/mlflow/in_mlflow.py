"""MLflow, by `MlflowClient` alone, which the packages `mlflow` and `mlflow-skinny` both have.

The model goes there as a file in the safetensors layout. MLflow's own flavours pickle, so none is used.
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

from grandrounds.core.errors import GrandRoundsError
from grandrounds.integrations.mlflow.contents import LONGEST_TAG, Contents, Measured, cut
from grandrounds.integrations.mlflow.target import Figures, Logged, NotLogged, Target, shown

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow would tell its makers of its use
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # seven, as MLflow has it, is four minutes for a server that is away
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_PARAMS, _METRICS = 100, 500
"""How many a request may hold; of metrics MLflow allows 1000 in all."""

T = TypeVar("T")


def log(told: Contents, target: Target, *, figures: Figures) -> Logged:
    """Log the run, or bring what is there of it up to date; what goes wrong is one sentence without secrets."""
    where = "its default place" if target.uri is None else shown(target.uri)
    with tempfile.TemporaryDirectory() as folder, _settings():
        drawings = _drawn(told, Path(folder), figures)  # before MLflow is asked for anything: a PNG may be refused
        try:
            with redirect_stdout(io.StringIO()):  # where it would print the URI, with the password that is in it
                client = _client(target)
                where = target.without_secrets(shown(str(client.tracking_uri)))
                return _Book(client, told, where).log(drawings)
        except GrandRoundsError:
            raise
        except Exception as e:  # whatever a store, a driver or the network throws: the run is whole all the same
            raise NotLogged(
                f"MLflow at {where} did not take {told.identity.name}: {_reason(e, target)}", code="tracker-failed"
            ) from None


def _reason(error: BaseException, target: Target) -> str:
    """Why, in few words: what the network said where that is at the bottom of it, else MLflow's own sentence."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, (ConnectionError, TimeoutError, socket.gaierror)) and below.strerror:
            return str(below.strerror)
        below = below.__cause__ or below.__context__
    said = target.without_secrets(" ".join(str(error).split()))
    return cut(said or type(error).__name__, 400)


def _client(target: Target) -> Any:
    mlflow = import_module("mlflow")
    for name in ("mlflow", "alembic"):  # how it makes its tables is of no interest here
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow.MlflowClient(tracking_uri=target.uri)


@contextmanager
def _settings() -> Iterator[None]:
    """MLflow's settings as they suit a run that is done, where nobody has said otherwise."""
    ours = {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


class _Book:
    """One run in one store."""

    def __init__(self, client: Any, told: Contents, where: str) -> None:
        self._client, self._told, self._where = client, told, where
        self._entities = import_module("mlflow.entities")

    def log(self, drawings: Sequence[Path]) -> Logged:
        told = self._told
        ended = int(1000 * told.ended)
        began = ended - int(1000 * max((m.ends for m in told.metrics), default=0.0))
        experiment = os.environ.get(_EXPERIMENT) or told.experiment
        place = self._experiment(experiment)
        there = self._found(place)
        made = there or self._client.create_run(
            place, start_time=began, tags=dict(told.tags), run_name=told.identity.name
        )
        self._id = str(made.info.run_id)
        for name, value in told.tags.items():
            self._client.set_tag(self._id, name, value)
        kept = self._params(told.params, made.data.params)
        self._metrics(told.metrics, ended, made.data.metrics)
        for path, to in [*told.files, *((path, "figures") for path in drawings)]:
            self._client.log_artifact(self._id, str(path), to or None)
        self._client.set_terminated(self._id, status="FINISHED", end_time=ended)
        return Logged(self._id, experiment, self._where, there is not None, kept)

    def _experiment(self, name: str) -> str:
        held = self._client.get_experiment_by_name(name)
        if held is None:
            return str(self._client.create_experiment(name))
        if held.lifecycle_stage != "active":
            raise NotLogged(
                f"experiment '{name}' was deleted in MLflow at {self._where}: restore it there, or set {_EXPERIMENT}",
                code="deleted-experiment",
            )
        return str(held.experiment_id)

    def _found(self, experiment: str) -> Any:
        """What was logged of this run before, whole or half."""
        asked = f"tags.`grandrounds.identity` = '{self._told.identity.digest}'"
        found = self._client.search_runs([experiment], filter_string=asked, max_results=1)
        return found[0] if found else None

    def _params(self, now: Mapping[str, str], held: Mapping[str, str]) -> tuple[str, ...]:
        """Log what is new. MLflow never changes a parameter, so one that differs becomes a tag; those are returned."""
        new = [self._entities.Param(name, value) for name, value in now.items() if name not in held]
        for some in _by(_PARAMS, new):
            self._client.log_batch(self._id, params=some)
        differ = tuple(name for name, value in now.items() if held.get(name, value) != value)
        for name in differ:
            self._client.set_tag(self._id, f"grandrounds.now.{name}", cut(now[name], LONGEST_TAG))
        return differ

    def _metrics(self, measured: Sequence[Measured], ended: int, held: Mapping[str, float]) -> None:
        """Log what is not there. `held`: the newest of each metric, which says which have a history to look at."""
        there = {(m.key, m.step, m.value) for name in held for m in self._client.get_metric_history(self._id, name)}
        new = [
            self._entities.Metric(m.name, m.value, ended - int(1000 * m.ends), m.round)
            for m in measured
            if (m.name, m.round, m.value) not in there
        ]
        for some in _by(_METRICS, new):
            self._client.log_batch(self._id, metrics=some)


def _drawn(told: Contents, folder: Path, form: Figures) -> list[Path]:
    """The run's figures as files of a form."""
    paths = []
    for name, figure in told.figures.items():
        path = folder / f"{name}.{form}"
        if form == "json":
            path.write_text(json.dumps(figure), encoding="utf-8")
        elif form == "html":
            figure.write_html(path)
        else:
            figure.write_png(path)
        paths.append(path)
    return paths


def _by(most: int, values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]
