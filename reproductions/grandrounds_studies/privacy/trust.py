"""FedXChain in its recommended private form: DP-SGD at the sites, and trust that the server works out on rows of its own."""

from __future__ import annotations

from typing import Any

from grandrounds_studies.claims import best
from grandrounds_studies.fedxchain.claims import over
from grandrounds_studies.fedxchain.detection import DETECTED, roc_curves, trust_of_sites
from grandrounds_studies.fedxchain.measures import FLIPPED_TRUST, FLIPPED_WEIGHT, HONEST_TRUST
from grandrounds_studies.fedxchain.setting import ROBUST
from grandrounds_studies.measures import ACCURACY, AUROC, MAJORITY
from grandrounds_studies.privacy.claims import GOAL, costs, nothing_more
from grandrounds_studies.privacy.measures import EPSILON, promise
from grandrounds_studies.privacy.setting import (
    COHORT,
    DELTA,
    EPSILONS,
    FEDAVG,
    HOSPITALS,
    QUICK,
    TEN_SITES,
    World,
    private,
)
from grandrounds_studies.study import Claim, Headline, Point, Quick, Study, merged

ROUNDS, EPOCHS = 10, 3
"""As many steps as thirty rounds of one epoch, so as much is charged; a local model that goes further shows more of its data."""

PRIVATE = {e: (private(FEDAVG, e), private(ROBUST, e)) for e in EPSILONS}
"""Epsilon -> FedAvg and FedXChain that guarantee it."""

CAUGHT = 0.9
_MOST = {1.0: 0.05, 3.0: 0.03, 8.0: 0.02}
"""Epsilon -> how much of AUROC the guarantee may cost."""


def _point(world: World, label: str, flipped: int = 0) -> Point:
    attack = {"kind": "label-flip", "count": flipped, "validation": True}
    bound = [arm for pair in PRIVATE.values() for arm in pair]
    more: dict[str, Any] = {"attacks": [attack]} if flipped else {}
    return world.point({"root": {"rows": world.rows}}, bound, label=label, **more)


HONEST = (
    _point(COHORT, "ICU, honest"),
    _point(HOSPITALS, "heart, honest"),
    _point(TEN_SITES, "diabetes-130, honest"),
)
FLIPPED = (
    _point(COHORT, "ICU, the 30 largest flip", flipped=30),
    _point(HOSPITALS, "heart, the largest of 4 flips", flipped=1),
    _point(TEN_SITES, "diabetes-130, the 3 largest of 10 flip", flipped=3),
)
LABELS = tuple(p.label for p in (*HONEST, *FLIPPED))

TRUST = Study(
    name="privacy/trust",
    title="Trust with a guarantee for patients: what is charged, whether flipped labels are still caught, and what it costs",
    headline=Headline("ICU, the 30 largest flip", "FedXChain robust, epsilon 1", "auroc"),
    source="our own: the paper has no formal guarantee",
    unpublished="nothing to compare with",
    base={
        "model": {"name": "logistic"},
        "method": {"rounds": ROUNDS},
        "train": {"epochs": EPOCHS, "batch": 64},
        "explain": {"sketch": "none"},
        "evaluation": {"every": 1000},
    },
    points=(*HONEST, *FLIPPED),
    arms=(FEDAVG, ROBUST, *(arm for pair in PRIVATE.values() for arm in pair)),
    measures=(AUROC, ACCURACY, MAJORITY, DETECTED, FLIPPED_TRUST, HONEST_TRUST, FLIPPED_WEIGHT, EPSILON),
    claims=(
        *nothing_more(PRIVATE.values(), LABELS),
        *(
            Claim(
                f"trust tells who flips labels (area under the ROC curve at least {CAUGHT:g}): {point.label}",
                GOAL,
                (ROBUST.label, *(ours.label for _, ours in PRIVATE.values())),
                over(DETECTED.name, point.label, CAUGHT - 1e-9),
            )
            for point in FLIPPED
        ),
        *(
            Claim(
                f"AUROC is clearly above that of FedAvg with DP-SGD at the same epsilon: {point.label}",
                GOAL,
                (ours.label,),
                best((AUROC.name,), (point.label,), (theirs.label,)),
            )
            for point in FLIPPED
            for theirs, ours in PRIVATE.values()
        ),
        *(
            Claim(
                f"at epsilon = {e:g} the guarantee costs at most {_MOST[e]:g} of AUROC: {point}",
                GOAL,
                (ours.label,),
                costs(AUROC.name, (point,), to=ROBUST.label, by=_MOST[e]),
            )
            for e, (_, ours) in PRIVATE.items()
            for point in LABELS
        ),
    ),
    settled=(
        "Data: icu-cohort, 152 generated hospitals with 79,694 stays, a fifth of the hospitals kept for the test; heart, four "
        "real hospitals with 920 patients; diabetes-130 (99,343 real stays) at ten sites with Dirichlet 0.5 over labels. "
        "Logistic regression. The sites with the most training rows flip all labels of their training and validation rows from "
        "the first round; test rows are as they are.",
        f"{ROUNDS} rounds of {EPOCHS} epochs. Under DP-SGD each row is in a step with chance 0.1, so an epoch has ten steps; "
        f"delta is {DELTA:g}, per patient (row), add/remove, noise at the sites, nobody is trusted. Sites with fewer than 50 "
        "training rows take no part then. Without a guarantee batches are of 64.",
        "Thirty rounds of one epoch have as many steps and cost as much epsilon. On heart with seed 101 they did not tell the "
        "flipped hospital from the others, with a guarantee or without: local models moved too little. Ten of three did so in "
        "four of six runs with seeds 101 to 103, and were taken for all three sets (on icu-cohort, seed 101, both did). Clip "
        "and learning rates are those of privacy/sse-agg, chosen for FedAvg on other seeds than those that are reported.",
        "200 rows (heart: 60) are the server's own, of no site in any arm, and their patients are not protected. With a "
        "guarantee trust is reported by the server from models that left the sites under it: accuracy and SHAP values on these "
        "rows (method.trust.explained = 'auto'). Without one sites explain themselves on rows of their own. FedAvg keeps no "
        "trust.",
        "Inputs are scaled by usual clinical ranges, so that preparing them asks no patient anything; for diabetes-130 there are "
        "none, and the summaries by which its rows are prepared are not covered.",
    ),
    draws=roc_curves,
    keeps=lambda run: {**promise(run), **trust_of_sites(run)},
    quick=Quick(
        merged(
            {n: QUICK[n] for n in ("data", "split")}, {"reference": {"root": {"rows": 40}}, "method": {"rounds": 3}}
        ),
        points=(FLIPPED[1].label,),
        arms=(FEDAVG.label, ROBUST.label, *(arm.label for arm in PRIVATE[3.0])),
    ),
)
