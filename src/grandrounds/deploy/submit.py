"""Submit runs to a SuperLink, resume them, stop them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.deploy.control import Control, FlowerRun
from grandrounds.deploy.records import RunRecords, check_run_name
from grandrounds.deploy.superlink import Link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    "decimal",
    "text_encoding",
    "separator",
    "censored",
    "dates",
    "pictures",
    "file",
    "size",
)
"""Settings of [data] that the consortium has agreed on, or that name a table: a submitted experiment's are left out."""


def submit_run(
    control: Control, source: str, settings: Sequence[str], name: str | None, link: Link | None
) -> tuple[str, int]:
    """Submit an experiment; the run's name and Flower's number."""
    from grandrounds.core.plan_types import Plan
    from grandrounds.runs.deployment import refuse_unfit

    plan = deployed_plan(Path(source), settings)
    refuse_unfit(Plan(plan))
    run = check_run_name(name or f"{_plain(plan['name'])}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if run in _names(control, link):
        raise BadInput(
            f"there is a run {run} already: choose another --name, or go on with it by --resume {run}",
            code="run-exists",
        )
    return run, _start(control, link, run=run, plan=json.dumps(plan), resume=False)


def resume_run(control: Control, run: str, link: Link | None) -> tuple[str, int]:
    """A new Flower run that goes on with a run of ours; its plan is the one that its folder holds.

    On the server's host (`link`) a run is known by its own folder and record: Flower's database may be gone.
    """
    known = _named(control, check_run_name(run), link)
    if any(not one.status.startswith(_OVER) for one in known):
        raise BadInput(f"run {run} has not stopped: `rounds stop {run}` first", code="run-active")
    if link is not None:
        _check_resumable(link.runs / run)
    return run, _start(control, link, run=run, plan="{}", resume=True)


def stop_run(control: Control, run: str, link: Link | None = None) -> None:
    """End every Flower run of this run."""
    at_work = [one for one in _named(control, run, link) if not one.status.startswith(_OVER)]
    if not at_work:
        raise BadInput(f"run {run} is not at work: nothing to stop", code="run-not-active")
    for one in at_work:
        control.stop(one.id)


def deployed_plan(path: Path, settings: Sequence[str]) -> dict[str, Any]:
    """An experiment's plan for hospitals that hold their own rows: what it says of a table or pictures is left out.

    How rows are dealt (split.by) is said when the consortium's own columns are known: it may be by patient, or by time.
    """
    from grandrounds.data.loading import AT_SITES, STROKES
    from grandrounds.experiment.experiment import Experiment

    given = Experiment.load(path)
    if settings:
        given = given.with_settings(list(settings))
    said = given.model_dump(exclude_unset=True)
    asked = said.get("data", {})
    own = (*_OWN, *([] if asked.get("masks") == STROKES else ["masks"]))
    data = {key: value for key, value in asked.items() if key not in own}
    split = {key: value for key, value in said.get("split", {}).items() if key != "by"}
    label = asked.get("label") or "as agreed"
    plan = Experiment.parse({**said, "split": split, "data": {**data, "table": AT_SITES, "label": label}}).plan()
    return {**plan, "split": {**plan["split"], "by": given.split.by}}


def plan_for_sites(path: Path, settings: Sequence[str], agreed: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of an experiment exactly as sites will be told it, which they can approve by its digest beforehand."""
    from grandrounds.core.plan_types import Plan
    from grandrounds.deploy.run_worker import plan_at_sites
    from grandrounds.runs.deployment import empty, refuse_unfit

    plan = Plan(plan_at_sites(deployed_plan(path, settings), agreed))
    refuse_unfit(plan)
    empty(plan)  # a model that does not go with the agreed data is refused here
    return plan.plain()


def _check_resumable(folder: Path) -> None:
    if (folder / "summary.json").exists():
        raise BadInput(f"run {folder.name} is done: `rounds show {folder}` has what came of it", code="run-finished")
    if not _is_started(folder):
        raise BadInput(
            f"run {folder.name} had not begun, so there is nothing to go on with: submit it again", code="run-not-begun"
        )


def _is_started(folder: Path) -> bool:
    return (folder / "checkpoint" / "plan.json").exists()


def _start(control: Control, link: Link | None, **config: str | bool) -> int:
    flower = control.start(config)
    if link is not None:
        _records(link).queued(str(config["run"]), flower)
    return flower


def _records(link: Link) -> RunRecords:
    return RunRecords(link.state / "runs")


def _names(control: Control, link: Link | None) -> set[str]:
    """Runs that Flower knows, and on the server's host those that have a record or a folder there."""
    names = {one.name for one in control.runs()}
    if link is not None:
        names |= {str(record["run"]) for record in _records(link).all()}
        names |= {folder.name for folder in link.runs.glob("*") if _is_started(folder)}
    return names


def _named(control: Control, run: str, link: Link | None) -> list[FlowerRun]:
    """What Flower knows of a run; nothing where only the server's own disk knows it."""
    names = _names(control, link)
    if run not in names:
        known = nearest(run, sorted(names)) if names else "there is none"
        more = "" if link is not None else "; on the server's host, --server OUT looks at its own folders as well"
        raise BadInput(f"no run is called {run!r}; {known}{more}", code="unknown-run")
    return [one for one in control.runs() if one.name == run]


def _plain(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("-._") or "run"
