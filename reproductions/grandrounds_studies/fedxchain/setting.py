"""The set-up of FedXChain's experiment: what its paper gives, what it leaves open, and the ways that are compared.

FedAvg, FedProx and the uniform mean are run as method 'fedxchain' with another weighing: trust and NSDS are measured and have
no say, so that the same figures can be compared.
"""

from __future__ import annotations

from typing import Any

from grandrounds_studies.study import Arm, Point, Settings

PAPER = "FedXChain: Explainable Federated Learning with Adaptive Trust Scoring and Blockchain-based Audit Trails"
CANCER, SYNTHETIC = "breast-cancer", "synthetic-binary"

BASE: dict[str, Any] = {
    "data": {"name": CANCER},
    "split": {"partition": "dirichlet", "sites": 10, "alpha": 0.5},
    "reference": {"root": {"rows": 40}},
    "model": {"name": "logistic"},
    "method": {"rounds": 10},
    "train": {"epochs": 5, "batch": 32, "lr": 0.01},
    "explain": {"sketch": "shap", "reference": "root"},
}
QUICK: dict[str, Any] = {"method": {"rounds": 3}, "train": {"epochs": 2}}

SETTLED = (
    "As the paper has it: ten sites, Dirichlet 0.5 over labels, ten rounds of five epochs, batches of 32, all sites in every "
    "round. A fifth of each site's rows is for testing. 40 rows are held out as reference rows in every arm, also where a "
    "method has no use for them, so that a seed has one split for all; about 105 of 569 rows are left to test on.",
    "'FedXChain' is the default: accuracy on the 40 reference rows, weights by trust x exp(-tau NSDS), tau = 0.5. 'As printed' "
    "is eq. 7 and 8: accuracy on a site's own validation rows, 1 - tau NSDS, at least 0; the paper gives no tau, so 0.5 too. "
    "'Robust' is the preset with shares .89, .07 and .04 and signed agreement: reasons that point the other way have no weight.",
    "FedAvg, FedProx (mu = 0.01) and the uniform mean measure trust and NSDS in the same way and do not weigh by them. NSDS and "
    "trust are means over sites in the last round, in nats.",
    "Our ± is half of Student's 95% interval over seeds; the paper's is the standard deviation. Macro F1 is the mean over the "
    "two classes.",
)

ERRATA = (
    "Macro F1 equals accuracy in all four rows of the paper's Table I, and in their deviations: that is micro F1, which is "
    "accuracy by definition.",
    "None of its accuracies 96.50, 95.50 and 94.33 is a multiple of 1/570, as means over five test sets of 114 rows would be; "
    "all are multiples of 1/600.",
    "Eq. 2 subtracts the sum of all masks from a mean, and Algorithm 2 sends each mask along with what it hides; eq. 4 needs "
    "each site's SHAP values at the server. Here sums are secure (`rounds run fedxchain/secure`) and sites work out their own "
    "NSDS.",
    "Example 3.1 gives NSDS = 0.427; its inputs give 0.3340 nats. Eq. 8 is negative where tau x NSDS is over 1. Eq. 6 and 7 need "
    "each other: last round's trust is used.",
    "Its Fig. 1 and 4 compare FedXChain at alpha = 0.3 with FedAvg on IID data and FedProx at alpha = 0.5; Fig. 4 has "
    "FedAvg 96.0 and FedProx 89.5, Table II has 92.3 and 93.8.",
)


def _arm(label: str, settings: Settings | None = None, **method: Any) -> Arm:
    return Arm(label, {"method": {"name": "fedxchain", **method}, **(settings or {})})


FEDAVG = _arm("FedAvg", weigh="data_size")
FEDPROX = _arm("FedProx", weigh="data_size", stability="proximal", mu=0.01)
UNIFORM = _arm("uniform mean", weigh="uniform")
OURS = _arm("FedXChain")
PRINTED = _arm("FedXChain as printed", trust="printed")
ROBUST = _arm("FedXChain robust", trust="robust")
PLAIN = Arm("plain FedAvg", {"method": {"name": "fedavg"}})
"""Without trust and SHAP values: what the whole machinery costs is compared with it."""

TOP = _arm("FedXChain, top 5", trust={"top": 5})
SECURE = _arm(
    "FedXChain, secure",
    {"reference": {"root": {"sent": True}}, "privacy": {"secure": True}, "explain": {"at": "site"}},
)

BASELINES = (FEDAVG.label, FEDPROX.label)
BOTH = (OURS.label, PRINTED.label)
"""A claim about FedXChain is tested of ours and of the paper's form."""

LOGISTIC = Point("logistic, lr 0.01", {"train": {"lr": 0.01}}, group=CANCER)
FASTER = Point("logistic, lr 0.1", {"train": {"lr": 0.1}}, group=CANCER)
MLP = Point(
    "MLP (64, 32), Adam",
    {"model": {"name": "mlp", "hidden": [64, 32]}, "train": {"lr": 0.01, "optimizer": "adam"}},
    group=CANCER,
)
_TREES = {"name": "forest", "trees": 50, "depth": 10}
_OF_FORESTS = (FEDAVG.label, UNIFORM.label, *BOTH)
FOREST = Point("forest, 1 round", {"model": _TREES, "method": {"rounds": 1}}, group=CANCER, arms=_OF_FORESTS)
FORESTS = Point("forest, 10 rounds", {"model": _TREES}, group=CANCER, arms=(OURS.label,))
MADE_UP = Point("logistic, synthetic", {"data": {"name": SYNTHETIC}}, group=SYNTHETIC)
