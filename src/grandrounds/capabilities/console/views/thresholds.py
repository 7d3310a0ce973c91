"""Threshold explorer: decisions of a run at other thresholds, for all hospitals and for each."""

from __future__ import annotations

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.console.views.hospitals import EstimateView
from grandrounds.capabilities.console.views.run import load_record
from grandrounds.metrics.confusion import Decisions, Estimate
from grandrounds.metrics.score_counts import ScoreCounts
from grandrounds.report.figure import Figure
from grandrounds.report.figures.thresholds import threshold_curves
from grandrounds.report.thresholds import ThresholdExplorer, choose_rows, read_thresholds, why_absent


class DecisionsView(BaseModel):
    """Decisions at one threshold: counts, and shares with 95% intervals. `accuracy`: of these decisions."""

    threshold: float
    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int
    sensitivity: EstimateView | None
    specificity: EstimateView | None
    ppv: EstimateView | None
    npv: EstimateView | None
    accuracy: EstimateView | None
    alerts_per_100: EstimateView | None
    net_benefit: EstimateView | None
    default_benefit: float | None


class CurveView(BaseModel):
    """Decisions of one hospital, or of all, at every threshold at which they are known, from the lowest.

    `own`: place of the run's threshold in the list.
    """

    name: str
    rows: int
    events: int
    own: int
    steps: list[DecisionsView]


class ThresholdsView(BaseModel):
    """The threshold explorer of a run.

    `threshold_name`: "the run's threshold", or "the deployed models' threshold" where it differs from that of the common model;
    `hidden`: why there are no hospitals; `model_text`: whose risks they are.
    """

    threshold: float
    threshold_name: str
    least: int
    model_text: str
    note: str
    hidden: str
    overall: CurveView
    hospitals: list[CurveView]


def thresholds(run_index: RunIndex, run: str) -> ThresholdsView | None:
    """Return the threshold explorer of a run; None without counts by predicted risk (`absence` says why)."""
    return run_index.get_cached(run, "thresholds", lambda f: _view(_explorer(run_index, f.name)))


def absence(run_index: RunIndex, run: str) -> str:
    """Explain why a run has no threshold explorer."""
    summary = load_record(run_index, run).summary
    return "" if summary is None else why_absent(summary)


def chosen(run_index: RunIndex, run: str, site: str = "") -> list[DecisionsView]:
    """Return the rows of the table of chosen thresholds.

    Raises:
        NotFound: There are no counts of this hospital.
    """
    explorer, counts = _find(run_index, run, site)
    return [_decisions(d) for d in choose_rows(counts, explorer.threshold)]


def figure(run_index: RunIndex, run: str, site: str = "") -> Figure:
    """Draw the curves of a hospital, or of all.

    Raises:
        NotFound: There are no counts of this hospital.
    """
    explorer, counts = _find(run_index, run, site)
    drawn = threshold_curves(counts, explorer.threshold, name=site or "all hospitals")
    if drawn is None:
        raise NotFound(f"run '{run}' has no thresholds to draw of '{site[:80]}'", code="unknown-figure")
    return drawn


def _explorer(run_index: RunIndex, run: str) -> ThresholdExplorer | None:
    summary = load_record(run_index, run).summary
    return None if summary is None else read_thresholds(summary)


def _find(run_index: RunIndex, run: str, site: str) -> tuple[ThresholdExplorer, ScoreCounts]:
    explorer = _explorer(run_index, run)
    counts = None if explorer is None else explorer.find(site)
    if explorer is None or counts is None:
        raise NotFound(f"run '{run}' has no score counts of hospital '{site[:80]}'", code="unknown-site")
    return explorer, counts


def _view(explorer: ThresholdExplorer | None) -> ThresholdsView | None:
    if explorer is None:
        return None
    return ThresholdsView(
        threshold=explorer.threshold,
        threshold_name=explorer.threshold_name,
        least=explorer.least,
        model_text="the model that each hospital deploys" if explorer.deployed else "the common model",
        note=explorer.note,
        hidden=explorer.hidden,
        overall=_curve("all hospitals", explorer.overall, explorer.threshold),
        hospitals=[_curve(site, counts, explorer.threshold) for site, counts in sorted(explorer.hospitals.items())],
    )


def _curve(name: str, counts: ScoreCounts, threshold: float) -> CurveView:
    steps = [_decisions(counts.decide(k)) for k in range(len(counts.edges))]
    own = counts.find_edges(threshold)[0]
    return CurveView(name=name, rows=counts.rows, events=sum(counts.events), own=own, steps=steps)


def _decisions(d: Decisions) -> DecisionsView:
    return DecisionsView(
        threshold=d.threshold,
        true_positives=round(d.caught),
        false_negatives=round(d.missed),
        false_positives=round(d.false_alarms),
        true_negatives=round(d.spared),
        sensitivity=_estimate(d.sensitivity),
        specificity=_estimate(d.specificity),
        ppv=_estimate(d.ppv),
        npv=_estimate(d.npv),
        accuracy=_estimate(d.accuracy),
        alerts_per_100=_estimate(d.alerts_per_100),
        net_benefit=_estimate(d.net_benefit),
        default_benefit=d.default_benefit,
    )


def _estimate(found: Estimate | None) -> EstimateView | None:
    return None if found is None else EstimateView(value=found.value, low=found.low, high=found.high)
