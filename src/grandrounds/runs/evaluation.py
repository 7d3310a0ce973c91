"""Compute scores from tallies: per round, per site, per subgroup, and for the final model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord
from grandrounds.core.sources import AT_SITES
from grandrounds.data.corruption.shortcut import PlantedShortcut
from grandrounds.data.event import order_by_event
from grandrounds.data.kinds import AnyEncoding, task_of
from grandrounds.experiment.checks.privacy import sends_summaries
from grandrounds.explain.agreement import spurious_gap
from grandrounds.methods import is_exact
from grandrounds.methods.baselines import POOL
from grandrounds.methods.exchanges import EvaluationResult
from grandrounds.metrics import OutcomeTally, Place, Tally, choose_threshold, decision_curve, scores, shown_in
from grandrounds.metrics.fairness import accuracy_without_model, below_majority, worst_site
from grandrounds.metrics.local_models import disclose_shared_models
from grandrounds.metrics.within_hospitals import GAP, WITHIN, gap_margin, mean_auroc
from grandrounds.models import model_name
from grandrounds.site.tasks import task_of_class


def site_metrics(task: str = CLASSIFICATION) -> tuple[str, ...]:
    """Return the scores of each site in the record of a round; the summary has all scores."""
    return shown_in(Place.ROUND_SITES, task)


TASK_METRICS = shown_in(Place.TASK)
"""Scores of each task, where sites have different tasks."""

Metrics = Mapping[str, Callable[[Any], float]]
"""Custom metrics of the experiment, by name."""

DECISION_THRESHOLDS = np.round(np.arange(0.01, 1.0, 0.01), 2)

NO_PRIVACY = {
    "mechanism": "none",
    "epsilon": None,
    "statement": "No formal privacy: patients' rows stay at their sites, but models, summaries, score histograms and "
    "sketches leave them as they are, and such answers can tell something about single patients.",
}

POOLED_ROWS = {
    **NO_PRIVACY,
    "statement": "No privacy: method 'pooled' puts the training rows of all sites in one place. It is the upper reference of "
    "a comparison, not federated learning.",
}


def class_weight(setting: Any, encoding: AnyEncoding, *, counted: bool = True) -> Array | None:
    """Return class weights (C,) of the loss, scaled so that the mean over training rows is 1; None for no weighting.

    Without `counted` rows, the mean over classes is 1 instead.
    """
    if setting == "none":
        return None
    counts = np.array(encoding.class_counts, float) if counted else np.ones(len(encoding.classes))
    if setting == "balanced":
        weights = 1 / counts
    else:
        weights_by_class = setting.plain()
        if set(weights_by_class) != set(encoding.classes):
            raise BadInput(
                f"train.class_weights must name every class: {', '.join(encoding.classes)}", code="bad-class-weights"
            )
        weights = np.array([float(weights_by_class[c]) for c in encoding.classes])
    scaled: Array = weights * counts.sum() / (weights * counts).sum()
    return scaled.astype(np.float32)


def figures(
    tally: Tally | OutcomeTally, *, threshold: float = 0.5, more: Metrics, only: Collection[str] | None = None
) -> dict[str, float]:
    """Compute the scores of a tally, all or `only` some, and the custom metrics."""
    values = {name: float(v) for name, v in scores(tally, threshold=threshold, only=only).items()}
    return values | {name: float(metric(tally)) for name, metric in more.items()}


def round_scores(scored: EvaluationResult, more: Metrics, task: str = CLASSIFICATION) -> dict[str, Any]:
    """Compute validation and test scores from summed tallies, and a few scores of each site's test rows."""
    out: dict[str, object] = {}
    for part, total in scored.totals.items():
        out[part] = figures(total.sum(axis=0), more=more, only=shown_in(Place.ROUND, task))
    out["sites"] = {m: dict(zip(scored.sites, scored.figures[m].tolist(), strict=True)) for m in site_metrics(task)}
    return out


def final_scores(scored: EvaluationResult, encoding: AnyEncoding, *, threshold: float, more: Metrics) -> dict[str, Any]:
    """Compute all scores of the final model: parts, sites, worst site, subgroups, threshold, decision curve."""
    task = task_of(encoding)
    train, validation = (
        figures(scored.totals[part].sum(axis=0), threshold=threshold, more=more) for part in ("train", "val")
    )
    tested = test_scores(scored, encoding, threshold=threshold, more=more)
    for part in (train, validation):
        part.pop("majority", None)  # known of test rows only: the answer without a model differs between hospitals
    gap = {m: train[m] - tested["final"][m] for m in shown_in(Place.GAP, task)}
    return {**tested, "validation": validation, "training": train, "generalisation_gap": gap}


def test_scores(scored: EvaluationResult, encoding: AnyEncoding, *, threshold: float, more: Metrics) -> dict[str, Any]:
    """Compute all scores of test rows, of the final model or of those that sites deploy, as the summary has them of both."""
    task, total, per_site = task_of(encoding), scored.totals["test"].sum(axis=0), site_figures(scored)
    is_class = task == CLASSIFICATION
    final = figures(total, threshold=threshold, more=more)
    if is_class:
        final["majority"] = accuracy_without_model(per_site, final)
        final |= _within_hospitals(final, per_site, scored)
    return {
        "threshold": threshold if is_class else None,
        "final": final,
        "per_site": per_site,
        "worst_site": worst_site(per_site, task),
        "below_majority": sites_below_majority(per_site, encoding),
        "subgroups": _subgroups(scored.totals["test"], encoding, threshold),
        "decision_curve": _decision(total, encoding) if is_class else {},
        "reliability": _reliability(total) if is_class else {},
    }


def _within_hospitals(
    final: Mapping[str, float], per_site: Mapping[str, Mapping[str, float]], scored: EvaluationResult
) -> dict[str, float]:
    """Return the AUROC within hospitals, and the pooled one less it, with an interval where hospitals send histograms."""
    within = mean_auroc(per_site)
    if not within:
        return {}
    gap = final["auroc"] - within[WITHIN]
    if scored.by_site is None:
        return {**within, GAP: gap}
    tallies = [scored.by_site[k] for k, site in enumerate(scored.sites) if per_site[site]["count"] > 0]
    half = gap_margin(tallies)
    return {**within, GAP: gap, f"{GAP}_low": gap - half, f"{GAP}_high": gap + half}


def sites_below_majority(per_site: Mapping[str, Mapping[str, float]], encoding: AnyEncoding) -> list[dict[str, object]]:
    """Return the sites whose decisions are less accurate than their majority class; none without classes."""
    if task_of(encoding) != CLASSIFICATION:
        return []
    return [vars(b) for b in below_majority(per_site, classes=order_by_event(encoding.classes, encoding.event))]


def site_figures(scored: EvaluationResult) -> dict[str, dict[str, float]]:
    """Return the scores that each site computed on its own test rows."""
    return {s: {name: float(column[k]) for name, column in scored.figures.items()} for k, s in enumerate(scored.sites)}


def task_scores(tally: Tally, encoding: AnyEncoding, task: str, *, tasks: Sequence[str], sites: int) -> dict[str, object]:
    """Compute the test scores of a task from the tally of its sites, within its classes."""
    class_indices = [c for c, word in enumerate(encoding.classes) if task_of_class(word, tasks) == task]
    confusion = tally.confusion[np.ix_(class_indices, class_indices)]
    wide = Tally(
        tally.count, tally.log_loss, tally.brier, confusion, tally.reliability, _heads(tally.histogram, class_indices)
    )
    return {"sites": sites, "classes": len(class_indices), **_floats(scores(wide, only=TASK_METRICS))}


def shortcut_scores(
    planted: PlantedShortcut,
    final: Mapping[str, float],
    ood: Mapping[str, float],
    explanation: Mapping[str, Any],
    *,
    tiles: int,
) -> dict[str, object]:
    """Measure the effect of a shortcut: test scores without the patches, spurious gap and SAM.

    The spurious gap (SSE-AGG eq. 26) is the difference in AUROC between test images with patches (`final`) and without. SAM
    (eq. 25) is computed for local models on clean images, and for the model in use on the sites' own images. A sketch that
    prefers none of its `tiles` has a SAM of `chance`.
    """
    sam, deployed = (explanation.get(kind, {}).get("spurious_mass") for kind in ("training", "deployed"))
    return {
        "p": planted.p,
        "ood": ood,
        "spurious_gap": spurious_gap(final["auroc"], ood["auroc"]),
        "sam": sam,
        "sam_deployed": deployed,
        "chance": None if sam is None and deployed is None else 1 / tiles,
        "patches": {
            site: {"corner": patch.corner, "on": planted.patched_classes(site)} for site, patch in planted.patches.items()
        },
    }


def _heads(histogram: Array, class_indices: Sequence[int]) -> Array:
    """Return the one-against-rest histograms of these classes; for two classes only the second."""
    return histogram[class_indices] if len(class_indices) > 2 else histogram[class_indices[1:]]


def _floats(values: Mapping[str, Array]) -> dict[str, float]:
    return {name: float(v) for name, v in values.items()}


def choose(val: Tally, encoding: AnyEncoding, evaluation: Any) -> float:
    """Choose the decision threshold on the validation rows of all sites."""
    if len(encoding.classes) > 2 or evaluation.threshold == "half":
        return 0.5
    if evaluation.threshold == "youden":
        return float(choose_threshold(val, "youden"))
    return float(choose_threshold(val, specificity=evaluation.specificity))


def weighted_half(weights: Array, encoding: AnyEncoding) -> float:
    """Return the risk that a model trained with class weights (C,) shows as one half.

    Deployed models show the risks of the classes as they occur; their decisions keep what the weights asked for.
    """
    if len(encoding.classes) > 2:
        return 0.5
    by_class = dict(zip(encoding.classes, weights.tolist(), strict=True))
    other, event = (float(by_class[c]) for c in order_by_event(encoding.classes, encoding.event))
    return other / (other + event)


def _subgroups(tally: Tally | OutcomeTally, encoding: AnyEncoding, threshold: float) -> dict[str, object]:
    if not encoding.groups:
        return {}
    each = scores(tally, threshold=threshold)
    names = [*encoding.groups, "unseen in training"]
    return {
        name: {m: float(column[g]) for m, column in each.items()}
        for g, name in enumerate(names)
        if each["count"][g] > 0
    }


def _decision(tally: Tally, encoding: AnyEncoding) -> dict[str, object]:
    if len(encoding.classes) > 2 or not float(tally.count):
        return {}
    curve = decision_curve(tally, DECISION_THRESHOLDS)
    return {"thresholds": curve.thresholds, "model": curve.model, "treat_all": curve.treat_all}


def _reliability(tally: Tally) -> dict[str, object]:
    """Return predicted and observed frequencies in bins of confidence (`Tally.reliability`); empty without rows."""
    rows, confidence, came = tally.reliability.T
    if not rows.sum():
        return {}
    counts = np.maximum(rows, 1)
    return {
        "of": "positive class" if tally.binary else "top class",
        "edges": np.linspace(0, 1, len(rows) + 1),
        "count": rows,
        "confidence": np.where(rows > 0, confidence / counts, np.nan),
        "outcome": np.where(rows > 0, came / counts, np.nan),
    }


def _short(table: str) -> str:
    """Return the name of a file without its folders."""
    return table if "://" in table else PurePath(table).name


SECURE = {
    **NO_PRIVACY,
    "secure": True,
    "statement": "No differential privacy. Secure aggregation: the server saw sums of models and of score histograms, and no "
    "site's own; row counts, summaries, figures of each site and any sketches left them as they are.",
}
_SEEDED = "In this simulation keys and masks follow from the seed, so whoever knows it can undo them."


def _privacy(
    lent: Mapping[str, int], sources: Mapping[str, str | None], *, secure: bool, pooled: bool, simulated: bool
) -> dict[str, object]:
    """Write the privacy statement of a run without a guarantee, with the reference rows that every site received.

    Reference rows are rows of patients, except those of a published source.
    """
    if pooled:
        return {**POOLED_ROWS, **({"lent": dict(lent)} if lent else {})}
    if secure:
        sentences = [f"{rows} rows of reference set '{name}' were sent to every site." for name, rows in lent.items()]
        return {
            **SECURE,
            **({"lent": dict(lent)} if lent else {}),
            "statement": " ".join([str(SECURE["statement"]), *([_SEEDED] if simulated else []), *sentences]),
        }
    if not lent:
        return dict(NO_PRIVACY)
    statement = str(NO_PRIVACY["statement"])
    patient_rows = {name: rows for name, rows in lent.items() if not sources.get(name)}
    if patient_rows:
        sentence = " and ".join(f"{rows} rows of reference set '{name}'" for name, rows in patient_rows.items())
        statement = statement.replace("patients' rows stay", "sites' own rows stay")
        statement = f"{statement} {sentence} were sent to every site: patients' rows."
    for name in (n for n in lent if n not in patient_rows):
        statement += (
            f" {lent[name]} images of '{sources[name]}' ('{name}') were sent to every site: published, not of patients."
        )
    return {**NO_PRIVACY, "lent": dict(lent), "statement": statement}


_EXACT_PARTS = ("estimates", "trees", "card", "shapes", "statistic")
"""Parts of summary.json with the exchanges of an exact method, in the order in which they are looked for."""


def exact_privacy(plan: Plan, facts: Mapping[str, Any]) -> dict[str, object]:
    """Write the privacy statement of an exact method: sums over patients left the sites, without noise.

    Args:
        plan: The experiment's plan.
        facts: The parts of summary.json that the method wrote: `estimates`, `shapes`, `trees`, `card` or `statistic`.

    Returns:
        The statement, with the numbers that one site sent and that all sites held.
    """
    part: Mapping[str, Any] = next((facts[name] for name in _EXACT_PARTS if facts.get(name)), {})
    exchanges = part.get("exchanges", {"count": 0, "numbers_sent": 0, "numbers_held": 0, "ratio": 0.0})
    seen = "the server saw sums over all sites and no site's own" if plan.privacy.secure else "the server saw each site's sums"
    sentence = (
        f"No differential privacy. Patients' rows stay at their sites; each site sent {exchanges['numbers_sent']:,} numbers in "
        f"{exchanges['count']} exchanges, sums over its patients, and {seen}. All sites hold {exchanges['numbers_held']:,} "
        f"values: {exchanges['ratio']:.2f} numbers were sent for each. A sum over few patients tells about them, with or "
        "without secure aggregation. Summaries of columns and row counts left the sites as they are."
    )
    cells = part.get("cells")
    if cells:
        sentence += (
            f" Of the {cells['filled']:,} histogram cells with patients, {cells['single']:,} ({cells['share_single']:.1%}) held "
            "one patient, and a patient's gradient tells the outcome."
        )
    if plan.method.exact.baseline == "days" and plan.method.name in ("cox", "survival"):
        sentence += " Sums by the day of an event: rows of single patients can be read."
    return {
        "mechanism": "none",
        "epsilon": None,
        **({"secure": True} if plan.privacy.secure else {}),
        "statement": " ".join([sentence, *describe_fit_disclosure(plan)]),
        "numbers": dict(exchanges),
        **({"cells": dict(cells)} if cells else {}),
    }


def describe_fit_disclosure(plan: Plan) -> list[str]:
    """Compare the sums of trees, cards and additive models with those of other fits, one sentence each.

    Args:
        plan: The experiment's plan.

    Returns:
        The sentences; none for other methods.
    """
    sentences = []
    if plan.method.name == "trees":
        sentences.append(
            "Boosted trees disclose more about single patients than any other fit from sums: cells of one patient can be linked "
            "across columns by their gradient, with or without secure aggregation (docs/threat-model.md)."
        )
        if plan.method.trees.rounding == "stochastic":
            sentences.append("Gradients were rounded to 8 levels at random; only against that attack was this measured.")
    if plan.method.name == "card":
        sentences.append("The card lists patients and events by total of points, with small totals merged.")
    if plan.method.name == "gam":
        sentences.append("With privacy.epsilon the additive model is fitted from one exchange of noisy counts instead.")
    return sentences


def _blurred(privacy: Mapping[str, Any], noise: float) -> Mapping[str, Any]:
    """Add to the privacy statement that noise was added to unclipped gradients (train.noise, FL-XAI 4.7)."""
    if not noise:
        return privacy
    sentence = (
        f"Gaussian noise of deviation {noise:g} was added to every step's gradient, not clipped: it gives no privacy guarantee."
    )
    return {**privacy, "gradient_noise": noise, "statement": f"{privacy['statement']} {sentence}"}


def disclose_personal(privacy: Mapping[str, Any], personal: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add to the privacy statement what personal models disclosed.

    Args:
        privacy: The statement and its terms.
        personal: `personal` of the summary; empty for a run without personal models.

    Returns:
        The same, with one sentence more.
    """
    if not personal:
        return privacy
    if personal["stays"]:
        sentence = (
            "Personal models were fitted at the sites to the private model, never left them and cost no further epsilon; "
            "choices, findings of harm, features that differ and figures of these models stay at the sites too."
        )
    else:
        sent = [
            *(["sums for the spread of intercepts"] if personal.get("estimated") else []),
            "the name of its choice",
            *(["yes or no to harm"] if personal["guard"] else []),
            *(["sums that correct the common model", "the features that differ"] if "differences" in personal else []),
            "figures of its deployed model",
        ]
        sentence = f"Personal models stayed at the sites; each site sent {', '.join(sent[:-1])} and {sent[-1]}."
    return {**privacy, "statement": f"{privacy['statement']} {sentence}"}


def cohorts(records: Sequence[RoundRecord]) -> dict[str, object]:
    """Return the final cohorts and their stability: the mean adjusted Rand index between successive rounds."""
    groups = [r["decision"]["cohorts"] for r in records if r["decision"].get("cohorts")]
    if not groups:
        return {}
    steady = [t["consistency"] for t in groups if t["consistency"] is not None]
    return {
        "count": groups[-1]["count"],
        "of": groups[-1]["of"],
        "consistency": float(np.mean(steady)) if steady else None,
    }


def summary(
    plan: Plan, final: Mapping[str, Any], *, rows: Mapping[str, Mapping[str, int]], **facts: Any
) -> dict[str, object]:
    """Build the content of summary.json."""
    training: Sequence[str] = facts.pop("training")
    task: str = facts["task"]
    lent: Mapping[str, int] = facts.pop("lent")
    promised: Mapping[str, Any] | None = facts.pop("privacy")
    sources = {name: settings.get("source") for name, settings in plan.reference.plain().items()}
    simulated, secure = plan.data.table != AT_SITES, plan.privacy.secure
    privacy = promised
    if privacy is None:
        privacy = _privacy(lent, sources, secure=secure, pooled=POOL in rows, simulated=simulated)
    if is_exact(plan.method.name):
        privacy = exact_privacy(plan, facts)
    privacy = disclose_personal(privacy, final.get("personal", {}))
    labels = {key: value for key in ("names", "units") if (value := plan.data.plain().get(key))}
    values = {
        "name": plan.name,
        "method": plan.method.name,
        "model": plan.model.name if task == CLASSIFICATION else model_name(plan.model.name, task),
        "data": plan.data.name or _short(plan.data.table or ""),
        **({"labels": labels} if labels else {}),
        "seed": plan.seed,
        "sites": {"all": len(rows) - (POOL in rows), "training": len(training)},
        **final,
        "rows": rows,
        "privacy": {
            **_blurred(disclose_shared_models(privacy, facts.get("local", {})), plan.train.noise),
            "simulated": simulated,
            "summaries": sends_summaries(plan),
        },
        **facts,
    }
    return dict(plain(values))
