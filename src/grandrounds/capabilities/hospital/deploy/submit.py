"""Submit, resume and stop runs of a SuperLink."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.capabilities.hospital.deploy.control import FINISHED, Control, FlowerRun
from grandrounds.capabilities.hospital.deploy.plan_encryption import encrypt_plan
from grandrounds.capabilities.hospital.deploy.records import RunRecords, check_run_name
from grandrounds.capabilities.hospital.deploy.site_plan import PlainPlan, plan_at_sites
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_AGREED_KEYS = (
    "name",
    "table",
    "cohort",
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
    "sheet",
    "dates",
    "pictures",
    "file",
    "size",
    "scan",
)
"""Settings of [data] that the consortium agreed on, or that name a table: those of a submitted experiment are ignored."""


def submit_run(
    control: Control, source: str, settings: Sequence[str], name: str | None, link: Link | None, *, keys: Path
) -> tuple[str, int]:
    """Submit an experiment.

    Args:
        control: A connection to the SuperLink.
        source: A recipe or a TOML file.
        settings: Changed settings, as `section.key=value`.
        name: The run's name; by default the experiment's with the time.
        link: The server's folder, on its own host.
        keys: The server's or an operator's folder, with the key that encrypts the plan.

    Returns:
        The run's name and Flower's id.

    Raises:
        BadInput: The experiment cannot be run at hospitals, or a run of this name exists.
    """
    from grandrounds.capabilities.hospital.deployment import refuse_unfit
    from grandrounds.core.plan_types import Plan

    plan = deployed_plan(Path(source), settings)
    refuse_unfit(Plan(plan))
    if link is not None and not any(link.nodes.glob("*.pub")):
        raise BadInput(
            f"no site takes part in the consortium of {link.folder} yet: sites ask with `rounds site join`, and `rounds "
            "provision approve` registers their keys",
            code="not-joined",
        )
    run = check_run_name(name or f"{_ascii_name(plan['name'])}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if run in known_runs(control, link):
        raise BadInput(
            f"there is already a run {run}: choose another --name, or continue it with --resume {run}",
            code="run-exists",
        )
    return run, start_run(control, link, run=run, plan=encrypt_plan(json.dumps(plan), keys, run=run), resume=False)


def resume_run(control: Control, run: str, link: Link | None) -> tuple[str, int]:
    """Start a new Flower run that resumes a run with the plan in its folder.

    On the server's host (`link`) a run is known by its own folder and record, even if Flower's database is lost.

    Returns:
        The run's name and Flower's id.

    Raises:
        BadInput: The run is unknown, is running, has finished or has not begun.
    """
    flower_runs = _flower_runs(control, check_run_name(run), link)
    if any(not one.status.startswith(FINISHED) for one in flower_runs):
        raise BadInput(f"run {run} is still running: stop it first with `rounds server stop-run {run}`", code="run-active")
    if link is not None:
        _check_resumable(link.runs / run)
    return run, start_run(control, link, run=run, plan="{}", resume=True)


def stop_run(control: Control, run: str, link: Link | None = None) -> None:
    """Stop every Flower run of this run.

    Raises:
        BadInput: The run is unknown, or is not running.
    """
    at_work = [one for one in _flower_runs(control, run, link) if not one.status.startswith(FINISHED)]
    if not at_work:
        raise BadInput(f"run {run} is not running, so it cannot be stopped", code="run-not-active")
    for one in at_work:
        control.stop(one.id)


def deployed_plan(path: Path, settings: Sequence[str]) -> PlainPlan:
    """Make an experiment's plan for hospitals with their own rows; its table or image settings are left out.

    The unit of the split (split.by) is chosen once the consortium's columns are known: it may be by patient or by time.
    """
    from grandrounds.core.sources import AT_SITES, STROKES
    from grandrounds.experiment.experiment import Experiment

    experiment = Experiment.load(path)
    if settings:
        experiment = experiment.with_settings(list(settings))
    sections = experiment.model_dump(exclude_unset=True)
    requested = sections.get("data", {})
    left_out = (*_AGREED_KEYS, *([] if requested.get("masks") == STROKES else ["masks"]))
    data = {key: value for key, value in requested.items() if key not in left_out}
    split = {key: value for key, value in sections.get("split", {}).items() if key != "by"}
    label = requested.get("label") or "as agreed"
    plan = Experiment.parse({**sections, "split": split, "data": {**data, "table": AT_SITES, "label": label}}).plan()
    return {**plan, "split": {**plan["split"], "by": experiment.split.by}}


def plan_for_sites(path: Path, settings: Sequence[str], agreed: Mapping[str, Any]) -> PlainPlan:
    """Make the plan of an experiment exactly as sites will receive it, so that they can approve its digest beforehand.

    Raises:
        BadInput: The experiment does not fit hospitals, or the agreed data.
    """
    from grandrounds.capabilities.hospital.deployment import empty, refuse_unfit
    from grandrounds.core.plan_types import Plan
    from grandrounds.data.public import make_public_encoding
    from grandrounds.methods import method_class

    plan = Plan(plan_at_sites(deployed_plan(path, settings), agreed))
    refuse_unfit(plan)
    columns = empty(plan)  # a model that does not fit the agreed data is refused here
    method = method_class(plan.method.name)
    if plan.data.encoding == "public" and method.evaluates and not method.earlier_model:
        make_public_encoding(plan, columns)  # a column without a range or levels is refused here
    return plan.plain()


def _check_resumable(folder: Path) -> None:
    if (folder / "summary.json").exists():
        raise BadInput(f"run {folder.name} is done: see `rounds show {folder}`", code="run-finished")
    if not _is_started(folder):
        raise BadInput(
            f"run {folder.name} has not begun, so it cannot be resumed: submit it again", code="run-not-begun"
        )


def _is_started(folder: Path) -> bool:
    return (folder / "checkpoint" / "plan.json").exists()


def start_run(control: Control, link: Link | None, **config: str | bool) -> int:
    """Start a run with these settings of the scheduler; return Flower's id."""
    flower = control.start(config)
    if link is not None:
        _records(link).mark_queued(str(config["run"]), flower)
    return flower


def _records(link: Link) -> RunRecords:
    return RunRecords(link.state / "runs")


def known_runs(control: Control, link: Link | None) -> set[str]:
    """List runs that Flower knows, and on the server's host those with a record or a folder."""
    names = {one.name for one in control.runs()}
    if link is not None:
        names |= {str(record["run"]) for record in _records(link).all()}
        names |= {folder.name for folder in link.runs.glob("*") if _is_started(folder)}
    return names


def _flower_runs(control: Control, run: str, link: Link | None) -> list[FlowerRun]:
    """Find the Flower runs of a run; empty if only the server's disk knows it."""
    names = known_runs(control, link)
    if run not in names:
        hint = nearest(run, sorted(names)) if names else "there is none"
        more = "" if link is not None else "; on the server's host, --server OUT also searches its folders"
        raise BadInput(f"there is no run {run!r}; {hint}{more}", code="unknown-run")
    return [one for one in control.runs() if one.name == run]


def _ascii_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("-._") or "run"
