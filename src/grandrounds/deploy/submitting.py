"""Submitting runs to a SuperLink, going on with them, stopping them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.deploy.control import Control, FlowerRun
from grandrounds.deploy.run_records import QUEUED, Records, checked_run_name
from grandrounds.deploy.superlink import Link
from grandrounds.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

_OVER = "finished"
_OWN = (
    "name",
    "table",
    "query",
    "site",
    "drop",
    "label",
    "positive",
    "patient",
    "time",
    "id",
    "kinds",
    "missing",
    "pictures",
)
"""Settings of [data] that the consortium has agreed on, or that name a table: a submitted experiment's are left out."""


def submit_run(
    control: Control, source: str, settings: Sequence[str], name: str | None, link: Link | None
) -> tuple[str, int]:
    """Submit an experiment; the run's name and Flower's number."""
    plan = deployed_plan(Path(source), settings)
    run = checked_run_name(name or f"{_plain(plan['name'])}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if any(known.name == run for known in control.runs()) or (link is not None and _records(link).get(run)):
        raise BadInput(f"there is a run {run} already: choose another --name, or go on with it by --resume {run}")
    return run, _start(control, link, run=run, plan=json.dumps(plan), resume=False)


def go_on(control: Control, run: str, link: Link | None) -> tuple[str, int]:
    """A new Flower run that goes on with a run of ours; its plan is the one that its folder holds."""
    known = _named(control, run)
    if any(not one.status.startswith(_OVER) for one in known):
        raise BadInput(f"run {run} has not stopped: `rounds stop {run}` first")
    return run, _start(control, link, run=checked_run_name(run), plan="{}", resume=True)


def stop_run(control: Control, run: str) -> None:
    """End every Flower run that conducts this run."""
    at_work = [one for one in _named(control, run) if not one.status.startswith(_OVER)]
    if not at_work:
        raise BadInput(f"run {run} is over: nothing to stop")
    for one in at_work:
        control.stop(one.id)


def deployed_plan(path: Path, settings: Sequence[str]) -> dict[str, Any]:
    """An experiment's plan for hospitals that hold their own rows: what it says of a table is left out."""
    from grandrounds.experiment import Experiment
    from grandrounds.holdings import AT_SITES

    given = Experiment.load(path)
    if settings:
        given = given.with_settings(list(settings))
    said = given.model_dump(exclude_unset=True)
    data = {key: value for key, value in said.get("data", {}).items() if key not in _OWN}
    label = said.get("data", {}).get("label") or "as agreed"
    return Experiment.parse({**said, "data": {**data, "table": AT_SITES, "label": label}}).plan()


def _start(control: Control, link: Link | None, **config: str | bool) -> int:
    flower = control.start(config)
    if link is not None:
        _records(link).note(str(config["run"]), state=QUEUED, flower=flower)
    return flower


def _records(link: Link) -> Records:
    return Records(link.state / "runs")


def _named(control: Control, run: str) -> list[FlowerRun]:
    runs = control.runs()
    found = [one for one in runs if one.name == run]
    if not found:
        raise BadInput(f"no run is called {run!r}; {nearest(run, {one.name for one in runs})}")
    return found


def _plain(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("-._") or "run"
