"""Baseline of a watch: the site's validation rows, read through the model that the site uses."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.audit.files import hash_file
from grandrounds.capabilities.watch.at_sites.observer import Observer
from grandrounds.capabilities.watch.at_sites.patients import Patients, outcome_words
from grandrounds.capabilities.watch.at_sites.record import BASELINE
from grandrounds.capabilities.watch.statistics import Reference, Rows, calibrate
from grandrounds.capabilities.watch.statistics.reference import LEAST_PATIENTS
from grandrounds.core.arrays import Array, decode, encode, read_file, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.core.outcome import SURVIVAL
from grandrounds.core.sources import AT_SITES, DATA_FRAME
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.methods.baselines import POOL
from grandrounds.runs.run_rows import RunRows, base_name, read_patients, row_sites, row_source
from grandrounds.site.tasks import tasks_of

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Rows of a site in a run, where the site itself reads them again.

    Attributes:
        validation: Its validation rows.
        training: Its training rows.
        source: The file that they are from.
    """

    validation: Table | ImageSet
    training: Table | ImageSet
    source: str


@dataclass(frozen=True, eq=False)
class Baseline:
    """Reference patients of a site.

    Attributes:
        site: The site.
        observer: Reads patients through the site's model.
        patients: The reference patients.
        source: Description of the rows.
        people: (n,) number of the person of each row; rows of one person count together.
        training: The site's training rows, whose inputs and labels make the reference surer; None where they are elsewhere.
        model: SHA-256 of the file of the site's model.
        rows: SHA-256 of the rows.
    """

    site: str
    observer: Observer
    patients: Patients
    source: str
    people: Array
    model: str
    rows: str
    training: Rows | None = None

    @property
    def count(self) -> int:
        """The number of persons."""
        return len(np.unique(self.people))

    @property
    def threshold(self) -> float | None:
        """The decision threshold; None without one event."""
        return self.observer.model.threshold if self.observer.is_binary else None

    def build_reference(self) -> Reference:
        """Make the checks and set their limit by resampling the reference patients."""
        observer = self.observer
        rows = self.patients.to_rows(observer.columns, observer.features, people=self.people)
        if np.isnan(self.patients.label).all():
            rows = replace(rows, label=None)
        columns = observer.columns
        reference = Reference.build(
            rows,
            training=self.training,
            ranges={c.name: (c.low, c.high) for c in columns if not c.is_category},
            levels={c.name: len(c.levels) for c in columns if c.is_category},
            threshold=self.threshold,
        )
        return calibrate(reference, reference.evidence(rows), seed=observer.seed, site=self.site)

    def reference(self, folder: Path) -> tuple[Reference, str]:
        """Return the checks from the folder of a watch; make and write them where model or rows are others.

        Args:
            folder: The folder of the watch.

        Returns:
            The reference, and the SHA-256 of baseline.safetensors.
        """
        stored = self._read(folder)
        if stored is not None:
            return stored
        reference = self.build_reference()
        arrays, meta = reference.to_arrays()
        data = encode(arrays, {**self._facts, "source": self.source, "reference": meta})
        write_atomic(folder / BASELINE, data)
        return reference, hashlib.sha256(data).hexdigest()

    def is_stored(self, folder: Path) -> bool:
        """Tell whether a folder has the checks of this model and these rows."""
        return self._read(folder) is not None

    @property
    def _facts(self) -> dict[str, Any]:
        return {"schema": 1, "site": self.site, "model": self.model, "rows": self.rows}

    def _read(self, folder: Path) -> tuple[Reference, str] | None:
        path = folder / BASELINE
        if not path.exists():
            return None
        data = read_file(path)
        arrays, meta = decode(data, where=str(path))
        if not (isinstance(meta, dict) and all(meta.get(name) == value for name, value in self._facts.items())):
            return None
        return Reference.from_arrays(arrays, meta["reference"]), hashlib.sha256(data).hexdigest()


def choose_site(run: Run, site: str | None) -> str:
    """Find the site that is meant.

    Args:
        run: A finished run.
        site: Its name, or the number that its name ends with; None: the only site.

    Raises:
        BadInput: There is no such site, or there are several and none is named.
    """
    names = [name for name in run.summary["per_site"] if name != POOL] or list(run.summary["per_site"])
    if site is not None:
        return site_named(site, names, where=run.folder)
    if len(names) != 1:
        raise BadInput(
            f"{run.folder} has {len(names)} sites ({', '.join(names[:8])}{' ...' if len(names) > 8 else ''}): name the one to "
            "watch with --site",
            code="site-required",
        )
    return str(names[0])


def read_baseline(
    run: Run,
    site: str,
    *,
    table: Any = None,
    query: str | None = None,
    reading: Mapping[str, object] | None = None,
    data: Any = None,
    own: SiteRows | None = None,
) -> Baseline:
    """Read the baseline of a site.

    Args:
        run: A finished run.
        site: The site.
        table: Labelled rows of the site, where the run's own are elsewhere; None: the run's validation rows.
        query: The SQL query of that table.
        reading: Settings of [data] that differ for that table.
        data: The run's rows, where they came from memory.
        own: The site's rows of a run at hospitals, as the site reads them.

    Returns:
        The baseline.

    Raises:
        BadInput: The run is not finished or withdrawn, or the site has too few validation rows.
    """
    run.refuse_withdrawn()
    model = run.model_for(site)
    trained: Table | ImageSet | None = None
    if table is None and own is not None:
        rows, trained = own.validation, own.training
        source = f"{len(rows)} validation rows of {own.source}"
    elif table is None:
        rows, trained, source = _validation_rows(run, site, data)
    else:
        rows = _own_rows(run, site, read_patients(run, table, query=query, reading=reading))
        source = f"{len(rows)} rows of {base_name(row_source(rows))}"
    training = None
    task = tasks_of(run.plan["tasks"], run.site_names)[site] if run.plan.get("tasks") else ""
    person = None if model.schema is None else model.schema.patient
    people = _people(rows, person)
    if len(np.unique(people)) < LEAST_PATIENTS:
        raise BadInput(
            f"the baseline of {site} has {len(np.unique(people))} patients ({source}), and a watch needs at least "
            f"{LEAST_PATIENTS}, because fewer do not show what is usual: give more labelled rows with --baseline-table, or run "
            "again with a larger split.val",
            code="too-few-rows",
        )
    observer = Observer.from_rows(model, rows, task=task, seed=int(run.plan["seed"]))
    label = None if model.schema is None else model.schema.label
    words = outcome_words(rows, "label" if label is None else label) if model.task != SURVIVAL else None
    patients = observer.observe(rows, words)
    if isinstance(trained, Table) and len(trained):
        past = observer.observe_inputs(trained, outcome_words(trained, label) if words is not None else None)
        training = replace(past.to_rows(observer.columns, ()), score=None, patient=_people(trained, person))
    digest = hashlib.sha256(f"{rows.sha256()} {'' if trained is None else trained.sha256()}".encode()).hexdigest()
    return Baseline(site, observer, patients, source, people, model_digest(run, site), digest, training)


def model_digest(run: Run, site: str) -> str:
    """Return the SHA-256 of the file of the model that a site uses."""
    own = run.personal_file(site)
    if own is not None:
        return own.sha256
    return hash_file(run.model_file(run.summary["models"].get(site, "model.safetensors")))


def _validation_rows(run: Run, site: str, data: Any) -> tuple[Table | ImageSet, Table | ImageSet, str]:
    """Return the validation rows of a site, its training rows, and a description."""
    where = run.plan["data"]["table"]
    if where in (AT_SITES, DATA_FRAME) and data is None:
        place = "at its sites" if where == AT_SITES else "in a data frame"
        at_hospital = "at the hospital add --folder FOLDER --data FILE, or " if where == AT_SITES else ""
        raise BadInput(
            f"the rows of {run.folder} are {place}, not on this machine: {at_hospital}give labelled rows of {site} that the "
            f"model was not trained on, with --baseline-table: rounds watch {shlex.quote(str(run.folder))} "
            f"--site {shlex.quote(site)} --baseline-table labelled.csv --table new.csv",
            code="no-validation-rows",
        )
    found = RunRows.read(run, data)
    stack = found.consortium.stack
    if site in stack.names:
        own = stack.rows[stack.names.index(site)]
        places, trained = own.val, own.train
    else:  # a pooled run trains in one place
        places, trained = (
            np.array([k for k in np.concatenate(parts).tolist() if found.owner(k) == site], np.int64)
            for parts in zip(*((rows.val, rows.train) for rows in stack.rows), strict=True)
        )
    if not len(places):
        share = run.plan["split"]["val"]
        raise BadInput(
            f"{site} has no validation rows in {run.folder} (split.val = {share}, split.scheme = "
            f"'{run.plan['split']['scheme']}'): run again with split.val = 0.15 and the site among the training sites, or give "
            "labelled rows with --baseline-table",
            code="no-validation-rows",
        )
    return _take(found, places), _take(found, trained), f"{len(places)} validation rows of the run"


def _take(found: RunRows, places: Array) -> Table | ImageSet:
    rows: Any = found.consortium.data.take(places)
    return rows if isinstance(rows, ImageSet) else rows.table


def _own_rows(run: Run, site: str, rows: Table | ImageSet) -> Table | ImageSet:
    """Leave out rows of other hospitals, where the rows name theirs."""
    sites = row_sites(run, rows)
    if sites is None:
        return rows
    here = np.flatnonzero([name in (None, site) for name in sites])
    if not len(here):
        raise BadInput(
            f"{base_name(row_source(rows))} has no row of {site}: give rows of this site with --baseline-table",
            code="no-rows-of-site",
        )
    return rows.take(here)


def _people(rows: Table | ImageSet, column: str | None) -> Array:
    """Number the person (n,) of each row; every row is one where no column names them."""
    if isinstance(rows, ImageSet):
        names = rows.patient
    else:
        names = None if column is None or column not in rows.columns else rows.columns[column]
    if names is None:
        return np.arange(len(rows))
    return np.unique(np.array([str(name) for name in names.tolist()]), return_inverse=True)[1]
