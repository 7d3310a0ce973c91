"""The place of one patient on the shapes of an additive model, and on a risk card."""

from __future__ import annotations

from pydantic import BaseModel

from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.table import CaseExplanation
from grandrounds.capabilities.console.cases.patients import Patients
from grandrounds.capabilities.console.run_index import NotFound
from grandrounds.core.errors import BadInput
from grandrounds.models.risk_card import AT_MOST, LEVEL, MISSING, Term, show_risk
from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.risk_card import interval_text, read_card
from grandrounds.report.shapes import column_title, read_shapes

SHAPE = "shape"
_SAME = 1e-9
MOST_SHAPES = 6
"""Shapes on a patient's page: the columns with the largest contributions."""


class CaseShape(BaseModel):
    """A column whose shape is shown. `label`: its clinical name."""

    column: str
    label: str


class CardLine(BaseModel):
    """A line of a risk card. `applies`: the patient meets it."""

    text: str
    points: int
    applies: bool


class CaseCard(BaseModel):
    """A risk card filled in for one patient. `shown`: the printed risk of the total; `interval`: its 95% interval."""

    lines: list[CardLine]
    total: int
    shown: str
    interval: str


def case_card(patients: Patients, case: CaseExplanation) -> CaseCard | None:
    """Fill in the risk card of a run for a patient; None for a run without one.

    A card whose sum does not give the program's risk is not shown: a value of the page may be one that the model never saw.
    """
    record = read_card(patients.run.summary)
    if record is None:
        return None
    values = {a.column: a.value for a in case.attributions}
    lines = [CardLine(text=t.text, points=t.points, applies=meets(t, values.get(t.column))) for t in record.card.terms]
    total = sum(line.points for line in lines if line.applies)
    found = next((r for r in record.card.totals if total <= r.last), record.card.totals[-1])
    if abs(found.risk - case.probability) > _SAME:
        return None
    return CaseCard(lines=lines, total=total, shown=show_risk(found.risk), interval=interval_text(found))


def meets(term: Term, value: float | str | None) -> bool:
    """Tell whether a value meets a term of a card; a missing value meets only a term of missing values."""
    if term.kind == MISSING or value is None:
        return term.kind == MISSING and value is None
    if term.kind == LEVEL:
        return str(value) == str(term.value)
    if isinstance(value, str) or term.value is None:
        return False
    return value <= float(term.value) if term.kind == AT_MOST else value > float(term.value)


def case_shapes(patients: Patients, case: CaseExplanation | OutcomeExplanation) -> list[CaseShape]:
    """List the columns of a patient that have a shape, the largest contribution first; empty without shapes."""
    record = read_shapes(patients.run.summary)
    if record is None or record.is_behind_card:
        return []
    found = [record.find(a.column) for a in sorted(case.attributions, key=lambda a: -abs(a.contribution))]
    return [CaseShape(column=s.name, label=column_title(s, case.labels)) for s in found if s is not None][:MOST_SHAPES]


def figure(patients: Patients, number: int, column: str) -> Figure:
    """Draw the shape of a column with the patient's place on it."""
    record, case = read_shapes(patients.run.summary), patients.explain(number)
    if record is None or not isinstance(case, CaseExplanation | OutcomeExplanation):
        raise NotFound("the model of this run has no shapes", code="unknown-figure")
    own = next((a for a in case.attributions if a.column == column), None)
    if own is None:
        raise NotFound(f"this patient has no column '{column[:80]}'", code="unknown-column")
    try:
        return figures.shape(record, column, columns=case.labels, patient=own.value, has_patient=True)
    except BadInput as e:
        raise NotFound(str(e), code=e.code) from None
