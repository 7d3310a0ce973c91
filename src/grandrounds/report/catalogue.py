"""Catalogue of a run's figures by name and section, for the console, which draws each one when it scrolls into view.

A figure is None for a run without its numbers. The report checks some of these conditions as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.metrics.fairness import deployed_scores
from grandrounds.metrics.scores import HEADLINE
from grandrounds.privacy.in_words import promised
from grandrounds.report import figures
from grandrounds.report.deployed import read_deployed
from grandrounds.report.differences import read_differences
from grandrounds.report.estimates import common_estimate, forest_names, read_estimates, slopes
from grandrounds.report.explanations import KINDS, Explanations, blocks_by_round, name_features, newest_block
from grandrounds.report.figure import Figure
from grandrounds.report.figures.differences import differences_forest
from grandrounds.report.figures.groups import group_gaps
from grandrounds.report.figures.hospitals import hospital_forest
from grandrounds.report.figures.thresholds import threshold_curves
from grandrounds.report.figures.trust import trust_decisions
from grandrounds.report.hospitals import compare_hospitals
from grandrounds.report.method_facts import selection_figure
from grandrounds.report.risk_card import read_card
from grandrounds.report.sections.privacy import spending_figure
from grandrounds.report.sections.shapes import has_validation
from grandrounds.report.sections.trust import TrustRecord, trust_record
from grandrounds.report.shapes import SHOWN, read_shapes
from grandrounds.report.tables import has_curve, read_survival
from grandrounds.report.thresholds import read_thresholds
from grandrounds.report.trees import read_trees

_TOP = 15
_HEADLINES = [metric for task, metric in HEADLINE.items() if task != CLASSIFICATION]
"""Metrics that rank sites of runs that predict no class."""


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder that figures are drawn from.

    Attributes:
        rounds: The record of each round.
        summary: The summary; None for a run that has not finished.
        explanations: explanations.json; None where there is none.
    """

    rounds: Sequence[RoundRecord]
    summary: RunSummary | None = None
    explanations: Explanations | None = None

    @property
    def named_explanations(self) -> Explanations | None:
        """Explanations with the clinical names of columns, as figures show them."""
        return name_features(self.explanations, ColumnLabels.of_summary(self.summary or {}))

    def explained_rounds(self, kind: str) -> int:
        """Count the rounds with sketches of a kind."""
        return 0 if self.explanations is None else len(blocks_by_round(self.explanations, kind))


Draw = Callable[[RunRecord], Figure | None]
"""Draws a figure of a run; None for a run without its numbers."""


@dataclass(frozen=True)
class Entry:
    """One figure of the catalogue.

    Attributes:
        section: The section that it belongs to.
        make: Draws it.
        wide: It takes the whole width of a page.
        available: Tells whether a run has it, where drawing it takes long.
    """

    section: str
    make: Draw
    wide: bool = False
    available: Callable[[RunRecord], bool] | None = None

    def is_available(self, run: RunRecord) -> bool:
        """Tell whether a run has this figure."""
        return self.make(run) is not None if self.available is None else self.available(run)


def list_figures(run: RunRecord) -> dict[str, Entry]:
    """List the figures that a run has.

    Returns:
        Name -> entry, in the order they are shown in.
    """
    return {name: entry for name, entry in FIGURES.items() if entry.is_available(run)}


def _curves(run: RunRecord) -> Figure | None:
    tested = [r.test for r in run.rounds if r.test is not None]
    if not tested:
        return None
    metric = next((m for m in _HEADLINES if m in tested[-1]), None)
    if metric is not None and "accuracy" not in tested[-1]:
        return figures.outcome_curves(run.rounds, metric)
    return figures.curves(run.rounds, run.summary)


def _has_curves(run: RunRecord) -> bool:
    return any(r.test is not None for r in run.rounds)


def _site_metric(metric: str) -> Entry:
    def has(run: RunRecord) -> bool:
        last = next((r for r in reversed(run.rounds) if r.test is not None), None)
        return last is not None and any(v is not None for v in last.sites.get(metric, {}).values())

    def draw(run: RunRecord) -> Figure | None:
        return figures.site_curves(run.rounds, metric, run.summary) if has(run) else None

    return Entry(TRAINING, draw, available=has)


def _has_weights(run: RunRecord) -> bool:
    return any(r.decision.weights for r in run.rounds)


def _weights(run: RunRecord) -> Figure | None:
    return figures.weights(run.rounds) if _has_weights(run) else None


def _selection(run: RunRecord) -> Figure | None:
    return None if run.summary is None else selection_figure(run.summary, run.rounds)


def _over_rounds(make: Callable[[Sequence[RoundRecord]], Figure], *, wide: bool = False) -> Entry:
    """Return a figure that every run with a round has."""
    return Entry(COST, lambda run: make(run.rounds) if run.rounds else None, wide, lambda run: bool(run.rounds))


def _by_signal(run: RunRecord) -> Figure | None:
    weighed = [r.decision for r in run.rounds if r.decision.weights and r.decision.signals]
    return figures.weights_by_signal(weighed[-1]) if weighed else None


def _signal(name: str, make: Callable[[Sequence[RoundRecord]], Figure]) -> Draw:
    return lambda run: make(run.rounds) if any(r.decision.signals.get(name) for r in run.rounds) else None


def _cohorts(run: RunRecord) -> Figure | None:
    grouped = any((r.decision.cohorts or {}).get("of") for r in run.rounds)
    return figures.cohorts_over_rounds(run.rounds) if grouped else None


def _from_summary(key: str, make: Callable[[Any], Figure | None]) -> Draw:
    """Return a figure of test patients, by the models that hospitals deploy."""

    def draw(run: RunRecord) -> Figure | None:
        found = None if run.summary is None else deployed_scores(run.summary).get(key)
        return make(found) if found else None

    return draw


def _drift_figure(make: Callable[[Explanations], Figure]) -> Draw:
    def draw(run: RunRecord) -> Figure | None:
        found = run.named_explanations
        return make(found) if found and any(run.explained_rounds(k) > 1 for k in KINDS) else None

    return draw


def _importances(run: RunRecord) -> Figure | None:
    found = run.named_explanations
    if found is None or not run.explained_rounds("deployed"):
        return None
    shares = newest_block(found, "deployed")["consensus"]
    title = "Most important features of the common model"
    return figures.importances(found["features"], shares, top=_TOP, title=title)


def _heat(kind: str) -> Draw:
    def draw(run: RunRecord) -> Figure | None:
        found = run.named_explanations
        return figures.importance_heatmap(found, kind) if found and run.explained_rounds(kind) else None

    return draw


def _distances(kind: str) -> Draw:
    """Draw distances pair by pair where pairs were kept, else each site's distance to the consensus."""

    def draw(run: RunRecord) -> Figure | None:
        if run.explanations is None or not run.explained_rounds(kind):
            return None
        if any(b.get("pairs") for b in blocks_by_round(run.explanations, kind).values()):
            return figures.pairwise_drift(run.explanations, kind)
        return figures.distance_to_consensus(run.explanations, kind)

    return draw


def _trust(make: Callable[[RunRecord, TrustRecord], Figure], *, rounds: int = 2) -> Draw:
    """Draw a figure of trust for runs that keep it in so many rounds or more."""

    def draw(run: RunRecord) -> Figure | None:
        trust = trust_record(run.summary) if run.summary is not None else None
        return make(run, trust) if trust and len(trust_decisions(run.rounds)) >= rounds else None

    return draw


def _trust_parts(run: RunRecord, trust: TrustRecord) -> Figure:
    return figures.trust_parts(trust_decisions(run.rounds)[-1], trust["rule"])


def _rewards(run: RunRecord) -> Figure | None:
    decisions = trust_decisions(run.rounds)
    rewarded = len(decisions) > 1 and any(d.signals.get("reward") for d in decisions)
    return figures.rewards_over_rounds(run.rounds) if rewarded else None


def _rationale(run: RunRecord) -> Figure | None:
    scored = [r for r in run.rounds if r.reasons]
    reasons = run.summary.reasons if run.summary is not None else None
    return figures.rationale_over_rounds(scored, reasons["baselines"]) if reasons and len(scored) > 1 else None


def _maps(make: Callable[[Sequence[RoundRecord]], Figure]) -> Draw:
    def draw(run: RunRecord) -> Figure | None:
        mapped = [r for r in run.rounds if r.maps]
        return make(mapped) if len(mapped) > 1 else None

    return draw


def _local(run: RunRecord) -> Figure | None:
    scored = [r for r in run.rounds if r.local]
    return figures.local_curves(scored) if scored else None


def _has_spending(run: RunRecord) -> bool:
    privacy = run.summary.privacy if run.summary is not None else {}
    return bool(privacy.get("events")) and promised(privacy)


def _spending(run: RunRecord) -> Figure | None:
    return spending_figure(run.summary.privacy, run.rounds) if run.summary is not None and _has_spending(run) else None


def _coefficients(run: RunRecord) -> Figure | None:
    record = None if run.summary is None else read_estimates(run.summary)
    return figures.coefficients(record.fitted, record.original) if record is not None and slopes(record.fitted) else None


def _forest(place: int) -> Draw:
    """Draw the forest plot at this place in the order of `forest_names`."""

    def draw(run: RunRecord) -> Figure | None:
        record = None if run.summary is None else read_estimates(run.summary)
        if record is None or record.heterogeneity is None:
            return None
        names = forest_names(record)[place : place + 1]
        return figures.forest(record.heterogeneity, names[0], common_estimate(record, names[0])) if names else None

    return draw


def _survival(run: RunRecord) -> Figure | None:
    found = None if run.summary is None else read_survival(run.summary)
    return figures.survival_curves(found) if found is not None and has_curve(found) else None


def _shape(place: int) -> Draw:
    """Draw the shape of the column at this place in the order of importance."""

    def draw(run: RunRecord) -> Figure | None:
        record = None if run.summary is None else read_shapes(run.summary)
        names = [] if record is None else [s.name for s in record.used[place : place + 1]]
        if run.summary is None or record is None or not names:
            return None
        return figures.shape(record, names[0], columns=ColumnLabels.of_summary(run.summary))

    return draw


def _has_shape(place: int) -> Callable[[RunRecord], bool]:
    def has(run: RunRecord) -> bool:
        record = None if run.summary is None else read_shapes(run.summary)
        return record is not None and len(record.used) > place

    return has


def _differences(run: RunRecord) -> Figure | None:
    return None if run.summary is None else differences_forest(list(read_differences(run.summary).values()))


def _boosting(run: RunRecord) -> Figure | None:
    record = None if run.summary is None else read_trees(run.summary)
    return figures.validation_curve(record.validation) if record is not None and has_validation(record) else None


def _deployed(run: RunRecord) -> Figure | None:
    found = None if run.summary is None else read_deployed(run.summary)
    return None if found is None else figures.deployed_losses(found)


def _risk_card(run: RunRecord) -> Figure | None:
    record = None if run.summary is None else read_card(run.summary)
    return None if record is None else figures.risk_by_total(record)


def _hospitals(run: RunRecord) -> Figure | None:
    found = None if run.summary is None else compare_hospitals(run.summary)
    return None if found is None or len(found.hospitals) < 2 else hospital_forest(found)


def _thresholds(run: RunRecord) -> Figure | None:
    found = None if run.summary is None else read_thresholds(run.summary)
    return None if found is None else threshold_curves(found.overall, found.threshold)


(
    ESTIMATES, RISK_CARD, SHAPES, TREES, SURVIVAL, DEPLOYED, HOSPITALS, TRAINING, CALIBRATION, GROUPS, WEIGHTS, EXPLANATIONS,
    TRUST, IMAGES, COST, PRIVACY,
) = (
    "Estimates", "Risk card", "Shapes", "Boosted trees", "Survival", "Deployed models", "Hospitals", "Training", "Calibration",
    "Groups of patients", "Weights", "Explanations", "Trust", "Images", "Participation and cost", "Privacy",
)  # fmt: skip

FIGURES: dict[str, Entry] = {
    "coefficients": Entry(ESTIMATES, _coefficients, wide=True),
    **{f"forest-{k + 1}": Entry(ESTIMATES, _forest(k), wide=True) for k in range(4)},
    "risk-card": Entry(RISK_CARD, _risk_card, wide=True),
    **{f"shape-{k + 1}": Entry(SHAPES, _shape(k), available=_has_shape(k)) for k in range(SHOWN)},
    "boosting": Entry(TREES, _boosting, wide=True),
    "survival": Entry(SURVIVAL, _survival, wide=True),
    "deployed": Entry(DEPLOYED, _deployed, wide=True),
    "hospitals": Entry(HOSPITALS, _hospitals, wide=True),
    "curves": Entry(TRAINING, _curves, wide=True, available=_has_curves),
    "sites-accuracy": _site_metric("accuracy"),
    "sites-auroc": _site_metric("auroc"),
    "sites-log-loss": _site_metric("log_loss"),
    "sites-ece": _site_metric("ece"),
    **{f"sites-{metric.replace('_', '-')}": _site_metric(metric) for metric in _HEADLINES},
    "local": Entry(TRAINING, _local, wide=True),
    "reliability": Entry(CALIBRATION, _from_summary("reliability", figures.reliability)),
    "decision-curve": Entry(CALIBRATION, _from_summary("decision_curve", figures.decision_curve)),
    "thresholds": Entry(CALIBRATION, _thresholds, wide=True),
    "group-gaps": Entry(GROUPS, _from_summary("fairness", group_gaps), wide=True),
    "weights": Entry(WEIGHTS, _weights, wide=True, available=_has_weights),
    "weights-by-signal": Entry(WEIGHTS, _by_signal, wide=True),
    "selection": Entry(WEIGHTS, _selection, wide=True),
    "disagreement": Entry(WEIGHTS, _signal("disagreement", figures.disagreement_over_rounds)),
    "cohorts": Entry(WEIGHTS, _cohorts),
    "drift": Entry(EXPLANATIONS, _drift_figure(figures.drift_over_rounds)),
    "jaccard": Entry(EXPLANATIONS, _drift_figure(figures.jaccard_over_rounds)),
    "importances": Entry(EXPLANATIONS, _importances, wide=True),
    "heat-training": Entry(EXPLANATIONS, _heat("training"), wide=True),
    "heat-deployed": Entry(EXPLANATIONS, _heat("deployed"), wide=True),
    "pairs-training": Entry(EXPLANATIONS, _distances("training")),
    "pairs-deployed": Entry(EXPLANATIONS, _distances("deployed")),
    "differences": Entry(EXPLANATIONS, _differences, wide=True),
    "trust": Entry(TRUST, _trust(lambda run, _: figures.trust_over_rounds(run.rounds))),
    "nsds": Entry(TRUST, _trust(lambda run, trust: figures.nsds_over_rounds(run.rounds, trust["alarm"]))),
    "trust-parts": Entry(TRUST, _trust(_trust_parts, rounds=1), wide=True),
    "rewards": Entry(TRUST, _rewards, wide=True),
    "right-reasons": Entry(IMAGES, _rationale, wide=True),
    "maps-sharp": Entry(IMAGES, _maps(figures.map_concentration)),
    "maps-alike": Entry(IMAGES, _maps(figures.map_similarity)),
    "presence": _over_rounds(figures.presence_over_rounds, wide=True),
    "bytes": _over_rounds(figures.bytes_over_rounds),
    "seconds": _over_rounds(figures.seconds_over_rounds),
    "epsilon": Entry(PRIVACY, _spending, wide=True, available=_has_spending),
}
