"""Models that hospitals deploy: sentences and a table, from `personal` of summary.json. The report and the console share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.methods.guard.candidates import (
    COMMON,
    HEAD,
    IN_WORDS,
    INTERCEPT,
    MAJORITY,
    describe_base,
    describe_candidate,
    describe_choice,
)
from grandrounds.methods.guard.choice import FOLDS, LEAST, LEVEL
from grandrounds.metrics.fairness import MIN_ROWS, decision_metric, deployed_scores, is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE, LOSS
from grandrounds.report.hospitals import WORSE, compare_hospitals
from grandrounds.report.outcome import format_score, percent, task_of_run
from grandrounds.report.tables import TextTable

Values = Mapping[str, Any]

TITLE = "Models that hospitals deploy"

_MOST_ROWS = 60
_NAMED = 4
"""Hospitals that a sentence names."""

_FILES = "personal.safetensors and personal.json in the hospital's own folder"


@dataclass(frozen=True)
class DeployedSite:
    """The model that one hospital deploys, and its figures on the hospital's test rows.

    Attributes:
        site: The hospital.
        choice: Name of the model, one of `CHOICES`.
        model: Description of the model for readers.
        common: Figures of the common model.
        deployed: Figures of the deployed model.
        harmed: The deployed model is clearly worse than the hospital alone could do, or its decisions than no model; None
            where this was not tested.
    """

    site: str
    choice: str
    model: str
    common: Values
    deployed: Values
    harmed: bool | None


@dataclass(frozen=True)
class Deployed:
    """The models of all hospitals.

    Attributes:
        task: Task of the run.
        settings: `personal` of summary.json.
        final: Figures of the common model over all test rows.
        sites: The hospitals with test rows, harmed ones first, then by the change of their loss, the least gain first.
        worse: Hospitals where decisions by the deployed model are clearly worse than no model (`report.hospitals`).
        judged: Number of hospitals with enough test patients to compare their decisions with no model.
        rows: Rows of each hospital by use: "train", "test".
        threshold: Threshold of the common model; that of the deployed ones is in `settings`.
    """

    task: str
    settings: Values
    final: Values
    sites: tuple[DeployedSite, ...] = ()
    worse: tuple[str, ...] = ()
    judged: int = 0
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    threshold: float | None = None

    @property
    def stays(self) -> bool:
        """True if choices and figures stay at the hospitals (privacy.epsilon)."""
        return bool(self.settings["stays"])

    @property
    def loss(self) -> str:
        """The metric that training minimises."""
        return LOSS[self.task]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of the table."""
        return ("log_loss", "auroc", "accuracy") if self.task == CLASSIFICATION else (self.loss, HEADLINE[self.task])


def read_deployed(summary: Mapping[str, Any]) -> Deployed | None:
    """Read what hospitals deploy.

    Args:
        summary: The summary of a finished run.

    Returns:
        The models; None for a run without personal models.
    """
    personal = summary.get("personal")
    if not personal:
        return None
    final, rows = summary.get("final") or {}, summary.get("rows") or {}
    found = Deployed(task_of_run(summary), personal, final, rows=rows, threshold=summary.get("threshold"))
    if personal["stays"] or "per_site" not in personal:
        return found
    choices, harmed, tested = personal.get("choices") or {}, personal.get("harmed") or (), personal.get("tested") or ()
    compared = compare_hospitals(summary)
    judged = [] if compared is None else [h for h in compared.tested if h.verdict and h.test_rows >= MIN_ROWS]
    worse = tuple(h.name for h in judged if h.verdict == WORSE)
    sites = []
    for site, figures in personal["per_site"].items():
        if figures.get("count") and site in summary["per_site"]:
            choice = str(choices.get(site, COMMON))  # a site that refused keeps the common model
            known = site in harmed or site in worse if site in tested or site in worse else None
            model = describe_choice(choice, found.task)
            sites.append(DeployedSite(site, choice, model, summary["per_site"][site], figures, known))
    sites.sort(key=lambda s: (not s.harmed, _gain(s, found.loss), s.site))
    return replace(found, sites=tuple(sites), worse=worse, judged=len(judged))


def _gain(site: DeployedSite, loss: str) -> float:
    before, after = site.common.get(loss), site.deployed.get(loss)
    return float(before) - float(after) if is_defined(before) and is_defined(after) else 0.0  # type: ignore[arg-type]


def describe_harm(found: Deployed) -> list[str]:
    """Describe whether a hospital is worse off than alone or without a model, in sentences with the figures of those that are.

    Args:
        found: The models that hospitals deploy.
    """
    if found.stays:
        return [
            "Each hospital keeps a personal model; its choice, its figures and its test of harm stay there, because a privacy "
            "budget is set."
        ]
    tested, harmed = found.settings.get("tested") or (), [s for s in found.sites if s.harmed]
    if not found.settings["guard"]:
        return ["Harm to hospitals was not tested: the run has no guard (personal.guard)."]
    if not tested:
        return [f"Harm to hospitals was not tested: {_describe_untested(found)}."]
    few = [f"{_count_untested(found)}."] if _count_untested(found) else []
    counts = (
        f"the deployed model is clearly worse than a model of the hospital's own rows alone or {_constant(found)} at "
        f"{len(found.settings.get('harmed') or ())} of {len(tested)} {_plural(len(tested), 'hospital')} "
        f"({metric_label(found.loss)})"
    )
    if found.judged:
        counts += f", and its decisions are clearly worse than no model at {len(found.worse)} of {found.judged} (95% intervals)"
    if not harmed:
        who = "No hospital that can be tested" if few else "No hospital"
        return [f"{who} is clearly worse off: {counts}.", *few]
    verb = "hospital is" if len(harmed) == 1 else "hospitals are"
    lines = [f"{len(harmed)} {verb} clearly worse off: {counts}."]
    lines += [_describe_harmed(found, site) for site in harmed[:_NAMED]]
    if len(harmed) > _NAMED:
        lines.append(f"{len(harmed) - _NAMED} more are in the table.")
    return [*lines, *few]


def describe_scored(summary: Mapping[str, Any]) -> str:
    """Name the models of a run's scores, for a title: ", models that hospitals deploy", or "" for the common model."""
    return "" if deployed_scores(summary) is summary else ", models that hospitals deploy"


def _describe_untested(found: Deployed) -> str:
    """State why no hospital could be tested for harm."""
    trained = {site for site, counts in found.rows.items() if counts.get("train")}
    if trained and not any(found.rows[site].get("test") for site in trained):
        return "the hospitals that trained have no test patients"
    return "none had enough test patients, or all refused the test"


def _count_untested(found: Deployed) -> str:
    """State how many hospitals with a model could not be tested for harm; empty where all were."""
    others = len(set(found.settings.get("choices", {})) - set(found.settings.get("tested") or ()))
    return (
        f"{others} more {'has' if others == 1 else 'have'} too few test rows of each outcome to tell" if others else ""
    )


def _describe_harmed(found: Deployed, site: DeployedSite) -> str:
    constant = f"; always its most common class: {_percent(site.deployed.get('majority'))}"
    majority = constant if found.task == CLASSIFICATION else ""
    return f"{site.site} deploys {site.model}: {_changes(found, site.deployed, site.common)}{majority}."


def describe_deployed(found: Deployed) -> list[str]:
    """Describe how many hospitals deploy which model, and what it changed over all test rows.

    Args:
        found: The models that hospitals deploy.
    """
    if found.stays or not found.sites:
        return []
    counts = Counter(site.model for site in found.sites).most_common()
    listed = ", ".join(f"{words} at {n} {_plural(n, 'hospital')}" for words, n in counts)
    who = f"Every hospital deploys {counts[0][0]}" if len(counts) == 1 else f"Deployed: {listed}"
    return [f"{who}. Over all test rows: {_changes(found, found.settings['final'], found.final)}."]


def _changes(found: Deployed, after: Values, before: Values) -> str:
    """Compare figures of deployed models with those of the common one; shares as percentages."""
    base = describe_base(str(found.settings["part"]))
    clauses = [f"{metric_label(found.loss)} {_score(found.loss, after)} ({base} {_score(found.loss, before)})"]
    if found.task == CLASSIFICATION:
        right = [_percent(decision_metric("accuracy", figures)) for figures in (after, before)]
        at = [found.settings.get("threshold"), found.threshold]
        if all(t in (None, 0.5) for t in at):
            return ", ".join([f"accuracy {right[0]} ({base} {right[1]})", *clauses])
        here, there = (percent(0.5 if t is None else float(t)) for t in at)
        return ", ".join([f"accuracy {right[0]} at a threshold of {here} ({base} {right[1]} at {there})", *clauses])
    metric = HEADLINE[found.task]
    return ", ".join([*clauses, f"{metric_label(metric)} {_score(metric, after)} ({base} {_score(metric, before)})"])


def describe_rule(found: Deployed) -> list[str]:
    """Describe the guard's rule, the test of harm, and what stayed at the hospitals."""
    lines = []
    if found.settings["guard"]:
        rows = f"training rows in {FOLDS} folds" if found.settings.get("rows") == "train" else "validation rows"
        default = (
            IN_WORDS[HEAD] if found.settings["part"] == HEAD else f"{IN_WORDS[INTERCEPT]}, else {IN_WORDS[COMMON]},"
        )
        lines.append(
            f"The guard: each hospital compared its candidates on its own {rows}. It keeps {default} unless another has a loss "
            f"that is lower by two standard errors over {LEAST} patients or more, five of each of two classes."
        )
    if found.settings["part"] != HEAD and (found.settings["guard"] or found.settings["part"] == INTERCEPT):
        spread = float(found.settings.get("spread") or 0.0)
        lines.append(
            f"Intercepts are shrunk towards the common one, by their standard deviation of {spread:.2f} between hospitals."
            if spread
            else "Intercepts of hospitals do not differ beyond chance, so each is that of the common model."
        )
    if found.settings["guard"] and not found.stays:
        lines.append(
            "A hospital is harmed if on its test patients the deployed model is clearly worse than a model of its own rows alone "
            f"or than {_constant(found)} (paired bootstrap of patients; Holm's rule over hospitals at {LEVEL:.0%}), or if "
            "decisions at the threshold are clearly worse than no model (95% interval)."
        )
    left = (
        "a yes from each that it fitted one"
        if found.stays
        else "each choice's name, yes or no on harm, and these figures"
    )
    lines.append(
        f"Personal models and the comparisons behind them stay at the hospitals ({_FILES}). The server received {left}."
    )
    return lines


def deployed_table(found: Deployed) -> TextTable:
    """Return the table of hospitals, with sentences before and below it.

    Args:
        found: The models that hospitals deploy.
    """
    before, notes = (*describe_harm(found), *describe_deployed(found)), tuple(describe_rule(found))
    if found.stays or not found.sites:
        return TextTable(TITLE, (), (), before=before, notes=notes)
    is_class = found.task == CLASSIFICATION
    heads = [metric_label(m) for m in found.metrics]
    base = describe_base(str(found.settings["part"]))
    before = (*before, f"In the table, figures of each hospital's test rows: {base} → deployed model.")
    rows = [
        (
            site.site,
            site.model,
            f"{float(site.deployed['count']):.0f}",
            *(f"{_score(m, site.common)} → {_score(m, site.deployed)}" for m in found.metrics),
            *((_score("majority", site.deployed),) if is_class else ()),
            "not tested" if site.harmed is None else "yes" if site.harmed else "no",
        )
        for site in found.sites[:_MOST_ROWS]
    ]
    head = ("site", "deploys", "test rows", *heads, *(("majority class",) if is_class else ()), "harmed")
    if len(found.sites) > _MOST_ROWS:
        notes = (f"{len(found.sites) - _MOST_ROWS} more hospitals are in summary.json.", *notes)
    return TextTable(TITLE, head, tuple(rows), names=2, before=before, notes=notes)


def harm_findings(summary: Mapping[str, Any]) -> list[str]:
    """Describe harmed hospitals and deployed models for the summary of a report; empty without personal models."""
    found = read_deployed(summary)
    return [] if found is None else [*describe_harm(found), *describe_deployed(found)]


def deployed_tile(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the tile on harmed hospitals: name, value and note; none where it was not tested."""
    found = read_deployed(summary)
    if found is None or not found.settings.get("tested"):
        return []
    total, word = found.settings["final"], metric_label(found.loss)
    harmed = f"{sum(bool(s.harmed) for s in found.sites)} of {sum(s.harmed is not None for s in found.sites)}"
    return [("harmed hospitals", harmed, f"deployed {word} {_score(found.loss, total)}")]


def _score(metric: str, figures: Values) -> str:
    value = decision_metric(metric, figures) if metric == "accuracy" else figures.get(metric)
    if is_defined(value) and metric in ("accuracy", "majority", "auroc", "log_loss"):
        return f"{value:.3f}"
    return format_score(metric, value)


def _percent(share: Any) -> str:
    return f"{float(share):.0%}" if is_defined(share) else "–"


def _constant(found: Deployed) -> str:
    return describe_candidate(MAJORITY, found.task)


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def shown_sites(found: Deployed, most: int) -> Sequence[DeployedSite]:
    """Return the hospitals of a figure: harmed ones and those whose loss changed most, in the order of their change."""
    chosen = sorted(found.sites, key=lambda s: (not s.harmed, -abs(_gain(s, found.loss)), s.site))[:most]
    return sorted(chosen, key=lambda s: (-_gain(s, found.loss), s.site))
