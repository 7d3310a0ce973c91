"""Rows of a hospital after a run, from its own table and split as in the run: the baseline of a watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.runtime.run import build_stack
from grandrounds.capabilities.watch.at_sites.baseline import SiteRows
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.split import assign_roles
from grandrounds.data.table import Table
from grandrounds.runs.run_rows import base_name
from grandrounds.site.tasks import tasks_of

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def read_site_rows(run: Run, folder: SiteFolder, data: str, *, query: str | None = None) -> SiteRows:
    """Read the rows that were a hospital's validation and training rows in a run, split as its keeper split them.

    Args:
        run: A finished run, in the copy that the hospital has.
        folder: The site's folder.
        data: The table or images that the site had in the run.
        query: SELECT or table name, for a SQL URL.

    Returns:
        The rows.

    Raises:
        BadInput: The data do not fit the run, have changed since, or the site has no validation rows.
    """
    plan, name = Plan(run.plan), folder.name
    s, sites = plan.split, tuple(run.summary["per_site"])
    role = assign_roles(sites, scheme=s.scheme, seed=plan.seed, fold=s.fold, folds=s.folds, holdout=tuple(s.holdout))[name]
    task = tasks_of(plan.tasks.plain(), sites)[name]
    stack = build_stack(plan, folder.rows(data, query=query), name=name, role=role, task=task)
    rows, trained = stack.rows[0], _training_rows(run, name)
    if trained is not None and trained != len(rows.train):
        raise BadInput(
            f"{data} is not the table that {name} had in the run: it has {len(rows.train)} training rows, and the run counted "
            f"{trained}; give the table of that time",
            code="other-rows",
        )
    if not len(rows.val):
        raise BadInput(
            f"{name} has no validation rows in this run (split.val, or a site that only tested): watch a run that has them",
            code="no-validation-rows",
        )
    return SiteRows(_take(stack.data, rows.val), _take(stack.data, rows.train), base_name(data))


def _take(holdings: Holdings, places: Array) -> Table | ImageSet:
    return holdings.take(places) if isinstance(holdings, ImageSet) else holdings.table.take(places)


def _training_rows(run: Run, site: str) -> int | None:
    """Return the number of a site's training rows as the rounds recorded it; None where they did not."""
    for record in run.rounds:
        count = record["decision"]["signals"].get("data_size", {}).get(site)
        if count is not None and float(count).is_integer():
            return int(count)
    return None
