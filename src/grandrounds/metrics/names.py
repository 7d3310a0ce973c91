"""What metrics are called where people read them."""

from __future__ import annotations

NAMES = {"auroc": "AUROC", "auprc": "AUPRC", "ece": "ECE", "ppv": "PPV", "npv": "NPV", "macro_f1": "macro F1"}


def words(metric: str) -> str:
    """A metric's name for a table."""
    return NAMES.get(metric, metric.replace("_", " "))
