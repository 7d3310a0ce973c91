"""Accuracy of local models, for a run's summary, its screen and its report; from the records of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from grandrounds.core.records import RoundRecord

FIGURES = ("train_accuracy", "train_loss", "test_accuracy", "others_train", "external")
"""Scores of local models in a round's `local`."""

_WEIGHTED_BY = {"test_accuracy": "test"}
"""Means weigh sites by training rows; scores on own test rows weigh them by test rows."""

Rows = Mapping[str, Mapping[str, int]]


def local_summary(records: Sequence[RoundRecord], rows: Rows) -> dict[str, dict[str, object]]:
    """Return the summary's `local`: means over sites in the last round that has any; nothing for a run that asked for none.

    `crossed_rounds`: in how many rounds local models went to other sites.
    """
    with_local = [r for r in records if r.get("local")]
    if not with_local:
        return {}
    crossed = sum("external" in r["local"] for r in with_local)
    last = {"round": with_local[-1]["round"], **local_means(with_local[-1]["local"], rows)}
    return {"local": {**last, **({"crossed_rounds": crossed} if crossed else {})}}


def local_means(local: Mapping[str, Mapping[str, float | None]], rows: Rows) -> dict[str, float | None]:
    """Return each figure's mean over the sites that have it, weighed by their rows; None where no site has."""
    out: dict[str, float | None] = {}
    for name in (n for n in FIGURES if n in local):
        part = _WEIGHTED_BY.get(name, "train")
        finite = {site: v for site, v in local[name].items() if v is not None and isfinite(v) and rows[site][part]}
        total = sum(rows[site][part] for site in finite)
        out[name] = sum(v * rows[site][part] for site, v in finite.items()) / total if total else None
    return out


def disclose_shared_models(privacy: Mapping[str, object], local: Mapping[str, object]) -> Mapping[str, object]:
    """Add to the privacy statement that local models were sent to other sites, where they were."""
    number = local.get("crossed_rounds", 0)
    if not number:
        return privacy
    rounds = f"{number} round{'s' * (number != 1)}"
    sentence = (
        f"In {rounds} every local model was sent to every other site without protection, and each site reported their "
        "accuracy on its training and test rows (evaluation.local_models = 'crossed')."
    )
    return {**privacy, "crossed_rounds": number, "statement": f"{privacy['statement']} {sentence}"}
