"""One run: its head, its figures by section, and a round's decision by site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.console.views.runs import data_name
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RunSummary, Scores
from grandrounds.methods import is_exact
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.fairness import (
    clearly_worse,
    decision_key,
    decision_metric,
    deployed_scores,
    intervals,
    rank_sites,
    site_flags,
    worst_site,
)
from grandrounds.report.catalogue import FIGURES, RunRecord, list_figures
from grandrounds.report.deployed import deployed_tile
from grandrounds.report.document import has_test_rows, model_line, sites_line
from grandrounds.report.figure import Figure
from grandrounds.report.figures import weights_by_signal
from grandrounds.report.findings import describe_findings
from grandrounds.report.method_facts import method_facts
from grandrounds.report.outcome import is_classification, outcome_line, task_of_run
from grandrounds.report.page import accuracy_name, fairness_lines
from grandrounds.report.sections.outcome import outcome_groups, outcome_sites, outcome_tiles, sites_title
from grandrounds.runs.run import Run

BY_SIGNAL = "weights-by-signal"
"""The figure that shows a single round."""


class FigurePlace(BaseModel):
    """A figure that the run has. `wide`: over the whole page."""

    name: str
    section: str
    wide: bool


class SiteLine(BaseModel):
    """Scores of the final model at one site. `intervals`: 95% intervals by metric."""

    site: str
    train_rows: int | None
    test_rows: int
    events: int | None
    metrics: dict[str, float | None]
    intervals: dict[str, tuple[float, float]] = {}
    notes: list[str]


class GroupLine(BaseModel):
    """A subgroup of the test rows. `intervals`: 95% intervals by metric; `worse`: metrics in which it is clearly worse."""

    group: str
    rows: int
    events: int | None
    metrics: dict[str, float | None]
    intervals: dict[str, tuple[float, float]]
    worse: list[str]


class MethodNumber(BaseModel):
    """A number of the method's own paper. `note`: what it is compared with."""

    label: str
    value: str
    note: str


class Weight(BaseModel):
    """A site in a round. `weight`: None where it was missing, or where the method has no weights."""

    site: str
    weight: float | None
    missing: str | None
    signals: dict[str, float | None]


class Round(BaseModel):
    """One round's decision."""

    round: int
    why: str
    sites: list[Weight]
    notes: list[str]


class RunHead(BaseModel):
    """The top of a run's page."""

    name: str
    finished: bool
    title: str
    about: str
    event: str
    rounds: int
    of: int
    is_exact: bool = False  # rounds are exchanges of sums
    seed: int
    warnings: list[str]
    figures: list[FigurePlace]
    final: dict[str, float | None]
    accuracy: float | None
    accuracy_name: str
    threshold: float | None
    worst_site: str | None
    worst_accuracy: float | None
    worst_auroc: float | None
    worst_interval: tuple[float, float] | None
    served_badly: list[str]
    findings: list[str]
    drift: dict[str, float | None]
    method_numbers: list[MethodNumber] = []
    task: str = CLASSIFICATION
    tiles: list[tuple[str, str, str]] = []  # scores of other tasks, harmed hospitals: name, value, note
    is_personal: bool = False  # hospitals deploy personal models, of which all scores are
    has_shapes: bool = False
    has_card: bool = False
    withdrawn: str = ""  # the withdrawal of a site, after which the model is not valid
    statement: str
    megabytes: float | None
    seconds: float | None


def load_record(run_index: RunIndex, name: str) -> RunRecord:
    """Load the record of a run that figures are drawn from."""
    return run_index.get_cached(name, "told", lambda f: _read_record(run_index.run(f.name)))


def _read_record(run: Run) -> RunRecord:
    has = (run.folder / "explanations.json").exists()
    return RunRecord(run.rounds, run.summary if run.finished else None, run.explanations if has else None)


def head(run_index: RunIndex, name: str) -> RunHead:
    return run_index.get_cached(
        name, "head", lambda f: _head(f.name, run_index.run(f.name), load_record(run_index, f.name))
    )


def _head(name: str, run: Run, record: RunRecord) -> RunHead:
    plan, summary = run.plan, record.summary
    places = [FigurePlace(name=n, section=e.section, wide=e.wide) for n, e in list_figures(record).items()]
    scores: dict[str, Any] = {"final": {}, "accuracy": None, "accuracy_name": "accuracy", "threshold": None}
    scores |= {
        "worst_site": None,
        "worst_accuracy": None,
        "worst_auroc": None,
        "worst_interval": None,
        "served_badly": [],
        "findings": [],
    }
    scores |= {"drift": {}, "warnings": []}
    scores |= {"statement": "", "megabytes": None, "seconds": None}
    about, event = str(plan["model"]["name"]), ""
    if run.rounds and summary is None:
        about = f"{about}, {len(run.site_names)} sites contacted so far"
    if summary is not None:
        deployed, cost = deployed_scores(summary), summary.cost
        worst, other = worst_site(deployed.per_site), not is_classification(summary)
        scores = {
            "task": task_of_run(summary),
            "tiles": [*(outcome_tiles(deployed) if other and has_test_rows(summary) else []), *deployed_tile(summary)],
            "is_personal": "per_site" in summary.personal,
            "final": dict(deployed.final),
            "accuracy": decision_metric("accuracy", deployed.final),
            "accuracy_name": accuracy_name(deployed),
            "threshold": deployed.threshold,
            "worst_site": worst.get("site"),
            "worst_accuracy": decision_metric("accuracy", worst),
            "worst_auroc": worst.get("auroc"),
            "worst_interval": intervals(worst).get("auroc"),
            "served_badly": [] if other or not has_test_rows(summary) else fairness_lines(deployed),
            "findings": describe_findings(summary),
            "drift": {
                kind: summary.explanation[kind]["drift"]
                for kind in summary.explanation
                if _has_drift(summary, kind)
            },
            "method_numbers": [MethodNumber(**asdict(fact)) for fact in method_facts(summary)],
            "has_shapes": bool(summary.get("shapes")) and run.withdrawn is None,
            "has_card": bool(summary.get("card")) and run.withdrawn is None,
            "warnings": [*_repetition(summary), *summary.warnings],
            "statement": str(summary.privacy["statement"]),
            "megabytes": (cost["bytes_down"] + cost["bytes_up"]) / 1e6,
            "seconds": cost["seconds"],
        }
        event = outcome_line(summary)
        if not other and summary.parameters and run.event is not None:
            event = f"event: {run.event.describe('training rows')}"
        about = sites_line(summary)
        if summary.parameters:
            about = f"{model_line(summary)}, {about}"
    exact = is_exact(str(plan["method"]["name"]))
    return RunHead(
        name=name,
        finished=run.finished,
        title=f"{data_name(plan['data'])}: {plan['method']['name']}",
        about=about,
        event=event,
        rounds=len(run.rounds),
        of=len(run.rounds) if run.finished and exact else int(plan["method"]["rounds"]),
        is_exact=exact,
        seed=int(plan["seed"]),
        withdrawn="" if run.withdrawn is None else run.withdrawn.sentence,
        figures=places,
        **scores,
    )


def _repetition(summary: RunSummary) -> list[str]:
    """State that a run repeats an earlier one without a site that withdrew."""
    facts = summary.withdrawal
    return [f"this run repeats {facts['repeats']['folder']} without {facts['site']}, which withdrew"] if facts else []


def _has_drift(summary: RunSummary, kind: str) -> bool:
    block = summary.explanation[kind]
    return isinstance(block, Mapping) and block.get("drift") is not None


def figure(run_index: RunIndex, name: str, figure_name: str, *, round: int | None = None) -> Figure:
    """Draw a figure by its name; `round`: the round, for a figure of one."""
    entry = FIGURES.get(figure_name)
    if entry is None:
        raise NotFound(f"there is no figure '{figure_name[:80]}'; known: {', '.join(FIGURES)}", code="unknown-figure")
    if figure_name == BY_SIGNAL and round is not None:
        return weights_by_signal(run_index.run(name).record(round).decision)
    drawn = run_index.get_cached(name, f"figure {figure_name}", lambda f: entry.make(load_record(run_index, f.name)))
    if drawn is None:
        raise NotFound(f"run '{name}' has no figure '{figure_name}'", code="unknown-figure")
    return drawn


def site_lines(run_index: RunIndex, name: str) -> list[SiteLine]:
    """List the sites of a finished run, the lowest AUROC (or other headline metric of its task) first."""
    summary = load_record(run_index, name).summary
    if summary is None:
        return []
    summary, task = deployed_scores(summary), task_of_run(summary)
    metrics = (*shown_in(Place.CONSOLE_SITES, task), *shown_in(Place.REPORT_SITES, task))
    return [
        SiteLine(
            site=site,
            train_rows=summary["rows"].get(site, {}).get("train"),
            test_rows=int(m["count"]),
            events=_to_int(m.get("events")),
            metrics={key: m.get(key) for key in metrics} | {"decision_accuracy": decision_metric("accuracy", m)},
            intervals=_intervals(m),
            notes=[*site_flags(m, threshold=summary.threshold or 0.5), *(str(n) for n in summary.notes.get(site, []))],
        )
        for site, m in ((s, summary["per_site"][s]) for s in rank_sites(summary["per_site"], task))
    ]


def group_lines(run_index: RunIndex, name: str) -> list[GroupLine]:
    """List the subgroups of a finished run, where a column was named."""
    summary = load_record(run_index, name).summary
    if summary is None:
        return []
    summary, task = deployed_scores(summary), task_of_run(summary)
    metrics = (*shown_in(Place.CONSOLE_SUBGROUPS, task), *shown_in(Place.SUBGROUPS, task))
    return [
        GroupLine(
            group=group,
            rows=int(m["count"]),
            events=_to_int(m.get("events")),
            metrics={key: m.get(key) for key in metrics} | {"decision_accuracy": decision_metric("accuracy", m)},
            intervals=_intervals(m),
            worse=clearly_worse(m, summary["final"]) if task == CLASSIFICATION else [],
        )
        for group, m in (summary.get("subgroups") or {}).items()
    ]


def outcome_tables(run_index: RunIndex, name: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the tables of sites and subgroups of a run that predicts no class: title, heads and rows of text."""
    summary = load_record(run_index, name).summary
    if summary is None or is_classification(summary) or not has_test_rows(summary):
        return []
    groups = [("Subgroups", *outcome_groups(summary))] if summary.subgroups else []
    return [(sites_title(summary), *outcome_sites(summary)), *groups]


def _intervals(figures: Scores) -> dict[str, tuple[float, float]]:
    """Return intervals by metric; that of accuracy is of the decisions."""
    ends = intervals(figures)
    right = ends.get(decision_key("accuracy", figures))
    return ends if right is None else {**ends, "decision_accuracy": right}


def _to_int(value: float | None) -> int | None:
    return None if value is None else round(value)


def one_round(run_index: RunIndex, name: str, round: int) -> Round:
    decision = run_index.run(name).record(round).decision
    every = list(dict.fromkeys((*decision.asked, *decision.weights, *decision.missing)))
    sites = [
        Weight(
            site=site,
            weight=decision.weights.get(site),
            missing=decision.missing.get(site),
            signals={signal: values.get(site) for signal, values in decision.signals.items() if site in values},
        )
        for site in every
    ]
    sites.sort(key=lambda w: (-(w.weight or 0.0), w.site))
    return Round(round=round, why=str(decision.why), sites=sites, notes=[str(n) for n in decision.notes])


def why(run_index: RunIndex, name: str, round: int, site: str) -> list[str]:
    """Explain a site's weight in a round, in sentences."""
    run = run_index.run(name)
    if site not in run.site_names:
        raise NotFound(f"run '{name}' asked no site '{site[:80]}'", code="unknown-site")
    try:
        return run.why(round, site).splitlines()
    except BadInput as e:
        raise NotFound(str(e), code=e.code) from None
