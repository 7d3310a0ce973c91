"""The smallest difference that matters, by measure: margins of practical equivalence, written down on 19 November 2026, before
the runs that they judge.

A claim "A is better than B" is reproduced if the 95% interval of the difference lies above zero, and refuted if all of it lies
below the margin: then A is not better by anything that matters. Where neither is so, more seeds would decide.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from grandrounds.metrics import PairedTest, Summary
from grandrounds_studies.study import Measure


@dataclass(frozen=True)
class Margin:
    """The smallest difference that matters: an amount, or a share of the baseline's mean."""

    amount: float
    measures: tuple[str, ...]  # names, with * for any text
    why: str
    of_mean: bool = False


MARGINS = (
    Margin(
        0.05,
        ("roc", "roc_*", "last_roc*", "detected", "contributed"),
        "An ROC area over sites moves by 0.05 if one attacker and one honest site of ten swap places.",
    ),
    Margin(
        0.05,
        ("xai", "*_xai", "xai_swing", "grid", "*_grid", "in_mask", "*_in_mask", "iou", "lift"),
        "XAI accuracy is read off 30 to a few hundred images with masks: one image of 30 is 0.033.",
    ),
    Margin(
        0.05,
        ("reward_r", "contribution_r", "*_alike"),
        "A correlation that differs by less than 0.05 ranks sites or maps the same way for any use.",
    ),
    Margin(
        0.01,
        ("auroc", "auprc", "ood_auroc", "ood_auprc", "attack_auc"),
        "Published comparisons of clinical models rarely call a difference in AUROC or AUPRC below 0.01 an improvement.",
    ),
    Margin(
        0.05,
        ("log_loss", "brier"),
        "A proper score that changes by less than a twentieth changes no probability that a clinician would notice.",
        of_mean=True,
    ),
    Margin(
        0.1,
        (
            *("training_drift", "consensus_drift", "clean_drift", "drift", "deployed_divergence", "training_jaccard"),
            *("nsds", "nsds_*", "ece"),
        ),
        "The papers claim changes of 20% and more in distances between explanations and in calibration error.",
        of_mean=True,
    ),
    Margin(
        0.1,
        ("spurious_mass", "deployed_spurious_mass", "from_uniform", "local_spread", "epsilon"),
        "Distances and spreads have no scale of their own; less than a tenth of the baseline is seldom reported.",
        of_mean=True,
    ),
    Margin(
        0.1,
        (
            *("megabytes", "payload", "payload_*", "uploads", "*_mb", "*seconds", "*_s", "ms_*", "peak_memory", "cpu_share"),
            *("memory_share", "*messages", "each", "numbers", "updates", "exchanges", "*ptflops", "madds", "ig_forward"),
            *("ig_both", "parameters", "parameters_m", "sketch_entries", "nonzero", "inputs", "features", "tested"),
        ),
        "A cost that differs by less than a tenth changes no decision about hardware or a network.",
        of_mean=True,
    ),
    Margin(
        1.0,
        ("converged", "steady", "below", "clearly_below", "harmed"),
        "Rounds and hospitals are counted: one more or one fewer is the least that can differ.",
    ),
    Margin(
        0.02,
        (
            *("*accuracy", "majority", "macro_f1", "error_rate", "recall_at_90_specificity", "fidelity", "privacy_proxy"),
            *("first", "first_local", "local_train", "own_train", "others_train", "external", "ten_classes", "two_classes"),
            *("rise", "gain", "gap", "spurious_gap", "after_seven", "swing", "centre_*", "pooled", "client_mean"),
        ),
        "Two points of accuracy are the margin that the papers themselves call 'the same accuracy'.",
    ),
    Margin(
        0.02,
        (
            *("sound", "lucky", "misread", "lost", "saved", "changed", "caught", "without_*", "near_misses", "told_apart"),
            *("rises", "bad_weight", "trust", "*_trust", "area", "*_dark", "*_concentration", "*_gini", "*_inside"),
            *("*_insertion", "*_deletion"),
        ),
        "Shares of images, of sites, of weight and of heat are judged like accuracy: two points of a hundred.",
    ),
)
"""The first that names a measure is its margin."""


@dataclass(frozen=True)
class Difference(PairedTest):
    """A paired difference with the smallest one that matters."""

    margin: float = 0.0


@dataclass(frozen=True)
class Change(Summary):
    """A relative change against a baseline, with the smallest one that matters."""

    margin: float = 0.0


def margin_of(measure: Measure, baseline: float) -> float:
    """Return the smallest difference that matters, in the measure's own unit; 0 for a measure without a margin.

    Args:
        measure: The measure; percentages are recognised by their words.
        baseline: The mean of the arm that is compared with.
    """
    known = home(measure.name)
    if known is None:
        return 0.0
    if known.of_mean:
        return known.amount * abs(baseline)
    percent = any(sign in measure.words for sign in ("%", "points"))
    return known.amount * (100.0 if percent and known.amount < 1 else 1.0)


def home(measure: str) -> Margin | None:
    """Return the margin of a measure by its name."""
    return next((m for m in MARGINS if any(fnmatchcase(measure, name) for name in m.measures)), None)


def with_margin(pair: PairedTest, margin: float) -> Difference:
    return Difference(**{f.name: getattr(pair, f.name) for f in fields(PairedTest)}, margin=margin)
