"""The patients of one hospital: only a console that was started with --site, where that site's data are, has any."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from grandrounds.analysis.case.rows import RunRows
from grandrounds.console.cases.patients import FileRows, OwnRows, Patients
from grandrounds.console.run_index import FINISHED, NotFound, RunEntry, RunIndex, Unreadable, check_files
from grandrounds.core.errors import BadInput, GrandRoundsError, nearest
from grandrounds.data.loading import AT_SITES
from grandrounds.methods.baselines import POOL
from grandrounds.runs.run import Run

KEPT = 3
"""Runs whose rows stay in memory."""


class SiteCases:
    """The patients of `site`: rows of that site in a run's own data, or those of a file of the hospital's (`data`).

    `protected`: columns to flag where they move a risk, in place of those that are known by name.
    """

    def __init__(
        self,
        run_index: RunIndex,
        site: str,
        *,
        data: str | None = None,
        query: str | None = None,
        protected: tuple[str, ...] = (),
    ) -> None:
        self.site, self.data, self._query, self._protected = site, data, query, protected
        self._run_index = run_index
        self._patients: OrderedDict[str, tuple[object, Patients]] = OrderedDict()
        self._sites: dict[str, tuple[object, tuple[str, ...]]] = {}
        self._turn, self._opening = threading.Lock(), threading.Lock()

    def check(self) -> str:
        """Refuse at the start what no page could show; else a sentence about what is shown."""
        runs = self.runs()
        if not runs:
            known = dict.fromkeys(s for f in self._finished() for s in self._sites_of(f))
            hint = nearest(self.site, known) if known else f"there is no finished run in {self._run_index.root}"
            raise BadInput(f"--site {self.site}: no finished run has such a site; {hint}")
        if self.data is None:
            if all(self._rows_away(found) for found in runs):
                raise BadInput(f"--site {self.site}: {self._needs_data()}")
            self._check_protected(runs)
            return f"patients of {self.site} in {len(runs)} run{'s' if len(runs) > 1 else ''}"
        wrong = ""
        for found in runs:
            try:
                shown = len(self.open(found.name).rows.parts)
            except GrandRoundsError as e:
                wrong = wrong or str(e)
                continue
            self._check_protected([found])
            return f"{shown} patients of {self.site} from {Path(self.data).name if '://' not in self.data else 'a database'}"
        raise BadInput(f"--data fits the model of no finished run: {wrong}")

    def runs(self) -> list[RunEntry]:
        """The finished runs in which this site has patients; with a file of its own every one may fit."""
        if self.data is not None:
            return list(self._finished())
        return [f for f in self._finished() if self.site in self._sites_of(f)]

    def open(self, name: str) -> Patients:
        """This site's patients as a run's model sees them, read once while nothing changes."""
        stamp = (self._run_index.get(name).stamp(), self._stamp())
        known = self._known(name, stamp)
        if known is not None:
            return known
        with self._opening:  # the same rows are not read twice at once
            known = self._known(name, stamp)
            if known is not None:
                return known
            made = self._read(name, self._run_index.run(name))
            with self._turn:
                self._patients[name] = (stamp, made)
                self._patients.move_to_end(name)
                while len(self._patients) > KEPT:
                    self._patients.popitem(last=False)
            return made

    def _known(self, name: str, stamp: object) -> Patients | None:
        with self._turn:
            held = self._patients.get(name)
            if held is None or held[0] != stamp:
                return None
            self._patients.move_to_end(name)
            return held[1]

    def _read(self, name: str, run: Run) -> Patients:
        if not run.finished:
            raise NotFound(f"run '{name}' is not finished, so it has no model to explain a patient with")
        try:
            if self.data is None and self.site not in _hospitals(run):
                raise NotFound(f"run '{name}' has no site {self.site}")
            if self.data is not None:
                return Patients(
                    run, self.site, FileRows.read(run, self.data, self.site, query=self._query), self._named(run)
                )
            if _at_sites(run):
                raise BadInput(f"run '{name}': {self._needs_data()}")
            return Patients(run, self.site, OwnRows(RunRows.read(run), self.site), self._named(run))
        except GrandRoundsError as e:
            raise type(e)(self._without_folders(str(e), run)) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
            raise Unreadable(f"the patients of run '{name}' cannot be read ({type(e).__name__})") from None

    def _without_folders(self, text: str, run: Run) -> str:
        """A sentence that names files, and not where they are on this machine."""
        for place in (self.data, run.plan["data"].get("table"), str(run.folder)):
            if place and "://" not in str(place):
                text = text.replace(f"{Path(str(place)).parent}/", "").replace(f"{Path(str(place)).resolve().parent}/", "")
        return text

    def _named(self, run: Run) -> tuple[str, ...]:
        """The columns of --protected that this run's model sees."""
        schema = run.model.schema
        seen = () if schema is None else tuple(c.name for c in schema.features)
        return tuple(column for column in self._protected if column in seen)

    def _check_protected(self, runs: list[RunEntry]) -> None:
        """Every column of --protected must be one that some model sees."""
        left, seen = list(self._protected), dict[str, None]()
        for found in runs if left else ():
            schema = self._run_index.run(found.name).model.schema
            seen |= dict.fromkeys(c.name for c in (schema.features if schema is not None else ()))
            left = [column for column in left if column not in seen]
        if left:
            raise BadInput(f"--protected {left[0]}: no model here sees such a column; {nearest(left[0], seen)}")

    def _finished(self) -> Iterator[RunEntry]:
        return (f for f in self._run_index.runs() if f.state == FINISHED)

    def _sites_of(self, found: RunEntry) -> tuple[str, ...]:
        """The hospitals of a finished run; none of one that cannot be read, which the list of runs tells of."""
        stamp = found.stamp()
        with self._turn:
            known = self._sites.get(found.name)
        if known is None or known[0] != stamp:
            try:
                check_files(found)
                known = (stamp, _hospitals(Run(found.folder, trust_code=None)))
            except (GrandRoundsError, OSError, ValueError, KeyError, TypeError, AttributeError):
                known = (stamp, ())
            with self._turn:
                self._sites[found.name] = known
        return known[1]

    def _rows_away(self, found: RunEntry) -> bool:
        """Whether a run's rows are at its sites; what cannot be read is told when it is opened."""
        try:
            return _at_sites(self._run_index.run(found.name))
        except GrandRoundsError:
            return False

    def _needs_data(self) -> str:
        return f"a run of real hospitals holds no rows; start the console with --data FILE, the patients of {self.site}"

    def _stamp(self) -> object:
        """Changes with the hospital's file."""
        if self.data is None or "://" in self.data:
            return None
        try:
            facts = Path(self.data).stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_size


def _hospitals(run: Run) -> tuple[str, ...]:
    return tuple(str(site) for site in run.summary["per_site"] if site != POOL)


def _at_sites(run: Run) -> bool:
    return bool(run.plan["data"]["table"] == AT_SITES)
