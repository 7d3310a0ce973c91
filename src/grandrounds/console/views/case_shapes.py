"""The place of one patient on the shapes of an additive model."""

from __future__ import annotations

from pydantic import BaseModel

from grandrounds.analysis.case.outcome import OutcomeExplanation
from grandrounds.analysis.case.table import CaseExplanation
from grandrounds.console.cases.patients import Patients
from grandrounds.console.run_index import NotFound
from grandrounds.core.errors import BadInput
from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.shapes import column_title, read_shapes

SHAPE = "shape"
MOST_SHAPES = 6
"""Shapes on a patient's page: the columns with the largest contributions."""


class CaseShape(BaseModel):
    """A column whose shape is shown. `label`: its clinical name."""

    column: str
    label: str


def case_shapes(patients: Patients, case: CaseExplanation | OutcomeExplanation) -> list[CaseShape]:
    """List the columns of a patient that have a shape, the largest contribution first; empty without shapes."""
    record = read_shapes(patients.run.summary)
    if record is None:
        return []
    found = [record.find(a.column) for a in sorted(case.attributions, key=lambda a: -abs(a.contribution))]
    data = patients.run.summary.data
    return [CaseShape(column=s.name, label=column_title(s, data)) for s in found if s is not None][:MOST_SHAPES]


def figure(patients: Patients, number: int, column: str) -> Figure:
    """Draw the shape of a column with the patient's place on it."""
    record, case = read_shapes(patients.run.summary), patients.explain(number)
    if record is None or not isinstance(case, CaseExplanation | OutcomeExplanation):
        raise NotFound("the model of this run has no shapes", code="unknown-figure")
    own = next((a for a in case.attributions if a.column == column), None)
    if own is None:
        raise NotFound(f"this patient has no column '{column[:80]}'", code="unknown-column")
    try:
        return figures.shape(record, column, data=patients.run.summary.data, patient=own.value, has_patient=True)
    except BadInput as e:
        raise NotFound(str(e), code=e.code) from None
