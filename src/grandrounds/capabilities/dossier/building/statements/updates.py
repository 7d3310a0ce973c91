"""Statements about updates of the model after its evaluation: calibration, personal parts, fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.data import MOST_SITES
from grandrounds.capabilities.dossier.building.statements.model import state_calibration
from grandrounds.capabilities.dossier.building.statements.performance import read_interval
from grandrounds.capabilities.dossier.building.statements.run_kind import classifies, task_of
from grandrounds.methods.guard.candidates import describe_choice
from grandrounds.metrics.fairness import is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE


def state_updating(facts: Facts) -> Iterator[Statement]:
    """State updates of the model after its evaluation: calibration, personal parts, fine-tuning."""
    if not classifies(facts):
        pass
    elif facts.has(SUMMARY, "platt") or facts.has(SUMMARY, "temperature"):
        yield from state_calibration(facts)
    part, guard = (
        facts.get(SUMMARY, "personal", "part", default="none"),
        facts.get(SUMMARY, "personal", "guard", default=False),
    )
    if part != "none":
        yield say(
            "Each site adapted a part of the model to its own rows: {part}.",
            part=facts.value(SUMMARY, "personal", "part"),
        )
    if guard:
        yield say(
            "Each site compared the common model with updates of it on its own rows, and chose the one to deploy.",
            facts.source(SUMMARY, "personal", "guard"),
        )
    if facts.get(SUMMARY, "finetuned"):
        epochs = facts.value(SUMMARY, "finetuned", "epochs")
        yield say("Each site fine-tuned the model for {epochs} epochs.", epochs=epochs)
    if not has_updates(facts):
        yield say(
            "The model was not updated after its evaluation, overall or for a group or site.",
            facts.source(SUMMARY, "personal"),
        )


def has_updates(facts: Facts) -> bool:
    """Tell whether sites have updated models, or the model was calibrated after training."""
    personal = facts.get(SUMMARY, "personal", default={})
    calibrated = facts.has(SUMMARY, "platt") or facts.has(SUMMARY, "temperature")
    return bool(
        personal.get("guard") or personal.get("part", "none") != "none" or facts.get(SUMMARY, "finetuned") or calibrated
    )


def state_update_results(facts: Facts) -> Iterator[Statement]:
    """State the figures of the updated models."""
    task = task_of(facts)
    metric = HEADLINE[task]
    if facts.get(SUMMARY, "personal", "stays"):
        raise MissingFact("figures of personal models stay at the sites under a privacy budget")
    for name, what in (("personal", "models that sites deploy"), ("finetuned", "fine-tuned models")):
        if is_defined(facts.get(SUMMARY, name, "final", metric)):
            yield say(
                "On test rows of all sites the {what} have {metric} {after}; the common model has {before}.",
                what=facts.derive(name, "part of the summary", facts.source(SUMMARY, name), text=what),
                metric=facts.derive(
                    metric,
                    "headline metric of the task",
                    facts.source(SUMMARY, name, "final"),
                    text=metric_label(metric),
                ),
                after=read_interval(facts, (name, "final"), metric),
                before=read_interval(facts, ("final",), metric),
            )
    harmed = facts.get(SUMMARY, "personal", "harmed")
    if harmed is not None:
        tested = facts.value(SUMMARY, "personal", "tested")
        yield say(
            "At {harmed} of {tested} tested sites the deployed model is clearly worse (log loss) than the site's own model or "
            "its most common class.",
            harmed=facts.derive(len(harmed), "sites in personal.harmed", facts.source(SUMMARY, "personal", "harmed")),
            tested=facts.derive(len(tested.value), "sites in personal.tested", tested),
        )


def tabulate_updates(facts: Facts) -> Iterator[Table]:
    """Tabulate the model that each site deploys, with its figures before and after; nothing without personal models."""
    per_site: dict[str, Any] = facts.get(SUMMARY, "personal", "per_site", default={})
    if not per_site or len(per_site) > MOST_SITES:
        return
    metric = HEADLINE[task_of(facts)]
    rows: list[tuple[str | Value, ...]] = []
    for site in per_site:
        if not is_defined(facts.get(SUMMARY, "personal", "per_site", site, "count")):
            continue
        choice: str | Value = "common model"
        if facts.has(SUMMARY, "personal", "choices", site):
            chosen = facts.value(SUMMARY, "personal", "choices", site)
            choice = facts.derive(
                chosen.value, "choice of the site", chosen, text=describe_choice(str(chosen.value), task_of(facts))
            )
        before, after = (_figure(facts, *path, site, metric) for path in (("per_site",), ("personal", "per_site")))
        rows.append((site, choice, before, after))
    heads = (
        "site",
        "deployed model",
        f"{metric_label(metric)} of the common model",
        f"{metric_label(metric)} of the deployed model",
    )
    yield Table("Models that sites deploy", heads, tuple(rows), (facts.source(SUMMARY, "personal"),))


def _figure(facts: Facts, *path: str) -> str | Value:
    return read_interval(facts, path[:-1], path[-1]) if is_defined(facts.get(SUMMARY, *path)) else "-"
