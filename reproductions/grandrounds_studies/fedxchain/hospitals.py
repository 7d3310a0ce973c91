"""The same trust where sites are hospitals: heart disease at four of them, death in the ICU at 152; and beside SSE-AGG."""

from __future__ import annotations

from typing import Any

from grandrounds_studies.fedxchain.claims import over
from grandrounds_studies.fedxchain.detection import DETECTED, roc_curves, trust_of_sites
from grandrounds_studies.fedxchain.measures import FLIPPED_TRUST, FLIPPED_WEIGHT, HONEST_TRUST, NSDS, TRUST
from grandrounds_studies.fedxchain.setting import FEDAVG, OURS, PAPER, UNIFORM
from grandrounds_studies.fedxchain.setting import ROBUST as PRESET
from grandrounds_studies.measures import ACCURACY, AUROC, MAJORITY
from grandrounds_studies.study import Arm, Claim, Headline, Point, Quick, Study

HEART, COHORT = "heart", "icu-cohort"
AGREEMENT = Arm(
    "FedXChain robust with SSE-AGG", {"method": {"name": "fedxchain", "trust": {"preset": "robust", "reasons": True}}}
)
SSE = Arm("SSE-AGG", {"method": {"name": "sse-agg", "stability": "none"}})


def _flip(count: int) -> dict[str, Any]:
    return {"attacks": [{"kind": "label-flip", "count": count, "validation": True}]}


_HEART = {"data": {"name": HEART}, "reference": {"root": {"rows": 40}}}
_COHORT = {"data": {"name": COHORT}, "reference": {"root": {"rows": 200}}, "method": {"rounds": 5}}
HONEST = (Point("heart, honest", _HEART, group=HEART), Point("ICU, honest", _COHORT, group=COHORT))
FLIPPED = (
    Point("heart, the largest of 4 flips", {**_HEART, **_flip(1)}, group=HEART),
    Point("ICU, the 30 largest of 152 flip", {**_COHORT, **_flip(30)}, group=COHORT),
)
_TRUSTING = (OURS.label, PRESET.label, AGREEMENT.label)

HOSPITALS = Study(
    name="fedxchain/hospitals",
    title="Trust between hospitals, honest and with flipped labels, alone and together with SSE-AGG's agreement",
    headline=Headline("heart, the largest of 4 flips", "FedXChain robust", "auroc"),
    source=f"our own: {PAPER} has ten parts of one data set",
    unpublished="nothing to compare with: the paper has no hospitals",
    base={
        "model": {"name": "logistic"},
        "method": {"rounds": 10},
        "train": {"epochs": 2, "batch": 32, "lr": 0.1},
        "explain": {"sketch": "permutation", "reference": "root"},
    },
    points=(*HONEST, *FLIPPED),
    arms=(FEDAVG, UNIFORM, SSE, OURS, PRESET, AGREEMENT),
    measures=(AUROC, ACCURACY, MAJORITY, NSDS, TRUST, DETECTED, FLIPPED_TRUST, HONEST_TRUST, FLIPPED_WEIGHT),
    claims=tuple(
        Claim(
            f"trust tells who flips labels (area under the ROC curve at least 0.9): {point.label}",
            "our question",
            _TRUSTING,
            over(DETECTED.name, point.label, 0.9 - 1e-9),
        )
        for point in FLIPPED
    ),
    settled=(
        "Sites are hospitals; every one trains and tests. The largest hospitals flip the labels of their training and validation "
        "rows; 40 (heart) and 200 (ICU) reference rows are the server's. The ICU cohort is generated.",
        "'With SSE-AGG': weights are the robust preset's times how far a site's permutation sketch is in line with the others' "
        "(method.trust.reasons).",
    ),
    remarks=(
        "Of 100 ICU patients 91 live: a model that says so of everybody is right in 91% of cases. Accuracy tells flipped labels "
        "there, and little else.",
    ),
    draws=roc_curves,
    keeps=trust_of_sites,
    quick=Quick(
        {"method": {"rounds": 2}, "train": {"epochs": 1}},
        points=("heart, honest", "heart, the largest of 4 flips"),
        arms=(FEDAVG.label, PRESET.label, AGREEMENT.label),
    ),
    seeds=5,
)
