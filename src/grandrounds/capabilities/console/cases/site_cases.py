"""The patients of one hospital, at a console that was started with --site, where that site's data are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from grandrounds.capabilities.console.cases.patients import Patients
from grandrounds.capabilities.console.cases.site_rows import FileRows, OwnRows
from grandrounds.capabilities.console.run_index import FINISHED, NotFound, RunEntry, RunIndex, Unreadable, check_files
from grandrounds.core.errors import BadInput, GrandRoundsError, nearest
from grandrounds.core.sources import AT_SITES
from grandrounds.methods.baselines import POOL
from grandrounds.runs.personal_models import RECALIBRATED
from grandrounds.runs.run import Run
from grandrounds.runs.run_rows import RunRows
from grandrounds.runs.withdrawal import MARK

CACHED_RUNS = 3
"""Runs whose rows stay in memory."""


class SiteCases:
    """The patients of `site`: rows of that site in a run's own data, or those of a file of the hospital's (`data`).

    `protected`: columns to flag if they affect a risk, instead of those recognised by name. `personal`: the site's folder or its
    personal.safetensors, for runs at hospitals whose sites deploy personal models.
    """

    def __init__(
        self,
        run_index: RunIndex,
        site: str,
        *,
        data: str | None = None,
        query: str | None = None,
        protected: tuple[str, ...] = (),
        personal: Path | None = None,
    ) -> None:
        self.site, self.data, self._query, self._protected = site, data, query, protected
        self._personal = personal
        self._run_index = run_index
        self._patients: OrderedDict[str, tuple[object, Patients]] = OrderedDict()
        self._sites: dict[str, tuple[object, tuple[str, ...]]] = {}
        self._turn, self._opening = threading.Lock(), threading.Lock()

    def check(self) -> str:
        """Check the options at start; return a sentence about the patients.

        Raises:
            BadInput: No finished run has the site, its data are missing or do not fit, or a column is unknown.
        """
        runs = self.runs()
        if not runs:
            site_names = dict.fromkeys(s for f in self._finished() for s in self._list_sites(f))
            hint = (
                nearest(self.site, site_names) if site_names else f"there is no finished run in {self._run_index.root}"
            )
            raise BadInput(f"--site {self.site}: no finished run has such a site; {hint}", code="unknown-site")
        if self.data is None:
            if all(self._has_remote_rows(entry) for entry in runs):
                raise BadInput(f"--site {self.site}: {self._data_hint()}", code="missing-site-data")
            self._check_protected(runs)
            return f"patients of {self.site} in {len(runs)} run{'s' if len(runs) > 1 else ''}"
        wrong = ""
        for entry in runs:
            try:
                shown = len(self.open(entry.name).rows.parts)
            except GrandRoundsError as e:
                wrong = wrong or str(e)
                continue
            self._check_protected([entry])
            return f"{shown} patients of {self.site} from {Path(self.data).name if '://' not in self.data else 'a database'}"
        raise BadInput(f"--data fits the model of no finished run: {wrong}", code="data-do-not-fit")

    def runs(self) -> list[RunEntry]:
        """List the finished runs in which this site has patients; with a file of its own every one may fit."""
        return [entry for entry in self._finished() if self._has_patients(entry)]

    def has_run(self, name: str) -> bool:
        """Check that a run is one of `runs`.

        Raises:
            NotFound: There is no such run.
        """
        entry = self._run_index.get(name)
        return _is_valid(entry) and self._has_patients(entry)

    def _has_patients(self, entry: RunEntry) -> bool:
        return self.data is not None or self.site in self._list_sites(entry)

    def open(self, name: str) -> Patients:
        """Open this site's patients in a run, read once while nothing changes.

        Raises:
            NotFound: There is no such run, or it has no model or no such site.
            Unreadable: Its files are damaged.
        """
        entry = self._run_index.get(name)
        stamp = (entry.stamp(), self._stamp(), self._list_recalibrations(entry))
        cached = self._get_cached(name, stamp)
        if cached is not None:
            return cached
        with self._opening:  # the same rows are not read twice in parallel
            cached = self._get_cached(name, stamp)
            if cached is not None:
                return cached
            patients = self._read(name, self._run_index.run(name))
            with self._turn:
                self._patients[name] = (stamp, patients)
                self._patients.move_to_end(name)
                while len(self._patients) > CACHED_RUNS:
                    self._patients.popitem(last=False)
            return patients

    def _list_recalibrations(self, entry: RunEntry) -> tuple[str, ...]:
        """List the files of this site's recalibrations: a new one, or one that is undone, changes the model."""
        places = (entry.folder / "at_sites" / self.site, *(() if self._personal is None else (self._personal,)))
        files = (path for place in places if place.is_dir() for path in place.rglob(f"{RECALIBRATED}-*.safetensors"))
        return tuple(sorted(map(str, files)))

    def _get_cached(self, name: str, stamp: object) -> Patients | None:
        with self._turn:
            cached = self._patients.get(name)
            if cached is None or cached[0] != stamp:
                return None
            self._patients.move_to_end(name)
            return cached[1]

    def _read(self, name: str, run: Run) -> Patients:
        if not run.finished:
            raise NotFound(
                f"run '{name}' is not finished, so it has no model to explain a patient with", code="run-not-finished"
            )
        try:
            self._use_personal(run)
            if self.data is None and self.site not in _hospitals(run):
                raise NotFound(f"run '{name}' has no site {self.site}", code="unknown-site")
            if self.data is not None:
                return Patients(
                    run,
                    self.site,
                    FileRows.read(run, self.data, self.site, query=self._query),
                    self._protected_features(run),
                )
            if _is_remote(run):
                raise BadInput(f"run '{name}': {self._data_hint()}", code="missing-site-data")
            run.refuse_withdrawn()
            return Patients(run, self.site, OwnRows(RunRows.read(run), self.site), self._protected_features(run))
        except GrandRoundsError as e:
            shown = type(e)(self._without_folders(str(e), run))
            shown.code = e.code
            raise shown from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
            raise Unreadable(
                f"the patients of run '{name}' cannot be read ({type(e).__name__})", code="damaged-run"
            ) from None

    def _use_personal(self, run: Run) -> None:
        """Let a run use this site's personal or recalibrated model; without a file of this run the common model is used."""
        if self._personal is None or "statistic" in run.summary:
            return
        try:
            owner = run.use_personal(self._personal)
        except BadInput as e:
            if e.code == "no-personal-model":
                return
            raise
        if owner != self.site:
            raise BadInput(f"--personal is the model of {owner}, not of {self.site}", code="wrong-site")

    def _without_folders(self, text: str, run: Run) -> str:
        """Remove paths of this machine from a sentence."""
        for place in (self.data, run.plan["data"].get("table"), str(run.folder), self._personal and str(self._personal)):
            if place and "://" not in str(place):
                text = text.replace(f"{Path(str(place)).parent}/", "").replace(
                    f"{Path(str(place)).resolve().parent}/", ""
                )
        return text

    def _protected_features(self, run: Run) -> tuple[str, ...]:
        """List the columns of --protected that this run's model sees."""
        schema = run.model.schema
        features = () if schema is None else tuple(c.name for c in schema.features)
        return tuple(column for column in self._protected if column in features)

    def _check_protected(self, runs: list[RunEntry]) -> None:
        """Refuse a column of --protected that no model sees."""
        unknown, features = list(self._protected), dict[str, None]()
        for entry in runs if unknown else ():
            schema = self._run_index.run(entry.name).model.schema
            features |= dict.fromkeys(c.name for c in (schema.features if schema is not None else ()))
            unknown = [column for column in unknown if column not in features]
        if unknown:
            raise BadInput(
                f"--protected {unknown[0]}: no model here sees such a column; {nearest(unknown[0], features)}",
                code="unknown-column",
            )

    def _finished(self) -> Iterator[RunEntry]:
        return (entry for entry in self._run_index.runs() if _is_valid(entry))

    def _list_sites(self, entry: RunEntry) -> tuple[str, ...]:
        """List the hospitals of a finished run; none of one that cannot be read, which the list of runs shows."""
        stamp = entry.stamp()
        with self._turn:
            cached = self._sites.get(entry.name)
        if cached is None or cached[0] != stamp:
            try:
                check_files(entry)
                cached = (stamp, _hospitals(Run(entry.folder, trust_code=None)))
            except (GrandRoundsError, OSError, ValueError, KeyError, TypeError, AttributeError):
                cached = (stamp, ())
            with self._turn:
                self._sites[entry.name] = cached
        return cached[1]

    def _has_remote_rows(self, entry: RunEntry) -> bool:
        """Check that a run's rows are at its sites; a run that cannot be read fails when it is opened."""
        try:
            return _is_remote(self._run_index.run(entry.name))
        except GrandRoundsError:
            return False

    def _data_hint(self) -> str:
        return f"a run of real hospitals holds no rows; start the console with --data FILE, the patients of {self.site}"

    def _stamp(self) -> object:
        """Stamp the hospital's file: the value changes with it."""
        if self.data is None or "://" in self.data:
            return None
        try:
            facts = Path(self.data).stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_size


def _is_valid(entry: RunEntry) -> bool:
    """Check that a run is finished, and that no site withdrew from it."""
    return entry.state == FINISHED and not (entry.folder / MARK).exists()


def _hospitals(run: Run) -> tuple[str, ...]:
    return tuple(str(site) for site in run.summary["per_site"] if site != POOL)


def _is_remote(run: Run) -> bool:
    return bool(run.plan["data"]["table"] == AT_SITES)
