"""The list of this site's patients: found by part, by what became of them, by number or by the hospital's own name."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import BaseModel

from grandrounds.console.case_patients import SCORED, PatientLine, Patients
from grandrounds.console.cases import Cases
from grandrounds.console.library import Library
from grandrounds.console.views.runs import RunLine, run_line

SIZE = 50
"""Patients of a page."""
Sort = Literal["risk", "doubt", "row"]


class PatientPage(BaseModel):
    """A page of the list, and how many patients there are by part and by what became of them."""

    site: str
    run: str
    event: str | None
    threshold: float | None
    parts: dict[str, int]
    verdicts: dict[str, int]
    all: int
    matching: int
    page: int
    pages: int
    patients: list[PatientLine]
    notes: list[str]


def case_runs(library: Library, cases: Cases) -> list[RunLine]:
    """The finished runs in which this site's patients can be looked at, the newest first."""
    return [line for found in cases.runs() if not (line := run_line(library, found)).wrong]


def patient_page(
    run: str,
    patients: Patients,
    *,
    part: str = "",
    verdict: str = "",
    find: str = "",
    sort: Sort = "risk",
    page: int = 1,
) -> PatientPage:
    """The patients that match; a page beyond the last is the last."""
    scored, schema = patients.scored, patients.run.model.schema
    lines, cut = scored.lines, scored.threshold
    word = find.strip().casefold()
    shown = [
        line
        for line in lines
        if (not part or (line.part or "new") == part)
        and (not verdict or line.verdict == verdict)
        and (not word or word == str(line.case) or word in (line.patient or "").casefold())
    ]
    if sort == "row":
        shown.sort(key=lambda line: line.case)
    if sort == "doubt":
        shown.sort(key=lambda line: (abs(line.risk - (cut or 0.0)), line.case))
    pages = max(1, -(-len(shown) // SIZE))
    at = min(page, pages)
    left = len(patients.rows.parts) - len(lines)
    label = "label" if schema is None else schema.label
    return PatientPage(
        site=patients.site,
        run=run,
        event=None if cut is None else f"{label} = {scored.event}",
        threshold=cut,
        parts=dict(Counter(line.part or "new" for line in lines)),
        verdicts=dict(Counter(line.verdict for line in lines if line.verdict is not None)),
        all=len(lines),
        matching=len(shown),
        page=at,
        pages=pages,
        patients=shown[(at - 1) * SIZE : at * SIZE],
        notes=[f"{SCORED} pictures are scored for this list; {left} more can be opened by their numbers"]
        if left
        else [],
    )
