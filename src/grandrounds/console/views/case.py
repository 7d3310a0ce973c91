"""One patient: the risk with what became of others like it, the reasons both ways, what is odd, and what if."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from grandrounds.analysis.case.case_page import (
    PARTS,
    PRIVATE,
    case_figure,
    case_title,
    points_text,
    reading,
    risk_word,
    standing,
    value_text,
    verdict_lines,
)
from grandrounds.analysis.case.image import PictureCase
from grandrounds.analysis.case.table import Reason, TableCase
from grandrounds.analysis.case.values import WHY, quality_lines
from grandrounds.console.case_patients import Patients
from grandrounds.console.case_what_if import Control, controls, parse
from grandrounds.console.library import NotFound
from grandrounds.console.views.case_band import Band, band
from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure

WATERFALL = "waterfall"
TOP = 10
"""Bars of the waterfall; the other columns are one bar."""
ABOUT = (
    "A what-if asks the model, not the patient: it says what the model would answer to other values, not what would happen "
    "if they were brought about. Values that go together in people change here one without the other."
)
_SAME = 1e-9


class ReasonLine(BaseModel):
    """One reason as a clinician reads it. `standing`: where the value stands among all sites' patients."""

    column: str
    value: str
    imputed: bool
    standing: str
    contribution: float
    odds_ratio: float | None
    points: str


class Remark(BaseModel):
    """A sentence and its kind."""

    text: str
    kind: str


class CaseView(BaseModel):
    """A patient's page. `record`: as `rounds explain --case N --json` prints it."""

    title: str
    private: str
    risk_word: str
    part: str
    band: Band | None
    amplifiers: list[ReasonLine]
    mitigators: list[ReasonLine]
    first: list[str]
    quality: list[Remark]
    bias: list[Remark]
    bias_why: str
    reading: list[str]
    controls: list[Control]
    about_what_if: str
    record: dict[str, Any]


class Moved(BaseModel):
    """A reason before and after; `change` is what it adds now less what it added."""

    column: str
    value: str
    value_after: str
    before: float
    after: float
    change: float


class WhatIf(BaseModel):
    """What the model says of other values."""

    event: str
    before: float
    after: float
    points: float
    decision_before: str
    decision_after: str
    band: Band | None
    reasons: list[Moved]
    notes: list[str]
    about: str


def view(patients: Patients, number: int) -> CaseView:
    case = table_case_of(patients, number)
    return CaseView(
        title=case_title(case),
        private=PRIVATE,
        risk_word=risk_word(case),
        part=PARTS.get(case.part or "", "new patient"),
        band=band(patients.reliability, case.probability, event=case.event),
        amplifiers=[_line(r) for r in case.amplifiers],
        mitigators=[_line(r) for r in case.mitigators],
        first=[*verdict_lines(case), *case.notes],
        quality=[Remark(text=text, kind=kind) for text, kind in quality_lines(case.quality, case.unread)],
        bias=[Remark(text=f"{f.column} = {_plain(f.value)} {f.words}.", kind=f.kind) for f in case.bias],
        bias_why=WHY,
        reading=reading(case),
        controls=controls(patients, case),
        about_what_if=ABOUT,
        record=case.to_dict(),
    )


def figure(patients: Patients, number: int, which: str) -> Figure:
    """A figure of one patient, by its name."""
    if which != WATERFALL:
        raise NotFound(f"there is no figure '{which[:80]}' of a patient; known: {WATERFALL}")
    return case_figure(table_case_of(patients, number), top=TOP)


def what_if(patients: Patients, number: int, text: str) -> WhatIf:
    """What the model says of the patient with other values, given as JSON."""
    before = table_case_of(patients, number)
    values = parse(text, controls(patients, before))
    after = patients.explain(number, values)
    assert isinstance(after, TableCase)
    risk = after.probabilities[after.classes.index(before.explained)]
    notes = [line for line, _ in quality_lines(after.quality, after.unread) if line not in _said(before)]
    reasons = _moved(before, after)
    if after.explained != before.explained:
        reasons = []
        notes.insert(
            0,
            f"The decision is {after.decision} now ({after.probability:.1%}): the band is of it, reasons are not compared.",
        )
    return WhatIf(
        event=before.event,
        before=before.probability,
        after=risk,
        points=100 * (risk - before.probability),
        decision_before=before.decision,
        decision_after=after.decision,
        band=band(patients.reliability, after.probability, event=after.event),
        reasons=reasons,
        notes=notes,
        about=ABOUT,
    )


def table_case_of(patients: Patients, number: int) -> TableCase:
    case = patients.explain(number)
    if isinstance(case, PictureCase):
        raise BadInput("this run is of pictures: they have heat maps, and no columns")
    return case


def _moved(before: TableCase, after: TableCase) -> list[Moved]:
    """The reasons that changed, the largest change first."""
    then: Mapping[str, Reason] = {r.column: r for r in before.reasons}
    made = [
        Moved(
            column=now.column,
            value=value_text(then[now.column]),
            value_after=value_text(now),
            before=then[now.column].contribution,
            after=now.contribution,
            change=now.contribution - then[now.column].contribution,
        )
        for now in after.reasons
    ]
    shown = [m for m in made if abs(m.change) > _SAME or m.value != m.value_after]
    return sorted(shown, key=lambda m: -abs(m.change))


def _said(case: TableCase) -> set[str]:
    return {line for line, _ in quality_lines(case.quality, case.unread)}


def _line(reason: Reason) -> ReasonLine:
    return ReasonLine(
        column=reason.column,
        value=value_text(reason),
        imputed=reason.imputed,
        standing=standing(reason),
        contribution=reason.contribution,
        odds_ratio=reason.odds_ratio,
        points=points_text(reason),
    )


def _plain(value: float | str | None) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else value
