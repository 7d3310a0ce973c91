"""The patients of a hospital in one run: scores, explanations, also for changed values, and similar patients."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.cases.case import Case, explain_row
from grandrounds.capabilities.cases.case_page import event_phrase
from grandrounds.capabilities.cases.counterfactual import Counterfactual, find_counterfactuals
from grandrounds.capabilities.cases.similar import SimilarPatients, count_outcomes, nearest_rows
from grandrounds.capabilities.cases.table import CaseExplanation, verdict
from grandrounds.capabilities.console.cases.site_rows import SiteRows
from grandrounds.capabilities.console.run_index import NotFound
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.dataset import Dataset, read_new_rows
from grandrounds.data.encoding import Encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import task_of
from grandrounds.data.table import Table
from grandrounds.methods.guard.candidates import COMMON
from grandrounds.runs.run_rows import CaseRow, outcome_for_task

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run


CACHED_CASES = 64
"""Explanations per run that stay in memory."""
CACHED_MODELS = 32
MAX_SCORED = 5000
"""Images that are scored for the list, test images first; rows of a table are all scored."""

BINS = 10
"""Bins of risk in which a hospital's own test patients are counted."""

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
    missing: int = 0  # inputs without a value
    thumbnail: str = ""  # of an image: a data URL, since an address of its own would be logged by proxies


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
            raise NotFound(f"site {self.site} has no row {case} here", code="unknown-row")
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
        missing = self._missing
        names, decisions = self.rows.names(cases), [str(d) for d in prediction.decisions.tolist()]
        outcome_words = [outcome_for_task(self.run, task, word) for word in outcomes]
        for case, name, risk, decided, outcome in zip(
            cases, names, risks.tolist(), decisions, outcome_words, strict=True
        ):
            part = self.rows.parts[case]
            word = verdict(decided, outcome, event, risk, cut, part=part)
            line = PatientLine(case, name, part, risk, decided, outcome, word, missing.get(case, 0))
            lines.append(line)
        places = {part: k for k, part in enumerate(dict.fromkeys(self.rows.parts.values()))}
        lines.sort(key=lambda line: (places[line.part], -line.risk, line.case))
        return ScoredPatients(prediction.classes, cut, tuple(lines), None if cut is None else event)

    def _list_outcomes(
        self, cases: Sequence[int], values: Sequence[float], outcomes: Sequence[str | None]
    ) -> ScoredPatients:
        """List predicted numbers, counts or risk scores: test rows first, each part from the highest down."""
        names = self.rows.names(list(cases))
        lines = [
            PatientLine(case, name, self.rows.parts[case], value, "", outcome, None, self._missing.get(case, 0))
            for case, name, value, outcome in zip(cases, names, values, outcomes, strict=True)
        ]
        places = {part: k for k, part in enumerate(dict.fromkeys(self.rows.parts.values()))}
        lines.sort(key=lambda line: (places[line.part], -line.risk, line.case))
        return ScoredPatients((), None, tuple(lines), task=task_of(self.run.model.encoding))

    @cached_property
    def reliability(self) -> Reliability:
        """The run's reliability bins; for a site with a task or a model of its own, those of its own test patients.

        `sites` names the patients that were counted. Rows of this site are counted on this machine.
        """
        own = self.run.personal_file(self.user)
        if not self._task(self.user) and (own is None or own.choice == COMMON):
            bins = self.run.summary.reliability
            return {**bins, "sites": "all sites"} if bins else {}
        scored = self.scores
        tested = [line for line in scored.lines if line.part in ("test", None) and line.outcome is not None]
        if scored.event is None or not tested:
            return {}
        risk = np.array([line.risk for line in tested])
        happened = np.array([line.outcome == scored.event for line in tested], float)
        place = np.minimum((risk * BINS).astype(int), BINS - 1)
        count = np.bincount(place, minlength=BINS)
        totals = (np.bincount(place, weights=w, minlength=BINS) for w in (happened, risk))
        outcome, confidence = ((total / np.maximum(count, 1)).tolist() for total in totals)
        edges = np.linspace(0, 1, BINS + 1).tolist()
        return {
            "count": count.tolist(),
            "edges": edges,
            "outcome": outcome,
            "confidence": confidence,
            "sites": self.site,
        }

    @cached_property
    def dataset(self) -> Dataset:
        """All rows of this site as the model's columns: the range of a value where no summary of all sites has it."""
        schema = self.run.model.schema
        rows, _ = self.rows.take_cases(list(self.rows.parts))
        assert schema is not None and isinstance(rows, Table)
        return read_new_rows(rows, schema)

    @property
    def inputs(self) -> int:
        """The number of columns that the model sees; 0 for images."""
        encoding = self.run.model.encoding
        return len(encoding.numeric) + len(encoding.categorical) if isinstance(encoding, Encoding) else 0

    @cached_property
    def _missing(self) -> dict[int, int]:
        """The number of the model's inputs without a value, by row number; empty for images."""
        encoding = self.run.model.encoding
        if not isinstance(encoding, Encoding):
            return {}
        read = self.dataset
        numeric = [read.numeric_names.index(r.name) for r in encoding.numeric if r.name in read.numeric_names]
        words = [read.categorical_names.index(r.name) for r in encoding.categorical if r.name in read.categorical_names]
        absent = self.inputs - len(numeric) - len(words)
        counts = absent + np.isnan(read.numeric[:, numeric]).sum(axis=1) + (read.codes[:, words] < 0).sum(axis=1)
        return dict(zip(self.rows.parts, counts.tolist(), strict=True))

    @cached_property
    def _encoded(self) -> Array:
        """All rows of this site as the model's inputs."""
        encoding = self.model(self.user).encoding
        assert isinstance(encoding, Encoding)
        return encoding.encode(self.dataset)

    @cached_property
    def _outcomes(self) -> list[str | None]:
        """The outcome of each row of this site, where it is known."""
        outcomes = self.rows.take_cases(list(self.rows.parts))[1]
        return [outcome_for_task(self.run, self._task(self.user), word) for word in outcomes]

    def find_similar(self, case: CaseExplanation) -> SimilarPatients | None:
        """Count the outcomes of this site's patients that are most like one of them.

        Rows of the same patient do not count. Rows of other sites are never read.

        Args:
            case: The explanation of the patient.

        Returns:
            The counts; None where too few patients have a known outcome.
        """
        cases = list(self.rows.parts)
        own, names = cases.index(case.number), self.rows.names(cases)
        same = np.array([k == own or (name is not None and name == names[own]) for k, name in enumerate(names)])
        allowed = ~same & np.array([outcome is not None for outcome in self._outcomes])
        rows = nearest_rows(self._encoded, self._encoded[own], allowed)
        return count_outcomes(
            self._outcomes, rows, target_class=case.target_class, event=event_phrase(case), site=self.site
        )

    def find_counterfactuals(
        self, case: CaseExplanation, candidates: Mapping[str, Sequence[float] | Sequence[str]]
    ) -> list[Counterfactual]:
        """Find single values that would change a patient's decision.

        Args:
            case: The explanation of the patient.
            candidates: The values to try by column.
        """
        row = self.find(case.number).rows
        assert isinstance(row, Table)
        model, task = self.model(self.user), self._task(self.user)
        return find_counterfactuals(
            case, row, candidates, lambda rows: [str(d) for d in model.predict(rows, task=task).decisions.tolist()]
        )

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
