"""Which figures a run has, by name and section: for the console, which draws them one by one as they are scrolled to.

A figure whose numbers a run does not have is None. Conditions that the report has as well are asked here, and there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.methods.fedxchain.summary import trust_decisions
from grandrounds.privacy.in_words import promised
from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.figures.importance import KINDS, blocks, newest
from grandrounds.report.sections.privacy import spending_figure

_TOP = 15


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says. `summary`: None of a run that has not finished; `explanations`: None where none were made."""

    rounds: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any] | None = None
    explanations: Mapping[str, Any] | None = None

    def explained(self, kind: str) -> int:
        """Rounds with sketches of a kind."""
        return 0 if self.explanations is None else len(blocks(self.explanations, kind))


@dataclass(frozen=True)
class Entry:
    """One figure. `section`: where it belongs; `wide`: over the whole page; `there`: whether a run has it, where making it
    takes long."""

    section: str
    make: Callable[[RunRecord], Figure | None]
    wide: bool = False
    there: Callable[[RunRecord], bool] | None = None

    def is_there(self, told: RunRecord) -> bool:
        return self.make(told) is not None if self.there is None else self.there(told)


def list_figures(told: RunRecord) -> dict[str, Entry]:
    """The figures that this run has, in order."""
    return {name: entry for name, entry in FIGURES.items() if entry.is_there(told)}


def _curves(told: RunRecord) -> Figure | None:
    return figures.curves(told.rounds, told.summary) if any("test" in r for r in told.rounds) else None


def _at_sites(metric: str) -> Callable[[RunRecord], Figure | None]:
    def make(told: RunRecord) -> Figure | None:
        judged = [r for r in told.rounds if "test" in r]
        if not judged or not any(v is not None for v in judged[-1]["sites"].get(metric, {}).values()):
            return None
        return figures.site_curves(told.rounds, metric)

    return make


def _weights(told: RunRecord) -> Figure | None:
    return figures.weights(told.rounds) if any(r["decision"]["weights"] for r in told.rounds) else None


def _by_signal(told: RunRecord) -> Figure | None:
    weighed = [r["decision"] for r in told.rounds if r["decision"]["weights"] and r["decision"]["signals"]]
    return figures.weights_by_signal(weighed[-1]) if weighed else None


def _signal(name: str, make: Callable[[Sequence[Mapping[str, Any]]], Figure]) -> Callable[[RunRecord], Figure | None]:
    return lambda told: make(told.rounds) if any(r["decision"]["signals"].get(name) for r in told.rounds) else None


def _cohorts(told: RunRecord) -> Figure | None:
    grouped = any((r["decision"].get("cohorts") or {}).get("of") for r in told.rounds)
    return figures.cohorts_over_rounds(told.rounds) if grouped else None


def _of_summary(key: str, make: Callable[[Any], Figure]) -> Callable[[RunRecord], Figure | None]:
    return lambda told: make(told.summary[key]) if told.summary is not None and told.summary.get(key) else None


def _over_rounds(make: Callable[[Mapping[str, Any]], Figure]) -> Callable[[RunRecord], Figure | None]:
    def drawn(told: RunRecord) -> Figure | None:
        return make(told.explanations) if told.explanations and any(told.explained(k) > 1 for k in KINDS) else None

    return drawn


def _importances(told: RunRecord) -> Figure | None:
    if told.explanations is None or not told.explained("deployed"):
        return None
    shares = newest(told.explanations, "deployed")["consensus"]
    return figures.importances(told.explanations["features"], shares, top=_TOP, title="What the common model goes by")


def _heat(kind: str) -> Callable[[RunRecord], Figure | None]:
    def make(told: RunRecord) -> Figure | None:
        return (
            figures.importance_heatmap(told.explanations, kind) if told.explanations and told.explained(kind) else None
        )

    return make


def _apart(kind: str) -> Callable[[RunRecord], Figure | None]:
    """Pair by pair where pairs were kept, else each site's distance to the consensus."""

    def make(told: RunRecord) -> Figure | None:
        if told.explanations is None or not told.explained(kind):
            return None
        if any(b.get("pairs") for b in blocks(told.explanations, kind).values()):
            return figures.pairwise_drift(told.explanations, kind)
        return figures.distance_to_consensus(told.explanations, kind)

    return make


def _trust(make: Callable[[RunRecord], Figure], *, course: bool = True) -> Callable[[RunRecord], Figure | None]:
    def drawn(told: RunRecord) -> Figure | None:
        kept = trust_decisions(told.rounds)
        return make(told) if kept and told.summary and told.summary.get("trust") and len(kept) > course else None

    return drawn


def _rewards(told: RunRecord) -> Figure | None:
    kept = trust_decisions(told.rounds)
    rewarded = len(kept) > 1 and any(d["signals"].get("reward") for d in kept)
    return figures.rewards_over_rounds(told.rounds) if rewarded else None


def _watched(told: RunRecord) -> Figure | None:
    scored = [r for r in told.rounds if r.get("reasons")]
    held = (told.summary or {}).get("reasons")
    return figures.reasons_over_rounds(scored, held["baselines"]) if held and len(scored) > 1 else None


def _maps(make: Callable[[Sequence[Mapping[str, Any]]], Figure]) -> Callable[[RunRecord], Figure | None]:
    def drawn(told: RunRecord) -> Figure | None:
        seen = [r for r in told.rounds if r.get("maps")]
        return make(seen) if len(seen) > 1 else None

    return drawn


def _local(told: RunRecord) -> Figure | None:
    scored = [r for r in told.rounds if r.get("local")]
    return figures.local_curves(scored) if scored else None


def _spent(told: RunRecord) -> bool:
    said = (told.summary or {}).get("privacy", {})
    return bool(said.get("events")) and promised(said)


def _spending(told: RunRecord) -> Figure | None:
    return spending_figure(told.summary["privacy"], told.rounds) if told.summary is not None and _spent(told) else None


COURSE, JUDGED, WEIGHTS, REASONS, TRUST, PICTURES, COST, PRIVACY = (
    "Course", "Calibration", "Weights", "Reasons", "Trust", "Pictures", "Who was there, and cost", "Privacy",
)  # fmt: skip

FIGURES: dict[str, Entry] = {
    "curves": Entry(COURSE, _curves, wide=True),
    "sites-accuracy": Entry(COURSE, _at_sites("accuracy")),
    "sites-auroc": Entry(COURSE, _at_sites("auroc")),
    "sites-log-loss": Entry(COURSE, _at_sites("log_loss")),
    "sites-ece": Entry(COURSE, _at_sites("ece")),
    "local": Entry(COURSE, _local, wide=True),
    "reliability": Entry(JUDGED, _of_summary("reliability", figures.reliability)),
    "decision-curve": Entry(JUDGED, _of_summary("decision_curve", figures.decision_curve)),
    "weights": Entry(WEIGHTS, _weights, wide=True),
    "weights-by-signal": Entry(WEIGHTS, _by_signal, wide=True),
    "disagreement": Entry(WEIGHTS, _signal("disagreement", figures.disagreement_over_rounds)),
    "cohorts": Entry(WEIGHTS, _cohorts),
    "drift": Entry(REASONS, _over_rounds(figures.drift_over_rounds)),
    "jaccard": Entry(REASONS, _over_rounds(figures.jaccard_over_rounds)),
    "importances": Entry(REASONS, _importances, wide=True),
    "heat-training": Entry(REASONS, _heat("training"), wide=True),
    "heat-deployed": Entry(REASONS, _heat("deployed"), wide=True),
    "pairs-training": Entry(REASONS, _apart("training")),
    "pairs-deployed": Entry(REASONS, _apart("deployed")),
    "trust": Entry(TRUST, _trust(lambda t: figures.trust_over_rounds(t.rounds))),
    "nsds": Entry(TRUST, _trust(lambda t: figures.nsds_over_rounds(t.rounds, (t.summary or {})["trust"]["alarm"]))),
    "trust-parts": Entry(
        TRUST,
        _trust(
            lambda t: figures.trust_parts(trust_decisions(t.rounds)[-1], (t.summary or {})["trust"]["rule"]), course=False
        ),
        wide=True,
    ),
    "rewards": Entry(TRUST, _rewards, wide=True),
    "right-reasons": Entry(PICTURES, _watched, wide=True),
    "maps-sharp": Entry(PICTURES, _maps(figures.maps_sharp)),
    "maps-alike": Entry(PICTURES, _maps(figures.maps_alike)),
    "presence": Entry(COST, lambda t: figures.presence_over_rounds(t.rounds) if t.rounds else None, wide=True),
    "bytes": Entry(COST, lambda t: figures.bytes_over_rounds(t.rounds) if t.rounds else None),
    "seconds": Entry(COST, lambda t: figures.seconds_over_rounds(t.rounds) if t.rounds else None),
    "epsilon": Entry(PRIVACY, _spending, wide=True, there=_spent),
}
