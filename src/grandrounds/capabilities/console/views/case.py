"""One patient: the risk with the outcomes of similar patients, the explanation, warnings, what-if."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from grandrounds.capabilities.cases.case_page import (
    PARTS,
    PRIVATE,
    Scale,
    case_figure,
    case_title,
    decision_of,
    decision_text,
    event_name,
    has_intervals,
    interval_text,
    missing_lines,
    outcome_text,
    patient_name,
    percentile_text,
    points_text,
    reading_guide,
    risk_interval_text,
    risk_name,
    value_text,
    value_with_unit,
    verdict_lines,
)
from grandrounds.capabilities.cases.counterfactual import NONE as NO_CHANGE
from grandrounds.capabilities.cases.image import ImageExplanation
from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.table import Attribution, CaseExplanation
from grandrounds.capabilities.cases.values import WHY, quality_lines
from grandrounds.capabilities.console.cases.patients import Patients, Reliability
from grandrounds.capabilities.console.cases.what_if import Control, controls, list_candidates, parse_values
from grandrounds.capabilities.console.run_index import NotFound
from grandrounds.capabilities.console.views.case_shapes import CaseCard, CaseShape, case_card, case_shapes
from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report.figure import Figure

WATERFALL = "waterfall"
MAX_BARS = 10
"""Bars of the waterfall; the other columns are one bar."""
ABOUT = (
    "It shows how the model responds to other values. It is not a treatment effect. Values that change together in real "
    "patients change here one at a time."
)
MAX_CHANGES = 2
"""Changes of the decision that are shown."""
_SAME = 1e-9
MIN_ROWS = 30
"""Test rows in a risk band that are needed to judge calibration there."""
_TOO_FEW = "The model predicted {mean:.1%} on average; {rows} patients are too few to judge its calibration."

TOP_CLASS = "top class"
"""The quantity in the reliability bins of three classes or more."""


class Band(BaseModel):
    """Test patients of all sites whose risk was between `low` and `high`: their number and the share with the event
    (for three classes or more: the share of correct predictions), with Wilson's 95% interval."""

    low: float
    high: float
    rows: int
    share: float | None
    share_low: float | None
    share_high: float | None
    said: str
    verdict: str


class ReasonLine(BaseModel):
    """The contribution of one column. `label`: its clinical name; `standing`: the percentile of the value, or its share."""

    column: str
    label: str
    value: str
    imputed: bool
    standing: str
    contribution: float
    interval: str
    odds_ratio: float | None
    points: str
    size: float = 0.0  # of the change of risk, in points


class Remark(BaseModel):
    """A sentence and its kind."""

    text: str
    kind: str


class Similar(BaseModel):
    """The patients of this hospital most like one of them. `said`: their outcomes as a sentence, or why there are none."""

    said: str
    n: int = 0
    events: int = 0


class CaseView(BaseModel):
    """A patient's page.

    `name`: for the heading; `event`: the event that the risk is of; `changes`: single values that would change the decision;
    `largest`: the largest change of risk, in points; `record`: as `rounds explain --case N --json` prints it.
    """

    title: str
    name: str
    event: str
    decision: str
    outcome: str
    missing: list[str]
    similar: Similar
    changes: list[str]
    largest: float
    private: str
    risk_word: str
    risk_interval: str
    has_intervals: bool
    part: str
    band: Band | None
    amplifiers: list[ReasonLine]
    mitigators: list[ReasonLine]
    first: list[str]
    quality: list[Remark]
    bias: list[Remark]
    bias_why: str
    reading: list[str]
    shapes: list[CaseShape] = []
    card: CaseCard | None = None
    controls: list[Control]
    about_what_if: str
    record: dict[str, Any]


class ReasonChange(BaseModel):
    """The contribution of a column before and after; `change` is the difference."""

    column: str
    label: str
    value: str
    value_after: str
    before: float
    after: float
    change: float


class WhatIf(BaseModel):
    """The prediction for other values."""

    event: str
    before: float
    after: float
    points: float
    decision_before: str
    decision_after: str
    band: Band | None
    reasons: list[ReasonChange]
    notes: list[str]
    about: str


def view(patients: Patients, number: int) -> CaseView:
    case = explain_table_case(patients, number)
    changeable = controls(patients, case)
    return CaseView(
        title=case_title(case),
        name=patient_name(case),
        event=event_name(case),
        decision=decision_text(case),
        outcome=outcome_text(case),
        missing=missing_lines(case),
        similar=similar(patients, case),
        changes=_changes(patients, case, changeable),
        largest=max((abs(a.points) for a in case.attributions if a.points is not None), default=0.0),
        private=PRIVATE,
        risk_word=risk_name(case),
        risk_interval=risk_interval_text(case),
        has_intervals=has_intervals(case),
        part=PARTS.get(case.part or "", "new patient"),
        band=band(patients.reliability, case.probability, event=event_name(case)),
        amplifiers=[_line(r, case.labels) for r in case.amplifiers],
        mitigators=[_line(r, case.labels) for r in case.mitigators],
        first=[*verdict_lines(case), *case.notes],
        quality=[
            Remark(text=text, kind=kind)
            for text, kind in quality_lines(case.quality, case.zero_weight_columns, case.labels)
        ],
        bias=[
            Remark(text=f"{case.labels.find(f.column).name} = {_value_text(f.value)} {f.words}.", kind=f.kind)
            for f in case.bias
        ],
        bias_why=WHY,
        reading=reading_guide(case),
        shapes=case_shapes(patients, case),
        card=case_card(patients, case),
        controls=changeable,
        about_what_if=ABOUT,
        record=case.to_dict(),
    )


def similar(patients: Patients, case: CaseExplanation) -> Similar:
    """Count the outcomes of this hospital's patients that are most like one of them.

    Args:
        patients: The patients of this hospital.
        case: The explanation of the patient.
    """
    found = patients.find_similar(case)
    if found is None:
        return Similar(said=f"{patients.site} has too few patients with a known outcome to show similar ones.")
    return Similar(said=found.sentence, n=found.n, events=found.events)


def _changes(patients: Patients, case: CaseExplanation, changeable: list[Control]) -> list[str]:
    """Write the smallest single changes that give the other decision; nothing with three classes or more."""
    if len(case.classes) != 2:
        return []
    found = patients.find_counterfactuals(case, list_candidates(changeable))
    return [change.sentence for change in found[:MAX_CHANGES]] or [NO_CHANGE]


def figure(patients: Patients, number: int, figure_name: str, *, scale: Scale = "risk") -> Figure:
    """Draw a figure of one patient, by its name; `scale`: the axis of the waterfall."""
    if figure_name != WATERFALL:
        raise NotFound(
            f"there is no figure '{figure_name[:80]}' of a patient; known: {WATERFALL}", code="unknown-figure"
        )
    return case_figure(explain_table_case(patients, number), top=MAX_BARS, scale=scale)


def what_if(patients: Patients, number: int, text: str) -> WhatIf:
    """Explain the patient with other values, given as JSON."""
    before = explain_table_case(patients, number)
    values = parse_values(text, controls(patients, before))
    after = patients.explain(number, values)
    assert isinstance(after, CaseExplanation)
    risk = after.probabilities[after.classes.index(before.target_class)]
    notes = [
        line
        for line, _ in quality_lines(after.quality, after.zero_weight_columns, after.labels)
        if line not in _quality_sentences(before)
    ]
    reasons = _list_moves(before, after)
    if after.target_class != before.target_class:
        reasons = []
        notes.insert(
            0,
            f"The decision is now {after.decision} ({after.probability:.1%}). The band is of that class, and contributions are "
            "not compared.",
        )
    return WhatIf(
        event=event_name(before),
        before=before.probability,
        after=risk,
        points=100 * (risk - before.probability),
        decision_before=decision_text(before),
        decision_after=decision_of(before, after.decision),
        band=band(patients.reliability, after.probability, event=event_name(after)),
        reasons=reasons,
        notes=notes,
        about=ABOUT,
    )


def explain_table_case(patients: Patients, number: int) -> CaseExplanation:
    case = patients.explain(number)
    if isinstance(case, ImageExplanation):
        raise BadInput("this run is of images, which have heat maps and no columns", code="needs-table")
    if isinstance(case, OutcomeExplanation):
        raise BadInput(f"this run predicts {case.label}, which has no classes and no risk", code="not-binary")
    return case


def _list_moves(before: CaseExplanation, after: CaseExplanation) -> list[ReasonChange]:
    """List the contributions that changed, the largest change first."""
    then: Mapping[str, Attribution] = {r.column: r for r in before.attributions}
    moves = [
        ReasonChange(
            column=now.column,
            label=before.labels.find(now.column).name,
            value=value_text(then[now.column]),
            value_after=value_text(now),
            before=then[now.column].contribution,
            after=now.contribution,
            change=now.contribution - then[now.column].contribution,
        )
        for now in after.attributions
    ]
    shown = [m for m in moves if abs(m.change) > _SAME or m.value != m.value_after]
    return sorted(shown, key=lambda m: -abs(m.change))


def _quality_sentences(case: CaseExplanation) -> set[str]:
    return {line for line, _ in quality_lines(case.quality, case.zero_weight_columns, case.labels)}


def _line(reason: Attribution, labels: ColumnLabels) -> ReasonLine:
    return ReasonLine(
        column=reason.column,
        label=labels.find(reason.column).name,
        value=value_with_unit(reason, labels),
        imputed=reason.imputed,
        standing=percentile_text(reason),
        contribution=reason.contribution,
        interval=interval_text(reason),
        odds_ratio=reason.odds_ratio,
        points=points_text(reason),
        size=abs(reason.points or 0.0),
    )


def _value_text(value: float | str | None) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else value


def band(reliability: Reliability, risk: float, *, event: str) -> Band | None:
    """Return the band of a risk; None where the run evaluated no test rows."""
    if not reliability:
        return None
    count = reliability["count"]
    k = min(int(risk * len(count)), len(count) - 1)  # as metrics.tally counts them
    low, high = (float(edge) for edge in reliability["edges"][k : k + 2])
    rows = round(float(count[k] or 0))
    top = reliability.get("of") == TOP_CLASS
    where = reliability.get("sites", "all sites")
    between = f"between {_percent(low)} and {_percent(high)}"
    who = f"whose predicted class had a probability {between}" if top else f"whose risk of {event} was {between}"
    if not rows:
        sentence = f"No test patient of {where} was one {who}, so calibration here is unknown."
        return Band(low=low, high=high, rows=0, share=None, share_low=None, share_high=None, said=sentence, verdict="")
    share, mean = float(reliability["outcome"][k]), float(reliability["confidence"][k])
    ends = interval(round(share * rows), rows)
    happened = "the prediction was correct for" if top else "the event occurred in"
    within = f"(95% CI {ends[0]:.1%} to {ends[1]:.1%})"
    sentence = f"Of {rows:,} test patients of {where} {who}, {happened} {share:.1%} {within}."
    return Band(
        low=low,
        high=high,
        rows=rows,
        share=share,
        share_low=ends[0],
        share_high=ends[1],
        said=sentence,
        verdict=_verdict(mean, ends) if rows >= MIN_ROWS else _TOO_FEW.format(rows=rows, mean=mean),
    )


def interval(hits: int, rows: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share."""
    from scipy.stats import binomtest

    bounds = binomtest(hits, rows).proportion_ci(0.95, "wilson")
    return float(bounds.low), float(bounds.high)


def _verdict(mean: float, ends: tuple[float, float]) -> str:
    """Compare the mean risk of a band with the outcomes there."""
    if mean > ends[1]:
        return f"The model over-predicts here: {mean:.1%} on average."
    if mean < ends[0]:
        return f"The model under-predicts here: {mean:.1%} on average."
    return f"The model predicted {mean:.1%} on average: well calibrated here."


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
