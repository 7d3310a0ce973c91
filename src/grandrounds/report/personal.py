"""Personal models of a run in sentences: the models that sites deploy, their scores, and the number of harmed sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RunSummary
from grandrounds.methods.personal.parts import describe_base, describe_choice
from grandrounds.metrics.fairness import decision_key
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE, LOSS

_MOST_NAMED = 6
"""Sites that a sentence names at most."""


def personal_lines(summary: RunSummary) -> list[str]:
    """Describe the models that sites deploy and their scores, one sentence each.

    Args:
        summary: The summary of a run.

    Returns:
        Sentences; none for a run without personal models. The number of harmed sites is apart (`harm_line`).
    """
    personal = summary.personal
    if not personal:
        return []
    if personal["stays"]:
        return ["each site keeps a personal model: its choice, its scores and any harm stay at the site (privacy.epsilon)"]
    sites_of: dict[str, list[str]] = {}
    for site, choice in personal["choices"].items():
        sites_of.setdefault(choice, []).append(site)
    counted = sorted(sites_of.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [f"deployed at {_name_sites(sites)}: {describe_choice(choice, summary.task)}" for choice, sites in counted]
    deployed, final = personal["final"], summary.final
    metrics = ("accuracy", "log_loss") if summary.task == CLASSIFICATION else (HEADLINE[summary.task], LOSS[summary.task])
    base = describe_base(personal["part"])
    scores = [f"{metric_label(m)} {_number(deployed, m)} ({base} {_number(final, m)})" for m in metrics]
    return [*lines, f"with the deployed models: {', '.join(scores)}"]


def deployed_table(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Return the scores of deployed models by site, beside those of the common model and of the majority class.

    Args:
        summary: The summary of a run.

    Returns:
        The heads and one row for each site with test rows and a choice; no row where choices stay at the sites.
    """
    personal, classifies = summary.personal, summary.task == CLASSIFICATION
    metric = "accuracy" if classifies else HEADLINE[summary.task]
    base = describe_base(str((personal or {}).get("part")))
    heads = ["site", "deployed", metric_label(metric), base, *(["majority class"] if classifies else [])]
    if not personal or personal["stays"]:
        return heads, []
    rows = []
    for site, choice in personal["choices"].items():
        deployed, common = personal["per_site"].get(site, {}), summary.per_site.get(site, {})
        if not deployed.get("count"):
            continue
        scores = [_number(scored, decision_key(metric, scored), 3) for scored in (deployed, common)]
        rows.append([site, choice, *scores, *([_number(deployed, "majority", 3)] if classifies else [])])
    return heads, rows


def harm_line(summary: RunSummary) -> str:
    """Return the number of harmed sites in a sentence that names them; empty where the guard is off or answers stay at sites."""
    personal = summary.personal
    if not personal or not personal["guard"] or personal["stays"]:
        return ""
    harmed, tested = personal["harmed"], personal["tested"]
    if harmed is None:
        return "harmed sites: not tested, because no site that trains has test rows of every outcome"
    other = "most common class" if summary.task == CLASSIFICATION else "mean outcome"
    if not harmed:
        return f"harmed sites: 0 of {len(tested)} (no deployed model is clearly worse than the site's own model or its {other})"
    return (
        f"harmed sites: {len(harmed)} of {len(tested)}: {_name_sites(harmed)} (the deployed model is clearly worse than the "
        f"site's own model or its {other})"
    )


def _name_sites(sites: list[str]) -> str:
    if len(sites) > _MOST_NAMED:
        return f"{len(sites)} sites"
    return " and ".join([", ".join(sites[:-1]), sites[-1]]) if len(sites) > 1 else sites[0]


def _number(scores: Mapping[str, Any], metric: str, digits: int = 4) -> str:
    value = scores.get(metric)
    return "-" if value is None or value != value else f"{value:.{digits}f}"
