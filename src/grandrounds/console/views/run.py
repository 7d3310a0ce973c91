"""One run: its head, its figures by section, and a round's decision by site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from grandrounds.console.library import Library, NotFound
from grandrounds.console.views.runs import data_name
from grandrounds.errors import BadInput
from grandrounds.report.catalogue import FIGURES, Told, found
from grandrounds.report.figure import Figure
from grandrounds.report.figures import weights_by_signal
from grandrounds.runs import Run

BY_SIGNAL = "weights-by-signal"
"""The one figure that is of a single round."""


class FigurePlace(BaseModel):
    """A figure that the run has. `wide`: over the whole page."""

    name: str
    section: str
    wide: bool


class SiteLine(BaseModel):
    """A site of the final model: how many rows it has, and how well it is served."""

    site: str
    train_rows: int | None
    test_rows: int
    metrics: dict[str, float | None]
    notes: list[str]


class Weight(BaseModel):
    """A site in a round. `weight`: None where it was missing or nobody weighs."""

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
    """What the top of a run's page says."""

    name: str
    finished: bool
    title: str
    about: str
    event: str
    rounds: int
    of: int
    seed: int
    warnings: list[str]
    figures: list[FigurePlace]
    final: dict[str, float | None]
    worst_site: str | None
    worst_accuracy: float | None
    drift: dict[str, float | None]
    statement: str
    megabytes: float | None
    seconds: float | None


def told(library: Library, name: str) -> Told:
    """A run as figures take it."""
    return library.kept(name, "told", lambda f: _told(library.run(f.name)))


def _told(run: Run) -> Told:
    has = (run.folder / "explanations.json").exists()
    return Told(run.rounds, run.summary if run.finished else None, run.explanations if has else None)


def head(library: Library, name: str) -> RunHead:
    return library.kept(name, "head", lambda f: _head(f.name, library.run(f.name), told(library, f.name)))


def _head(name: str, run: Run, all_told: Told) -> RunHead:
    plan, summary = run.plan, all_told.summary
    places = [FigurePlace(name=n, section=e.section, wide=e.wide) for n, e in found(all_told).items()]
    done: dict[str, Any] = {"final": {}, "worst_site": None, "worst_accuracy": None, "drift": {}, "warnings": []}
    done |= {"statement": "", "megabytes": None, "seconds": None}
    about, event = f"{plan['model']['name']}, {len(run.site_names)} sites asked so far", ""
    if summary is not None:
        worst, cost = summary["worst_site"] or {}, summary["cost"]
        done = {
            "final": dict(summary["final"]),
            "worst_site": worst.get("site"),
            "worst_accuracy": worst.get("accuracy"),
            "drift": {
                kind: summary["explanation"][kind]["drift"] for kind in summary["explanation"] if _drift(summary, kind)
            },
            "warnings": list(summary["warnings"]),
            "statement": str(summary["privacy"]["statement"]),
            "megabytes": (cost["bytes_down"] + cost["bytes_up"]) / 1e6,
            "seconds": cost["seconds"],
        }
        event = "" if run.event is None else run.event.line
        sites = summary["sites"]
        about = f"{summary['model']} with {summary['parameters']:,} parameters, {sites['all']} sites ({sites['training']} train)"
    return RunHead(
        name=name,
        finished=run.finished,
        title=f"{data_name(plan['data'])}: {plan['method']['name']}",
        about=about,
        event=event,
        rounds=len(run.rounds),
        of=int(plan["method"]["rounds"]),
        seed=int(plan["seed"]),
        figures=places,
        **done,
    )


def _drift(summary: Mapping[str, Any], kind: str) -> bool:
    held = summary["explanation"][kind]
    return isinstance(held, Mapping) and held.get("drift") is not None


def figure(library: Library, name: str, which: str, *, round: int | None = None) -> Figure:
    """A figure by its name; `round`: of which round, where it is of one."""
    entry = FIGURES.get(which)
    if entry is None:
        raise NotFound(f"there is no figure '{which[:80]}'; known: {', '.join(FIGURES)}")
    if which == BY_SIGNAL and round is not None:
        return weights_by_signal(library.run(name).record(round)["decision"])
    drawn = library.kept(name, f"figure {which}", lambda f: entry.make(told(library, f.name)))
    if drawn is None:
        raise NotFound(f"run '{name}' has no figure '{which}'")
    return drawn


def site_lines(library: Library, name: str) -> list[SiteLine]:
    """The sites of a finished run, worst first."""
    summary = told(library, name).summary
    if summary is None:
        return []
    kept = ("accuracy", "majority", "auroc", "log_loss", "ece")
    lines = [
        SiteLine(
            site=site,
            train_rows=summary["rows"].get(site, {}).get("train"),
            test_rows=int(m["count"]),
            metrics={key: m.get(key) for key in kept},
            notes=[str(n) for n in summary["notes"].get(site, [])],
        )
        for site, m in summary["per_site"].items()
        if m["count"]
    ]
    return sorted(lines, key=lambda s: (s.metrics["accuracy"] or 0.0, s.site))


def one_round(library: Library, name: str, round: int) -> Round:
    decision = library.run(name).record(round)["decision"]
    every = list(dict.fromkeys((*decision["asked"], *decision["weights"], *decision["missing"])))
    sites = [
        Weight(
            site=site,
            weight=decision["weights"].get(site),
            missing=decision["missing"].get(site),
            signals={signal: values.get(site) for signal, values in decision["signals"].items() if site in values},
        )
        for site in every
    ]
    sites.sort(key=lambda w: (-(w.weight or 0.0), w.site))
    return Round(round=round, why=str(decision["why"]), sites=sites, notes=[str(n) for n in decision.get("notes", [])])


def why(library: Library, name: str, round: int, site: str) -> list[str]:
    """Why a site had its weight in a round, in sentences."""
    run = library.run(name)
    if site not in run.site_names:
        raise NotFound(f"run '{name}' asked no site '{site[:80]}'")
    try:
        return run.why(round, site).splitlines()
    except BadInput as e:
        raise NotFound(str(e)) from None
