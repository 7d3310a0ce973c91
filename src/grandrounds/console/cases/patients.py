"""The patients of a hospital in one run: rows, scores and explanations, also for changed values.

Rows come from the run's own data of that site, or from a file of the hospital's. Either way nobody else's row can be reached:
a row number is looked up among those of the site, and is not there otherwise.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.dataset import Dataset, read_new_rows
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import task_of
from grandrounds.data.table import Table
from grandrounds.methods.baselines import POOL
from grandrounds.methods.personal.parts import COMMON
from grandrounds.site.stack import PARTS

if TYPE_CHECKING:
    from grandrounds.data.schema import Schema
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run


class SiteRows(Protocol):
    """The rows of one site. `parts`: the data split of each row, by row number from 1; None for a new patient."""

    @property
    def parts(self) -> Mapping[int, str | None]: ...

    def find(self, case: int) -> CaseRow:
        """Find one of `parts`."""

    def take_cases(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        """Take several of them, with their outcomes where they are known."""

    def names(self, cases: list[int]) -> list[str | None]:
        """List the hospital's names of these patients, where its data have them."""

    def comparison(self, case: int | None = None) -> ComparisonRows:
        """Return the rows that one of them is compared with."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a site in the run's own data: test rows first, then validation, then training."""

    rows: RunRows
    site: str

    @cached_property
    def _index(self) -> dict[int, tuple[int, str]]:
        """The place in the data and the part of each row, by row number."""
        stack, pooled = self.rows.consortium.stack, self._pooled()
        out: dict[int, tuple[int, str]] = {}
        for part in reversed(PARTS):
            site_rows = getattr(stack.rows[stack.names.index(self.site)], part)
            for row in [*site_rows.tolist(), *(pooled if part == "train" else [])]:
                out[self.rows.number(int(row))] = (int(row), part)
        return out

    @cached_property
    def parts(self) -> dict[int, str | None]:
        return {number: part for number, (_, part) in self._index.items()}

    def find(self, case: int) -> CaseRow:
        return self.rows.find(case)

    def take_cases(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        data, places = self.rows.consortium.data, self._places(cases)
        taken = data.take(places) if isinstance(data, ImageSet) else data.table.take(places)
        return taken, [str(word) for word in data.label[places].tolist()]

    def names(self, cases: list[int]) -> list[str | None]:
        patient = self.rows.consortium.data.patient
        return [None] * len(cases) if patient is None else [str(p) for p in patient[self._places(cases)].tolist()]

    def comparison(self, case: int | None = None) -> ComparisonRows:
        return self.rows

    def _places(self, cases: list[int]) -> Array:
        return np.array([self._index[case][0] for case in cases], np.int64)

    def _pooled(self) -> list[int]:
        """List this site's training rows in a run that pooled all of them, where the data name their sites."""
        stack, site = self.rows.consortium.stack, self.rows.consortium.data.site
        if POOL not in stack.names or site is None:
            return []
        pooled = stack.rows[stack.names.index(POOL)].train
        return [int(row) for row in pooled[site[pooled].astype(str) == self.site]]


@dataclass(frozen=True, eq=False)
class FileRows:
    """New patients of a site: the rows of a file, and of a file that names sites those of this one."""

    run: Run
    rows: Table | ImageSet
    site: str

    @classmethod
    def read(cls, run: Run, data: str, site: str, *, query: str | None) -> FileRows:
        """Read a file's rows, and check that they fit the run's model.

        Args:
            run: The run.
            data: The file or SQL URL.
            site: The site whose rows are kept, where the file names sites.
            query: The SELECT or table name, for a SQL URL.

        Returns:
            The rows.

        Raises:
            BadInput: They do not fit, or none is of the site.
        """
        rows = read_patients(run, data, query=query)
        name = row_source(rows)
        if not len(rows):
            raise BadInput(f"{name} has no rows", code="empty-table")
        find_new_case(run, rows, 1)  # images for a network, a table for other models
        if isinstance(rows, Table):
            assert run.model.schema is not None
            read_new_rows(rows, run.model.schema)
        else:
            run.model.predict(rows.take([0]))
        site_rows = cls(run, rows, site)
        if not site_rows.parts:
            raise BadInput(
                f"{name} has no row of {site}; {nearest(site, sorted({s for s in row_sites(run, rows) or () if s is not None}))}",
                code="unknown-site",
            )
        return site_rows

    @cached_property
    def parts(self) -> dict[int, str | None]:
        sites = row_sites(self.run, self.rows)
        return {k + 1: None for k in range(len(self.rows)) if sites is None or sites[k] == self.site}

    def find(self, case: int) -> CaseRow:
        took_part = self.site in self.run.summary.per_site
        return replace(find_new_case(self.run, self.rows, case), site=self.site if took_part else None)

    def take_cases(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        taken = self.rows.take(np.array(cases, np.int64) - 1)
        if isinstance(taken, ImageSet):
            return taken, [str(word) or None for word in taken.label.tolist()]
        return taken, column_text(taken, self._schema.label)

    def names(self, cases: list[int]) -> list[str | None]:
        if isinstance(self.rows, ImageSet):
            patient = self.rows.patient
            return [None if patient is None else str(patient[case - 1]) for case in cases]
        return column_text(self.rows.take(np.array(cases, np.int64) - 1), self._schema.patient)

    def comparison(self, case: int | None = None) -> ComparisonRows:
        compared = self._comparison
        return replace(compared, case=case) if isinstance(compared, NewPatientRows) else compared

    @cached_property
    def _comparison(self) -> RunRows | NewPatientRows:
        return comparison_rows(self.run, self.rows, None)

    @property
    def _schema(self) -> Schema:
        schema = self.run.model.schema
        assert schema is not None  # a table has one
        return schema


CACHED_CASES = 64
"""Explanations per run that stay in memory."""
CACHED_MODELS = 32
MAX_SCORED = 5000
"""Images that are scored for the list, test images first; rows of a table are all scored."""

Value = float | str | None
Reliability = Mapping[str, Any]
"""Reliability bins of a run: count, edges, outcome and confidence."""


@dataclass(frozen=True)
class PatientLine:
    """One patient of the list. `risk`: of the event of two classes, else of the class that was decided for; of other tasks the
    prediction."""

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
    task: str = CLASSIFICATION


class Patients:
    """The rows of a site and a run's model. Explains one patient at a time: explainers are not thread-safe."""

    def __init__(self, run: Run, site: str, rows: SiteRows, protected: tuple[str, ...] = ()) -> None:
        self.run, self.site, self.rows, self.protected = run, site, rows, protected
        self._turn = threading.RLock()
        self._cases: OrderedDict[object, Case] = OrderedDict()
        self._models: OrderedDict[str, TrainedModel] = OrderedDict()

    @property
    def user(self) -> str | None:
        """The site whose model is used; None for a hospital that took no part in the run."""
        return self.site if self.site in self.run.summary.per_site else None

    @property
    def has_images(self) -> bool:
        """True for a run of images, whose patients have no columns."""
        return self.run.model.schema is None

    @property
    def has_outcome(self) -> bool:
        """True for a run that predicts a number, a count or the time to an event."""
        return task_of(self.run.model.encoding) != CLASSIFICATION

    def model(self, site: str | None) -> TrainedModel:
        """Return the model that a site uses, read once."""
        own = self.run.personal_file(site)
        file = self.run.summary.models.get(site or "", "") if own is None else str(own.path)
        with self._turn:
            if file not in self._models:
                self._models[file] = self.run.model_for(site) if file else self.run.model
            self._models.move_to_end(file)
            while len(self._models) > CACHED_MODELS:
                self._models.popitem(last=False)
            return self._models[file]

    @cached_property
    def model_hash(self) -> str:
        """The SHA-256 of the model file that this site uses, as `sha256sum` prints it."""
        own = self.run.personal_file(self.user)
        if own is not None:
            return own.sha256
        file = self.run.folder / (self.run.summary.models.get(self.user or "") or "model.safetensors")
        if not file.resolve().is_relative_to(self.run.folder.resolve()):
            raise BadInput("the run's model is outside its folder and is not read", code="file-outside-folder")
        with file.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()

    def find(self, case: int) -> CaseRow:
        """Find a patient of this site; the error does not reveal the rows of other sites."""
        if case not in self.rows.parts:
            raise NotFound(f"{self.site} has no row {case} here", code="unknown-row")
        return self.rows.find(case)

    def explain(self, case: int, values: Mapping[str, Value] | None = None, *, model_site: str | None = None) -> Case:
        """Explain a patient as `rounds explain --case` does.

        Args:
            case: The row number.
            values: Values of some columns to use instead.
            model_site: The site whose model explains; None for this site's.

        Returns:
            The explanation.

        Raises:
            NotFound: This site has no such row.
        """
        user = self.user if model_site is None else model_site
        key = (case, tuple(sorted((values or {}).items(), key=lambda v: v[0])), user)
        with self._turn:
            if key not in self._cases:
                self._cases[key] = self._explain(change_values(self.find(case), values or {}), user)
            self._cases.move_to_end(key)
            while len(self._cases) > CACHED_CASES:
                self._cases.popitem(last=False)
            return self._cases[key]

    def _explain(self, patient: CaseRow, user: str | None) -> Case:
        patient = replace(patient, notes=(*patient.notes, *self._absence_notes(user)))
        compare_with = partial(self.rows.comparison, patient.number)
        return explain_row(self.run, self.model(user), patient, compare_with, user=user, protected=self.protected)

    def _absence_notes(self, user: str | None) -> list[str]:
        if user is not None:
            return []
        mean = ": the mean of the sites' models is used" if self.run.summary.models else ""
        return [f"{self.site} took no part in this run{mean}"]

    def _task(self, user: str | None) -> str:
        return self.rows.comparison().task(user) if self.run.plan["tasks"] else ""

    @cached_property
    def scores(self) -> ScoredPatients:
        """The risks of this site's patients: test rows first, each part from the highest risk down."""
        cases = list(self.rows.parts)[: MAX_SCORED if self.has_images else None]
        with self._turn:
            rows, outcomes = self.rows.take_cases(cases)
            model, task = self.model(self.user), self._task(self.user)
            prediction = model.predict(rows, task=task)
        if prediction.values is not None:
            return self._list_outcomes(cases, prediction.values.tolist(), outcomes)
        cut = None if prediction.event is None else model.threshold
        risks = prediction.probabilities.max(axis=1) if cut is None else prediction.risk
        event, lines = prediction.classes[-1] if prediction.event is None else prediction.event.word, []
        names, decisions = self.rows.names(cases), [str(d) for d in prediction.decisions.tolist()]
        outcome_words = [outcome_for_task(self.run, task, word) for word in outcomes]
        for case, name, risk, decided, outcome in zip(
            cases, names, risks.tolist(), decisions, outcome_words, strict=True
        ):
            word = verdict(decided, outcome, event, risk, cut)
            lines.append(PatientLine(case, name, self.rows.parts[case], risk, decided, outcome, word))
        places = {part: k for k, part in enumerate(dict.fromkeys(self.rows.parts.values()))}
        lines.sort(key=lambda line: (places[line.part], -line.risk, line.case))
        return ScoredPatients(prediction.classes, cut, tuple(lines), None if cut is None else event)

    def _list_outcomes(
        self, cases: Sequence[int], values: Sequence[float], outcomes: Sequence[str | None]
    ) -> ScoredPatients:
        """List predicted numbers, counts or risk scores: test rows first, each part from the highest down."""
        names = self.rows.names(list(cases))
        lines = [
            PatientLine(case, name, self.rows.parts[case], value, "", outcome, None)
            for case, name, value, outcome in zip(cases, names, values, outcomes, strict=True)
        ]
        places = {part: k for k, part in enumerate(dict.fromkeys(self.rows.parts.values()))}
        lines.sort(key=lambda line: (places[line.part], -line.risk, line.case))
        return ScoredPatients((), None, tuple(lines), task=task_of(self.run.model.encoding))

    @property
    def reliability(self) -> Reliability:
        """The run's reliability bins; none for a site with a task or a model of its own, since they are of the common one."""
        own = self.run.personal_file(self.user)
        is_other = bool(self._task(self.user)) or (own is not None and own.choice != COMMON)
        return {} if is_other else self.run.summary.reliability or {}

    @cached_property
    def dataset(self) -> Dataset:
        """All rows of this site as the model's columns: the range of a value where no summary of all sites has it."""
        schema = self.run.model.schema
        rows, _ = self.rows.take_cases(list(self.rows.parts))
        assert schema is not None and isinstance(rows, Table)
        return read_new_rows(rows, schema)

    def column(self, name: str) -> Array:
        """Return the numbers of a column among this site's patients, without gaps."""
        read = self.dataset
        if name not in read.numeric_names:
            return np.empty(0)
        values: Array = read.numeric[:, read.numeric_names.index(name)]
        return values[~np.isnan(values)]


def change_values(patient: CaseRow, values: Mapping[str, Value]) -> CaseRow:
    """Return the same patient with other values in some columns.

    Args:
        patient: The patient.
        values: The values by column.

    Raises:
        BadInput: The patient is an image.
    """
    if not values:
        return patient
    if isinstance(patient.rows, ImageSet):
        raise BadInput("an image has no columns to change", code="needs-table")
    columns: dict[str, list[Value]] = {name: [value] for name, value in values.items()}
    return replace(patient, rows=patient.rows.with_columns(columns))
