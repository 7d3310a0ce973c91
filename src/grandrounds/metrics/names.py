"""What metrics are called where people read them."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = {"auroc": "AUROC", "auprc": "AUPRC", "ece": "ECE", "ppv": "PPV", "npv": "NPV", "macro_f1": "macro F1"}
NAMES |= {"nsds": "NSDS", "mean_nsds": "mean NSDS", "xai_accuracy": "XAI accuracy", "in_mask_share": "in-mask share"}

TUNED = "finetuned_"
"""Before a metric's name: after each site's fine-tuning (train.finetune)."""

OOD = "ood_"
"""Before a metric's name: on the test rows without the shortcut that was in the pictures (data.shortcut)."""

_BEFORE = {TUNED: "fine-tuned ", OOD: "OOD "}


def bare(metric: str) -> str:
    """The metric itself, whichever model or rows it was taken of."""
    before = next((word for word in _BEFORE if metric.startswith(word)), "")
    return metric.removeprefix(before)


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
