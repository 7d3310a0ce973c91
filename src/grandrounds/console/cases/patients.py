"""A hospital's patients as one run's model sees them: their rows, scores and explanations, also with other values.

Rows come from the run's own data of that site, or from a file of the hospital's. Either way nobody else's row can be reached:
a row number is looked up among those of the site, and is not there otherwise.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from grandrounds.analysis.case.case import Case, explain_row
from grandrounds.analysis.case.rows import (
    CaseRow,
    ComparisonRows,
    NewPatientRows,
    RunRows,
    column_text,
    comparison_rows,
    find_new_case,
    outcome_for_task,
    read_patients,
    row_sites,
    row_source,
)
from grandrounds.analysis.case.table import verdict
from grandrounds.console.run_index import NotFound
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.dataset import Dataset, read_new_rows
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.methods.baselines import POOL
from grandrounds.site.stack import PARTS

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run


class SiteRows(Protocol):
    """The rows of one site. `parts`: row number, as users count -> what the run used it for, None for a new patient."""

    @property
    def parts(self) -> Mapping[int, str | None]: ...

    def find(self, case: int) -> CaseRow:
        """One of `parts`."""

    def some(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        """Several of them, and their outcomes where they are known."""

    def names(self, cases: list[int]) -> list[str | None]:
        """What the hospital calls these patients, where its data say so."""

    def beside(self, case: int | None = None) -> ComparisonRows:
        """What one of them is compared with."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a site in the run's own data: test rows first, then validation, then training."""

    rows: RunRows
    site: str

    @cached_property
    def _at(self) -> dict[int, tuple[int, str]]:
        """Row number -> its place in the data, and its part."""
        stack, pooled = self.rows.consortium.stack, self._pooled()
        out: dict[int, tuple[int, str]] = {}
        for part in reversed(PARTS):
            own = getattr(stack.rows[stack.names.index(self.site)], part)
            for row in [*own.tolist(), *(pooled if part == "train" else [])]:
                out[self.rows.number(int(row))] = (int(row), part)
        return out

    @cached_property
    def parts(self) -> dict[int, str | None]:
        return {number: part for number, (_, part) in self._at.items()}

    def find(self, case: int) -> CaseRow:
        return self.rows.find(case)

    def some(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        data, at = self.rows.consortium.data, self._places(cases)
        taken = data.take(at) if isinstance(data, ImageSet) else data.table.take(at)
        return taken, [str(word) for word in data.label[at].tolist()]

    def names(self, cases: list[int]) -> list[str | None]:
        patient = self.rows.consortium.data.patient
        return [None] * len(cases) if patient is None else [str(p) for p in patient[self._places(cases)].tolist()]

    def beside(self, case: int | None = None) -> ComparisonRows:
        return self.rows

    def _places(self, cases: list[int]) -> Array:
        return np.array([self._at[case][0] for case in cases], np.int64)

    def _pooled(self) -> list[int]:
        """This site's training rows in a run that pooled all of them, where the data say whose they are."""
        stack, site = self.rows.consortium.stack, self.rows.consortium.data.site
        if POOL not in stack.names or site is None:
            return []
        held = stack.rows[stack.names.index(POOL)].train
        return [int(row) for row in held[site[held].astype(str) == self.site]]


@dataclass(frozen=True, eq=False)
class FileRows:
    """New patients of a site: the rows of a file, and of a file that names sites those of this one."""

    run: Run
    rows: Table | ImageSet
    site: str

    @classmethod
    def read(cls, run: Run, data: str, site: str, *, query: str | None) -> FileRows:
        """A file's rows, once they are known to fit the run's model."""
        rows = read_patients(run, data, query=query)
        name = row_source(rows)
        if not len(rows):
            raise BadInput(f"{name} has no rows")
        find_new_case(run, rows, 1)  # pictures for a net, a table for the others
        if isinstance(rows, Table):
            assert run.model.schema is not None
            read_new_rows(rows, run.model.schema)
        else:
            run.model.predict(rows.take([0]))
        found = cls(run, rows, site)
        if not found.parts:
            raise BadInput(
                f"{name} has no row of {site}; {nearest(site, sorted({s for s in row_sites(run, rows) or () if s is not None}))}"
            )
        return found

    @cached_property
    def parts(self) -> dict[int, str | None]:
        sites = row_sites(self.run, self.rows)
        return {k + 1: None for k in range(len(self.rows)) if sites is None or sites[k] == self.site}

    def find(self, case: int) -> CaseRow:
        known = self.site in self.run.summary["per_site"]
        return replace(find_new_case(self.run, self.rows, case), site=self.site if known else None)

    def some(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        taken = self.rows.take(np.array(cases, np.int64) - 1)
        if isinstance(taken, ImageSet):
            return taken, [str(word) or None for word in taken.label.tolist()]
        return taken, column_text(taken, self._schema.label)

    def names(self, cases: list[int]) -> list[str | None]:
        if isinstance(self.rows, ImageSet):
            patient = self.rows.patient
            return [None if patient is None else str(patient[case - 1]) for case in cases]
        return column_text(self.rows.take(np.array(cases, np.int64) - 1), self._schema.patient)

    def beside(self, case: int | None = None) -> ComparisonRows:
        found = self._beside
        return replace(found, case=case) if isinstance(found, NewPatientRows) else found

    @cached_property
    def _beside(self) -> RunRows | NewPatientRows:
        return comparison_rows(self.run, self.rows, None)

    @property
    def _schema(self) -> Any:
        return self.run.model.schema


EXPLAINED = 64
"""Explanations of a run that stay in memory."""
MODELS = 32
SCORED = 5000
"""Pictures that are scored for the list, test pictures first; rows of a table are all scored."""

Value = float | str | None


@dataclass(frozen=True)
class PatientLine:
    """One patient of the list. `risk`: of the event of two classes, else of the class that was decided for."""

    case: int
    patient: str | None
    part: str | None
    risk: float
    decision: str
    outcome: str | None
    verdict: str | None


@dataclass(frozen=True)
class ScoredPatients:
    """All patients of the list. `threshold`: of two classes."""

    classes: tuple[str, ...]
    threshold: float | None
    lines: tuple[PatientLine, ...]
    event: str | None = None  # of two classes


class Patients:
    """`run`'s model and the rows of `site`. One explanation at a time: explainers are not made for threads."""

    def __init__(self, run: Run, site: str, rows: SiteRows, protected: tuple[str, ...] = ()) -> None:
        self.run, self.site, self.rows, self.protected = run, site, rows, protected
        self._turn = threading.RLock()
        self._cases: OrderedDict[object, Case] = OrderedDict()
        self._models: OrderedDict[str, TrainedModel] = OrderedDict()

    @property
    def user(self) -> str | None:
        """The site whose model speaks; None for a hospital that took no part in the run."""
        return self.site if self.site in self.run.summary["per_site"] else None

    @property
    def pictures(self) -> bool:
        return self.run.model.schema is None

    def model(self, site: str | None) -> TrainedModel:
        """The model that a site uses, read once."""
        file = self.run.summary["models"].get(site, "")
        with self._turn:
            if file not in self._models:
                self._models[file] = self.run.model_for(site) if file else self.run.model
            self._models.move_to_end(file)
            while len(self._models) > MODELS:
                self._models.popitem(last=False)
            return self._models[file]

    @cached_property
    def model_hash(self) -> str:
        """The SHA-256 of the model file that speaks at this site, as `sha256sum` prints it."""
        file = self.run.folder / (self.run.summary["models"].get(self.user) or "model.safetensors")
        if not file.resolve().is_relative_to(self.run.folder.resolve()):
            raise BadInput("the run's model is outside its folder: it is not read")
        with file.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()

    def find(self, case: int) -> CaseRow:
        """A patient of this site; whether another site has such a row is not said."""
        if case not in self.rows.parts:
            raise NotFound(f"{self.site} has no row {case} here")
        return self.rows.find(case)

    def explain(self, case: int, values: Mapping[str, Value] | None = None, *, by: str | None = None) -> Case:
        """As `rounds explain --case` does. `values`: what some columns would be instead; `by`: whose model (this site's)."""
        user = self.user if by is None else by
        key = (case, tuple(sorted((values or {}).items(), key=lambda v: v[0])), user)
        with self._turn:
            if key not in self._cases:
                self._cases[key] = self._explained(change_values(self.find(case), values or {}), user)
            self._cases.move_to_end(key)
            while len(self._cases) > EXPLAINED:
                self._cases.popitem(last=False)
            return self._cases[key]

    def _explained(self, found: CaseRow, user: str | None) -> Case:
        found = replace(found, notes=(*found.notes, *self._whose(user)))
        beside = partial(self.rows.beside, found.number)
        return explain_row(self.run, self.model(user), found, beside, user=user, protected=self.protected)

    def _whose(self, user: str | None) -> list[str]:
        if user is not None:
            return []
        mean = ": the mean of the sites' models speaks" if self.run.summary["models"] else ""
        return [f"{self.site} took no part in this run{mean}"]

    def _task(self, user: str | None) -> str:
        return self.rows.beside().task(user) if self.run.plan["tasks"] else ""

    @cached_property
    def scored(self) -> ScoredPatients:
        """This site's patients: test rows first, each part from the highest risk down."""
        cases = list(self.rows.parts)[: SCORED if self.pictures else None]
        with self._turn:
            rows, outcomes = self.rows.some(cases)
            model, task = self.model(self.user), self._task(self.user)
            said = model.predict(rows, task=task)
        cut = None if said.event is None else model.threshold
        risks = said.probabilities.max(axis=1) if cut is None else said.risk
        event, made = said.classes[-1] if said.event is None else said.event.word, []
        names, decisions = self.rows.names(cases), [str(d) for d in said.decisions.tolist()]
        told = [outcome_for_task(self.run, task, word) for word in outcomes]
        for case, name, risk, decided, outcome in zip(cases, names, risks.tolist(), decisions, told, strict=True):
            word = verdict(decided, outcome, event, risk, cut)
            made.append(PatientLine(case, name, self.rows.parts[case], risk, decided, outcome, word))
        places = {part: k for k, part in enumerate(dict.fromkeys(self.rows.parts.values()))}
        made.sort(key=lambda line: (places[line.part], -line.risk, line.case))
        return ScoredPatients(said.classes, cut, tuple(made), None if cut is None else event)

    @property
    def reliability(self) -> Mapping[str, Any]:
        """The run's reliability bins; none for a site with a task of its own, since they are of the main one."""
        found: Mapping[str, Any] = {} if self._task(self.user) else self.run.summary.get("reliability") or {}
        return found

    @cached_property
    def read(self) -> Dataset:
        """All rows of this site as the model's columns, for the range of a value where no summary of all sites has it."""
        schema = self.run.model.schema
        rows, _ = self.rows.some(list(self.rows.parts))
        assert schema is not None and isinstance(rows, Table)
        return read_new_rows(rows, schema)

    def column(self, name: str) -> Array:
        """The numbers of a column among this site's patients, without gaps."""
        read = self.read
        if name not in read.numeric_names:
            return np.empty(0)
        values: Array = read.numeric[:, read.numeric_names.index(name)]
        return values[~np.isnan(values)]


def change_values(found: CaseRow, values: Mapping[str, Value]) -> CaseRow:
    """The same patient with other values in some columns."""
    if not values:
        return found
    if isinstance(found.rows, ImageSet):
        raise BadInput("a picture has no columns to change")
    columns: dict[str, list[Value]] = {name: [value] for name, value in values.items()}
    return replace(found, rows=found.rows.with_columns(columns))
