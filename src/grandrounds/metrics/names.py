"""What metrics are called where people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {"auroc": "AUROC", "auprc": "AUPRC", "ece": "ECE", "ppv": "PPV", "npv": "NPV", "macro_f1": "macro F1"}
NAMES |= {"decision_macro_f1": "decision macro F1", "worst_site_auroc": "worst site AUROC"}
NAMES |= {"nsds": "NSDS", "mean_nsds": "mean NSDS", "xai_accuracy": "XAI accuracy", "in_mask_share": "in-mask share"}

TUNED = "finetuned_"
"""Before a metric's name: after each site's fine-tuning (train.finetune)."""

OOD = "ood_"
"""Before a metric's name: on the test rows without the shortcut that was in the pictures (data.shortcut)."""

RESOLVED = 1e-3
"""The largest error by binning that is not worth a note."""

_BEFORE = {TUNED: "fine-tuned ", OOD: "OOD "}


_SHARES = (
    "accuracy decision_accuracy majority balanced_accuracy decision_balanced_accuracy macro_f1 decision_macro_f1 auroc "
    "auroc_low auroc_high auroc_resolution auprc auprc_resolution ece recall_at_90_specificity "
    "sensitivity specificity ppv npv worst_site_accuracy "
    "worst_site_auroc training_jaccard deployed_jaccard sketch_density spurious_mass deployed_spurious_mass mean_trust "
    "scoring_accuracy xai_accuracy grid_accuracy in_mask_share masked_accuracy local_train_accuracy local_test_accuracy "
    "others_train_accuracy external_accuracy"
)
RANGES: dict[str, tuple[float, float]] = dict.fromkeys(_SHARES.split(), (0.0, 1.0))
RANGES |= dict.fromkeys(
    ("log_loss", "mean_nsds", "cohorts", "megabytes", "epsilon", "count", "events"), (0.0, float("inf"))
)
RANGES |= dict.fromkeys(("brier", "training_drift", "consensus_drift", "deployed_divergence"), (0.0, 2.0))
RANGES |= dict.fromkeys(("spurious_gap", "reward_correlation", "cohort_consistency"), (-1.0, 1.0))
"""The least and the largest value of a figure; one that is not here has no bounds that we know."""


def range_of(metric: str) -> tuple[float, float] | None:
    """The range that a metric can have, whichever model or rows it was taken of; None where it is not known."""
    return RANGES.get(bare(metric))


def bare(metric: str) -> str:
    """The metric itself, whichever model or rows it was taken of."""
    before = next((word for word in _BEFORE if metric.startswith(word)), "")
    return metric.removeprefix(before)


def binning_note(figures: Mapping[str, Any], metric: str) -> str:
    """Return "± 0.004 at most from binning" where a figure from histograms may be off by more than `RESOLVED`, else ""."""
    off = figures.get(f"{metric}_resolution")
    return "" if off is None or off <= RESOLVED else f"± {off:.3f} at most from binning"


def with_ranking(chosen: Sequence[str]) -> tuple[str, ...]:
    """The same with AUROC before each ECE that lacks it: a model that tells nobody apart can be calibrated perfectly."""
    out: list[str] = []
    for metric in chosen:
        beside = metric.removesuffix("ece") + "auroc"
        if bare(metric) == "ece" and beside not in chosen:
            out.append(beside)
        out.append(metric)
    return tuple(dict.fromkeys(out))


def words(metric: str) -> str:
    """A metric's name for a table."""
    name = bare(metric)
    before = _BEFORE.get(metric.removesuffix(name), "")
    return before + NAMES.get(name, name.replace("_", " "))
