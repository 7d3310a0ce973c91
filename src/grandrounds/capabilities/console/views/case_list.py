"""The list of a hospital's patients: the highest risk first, with missing inputs, searched and in pages."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel

from grandrounds.capabilities.console.cases.patients import MAX_SCORED, PatientLine, Patients
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.case_image import thumbnail_png
from grandrounds.capabilities.console.views.runs import RunLine, run_line
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.images import ImageSet
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report.outcome import PREDICTIONS

PAGE_SIZE = 25
"""Patients of a page."""
INCOMPLETE = 0.5
"""Share of missing inputs from which a patient counts as incomplete."""
Sort = Literal["risk", "doubt", "missing", "row"]
Choice = Literal["", "flagged", "not flagged", "incomplete"]


class PatientPage(BaseModel):
    """A page of the list, and the number of patients by data split, by verdict and by choice.

    `choices`: patients that are flagged, that are not, and of whom half of the inputs or more are missing; in the chosen split.
    `inputs`: columns that the model sees; `prediction`: the name of the prediction, where it is no risk.
    """

    site: str
    run: str
    event: str | None
    event_class: str | None
    threshold: float | None
    parts: dict[str, int]
    verdicts: dict[str, int]
    choices: dict[str, int]
    all: int
    matching: int
    page: int
    pages: int
    inputs: int
    patients: list[PatientLine]
    notes: list[str]
    prediction: str = ""


def case_runs(run_index: RunIndex, cases: SiteCases) -> list[RunLine]:
    """List the finished runs in which this site's patients can be shown, the newest first."""
    return [line for entry in cases.runs() if not (line := run_line(run_index, entry)).wrong]


def patient_page(
    run: str,
    patients: Patients,
    *,
    part: str = "",
    verdict: str = "",
    choice: Choice = "",
    find: str = "",
    sort: Sort = "risk",
    page: int = 1,
) -> PatientPage:
    """Return a page of the patients that match.

    Args:
        run: The run's name.
        patients: The patients of this hospital.
        part: The data split; "" for all.
        verdict: The verdict; "" for all.
        choice: Flagged, not flagged or incomplete patients; "" for all.
        find: A row number, or part of a patient's name.
        sort: The order.
        page: The page; one beyond the last is the last.
    """
    scored, inputs = patients.scores, patients.inputs
    lines, cut = scored.lines, scored.threshold
    word = find.strip().casefold()
    in_part = [line for line in lines if not part or (line.part or "new") == part]
    shown = [
        line
        for line in in_part
        if (not verdict or line.verdict == verdict)
        and (not choice or choice in _choices(line, scored.event, inputs))
        and (not word or word == str(line.case) or word in (line.patient or "").casefold())
    ]
    if sort == "row":
        shown.sort(key=lambda line: line.case)
    if sort == "missing":
        shown.sort(key=lambda line: (-line.missing, -line.risk, line.case))
    if sort == "doubt":
        shown.sort(key=lambda line: (abs(line.risk - (cut or 0.0)), line.case))
    pages = max(1, -(-len(shown) // PAGE_SIZE))
    number = min(page, pages)
    unscored = len(patients.rows.parts) - len(lines)
    labels = ColumnLabels.of_plan(patients.run.plan["data"])
    on_page = shown[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    return PatientPage(
        site=patients.site,
        run=run,
        event=None if scored.event is None else labels.name_event(_label(patients), scored.event),
        event_class=scored.event,
        threshold=cut,
        parts=dict(Counter(line.part or "new" for line in lines)),
        verdicts=dict(Counter(line.verdict for line in in_part if line.verdict is not None)),
        choices=dict(Counter(word for line in in_part for word in _choices(line, scored.event, inputs))),
        all=len(lines),
        matching=len(shown),
        page=number,
        pages=pages,
        inputs=inputs,
        patients=_add_thumbnails(patients, on_page) if patients.has_images else on_page,
        notes=[f"{MAX_SCORED} images are scored for this list; {unscored} more can be opened by number"]
        if unscored
        else [],
        prediction="" if scored.task == CLASSIFICATION else f"{PREDICTIONS[scored.task]} of {_label(patients)}",
    )


def _choices(line: PatientLine, event: str | None, inputs: int) -> list[str]:
    """List the choices that a patient belongs to."""
    decided = [] if event is None else ["flagged" if line.decision == event else "not flagged"]
    return [*decided, *(["incomplete"] if inputs and line.missing >= INCOMPLETE * inputs else [])]


def _label(patients: Patients) -> str:
    schema = patients.run.model.schema
    return "label" if schema is None else schema.label


def _add_thumbnails(patients: Patients, lines: list[PatientLine]) -> list[PatientLine]:
    """Add a small image to each line, as a data URL: no image of a patient has an address that a proxy could log."""
    if not lines:
        return []
    images, _ = patients.rows.take_cases([line.case for line in lines])
    assert isinstance(images, ImageSet)
    urls = (f"data:image/png;base64,{base64.b64encode(thumbnail_png(p)).decode()}" for p in images.pixels)
    return [replace(line, thumbnail=url) for line, url in zip(lines, urls, strict=True)]
