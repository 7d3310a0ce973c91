"""One patient of a run that predicts a number, a count or the time to an event: the prediction and its contributions."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from grandrounds.capabilities.cases.case_page import PARTS, PRIVATE, case_title, missing_lines, patient_name
from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.outcome_page import (
    contribution_rows,
    format_prediction,
    outcome_figure,
    outcome_guide,
    prediction_interval_text,
    prediction_title,
)
from grandrounds.capabilities.cases.values import quality_lines
from grandrounds.capabilities.console.cases.patients import Patients
from grandrounds.capabilities.console.run_index import NotFound
from grandrounds.capabilities.console.views.case import MAX_BARS, WATERFALL, Remark
from grandrounds.capabilities.console.views.case_shapes import CaseShape, case_shapes
from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure


class OutcomeView(BaseModel):
    """A patient's page. `head` and `rows`: contributions as text; `record`: as `rounds explain --case N --json` prints it."""

    title: str
    name: str
    private: str
    prediction_name: str
    prediction: str
    interval: str
    baseline: str
    part: str
    missing: list[str]
    notes: list[str]
    head: list[str]
    rows: list[list[str]]
    quality: list[Remark]
    shapes: list[CaseShape] = []
    reading: list[str]
    record: dict[str, Any]


def view(patients: Patients, number: int) -> OutcomeView:
    """Return a patient's page."""
    case = explain_outcome_case(patients, number)
    head, rows = contribution_rows(case)
    return OutcomeView(
        title=case_title(case),
        name=patient_name(case),
        private=PRIVATE,
        prediction_name=prediction_title(case),
        prediction=format_prediction(case, case.prediction),
        interval=prediction_interval_text(case),
        baseline=format_prediction(case, case.baseline),
        part=PARTS.get(case.part or "", "new patient"),
        missing=missing_lines(case),
        notes=list(case.notes),
        head=head,
        rows=rows,
        quality=[
            Remark(text=text, kind=kind)
            for text, kind in quality_lines(case.quality, case.zero_weight_columns, case.labels)
        ],
        shapes=case_shapes(patients, case),
        reading=outcome_guide(case),
        record=case.to_dict(),
    )


def figure(patients: Patients, number: int, figure_name: str) -> Figure:
    """Draw a figure of one patient, by its name."""
    if figure_name != WATERFALL:
        raise NotFound(
            f"there is no figure '{figure_name[:80]}' of a patient; known: {WATERFALL}", code="unknown-figure"
        )
    return outcome_figure(explain_outcome_case(patients, number), top=MAX_BARS)


def explain_outcome_case(patients: Patients, number: int) -> OutcomeExplanation:
    """Explain a patient of a run that predicts no class."""
    case = patients.explain(number)
    if not isinstance(case, OutcomeExplanation):
        raise BadInput("this run predicts classes", code="explainer-does-not-fit")
    return case
