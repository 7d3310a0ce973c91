"""Data that the sites of a run disclose, each with its protection: noise, secure sums, or none."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.core.plan_types import Plan
from grandrounds.core.plugins import is_path
from grandrounds.core.records import RunSummary
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.experiment.checks.privacy import under_budget
from grandrounds.methods import is_exact, is_variant_of, method_class, regularizer_class
from grandrounds.methods.base import Method
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.methods.fedxchain.checks import keeps_trust, trust_references
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.harm import confirms_on_halves
from grandrounds.methods.sse_agg.weights import resolve_lambdas
from grandrounds.methods.weigh import EXPLANATIONS

ROWS, SUMMARY, ROW_COUNTS, MODEL, SCORES = "rows", "summary", "row counts", "model", "scores"
SUMS, SUMS_BY_DAY, HISTOGRAMS, SITE_MODELS = "sums", "sums by day", "histograms", "models of sites"
ATTRIBUTIONS, HEAT_MAPS, CALIBRATION, ACCURACY = "attributions", "heat maps", "calibration", "accuracy"
SIGNALS, REFERENCE_ROWS, PERSONAL = "signals", "reference rows", "personal parts"
"""Kinds of disclosed data. Attacks on a run are listed by kind, so a new kind needs a line in `capabilities/attacks/`."""


@dataclass(frozen=True)
class Disclosure:
    """Data that left the sites, in a sentence."""

    kind: str
    text: str


def list_disclosures(plan: Plan, summary: RunSummary) -> list[str]:
    """List the data that left the sites of a run, with their protection; docs/threat-model.md goes through the same messages."""
    return [disclosure.text for disclosure in find_disclosures(plan, summary)]


def find_disclosures(plan: Plan, summary: RunSummary) -> list[Disclosure]:
    """List the data that left the sites of a run, with the kind and the protection of each. More protection shortens no list.

    Args:
        plan: The plan of a finished run.
        summary: Its summary.
    """
    is_own = is_path(plan.method.name)  # code of the user's own is not run to look at what it left
    if not is_own and is_variant_of(plan.method.name, "pooled"):
        pooled = "all training rows: this method pools them, as a reference that is not meant for hospitals"
        return [Disclosure(ROWS, pooled)]
    if not is_own and is_variant_of(plan.method.name, "watch"):
        return _watch(plan, summary)
    if not is_own and is_variant_of(plan.method.name, "quality"):
        return _quality(plan, summary)
    secure, images = plan.privacy.secure, len(summary["inputs"]) > 1
    found = [] if plan.data.encoding == "public" else [Disclosure(SUMMARY, _summary(images=images))]
    found.append(Disclosure(ROW_COUNTS, "its numbers of training, validation and test rows"))
    has_scores = is_own or method_class(plan.method.name).has_model
    found += [Disclosure(MODEL, line) for line in _training(plan)]
    found += [Disclosure(SIGNALS, line) for line in _signals(plan)]
    found += [Disclosure(SCORES, line) for line in (_tallies(plan) if has_scores else ())]
    if not is_own and is_exact(plan.method.name):
        return [*found, *_exact(plan, summary), *_personal(summary)]
    if secure and "training" in summary.explanation:  # without secure aggregation it follows from the model
        found.append(
            Disclosure(
                ATTRIBUTIONS,
                "feature attributions of its local model on received reference rows, as a share for each column or tile",
            )
        )
    if "deployed" in summary.explanation:
        found.append(
            Disclosure(
                ATTRIBUTIONS,
                "feature attributions of the final model on its own patients, as a share for each column or tile",
            )
        )
    if maps_asked(plan):
        found.append(
            Disclosure(
                HEAT_MAPS,
                "numbers of heat maps of its own and of the common model on its own images (concentration, faithfulness)",
            )
        )
    if plan.evaluation.calibrate != "none":
        noise, how = ", with noise" if under_budget(plan) else "", " (with secure aggregation)" if secure else ""
        found.append(Disclosure(CALIBRATION, f"sums over its validation rows{noise}, for calibration{how}"))
    if summary.get("local"):
        found.append(Disclosure(ACCURACY, "the accuracy of its local model on its training and test rows, by round"))
    if summary["privacy"].get("crossed_rounds"):
        found.append(
            Disclosure(
                SITE_MODELS,
                "to every other site: its unprotected model, and the accuracy of each other site's model on its rows",
            )
        )
    if summary.models:
        found.append(Disclosure(SITE_MODELS, "a model of its own, which is in the run folder"))
    found += _personal(summary)
    lent = summary["privacy"].get("lent", {})
    return [
        *found,
        *(Disclosure(REFERENCE_ROWS, f"and to every site went {n} rows of reference set '{name}'") for name, n in lent.items()),
    ]


def _watch(plan: Plan, summary: RunSummary) -> list[Disclosure]:
    """List the sums of a watch across sites: it asks for nothing else."""
    numbers = summary.get("statistic", {}).get("exchanges", {})
    how = ("with noise, " if under_budget(plan) else "") + ("into sums of all sites" if plan.privacy.secure else "as they are")
    sent = f"{numbers.get('numbers_sent', 0):,.0f} counts and sums over its new and its reference patients, {how}"
    return [Disclosure(ROW_COUNTS, "its numbers of rows"), Disclosure(SUMS, sent)]


def _quality(plan: Plan, summary: RunSummary) -> list[Disclosure]:
    """List the counts of method 'quality': it asks for nothing else."""
    numbers = summary.get("statistic", {}).get("exchanges", {})
    how = "into sums of all sites" if plan.privacy.secure else f"those of fewer than {plan.method.quality.least} patients hidden"
    how = f"with noise, {how}" if under_budget(plan) else how
    sent = f"{numbers.get('numbers_sent', 0):,.0f} counts of its rows in agreed bins, {how}"
    return [Disclosure(ROW_COUNTS, "its numbers of rows"), Disclosure(HISTOGRAMS, sent)]


def _personal(summary: RunSummary) -> list[Disclosure]:
    """List what personal parts, their guard and the test of differences sent; under a budget all of it stays at the site."""
    if not summary.personal or summary.personal.get("stays"):
        return []
    sent = "for personal models: the name of its choice, yes or no to harm, and sums and figures of its deployed model"
    if summary.personal.get("differences"):
        sent += "; by column its difference from the common model, with interval and p-value"
    return [Disclosure(PERSONAL, sent)]


def _summary(*, images: bool) -> str:
    if images:
        return "counts of pixel values of its training images, and the number of images per class"
    return (
        "its training rows column by column: every number to 0.1%, every category with its count (not whose they are)"
    )


def _training(plan: Plan) -> list[str]:
    if is_path(plan.method.name):
        return [f"whatever {plan.method.name} asks for: usually its whole model after every round it took part in"]
    if method_class(plan.method.name).spends is not Method.spends or is_exact(plan.method.name):
        return []  # its releases are events, or sums
    stability = regularizer_class(plan.method)
    more = [f"with it '{name}' ({stability.title})" for name in stability.report]
    secure, mechanism, after = plan.privacy.secure, plan.privacy.mechanism, "after every round it took part in"
    if mechanism == CLIENT:
        sent = f"its clipped update {'with a share of noise' if secure else 'without noise, which the server adds'}"
    else:
        sent = f"its {'' if secure else 'whole '}model{', trained with noise (DP-SGD)' if mechanism == DP_SGD else ''}"
    if secure:
        return [f"{sent}, {after}, into a sum: the server saw no single one", *more]
    rebuilt = "" if mechanism == DP_SGD else ", from which patients' rows can be reconstructed in part"
    return [f"{sent}{'' if mechanism == 'none' else ','} {after}{rebuilt}", *more]


def _exact(plan: Plan, summary: RunSummary) -> list[Disclosure]:
    """List the sums of an exact method."""
    numbers = summary["privacy"].get("numbers", {})
    how = "into sums of all sites" if plan.privacy.secure else "as they are"
    found = [
        Disclosure(
            SUMS,
            f"{numbers.get('numbers_sent', 0):,.0f} sums over its training rows in {numbers.get('count', 0):.0f} exchanges, "
            f"{how}; all sites hold {numbers.get('numbers_held', 0):,.0f} values",
        )
    ]
    if plan.method.exact.baseline == "days" and plan.method.name in ("cox", "survival"):
        found.append(Disclosure(SUMS_BY_DAY, "sums by the day of an event, from which rows of single patients can be read"))
    cells = summary["privacy"].get("cells", {})
    if cells:
        found.append(
            Disclosure(
                HISTOGRAMS,
                f"among them, histograms of gradients: {cells['share_single']:.1%} of the filled cells hold one patient of all "
                "sites, whose gradient tells the outcome",
            )
        )
    return found


def _signals(plan: Plan) -> list[str]:
    m = plan.method
    lines = []
    if m.select.rule in ASKS_FIRST:
        lines.append(f"its loss on training rows before each round (method.select '{m.select.rule}')")
    names = [
        n for n in ("worst_site", "calibration") if m.weigh.rule == EXPLANATIONS and resolve_lambdas(m.weigh).get(n)
    ]
    if names:
        lines.append(f"figures of its model on validation rows, to be weighed by ({', '.join(names)})")
    if (
        confirms_on_halves(m.weigh)
        and not plan.privacy.secure
        and any(s["labelled"] for s in plan.reference.plain().values())
    ):
        lines.append(
            "if the model was worse with it: its model as trained on one half of its patients, and on the other"
        )
    return [*lines, *(_trust(plan) if not is_path(m.name) and keeps_trust(plan) else [])]


def _trust(plan: Plan) -> list[str]:
    """List the inputs of FedXChain's trust."""
    t, secure = plan.method.trust, plan.privacy.secure
    lines = []
    if t.explained == "own":
        how = "into a sum, and how far they lie from its mean" if secure else "as they are"
        lines.append(f"its model's SHAP values on its own training rows, as a share for each column or tile, {how}")
    elif secure:
        lines.append("its model's SHAP values on the reference rows into a sum, and how far they lie from its mean")
    if t.accuracy_at == "site":
        lines.append("its model's accuracy on its own validation rows, to every site")
    elif secure:
        lines.append("its model's accuracy on the reference rows, to every site")
    if secure and t.rewards and trust_references(plan):
        lines.append("the loss in performance on the reference rows without its model")
    return lines


def _tallies(plan: Plan) -> list[str]:
    whose = "test patients'" if under_budget(plan) else "patients'"
    if plan.privacy.secure:
        return [f"histograms of its {whose} scores into sums, and its own accuracy and other metrics without protection"]
    return [
        f"histograms of its {whose} scores by outcome, so fine that at a small site they equal the list of scores; and its "
        "own accuracy and other metrics"
    ]
