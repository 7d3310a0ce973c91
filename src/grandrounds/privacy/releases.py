"""Every report that can leave a site, and what becomes of it while privacy.epsilon is set.

A report is charged to the budget, public, refused, empty, or not covered by the promise and listed in its statement. A site
answers with no report that this table does not have (`SiteHost.answer`), and under a budget with none that is refused.
`docs/releases.md` is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHARGED, PUBLIC, REFUSED, EMPTY, UNCOVERED = "charged", "public", "refused", "empty", "not covered"

CLASSES = {
    CHARGED: "has noise, and the accountant is charged for it before it is asked for",
    PUBLIC: "tells nothing of patients",
    REFUSED: "is refused: by the plan before the run starts, and by the site",
    EMPTY: "leaves without a value: sites treat these rows as if there were none",
    UNCOVERED: "leaves as it is, and the privacy statement lists it under `not covered`",
}
"""Every class of a release, and what it means while privacy.epsilon is set."""


@dataclass(frozen=True)
class Release:
    """A report of a task, or a file of the run folder.

    `tells`: the data in it. `why`: who charges it, why it is public, what refuses it, or how the statement lists it.
    """

    kind: str
    tells: str
    why: str


def _charged(tells: str, why: str) -> Release:
    return Release(CHARGED, tells, why)


def _public(tells: str, why: str = "made of no patient's data") -> Release:
    return Release(PUBLIC, tells, why)


def _refused(tells: str, why: str) -> Release:
    return Release(REFUSED, tells, why)


_ROWS = "how many rows each site has"
_TEST = "test rows, whose figures are as they are"
_PREPARED = "how rows are prepared"
"""Beginnings of sentences of the privacy statement (`privacy_limits.not_covered`)."""

_MODEL = "DP-SGD: `models of the sites`; client level: `mean update`, with the noise in the sum"
_OF_MODEL = "paid for with the model of DP-SGD, on reference rows alone; refused at client level and on own patients"
_STEP = "a step of a secure sum: keys, shares of masks, signatures"


def _uncovered(tells: str, listed: str) -> Release:
    return Release(UNCOVERED, tells, f"listed as \"{listed}\"")


_ERROR = _public("code of a refusal", "a fixed word")

REPORTS: Mapping[str, Mapping[str, Release]] = {
    "hello": {},
    "open": {},
    "close": {},
    "summarise": {"summary": _uncovered("column by column: means, deviations, quantiles, category counts", _PREPARED)},
    "prepare": {
        "train_rows": _uncovered("number of training rows", _ROWS),
        "val_rows": _uncovered("number of validation rows", _ROWS),
        "test_rows": _uncovered("number of test rows", _ROWS),
        "notes": _refused("sentences on rows, which may name a rare category", "no run with an epsilon asks for them"),
        "centre": _refused("mean training row", "`explain.sketch` and `method.trust` that start from the mean patient"),
    },
    "lend": {"held": _public("number of reference rows that arrived")},
    "train": {
        "model": _charged("trained model", _MODEL),
        "update": _charged("trained model less the one sent", _MODEL),
        "variate": _charged("SCAFFOLD's control variate", "made of DP-SGD's noisy steps; refused at client level"),
        "count": _uncovered("number of training rows", _ROWS),
        "steps": _uncovered("number of steps", _ROWS),
        "error": _uncovered("code of a site with fewer rows than privacy.fewest_rows", _ROWS),
        "val_loss": _refused("loss on validation rows", "`method.weigh.lambdas` with worst_site"),
        "ece": _refused("calibration error on validation rows", "`method.weigh.lambdas` with calibration"),
        "local": _refused("how right the local model is on its own rows", "`evaluation.local`"),
        "reasons": _refused("sketch that alignment steered the local model by", "stability `aligned`"),
        "trust": _charged("FedXChain's figures of the local model", _OF_MODEL),
        "shap": _charged("attributions of the local model", _OF_MODEL),
        "sketch": _charged("sketch of the local model", _OF_MODEL),
        "rationale": _charged("where the local model looks on reference images", _OF_MODEL),
    },
    "finetune": {"model": _refused("model trained further on the site's own rows", "`train.finetune`")},
    "upload": {"model": _charged("local model that the site kept", "when DP-SGD trained it; method `xfed` is refused")},
    "evaluate": {
        "train": Release(EMPTY, "counts of scores on training rows", "`untold` rows: the site counts none"),
        "val": Release(EMPTY, "counts of scores on validation rows", "`untold` rows: the site counts none"),
        "test": _uncovered("counts of scores on test rows", _TEST),
        "test_clean": _uncovered("counts of scores on test images without patches", _TEST),
        "figures": _uncovered("figures of test rows", _TEST),
    },
    "score": {
        "loss": _refused("loss of a model on training rows", "`method.select` by loss"),
        "losses": _refused("losses of several models on training rows", "method `clustered`"),
        "accuracy": _refused("accuracy of a model on training rows", "`method.select` by loss"),
        "accuracies": _refused("accuracies of several models on training rows", "method `clustered`"),
        "lent": _refused("accuracy of other sites' models on own rows", "`evaluation.local = \"crossed\"`"),
    },
    "calibrate": {"losses": _refused("losses of validation rows", "`evaluation.calibrate = \"temperature\"`")},
    "platt": {
        "sums": _refused("sums over validation rows", "a run with an epsilon asks for `counts` in their place"),
        "counts": _charged("validation scores counted in cells", "once for each model that is calibrated"),
    },
    "explain": {"sketch": _refused("explanation of the model in use on own patients", "`explain.at`, and no run asks for it")},
    "maps": {"maps": _refused("numbers of heat maps of own images", "`explain.maps`")},
    "witness": {
        "signature": _public("countersignature of the ledger"),
        "have": _public("number of entries that the site countersigned"),
        "refused": _public("code of a refusal to countersign"),
    },
    "trust.diverge": {"trust": _charged("distance of the local model's attributions from their mean", _OF_MODEL)},
    "trust.weights": {"agreed": _public("yes or no to the weights", "follows from what was told before"), "error": _ERROR},
    "trust.contribute": {"trust": _charged("loss of the model without the site's own", _OF_MODEL)},
    "veil.census": {"census": _charged("rows and events", "VEIL: `rows and events`")},
    "veil.propose": {"votes": _charged("features with a sign", "VEIL: `proposals of features with a sign`")},
    "veil.scores": {"scores": _charged("sums of clipped scores", "VEIL: `sums of clipped scores`")},
    "veil.moments": {"moments": _charged("sums of second moments", "VEIL: `sums of second moments`")},
    "veil.percentiles": {"cells": _charged("patients counted in agreed cells", "VEIL: a share of its budget")},
    "secagg.introduce": {"identity": _public("public key of the site")},
    "secagg.meet": {"met": _public("yes or no", _STEP)},
    "secagg.keys": {"keys": _public("public keys of one sum", _STEP), "error": _ERROR},
    "secagg.shares": {"sealed": _public("sealed shares of masks", _STEP), "error": _ERROR},
    "secagg.masked": {
        "masked": _charged("masked values, of which the server sees the sum", "as what is summed, with its noise"),
        "unreadable": _public("sites whose shares could not be read", _STEP),
        "error": _ERROR,
    },
    "secagg.sign": {"signature": _public("signature of the survivors", _STEP), "error": _ERROR},
    "secagg.unmask": {
        "owners": _public("whose shares these are", _STEP),
        "shares": _public("shares of masks", _STEP),
        "error": _ERROR,
    },
}
"""By task and report."""

_SIMULATED = "a simulation's own: at hospitals it stays with the server"

FILES: Mapping[str, Release] = {
    "experiment.toml": _uncovered("settings, and the kind of each column as read from all rows", _PREPARED),
    "schema.json": _uncovered("how each column was read, and why", _PREPARED),
    "environment.json": _public("versions of packages"),
    "model.safetensors": _charged("final model; how its inputs are prepared is not covered", "made of charged releases"),
    "models/": _charged("models of single sites (method `local`)", "made of charged releases; fine-tuned ones are refused"),
    "percentiles.json": _charged("noised percentiles of columns", "VEIL: a share of its budget; no other run writes it"),
    "explanations.json": _charged("sketches of private models on reference rows", "made of charged releases"),
    "round_logs.json": _uncovered("Decisions, with row counts and figures of test rows", _TEST),
    "summary.json": _uncovered("figures of test rows, row counts, the privacy statement", _TEST),
    "report.html": _uncovered("the same as a page", _TEST),
    "ledger.db": _uncovered("Decisions and hashes", _ROWS),
    "ledger.head.json": _public("signed head of the ledger"),
    "server.pub": _public("public key of the server"),
    "checkpoint/": Release(UNCOVERED, "state of server and sites between rounds", f"{_SIMULATED}; listed as \"{_PREPARED}\""),
}
"""By the name of a file in the run folder; a name with a slash is a folder."""


def release_of(task: str, report: str) -> Release | None:
    """Look up a report of a task.

    Args:
        task: as an Ask names it.
        report: as an Ask names it, or a column of an answer ("test.count" is of report "test").

    Returns:
        Its place in the table; None where it has none, and then no site answers with it.
    """
    return REPORTS.get(task, {}).get(report.split(".")[0])


def file_release(name: str) -> Release | None:
    """Look up a file of the run folder by its path in it; None where it has no place in the table."""
    return FILES.get(name) or next((r for n, r in FILES.items() if n.endswith("/") and name.startswith(n)), None)
