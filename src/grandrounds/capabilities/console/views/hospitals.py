"""Hospitals of a run compared, and one hospital beside the consortium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.console.views.run import load_record
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.metrics.confusion import Estimate
from grandrounds.metrics.fairness import clearly_worse, decision_key, deployed_scores, intervals, is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import Place, shown_in
from grandrounds.report.figure import Figure
from grandrounds.report.figures.hospitals import hospital_importances, hospital_weight
from grandrounds.report.hospitals import BY_SCORE, ORDERS, Hospital, HospitalComparison, compare_hospitals

PAGE = 25
"""Hospitals of one page of the table."""
HOSPITAL_FIGURES = {"importances": "Explanations", "weight": "Weight"}


class EstimateView(BaseModel):
    """A figure with its 95% interval; the ends are null where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


class HospitalView(BaseModel):
    """Figures of one hospital on its own test patients.

    `score`: AUROC, or the headline metric of the task. `gain`: accuracy of the decisions at the run's threshold less the share of
    the most common class. `accuracy`: of the same decisions. `calibration`: observed over expected events. `benefit_gain`: net
    benefit less that of treating everyone or nobody. `verdict`: better, worse or unclear against no model; empty without test
    patients. `ranked`: it has the test patients to be ranked.
    """

    name: str
    train_rows: int
    test_rows: int
    events: int | None
    weight: float | None
    score: EstimateView | None
    gain: EstimateView | None
    accuracy: EstimateView | None
    calibration: EstimateView | None
    slope: EstimateView | None
    sensitivity: EstimateView | None
    specificity: EstimateView | None
    ppv: EstimateView | None
    alerts_per_100: EstimateView | None
    net_benefit: EstimateView | None
    benefit_gain: EstimateView | None
    verdict: str
    verdict_text: str
    ranked: bool
    notes: list[str]


class UnseenView(BaseModel):
    """AUROC over hospitals by random effects. `prediction_low`, `prediction_high`: 95% prediction interval of an unseen one."""

    hospitals: int
    estimate: float | None
    low: float | None
    high: float | None
    i2: float | None
    prediction_low: float | None
    prediction_high: float | None


class HospitalsView(BaseModel):
    """Hospitals of a run by pages. `metric`: key of `score`; `order`: the order; `total`: hospitals that fit the search."""

    metric: str
    label: str
    threshold: float | None
    threshold_text: str
    model_text: str
    reading: str
    sentences: list[str]
    overall: HospitalView
    unseen: UnseenView | None
    order: str
    total: int
    page: int
    pages: int
    hospitals: list[HospitalView]


class FigureRow(BaseModel):
    """A line of the comparison of one hospital with all test patients. `unit`: "%" or "points" of shares from 0 to 1, or ""."""

    label: str
    hospital: EstimateView | None
    overall: EstimateView | None
    unit: str = ""


class HospitalPage(BaseModel):
    """One hospital beside the consortium. `rank`: its place by AUROC, from the lowest; `facts`: label and text."""

    hospital: HospitalView
    overall: HospitalView
    label: str
    threshold_text: str
    model_text: str
    reading: str
    rank: int | None
    ranked: int
    rows: list[FigureRow]
    facts: list[tuple[str, str]]
    figures: list[str]
    notes: list[str]


class SubgroupView(BaseModel):
    """A subgroup over all hospitals. `figures`: by metric; `worse`: metrics that are clearly worse than those of all rows."""

    name: str
    rows: int
    events: int | None
    figures: dict[str, EstimateView]
    worse: list[str]


def hospitals(
    run_index: RunIndex, run: str, *, order: str = BY_SCORE, search: str = "", page: int = 1, size: int = PAGE
) -> HospitalsView | None:
    """Compare the hospitals of a run.

    Args:
        run_index: The runs.
        run: The run.
        order: A key of `ORDERS`.
        search: A part of the hospitals' names.
        page: The page, from 1.
        size: Hospitals of a page.

    Returns:
        The comparison; None for a run that has not finished or has no scores.
    """
    found = comparison(run_index, run)
    if found is None:
        return None
    fits = [h for h in found.order(order if order in ORDERS else BY_SCORE) if search.casefold() in h.name.casefold()]
    pages = max(1, -(-len(fits) // size))
    page = min(page, pages)
    unseen = found.unseen
    return HospitalsView(
        metric=found.metric,
        label=found.label,
        threshold=found.threshold,
        threshold_text=found.threshold_text,
        model_text=found.model_text,
        reading=found.reading,
        sentences=found.sentences(),
        overall=_view(found.overall),
        unseen=None
        if unseen is None
        else UnseenView(
            hospitals=len(unseen.sites),
            **{name: getattr(unseen, name) for name in UnseenView.model_fields if name != "hospitals"},
        ),
        order=order if order in ORDERS else BY_SCORE,
        total=len(fits),
        page=page,
        pages=pages,
        hospitals=[_view(h) for h in fits[(page - 1) * size : page * size]],
    )


def comparison(run_index: RunIndex, run: str) -> HospitalComparison | None:
    """Return the comparison of a run's hospitals; None for a run that has not finished or has no scores."""
    return run_index.get_cached(run, "hospitals", lambda f: _compare(run_index, f.name))


def _compare(run_index: RunIndex, run: str) -> HospitalComparison | None:
    record = load_record(run_index, run)
    return None if record.summary is None else compare_hospitals(record.summary, record.rounds)


def hospital(run_index: RunIndex, run: str, site: str) -> HospitalPage:
    """Compare one hospital with the consortium.

    Raises:
        NotFound: The run has no such hospital, or no scores.
    """
    found = comparison(run_index, run)
    own = None if found is None else found.find(site)
    if found is None or own is None:
        raise NotFound(f"run '{run}' has no hospital '{site[:80]}'", code="unknown-site")
    ranked = [h.name for h in found.order() if h.ranked]
    record = load_record(run_index, run)
    summary: Mapping[str, Any] = record.summary or {}
    return HospitalPage(
        hospital=_view(own),
        overall=_view(found.overall),
        label=found.label,
        threshold_text=found.threshold_text,
        model_text=found.model_text,
        reading=found.reading,
        rank=ranked.index(site) + 1 if site in ranked else None,
        ranked=len(ranked),
        rows=_rows(own, found.overall, found.label) if own.test_rows else [],
        facts=_facts(summary, own),
        figures=[name for name in HOSPITAL_FIGURES if _draw(run_index, run, site, name) is not None],
        notes=[str(note) for note in (summary.get("notes") or {}).get(site, [])],
    )


def _rows(own: Hospital, overall: Hospital, label: str) -> list[FigureRow]:
    """Put the figures of a hospital beside those of all test patients; lines that neither has are left out."""
    lines: list[tuple[str, Estimate | None, Estimate | None, str]] = [
        (label, own.score, overall.score, ""),
        ("net benefit over no model", own.benefit_gain, overall.benefit_gain, ""),
        ("gain over the majority class", own.gain, overall.gain, "points"),
        ("observed / expected events", own.calibration, overall.calibration, ""),
        ("calibration slope", own.slope, overall.slope, ""),
    ]
    for name, text in (
        ("sensitivity", "sensitivity"),
        ("specificity", "specificity"),
        ("ppv", "PPV"),
        ("accuracy", "accuracy of decisions"),
    ):
        pair = [None if h.decisions is None else getattr(h.decisions, name) for h in (own, overall)]
        lines.append((text, pair[0], pair[1], "%"))
    alerts = [None if h.decisions is None else h.decisions.alerts_per_100 for h in (own, overall)]
    lines.append(("alerts per 100 patients", alerts[0], alerts[1], ""))
    return [
        FigureRow(label=text, hospital=_estimate(a), overall=_estimate(b), unit=unit)
        for text, a, b, unit in lines
        if a is not None or b is not None
    ]


def _facts(summary: Mapping[str, Any], own: Hospital) -> list[tuple[str, str]]:
    """Describe the hospital's part in the run."""
    out = [("training patients", f"{own.train_rows:,}"), ("test patients", f"{own.test_rows:,}")]
    if own.events is not None:
        out.append(("events among them", f"{own.events:,}"))
    if own.weight is not None:
        out.append(("mean weight in the common model", f"{own.weight:.1%}"))
    personal = summary.get("personal") or {}
    choice = (personal.get("choices") or {}).get(own.name)
    if choice:
        out.append(
            (
                "model that it deploys",
                "the common model" if choice == "common" else f"the common model with its own {choice}",
            )
        )
    differs = [
        f["feature"]
        for f in ((personal.get("differences") or {}).get(own.name) or {}).get("features", ())
        if f.get("differs")
    ]
    if differs:
        names = (ColumnLabels.of_summary(summary).find(str(feature)).name for feature in differs)
        out.append(("features that differ from the common model", ", ".join(dict.fromkeys(names))))
    return out


def figure(run_index: RunIndex, run: str, site: str, name: str) -> Figure:
    """Draw a figure of one hospital.

    Raises:
        NotFound: There is no such figure or hospital.
    """
    drawn = _draw(run_index, run, site, name)
    if drawn is None:
        raise NotFound(f"run '{run}' has no figure '{name[:80]}' of hospital '{site[:80]}'", code="unknown-figure")
    return drawn


def _draw(run_index: RunIndex, run: str, site: str, name: str) -> Figure | None:
    record = load_record(run_index, run)
    if name == "importances":
        found = record.named_explanations
        return None if found is None else hospital_importances(found, site)
    return hospital_weight(record.rounds, site) if name == "weight" else None


def subgroups(run_index: RunIndex, run: str) -> list[SubgroupView]:
    """List the subgroups of a finished run with intervals, over all hospitals, by the models that hospitals deploy."""
    summary = load_record(run_index, run).summary
    if summary is None:
        return []
    summary = deployed_scores(summary)
    return [
        SubgroupView(
            name=name,
            rows=round(float(m["count"] or 0)),
            events=round(float(m["events"])) if is_defined(m.get("events")) and m["events"] is not None else None,
            figures=_subgroup_figures(m),
            worse=[metric_label(metric) for metric in clearly_worse(m, summary["final"])],
        )
        for name, m in (summary.get("subgroups") or {}).items()
    ]


def _subgroup_figures(figures: Mapping[str, Any]) -> dict[str, EstimateView]:
    ends = intervals(figures)
    names: Sequence[str] = (*shown_in(Place.SUBGROUPS), decision_key("accuracy", figures))
    out = {}
    for name in names:
        value = figures.get(name)
        if value is not None and is_defined(value):
            low, high = ends.get(name, (None, None))
            label = "accuracy of decisions" if name.endswith("accuracy") else metric_label(name)
            out[label] = EstimateView(value=float(value), low=low, high=high)
    return out


def _estimate(found: Estimate | None) -> EstimateView | None:
    return None if found is None else EstimateView(value=found.value, low=found.low, high=found.high)


def _view(h: Hospital) -> HospitalView:
    d = h.decisions
    return HospitalView(
        name=h.name,
        train_rows=h.train_rows,
        test_rows=h.test_rows,
        events=h.events,
        weight=h.weight,
        score=_estimate(h.score),
        gain=_estimate(h.gain),
        accuracy=_estimate(h.accuracy),
        calibration=_estimate(h.calibration),
        slope=_estimate(h.slope),
        sensitivity=None if d is None else _estimate(d.sensitivity),
        specificity=None if d is None else _estimate(d.specificity),
        ppv=None if d is None else _estimate(d.ppv),
        alerts_per_100=None if d is None else _estimate(d.alerts_per_100),
        net_benefit=_estimate(h.net_benefit),
        benefit_gain=_estimate(h.benefit_gain),
        verdict=h.verdict,
        verdict_text=h.verdict_text,
        ranked=h.ranked,
        notes=list(h.notes),
    )
