"""Whom a patient is put beside: the run's own rows where they are here, else the other rows of the patient's own file.

A run of real hospitals holds no rows, and neither does a folder whose data stayed behind. A hospital has rows of its own, so
its new patients are compared with those; the record says so, because another background is another question.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from grandrounds.analysis.case.rows import BACKGROUND, RunRows, file_name, sites_of
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet
from grandrounds.data.incoming import read_through
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import AT_SITES, DATA_FRAME, read_data
from grandrounds.data.table import Table
from grandrounds.site.tasks import tasks_of

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


class Beside(Protocol):
    """Rows to compare a patient with. `note`: what a reader must know of them; "" for nothing."""

    @property
    def note(self) -> str: ...

    def task(self, site: str | None) -> str:
        """A site's task; "" is the main one."""

    def background(self, *, site: str | None, budget: bool) -> tuple[Holdings, str]:
        """At most BACKGROUND rows, and what they are."""


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Rows of the file that new patients come from. `case`: the patient's own, left out; `why`: the run's are not here."""

    run: Run
    rows: Table | ImageSet
    case: int | None
    why: str

    @property
    def note(self) -> str:
        return f"{self.why}: compared with rows of {file_name(self.rows)} alone, other hospitals' patients are not among them"

    def task(self, site: str | None) -> str:
        """By the record: at hospitals all sites have opened a run before it begins."""
        return "" if site is None else tasks_of(self.run.plan["tasks"], self.run.site_names)[site]

    def background(self, *, site: str | None = None, budget: bool = False) -> tuple[Holdings, str]:
        """Rows of the patient's own hospital, where the file says whose they are; by the run's seed, so that all its
        patients are put beside nearly the same ones. A budget keeps no hospital from its own rows."""
        assert isinstance(self.rows, Table) and self.run.model.schema is not None
        whose = sites_of(self.run, self.rows)
        own = None if whose is None or self.case is None else whose[self.case - 1]
        order = generator(self.run.plan["seed"], purpose="background").permutation(len(self.rows)).tolist()
        others = [k for k in order if k + 1 != self.case and (whose is None or whose[k] == own)]
        of = f"{'' if own is None else f'{own} in '}{file_name(self.rows)}"
        if not others:
            raise BadInput(
                f"this model compares a patient with others; {self.why}, and there is no other row of {of}: give a file "
                "with more of the hospital's patients"
            )
        drawn: Array = np.sort(others[:BACKGROUND])
        count = f"{len(drawn)} of the {len(others)}" if len(drawn) < len(others) else f"{len(drawn)}"
        return read_through(self.rows.take(drawn), self.run.model.schema), f"{count} other rows of {of}"


def beside_new(run: Run, given: Table | ImageSet, case: int | None, *, data: Any = None) -> RunRows | GivenRows:
    """What a new patient, of row `case` of `given`, is compared with; `data` gives the run's own rows again, from memory."""
    if data is not None:
        return RunRows.read(run, data)
    held = Settings(run.plan).data
    why = _away(held)
    if not why:
        read = read_data(held)
        if held.sha256 in (None, read.sha256()):
            return RunRows.read(run, read)
        why = "the run's own data have changed since"
    return GivenRows(run, given, case, why)


def _away(held: Any) -> str:
    """Why the rows that [data] names are not on this machine; "" where they should be."""
    if held.name is not None or "://" in held.table:
        return ""
    if held.table == AT_SITES:
        return "the run's rows are at its sites"
    if held.table == DATA_FRAME:
        return "the run's rows were a data frame in memory"
    return "" if Path(held.table).expanduser().exists() else f"the run's own {PurePath(held.table).name} is not here"
