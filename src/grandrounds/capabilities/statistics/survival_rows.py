"""Rows of a survival analysis without a model, from a table: follow-up times, events, groups and sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.question import Rows
from grandrounds.capabilities.statistics.table_rows import list_levels, split_sites
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import SURVIVAL
from grandrounds.data.event import Event, state_event
from grandrounds.data.outcome import read_outcome
from grandrounds.data.table import Table, missing_mask, to_text

MOST_GROUPS = 12


@dataclass(frozen=True)
class SurvivalRequest:
    """Survival curves as a person asks for them.

    Attributes:
        time: Column of follow-up times.
        event: Column of events, with two values.
        site: Column that names the hospital of each row.
        group: Column whose values are the groups; "" without groups.
        positive: Value of `event` that is the event; "" to tell it from the two values, as 1 of 0 and 1.
    """

    time: str
    event: str
    site: str
    group: str = ""
    positive: str = ""


@dataclass(frozen=True, eq=False)
class SurvivalRows:
    """Rows of each site, ready for `fit_kaplan_meier`.

    Attributes:
        sites: Rows by site.
        groups: Names of the groups, in the order of their numbers.
        event: The value that is the event.
        notes: Sentences for people, such as on rows without a group.
    """

    sites: dict[str, Rows]
    groups: tuple[str, ...]
    event: str
    notes: tuple[str, ...] = ()


def read_survival_rows(table: Table, request: SurvivalRequest) -> SurvivalRows:
    """Read the rows of all sites.

    Args:
        table: Rows of all sites.
        request: The columns.

    Returns:
        The rows by site. Rows without a group are left out and counted in the notes.

    Raises:
        BadInput: A column is not there or has two roles, times are missing, negative, words or dates, events have more than two
            values or leave a doubt, there are too many groups, or fewer than three sites.
    """
    _check_roles(table, request)
    missing = missing_mask(table.column(request.event, flag="--event"))
    if missing.any():
        raise BadInput(
            f"event column '{request.event}' of {table.source} has {int(missing.sum())} rows without a value, first "
            f"{table.where(int(missing.argmax()))}; fill them in, or leave these rows out",
            code="missing-labels",
        )
    words, times = read_outcome(table, request.event, SURVIVAL, request.time)
    event = _choose_event(words, request)
    notes = []
    groups: tuple[str, ...] = ()
    codes = np.zeros(len(table), int)
    if request.group:
        groups = _list_groups(table, request.group)
        places = {name: k for k, name in enumerate(groups)}
        codes = np.array([places.get(v, -1) for v in to_text(table.columns[request.group])], int)
        if left := int((codes < 0).sum()):
            notes.append(f"Rows without a value of '{request.group}' are left out: {left} of {len(table):,}.")
    sites = {}
    names = to_text(table.column(request.site, flag="--site"))
    assert times is not None
    for name in split_sites(table, request.site):
        at = np.flatnonzero((names == name) & (codes >= 0))
        events = (words[at] == event).astype(np.float64)
        sites[name] = Rows(np.empty((len(at), 0)), events, time=times[at], group=codes[at])
    return SurvivalRows(sites, groups, event, tuple(notes))


def _check_roles(table: Table, request: SurvivalRequest) -> None:
    roles = {"--time": request.time, "--event": request.event, "--site": request.site}
    roles |= {"--group": request.group} if request.group else {}
    for flag, name in roles.items():
        table.column(name, flag=flag)
        if clash := next((other for other, n in roles.items() if n == name and other != flag), None):
            raise BadInput(
                f"column '{name}' is given as {flag} and as {clash}; choose another column for one of them",
                code="conflicting-roles",
            )


def _choose_event(words: Array, request: SurvivalRequest) -> str:
    classes = sorted(set(words.tolist()))
    if len(classes) == 1:
        only = classes[0]
        return only if only == (request.positive or "1") else request.positive or "1"
    found: Event | None = state_event(classes, None, {"event": request.positive or None, "label": request.event})
    assert found is not None
    return found.word


def _list_groups(table: Table, name: str) -> tuple[str, ...]:
    groups = list_levels(table.columns[name])
    if not 2 <= len(groups) <= MOST_GROUPS:
        raise BadInput(
            f"column '{name}' of {table.source} has {len(groups)} different values; survival curves are drawn for 2 to "
            f"{MOST_GROUPS} groups (choose another column with --group, or merge values)",
            code="too-many-groups" if len(groups) > MOST_GROUPS else "too-few-groups",
        )
    return groups
