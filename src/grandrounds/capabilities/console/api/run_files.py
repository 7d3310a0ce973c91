"""Files of a run folder: summary, experiment, model and reports. A file is read only if it is a plain file of limited size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from grandrounds.capabilities.console import access_log
from grandrounds.capabilities.console.api.parameters import RunName, Viewer, WithdrawnModel
from grandrounds.capabilities.console.api.resources import Resources, Responses, file_word, send_file
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import log_access
from grandrounds.capabilities.console.cache import read_checked
from grandrounds.capabilities.console.run_index import LARGEST, NotFound, RunIndex
from grandrounds.core import toml
from grandrounds.core.arrays import read_file
from grandrounds.core.redact import hide

resources = Resources("files")
STORED = {"summary": "summary.json", "report": "report.html", "report.pdf": "report.pdf", "model": "model.safetensors"}
"""Resources that are files of the run folder."""
HTML: Responses = {200: {"description": "A page that needs no network.", "content": {"text/html": {}}}}
PDF: Responses = {200: {"description": "The report with a model card.", "content": {"application/pdf": {}}}}
TOML: Responses = {200: {"description": "The settings of the run.", "content": {"application/toml": {}}}}
MODEL: Responses = {
    200: {"description": "The arrays of the model.", "content": {"application/octet-stream": {}}}
}
SUMMARY: Responses = {
    200: {"description": "summary.json.", "content": {"application/json": {"schema": {"type": "object"}}}}
}


def read_run_file(run_index: RunIndex, run: str, name: str, *, missing: str) -> bytes:
    """Read a file of a run folder.

    Args:
        run_index: The runs.
        run: The run.
        name: The file's name in the folder.
        missing: The end of the sentence about a file that is not there: what writes it.

    Raises:
        NotFound: There is no such run or file.
        Unreadable: It is a link, a pipe or too large.
    """
    entry = run_index.get(run)
    path = entry.folder / name
    if not os.path.lexists(path):
        raise NotFound(f"run '{run}' has no {name}: {missing}", code="file-not-found")
    return read_checked(run_index, f"the file {name} of run '{run}'", lambda: read_file(path, largest=LARGEST))


@resources.get(
    "/runs/{run}/summary",
    summary="summary.json of a finished run, as it is stored",
    response_class=Response,
    responses=SUMMARY,
)
def summary(request: Request, who: Viewer, run: RunName) -> Response:
    """Return the summary; docs/run-folder.md describes its keys."""
    run_index = get_state(request).run_index
    run_index.run(run)  # a damaged summary is described instead
    data = read_run_file(run_index, run, "summary.json", missing="the run is not finished")
    return Response(data, media_type="application/json")


@resources.get(
    "/runs/{run}/experiment",
    summary="All settings of a run as TOML, without folders and passwords",
    response_class=Response,
    responses=TOML,
)
def experiment(request: Request, who: Viewer, run: RunName) -> Response:
    """Return the settings. Names of folders on the machine that ran it, and passwords in addresses, are left out."""
    plan = get_state(request).run_index.run(run).plan
    text = toml.dumps(_without_places(plan), head="# The whole experiment as it was run, without names of folders.")
    return send_file(text.encode(), f"experiment-{file_word(run)}.toml", "application/toml")


def _without_places(value: Any) -> Any:
    """Shorten absolute paths to file names, and remove passwords of addresses."""
    if isinstance(value, Mapping):
        return {key: _without_places(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return PurePath(value).name if PurePath(value).is_absolute() else hide(value)


@resources.get(
    "/runs/{run}/model",
    summary="model.safetensors of a finished run, as it is stored",
    response_class=Response,
    responses=MODEL,
)
def model(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> Response:
    """Return the model file. Its SHA-256 is in the ledger and in the register of models."""
    data = _stored_file(request, run, STORED["model"], "the run is not finished, or has no common model", withdrawn)
    is_withdrawn = get_state(request).run_index.run(run).withdrawn is not None
    log_access(request, access_log.DOWNLOAD, who, run=run, view="withdrawn model" if is_withdrawn else "model")
    return send_file(data, f"model-{file_word(run)}.safetensors", "application/octet-stream")


@resources.get("/runs/{run}/report", summary="report.html of a finished run", response_class=Response, responses=HTML)
def report(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> Response:
    """Return the report as a file to store: its scripts do not run on this console's pages."""
    data = _stored_file(request, run, STORED["report"], f"`rounds report {run}` writes it", withdrawn)
    return send_file(data, f"report-{file_word(run)}.html", "text/html; charset=utf-8")


@resources.get("/runs/{run}/report.pdf", summary="report.pdf of a finished run", response_class=Response, responses=PDF)
def report_pdf(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> Response:
    """Return the report with its model card. The console prints none: `rounds report RUN --pdf` does."""
    data = _stored_file(request, run, STORED["report.pdf"], f"`rounds report {run} --pdf` writes it", withdrawn)
    return send_file(data, f"report-{file_word(run)}.pdf", "application/pdf")


def _stored_file(request: Request, run: str, name: str, missing: str, withdrawn: bool) -> bytes:
    run_index = get_state(request).run_index
    run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return read_run_file(run_index, run, name, missing=missing)
